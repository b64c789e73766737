"""`StreamCopying`: stores messages that the leader received from another stream.

What an entry brings is checked against the stream's position in that origin, so that a message is
taken once, whoever led and whatever was sent again. A mirror keeps seqs and times of its origin;
messages of a source get the next seqs. Where there is no room, in the stream or in what its account
has left, or the stream refuses a message, the entry ends: its outcome is the position that was
reached, and the leader brings the rest again.
"""

from __future__ import annotations

from collections.abc import Sequence

from streamd.machine import message_headers
from streamd.machine.base import HAS_TTL, IS_NEVER, Effects
from streamd.machine.commands import Command
from streamd.machine.indexes.message_sizes import MessageSizes
from streamd.machine.streams import counters, publish
from streamd.machine.streams.counters import Total
from streamd.machine.streams.entry_changes import EntryChanges
from streamd.machine.streams.origins import MIRROR
from streamd.machine.streams.stream_content import StreamContent
from streamd.machine.streams.stream_removal import StreamRemoval
from streamd.machine.streams.stream_storing import StreamStoring
from streamd.types import Entry, Index, Msg, Seq


class StreamCopying:
    """Stores messages of other streams. Has no state of its own."""

    def __init__(
        self,
        content: StreamContent,
        changes: EntryChanges,
        storing: StreamStoring,
        removal: StreamRemoval,
    ) -> None:
        self._content = content
        self._index = content.index
        self._changes = changes
        self._storing = storing
        self._removal = removal

    def apply_copy(self, entry: Entry, command: Command, out: Effects) -> Seq:
        """Apply a COPY. Returns the position in the origin."""
        _, ts, name, identity, after, last, seqs, times, msgs, *more = command
        content = self._content
        position = content.position_of(name, identity)
        is_known = name in content.origin_names
        is_whole = len(seqs) == len(msgs) and (name != MIRROR or len(times) == len(msgs))
        if not (is_known and is_whole) or position != after:
            return position
        self._changes.make_room()
        room = _AccountRoom(self._index.sizes, more[0]) if more else None
        if name == MIRROR:
            self._mirror(entry.index, last, seqs, times, msgs, room)
            return self._index.last_seq
        reached = self._source(ts, position, last, seqs, msgs, entry.index, room)
        content.origins.advance(name, identity, reached)
        return reached

    # --- mirrors --------------------------------------------------------------------------------

    def _mirror(
        self,
        entry_index: Index,
        last: Seq,
        seqs: Sequence[Seq],
        times: Sequence[int],
        msgs: Sequence[Msg],
        room: _AccountRoom | None,
    ) -> None:
        at, count = 0, len(msgs)
        while at < count:
            first = seqs[at]
            if first <= self._index.last_seq:  # no leader sends it so
                at += 1
                continue
            end = at + 1
            while end < count and seqs[end] == first + end - at:
                end += 1
            self._skip_to(first, entry_index)
            taken = self._mirror_run(entry_index, times[at:end], msgs[at:end], room)
            if taken < end - at:
                return
            at = end
        self._skip_to(last + 1, entry_index)

    def _skip_to(self, seq: Seq, entry_index: Index) -> None:
        """Use up the seqs below `seq`, which the origin does not have."""
        if self._index.last_seq + 1 < seq:
            self._changes.skip(self._index.last_seq + 1, seq - 1, entry_index)

    def _mirror_run(
        self,
        entry_index: Index,
        times: Sequence[int],
        msgs: Sequence[Msg],
        room: _AccountRoom | None,
    ) -> int:
        """Store messages with consecutive seqs; returns how many."""
        limits = self._content.limits
        is_plain = limits.is_plain and room is None
        size_max = limits.size_max
        run = _TimedRun(self._index.live.last_ts)
        for at, (ts, msg) in enumerate(zip(times, msgs, strict=True)):
            subject, headers, payload = msg
            if is_plain and not headers and len(payload) <= size_max:
                run.add(ts, msg, 0)
                continue
            if limits.checks_room:
                self._store(run)
            is_wanted = not self._storing.is_uninteresting(subject)
            if self._refuses(msg) or (is_wanted and room is not None and not room.takes(msg)):
                self._store(run)
                return at
            if not is_wanted:
                self._store(run)
                self._skip_to(self._index.last_seq + 2, entry_index)
                continue
            flags = publish.flags_from(headers)
            run.add(ts, msg, flags)
            if flags & HAS_TTL and limits.allows_ttl:
                ttl = message_headers.server_headers(headers).get(publish.TTL, b"")
                ttl_ns = message_headers.parse_ttl(ttl) or 0
                seq = self._index.last_seq + len(run.msgs)
                self._content.expiry.watch(seq, run.times[-1] + ttl_ns)
            if publish.ROLLUP in headers:
                self._store(run)
                self._roll_up(msg)
        self._store(run)
        return len(msgs)

    def _store(self, run: _TimedRun) -> None:
        if run.msgs:
            self._storing.store_timed(run.times, run.msgs, run.flags)
            self._content.last_msg_id = b""
        run.restart()

    def _refuses(self, msg: Msg) -> bool:
        content = self._content
        limits = content.limits
        subject, headers, payload = msg
        size = len(headers) + len(payload)
        if limits.is_sealed or 0 <= limits.max_msg_size < size:
            return True
        if size + len(subject) > publish.RECORD_BYTES_MAX:
            return True
        is_rollup = bool(self._rollup_of(headers))
        return limits.checks_room and (
            publish.check_room(content, msg, is_rollup=is_rollup) is not None
        )

    def _rollup_of(self, headers: bytes) -> bytes:
        limits = self._content.limits
        if publish.ROLLUP not in headers or not limits.allows_rollup or limits.denies_purge:
            return b""
        value = (message_headers.get(headers, publish.ROLLUP) or b"").lower()
        return value if value in (b"sub", b"all") else b""

    def _roll_up(self, msg: Msg) -> None:
        rollup = self._rollup_of(msg[1])
        seq = self._index.last_seq
        if rollup and self._index.live.has(seq):
            self._removal.roll_up(rollup, msg[0], seq)

    # --- sources --------------------------------------------------------------------------------

    def _source(
        self,
        ts: int,
        position: Seq,
        last: Seq,
        seqs: Sequence[Seq],
        msgs: Sequence[Msg],
        entry_index: Index,
        room: _AccountRoom | None,
    ) -> Seq:
        """Store messages of a source; returns the last of the origin's seqs that was taken."""
        content = self._content
        limits, dedupe = content.limits, content.dedupe
        if not content.has_seqs_for(len(msgs)):
            return position
        ts = max(ts, self._index.live.last_ts + 1)
        dedupe.forget_before(ts)
        run = self._storing.begin_run(ts)
        for seq, msg in zip(seqs, msgs, strict=True):
            if seq <= position:
                continue
            headers = msg[1]
            admitted = publish.Admitted(msg)
            if limits.is_counter:
                made = self._counted(msg, run.last_seq + 1)
                if made is None:
                    position = seq
                    continue
                msg, admitted.total = made
                admitted.msg, headers = msg, msg[1]
            if headers:
                admitted.flags = publish.flags_from(headers)
                fields = message_headers.server_headers(headers)
                admitted.msg_id = fields.get(publish.MSG_ID, b"")
                if admitted.msg_id and dedupe.window_ns > 0 and dedupe.find(admitted.msg_id):
                    position = seq
                    continue
                if limits.allows_ttl and admitted.flags & HAS_TTL and not admitted.flags & IS_NEVER:
                    admitted.ttl_ns = message_headers.parse_ttl(fields.get(publish.TTL, b"")) or 0
            if limits.checks_room:
                self._storing.store_run(run)
            is_wanted = not self._storing.is_uninteresting(msg[0])
            if self._refuses(msg) or (is_wanted and room is not None and not room.takes(msg)):
                self._storing.store_run(run)
                return position
            if not is_wanted:
                self._storing.store_run(run)
                self._storing.skip_one(run, admitted, entry_index)
            else:
                run.add(admitted)
                if publish.ROLLUP in headers:
                    self._storing.store_run(run)
                    self._roll_up(msg)
            position = seq
        self._storing.store_run(run)
        return max(position, last)

    def _counted(self, msg: Msg, seq: Seq) -> tuple[Msg, Total] | None:
        """Return a counter's message as a counter here stores it; None: it is left out."""
        total = self._content.counters.of(msg[0])
        words = (message_headers.get(msg[1], publish.SOURCE) or b"").decode().split(" ")
        if total is None or len(words) < 5:
            return None
        return counters.counted_from(
            total, msg, seq, stream=words[0], origin_subject=words[4], increment=publish.INCR
        )


class _AccountRoom:
    """Bytes that the account lets the stream store by one entry."""

    __slots__ = ("_left", "_sizes")

    def __init__(self, sizes: MessageSizes, byte_count: int) -> None:
        self._sizes = sizes
        self._left = byte_count

    def takes(self, msg: Msg) -> bool:
        """Use what a message needs; False if that is more than is left."""
        size = self._sizes.of_message(msg)
        if size > self._left:
            return False
        self._left -= size
        return True


class _TimedRun:
    """Messages with consecutive seqs and times that never go back, not yet written."""

    __slots__ = ("_last_ts", "flags", "msgs", "times")

    def __init__(self, last_ts: int) -> None:
        self._last_ts = last_ts
        self.restart()

    def add(self, ts: int, msg: Msg, flags: int) -> None:
        # The clock of the origin may have gone back; searches by time need that ours does not.
        ts = self._last_ts = max(ts, self._last_ts)
        self.times.append(ts)
        self.msgs.append(msg)
        self.flags.append(flags)

    def restart(self) -> None:
        """Begin anew behind what was stored."""
        self.times: list[int] = []
        self.msgs: list[Msg] = []
        self.flags: list[int] = []
