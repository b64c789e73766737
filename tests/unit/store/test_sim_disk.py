"""The simulated disk keeps its promises: errors as asked for, directories that move whole."""

from __future__ import annotations

import errno

import pytest

from streamd.types import Entry, HardState
from tests.props.test_wal_damage import Work, contents, open_wal
from tests.sim.disk import SimCrash, SimDisk, SimThread
from tests.sim.durable import durable_groups


def write(disk: SimDisk, path: str, data: bytes) -> None:
    fd = disk.open(path, create=True)
    disk.pwrite(fd, data, 0)
    disk.fdatasync(fd)
    disk.close(fd)
    disk.sync_dir(path.rsplit("/", 1)[0])


def made() -> SimDisk:
    disk = SimDisk(1)
    disk.make_dirs("/s/5")
    disk.make_dirs("/t")
    write(disk, "/s/5/a", b"old")
    return disk


def test_a_directory_that_moved_is_back_after_a_crash_unless_the_target_was_synced() -> None:
    for is_synced in (False, True):
        disk = made()
        disk.replace("/s/5", "/t/5")
        assert (disk.exists("/s/5/a"), disk.exists("/t/5/a")) == (False, True)
        if is_synced:
            disk.sync_dir("/t")
        for _ in range(20):  # a prefix of the changes may be kept: find the one that is not
            trial = made()
            trial._random.seed(_)
            trial.replace("/s/5", "/t/5")
            if is_synced:
                trial.sync_dir("/t")
            trial.crash(keep=0.0)
            assert trial.exists("/s/5/a") != trial.exists("/t/5/a")
            if is_synced:
                assert trial.exists("/t/5/a")
            elif trial.exists("/s/5/a"):
                break
        else:
            assert is_synced


def test_a_new_directory_under_an_old_name_has_no_files_of_the_old_one() -> None:
    """Swap a directory for another, in any state of syncing: never files of both."""
    for seed in range(60):
        disk = SimDisk(seed)
        disk.make_dirs("/s/5")
        disk.make_dirs("/s/5.new")
        disk.make_dirs("/t")
        write(disk, "/s/5/a", b"old")
        write(disk, "/s/5.new/b", b"new")
        disk.replace("/s/5", "/t/5")
        disk.replace("/s/5.new", "/s/5")
        if seed % 3 == 0:
            disk.sync_dir("/s")
        elif seed % 3 == 1:
            write(disk, "/s/5/c", b"more")
        disk.crash(keep=0.3)
        assert disk.listdir("/s/5") in (["a"], ["b"], ["b", "c"], [])
        if seed % 3 == 0:
            assert disk.contents("/s/5/b") == b"new"
            assert disk.listdir("/t/5") == ["a"]


def test_a_removed_tree_may_come_back_until_its_parent_is_synced() -> None:
    seen = set()
    for seed in range(20):
        disk = made()
        disk._random.seed(seed)
        disk.remove_tree("/s/5")
        disk.crash(keep=0.0)
        seen.add(disk.exists("/s/5/a"))
    assert seen == {True, False}
    disk = made()
    disk.remove_tree("/s/5")
    disk.sync_dir("/s")
    disk.crash(keep=0.0)
    assert not disk.exists("/s/5")


def test_a_directory_moves_onto_an_empty_one_only() -> None:
    disk = made()
    disk.make_dirs("/t/5")
    disk.replace("/s/5", "/t/5")
    disk.make_dirs("/s/5")
    with pytest.raises(OSError, match="replace"):
        disk.replace("/s/5", "/t/5")


def test_a_failed_sync_is_not_made_good_by_another() -> None:
    lost = 0
    for seed in range(20):
        disk = SimDisk(seed)
        disk.make_dirs("/d")
        fd = disk.open("/d/f", create=True)
        disk.sync_dir("/d")
        disk.pwrite(fd, b"x", 0)
        disk.fail("fdatasync", errno.EIO, under="/d")
        with pytest.raises(OSError, match="fdatasync"):
            disk.fdatasync(fd)
        disk.fdatasync(fd)  # says yes; the page was dropped
        disk.crash(keep=1.0)
        lost += disk.contents("/d/f") != b"x"
    assert 0 < lost < 20


def test_faults_hit_the_paths_and_the_number_of_times_asked_for() -> None:
    disk = made()
    seen: list[str] = []
    disk.on_operation = lambda name, path: seen.append(f"{name} {path}")
    fd = disk.open("/s/5/a")
    disk.fail("pread", errno.EIO, under="/t", count=0)
    assert disk.pread(fd, 3, 0) == b"old"
    disk.fail("pread", errno.EIO, under="/s", count=2)
    for _ in range(2):
        with pytest.raises(OSError, match="pread"):
            disk.pread(fd, 3, 0)
    disk.bad_read("/s/5/a", 1, 1)
    assert disk.pread(fd, 1, 0) == b"o"
    with pytest.raises(OSError, match="pread"):
        disk.pread(fd, 2, 0)
    disk.pwrite(fd, b"new", 0)  # new sectors
    assert disk.pread(fd, 3, 0) == b"new"
    assert seen[:2] == ["open /s/5/a", "pread /s/5/a"]
    assert disk.fault_counts == {"pread": 3}
    disk.capacity = disk.used_bytes
    with pytest.raises(OSError, match="No space"):
        disk.pwrite(fd, b"x", 3)
    disk.capacity += 1
    disk.pwrite(fd, b"x", 3)


def test_a_wiped_directory_does_not_come_back() -> None:
    disk = made()
    fd = disk.open("/s/5/b", create=True)
    disk.wipe("/s/5")
    disk.pwrite(fd, b"x", 0)  # an open file stays a file
    disk.crash(keep=1.0)
    assert disk.paths == []
    assert not disk.exists("/s/5")


def test_delayed_jobs_run_when_the_simulated_loop_says_so() -> None:
    due: list[tuple[float, object, tuple[object, ...]]] = []
    ran: list[int] = []
    thread = SimThread(lambda delay, call, *args: due.append((delay, call, args)))
    thread.submit_later(2.5, lambda: ran.append(1))
    assert due[0][0] == 2.5
    due[0][1](*due[0][2])  # type: ignore[operator]
    thread.run()
    assert ran == [1]


def test_a_start_after_a_power_cut_finds_the_durable_groups() -> None:
    """Random work, looked at after every step, then cut: the log holds exactly what was said."""
    for seed in range(25):
        work = Work(seed)
        for _ in range(3):
            wal, thread = open_wal(work.disk, tolerates=False)
            work.disk.crash_at_operation = work.disk.operation_count + work.rng.randint(5, 200)
            try:
                for _ in range(60):
                    work.run(wal, thread, 2)
                    durable_groups(work.disk, "/wal")
            except SimCrash:
                pass
            said = {
                uid: (group.hard_state, group.base, dict(group.entries))
                for uid, group in durable_groups(work.disk, "/wal").items()
            }
            work.disk.crash(keep=0.0)
            wal, thread = open_wal(work.disk, tolerates=False)
            found = {}
            for uid, state in wal.groups.items():
                entries = {i: (term, chain) for i, (term, chain, _) in contents(wal, uid).items()}
                found[uid] = (state.hard_state, state.first_index - 1, entries)
            assert found == said
            work.members.clear()  # other groups than those that were cut off
    group = durable_groups(SimDisk(), "/nothing")
    assert group == {}


def test_a_durable_entry_is_known_by_index_and_term_or_covered_by_a_snapshot() -> None:
    disk = SimDisk(1)
    wal, thread = open_wal(disk, tolerates=False)
    entries = [Entry(4, index, b"") for index in (1, 2, 3)]
    wal.append([(7, entries, HardState(4, "n", 0, True), 0)], lambda: None)
    assert 7 not in durable_groups(disk, "/wal")
    thread.run()
    group = durable_groups(disk, "/wal")[7]
    assert group.hard_state == HardState(4, "n", 0, True)
    assert (group.last, group.has(3, 4), group.has(3, 5), group.has(4, 4)) == (
        3,
        True,
        False,
        False,
    )
    wal.release(7, 2, 4, 0)
    wal.append([], lambda: None)
    thread.run()
    assert durable_groups(disk, "/wal")[7].has(1, 9)


def test_a_directory_made_again_after_its_removal_is_safe_once_both_are_synced() -> None:
    disk = SimDisk()
    disk.make_dirs("/a/b")
    disk.sync_dir("/a")
    for _ in range(2):
        disk.remove_tree("/a/b")
        disk.make_dirs("/a/b")
    fd = disk.open("/a/b/file", create=True)
    disk.pwrite(fd, b"new", 0)
    disk.fdatasync(fd)
    disk.sync_dir("/a/b")
    disk.sync_dir("/a")
    disk.crash(keep=0.0)
    assert disk.contents("/a/b/file") == b"new"
