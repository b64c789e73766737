"""The write-ahead log of a node: one for all groups, with group commit.

What is appended waits for the `Writer`, on this loop or on the log thread, and becomes one write
and one fdatasync with all that waits; `Wal` then notes where it is. `store/README.md` has the
format and the argument why a crash at any byte loses nothing that was reported done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from streamd.errors import DiskError
from streamd.store.disk import Disk, Thread, disk_error
from streamd.store.wal import wal_format as wf
from streamd.store.wal.checkpoint import Checkpoint
from streamd.store.wal.group_positions import GroupLog
from streamd.store.wal.pinned_segments import SegmentsInUse
from streamd.store.wal.segment import CurrentSegment
from streamd.store.wal.segment_pool import Spares
from streamd.store.wal.wal_check import check
from streamd.store.wal.wal_recovery import NOTHING, Expected, Recovered, recover
from streamd.store.wal.wal_repair import carry_over, set_aside
from streamd.store.wal.wal_writer import Writer
from streamd.store.wal.write_batch import DESTROY_MARK, Batch, Hints, Lazy, WalWrite
from streamd.types import Entry, HardState, Index, LogState, Term, Uid

_NO_LAZY: list[Lazy] = []  # never appended to


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
        self._on_error = on_error
        self._is_error_told = False
        self._is_refused = False
        self._groups = recovered.groups
        self.dropped_bytes = recovered.dropped_bytes
        self.dropped_at = recovered.dropped_at
        self.damage = recovered.damage  # what was found damaged or missing, if that is tolerated
        self.damaged_groups = recovered.damaged_groups  # may have lost votes or entries: why
        self.may_have_lost_groups = recovered.may_have_lost_groups  # that nobody knows of now
        self.on_crowded: Callable[[], None] = _nothing  # one segment more: look at `stragglers`
        # Up to where a group with peers is committed; 0: not known. For any thread.
        self.commit_of: Callable[[Uid], Index] = _unknown
        self._in_use = SegmentsInUse(disk, recovered.segments, recovered.groups.values())
        self._lazy: list[Lazy] = []
        self._lazy_unlogged = 0
        # How many resets and ends of a group are in flight: its entries before them are void.
        self._voids: dict[Uid, int] = {}
        self._completed_batch = recovered.next_batch - 1  # the last of which the loop has heard
        # Once the log is open the loop calls the writer alone; the others are used where it writes.
        self._checkpoint = Checkpoint(recovered.groups)
        self._spares = Spares(disk, directory, helper or thread, segment_bytes=segment_bytes)
        self._segment = CurrentSegment(
            disk,
            directory,
            self._spares,
            self._checkpoint,
            segment_bytes=segment_bytes,
            next_batch=recovered.next_batch,
        )
        self._writer = Writer(
            thread,
            directory,
            self._segment,
            self._spares,
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
        on_groups_lost: Callable[[], None] = lambda: None,
    ) -> Wal:
        """Recover the log in `directory` (made if it is not there) and get ready to append.

        Raises CorruptionError, naming segment and offset, if something that was durable is damaged
        or missing; then nothing on disk is changed. A torn tail is dropped: see `dropped_bytes`.

        With `tolerate_damage` it does only if a file may not be read, or can't be for want of files
        or memory, which is no damage. What is proven is kept, `damage` says what is not,
        and every group in `damaged_groups` may have forgotten votes or entries that it
        acknowledged; its hard state says `is_uncertain` from then on. What is proven is written
        anew into one segment; the old files, their bytes unchanged, go to `damaged-<n>/`.
        `on_groups_lost` is called before that if groups may be missing without a trace: who is
        told must remember it, for the log that goes on shows no damage any more (I12).
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
            wal._spares.adopt(recovered.spares)
            wal._segment.adopt(recovered)
            if recovered.may_have_lost_groups:
                on_groups_lost()
            if recovered.damage:
                carry_over(recovered, wal._in_use, wal._segment, wal._checkpoint)
            else:
                wal._go_on(recovered)
            if recovered.leftovers or recovered.damage:
                set_aside(disk, directory, recovered)
        except OSError as err:
            raise disk_error("opening the log", directory, err) from err
        wal._in_use.add(wal._segment.no, fd=wal._segment.fd)
        return wal

    def _go_on(self, recovered: Recovered) -> None:
        """Begin the segment after the last."""
        if recovered.manifest is None:
            # Before any segment says that there is one.
            self._segment.write_manifest(recovered.newest)
        for uid, group in self._groups.items():
            index, term, chain = group.base, group.base_term, group.base_chain
            if group.places:
                last = self._in_use.read(uid, group, group.last, group.last + 1, 1)[0]
                index, term, chain = last.index, last.term, last.chain
            self._checkpoint.set_tip(uid, index=index, term=term, chain=chain)
        self._segment.begin_after(recovered.segments[-1] if recovered.segments else None)

    @property
    def log_id(self) -> str:
        """The random name of this log. A directory that was emptied gets another one."""
        return f"{self._segment.wal_id:016x}"

    @property
    def segment_no(self) -> int:
        """The number of the newest segment; those of a log never go back."""
        return self._segment.no

    @property
    def groups(self) -> dict[Uid, LogState]:
        """What the log durably knows of each group."""
        return {uid: group.state() for uid, group in self._groups.items()}

    def group(self, uid: Uid) -> LogState | None:
        """What the log durably knows of one group."""
        found = self._groups.get(uid)
        return found.state() if found is not None else None

    def hint(self, uid: Uid) -> Index:
        """Up to where the entries of a group, as they are in the log, are known to be committed;
        0: that is not known of any."""
        found = self._groups.get(uid)
        return found.hint if found is not None else 0

    @property
    def has_file(self) -> bool:
        """True while the newest segment, which acks rely upon, has a name: a file that was removed
        takes writes and syncs like any other, and no start finds it."""
        return self._in_use.is_newest_linked()

    @property
    def sync_count(self) -> int:
        """How often the log was synced since it was opened."""
        return self._segment.sync_count

    # --- on the event loop ------------------------------------------------------------------

    def append(self, writes: list[WalWrite], done: Callable[[], None]) -> None:
        """Log `writes` and call `done` on the loop when they are safe. In the order of calls."""
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
        """Write nothing from here on, and report nothing done, also not what is on its way:
        something else that has to be durable first is not."""
        self._writer.failure = self._writer.failure or err
        self._is_refused = True

    def hold(self) -> None:
        """Begin no write until `resume`: what was logged does not get to the blocks as fast, and
        is kept in memory until then. Who waits for `append` waits longer."""
        self._writer.hold()

    def resume(self) -> None:
        """Go on after `hold`."""
        self._writer.resume()

    def flush(self) -> None:
        """Write now what `append` left for the loop's next round, if it did: nothing more comes."""
        self._thread.do_now()

    def read(self, group: Uid, lo: Index, hi: Index, max_bytes: int) -> list[Entry]:
        """Return the entries lo..hi-1 that `append` reported done, at most about `max_bytes`.

        At least one, if there is one. Raises CorruptionError.
        """
        return self._in_use.read(group, self._groups[group], lo, hi, max_bytes)

    def release(self, group: Uid, index: Index, term: Term, chain: int) -> None:
        """A durable snapshot covers the entries up to `index`: they are not needed any more.

        Logged with the next append. Until then a restart shows a longer log, which does no harm.
        """
        log = self._groups.get(group)
        if log is None:
            log = self._groups[group] = GroupLog()
        if index <= log.base:
            return
        self._in_use.pin(log, -1)
        log.release(index, term, chain)
        self._in_use.pin(log, 1)
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
        if self._writer.failure is not None:
            self._tell(self._writer.failure)
            return
        log = self._groups.get(group)
        if log is None:
            log = self._groups[group] = GroupLog()
        self._in_use.pin(log, -1)
        log.reset(index, term, chain)
        self._voids[group] = self._voids.get(group, 0) + 1
        self._lazy.append((wf.RESET, group, index, term, chain))
        self._lazy_unlogged += 1
        writes: list[WalWrite] = [] if hard_state is None else [(group, [], hard_state, 0)]
        self.append(writes, done or _nothing)
        self._free_segments()

    def destroy(self, group: Uid) -> None:
        """Forget `group`. Logged with the next append, before what that says: a stream that moved
        away may come back, and then its group begins anew."""
        log = self._groups.pop(group, None)
        if log is not None:
            self._in_use.pin(log, -1)
        self._voids[group] = self._voids.get(group, 0) + 1
        self._lazy.append((wf.DESTROY, group, 0, 0, 0))
        self._lazy_unlogged += 1
        self._free_segments()

    def stragglers(self) -> list[Uid]:
        """Groups whose entries alone keep the oldest segment, when many segments are in use, or
        keep one that is given up (`renew`).

        A snapshot of each of them lets the segment go.
        """
        return self._in_use.stragglers(self._groups)

    def carry(self, group: Uid) -> None:
        """Of a group that takes no snapshots any more: if there are far too many segments, write
        its entries again, in one batch, and let the old ones go. Raises CorruptionError or
        DiskError if they can't be read."""
        if self._in_use.is_overcrowded():
            log = self._groups[group]
            entries = self._in_use.read(group, log, log.first, log.last + 1, 1 << 62)
            self._append([(group, entries, None, 0)], _nothing, [log.hint])

    @property
    def oldest(self) -> int:
        """Number of the oldest segment in use."""
        return self._in_use.oldest

    def check(self) -> Iterator[int]:
        """Read again, piece by piece and on any thread, what is in use and not given up. Yields
        how many bytes each piece had.

        Raises CorruptionError or DiskError; if `oldest` is another by then, that means nothing.
        """
        return check(
            self._disk,
            self._directory,
            self._in_use.kept(),
            wal_id=self._segment.wal_id,
            least=self._completed_batch,
        )

    def renew(self) -> None:
        """Give up all segments in use, for one is damaged, and go on in a new one. It says what
        is not in a snapshot but of no group's entries: `stragglers` are those that have some in
        the old ones. With their snapshots the old ones go, and `is_renewing` ends."""
        self._in_use.give_up()
        self._writer.is_segment_wanted = True
        self.append([], _nothing)

    @property
    def is_renewing(self) -> bool:
        """True while a segment that was given up is needed."""
        return self._in_use.is_renewing

    def close(self) -> None:
        """Write what waits and a last witness. Call once nothing is appended any more."""
        self._writer.resume()
        if self._thread.is_current():
            self._close()
        else:
            self._thread.submit(self._close, None)

    def _close(self) -> None:
        if self._writer.close():
            self._in_use.close(self._segment.fd)
            self._segment.close()
            self._spares.close()

    def _tell(self, err: Exception) -> None:
        if not self._is_error_told:
            self._is_error_told = True
            self._on_error(err)

    def _complete(self, result: Batch | BaseException | None) -> None:
        """A write is safe: note where its entries are and tell who waits."""
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
        in_use = self._in_use
        is_new_segment = result.segment_no != in_use.newest
        if is_new_segment:
            in_use.add(result.segment_no, fd=result.fd)
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
                self._in_use.pin(log, -1)
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
                self._in_use.pin(log, 1)
        self._lazy_unlogged -= result.lazy_count
        assert self._lazy_unlogged >= 0, self._lazy_unlogged
        for done in result.dones:
            done()
        if result.lazy_count or in_use.oldest != in_use.newest:
            self._free_segments()
        if is_new_segment and in_use.is_crowded():
            self.on_crowded()

    def _free_segments(self) -> None:
        """Let go of the oldest segments that nobody needs."""
        in_use = self._in_use
        if not in_use.has_free():
            return
        if self._lazy_unlogged:
            # The record that lets the segment go must be durable first (I11).
            if self._lazy:
                self.append([], _nothing)
            return
        while in_use.has_free():
            no, fd = in_use.drop_oldest()
            self._writer.free(no, fd=fd)


def _unknown(uid: Uid) -> Index:
    return 0


def _nothing() -> None:
    """For appends that only carry what was lazy."""
