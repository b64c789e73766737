"""`Wal`: the write-ahead log of a node, one for all groups, with group commit.

Theory. The log is a chain of *segments*, files of a fixed size. Only the newest, the *current* one,
is written to: batch after batch, each one write and one sync for all appends that wait. Older
segments are read from until no group needs an entry in them, then freed, always the oldest first.

    loop     append --> waiting                            _complete --> index entries, done()
                           |                                   ^
    writer                 +--> Batch --> segment.put --> segment.sync
                                             | full: rotate
    files    [0..5.wal] [0..6.wal] [0..7.wal: header | checkpoint | batch | batch | ...zeros]
              oldest,    pinned     current; `manifest` names it
              freed when nothing pins it --> spare-9, until it is 8.wal, or removed

A segment begins with a *checkpoint*: hard state, release and tip of every group. So freeing the
oldest segment loses no vote, and a segment that vanished is noticed by the tips that came after it.

Parts, each the only owner of its state:
    `GroupLog`, `PinnedSegments`  places of entries, files in use          event loop
    `Writer`, `Batch`             appends to batches, pace, sync, failure  event loop and writer
    `CurrentSegment`              position, batch number, durability       writer
    `Checkpoint`                  state of every group as written          writer
    `SegmentFiles`                files before and after they are segments writer, helper thread
    `CurrentFile`                 the file `manifest`                      writer
"Writer" is one thread at a time: the loop after the last turn of its round, or the log thread.
`recover`, `Damage` and the functions of `wal_repair` run before the first append; `check` runs
beside everything, on any thread, and reads files only.

Invariants:
  W1  `done` of an append is called in order, and only after its batch is synced (with `sync` in
      seconds: written).
  W2  A batch is written only after the one before it is written; its header witnesses the newest
      synced one. So at most one batch can be torn (with `sync` in seconds: those since the last
      sync), and a damaged batch that a witness covers is rot, never a tear.
  W3  A segment has its number only once header and checkpoint are durable, and is appended to only
      once the manifest names it.
  W4  A segment is freed only after the records that released it are durable (I11).
  W5  After the first failed write or sync nothing is written or reported any more (I10).

`store/README.md` has the format and the argument why a crash at any byte loses nothing reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from streamd.callbacks import ignore
from streamd.errors import DiskError
from streamd.latency_histogram import LatencyHistogram
from streamd.store.disk import Disk, Thread, disk_error
from streamd.store.wal import wal_format as wf
from streamd.store.wal.checkpoint import Checkpoint
from streamd.store.wal.entry_index import GroupLog, PinnedSegments
from streamd.store.wal.segment import CurrentSegment
from streamd.store.wal.segment_files import SegmentFiles
from streamd.store.wal.wal_format import Hints, Lazy, WalWrite
from streamd.store.wal.wal_recovery import NOTHING, Expected, Recovered, check, recover
from streamd.store.wal.wal_repair import carry_over, set_aside
from streamd.store.wal.wal_writer import DESTROY_MARK, Batch, Writer
from streamd.types import Entry, HardState, Index, LogState, Term, Uid

_NO_LAZY: list[Lazy] = []  # never appended to


class Wal:
    """The log of one node. Every method is called on the event loop and waits for no disk.

    `append` is the only promise: its `done` is called after its entries and hard states are synced
    (with `sync` in seconds: written). After the first failed write or sync no `done` is called
    again; `on_error` is, once.
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
        self._on_error = on_error
        self._is_error_told = False
        self._is_refused = False
        self._groups = recovered.groups
        self.dropped_bytes = recovered.dropped_bytes
        self.dropped_at = recovered.dropped_at
        self.damage = recovered.damage  # each damaged or missing piece, if damage is tolerated
        self.damaged_groups = recovered.damaged_groups  # may have lost votes or entries: why
        self.may_have_lost_groups = recovered.may_have_lost_groups  # without a trace
        self.on_crowded: Callable[[], None] = ignore  # one segment more: see `pinning_groups`
        # Commit index of a group with peers; 0: not known. For any thread.
        self.commit_of: Callable[[Uid], Index] = _unknown
        self._segments = PinnedSegments(disk, recovered.segments, recovered.groups.values())
        self._lazy: list[Lazy] = []
        self._lazy_unlogged = 0
        # Resets and ends of a group in flight: its entries before them are void.
        self._voids: dict[Uid, int] = {}
        self._completed_batch = recovered.next_batch - 1  # the last that was reported to the loop
        # Once the log is open the loop calls the writer alone; the others are the writer's.
        self._checkpoint = Checkpoint(recovered.groups)
        self._files = SegmentFiles(disk, directory, helper or thread, segment_bytes=segment_bytes)
        self._segment = CurrentSegment(
            disk,
            directory,
            self._files,
            self._checkpoint,
            segment_bytes=segment_bytes,
            next_batch=recovered.next_batch,
        )
        self._writer = Writer(
            thread,
            directory,
            self._segment,
            self._files,
            self._checkpoint,
            sync_s=0.0 if sync == "always" else float(sync),
            complete=self._complete,
            commit_of=lambda uid: self.commit_of(uid),
        )

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
        expected: Expected = NOTHING,
        on_groups_lost: Callable[[], None] = ignore,
    ) -> Wal:
        """Recover the log in `directory` (made if it is not there) and get ready to append.

        Raises CorruptionError, naming segment and offset, if something that was durable is damaged
        or missing; then nothing on disk is changed. A torn tail is dropped: see `dropped_bytes`.

        With `tolerate_damage` it raises only if a file may not be read, or can't be for want of
        file handles or memory, which is no damage. Proven entries are kept, `damage` names the
        losses, and every group in `damaged_groups` may have forgotten votes or entries that it
        acknowledged; its hard state says `is_uncertain` from then on. The proven part is written
        anew into one segment; the old files, their bytes unchanged, go to `damaged-<n>/`.
        `on_groups_lost` is called before that if groups may be missing without a trace: the caller
        must remember that, for the log that goes on shows no damage any more (I12).
        """
        try:
            disk.mkdir(directory)
            recovered = recover(disk, directory, tolerate_damage=tolerate_damage, expected=expected)
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
            wal._files.remove_leftovers(recovered.spares)
            wal._segment.adopt(recovered.wal_id, recovered.manifest)
            if recovered.may_have_lost_groups:
                on_groups_lost()
            if recovered.damage:
                carry_over(recovered, wal._segments, wal._segment, wal._checkpoint)
            else:
                wal._go_on(recovered)
            if recovered.leftovers or recovered.damage:
                set_aside(disk, directory, recovered)
        except OSError as err:
            raise disk_error("opening the log", directory, err) from err
        wal._segments.add(wal._segment.no, fd=wal._segment.fd)
        return wal

    def _go_on(self, recovered: Recovered) -> None:
        """Begin the segment after the last."""
        if recovered.manifest is None:
            # Before any segment has tips, which say that there is a manifest.
            self._segment.write_current(recovered.newest)
        for uid, group in self._groups.items():
            index, term, chain = group.base, group.base_term, group.base_chain
            if group.places:
                last = self._segments.read(uid, group, group.last, group.last + 1, 1)[0]
                index, term, chain = last.index, last.term, last.chain
            self._checkpoint.set_tip(uid, index=index, term=term, chain=chain)
        self._segment.begin_after(recovered.segments[-1] if recovered.segments else None)

    @property
    def write_times(self) -> LatencyHistogram:
        """Durations of the writes of batches, each with its sync unless `sync` is an interval."""
        return self._writer.times

    @property
    def log_id(self) -> str:
        """Random name of this log. A directory that was emptied gets another one."""
        return f"{self._segment.wal_id:016x}"

    @property
    def segment_no(self) -> int:
        """Number of the newest segment; those of a log never go back."""
        return self._segment.no

    @property
    def groups(self) -> dict[Uid, LogState]:
        """Durable state of each group's log."""
        return {uid: group.state() for uid, group in self._groups.items()}

    def group(self, uid: Uid) -> LogState | None:
        """Return the durable state of one group's log, or None."""
        found = self._groups.get(uid)
        return found.state() if found is not None else None

    def hint(self, uid: Uid) -> Index:
        """Return the index up to which a group's entries, as in the log, are known to be committed;
        0 if none is."""
        found = self._groups.get(uid)
        return found.hint if found is not None else 0

    @property
    def has_file(self) -> bool:
        """True while the newest segment, which acks rely upon, has a name.

        A file that was removed takes writes and syncs like any other, and no start finds it.
        """
        return self._segments.is_newest_linked()

    @property
    def sync_count(self) -> int:
        """Count of syncs since the log was opened."""
        return self._segment.sync_count

    # --- on the event loop ------------------------------------------------------------------

    def append(self, writes: list[WalWrite], done: Callable[[], None]) -> None:
        """Log `writes` and call `done` on the loop when they are safe, in the order of calls."""
        # As of now: entries that are voided later may be in no batch yet.
        commit_of = self.commit_of
        self._append(writes, done, [commit_of(write[0]) for write in writes])

    def _append(self, writes: list[WalWrite], done: Callable[[], None], hints: Hints) -> None:
        if self._writer.failure is not None:
            self._tell(self._writer.failure)
            return
        lazy = _NO_LAZY
        if self._lazy:
            lazy, self._lazy = self._lazy, []
        self._writer.add((writes, done, lazy, hints))

    def refuse(self, err: DiskError) -> None:
        """Fail the log from outside: write and report nothing from here on, appends in flight
        included. For a caller with something that had to be durable first and is not."""
        self._writer.failure = self._writer.failure or err
        self._is_refused = True

    def hold(self) -> None:
        """Begin no write until `resume`: logged entries do not get to the blocks as fast, and are
        kept in memory until then. Callers of `append` wait longer."""
        self._writer.hold()

    def resume(self) -> None:
        """Continue after `hold`."""
        self._writer.resume()

    def flush(self) -> None:
        """Write now, not in the loop's next round: nothing more is appended in this one."""
        self._thread.do_now()

    def read(self, group: Uid, lo: Index, hi: Index, max_bytes: int) -> list[Entry]:
        """Return the entries lo..hi-1 that `append` reported done, at most about `max_bytes`.

        At least one, if there is one. Raises CorruptionError.
        """
        return self._segments.read(group, self._groups[group], lo, hi, max_bytes)

    def release(self, group: Uid, index: Index, term: Term, chain: int) -> None:
        """Release the entries up to `index`, which a durable snapshot covers.

        Logged with the next append. Until then a restart shows a longer log, which does no harm.
        """
        log = self._groups.get(group)
        if log is None:
            log = self._groups[group] = GroupLog()
        if index <= log.base:
            return
        self._segments.pin(log, -1)
        log.release(index, term, chain)
        self._segments.pin(log, 1)
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
        """Void a group's log, which continues, empty, after `index`.

        For an installed snapshot that the log does not lead to; where it does, `release` keeps what
        comes after. In order with `append`, also with those in flight, and written at once, so that
        a later `append` that is done implies it. `hard_state` is in the same batch: a member that
        gives up acknowledged entries says there that it is uncertain (I12).
        """
        if self._writer.failure is not None:
            self._tell(self._writer.failure)
            return
        log = self._groups.get(group)
        if log is None:
            log = self._groups[group] = GroupLog()
        self._segments.pin(log, -1)
        log.reset(index, term, chain)
        self._voids[group] = self._voids.get(group, 0) + 1
        self._lazy.append((wf.RESET, group, index, term, chain))
        self._lazy_unlogged += 1
        writes: list[WalWrite] = [] if hard_state is None else [(group, [], hard_state, 0)]
        self.append(writes, done or ignore)
        self._free_segments()

    def destroy(self, group: Uid) -> None:
        """Forget `group`.

        Logged with the next append, before its writes: a stream that moved away may come back, and
        then its group begins anew.
        """
        log = self._groups.pop(group, None)
        if log is not None:
            self._segments.pin(log, -1)
        self._voids[group] = self._voids.get(group, 0) + 1
        self._lazy.append((wf.DESTROY, group, 0, 0, 0))
        self._lazy_unlogged += 1
        self._free_segments()

    def pinning_groups(self) -> list[Uid]:
        """Return groups whose entries alone pin the oldest segment, when many are in use, or pin a
        retired one (`renew`). A snapshot of each of them frees the segment."""
        return self._segments.pinning_groups(self._groups)

    def rewrite_entries(self, group: Uid) -> None:
        """Rewrite the entries of a group that takes no snapshots any more, in one batch, if far too
        many segments are in use: then the old ones can be freed. Raises CorruptionError or
        DiskError if the entries can't be read."""
        if self._segments.is_overcrowded():
            log = self._groups[group]
            entries = self._segments.read(group, log, log.first, log.last + 1, 1 << 62)
            self._append([(group, entries, None, 0)], ignore, [log.hint])

    @property
    def oldest(self) -> int:
        """Number of the oldest segment in use."""
        return self._segments.oldest

    def check(self) -> Iterator[int]:
        """Verify the segments that are in use and not retired, piece by piece, on any thread.

        Yields how many bytes each piece had. Raises CorruptionError or DiskError; if `oldest` has
        changed by then, the error means nothing.
        """
        return check(
            self._disk,
            self._directory,
            self._segments.kept(),
            wal_id=self._segment.wal_id,
            least=self._completed_batch,
        )

    def renew(self) -> None:
        """Retire all segments in use, for one is damaged, and continue in a new one.

        The new segment repeats everything but entries: `pinning_groups` are those with entries in
        the old ones. With their snapshots the old ones are freed, and `is_renewing` ends.
        """
        self._segments.retire_all()
        self._writer.is_segment_wanted = True
        self.append([], ignore)

    @property
    def is_renewing(self) -> bool:
        """True while a retired segment is in use."""
        return self._segments.is_renewing

    def close(self) -> None:
        """Write what waits and a last witness. Called once nothing is appended any more."""
        self._writer.resume()
        if self._thread.is_current():
            self._close()
        else:
            self._thread.submit(self._close, None)

    def _close(self) -> None:
        if self._writer.close():
            self._segments.close(self._segment.fd)
            self._segment.close()
            self._files.close()

    def _tell(self, err: Exception) -> None:
        if not self._is_error_told:
            self._is_error_told = True
            self._on_error(err)

    def _complete(self, result: Batch | BaseException | None) -> None:
        """Index the entries of a batch that is safe, and call each `done` that waits for it."""
        if result is None or self._is_refused:
            return
        if isinstance(result, BaseException):
            if not isinstance(result, DiskError):
                result = DiskError(f"{self._directory}: the log cannot be written: {result!r}")
            self._tell(result)
            return
        if result.batch_no:
            # In the order of the log, or entries would be noted as released that are not.
            assert result.batch_no > self._completed_batch, (result.batch_no, self._completed_batch)
            self._completed_batch = result.batch_no
        groups = self._groups
        base = (result.segment_no << 32) | result.start
        segments = self._segments
        is_new_segment = result.segment_no != segments.newest
        if is_new_segment:
            segments.add(result.segment_no, fd=result.fd)
        voids = self._voids
        for uid, hard_state, truncate_from, first, offsets, lengths, hint in result.placed:
            if voids and uid in voids:
                if first < 0:  # a mark
                    if first == DESTROY_MARK and uid in groups:
                        groups[uid].hard_state = HardState()
                    voids[uid] -= 1
                    if not voids[uid]:
                        del voids[uid]
                elif hard_state is not None and uid in groups:
                    groups[uid].hard_state = hard_state
                continue  # entries that were in flight when the reset was asked for are void
            log = groups.get(uid)
            if log is None:
                log = groups[uid] = GroupLog()
            if hard_state is not None:
                log.hard_state = hard_state
            is_pinned = bool(log.places)
            if truncate_from or (offsets and first != log.last + 1):
                self._segments.pin(log, -1)
                is_pinned = False
                if truncate_from:
                    log.truncate(truncate_from)
            index = first
            for offset, length in zip(offsets, lengths, strict=True):
                if index > log.base:
                    log.add(index, base + offset, length)
                index += 1
            if hint > log.hint:
                log.hint = min(hint, log.last)
            if not is_pinned:
                self._segments.pin(log, 1)
        self._lazy_unlogged -= result.lazy_count
        assert self._lazy_unlogged >= 0, self._lazy_unlogged
        for done in result.dones:
            done()
        if result.lazy_count or segments.oldest != segments.newest:
            self._free_segments()
        if is_new_segment and segments.is_crowded():
            self.on_crowded()

    def _free_segments(self) -> None:
        """Free the oldest segments that no group pins."""
        segments = self._segments
        if not segments.has_free():
            return
        if self._lazy_unlogged:
            # The record that lets the segment go must be durable first (I11).
            if self._lazy:
                self.append([], ignore)
            return
        while segments.has_free():
            no, fd = segments.drop_oldest()
            self._writer.free(no, fd=fd)


def _unknown(uid: Uid) -> Index:
    return 0
