"""Messages between the members of one group. Values only; bytes are `protocol/peer_frames.py`'s.

Every message carries the term of its sender (a pre-vote: the term it would campaign in), so that
whatever an old term produced is recognised and dropped by its receiver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from streamd.raft.membership import Membership
from streamd.types import Entry, Index, Term


@dataclass(slots=True)
class Vote:
    """Asks for a vote; with `is_pre`, asks only whether a vote would be granted."""

    term: Term
    is_pre: bool
    last_index: Index
    last_term: Term
    is_transfer: bool = False  # the leader itself asked for this election: its lease is no bar


@dataclass(slots=True)
class VoteReply:
    """A grant of a pre-vote carries the asked term; everything else the term of its sender."""

    term: Term
    is_pre: bool
    is_granted: bool
    is_uncertain: bool = False  # see `recovering`: such a grant counts only if every member grants


@dataclass(slots=True)
class Append:
    """Entries that follow (prev_index, prev_term, prev_chain), and how far the leader committed.

    `entries` are the leader's own objects: a transport encodes them, it never hands them over
    (`tag` and `command` belong to the proposer).
    """

    term: Term
    prev_index: Index
    prev_term: Term
    prev_chain: int
    entries: list[Entry]
    commit: Index


@dataclass(slots=True)
class AppendReply:
    """`is_ok`: everything up to `index` equals the leader's log and is durable here.

    Otherwise `index` repeats the refused prev_index, and (hint_index, hint_term) name the last
    entry of the receiver that could still match. `is_diverged`: same term, other content.
    `needs_snapshot`: the log is whole, but the state below it is not: offer a snapshot.
    """

    term: Term
    is_ok: bool
    index: Index
    hint_index: Index = 0
    hint_term: Term = 0
    is_diverged: bool = False
    is_uncertain: bool = False
    needs_snapshot: bool = False


@dataclass(slots=True)
class Heartbeat:
    """Sign of life. `commit` never exceeds what the receiver is known to hold."""

    term: Term
    commit: Index
    round_no: int


@dataclass(slots=True)
class HeartbeatReply:
    term: Term
    round_no: int
    is_uncertain: bool = False


@dataclass(slots=True)
class SnapshotOffer:
    """The receiver's next entry is compacted away; it should fetch the leader's snapshot.

    The offer names the snapshot; the bytes are fetched by the shell, outside of Raft.
    """

    term: Term
    index: Index
    snapshot_term: Term
    chain: int
    membership: Membership


@dataclass(slots=True)
class TimeoutNow:
    """The leader transfers its leadership: campaign at once, without a pre-vote."""

    term: Term


@dataclass(slots=True)
class ReadQuery:
    """A follower asks which index it must have applied before it may answer a read."""

    term: Term
    context: int


@dataclass(slots=True)
class ReadAnswer:
    """`index` 0: the leader could not confirm itself; ask again."""

    term: Term
    context: int
    index: Index


@dataclass(slots=True)
class Quiesce:
    """Nothing is under way: a receiver with exactly this log needs no more heartbeats."""

    term: Term
    last_index: Index
    commit: Index


@dataclass(slots=True)
class Certify:
    """An uncertain receiver that holds the leader's entry `index` may count again."""

    term: Term
    index: Index


Message: TypeAlias = (
    Vote
    | VoteReply
    | Append
    | AppendReply
    | Heartbeat
    | HeartbeatReply
    | SnapshotOffer
    | TimeoutNow
    | ReadQuery
    | ReadAnswer
    | Quiesce
    | Certify
)
