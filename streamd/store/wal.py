"""The write-ahead log of a node: one for all groups, with group commit.

Whatever waits becomes one write and one fdatasync, by the event loop when its round is over or, if
the disk is slow, by the log thread; while that sync runs, the next batch gathers. No timer, no
window. `store/README.md` has the format and the argument why a crash at any byte loses nothing
that was reported done.
"""

from __future__ import annotations

import itertools
import os
import time
from array import array
from collections import deque
from collections.abc import Callable
from typing import Literal, TypeAlias

from streamd.errors import CorruptionError, DiskError
from streamd.store import wal_format as wf
from streamd.store.disk import Buffer, Disk, Thread, disk_error
from streamd.store.wal_groups import GroupLog
from streamd.store.wal_jobs import SPARES_MAX, FreeSegment, PrepareSpare, Raise
from streamd.store.wal_manifest import ManifestFile
from streamd.store.wal_pace import Pace
from streamd.store.wal_recovery import SPARE_PREFIX, Recovered, recover, segment_name
from streamd.store.wal_repair import carry_over, set_aside
from streamd.types import Entry, HardState, Index, LogState, Term, Uid

WalWrite: TypeAlias = tuple[Uid, list[Entry], HardState | None, Index]
"""(group, entries, hard state to remember, index from which older entries are void or 0)."""

BATCH_BYTES_MAX = 1024 * 1024  # one write: bounds how long those who come later wait
BATCH_WEIGHT = 1 / 16  # of the latest batch in their average size
BULKY_BATCH_BYTES = 512 * 1024  # from here on zeros cost more than what they save each sync
FIRST_SEGMENT_FRACTION = 16  # the first segment after a start is small, so that a start is quick
FIRST_SEGMENT_BYTES_MIN = 1024 * 1024
WITNESS_IDLE_S = 1.0  # after so long without an append the last one gets its witness
SEGMENTS_UNHURRIED = 4  # as many may be in use before their groups are called stragglers
_PAGE = 4096
_ZEROS = bytes(_PAGE)

_Lazy: TypeAlias = tuple[int, Uid, Index, Term, int]  # record type, group, index, term, chain
_NO_LAZY: list[_Lazy] = []  # never appended to
_RESET_MARK = -1  # as the first index of what was placed: here the group was reset
_NO_PLACES = array("Q")
_NO_LENGTHS = array("I")
_Placed: TypeAlias = tuple[Uid, HardState | None, Index, Index, "array[int]", "array[int]"]


class _Written:
    """What one write did, for the event loop: which entries are where, and who waits for it."""

    __slots__ = (
        "batch_no",
        "dones",
        "fd",
        "lazy_count",
        "placed",
        "segment_no",
        "start",
    )

    def __init__(self) -> None:
        self.batch_no = 0  # 0: nothing was written
        self.segment_no = 0
        self.fd = -1
        self.start = 0  # where the records start; places are relative to it
        self.placed: list[_Placed] = []  # (group, hard state, truncate_from, first index, ...)
        self.dones: list[Callable[[], None]] = []
        self.lazy_count = 0


class Wal:
    """One node's log. Every method is called on the event loop, and none of them waits for it.

    `append` is the only promise: its `done` comes after its entries and hard states are synced
    (with `sync` in seconds: written). After the first failed write or sync no `done` ever comes
    again; `on_error` does, once.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        thread: Thread,
        recovered: Recovered,
        *,
        segment_bytes: int,
        sync: Literal["always"] | float,
        on_error: Callable[[Exception], None],
        helper: Thread | None,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._thread = thread
        self._helper = helper or thread
        self._segment_bytes = segment_bytes
        self._sync_s = 0.0 if sync == "always" else float(sync)
        self._on_error = on_error
        self._groups = recovered.groups
        self.dropped_bytes = recovered.dropped_bytes
        self.dropped_at = recovered.dropped_at
        self.damage = recovered.damage  # what was found damaged or missing, if that is tolerated
        self.damaged_groups = recovered.damaged_groups  # may have lost votes or entries: why
        self.may_have_lost_groups = recovered.may_have_lost_groups  # that nobody knows of now
        self.on_crowded: Callable[[], None] = _nothing  # one segment more: look at `stragglers`
        self.sync_count = 0
        self.failure: DiskError | None = None
        self._pace = Pace()
        # Event loop's.
        self._fds = {segment.no: segment.fd for segment in recovered.segments}
        self._pins: dict[int, int] = {}  # segment -> groups whose first live entry is there
        for group in self._groups.values():
            self._pin(group, 1)
        self._lazy: list[_Lazy] = []
        self._lazy_unlogged = 0
        self._destroyed: set[Uid] = set()  # until logged: what of them is in flight is void
        self._resets: dict[Uid, int] = {}  # how many are in flight: entries before them are void
        # Between the two: appended by the loop, taken by the thread.
        self._waiting: deque[tuple[list[WalWrite], Callable[[], None] | None, list[_Lazy]]] = (
            deque()
        )
        self._is_scheduled = False
        self._completed_batch = 0  # the last one of which the loop has heard
        # Who writes': the log thread's, or the loop's while the thread has nothing to do.
        self._wal_id = recovered.wal_id
        self._next_batch = recovered.next_batch
        self._durable_batch = recovered.next_batch - 1
        self._hard_states = {uid: group.hard_state for uid, group in self._groups.items()}
        self._released = {
            uid: (group.base, group.base_term, group.base_chain)
            for uid, group in self._groups.items()
        }
        self._tips: dict[Uid, tuple[Index, Term, int]] = {}  # the last entry of each group
        self._manifest = ManifestFile(disk, directory)
        self._no = 0
        self._fd = -1
        self._capacity = 0
        self._position = 0
        self._is_sync_due = False
        self._is_witness_due = False
        self._idle_batch = 0  # the next batch's number when the idle timer last looked
        self._witness_batch = 0  # that has nothing to lose; a witness
        # The spare segment: made by the helper, taken by the log thread.
        self._spares: deque[tuple[str, int]] = deque()
        self._spare_numbers = itertools.count(1)
        self._is_preparing = False
        self._batch_bytes = 0.0  # of late, on average

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        thread: Thread,
        *,
        segment_bytes: int,
        sync: Literal["always"] | float,
        on_error: Callable[[Exception], None],
        helper: Thread | None = None,
        tolerate_damage: bool = False,
        on_groups_lost: Callable[[], None] = lambda: None,
    ) -> Wal:
        """Recover the log in `directory` (made if it is not there) and get ready to append.

        Raises CorruptionError, naming segment and offset, if something that was durable is damaged
        or missing; then nothing on disk is changed. A torn tail is dropped: see `dropped_bytes`.

        With `tolerate_damage` it never does: what is proven is kept, `damage` says what is not,
        and every group in `damaged_groups` may have forgotten votes or entries that it
        acknowledged; its hard state says `is_uncertain` from then on. What is proven is written
        anew into one segment; the old files, their bytes unchanged, go to `damaged-<n>/`.
        `on_groups_lost` is called before that if groups may be missing without a trace: who is
        told must remember it, for the log that goes on shows no damage any more (I12).
        """
        try:
            disk.mkdir(directory)
            recovered = recover(disk, directory, tolerate_damage=tolerate_damage)
            wal = cls(
                disk,
                directory,
                thread,
                recovered,
                segment_bytes=segment_bytes,
                sync=sync,
                on_error=on_error,
                helper=helper,
            )
            numbers = [int(name[len(SPARE_PREFIX) :]) for name in recovered.spares]
            wal._spare_numbers = itertools.count(max(numbers, default=0) + 1)
            for name in recovered.spares:
                wal._adopt_spare(name)
            wal._wal_id = recovered.wal_id or int.from_bytes(disk.random_bytes(8), "little") | 1
            wal._manifest.adopt(recovered.manifest)
            if recovered.may_have_lost_groups:
                on_groups_lost()
            if recovered.damage:
                carry_over(wal, recovered)
            else:
                wal._go_on(recovered)
            if recovered.leftovers or recovered.damage:
                set_aside(disk, directory, recovered)
        except OSError as err:
            raise disk_error("opening the log", directory, err) from err
        wal._fds[wal._no] = wal._fd
        return wal

    def _go_on(self, recovered: Recovered) -> None:
        """Begin the segment after the last."""
        if recovered.manifest is None:
            # Before any segment says that there is one.
            self._manifest.write(self._wal_id, recovered.newest)
        for uid, group in self._groups.items():
            entry = self.read(uid, group.last, group.last + 1, 1)[0] if group.places else None
            self._tips[uid] = (
                (group.base, group.base_term, group.base_chain)
                if entry is None
                else (entry.index, entry.term, entry.chain)
            )
        last = recovered.segments[-1] if recovered.segments else None
        if last is not None:
            # What a killed process wrote may be in the page cache only. From the next
            # segment's header on it counts as durable, so make it so. Written again, because
            # after a failed sync the cache may call pages clean that never reached the disk.
            tail = self._disk.pread(last.fd, last.end - last.unproven, last.unproven)
            self._disk.pwrite(last.fd, tail, last.unproven)
            self._disk.fdatasync(last.fd)
            self._no, self._position = last.no, last.end
        self._start_segment(self._segment_bytes)

    @property
    def log_id(self) -> str:
        """The random name of this log. A directory that was emptied gets another one."""
        return f"{self._wal_id:016x}"

    @property
    def groups(self) -> dict[Uid, LogState]:
        """What the log durably knows of each group."""
        return {uid: group.state() for uid, group in self._groups.items()}

    def group(self, uid: Uid) -> LogState | None:
        """What the log durably knows of one group."""
        found = self._groups.get(uid)
        return found.state() if found is not None else None

    # --- on the event loop ------------------------------------------------------------------

    def append(self, writes: list[WalWrite], done: Callable[[], None]) -> None:
        """Log `writes` and call `done` on the loop when they are safe. In the order of calls."""
        if self.failure is not None:
            self._on_error(self.failure)
            return
        if self._lazy:
            lazy, self._lazy = self._lazy, []
            self._waiting.append((writes, done, lazy))
        else:
            self._waiting.append((writes, done, _NO_LAZY))
        if not self._is_scheduled:
            self._is_scheduled = True
            self._schedule()

    def flush(self) -> None:
        """Write now what `append` left for the loop's next round, if it did: nothing more comes."""
        self._thread.do_now()

    def read(self, group: Uid, lo: Index, hi: Index, max_bytes: int) -> list[Entry]:
        """Return the entries lo..hi-1 that `append` reported done, at most about `max_bytes`.

        At least one, if there is one. Raises CorruptionError.
        """
        log = self._groups[group]
        at = lo - log.first
        end = min(hi - log.first, len(log.places))
        if at < 0:
            raise CorruptionError(f"group {group}: entry {lo} is not in the log any more")
        entries: list[Entry] = []
        total = 0
        window, window_no, window_at = b"", 0, 0
        while at < end:
            place = log.places[at]
            size = wf.RECORD_HEADER_BYTES + log.lengths[at]
            total += size
            if total > max_bytes and entries:
                break
            no, offset = place >> 32, place & 0xFFFFFFFF
            if no != window_no or not window_at <= offset <= window_at + len(window) - size:
                wanted = max(size, min(max_bytes, 256 * 1024) if end - at > 1 else size)
                window = self._read_at(no, offset, wanted, size)
                window_no, window_at = no, offset
            record = wf.decode_record(window, offset - window_at, offset=offset)
            if record is None or (record.group, record.index) != (group, log.first + at):
                raise CorruptionError(
                    f"{segment_name(no)}: offset {offset}: entry {log.first + at} of group "
                    f"{group} is damaged"
                )
            entries.append(Entry(record.term, record.index, record.data, chain=record.chain))
            at += 1
        return entries

    def _read_at(self, no: int, offset: int, wanted: int, size: int) -> bytes:
        """Read `wanted` bytes, or only the `size` that are needed if those after are unreadable."""
        try:
            return self._disk.pread(self._fds[no], wanted, offset)
        except OSError as err:
            if wanted > size:
                return self._read_at(no, offset, size, size)
            raise disk_error("reading the log", segment_name(no), err) from err

    def release(self, group: Uid, index: Index, term: Term, chain: int) -> None:
        """A durable snapshot covers the entries up to `index`: they are not needed any more.

        Logged with the next append. Until then a restart shows a longer log, which does no harm.
        """
        log = self._groups.get(group)
        if log is None:
            log = self._groups[group] = GroupLog()
        if index <= log.base:
            return
        self._pin(log, -1)
        log.release(index, term, chain)
        self._pin(log, 1)
        self._lazy.append((wf.RELEASE, group, index, term, chain))
        self._lazy_unlogged += 1
        self._free_segments()

    def reset_group(
        self,
        group: Uid,
        index: Index,
        term: Term,
        chain: int,
        done: Callable[[], None] | None = None,
        *,
        hard_state: HardState | None = None,
    ) -> None:
        """An installed snapshot replaces the log: it goes on, empty, after `index`.

        For an install whose snapshot the log does not lead to; where it does, `release` keeps what
        comes after. In order with `append`, also with what is in flight, and written at once, so
        that a later `append` that is done implies it. `hard_state` is in the same batch: who gives
        up a log that may have been acknowledged says there that it is uncertain (I12).
        """
        if self.failure is not None:
            self._on_error(self.failure)
            return
        log = self._groups.get(group)
        if log is None:
            log = self._groups[group] = GroupLog()
        self._pin(log, -1)
        log.reset(index, term, chain)
        self._resets[group] = self._resets.get(group, 0) + 1
        self._lazy.append((wf.RESET, group, index, term, chain))
        self._lazy_unlogged += 1
        writes: list[WalWrite] = [] if hard_state is None else [(group, [], hard_state, 0)]
        self.append(writes, done or _nothing)
        self._free_segments()

    def destroy(self, group: Uid) -> None:
        """Forget `group` for ever; its uid never comes back."""
        log = self._groups.pop(group, None)
        if log is not None:
            self._pin(log, -1)
        self._destroyed.add(group)
        self._lazy.append((wf.DESTROY, group, 0, 0, 0))
        self._lazy_unlogged += 1
        self._free_segments()

    def stragglers(self) -> list[Uid]:
        """Groups whose entries alone keep the oldest segment, when many segments are in use.

        A snapshot of each of them lets the segment go.
        """
        if len(self._fds) <= SEGMENTS_UNHURRIED:
            return []
        oldest = min(self._fds)
        return [
            uid
            for uid, log in sorted(self._groups.items())
            if log.places and log.places[0] >> 32 == oldest
        ]

    def close(self) -> None:
        """Write what waits and a last witness. Call once nothing is appended any more."""
        if self._thread.is_current():
            self._close()
        else:
            self._thread.submit(self._close, None)

    def _pin(self, log: GroupLog, change: int) -> None:
        if log.places:
            no = log.places[0] >> 32
            self._pins[no] = self._pins.get(no, 0) + change

    def _complete(self, result: _Written | BaseException | None) -> None:
        """A write is safe: note where its entries are and tell who waits."""
        if result is None:
            return
        if isinstance(result, BaseException):
            if not isinstance(result, DiskError):
                result = DiskError(f"{self._directory}: the log cannot be written: {result!r}")
            self._on_error(result)
            return
        if result.batch_no:
            # In the order of the log, or entries would be noted as released that are not.
            assert result.batch_no > self._completed_batch, (result.batch_no, self._completed_batch)
            self._completed_batch = result.batch_no
        groups = self._groups
        base = (result.segment_no << 32) | result.start
        is_new_segment = result.segment_no not in self._fds
        if is_new_segment:
            self._fds[result.segment_no] = result.fd
        resets = self._resets
        for uid, hard_state, truncate_from, first, offsets, lengths in result.placed:
            if resets and uid in resets:
                if first == _RESET_MARK:
                    resets[uid] -= 1
                    if not resets[uid]:
                        del resets[uid]
                elif hard_state is not None and uid in groups:
                    groups[uid].hard_state = hard_state
                continue  # entries that were in flight when the reset was asked for are void
            log = groups.get(uid)
            if log is None:
                if uid in self._destroyed:
                    continue
                log = groups[uid] = GroupLog()
            if hard_state is not None:
                log.hard_state = hard_state
            is_pinned = bool(log.places)
            if truncate_from or (offsets and first != log.last + 1):
                self._pin(log, -1)
                is_pinned = False
                if truncate_from:
                    log.truncate(truncate_from)
            index = first
            for offset, length in zip(offsets, lengths, strict=True):
                if index > log.base:
                    log.add(index, base + offset, length)
                index += 1
            if not is_pinned:
                self._pin(log, 1)
        self._lazy_unlogged -= result.lazy_count
        assert self._lazy_unlogged >= 0, self._lazy_unlogged
        if self._destroyed and not self._lazy_unlogged:
            self._destroyed.clear()
        for done in result.dones:
            done()
        if result.lazy_count or len(self._fds) > 1:
            self._free_segments()
        if is_new_segment and len(self._fds) > SEGMENTS_UNHURRIED:
            self.on_crowded()

    def _free_segments(self) -> None:
        """Let go of the oldest segments that nobody needs. Never of the one being written."""
        newest = max(self._fds)
        oldest = min(self._fds)
        if oldest == newest or self._pins.get(oldest):
            return
        if self._lazy_unlogged:
            # The record that lets the segment go must be durable first (I11).
            if self._lazy:
                self.append([], _nothing)
            return
        while oldest != newest and not self._pins.get(oldest):
            fd = self._fds.pop(oldest)
            self._pins.pop(oldest, None)
            self._thread.submit(FreeSegment(self, oldest, fd).run, None)
            oldest += 1

    # --- on the log thread, or on the loop instead ---------------------------------------------

    def _write(self) -> _Written | None:
        """Write and sync what waits, as one batch; more than a batch waits for the next turn."""
        if self.failure is not None:
            return None
        try:
            written = self._write_batch()
        except OSError as err:
            # Final: after a failed sync nobody knows what the kernel kept (I10).
            self.failure = disk_error("writing the log", self._directory, err)
            raise self.failure from err
        if self._waiting:
            self._schedule()
        else:
            self._is_scheduled = False
            if self._waiting and not self._is_scheduled:  # came between the two lines above
                self._is_scheduled = True
                self._schedule()
        return written

    def _schedule(self) -> None:
        """Have `_write` run: by the event loop while the disk is quick, else by the thread."""
        if self._pace.is_quick(time.monotonic()):
            self._thread.submit_soon(self._write, self._complete)
        else:
            self._thread.submit(self._write, self._complete)

    def _write_batch(self) -> _Written | None:
        waiting = self._waiting
        if not waiting:
            return None
        written = _Written()
        buffers: list[Buffer] = [b""]  # the batch header's place
        size = wf.BATCH_HEADER_BYTES
        count = 0
        taken: list[tuple[list[WalWrite], list[_Lazy]]] = []
        encode = wf.encode_entry_header
        while waiting and size < BATCH_BYTES_MAX:
            writes, done, lazy = waiting.popleft()
            taken.append((writes, lazy))
            if done is not None:
                written.dones.append(done)
            for group, entries, hard_state, truncate_from in writes:
                if hard_state is not None:
                    record = _encode_hard_state(group, hard_state)
                    buffers.append(record)
                    size += len(record)
                    count += 1
                if truncate_from:
                    record = wf.encode_record(wf.TRUNCATE, group, term=0, index=truncate_from)
                    buffers.append(record)
                    size += len(record)
                    count += 1
                offsets = array("Q")
                lengths = array("I")
                for entry in entries:
                    payload = entry.data
                    buffers.append(encode(group, entry.term, entry.index, entry.chain, payload))
                    if payload:
                        buffers.append(payload)
                    offsets.append(size)
                    lengths.append(len(payload))
                    size += wf.RECORD_HEADER_BYTES + len(payload)
                    count += 1
                first = entries[0].index if entries else 0
                written.placed.append((group, hard_state, truncate_from, first, offsets, lengths))
            for kind, group, index, term, chain in lazy:
                buffers.append(wf.encode_record(kind, group, term=term, index=index, chain=chain))
                size += wf.RECORD_HEADER_BYTES
                count += 1
                if kind == wf.RESET:
                    written.placed.append((group, None, 0, _RESET_MARK, _NO_PLACES, _NO_LENGTHS))
            written.lazy_count += len(lazy)
        written.segment_no, written.fd = self._no, self._fd
        if not count:  # only a clean close writes an empty batch
            return written
        if self._position + wf.padded(size) > self._capacity:
            self._rotate(size)
        written.start = self._position
        began = time.monotonic()
        self._put_batch(buffers, size, count)
        # Only now: a rotation above must not repeat what this batch was still to say.
        self._remember(taken)
        if self._sync_s:
            self._sync_later()
        else:
            self._sync()
        if not self._thread.is_current():
            self._pace.note(began, time.monotonic())
        if not self._is_witness_due:
            self._witness_later()
        written.batch_no = self._next_batch - 1
        written.segment_no, written.fd = self._no, self._fd
        self._batch_bytes += BATCH_WEIGHT * (size - self._batch_bytes)
        if self._position * 16 > self._capacity and not self._spares and not self._is_preparing:
            self._prepare_spare()
        return written

    def _remember(self, taken: list[tuple[list[WalWrite], list[_Lazy]]]) -> None:
        """Note what the first batch of the next segment has to repeat."""
        for writes, lazy in taken:
            for group, entries, hard_state, truncate_from in writes:
                if hard_state is not None:
                    self._hard_states[group] = hard_state
                if entries:
                    last = entries[-1]
                    self._tips[group] = (last.index, last.term, last.chain)
                elif truncate_from:
                    self._tips.pop(group, None)  # unknown until the next entry
            for kind, group, index, term, chain in lazy:
                if kind == wf.DESTROY:
                    self._released.pop(group, None)
                    self._hard_states.pop(group, None)
                    self._tips.pop(group, None)
                    continue
                self._released[group] = (index, term, chain)
                tip = self._tips.get(group)
                if kind == wf.RESET or (tip is not None and tip[0] <= index):
                    self._tips[group] = (index, term, chain)

    def _put_batch(self, buffers: list[Buffer], size: int, count: int) -> None:
        """Write one batch at the position. `buffers[0]` becomes its header. Not synced."""
        position = self._position
        buffers[0] = wf.encode_batch_header(
            wal_id=self._wal_id,
            segment_no=self._no,
            offset=position,
            batch_no=self._next_batch,
            durable_batch=self._durable_batch,
            length=size - wf.BATCH_HEADER_BYTES,
            count=count,
        )
        end = position + size
        # Zeros up to the page's end: a page written whole need not be read from disk first.
        rest = -end % _PAGE
        if rest and end + rest <= self._capacity:
            buffers.append(_ZEROS[:rest])
        self._disk.writev(self._fd, buffers, position)
        self._next_batch += 1
        self._position = position + wf.padded(size)

    def _sync(self) -> None:
        self._disk.fdatasync(self._fd)
        self._durable_batch = self._next_batch - 1
        self.sync_count += 1

    def _sync_later(self) -> None:
        if not self._is_sync_due:
            self._is_sync_due = True
            self._thread.submit_later(self._sync_s, self._sync_due)

    def _sync_due(self) -> None:
        self._is_sync_due = False
        if self.failure is not None or self._durable_batch == self._next_batch - 1:
            return
        try:
            self._sync()
        except OSError as err:
            self.failure = disk_error("syncing the log", self._directory, err)
            self._thread.submit(Raise(self.failure), self._complete)

    def _witness_later(self) -> None:
        self._is_witness_due = True
        self._thread.submit_later(max(WITNESS_IDLE_S, self._sync_s), self._witness_due)

    def _witness_due(self) -> None:
        """If nothing was appended for a while, write a batch that says the last one was durable.

        Without it, rot of the last batch would look like a torn one for as long as it is the last.
        """
        self._is_witness_due = False
        if self.failure is not None or self._fd < 0 or self._next_batch == self._witness_batch + 1:
            return
        is_idle = self._idle_batch == self._next_batch == self._durable_batch + 1
        self._idle_batch = self._next_batch
        if not is_idle:
            self._witness_later()
            return
        if self._position + wf.ALIGN > self._capacity:
            return  # the next append begins a new segment, which says it too
        record = wf.encode_record(wf.WITNESS, 0, term=0, index=0)
        try:
            self._put_batch([b"", record], wf.BATCH_HEADER_BYTES + len(record), 1)
            self._sync()
        except OSError as err:
            self.failure = disk_error("writing the log", self._directory, err)
            self._thread.submit(Raise(self.failure), self._complete)
            return
        self._witness_batch = self._next_batch - 1

    def _close(self) -> None:
        """Write what waits, then an empty batch: its header says that all before is durable."""
        if self.failure is not None or self._fd < 0:
            return
        try:
            while self._waiting:
                self._write_batch()
            self._sync()
            if self._position + wf.ALIGN <= self._capacity:
                self._put_batch([b""], wf.BATCH_HEADER_BYTES, 0)
                self._sync()
        except OSError as err:
            self.failure = disk_error("closing the log", self._directory, err)
            raise self.failure from err
        for fd in {*self._fds.values(), self._fd}:
            self._disk.close(fd)
        self._fd = -1
        self._manifest.close()
        while self._spares:
            self._disk.close(self._spares.popleft()[1])

    # --- segments ---------------------------------------------------------------------------

    def _rotate(self, size: int) -> None:
        """Go on in a new segment, of at least what `size` needs."""
        self._sync()  # the new header will say that all of the old segment is durable
        self._disk.crash_point("WAL_SEGMENT_FULL")
        wanted = wf.SEGMENT_HEADER_BYTES + self._checkpoint_size() + wf.padded(size)
        self._start_segment(max(self._segment_bytes, wanted), needed=wanted)

    def _start_segment(self, capacity: int, needed: int = 0) -> None:
        """Take a spare, or make a file of `capacity`, and name it as the next segment."""
        disk = self._disk
        if self._spares and disk.size(self._spares[0][1]) >= needed:
            name, fd = self._spares.popleft()
            capacity = disk.size(fd)
        else:
            name, fd = self._create_spare()
            capacity = self._prepare_now(fd, capacity, needed)
        no = self._no + 1
        header = wf.SegmentHeader(
            self._wal_id, no, self._next_batch, self._position if self._no else 0, capacity
        )
        self._write_segment_start(fd, header)
        self._sync()
        self._name_segment(name)

    def _write_segment_start(self, fd: int, header: wf.SegmentHeader) -> None:
        """Write a segment's header and its first batch, and go on behind them. Not synced."""
        self._disk.pwrite(fd, wf.encode_segment_header(header), 0)
        self._no, self._fd, self._capacity = header.segment_no, fd, header.capacity
        self._position = wf.SEGMENT_HEADER_BYTES
        # What older segments say of hard states and releases, again: they may be freed now. And
        # where every group's log ends, so that it is noticed if one is lost.
        records = [
            _encode_hard_state(uid, state) for uid, state in sorted(self._hard_states.items())
        ]
        for kind, facts in ((wf.RELEASE, self._released), (wf.TIP, self._tips)):
            records += [
                wf.encode_record(kind, uid, term=term, index=index, chain=chain)
                for uid, (index, term, chain) in sorted(facts.items())
                if index or kind == wf.TIP
            ]
        size = wf.BATCH_HEADER_BYTES + sum(map(len, records))
        self._put_batch([b"", *records], size, len(records))

    def _name_segment(self, name: str) -> None:
        """The synced file `name` becomes the segment that is written to."""
        disk = self._disk
        disk.crash_point("WAL_SEGMENT_SYNCED")
        # A segment is named only once its header is durable, so a named one without is damaged.
        disk.replace(
            os.path.join(self._directory, name),
            os.path.join(self._directory, segment_name(self._no)),
        )
        disk.crash_point("WAL_SEGMENT_NAMED")
        disk.sync_dir(self._directory)
        disk.crash_point("WAL_SEGMENT_STARTED")
        # After its name is durable, and before anything in it is reported done.
        self._manifest.write(self._wal_id, self._no)
        disk.crash_point("WAL_MANIFEST_SYNCED")

    def _prepare_now(self, fd: int, capacity: int, needed: int) -> int:
        """Make a segment while appends wait for it; return how long it is."""
        disk = self._disk
        if self._is_bulky():
            try:
                disk.reserve(fd, capacity)
            except OSError:
                disk.truncate(fd, 0)  # there may be room for a small one
            else:
                return capacity
        small = max(
            needed,
            wf.SEGMENT_HEADER_BYTES * 2 + self._checkpoint_size(),
            min(capacity, max(FIRST_SEGMENT_BYTES_MIN, capacity // FIRST_SEGMENT_FRACTION)),
        )
        disk.preallocate(fd, offset=0, size=small)
        return small

    def _is_bulky(self) -> bool:
        """True while so much is appended that the disk should not write zeros besides."""
        return self._batch_bytes >= BULKY_BATCH_BYTES

    def _checkpoint_size(self) -> int:
        votes = sum(len(state.vote.encode()) for state in self._hard_states.values())
        records = len(self._hard_states) + len(self._released) + len(self._tips)
        return wf.padded(wf.BATCH_HEADER_BYTES + votes + records * wf.RECORD_HEADER_BYTES)

    def _adopt_spare(self, name: str) -> None:
        """Reuse a spare of an earlier run, or remove it if it was never finished."""
        path = os.path.join(self._directory, name)
        fd = self._disk.open(path)
        if self._disk.size(fd) == self._segment_bytes and len(self._spares) < SPARES_MAX:
            self._spares.append((name, fd))
        else:
            self._disk.close(fd)
            self._disk.unlink(path)

    def _create_spare(self) -> tuple[str, int]:
        name = self._spare_name()
        return name, self._disk.open(os.path.join(self._directory, name), create=True)

    def _spare_name(self) -> str:
        # One step for all threads: two spares of one name would be one file.
        return f"{SPARE_PREFIX}{next(self._spare_numbers)}"

    def _prepare_spare(self) -> None:
        """Have a zeroed file of full size made, in steps, so that no ack waits behind it.

        Not while the load is bulky: each byte would be written twice. Segments that are in use
        then will be the spares.
        """
        if self._is_bulky():
            return
        self._is_preparing = True
        step = PrepareSpare(self)
        self._helper.submit(step.run, None)


def _encode_hard_state(group: Uid, state: HardState) -> bytes:
    return wf.encode_record(
        wf.HARD_STATE,
        group,
        term=state.term,
        index=state.commit,
        data=state.vote.encode(),
        flags=wf.IS_UNCERTAIN if state.is_uncertain else 0,
    )


def _nothing() -> None:
    """For appends that only carry what was lazy."""
