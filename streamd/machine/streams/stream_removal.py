"""What leaves a stream, and why: limits, a rollup, a purge, a delete, or because its time is over.

Which messages these are is mostly found by `retention`, `trimming` and `expiry`; here they leave.
Where age took the last message of a subject, a delete marker may be left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from streamd import errors
from streamd.durations import format_duration
from streamd.machine.base import HAS_HEADERS, HAS_TTL, NO_MARKER, Effects
from streamd.machine.commands import Command
from streamd.machine.streams import retention
from streamd.machine.streams.stream_consumers import StreamConsumers
from streamd.machine.streams.trimming import Purged
from streamd.subjects import is_literal
from streamd.types import Entry, Msg, Seq


class StreamRemoval(StreamConsumers):
    """The part of `StreamMachine` that removes."""

    # --- because of what was stored -------------------------------------------------------------

    def _enforce(self, msgs: Sequence[Msg]) -> None:
        """Remove what the limits no longer allow after `msgs` were stored."""
        limits, index = self.limits, self.index
        if limits.max_per_subject > 0:
            self._enforce_per_subject({msg[0]: None for msg in msgs})
        if limits.is_discard_new:
            return  # what was let in stays, also when the limits are lowered later
        if retention.is_over_limits(index, limits):
            self._remove(retention.over_limits(index, limits))

    def _enforce_per_subject(self, names: Iterable[bytes]) -> None:
        allowed = self.limits.max_per_subject
        rows = self.index.subjects
        over: list[Seq] = []
        for name in names:
            row = rows.get(name)
            if row is not None and row[2] > allowed:
                over += retention.subject_seqs(self.index, name, row[2] - allowed)
        if over:
            over.sort()
            self._remove(over)

    def _roll_up(self, rollup: bytes, subject: bytes, seq: Seq) -> None:
        """Remove what `seq` replaces: all before it, of its subject or of the stream. A subject
        with wildcards is text for whoever reads, but here stands for all that it matches."""
        index = self.index
        if rollup == b"all":
            if seq == index.last_seq and index.is_live(seq):
                index.remove_all_but_newest()
            else:  # more of its batch came after it
                self._remove(list(index.live_seqs(index.first_seq, seq - 1)))
            self._is_purged = True
        elif index.count_of(subject) > 1 or not is_literal(subject):
            # All but the last, if it is that: the search ends when it has as many.
            is_last = index.last_of(subject) == seq
            self._remove(Purged(index, subject, 0 if is_last else seq, int(is_last)).step())

    # --- because somebody asked -----------------------------------------------------------------

    def _apply_purge(self, entry: Entry, command: Command, out: Effects) -> Any:
        _, _, pattern, seq, keep = command
        if self.limits.is_sealed:
            return errors.STREAM_SEALED()
        if self.limits.denies_purge:
            return errors.STREAM_PURGE_FAILED(err="stream purge not permitted")
        index = self.index
        is_of_all = not pattern or pattern == b">"
        if is_of_all and not keep and (not seq or seq > index.last_seq):
            self._is_purged = True
            count = index.remove_all()
            if seq > index.last_seq + 1:
                # A purge below a seq that is not used yet moves the stream on to it.
                record = self._codec.encode_skip(index.last_seq + 1, seq - 1, entry.index)
                index.reserve(len(record))
                self._blob.append(record)
                index.skip(index.last_seq + 1, seq - 1)
            return count
        found = Purged(index, pattern, seq, keep).step()
        self._remove(found)
        # What is purged below a seq is no longer what consumers wait for, even if they hold acks.
        self._is_purged = is_of_all
        return len(found)

    def _apply_remove(self, entry: Entry, command: Command, out: Effects) -> Any:
        ranges: list[Seq] = command[2]
        seqs: list[Seq] = []
        for first, last in zip(ranges[::2], ranges[1::2], strict=True):
            seqs += self.index.live_seqs(first, last)
        self._remove(seqs)
        return len(seqs)

    def _apply_delete_msg(self, entry: Entry, command: Command, out: Effects) -> Any:
        seq: Seq = command[2]
        if self.limits.is_sealed:
            return errors.STREAM_SEALED()
        if self.limits.denies_delete:
            return errors.STREAM_MSG_DELETE_FAILED(err="message delete not permitted")
        if self.config.get("storage", "file") == "file":  # clients see which it is
            if seq > self.index.last_seq:
                return errors.STREAM_MSG_DELETE_FAILED(err="stream store EOF")
            if seq < self.index.first_seq:
                return errors.STREAM_MSG_DELETE_FAILED(err="no message found")
        if not self.index.is_live(seq):
            return errors.SEQUENCE_NOT_FOUND(seq=seq)
        self._remove([seq])
        return True

    # --- because its time is over ---------------------------------------------------------------

    def _apply_expire(self, entry: Entry, command: Command, out: Effects) -> Any:
        _, ts, up_to, seqs = command
        index = self.index
        due: list[Seq] = []
        if up_to:
            due = self.expiry.aged(up_to, self.limits)
        named = [seq for seq in seqs if index.is_live(seq)]
        if named:
            due = sorted({*due, *named})
        if not due:
            return 0
        gone, subjects, flags = self._remove(due)
        if self.limits.marker_ttl_ns > 0:
            self._leave_markers(max(ts, index.last_ts + 1), subjects, flags, out)
        return len(gone)

    def _leave_markers(
        self, ts: int, subjects: list[bytes], flags: list[int], out: Effects
    ) -> None:
        """Store a delete marker for each subject that age has emptied."""
        ttl_ns = self.limits.marker_ttl_ns
        # The last message to leave decides whether there is a marker.
        last = dict(zip(subjects, flags, strict=True))
        emptied = [
            name
            for name, flag in last.items()
            if name not in self.index.subjects and not flag & NO_MARKER
        ]
        if not emptied or not self._has_seqs_for(len(emptied)):
            return
        if self.index.is_block_full():
            self._roll(out)
        ttl = format_duration(ttl_ns).encode()
        headers = (
            b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: "
            + ttl
            + b"\r\nNats-Rollup: sub\r\n\r\n"
        )
        msgs: list[Msg] = [(name, headers, b"") for name in emptied]
        first = self._write(ts, msgs, [HAS_HEADERS | HAS_TTL | NO_MARKER] * len(msgs))
        for at in range(len(msgs)):
            self.expiry.watch(first + at, ts + at + ttl_ns)

    def next_expiry_ns(self) -> int:
        """When the next message must leave by age or TTL; 0: nothing will."""
        return self.expiry.next_due_ns(self.limits)

    def plan_expiry(self, now_ns: int) -> Command | None:
        """The EXPIRE to propose at `now_ns`, or None. Bounded: ask again after it is applied."""
        return self.expiry.plan(now_ns, self.limits)
