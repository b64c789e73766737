"""Members made from what is known of their groups."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from streamd.node.groups.raft_members import GroupStart, RaftMembers
from streamd.types import HardState, Index, LogState, Term, Uid
from tests.unit.node.contexts import context_of


class Log:
    """Of a node's write-ahead log: what it knows of groups, and what is said to be so anew."""

    def __init__(self, groups: dict[Uid, LogState]) -> None:
        self.groups = groups
        self.damaged_groups: dict[Uid, str] = {}
        self.resets: list[tuple[Index, HardState]] = []

    def group(self, uid: Uid) -> LogState | None:
        return self.groups.get(uid)

    def reset_group(
        self, uid: Uid, index: Index, term: Term, chain: int, *, hard_state: HardState
    ) -> None:
        self.resets.append((index, hard_state))


def rafts(log: Log | None = None) -> RaftMembers:
    """Those of node "a" of a cluster. Groups in memory need no log."""
    disk = SimpleNamespace(random_bytes=lambda count: bytes(count))
    clock = SimpleNamespace(monotonic_ms=lambda: 0)
    loop = SimpleNamespace(call_soon=lambda callback, *args: None)
    env = SimpleNamespace(disk=disk, clock=clock, loop=loop)
    context = context_of(wal=log, env=env, accepts_doubt=False)
    quorum_loss: Any = None
    return RaftMembers(
        context, None, quorum_loss, on_made=lambda raft: None, on_damaged_log=lambda reason: None
    )


@pytest.mark.parametrize("index", [0, 9])
def test_in_memory_nothing_is_missing_where_a_member_begins_anew(index: Index) -> None:
    """Its log was void. It waited for a snapshot, was told the first entries, acked them, and they
    counted; then the snapshot came and took the last of them away: simulator seed 31157."""
    start = GroupStart(7, index, 1 if index else 0, 5 if index else 0, ("a", "b"))
    core = rafts().make(start._replace(is_log_void=True, is_memory=True))
    assert core.is_uncertain
    assert not core.is_incomplete
    assert core.applied == index


@pytest.mark.parametrize("why", ["amnesia", "damage", "doubt of before"])
def test_a_log_that_goes_on_at_a_snapshot_says_at_once_that_it_is_in_doubt(why: str) -> None:
    """In one write with where it goes on: a crash after that must not leave a member that looks
    as if it remembered (I12)."""
    known = LogState(HardState(4, "b", 5, why == "doubt of before"), 1, 5, 0, 0)
    log = Log({} if why == "amnesia" else {7: known})
    if why == "damage":
        log.damaged_groups[7] = "segment 3 is gone"
    start = GroupStart(7, 9, 4, 5, ("a", "b", "c"), is_forgotten=why == "amnesia")
    core = rafts(log).make(start)
    assert core.is_uncertain
    [(index, hard_state)] = log.resets
    assert (index, hard_state.term, hard_state.is_uncertain) == (9, 4, True)


def test_a_log_that_is_whole_goes_on_at_a_snapshot_without_a_doubt() -> None:
    log = Log({7: LogState(HardState(4, "b", 5, False), 1, 5, 0, 0)})
    core = rafts(log).make(GroupStart(7, 9, 4, 5, ("a", "b", "c")))
    assert not core.is_uncertain
    assert [(index, state.is_uncertain) for index, state in log.resets] == [(9, False)]


def test_a_log_that_is_void_is_given_up_in_one_write_with_the_doubt() -> None:
    """The member keeps its term and vote, and waits for a snapshot: nothing that it acked is
    thrown away before the log says that it may have forgotten it (I12)."""
    log = Log({7: LogState(HardState(4, "b", 5), 1, 5, 0, 0)})
    core = rafts(log).make(GroupStart(7, voters=("a", "b", "c"), is_log_void=True))
    assert log.resets == [(0, HardState(4, "b", 0, True))]
    assert (core.term, core.vote, core.last_index) == (4, "b", 0)
    assert core.is_uncertain
    assert core.is_incomplete
