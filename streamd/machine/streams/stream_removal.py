"""`StreamRemoval`: removes messages by limits, rollup, purge, delete, age and TTL.

`retention`, `trimming` and `expiry` find most of the messages to remove. Where age removed the
last message of a subject, a delete marker may be stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from streamd import errors
from streamd.durations import format_duration
from streamd.errors import JsError
from streamd.machine.base import HAS_HEADERS, HAS_TTL, NO_MARKER, Effects
from streamd.machine.commands import Command
from streamd.machine.streams import retention
from streamd.machine.streams.counters import Total, read_integer
from streamd.machine.streams.entry_changes import EntryChanges
from streamd.machine.streams.stream_content import StreamContent
from streamd.machine.streams.trimming import Purged
from streamd.subjects import Matcher, is_literal
from streamd.types import Entry, Msg, Seq


class StreamRemoval:
    """Removes messages of a stream. Has no state of its own."""

    def __init__(self, content: StreamContent, changes: EntryChanges) -> None:
        self._content = content
        self._index = content.index
        self._changes = changes

    # --- after messages were stored -------------------------------------------------------------

    def enforce(self, msgs: Sequence[Msg]) -> None:
        """Remove messages that the limits no longer allow after `msgs` were stored."""
        limits, index = self._content.limits, self._index
        if limits.max_per_subject > 0:
            self._enforce_per_subject({msg[0]: None for msg in msgs})
        if limits.is_discard_new:
            return  # what was let in stays, also when the limits are lowered later
        if retention.is_over_limits(index, limits):
            self._changes.remove(retention.over_limits(index, limits))

    def _enforce_per_subject(self, names: Iterable[bytes]) -> None:
        allowed = self._content.limits.max_per_subject
        rows = self._index.subjects.rows
        over: list[Seq] = []
        for name in names:
            row = rows.get(name)
            if row is not None and row[2] > allowed:
                over += retention.subject_seqs(self._index, name, row[2] - allowed)
        if over:
            over.sort()
            self._changes.remove(over)

    def roll_up(self, rollup: bytes, subject: bytes, seq: Seq) -> None:
        """Remove the messages that `seq` replaces: all before it, of its subject or of the stream.
        A subject with wildcards stands for every subject that matches."""
        index = self._index
        if rollup == b"all":
            if seq == index.last_seq and index.live.has(seq):
                index.remove_all_but_newest()
            else:  # more of its batch came after it
                self._changes.remove(list(index.live.seqs(index.first_seq, seq - 1)))
            self._changes.is_purged = True
        elif index.subjects.count_of(subject) > 1 or not is_literal(subject):
            # All but the last, if it is that: the search ends when it has as many.
            is_last = index.lookup.last_of(subject) == seq
            self._changes.remove(Purged(index, subject, 0 if is_last else seq, int(is_last)).step())

    # --- on request -----------------------------------------------------------------------------

    def apply_purge(self, entry: Entry, command: Command, out: Effects) -> int | JsError:
        _, _, pattern, seq, keep = command
        if self._content.limits.is_sealed:
            return errors.STREAM_SEALED()
        if self._content.limits.denies_purge:
            return errors.STREAM_PURGE_FAILED(err="stream purge not permitted")
        index = self._index
        is_of_all = not pattern or pattern == b">"
        if is_of_all and not keep and (not seq or seq > index.last_seq):
            self._changes.is_purged = True
            count = index.remove_all()
            if seq > index.last_seq + 1:
                # A purge below a seq that is not used yet moves the stream on to it.
                self._changes.skip(index.last_seq + 1, seq - 1, entry.index)
            return count
        found = Purged(index, pattern, seq, keep).step()
        self._changes.remove(found)
        # What is purged below a seq is no longer what consumers wait for, even if they hold acks.
        self._changes.is_purged = is_of_all
        return len(found)

    def apply_remove(self, entry: Entry, command: Command, out: Effects) -> int:
        ranges: list[Seq] = command[2]
        seqs: list[Seq] = []
        for first, last in zip(ranges[::2], ranges[1::2], strict=True):
            seqs += self._index.live.seqs(first, last)
        self._changes.remove(seqs)
        return len(seqs)

    def apply_delete_msg(self, entry: Entry, command: Command, out: Effects) -> bool | JsError:
        seq: Seq = command[2]
        if self._content.limits.is_sealed:
            return errors.STREAM_SEALED()
        if self._content.limits.denies_delete:
            return errors.STREAM_MSG_DELETE_FAILED(err="message delete not permitted")
        if self._content.config.get("storage", "file") == "file":  # clients see which it is
            if seq > self._index.last_seq:
                return errors.STREAM_MSG_DELETE_FAILED(err="stream store EOF")
            if seq < self._index.first_seq:
                return errors.STREAM_MSG_DELETE_FAILED(err="no message found")
        if not self._index.live.has(seq):
            return errors.SEQUENCE_NOT_FOUND(seq=seq)
        if self._content.limits.is_counter:
            return self._delete_total(command)
        self._changes.remove([seq])
        return True

    def _delete_total(self, command: Command) -> bool | JsError:
        """Remove a message of a counter. If it is the newest, the counter stands at what the one
        before it has, which the command says, for bodies are not read here."""
        seq: Seq = command[2]
        subject = self._index.locations.subject_at(seq)
        is_newest = self._index.lookup.last_of(subject) == seq
        before = 0
        if is_newest:
            before = self._index.lookup.last_match(Matcher.of_subject(subject), seq)
        told = command[4:] or [0]
        if before != told[0] and is_newest:
            return errors.STREAM_MSG_DELETE_FAILED(err="the counter has changed, try again")
        self._changes.remove([seq])
        if before:
            total = Total(before, read_integer(told[1]), told[2])
            self._content.counters.note(subject, total)
        return True

    # --- age and TTL ------------------------------------------------------------------------------

    def apply_expire(self, entry: Entry, command: Command, out: Effects) -> int:
        _, ts, up_to, seqs = command
        index = self._index
        due: list[Seq] = []
        if up_to:
            due = self._content.expiry.aged(up_to, self._content.limits)
        named = [seq for seq in seqs if index.live.has(seq)]
        if named:
            due = sorted({*due, *named})
        if not due:
            return 0
        gone, subjects, flags = self._changes.remove(due)
        if self._content.limits.marker_ttl_ns > 0:
            self._leave_markers(max(ts, index.live.last_ts + 1), subjects, flags)
        return len(gone)

    def _leave_markers(self, ts: int, subjects: list[bytes], flags: list[int]) -> None:
        """Store a delete marker for each subject that age has emptied."""
        ttl_ns = self._content.limits.marker_ttl_ns
        # The last message to leave decides whether there is a marker.
        last = dict(zip(subjects, flags, strict=True))
        emptied = [
            name
            for name, flag in last.items()
            if name not in self._index.subjects.rows and not flag & NO_MARKER
        ]
        if not emptied or not self._content.has_seqs_for(len(emptied)):
            return
        self._changes.make_room()
        ttl = format_duration(ttl_ns).encode()
        headers = (
            b"NATS/1.0\r\nNats-Marker-Reason: MaxAge\r\nNats-TTL: "
            + ttl
            + b"\r\nNats-Rollup: sub\r\n\r\n"
        )
        msgs: list[Msg] = [(name, headers, b"") for name in emptied]
        first = self._changes.write(ts, msgs, [HAS_HEADERS | HAS_TTL | NO_MARKER] * len(msgs))
        for at in range(len(msgs)):
            self._content.expiry.watch(first + at, ts + at + ttl_ns)
        if self._content.limits.is_counter:
            self._content.counters.observe(first, msgs)
