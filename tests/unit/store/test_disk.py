"""The real disks and the disk thread; and that the overlay disk loses what is not synced."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from streamd.errors import DiskError
from streamd.limits import LOOP_SHARE_S
from streamd.store.disk import Disk, DiskThread, OsDisk, disk_error
from tests.sim.disk import SimDisk
from tests.sim.overlay import OverlayDisk


@pytest.mark.parametrize("make", [OsDisk, OverlayDisk, SimDisk])
def test_every_disk_reads_what_was_written(make: Callable[[], Disk], tmp_path: Path) -> None:
    disk = make()
    root = str(tmp_path)
    disk.make_dirs(f"{root}/a/b")
    fd = disk.open(f"{root}/a/b/f", create=True)
    disk.pwrite(fd, b"0123456789" * 1000, 5)
    disk.writev(fd, [b"xx", bytearray(b"yy"), memoryview(b"zz")], 4094)
    assert disk.pread(fd, 12, 0) == b"\0\0\0\0\0" + b"0123456"
    assert disk.pread(fd, 10, 4092) == b"78xxyyzz56"
    assert disk.size(fd) == 10005
    assert disk.pread(fd, 100, 10000) == b"56789"
    disk.fdatasync(fd)
    assert disk.pread(fd, 6, 4094) == b"xxyyzz"
    disk.truncate(fd, 4096)
    disk.pwrite(fd, b"!", 4100)
    assert disk.pread(fd, 100, 4094) == b"xx\0\0\0\0!"
    disk.preallocate(fd, offset=4101, size=100)
    assert disk.size(fd) == 4201
    disk.close(fd)
    assert disk.listdir(f"{root}/a/b") == ["f"]
    disk.replace(f"{root}/a/b/f", f"{root}/a/b/g")
    assert not disk.exists(f"{root}/a/b/f")
    disk.sync_dir(f"{root}/a/b")
    fd = disk.open(f"{root}/a/b/g")
    assert disk.size(fd) == 4201
    disk.close(fd)
    disk.unlink(f"{root}/a/b/g")
    assert disk.listdir(f"{root}/a/b") == []
    with pytest.raises(FileNotFoundError):
        disk.open(f"{root}/a/b/g")
    assert disk.listdir(f"{root}/none") == []
    assert disk.free_bytes(root) > 0
    lock = disk.lock(f"{root}/a/L")
    with pytest.raises(BlockingIOError):
        disk.lock(f"{root}/a/L")
    disk.unlock(lock)
    disk.unlock(disk.lock(f"{root}/a/L"))
    disk.remove_tree(f"{root}/a")
    assert not disk.exists(f"{root}/a/b")


def test_an_error_names_the_file_and_not_only_its_directory(tmp_path: Path) -> None:
    def failed(what: Callable[[], object]) -> DiskError:
        with pytest.raises(OSError) as caught:
            what()
        return disk_error("opening the log", str(tmp_path), caught.value)

    disk = OsDisk()
    fd = disk.open(f"{tmp_path}/0001.wal", create=True)
    assert str(failed(lambda: disk.open(f"{tmp_path}/0002.wal"))).startswith(
        f"{tmp_path}/0002.wal: opening the log: No such file"
    )
    # What is said of a file that is open, or of another place, stays.
    assert str(failed(lambda: disk.pread(fd, 1, -1))).startswith(f"{tmp_path}: opening the log: ")
    assert str(failed(lambda: disk.open(f"{tmp_path}-2"))).startswith(f"{tmp_path}: opening")
    disk.close(fd)


def test_a_killed_process_loses_exactly_what_the_overlay_disk_did_not_sync(tmp_path: Path) -> None:
    """A second disk over the same directory sees what SIGKILL would have left."""
    root = str(tmp_path)
    disk = OverlayDisk()
    fd = disk.open(f"{root}/f", create=True)
    disk.pwrite(fd, b"safe", 0)
    disk.fdatasync(fd)
    assert OsDisk().exists(f"{root}/f") is False  # the name is not synced
    disk.sync_dir(root)
    disk.pwrite(fd, b"lost", 4)
    assert disk.pread(fd, 8, 0) == b"safelost"
    assert Path(root, "f").read_bytes() == b"safe"
    disk.replace(f"{root}/f", f"{root}/g")
    assert disk.listdir(root) == ["g"]
    assert os.listdir(root) == ["f"]
    disk.sync_dir(root)
    assert os.listdir(root) == ["g"]
    disk.unlink(f"{root}/g")
    assert os.listdir(root) == ["g"]
    disk.sync_dir(root)
    assert os.listdir(root) == []


def test_names_of_an_abandoned_overlay_are_not_seen(tmp_path: Path) -> None:
    disk = OverlayDisk()
    disk.close(disk.open(f"{tmp_path}/f", create=True))
    assert OverlayDisk().listdir(str(tmp_path)) == []


def test_jobs_run_in_order_and_completions_come_in_order_in_one_post() -> None:
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    thread = DiskThread("test", posted.put, clock=lambda: 0)
    results: list[object] = []
    gate: queue.SimpleQueue[None] = queue.SimpleQueue()
    thread.submit(gate.get, None)
    for number in range(5):
        thread.submit(lambda number=number: number, results.append)
    thread.submit(lambda: 1 // 0, lambda result: results.append(type(result)))
    thread.submit(thread.is_current, results.append)
    gate.put(None)
    thread.close()
    count = 0
    while not posted.empty():
        posted.get()()
        count += 1
    assert results == [0, 1, 2, 3, 4, ZeroDivisionError, True]
    assert count == 1
    assert not thread.is_current()


def test_completions_that_take_long_let_others_on_the_loop_between() -> None:
    """Ten thousand streams that are opened end by as many, each of which reads its log."""
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    now = 0.0
    results: list[int] = []

    def done(number: int) -> None:
        nonlocal now
        now += LOOP_SHARE_S / 4
        results.append(number)

    thread = DiskThread("test", posted.put, clock=lambda: now)
    gate: queue.SimpleQueue[None] = queue.SimpleQueue()
    thread.submit(gate.get, None)
    for number in range(10):
        thread.submit(lambda number=number: number, done)
    gate.put(None)
    thread.close()
    told = []
    while not posted.empty():
        posted.get()()
        told.append(len(results))
    assert told == [4, 8, 10]
    assert results == list(range(10))


def test_a_completion_that_raises_does_not_hold_up_the_others() -> None:
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    thread = DiskThread("test", posted.put)
    results: list[object] = []

    def fail(result: object) -> None:
        raise ValueError(result)

    thread.submit(lambda: 1, fail)
    thread.submit(lambda: 2, results.append)
    thread.close()
    with pytest.raises(ValueError):
        posted.get()()
    posted.get()()
    assert results == [2]


def test_a_later_job_runs_between_the_others() -> None:
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    thread = DiskThread("test", posted.put)
    ran: queue.SimpleQueue[str] = queue.SimpleQueue()
    thread.submit_later(0.001, lambda: ran.put("later"))
    assert ran.get(timeout=10) == "later"
    thread.submit_later(1000, lambda: ran.put("never"))
    thread.close()
    assert ran.empty()


def test_a_later_job_is_not_put_off_by_others_that_keep_coming() -> None:
    """With `sync` in seconds its sync comes when it is due, however much is written."""
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    thread = DiskThread("test", posted.put)
    ran: queue.SimpleQueue[str] = queue.SimpleQueue()

    def write(left: int) -> None:
        if left and ran.empty():
            thread.submit(lambda: write(left - 1), None)
        else:
            ran.put("last")

    thread.submit_later(0.0, lambda: ran.put("later"))
    thread.submit(lambda: write(10_000), None)
    assert ran.get(timeout=10) == "later"
    assert ran.get(timeout=10) == "last"
    thread.close()


class LoopAndThread:
    """A thread whose loop runs when the test says so."""

    def __init__(self) -> None:
        self.ready: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.thread = DiskThread("test", self.ready.put, self.ready.put)
        self.ran: list[object] = []

    def job(self, name: str) -> Callable[[], str]:
        """A job that notes who runs it."""

        def run() -> str:
            self.ran.append((name, "thread" if self.thread.is_current() else "loop"))
            return name

        return run

    def run_ready(self) -> None:
        while not self.ready.empty():
            self.ready.get()()

    def hold(self) -> queue.SimpleQueue[None]:
        """Keep the thread busy until something is put."""
        gate: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.thread.submit(gate.get, None)
        return gate


def test_a_quick_job_runs_on_the_loop_in_its_next_round_or_now() -> None:
    both = LoopAndThread()
    results: list[object] = []
    both.thread.submit_soon(both.job("a"), results.append)
    assert both.ran == []
    both.run_ready()
    assert (both.ran, results) == ([("a", "loop")], ["a"])
    both.thread.submit_soon(both.job("b"), results.append)
    both.thread.do_now()
    assert (both.ran[1:], results) == ([("b", "loop")], ["a", "b"])
    both.run_ready()  # the round that would have done it finds nothing
    both.thread.close()
    assert results == ["a", "b"]


def test_a_quick_job_never_overtakes_what_the_thread_was_given() -> None:
    both = LoopAndThread()
    results: list[object] = []
    gate = both.hold()
    both.thread.submit_soon(both.job("a"), results.append)  # busy, so this one goes there too
    both.thread.do_now()
    assert both.ran == []
    gate.put(None)
    both.thread.close()
    both.run_ready()
    assert (both.ran, results) == ([("a", "thread")], ["a"])


def test_a_quick_job_never_overtakes_a_completion_that_the_loop_has_not_heard_of() -> None:
    both = LoopAndThread()
    results: list[object] = []
    for number in range(200):  # the thread may be slow to count its job as ended
        both.thread.submit(both.job(f"thread {number}"), results.append)
        complete = both.ready.get(timeout=10)
        both.thread.submit_soon(both.job(f"soon {number}"), results.append)
        both.thread.do_now()
        complete()
        while len(results) < 2 * number + 2:
            both.ready.get(timeout=10)()
    both.thread.close()
    assert results == [f"{who} {number}" for number in range(200) for who in ("thread", "soon")]


def test_jobs_submitted_after_a_quick_job_run_after_it() -> None:
    both = LoopAndThread()
    results: list[object] = []
    both.thread.submit_soon(both.job("a"), results.append)
    both.thread.submit(both.job("b"), results.append)
    both.thread.close()
    both.run_ready()
    assert both.ran == [("a", "thread"), ("b", "thread")]
    assert results == ["a", "b"]


def test_closing_runs_jobs_left_for_the_loop() -> None:
    both = LoopAndThread()
    results: list[object] = []
    both.thread.submit_soon(both.job("a"), results.append)
    both.thread.close()
    both.run_ready()
    assert (both.ran, results) == ([("a", "thread")], ["a"])


def test_a_quick_job_waits_for_a_delayed_one_that_runs() -> None:
    both = LoopAndThread()
    results: list[object] = []
    gate: queue.SimpleQueue[None] = queue.SimpleQueue()
    begun: queue.SimpleQueue[None] = queue.SimpleQueue()

    def delayed() -> None:
        begun.put(None)
        gate.get()
        both.ran.append("delayed")

    both.thread.submit_later(0.0, delayed)
    begun.get(timeout=10)
    both.thread.submit_soon(both.job("a"), results.append)
    both.thread.do_now()
    assert both.ran == []
    gate.put(None)
    both.thread.close()
    both.run_ready()
    assert both.ran == ["delayed", ("a", "thread")]
    assert results == ["a"]


def test_the_error_of_a_quick_job_is_its_result_in_a_round_of_its_own() -> None:
    both = LoopAndThread()
    results: list[object] = []
    both.thread.submit_soon(lambda: 1 // 0, lambda result: results.append(type(result)))
    both.thread.do_now()
    assert results == []
    both.run_ready()
    both.thread.close()
    assert results == [ZeroDivisionError]


_OUT_OF_FILES = """
import os, resource, sys
from streamd.store.disk import OsDisk
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
disk = OsDisk()
disk.reserve_files(8)
assert not disk.is_short_of_files()
taken = []
try:
    while True:
        taken.append(os.open(os.devnull, os.O_RDONLY))
except OSError:
    pass
opened = [disk.open(f"{sys.argv[1]}/{number}", create=True) for number in range(6)]
disk.sync_dir(sys.argv[1])
assert disk.listdir(sys.argv[1]) == [str(number) for number in range(6)]
assert disk.is_short_of_files()
for fd in taken:
    os.close(fd)
assert not disk.is_short_of_files()
for number in range(6, 30):
    opened.append(disk.open(f"{sys.argv[1]}/{number}", create=True))
try:
    opened += [disk.open(f"{sys.argv[1]}/more-{number}", create=True) for number in range(64)]
except OSError as err:
    print(err.strerror)
"""


def test_files_opened_by_others_leave_the_store_its_reserve(tmp_path: Path) -> None:
    """A process that may open 64 files, and all of them are open: 8 were kept for the store."""
    found = subprocess.run(
        [sys.executable, "-c", _OUT_OF_FILES, str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (found.stdout.strip(), found.stderr) == ("Too many open files", "")


def test_an_abandoned_disk_opens_nothing_by_name(tmp_path: Path) -> None:
    """Open files stay so; the directory is somebody else's."""
    disk = OsDisk()
    fd = disk.open(str(tmp_path / "mine"), create=True)
    assert disk.is_linked(fd)
    identity = disk.identity(str(tmp_path))
    (tmp_path / "mine").unlink()
    assert not disk.is_linked(fd)
    disk.abandon()
    disk.pwrite(fd, b"x", 0)
    for doing in (
        lambda: disk.open(str(tmp_path / "other"), create=True),
        lambda: disk.mkdir(str(tmp_path / "d")),
        lambda: disk.make_dirs(str(tmp_path / "d" / "e")),
        lambda: disk.replace(str(tmp_path), str(tmp_path) + "-2"),
        lambda: disk.unlink(str(tmp_path / "other")),
        lambda: disk.remove_tree(str(tmp_path)),
    ):
        with pytest.raises(OSError, match="Stale"):
            doing()
    assert disk.identity(str(tmp_path)) == identity
    assert list(tmp_path.iterdir()) == []


def test_a_directory_is_made_only_where_there_is_one(tmp_path: Path) -> None:
    disk = OsDisk()
    with pytest.raises(FileNotFoundError):
        disk.mkdir(str(tmp_path / "gone" / "streams"))
    disk.mkdir(str(tmp_path / "d"))
    disk.mkdir(str(tmp_path / "d"))
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        disk.mkdir(str(tmp_path / "file"))
