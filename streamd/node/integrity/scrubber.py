"""`Scrubber`: reads this node's files again and again, in the background, at a low rate.

What rots unread would be noticed only when it is needed, and by then another copy may rot as well.
Each block is compared with what the machine says of it (node/integrity/scrub.py); damage goes to
node/integrity/corruption.py. The log and the newest snapshot of each group must be whole: what
they say is still in memory, so it is written again; so are the files that say whose data this is.
Memory streams have no files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from streamd import limits
from streamd.callbacks import ignore
from streamd.errors import CorruptionError, StreamdError, is_passing
from streamd.machine.indexes.columns import Block
from streamd.node.context import NodeContext
from streamd.node.groups.monitor import Timer
from streamd.node.identity import store_directory
from streamd.node.integrity.corruption import CorruptionRepair
from streamd.node.integrity.damage_log import DamageLog
from streamd.node.integrity.scrub import block_difference
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.stream_groups.stream_handle import LocalStream
from streamd.store.blocks.block import HEADER_BYTES
from streamd.store.blocks.block_verify import BlockRows
from streamd.store.blocks.snapshots import SnapshotCheck, SnapshotFile
from streamd.store.blocks.stream_store import StreamStore
from streamd.types import META_UID, Index, Seq, Uid


class ScrubStatus(NamedTuple):
    """Progress of the round that runs, or outcome of the last one."""

    rounds: int  # completed since the start
    is_running: bool
    files: int
    files_left: int
    read_bytes: int
    skipped: int  # files that could not be read at the moment: nothing is known of them


class Scrubber:
    """Scrubber of one node. Each file is a job on the block thread, followed by a pause; after
    small files one pause stands for several."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        corruption: CorruptionRepair,
        damage_log: DamageLog,
    ) -> None:
        self._context = context
        self._groups = groups
        self._corruption = corruption
        self._damage_log = damage_log
        # The rest of this round, reversed: each begins to read a file, or returns False if nothing
        # is to be read.
        self._queue: list[Callable[[], bool]] = []
        self._began_ms = 0
        self._began_ns = 0
        self.verified_ns = (0, 0)  # begin and end of the last round, Unix times
        self._pause_s = 0.0
        self._owed_s = 0.0  # pauses that are made up for in one
        self._timer: Timer | None = None
        self._is_running = False
        self._is_hurried = False  # an operator waits for this round
        self._files = self._round_began_bytes = self._skipped = 0
        self.read_bytes = 0
        self.rounds = 0

    @property
    def status(self) -> ScrubStatus:
        """Progress of the round that runs, else outcome of the last one."""
        read_bytes = self.read_bytes - self._round_began_bytes
        return ScrubStatus(
            self.rounds, self._is_running, self._files, len(self._queue), read_bytes, self._skipped
        )

    def begin_now(self) -> None:
        """Begin a round that reads everything from here on, faster than others; one that runs
        begins anew."""
        self._is_hurried = True
        if self._is_running:
            self._fill_queue()  # the read or pause under way goes on with it
            return
        if self._timer is not None:
            self._timer.cancel()
        self._begin()

    def start(self) -> None:
        """Begin the first round in a while: a start has other things to read."""
        self._later(limits.SCRUB_FIRST_S, self._begin)

    def stop(self) -> None:
        """No more reads; one that is under way comes to nothing."""
        self._queue.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _later(self, delay_s: float, callback: Callable[[], None]) -> None:
        self._timer = self._context.env.loop.call_later(delay_s, callback)

    def _begin(self) -> None:
        self._is_running = True
        self._fill_queue()
        self._next()

    def _fill_queue(self) -> None:
        """Put all files that there are now into the queue of a round."""
        self._round_began_bytes, self._skipped = self.read_bytes, 0
        self._began_ms = self._context.env.clock.monotonic_ms()
        self._began_ns = self._context.env.clock.now_ns()
        self._queue = [
            self._read_identity,
            partial(self._read_snapshot, META_UID, self._meta_check),
            self._read_log,
        ]
        for replica in self._groups:
            if replica.files is not None:
                uid = replica.uid
                for block in replica.machine.index.blocks:
                    self._queue.append(partial(self._read_block, replica, replica.files, block))
                check = partial(self._read_snapshot, uid, replica.files.check_snapshot)
                self._queue.append(check)
        self._queue.reverse()
        # Unhurried, and still done by the time the next round is due.
        self._files = len(self._queue)
        self._pause_s = min(limits.SCRUB_PAUSE_S, limits.SCRUB_EVERY_S / self._files)

    def _next(self) -> None:
        while self._queue:
            if self._queue.pop()():
                return
        if self._context.life.is_stopping:
            return
        self.rounds += 1
        self.verified_ns = (self._began_ns, self._context.env.clock.now_ns())
        self._is_running = self._is_hurried = False
        took_s = (self._context.env.clock.monotonic_ms() - self._began_ms) / 1000
        self._later(max(self._pause_s, limits.SCRUB_EVERY_S - took_s), self._begin)

    def _was_read(self, size: int, go_on: Callable[[], None], bytes_per_s: int = 0) -> None:
        self.read_bytes += size
        if self._context.life.is_stopping:
            return
        if self._is_hurried:
            self._owed_s += size / limits.SCRUB_HURRIED_BYTES_PER_S
        else:
            self._owed_s += max(self._pause_s, size / (bytes_per_s or limits.SCRUB_BYTES_PER_S))
        if self._owed_s < limits.SCRUB_REST_S:
            go_on()
            return
        pause_s, self._owed_s = self._owed_s, 0.0
        self._later(pause_s, go_on)

    # --- whose data this is -----------------------------------------------------------------

    def _read_identity(self) -> bool:
        def done(result: list[str] | BaseException) -> None:
            if isinstance(result, OSError):
                self._skipped += 1  # they cannot be read at the moment: the next round will tell
            elif isinstance(result, BaseException):
                raise result
            elif result and not self._context.life.is_stopping:
                self._corruption.on_void_identity("; ".join(result))
            self._was_read(0, self._next)

        job = partial(store_directory.identity_faults, self._context.root, self._context.env.disk)
        self._context.block_thread.submit(job, done)
        return True

    # --- the log ----------------------------------------------------------------------------

    def _read_log(self) -> bool:
        wal = self._context.wal
        self._read_piece(wal.check(), wal.oldest)
        return True

    def _read_piece(self, pieces: Iterator[int], oldest: int) -> None:
        def done(result: int | BaseException) -> None:
            size = 0
            if isinstance(result, StreamdError):
                is_old = self._context.wal.oldest != oldest  # it was released
                self._skipped += is_passing(result)
                if not (self._context.life.is_stopping or is_old or is_passing(result)):
                    self._corruption.on_damaged_log(str(result))
            elif isinstance(result, BaseException):
                raise result
            else:
                size = result
            go_on = partial(self._read_piece, pieces, oldest) if size else self._next
            self._was_read(size, go_on, limits.SCRUB_LOG_BYTES_PER_S)

        self._context.block_thread.submit(partial(next, pieces, 0), done)

    # --- snapshots --------------------------------------------------------------------------

    def _meta_check(self, index: Index) -> SnapshotCheck:
        env, directory = self._context.env, os.path.join(self._context.root, "meta")
        return SnapshotFile.check(env.disk, directory, "meta", group=META_UID, index=index)

    def _read_snapshot(self, uid: Uid, check: Callable[[Index], SnapshotCheck]) -> bool:
        group, monitor = self._groups.group_of(uid), self._groups.monitor_of(uid)
        if (
            self._context.life.is_stopping
            or group is None
            or monitor is None
            or monitor.stopped.is_set()
        ):
            return False
        index = group.snapshot_index  # a later one may have taken its place when it is read
        if not index:
            return False

        def done(result: tuple[int, str] | BaseException) -> None:
            if is_passing(result):
                self._skipped += 1
                self._was_read(0, self._next)
                return
            if isinstance(result, BaseException):
                raise result
            size, fault = result
            if fault and not self._context.life.is_stopping and not monitor.stopped.is_set():
                self._damage_log.found_void_snapshot(uid, f"the snapshot at {index}: {fault}")
                monitor.save_anew(ignore)
            self._was_read(size, self._next)

        self._context.block_thread.submit(partial(check, index), done)
        return True

    # --- blocks -----------------------------------------------------------------------------

    def _is_live(self, replica: LocalStream, block: Block) -> bool:
        """False if the replica was closed or opened again, or the block is dead: then its file
        may be gone or moved, and says nothing."""
        return (
            not self._context.life.is_stopping
            and self._groups.get(replica.uid) is replica
            and not replica.group.failure
            and not replica.monitor.stopped.is_set()
            and (block.live > 0 or not block.is_sealed)
        )

    def _read_block(self, replica: LocalStream, files: StreamStore, block: Block) -> bool:
        if not self._is_live(replica, block) or block.end_offset <= HEADER_BYTES:
            return False
        files.flush()  # the job comes after what waited to be written
        end_offset, is_sealed, count = block.end_offset, block.is_sealed, block.count
        job = partial(files.verify, block.block_no, end_offset=end_offset, is_sealed=is_sealed)

        def done(result: BlockRows | BaseException) -> None:
            if self._is_live(replica, block):
                self._judge(replica, files, block, result, None if is_sealed else count)
            self._was_read(end_offset, self._next)

        self._context.block_thread.submit(job, done)
        return True

    def _judge(
        self,
        replica: LocalStream,
        files: StreamStore,
        block: Block,
        result: BlockRows | BaseException,
        active_count: int | None,
    ) -> None:
        if isinstance(result, BaseException):
            if not isinstance(result, StreamdError):
                raise result
            if is_passing(result):
                self._skipped += 1
                return  # the next round will tell
            error = result
        else:
            text = block_difference(replica.machine, block, result, active_count=active_count)
            if not text:
                if replica.unreadable:
                    replica.report_whole(block.block_no)
                return
            error = CorruptionError(f"stream {replica.name}: {text}")
        if len(replica.group.raft.members.voters) == 1:
            self._examine(replica, files, block, error)
            return
        self._corruption.on_damaged(replica.uid, error, block_no=block.block_no)

    def found_lacking(self, replica: LocalStream, block_no: int, error: StreamdError) -> None:
        """Report a block's file that a start finds gone, or cut: a read would say it some day."""
        files = replica.files
        if files is None or self._groups.get(replica.uid) is not replica:
            return
        blocks = [one for one in replica.machine.index.blocks if one.block_no == block_no]
        if blocks and len(replica.group.raft.members.voters) == 1:
            self._examine(replica, files, blocks[0], error)
        elif blocks:
            self._corruption.on_damaged(replica.uid, error, block_no=block_no)

    def _examine(
        self, replica: LocalStream, files: StreamStore, block: Block, error: StreamdError
    ) -> None:
        """Find which messages of a block can't be read: no other node has this stream."""
        index = replica.machine.index
        try:
            columns = index.blocks.columns(block)
        except StreamdError as err:
            if is_passing(err):
                self._corruption.on_damaged(replica.uid, err)
                return
            # Neither its records nor its footer: all that is live in it.
            first, last = block.first_seq, block.last_seq
            gone = [seq for seq in range(first, last + 1) if index.live.has(seq)]
            replica.report(block.block_no, gone, str(err))
            return
        live: list[Seq] = []
        places: list[tuple[int, int, int]] = []
        for row, seq in enumerate(columns.seqs_between(0, len(columns))):
            loc = index.locations.locate(seq)
            if loc is not None:
                live.append(seq)
                places.append((loc[2], loc[3], columns.crcs[row]))
        files.flush()

        def done(result: list[int] | BaseException) -> None:
            if is_passing(result):
                return
            if isinstance(result, BaseException):
                raise result
            if self._is_live(replica, block):
                if not result:
                    reason = str(error)
                    self._context.log.warn(
                        "a block is damaged where only deleted messages were", reason=reason
                    )
                replica.report(block.block_no, [live[at] for at in result], str(error))

        job = partial(files.damaged_records, block.block_no, places)
        self._context.block_thread.submit(job, done)
