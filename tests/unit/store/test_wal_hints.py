"""Hints of the log: how far a group was committed, said by what is written anyway."""

from __future__ import annotations

import pytest

from streamd.store.wal import wal_format as wf
from streamd.store.wal.write_ahead_log import Wal
from streamd.types import Entry, HardState, Index
from tests.sim.disk import SimDisk, SimThread

G = 7


class Bed:
    """A log on a simulated disk, of one group that is committed as `commit` says."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.commit: Index = 0
        self.start()

    def start(self) -> None:
        self.thread = SimThread()
        self.wal = Wal.open(
            self.disk, "/wal", self.thread, segment_bytes=64 * 1024, sync="always",
            on_error=lambda err: None,
        )  # fmt: skip
        self.wal.commit_of = lambda uid: self.commit

    def append(self, first: Index, last: Index, *, truncate: Index = 0) -> None:
        entries = [Entry(1, index, b"data", chain=index) for index in range(first, last + 1)]
        self.wal.append([(G, entries, None, truncate)], lambda: None)
        self.thread.run()

    def restart(self) -> Index:
        self.disk.crash(keep=0.0)
        self.start()
        return self.wal.hint(G)


@pytest.fixture
def bed() -> Bed:
    return Bed()


@pytest.mark.parametrize(("index", "commit"), [(9, 9), (9, 1), (70_000, 4466), (9, 0), (70_000, 5)])
def test_a_lag_names_the_committed_index_or_nothing(index: Index, commit: Index) -> None:
    lag = wf.lag_of(index, commit)
    assert 0 <= lag <= 0xFFFF
    assert (index - lag + 1 if lag else 0) in (commit, 0)
    assert bool(lag) == (commit > 0 and index - commit < 0xFFFE)


def test_each_write_says_how_far_the_group_was_committed_then(bed: Bed) -> None:
    bed.append(1, 10)
    bed.commit = 8
    bed.append(11, 20)
    bed.commit = 18  # of which nothing is written any more
    assert bed.wal.hint(G) == 8
    assert bed.restart() == 8


def test_a_log_without_hints_says_nothing(bed: Bed) -> None:
    bed.append(1, 10)
    assert bed.restart() == 0


def test_a_segment_that_begins_repeats_the_hint(bed: Bed) -> None:
    bed.append(1, 10)
    bed.commit = 10
    bed.append(11, 12)
    assert bed.restart() == 10
    assert bed.restart() == 10  # of the tip alone, if the entries were in a segment that is gone


def test_a_clean_stop_says_all(bed: Bed) -> None:
    bed.append(1, 10)
    bed.commit = 10
    bed.wal.close()
    bed.thread.run()
    assert bed.restart() == 10


def test_after_a_second_of_silence_a_witness_says_it(bed: Bed) -> None:
    bed.append(1, 10)
    bed.commit = 10
    for _ in range(3):
        bed.thread.run_later()
    assert bed.restart() == 10


def test_voided_entries_are_not_known_to_be_committed(bed: Bed) -> None:
    bed.commit = 10
    bed.append(1, 10)
    bed.commit = 0
    bed.append(5, 6, truncate=5)
    assert bed.wal.hint(G) == 4
    assert bed.restart() == 4


def test_a_group_that_begins_anew_has_no_hint(bed: Bed) -> None:
    bed.commit = 10
    bed.append(1, 10)
    bed.commit = 0
    bed.wal.reset_group(G, 3, 1, 3, hard_state=HardState(1))
    bed.thread.run()
    assert bed.wal.hint(G) == 0
    assert bed.restart() == 0
