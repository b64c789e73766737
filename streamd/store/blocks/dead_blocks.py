"""`DeadBlocks`: blocks without live messages, whose files go once two snapshots do without them."""

from __future__ import annotations

from streamd.store.blocks.block import BlockFiles
from streamd.store.blocks.stream_jobs import StreamJobs
from streamd.store.disk import Disk, disk_error


class DeadBlocks:
    """The dead blocks of one stream, from the operation that drops one to the end of its file.

    Two generations of snapshots are kept, and both must have their blocks (I11). So a block that
    died since the newest snapshot is *doomed* by the next one, and its file is removed when the one
    after that is durable.
    """

    def __init__(self, disk: Disk, files: BlockFiles, jobs: StreamJobs) -> None:
        self.reclaimable_bytes = 0  # of all dead blocks: two more snapshots free them
        self._disk = disk
        self._files = files
        self._jobs = jobs
        self._dead: list[int] = []  # since the newest snapshot
        self._doomed: list[int] = []  # before it
        self._sizes: dict[int, int] = {}  # of both
        self._hold_count = 0  # readers of blocks as they were at some moment
        self._held: list[int] = []  # files that would be gone by now

    def __contains__(self, block_no: int) -> bool:
        return block_no in self._sizes

    def add(self, block_no: int, size: int) -> None:
        """Add a block that died since the newest snapshot."""
        self._dead.append(block_no)
        self._count(block_no, size)

    def load(self, doomed: tuple[int, ...]) -> None:
        """Take over the doomed blocks that a loaded snapshot names."""
        self._dead, self._doomed = [], list(doomed)

    def count_doomed(self, sizes: dict[int, int]) -> None:
        """Count the files of the loaded doomed blocks, and take them out of `sizes`."""
        for block_no in self._doomed:
            self._count(block_no, sizes.pop(block_no, 0))

    def doom(self, block_no: int, size: int) -> None:
        """Add a block of before the loaded snapshot, left by a removal that was cut short."""
        self._doomed.append(block_no)
        self._count(block_no, size)

    def begin_snapshot(self, *, is_repeated: bool) -> tuple[list[int], tuple[int, ...]]:
        """Return the blocks to `remove` once the snapshot is durable, and those it has to name.

        A repeated one takes the place of an unreadable snapshot of the same index: the one before
        it still needs its blocks.
        """
        if is_repeated:
            removable = []
            self._doomed, self._dead = self._doomed + self._dead, []
        else:
            removable, self._doomed, self._dead = self._doomed, self._dead, []
        for block_no in removable:
            self.reclaimable_bytes -= self._sizes.pop(block_no, 0)
        return removable, tuple(self._doomed)

    def remove(self, block_nos: list[int]) -> None:
        """Remove files one by one: jobs of other streams come in between.

        Files that are left when the store is closed go after the next start (`doom`).
        """
        if self._hold_count:
            self._held += block_nos
            return
        jobs = self._jobs
        if not block_nos or jobs.is_closed or jobs.failure is not None:
            return
        block_no = block_nos.pop()

        def job() -> None:
            try:
                self._files.remove(block_no)
            except OSError as err:
                jobs.failure = disk_error("removing a block", self._files.directory, err)
                raise jobs.failure from err
            self._disk.crash_point("SNAPSHOT_BLOCK_REMOVED")

        def removed(result: BaseException | None) -> None:
            if result is not None:
                jobs.fail(result)
            else:
                self.remove(block_nos)

        jobs.submit(job, removed)

    def hold(self) -> None:
        """Remove no file until `let_go` was called as often. A crash meanwhile removes them after
        the next start (`doom`)."""
        self._hold_count += 1

    def let_go(self) -> None:
        """Remove what was kept for a reader, once there is no other one."""
        self._hold_count -= 1
        if not self._hold_count:
            held, self._held = self._held, []
            self.remove(held)

    def _count(self, block_no: int, size: int) -> None:
        self._sizes[block_no] = size
        self.reclaimable_bytes += size
