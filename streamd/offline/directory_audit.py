"""Comparison of the replicas of all streams in several data directories, message by message.

A stream is `equal` only if every member of its group was given, read whole, and has the same
messages at the same log index. All else is told: `drift` and `damage` with the sequences, and
`incomplete` where a replica is missing or can't be read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from streamd.errors import StreamdError
from streamd.offline.odd_replicas import Odd, gathered, odd_ones
from streamd.offline.replica_state import (
    ReplicaState,
    differing_seqs,
    ranges_text,
    read_replica,
)
from streamd.offline.store_dirs import StoreDir
from streamd.offline.stream_view import StreamView, open_stream
from streamd.offline.survey import survey
from streamd.types import Seq, stream_label

_OPENINGS = 3  # until all replicas are at one index
EQUAL, DRIFT, DAMAGE, INCOMPLETE = "equal", "drift", "damage", "incomplete"


class Verdict(NamedTuple):
    """Outcome of the audit of one stream."""

    stream: str
    verdict: str
    at_index: int  # log index at which the replicas were compared
    messages: int
    read: list[str]  # replicas that were read whole
    missing: list[str]  # members of the group of which nothing was given, or that can't be read
    seqs: list[Seq]  # that differ, or are damaged
    reasons: list[str]
    odd: Sequence[Odd] = ()  # replicas that hold something else there than most


def audit_directories(
    stores: Sequence[StoreDir], on_stream: Callable[[str], None] = lambda _: None
) -> list[Verdict]:
    """Audit every file stream of which these directories have a replica. Raises StreamdError if
    none of them can be read."""
    known: dict[str, set[str]] = {}
    unread: dict[str, str] = {}
    for store in stores:
        try:
            for files in store.streams():
                if files.is_file:
                    peers = set(files.asset.peers) or {""}
                    known.setdefault(stream_label(files.asset.key), set()).update(peers)
        except (StreamdError, OSError) as err:
            unread[store.server_name] = str(err)
    if unread and not known:
        raise StreamdError("; ".join(f"{name}: {text}" for name, text in unread.items()))
    found = []
    for label, members in sorted(known.items()):
        on_stream(label)
        found.append(_audit(stores, label, members, unread))
    return found


def node_name(store: StoreDir) -> str:
    """Return the name of the server whose directory this is, "" if it is unknown."""
    try:
        return str(store.identity.get("name", ""))
    except StreamdError:
        return ""


def _open(
    stores: Sequence[StoreDir], label: str, index: int, opened: ExitStack
) -> tuple[list[StreamView], list[str]]:
    """Open a stream's replicas at a log index; return those that can be, and why others can't."""
    views, faults = [], []
    for store in stores:
        try:
            views.append(opened.enter_context(open_stream(store, label, up_to=index)))
        except (StreamdError, OSError) as err:
            faults.append(f"{store.server_name}: {err}")
    return views, faults


def _odd_by_seq(states: Sequence[ReplicaState], seqs: Sequence[Seq]) -> dict[Seq, list[str]]:
    """Return, for each sequence that has such, the replicas whose record of it is not whole, or is
    another than most of the whole ones."""
    lacking = {state.replica: frozenset(state.fault_seqs) for state in states}
    found: dict[Seq, list[str]] = {}
    for seq in seqs:
        damaged = [name for name, without in lacking.items() if seq in without]
        whole = {s.replica: s.crcs.get(seq) for s in states if s.replica not in damaged}
        if odd := sorted([*damaged, *odd_ones(whole)]):
            found[seq] = odd
    return found


def _audit(
    stores: Sequence[StoreDir], label: str, members: set[str], unread: dict[str, str]
) -> Verdict:
    reasons = [f"{name}: {text}" for name, text in unread.items()]
    states: list[ReplicaState] = []
    faults: list[str] = []
    read: list[str] = []
    given: set[str] = set()
    committed = 0
    try:
        found = survey([store for store in stores if store.server_name not in unread], label)
        committed = found.committed
    except (StreamdError, OSError) as err:
        return Verdict(label, INCOMPLETE, 0, 0, [], sorted(members), [], [*reasons, str(err)])
    reasons += [f"{name}: {err}" for name, err in found.problems.items()]
    there = [store for store in stores if store.server_name in found.lasts]
    # One that stopped first lacks the end of the log: all are compared where it ends, or where the
    # newest snapshot begins.
    target = min(committed, min(found.lasts.values()))
    for _ in range(_OPENINGS):
        with ExitStack() as open_views:
            views, faults = _open(there, label, target, open_views)
            newest = max((view.applied for view in views), default=target)
            if newest > target and any(view.applied < newest for view in views):
                target = newest
                continue
            states = [read_replica(view) for view in views]
            break
    reasons += faults
    for state in states:
        store = next(one for one in there if one.server_name == state.replica)
        read.append(state.replica)
        given.add(node_name(store) if store.is_clustered else "")
    missing = sorted(members - given) if members != {""} else []
    if not states:
        return Verdict(label, INCOMPLETE, committed, 0, [], missing, [], reasons)
    for state in states:
        reasons += [f"{state.replica}: {fault}" for fault in state.faults]
        if state.fault_seqs:
            lacking = ranges_text(state.fault_seqs)
            reasons.append(f"{state.replica}: no whole record of {lacking}")
    newest = max(state.applied for state in states)
    behind = [state for state in states if state.applied < newest]
    for state in behind:
        reasons.append(f"{state.replica}: its log ends at {state.applied}, others have {newest}")
    compared = [state for state in states if state.applied == newest]
    seqs = differing_seqs(compared)
    is_drift = len({state.digest for state in compared}) > 1
    odd = gathered(_odd_by_seq(compared, seqs))
    if is_drift:
        reasons += [f"{state.replica}: digest {state.digest:016x}" for state in compared]
        reasons += [
            f"{', '.join(each.replicas)}: other messages at {ranges_text(each.seqs)}"
            for each in odd
        ]
    is_damage = any(not state.is_whole for state in states)
    if is_drift or (seqs and not is_damage):
        verdict = DRIFT
    elif is_damage:
        verdict = DAMAGE
    elif missing or behind or reasons:
        verdict = INCOMPLETE
    else:
        verdict = EQUAL
    messages = compared[0].messages
    return Verdict(label, verdict, newest, messages, read, missing, seqs, reasons, odd)
