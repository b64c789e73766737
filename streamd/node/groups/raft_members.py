"""`RaftMembers`: builds a group's Raft member from its log, its snapshot and their damage.

A member that may have forgotten a vote or an acked entry is *recovering* (`is_uncertain`); one
whose log is whole but whose state below the log's start is gone is *incomplete* (what both may do:
`raft/recovering.py`, and `Election.may_stand` in `raft/election.py`). In a group of one both are
errors: no other member can be asked.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import NamedTuple

from streamd import limits
from streamd.errors import CorruptionError, DiskError, is_passing
from streamd.memory_share import MemoryShare
from streamd.node.context import NodeContext
from streamd.node.ports import Peers
from streamd.node.recovery.quorum_loss_recovery import QuorumLossRecovery
from streamd.raft.core import MemberStart, RaftCore
from streamd.raft.history import LogPosition
from streamd.raft.membership import Membership
from streamd.types import META_UID, Entry, HardState, Index, LogState, NodeId, Term, Uid


class GroupStart(NamedTuple):
    """Facts about a group before its log is read."""

    uid: Uid
    index: Index = 0  # type: ignore[assignment]  # of the newest snapshot; 0: none
    term: Term = 0
    chain: int = 0
    voters: tuple[NodeId, ...] = ()  # with which the group began
    members: Membership | None = None  # at the snapshot
    is_forgotten: bool = False  # this node was in the group once, if its log knows it or not
    is_damaged: bool = False  # what the snapshot should have brought back is lost
    is_log_void: bool = False  # what its log says is wrong, votes aside
    is_memory: bool = False
    named: frozenset[NodeId] = frozenset()  # its members now or later, as the meta group says
    left_at: tuple[Term, Index] = (0, 0)  # where a member ended that was destroyed here
    history: tuple[LogPosition, ...] = ()  # of entries up to the snapshot
    is_alone: bool = False  # there is no other member to ask, and never was


class RaftMembers:
    """Makes the cores of one node's groups.

    `on_made(core)`: the member of a group with a log was made from what that holds of it.
    `on_damaged_log(reason)`: a member that runs met a part of its log that can't be read.
    """

    def __init__(
        self,
        context: NodeContext,
        peers: Peers | None,
        quorum_loss: QuorumLossRecovery,
        *,
        on_made: Callable[[RaftCore], None],
        on_damaged_log: Callable[[str], None],
    ) -> None:
        self._context = context
        self._peers = peers
        self._quorum_loss = quorum_loss
        self._on_made = on_made
        self._on_damaged_log = on_damaged_log
        self._seed = int.from_bytes(context.env.disk.random_bytes(8), "little")
        self._made_count = 0
        self._windows = MemoryShare(limits.RAFT_WINDOWS_BYTES)

    def next_nonce(self) -> int:
        """Return a number of 31 bits that peers echo: another each time, and in each process."""
        self._made_count += 1
        return (self._seed + self._made_count) & 0x7FFFFFFF

    def make(self, start: GroupStart) -> RaftCore:
        """Build the member. Raises CorruptionError if a group of one has lost something."""
        context = self._context
        uid = start.uid
        # With --accept-loss in a cluster, a lone member recovers like any other.
        is_alone = (start.is_alone and not context.accepts_doubt) or not context.is_clustered
        found = None if start.is_memory else context.wal.group(uid)
        damage = "" if start.is_memory else context.wal.damaged_groups.get(uid, "")
        if is_alone:
            if damage and not context.accepts_loss:
                raise CorruptionError(f"group {uid}: {damage}")
            try:
                log = log_from_snapshot(
                    uid, found, index=start.index, term=start.term, chain=start.chain
                )
                if context.options.sync == "always" and not start.is_memory:
                    check_end(uid, found, start.index)
            except CorruptionError as err:
                if not context.accepts_loss:
                    raise
                context.log.warn(
                    "the log of a group cannot be used: the group begins at its snapshot",
                    group=uid,
                    reason=str(err),
                )
                self._quorum_loss.is_meta_lost |= uid == META_UID
                return self._anew(start, found, is_uncertain=False)
            if not context.is_clustered:
                # A lone member has no leader to readmit it: the operator accepted the loss.
                log = log._replace(hard_state=log.hard_state._replace(is_uncertain=False))
            self._tell_log(start, found, log.hard_state)
            return self._core(start, log, start.index)
        # Without a log, the member may still have been in the group, and have promised.
        is_uncertain = bool(damage) or (found is None and start.is_forgotten)
        if found is not None and found.hard_state.is_uncertain:
            is_uncertain = True
        if start.is_log_void:
            return self._anew(start, found)
        try:
            log, applied = _log_with_peers(start, found)
            is_incomplete = start.is_damaged or applied > start.index
            self._tell_log(start, found, log.hard_state._replace(is_uncertain=is_uncertain))
            return self._core(
                start, log, applied, is_uncertain=is_uncertain, is_incomplete=is_incomplete
            )
        except CorruptionError as err:
            # The log contradicts itself or the snapshot. What it held may have been acked.
            context.log.warn(
                "the log of a group cannot be used: the group begins at its snapshot",
                group=uid,
                reason=str(err),
            )
            return self._anew(start, found)

    def _tell_log(self, start: GroupStart, found: LogState | None, hard_state: HardState) -> None:
        """Log where the log goes on, if it ends before the snapshot: what is appended next would
        else look, to the next start, like the rest of a log whose beginning is missing."""
        ends = found.last_index if found is not None else 0
        if ends < start.index and not start.is_memory:
            # With `is_uncertain` in the same batch, as in `_anew`.
            self._context.wal.reset_group(
                start.uid, start.index, start.term, start.chain, hard_state=hard_state
            )

    def _anew(
        self, start: GroupStart, found: LogState | None, *, is_uncertain: bool = True
    ) -> RaftCore:
        """Keep the term, drop the log: the member begins at its snapshot, recovering."""
        term = max(found.hard_state.term if found is not None else 0, start.term)
        vote = found.hard_state.vote if found is not None else ""
        hard_state = HardState(term, vote, start.index, is_uncertain)
        if not start.is_memory:
            # In one batch: a log that is void must never look like one that can be relied upon.
            self._context.wal.reset_group(
                start.uid, start.index, start.term, start.chain, hard_state=hard_state
            )
        log = LogState(
            hard_state,
            start.index + 1,
            start.index,
            start.term,
            start.chain,
        )
        return self._core(
            start,
            log,
            start.index,
            is_uncertain=is_uncertain,
            # In memory nothing is missing at index 0, and a snapshot that came when entries are
            # here and counted would take them away again.
            is_incomplete=is_uncertain
            and (start.is_damaged or (start.index == 0 and not start.is_memory)),
        )

    def _core(
        self,
        start: GroupStart,
        log: LogState,
        applied: Index,
        *,
        is_uncertain: bool = False,
        is_incomplete: bool = False,
    ) -> RaftCore:
        context = self._context
        name = f"{context.name}/{start.uid}".encode()
        reader = None if start.is_memory else _WalReader(context, start.uid, self._on_damaged_log)
        core = RaftCore(
            MemberStart(
                group=start.uid,
                node_id=context.name,
                voters=start.voters or (context.name,),
                members=start.members,
                log=log,
                reader=reader or _NoReader(),
                now_ms=context.env.clock.monotonic_ms(),
                seed=self._seed ^ zlib.crc32(name),
                applied=applied,
                election_ms=limits.RAFT_ELECTION_MS,
                heartbeat_ms=limits.RAFT_HEARTBEAT_MS,
                is_uncertain=is_uncertain,
                is_incomplete=is_incomplete,
                may_begin_anew=start.is_memory,
                named=start.named,
                left_at=start.left_at,
                windows=self._windows,
                history=start.history if applied == start.index else (),  # else there is a gap
            )
        )
        if reader is not None:
            reader.is_begun = True
        core.log.is_in_memory = start.is_memory
        if not start.is_memory:
            self._on_made(core)
        core.nonce = self.next_nonce()
        if start.uid:
            core.commit_delay_ms = limits.RAFT_COMMIT_DELAY_MS
        if self._peers is not None:
            core.set_live(frozenset((context.name, *self._peers.nodes())))
        return core


class _WalReader:
    """Reader of one group's entries in the log."""

    def __init__(self, context: NodeContext, uid: Uid, on_damaged: Callable[[str], None]) -> None:
        self._call_soon = context.env.loop.call_soon
        self._on_damaged = on_damaged
        self._wal = context.wal
        self._uid = uid
        self.is_begun = False  # else the maker of the core decides what becomes of it

    def read(self, lo: Index, hi: Index, max_bytes: int) -> list[Entry]:
        try:
            return self._wal.read(self._uid, lo, hi, max_bytes)
        except CorruptionError as err:
            if self.is_begun and not is_passing(err):
                # The caller may do without. The next start could not.
                self._call_soon(self._on_damaged, str(err))
            raise


class _NoReader:
    def read(self, lo: Index, hi: Index, max_bytes: int) -> list[Entry]:
        raise DiskError(f"entries {lo}..{hi} of a group in memory are gone")


def _log_with_peers(start: GroupStart, found: LogState | None) -> tuple[LogState, Index]:
    """Join log and snapshot of a group with peers; return (log, index from which to go on).

    A gap between them is no error: the state comes from a peer, the log after the gap still says
    what this member has promised.
    """
    index = start.index
    if found is not None and found.first_index > index + 1:
        return found, found.first_index - 1
    return (
        log_from_snapshot(start.uid, found, index=index, term=start.term, chain=start.chain),
        index,
    )


def log_from_snapshot(
    uid: Uid, found: LogState | None, *, index: Index, term: int, chain: int
) -> LogState:
    """Join what the log knows with the snapshot: entries after the snapshot, or none.

    Raises CorruptionError when entries between them are missing: lost is not deleted.
    """
    hard_state = found.hard_state if found is not None else HardState()
    if hard_state.term < term:
        hard_state = HardState(term, "", index, hard_state.is_uncertain)
    if found is None or found.last_index <= index:
        return LogState(hard_state, index + 1, index, term, chain)
    if found.first_index > index + 1:
        raise CorruptionError(
            f"group {uid}: the newest snapshot is at index {index}, but the log starts at "
            f"{found.first_index}: entries {index + 1}..{found.first_index - 1} are missing"
        )
    return LogState(
        hard_state, found.first_index, found.last_index, found.prev_term, found.prev_chain
    )


def check_end(uid: Uid, found: LogState | None, stored: Index) -> None:
    """Raise CorruptionError if a log that is alone, and synced before anything follows from it,
    ends before an entry of which something `stored` says that it was applied."""
    ends = found.last_index if found is not None else 0
    if ends < stored:
        raise CorruptionError(
            f"group {uid}: the log ends with entry {ends}, but the stored files reach entry "
            f"{stored}: the log is an older copy, or has lost its end"
        )
