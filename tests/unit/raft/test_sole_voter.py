"""A group of one: the path of every publish on a single node."""

from __future__ import annotations

import pytest

from streamd import limits
from streamd.errors import CorruptionError
from streamd.raft import membership
from streamd.raft.core import NEVER, MemberStart, NotLeader, ProposalRejected, RaftCore
from streamd.raft.log import next_chain
from streamd.types import Entry, HardState, LogState
from tests.unit.raft.cluster import Disk

EMPTY = LogState(HardState(), 1, 0, 0, 0)


def boot(disk: Disk, applied: int = 0) -> RaftCore:
    return RaftCore(
        MemberStart(
            group=1,
            node_id="n",
            voters=["n"],
            log=disk.state(),
            reader=disk,
            now_ms=0,
            seed=1,
            applied=applied,
        )
    )


def settle(core: RaftCore, disk: Disk, max_entries: int = 64) -> list[Entry]:
    """Take and persist until nothing is left; return what was committed."""
    committed: list[Entry] = []
    while (ready := core.take(max_entries, 1 << 20)) is not None:
        committed += ready.committed
        if ready.token is not None:
            disk.writes.append(ready)
            core.persisted(disk.complete())
    return committed


def test_leads_at_once_and_is_ready_when_its_noop_is_out() -> None:
    disk = Disk()
    core = boot(disk)
    assert core.is_leader
    assert core.leader_id == "n"
    first = core.take(64, 1 << 20)
    assert first is not None
    assert [entry.data for entry in first.entries] == [b""]
    assert first.hard_state == HardState(1, "n", 0)
    assert first.role_changed
    assert not first.is_leader_ready
    disk.writes.append(first)
    core.persisted(disk.complete())
    second = core.take(64, 1 << 20)
    assert second is not None
    assert [entry.index for entry in second.committed] == [1]
    assert second.is_leader_ready
    assert core.take(64, 1 << 20) is None


def test_a_proposal_is_committed_when_durable_and_keeps_its_objects() -> None:
    disk = Disk()
    core = boot(disk)
    settle(core, disk)
    command, tag = ["command"], object()
    assert core.propose(b"payload", command, tag) == 2
    ready = core.take(64, 1 << 20)
    assert ready is not None
    assert ready.committed == []
    assert ready.hard_state is None
    assert core.take(64, 1 << 20) is None  # nothing more until the disk has it
    disk.writes.append(ready)
    core.persisted(disk.complete())
    committed = settle(core, disk)
    assert committed == ready.entries
    assert committed[0].command is command
    assert committed[0].tag is tag
    assert core.log.entries == []  # nobody will ask again


def test_writes_may_overlap_and_complete_in_order() -> None:
    disk = Disk()
    core = boot(disk)
    settle(core, disk)
    tokens = []
    for data in (b"a", b"b", b"c"):
        core.propose(data)
        ready = core.take(64, 1 << 20)
        assert ready is not None
        assert [entry.data for entry in ready.entries] == [data]
        disk.writes.append(ready)
        tokens.append(ready.token)
    disk.complete()
    disk.complete()
    core.persisted(tokens[1])  # type: ignore[arg-type]
    core.persisted(tokens[0])  # type: ignore[arg-type]  # known already: no step back
    ready = core.take(64, 1 << 20)
    assert ready is not None
    assert [entry.data for entry in ready.committed] == [b"a", b"b"]
    disk.complete()
    core.persisted(tokens[2])  # type: ignore[arg-type]
    ready = core.take(64, 1 << 20)
    assert ready is not None
    assert [entry.data for entry in ready.committed] == [b"c"]


def test_committed_is_bounded_by_entries_and_bytes() -> None:
    disk = Disk()
    core = boot(disk)
    settle(core, disk)
    for _ in range(10):
        core.propose(b"x" * 100)
    ready = core.take(64, 1 << 20)
    assert ready is not None
    disk.writes.append(ready)
    core.persisted(disk.complete())
    sizes = []
    for max_entries, max_bytes in ((4, 1 << 20), (64, 250), (64, 10), (64, 1 << 20)):
        ready = core.take(max_entries, max_bytes)
        assert ready is not None
        sizes.append((len(ready.committed), ready.more))
    assert sizes == [(4, True), (2, True), (1, True), (3, False)]


@pytest.mark.parametrize("keeps_in_memory", [True, False])
def test_restart_replays_all_durable_entries_after_the_snapshot(
    monkeypatch: pytest.MonkeyPatch, keeps_in_memory: bool
) -> None:
    """Both ways: a small log stays in memory from the walk at start, a large one is read again."""
    disk = Disk()
    core = boot(disk)
    settle(core, disk)
    for number in range(20):
        core.propose(b"%d" % number)
    settle(core, disk)
    core.propose(b"never durable")
    core.take(64, 1 << 20)
    if not keeps_in_memory:
        monkeypatch.setattr("streamd.raft.log.RAFT_LOAD_BYTES", 0)
        monkeypatch.setattr("streamd.raft.log.RAFT_READ_BYTES", 10)
    again = boot(disk, applied=5)
    assert bool(again.log.entries[1:]) is keeps_in_memory
    assert again.term == core.term + 1
    committed = settle(again, disk, max_entries=7)
    assert [entry.index for entry in committed] == list(range(6, 23))
    assert committed[-2].data == b"19"
    assert committed[-1].data == b""  # the new term's no-op
    assert committed[0].command is None


def test_saved_snapshot_lets_go_of_the_log() -> None:
    disk = Disk()
    core = boot(disk)
    settle(core, disk)
    for _ in range(5):
        core.propose(b"x")
    committed = settle(core, disk)
    last = committed[-1]
    disk.release(last.index, last.term, last.chain, core.members)
    core.snapshot_saved(last.index, last.term, last.chain)
    assert core.log.base_index == last.index
    assert core.log.entry_id(last.index) == (last.term, last.chain)
    core.propose(b"y")
    settle(core, disk)
    again = boot(disk, applied=last.index)
    assert [entry.data for entry in settle(again, disk)] == [b"y", b""]
    assert again.log.snapshot_index == last.index


def test_snapshot_ahead_of_released_log_is_fine_behind_is_corruption() -> None:
    """The log may still hold what the snapshot covers; it may never miss what follows it."""
    disk = Disk()
    core = boot(disk)
    settle(core, disk)
    for _ in range(5):
        core.propose(b"x")
    settle(core, disk)
    again = boot(disk, applied=3)
    assert again.log.entry_id(3) == (disk.entries[3].term, disk.entries[3].chain)
    with pytest.raises(CorruptionError, match="ends at index 6"):
        boot(disk, applied=7)
    disk.release(4, *again.log.entry_id(4), again.members)
    with pytest.raises(CorruptionError, match="starts at index 5"):
        boot(disk, applied=3)


def test_damaged_entry_is_found_at_start() -> None:
    disk = Disk()
    core = boot(disk)
    settle(core, disk)
    core.propose(b"x")
    core.propose(b"y")
    settle(core, disk)
    disk.entries[2].data = b"z"
    with pytest.raises(CorruptionError, match="log entry 2"):
        boot(disk)


def test_a_term_behind_its_own_log_is_corruption() -> None:
    disk = Disk()
    settle(boot(disk), disk)
    disk.hard_state = HardState()
    with pytest.raises(CorruptionError, match="hard state has term 0"):
        boot(disk)


def test_no_time_is_wanted() -> None:
    core = boot(Disk())
    assert core.deadline_ms == NEVER
    core.tick(10_000_000)
    assert core.is_leader


def test_backlog_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamd.raft.leader.UNCOMMITTED_BYTES_MAX", 100)
    disk = Disk()
    core = boot(disk)
    settle(core, disk)
    core.propose(b"x" * 100)
    with pytest.raises(ProposalRejected):
        core.propose(b"y")
    settle(core, disk)
    core.propose(b"y")
    assert limits.UNCOMMITTED_BYTES_MAX > limits.STORE_BATCH_BYTES


def test_reads_wait_only_for_the_noop() -> None:
    disk = Disk()
    core = boot(disk)
    core.read_index(1)
    ready = core.take(64, 1 << 20)
    assert ready is not None
    assert ready.read_states == []
    disk.writes.append(ready)
    core.persisted(disk.complete())
    core.read_index(2)
    ready = core.take(64, 1 << 20)
    assert ready is not None
    assert [(state.context, state.index) for state in ready.read_states] == [(1, 1), (2, 1)]
    core.read_index(3)
    ready = core.take(64, 1 << 20)
    assert ready is not None
    assert [(state.context, state.index) for state in ready.read_states] == [(3, 1)]


def test_a_member_without_vote_refuses_proposals() -> None:
    core = RaftCore(
        MemberStart(
            group=1,
            node_id="n",
            voters=["other"],
            learners=["n"],
            log=EMPTY,
            reader=Disk(),
            now_ms=0,
            seed=1,
        )
    )
    with pytest.raises(NotLeader):
        core.propose(b"x")
    assert core.deadline_ms == NEVER


def test_machine_is_shown_membership_entries_as_noops() -> None:
    disk = Disk()
    core = boot(disk)
    settle(core, disk)
    core.propose_membership(["n"], ["learner"])
    core.propose(b"x")
    committed = settle(core, disk)
    assert [entry.data for entry in committed] == [b"", b"x"]
    assert membership.is_membership(disk.entries[2].data)
    assert committed[0].chain == disk.entries[2].chain
    assert boot(disk).members == membership.simple(["n"], ["learner"])


def test_chain_depends_on_all_that_came_before() -> None:
    first = next_chain(0, 1, 1, b"a")
    assert next_chain(first, 1, 2, b"b") != next_chain(0, 1, 2, b"b")
    assert next_chain(first, 1, 2, b"b") != next_chain(first, 2, 2, b"b")
    assert next_chain(first, 1, 2, b"b") != next_chain(first, 1, 3, b"b")
    assert next_chain(first, 1, 2, b"b") != next_chain(first, 1, 2, b"c")
