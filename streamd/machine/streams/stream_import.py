"""`StreamImport`: takes over the messages and consumers of an archive, with their seqs and times.

Only a stream that is being restored does (`restoring` in its config): nobody publishes into it or
reads from it yet, no limit holds, and it has no consumers before its messages are complete. The
CONFIGURE that ends the restore has the limits take out what is too much.
"""

from __future__ import annotations

from typing import Final

from streamd import errors
from streamd.errors import JsError
from streamd.machine import message_headers
from streamd.machine.base import HAS_TTL, Effects
from streamd.machine.commands import Command
from streamd.machine.consumers.consumer import Consumer
from streamd.machine.streams import publish
from streamd.machine.streams.entry_changes import EntryChanges
from streamd.machine.streams.origins import named_in_header
from streamd.machine.streams.schedules import UNKNOWN_DUE
from streamd.machine.streams.stream_consumers import StreamConsumers
from streamd.machine.streams.stream_content import SEQ_MAX, StreamContent
from streamd.types import Entry, Index, Msg, Seq

SUBJECT_BYTES_MAX: Final = 0xFFFF  # what a record has room for

Row = tuple[Seq, int, bytes, bytes, bytes]
"""(seq, time, subject, headers, payload)"""

_NOT_RESTORING: Final = "the stream is not being restored"


class StreamImport:
    """Fills a stream from an archive. Has no state of its own."""

    def __init__(
        self, content: StreamContent, changes: EntryChanges, consumers: StreamConsumers
    ) -> None:
        self._content = content
        self._index = content.index
        self._changes = changes
        self._consumers = consumers

    def apply_import(self, entry: Entry, command: Command, out: Effects) -> bool | JsError:
        _, now_ns, rows, last_seq = command
        if not self._content.limits.is_restoring:
            return errors.STREAM_RESTORE(err=_NOT_RESTORING)
        refused = self._check(rows, last_seq)
        if refused:
            return errors.STREAM_RESTORE(err=refused)
        self._content.dedupe.forget_before(now_ns)
        self._changes.make_room()  # once: all records of an entry are in one block
        at = 0
        while at < len(rows):
            first = rows[at][0]
            end = at + 1
            while end < len(rows) and rows[end][0] == first + end - at:
                end += 1
            self._skip_to(first - 1, entry.index)
            self._store(rows[at:end], now_ns)
            at = end
        self._skip_to(last_seq, entry.index)
        return True

    def _check(self, rows: list[Row], last_seq: Seq) -> str:
        """Return why these rows can't be the next ones; "": they can."""
        before = self._index.last_seq
        for seq, _, subject, headers, payload in rows:
            if seq <= before:
                return f"message sequence {seq} out of order"
            if not subject or len(subject) > SUBJECT_BYTES_MAX:
                return f"message sequence {seq} has a subject of {len(subject)} bytes"
            if len(subject) + len(headers) + len(payload) > publish.RECORD_BYTES_MAX:
                return f"message sequence {seq} exceeds maximum message size"
            before = seq
        return "no sequence is left" if max(before, last_seq) > SEQ_MAX else ""

    def _skip_to(self, last: Seq, index: Index) -> None:
        first = self._index.last_seq + 1
        if last >= first:
            self._changes.skip(first, last, index)

    def _store(self, rows: list[Row], now_ns: int) -> None:
        """Store messages with consecutive seqs."""
        content = self._content
        ts = self._index.live.last_ts
        tss: list[int] = []
        msgs: list[Msg] = []
        flags: list[int] = []
        window_ns = content.dedupe.window_ns
        for seq, its_ts, subject, headers, payload in rows:
            ts = max(ts, its_ts)  # a search by time relies on it
            tss.append(ts)
            msgs.append((subject, headers, payload))
            flag = publish.flags_from(headers)
            flags.append(flag)
            msg_id = b""
            if headers and b"Nats-" in headers:
                msg_id = message_headers.get(headers, publish.MSG_ID) or b""
                if msg_id and ts > now_ns - window_ns:
                    content.dedupe.remember(msg_id, seq=seq, ts=ts)
                if publish.SOURCE in headers:
                    self._note_origin(headers)
                if flag & HAS_TTL and content.limits.allows_ttl:
                    ttl_ns = message_headers.parse_ttl(
                        (message_headers.get(headers, publish.TTL) or b"").strip()
                    )
                    if ttl_ns is not None and ttl_ns > 0:
                        content.expiry.watch(seq, ts + ttl_ns)
            content.last_msg_id = msg_id
        first = self._changes.write_timed(tss, msgs, flags, is_told=False)
        if content.config.get("allow_msg_counter"):
            content.counters.observe(first, msgs)
        if content.limits.allows_schedules:
            for seq, (subject, headers, _) in enumerate(msgs, first):
                if publish.is_schedule(headers):
                    content.schedules.note(subject, seq, UNKNOWN_DUE)

    def _note_origin(self, headers: bytes) -> None:
        """Go on in the origin of a source behind the newest message that came from it: an archive
        does not say how far it was taken."""
        found = named_in_header(message_headers.get(headers, publish.SOURCE) or b"")
        if found is not None:
            self._content.origins.advance(found[0], *found[1])

    def apply_import_consumer(self, entry: Entry, command: Command, out: Effects) -> bool | JsError:
        _, _, name, config, created_ns, state = command
        consumers = self._consumers
        if not self._content.limits.is_restoring:
            return errors.STREAM_RESTORE(err=_NOT_RESTORING)
        if name in consumers.by_name:
            return errors.STREAM_RESTORE(err=f'consumer "{name}" is there twice')
        consumer = Consumer.create(
            uid=entry.index, name=name, config=config, created_ns=created_ns, stream=consumers
        )
        consumer.take_over(state)
        consumers.enter(consumer)
        out.events.append(("consumer_created", {"stream": consumers.name, "consumer": name}))
        return True
