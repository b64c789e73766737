"""The log as the core sees it: terms by runs, truncation, compaction, memory."""

from __future__ import annotations

import pytest

from streamd.limits import RAFT_ENTRY_MEMORY_BYTES, RAFT_WINDOW_STEP_BYTES
from streamd.memory_share import MemoryShare
from streamd.raft import membership
from streamd.raft.history import LogPosition
from streamd.raft.log import RaftLog, next_chain
from streamd.raft.membership import simple
from streamd.types import Entry
from tests.unit.raft.cluster import Disk


def make(terms: list[int], *, is_sole: bool = False) -> tuple[RaftLog, Disk]:
    """A log whose entry i has terms[i - 1]; all in memory, and durable on the disk."""
    disk = Disk()
    log = RaftLog(disk.state(), disk, applied=0, membership=simple("abc"))
    log.is_sole = is_sole
    for term in terms:
        add(log, term)
        disk.entries[log.last_index] = log.entries[-1]
    log.written = log.stable = log.last_index
    return log, disk


def add(log: RaftLog, term: int, data: bytes = b"") -> None:
    index = log.last_index + 1
    data = data or b"%d" % index
    log.append(Entry(term, index, data, chain=next_chain(log.last_chain, term, index, data)))


def test_terms_are_known_by_runs() -> None:
    log, _ = make([1, 1, 2, 5, 5])
    assert [log.term_at(index) for index in range(6)] == [0, 1, 1, 2, 5, 5]
    assert log.last_with_term_up_to(5, 4) == 3
    assert log.last_with_term_up_to(9, 5) == 5
    assert log.last_with_term_up_to(5, 1) == 2
    assert log.last_with_term_up_to(5, 0) == 0


def test_truncation_reaches_terms_memory_membership_and_storage() -> None:
    log, _ = make([1, 1, 2])
    log.append(
        Entry(
            2,
            4,
            data := membership.encode(simple("ab")),
            chain=next_chain(log.last_chain, 2, 4, data),
        )
    )
    add(log, 3)
    assert log.membership == simple("ab")
    voided = log.truncate(3)
    assert [entry.index for entry in voided] == [3, 4, 5]
    assert log.membership == simple("abc")
    assert (log.last_index, log.last_term, log.stable, log.written) == (2, 1, 2, 2)
    assert log.truncated_from == 3
    add(log, 7)
    assert log.term_at(3) == 7
    assert [entry.index for entry in log.unwritten()] == [3]


def test_truncation_below_memory_reads_the_entry_before() -> None:
    _, disk = make([1, 1, 2, 2])
    big = RaftLog(disk.state(), disk, applied=0, membership=simple("abc"))
    big.entries = []
    big._first, big._first_prev = 5, (2, big.last_chain)
    assert big.truncate(3) == []
    assert big.last_chain == disk.entries[2].chain
    add(big, 4)
    assert [entry.index for entry in big.entries] == [3]


def test_committed_entries_are_never_truncated() -> None:
    log, _ = make([1, 1])
    log.commit = 2
    with pytest.raises(AssertionError):
        log.truncate(2)


def test_sole_voter_keeps_nothing_emitted_in_memory() -> None:
    log, _ = make([1, 1, 1], is_sole=True)
    log.commit = log.emitted = 2
    log.forget_emitted()
    assert [entry.index for entry in log.entries] == [3]
    assert log.entry_id(2) == (1, next_chain(next_chain(0, 1, 1, b"1"), 1, 2, b"2"))


def test_group_with_peers_keeps_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamd.raft.log.RAFT_TRAILING_ENTRIES", 4)
    log, _ = make([1] * 5)
    log.commit = 5
    log.emitted = 2
    log.forget_emitted()  # entries not emitted stay, whatever the window
    assert [entry.index for entry in log.entries] == [3, 4, 5]
    add(log, 1)
    add(log, 1)
    log.emitted = log.commit = 7
    log.forget_emitted()
    assert [entry.index for entry in log.entries] == [6, 7]


def test_a_log_whose_stored_entries_cannot_be_read_counts_as_compacted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also when a snapshot of before is saved only then; a later one goes on from there."""
    monkeypatch.setattr("streamd.raft.log.RAFT_TRAILING_ENTRIES", 4)
    log, _ = make([1, 2, 3, 4, 4, 5, 5, 5])
    log.commit = log.emitted = 6
    log.forget_emitted()
    identity = log.entry_id(4)
    assert (log.base_index, log.entries[0].index) == (0, 7)
    assert log.lose_stored()
    assert log.base_index == 6 and log.entry_id(6) == (log.base_term, log.base_chain)
    log.compact(4, *identity)
    assert (log.base_index, log.snapshot_index) == (6, 4)
    assert [log.term_at(index) for index in (6, 7, 8)] == [5, 5, 5]
    log.commit = log.emitted = 8
    log.compact(7, *log.entry_id(7))
    assert log.base_index == 6  # memory has 7
    assert [entry.index for entry in log.slice(7, last=8, max_entries=9, max_bytes=99)] == [7, 8]


def test_stored_entries_that_are_not_emitted_yet_cannot_be_dropped() -> None:
    _, disk = make([1, 1, 2, 2])
    big = RaftLog(disk.state(), disk, applied=0, membership=simple("abc"))
    big.entries = []
    big._first, big._first_prev = 5, (2, big.last_chain)
    assert not big.lose_stored()
    assert big.base_index == 0


def test_window_is_bounded_by_bytes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("streamd.raft.log.RAFT_TRAILING_BYTES", 100)
    log, _ = make([])
    for _ in range(6):
        add(log, 1, b"x" * 30)
    log.commit = log.emitted = log.stable = 6
    log.forget_emitted()
    assert [entry.index for entry in log.entries] == [6]


def test_compaction_keeps_memory_for_peers_and_terms_that_remain() -> None:
    log, disk = make([1, 1, 2, 2, 3])
    log.commit = log.emitted = 4
    log.compact(3, *log.entry_id(3))
    assert log.snapshot_index == 3
    assert log.base_index == 0  # memory still has it all
    restarted_disk = Disk()
    restarted_disk.entries = {i: e for i, e in disk.entries.items() if i > 3}
    restarted_disk.first, restarted_disk.prev = 4, log.entry_id(3)
    again = RaftLog(restarted_disk.state(), restarted_disk, applied=3, membership=simple("abc"))
    assert again.base_index == 3
    assert [again.term_at(index) for index in (3, 4, 5)] == [2, 2, 3]


def test_slice_crosses_from_storage_to_memory_in_two_steps() -> None:
    log, _ = make([1] * 6, is_sole=True)
    log.commit = log.emitted = 4
    log.forget_emitted()
    first = log.slice(2, last=6, max_entries=99, max_bytes=1 << 20)
    assert [entry.index for entry in first] == [2, 3, 4]
    second = log.slice(5, last=6, max_entries=99, max_bytes=1 << 20)
    assert [entry.index for entry in second] == [5, 6]
    assert log.slice(7, last=6, max_entries=99, max_bytes=1) == []


def test_snapshot_holds_the_membership_of_its_own_index() -> None:
    log, _ = make([1])
    add(log, 1, membership.encode(simple("ab")))
    add(log, 1)
    add(log, 1, membership.encode(simple("a")))
    assert log.membership_at(1) == simple("abc")
    assert log.membership_at(3) == simple("ab")
    assert log.membership == simple("a")
    log.commit = log.emitted = log.stable = 3
    assert log.open_memberships() == [simple("ab"), simple("a")]
    log.compact(3, *log.entry_id(3))
    assert log.memberships == [(3, simple("ab")), (4, simple("a"))]


def test_entries_below_the_snapshot_are_gone_when_they_leave_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Compaction may outlive its storage in memory only; peers that need more get the snapshot."""
    monkeypatch.setattr("streamd.raft.log.RAFT_TRAILING_ENTRIES", 4)
    log, _ = make([1, 1, 2, 2, 2, 2])
    log.commit = log.emitted = 6
    log.compact(5, *log.entry_id(5))
    assert log.base_index == 0
    log.forget_emitted()
    assert [entry.index for entry in log.entries] == [5, 6]
    assert (log.base_index, log.base_term) == (4, 2)
    assert log.term_at(5) == 2


def test_a_sole_voter_releases_entries_kept_for_peers() -> None:
    log, _ = make([1, 1, 2, 2])
    log.commit = log.emitted = 3
    log.compact(2, *log.entry_id(2))
    log.is_sole = True
    log.forget_emitted()
    assert (log.base_index, log.base_term) == (2, 1)
    assert log.entry_id(3)[0] == 2


def test_a_log_in_memory_keeps_entries_that_no_snapshot_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its entries can't be read back: a member that comes back empty needs them from the first."""
    monkeypatch.setattr("streamd.raft.log.RAFT_TRAILING_ENTRIES", 4)
    log, _ = make([1] * 10)
    log.is_in_memory = True
    log.commit = log.emitted = 10
    log.forget_emitted()
    assert [entry.index for entry in log.entries] == list(range(1, 11))
    log.compact(8, *log.entry_id(8))
    log.forget_emitted()
    assert [entry.index for entry in log.entries] == [9, 10]
    assert log.base_index == 8


def test_a_start_asks_the_reader_for_nothing_that_the_snapshot_covers() -> None:
    """Storage may still have it, and may let go of it at any time: what it says of its releases may
    be younger than the start. A leader would go on reading there for a peer."""
    _, disk = make([1, 1, 2, 2, 3])
    log = RaftLog(disk.state(), disk, applied=3, membership=simple("abc"))
    assert (log.base_index, log.base_term, log.base_chain) == (3, 2, disk.entries[3].chain)
    assert (log.term_at(3), log.term_at(4), log.term_at(5)) == (2, 2, 3)
    assert [entry.index for entry in log.slice(4, last=5, max_entries=9, max_bytes=999)] == [4, 5]
    for index in (1, 2, 3):
        del disk.entries[index]
    log.compact(3, 2, log.base_chain)
    assert log.entry_id(3) == (2, log.base_chain)
    all_covered = RaftLog(
        make([1, 1])[1].state(), make([1, 1])[1], applied=2, membership=simple("a")
    )
    assert (all_covered.base_index, all_covered.last_index) == (2, 2)
    add(all_covered, 4)
    assert all_covered.term_at(3) == 4


def window(
    windows: MemoryShare, *, entries: int, is_in_memory: bool = False
) -> tuple[RaftLog, Disk]:
    """A log each of whose entries takes a step of memory, all durable, committed and emitted."""
    disk = Disk()
    log = RaftLog(disk.state(), disk, applied=0, membership=simple("abc"), windows=windows)
    log.is_in_memory = is_in_memory
    for _ in range(entries):
        grow(log, disk)
    return log, disk


def grow(
    log: RaftLog, disk: Disk, *, size: int = RAFT_WINDOW_STEP_BYTES - RAFT_ENTRY_MEMORY_BYTES
) -> None:
    add(log, 1, bytes(size))
    disk.entries[log.last_index] = log.entries[-1]
    log.written = log.stable = log.commit = log.emitted = log.last_index
    log.forget_emitted()


def test_the_windows_of_a_node_are_bounded_together() -> None:
    """Who grew longest ago gives its own up, and has it read."""
    windows = MemoryShare(10 * RAFT_WINDOW_STEP_BYTES)
    first, disk = window(windows, entries=4)
    second, _ = window(windows, entries=4)
    grow(first, disk)
    assert (len(first.entries), len(second.entries)) == (5, 4)
    third, _ = window(windows, entries=5)
    assert (len(first.entries), len(second.entries), len(third.entries)) == (5, 0, 5)
    assert windows.used == 10 * RAFT_WINDOW_STEP_BYTES
    assert [entry.index for entry in second.slice(1, last=4, max_entries=9, max_bytes=1 << 30)] == [
        1, 2, 3, 4,
    ]  # fmt: skip


def test_the_windows_of_thousands_with_little_in_them_are_bounded_too() -> None:
    """Of a log that had grown by less than 256 KiB nothing was counted, and of an entry its data
    alone: 100 bytes of the 300 that it takes."""
    windows = MemoryShare(1 << 20)
    logs = [window(windows, entries=0) for _ in range(60)]
    for _ in range(400):
        for log, disk in logs:
            grow(log, disk, size=100)
    count = sum(len(log.entries) for log, _ in logs)
    assert count * (RAFT_ENTRY_MEMORY_BYTES + 100) < (1 << 20) + 60 * RAFT_WINDOW_STEP_BYTES
    assert count > 2000


def test_entries_that_are_not_emitted_stay_in_memory() -> None:
    windows = MemoryShare(4 * RAFT_WINDOW_STEP_BYTES)
    first, _ = window(windows, entries=3)
    add(first, 1, b"open")
    window(windows, entries=3)
    assert [entry.data for entry in first.entries] == [b"open"]


def test_entries_after_the_snapshot_of_a_memory_group_stay_in_memory() -> None:
    """A group in memory has only its snapshot besides."""
    windows = MemoryShare(4 * RAFT_WINDOW_STEP_BYTES)
    first, disk = window(windows, entries=2, is_in_memory=True)
    first.snapshot = LogPosition(1, *first.entry_id(1))
    grow(first, disk)
    assert windows.used == 3 * RAFT_WINDOW_STEP_BYTES
    window(windows, entries=3)
    assert [entry.index for entry in first.entries] == [2, 3]
    assert (first.base_index, first.snapshot_index) == (1, 1)


def test_one_log_alone_keeps_its_window_and_a_log_that_ends_returns_it() -> None:
    windows = MemoryShare(RAFT_WINDOW_STEP_BYTES)
    log, _ = window(windows, entries=3)
    assert len(log.entries) == 3
    log.let_go()
    assert windows.used == 0


def test_a_group_that_shrinks_to_one_member_holds_nothing() -> None:
    windows = MemoryShare(1 << 30)
    log, disk = window(windows, entries=3)
    log.is_sole = True
    grow(log, disk)
    assert (len(log.entries), windows.used) == (0, 0)
