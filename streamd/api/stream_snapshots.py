"""`STREAM.SNAPSHOT.<stream>`: a stream leaves as an archive, in chunks that the client acks.

    request --> barrier --> StreamCut --> response --> chunks ... --> end
                                            ^   window  |
                                            `--- acks --'

The archive is that of one applied entry, however much is published meanwhile. In memory are what
was read last and what the client has not acked, which its window bounds.
"""

from __future__ import annotations

import secrets
from typing import Final

from streamd import errors, limits, subjects
from streamd.api import consumer_configs, decoding, infos, shapes, stream_configs
from streamd.api.advisories import ApiClient
from streamd.api.decoding import decode
from streamd.api.request import ApiContext, Request
from streamd.archives import message_archive
from streamd.archives.archive_records import ArchivedConsumer
from streamd.archives.s2_frames import S2Writer
from streamd.errors import StreamdError
from streamd.node.stream_groups.stream_cut import ConsumerCut, CutRow, StreamCut
from streamd.types import Document

_NO_INTEREST: Final = b"NATS/1.0 408 No Interest\r\n\r\n"
_NO_FLOW: Final = b"NATS/1.0 408 No Flow Response\r\n\r\n"
_END: Final = b"NATS/1.0 204\r\n\r\n"


def snapshot(request: Request) -> None:
    """Serve the request: answer with config and state, then send the archive."""
    if decoding.is_empty_request(request.payload):
        raise errors.BAD_REQUEST()
    wanted = decode(request.payload, shapes.STREAM_SNAPSHOT)
    handle = request.stream()
    deliver = wanted.get("deliver_subject", "").encode()
    if not subjects.is_valid(deliver) or not subjects.is_literal(deliver):
        raise errors.SNAPSHOT_DELIVER_SUBJECT_INVALID()
    request.when_current(handle, _begin, request, wanted, deliver)


def _begin(request: Request, wanted: Document, deliver: bytes) -> None:
    handle = request.stream()
    server = request.context.server
    if server.snapshot_count >= limits.SNAPSHOTS_MAX:
        text = f"{limits.SNAPSHOTS_MAX} snapshots are being taken already"
        raise errors.STREAM_SNAPSHOT(err=text)
    if wanted.get("jsck") and handle.unreadable:
        seqs = ", ".join(map(str, handle.unreadable[:10]))
        raise errors.STREAM_SNAPSHOT(err=f"messages can not be read: {seqs}")
    cut = handle.cut(wanted.get("start_seq", 0))
    sender = SnapshotSender(request.context, cut, wanted, deliver, request.client)
    state = infos.stream_state(cut.state, cut.config)
    request.answer({"config": stream_configs.shown(cut.config), "state": state})
    sender.start(state)


class SnapshotSender:
    """Sends one archive. Ends by itself: with the last message, without interest or acks, or when
    the stream can't be read.

    Interest is a subscription to just the deliver subject. Without one the archive is sent after
    a while all the same; once there was one, its end is that of the archive.
    """

    def __init__(
        self,
        context: ApiContext,
        cut: StreamCut,
        wanted: Document,
        deliver: bytes,
        client: ApiClient | None,
    ) -> None:
        self._context = context
        self._later = context.server.later
        self._cut = cut
        self._deliver = deliver
        self._client = client
        chunk = wanted.get("chunk_size") or limits.SNAPSHOT_CHUNK_BYTES
        self._chunk = min(max(chunk, limits.SNAPSHOT_CHUNK_MIN), limits.SNAPSHOT_CHUNK_MAX)
        window = wanted.get("window_size") or limits.SNAPSHOT_WINDOW_BYTES
        self._window = min(max(window, self._chunk), limits.SNAPSHOT_WINDOW_MAX)
        self._consumers = [] if wanted.get("no_consumers") else _archived(cut.consumers)
        self._is_increment = bool(wanted.get("start_seq"))
        self._frames = S2Writer()
        self._out = bytearray()
        self._sent = 0  # full chunks
        self._in_flight = 0  # of these, not acked
        self._acked_ms = 0
        self._is_wanted = False  # there is interest
        self._is_begun = False
        self._is_reading = False
        self._is_read = False  # all is in `_out` that is not sent
        self._is_over = False
        token = secrets.token_hex(11)
        self._acks = f"$JS.SNAPSHOT.ACK.{cut.config['name']}.{token}.".encode()
        self._listening: object = None
        self._watching: object = None
        self._start_ns = 0

    def start(self, state: Document) -> None:
        """Begin to send, at the latest when interest should have come here from another node."""
        context = self._context
        context.server.snapshot_count += 1
        self._listening = context.wires.listen(self._acks + b"*.*", self._on_ack)
        now_ns = self._start_ns = context.clock.now_ns()
        context.advisories.snapshot_created(self._cut.config["name"], state, self._client)
        first = max(1, self._cut.first_seq)
        head = state | {"first_seq": first, "consumer_count": len(self._consumers)}
        pieces = [message_archive.begin(head, now_ns)]
        pieces += [message_archive.encode_consumer(each, now_ns) for each in self._consumers]
        self._consumers = []
        if self._is_increment:
            pieces.append(message_archive.encode_removals(self._cut.removals(), now_ns))
        self._out += self._frames.write(b"".join(pieces))
        self._watching = context.wires.watch(self._deliver, b"", self._on_interest)
        if not self._is_begun:
            self._later(limits.SNAPSHOT_INTEREST_MS / 1000, self._begin)

    def _on_interest(self, is_wanted: bool) -> None:
        if self._is_wanted and not is_wanted:
            self._later(0, self._on_no_interest)  # it may end with the very chunk being sent
        self._is_wanted = is_wanted
        if is_wanted:
            self._begin()

    def _on_no_interest(self) -> None:
        if not self._is_over:
            self._end(_NO_INTEREST, "no interest")

    def _begin(self) -> None:
        if self._is_begun or self._is_over:
            return
        self._is_begun = True
        self._acked_ms = self._context.clock.monotonic_ms()
        self._later(limits.SNAPSHOT_FLOW_MS / 1000, self._check_flow)
        self._later(0, self._pump)  # behind the subscription that it may have begun with

    # --- chunks ---------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send what the window lets through, and read on if there is room for more."""
        if self._is_over:
            return
        if self._cut_is_gone():
            return
        out, chunk = self._out, self._chunk
        wires = self._context.wires
        while len(out) >= chunk and (self._in_flight + 1) * chunk <= self._window:
            self._sent += 1
            self._in_flight += 1
            reply = self._acks + b"%d.%d" % (chunk, self._sent)
            wires.publish(self._deliver, reply, b"", bytes(out[:chunk]))
            del out[:chunk]
        if len(out) >= chunk:
            return
        if self._is_read:
            if out:
                wires.publish(self._deliver, b"", b"", bytes(out))
            self._end(_END if self._sent else b"", "")
        elif not self._is_reading:
            self._is_reading = True
            self._cut.read(limits.SNAPSHOT_READ_BYTES, self._on_read)

    def _cut_is_gone(self) -> bool:
        """End if the stream was deleted, or the node stops: its blocks are not held any more."""
        node = self._context.node
        if not node.is_stopping:
            return False
        self._end(b"NATS/1.0 503 Server Shutdown\r\n\r\n", "server shutdown")
        return True

    def _on_read(self, rows: list[CutRow] | StreamdError | None) -> None:
        self._is_reading = False
        if self._is_over:
            return
        if isinstance(rows, StreamdError):
            text = str(rows).encode("utf-8", "replace")
            status = b"NATS/1.0 500 Snapshot Failed: %b\r\n\r\n" % text.replace(b"\r\n", b" ")
            self._end(status, str(rows))
            return
        if rows is None:
            self._is_read = True
            self._out += self._frames.write(message_archive.end()) + self._frames.finish()
        elif rows:
            self._out += self._frames.write(message_archive.encode_messages(rows))
        self._later(0, self._pump)  # not at once: others have their share of the loop

    # --- flow -----------------------------------------------------------------------------------

    def _on_ack(
        self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, client: object
    ) -> None:
        if self._is_over or not self._in_flight:
            return
        self._in_flight -= 1
        self._acked_ms = self._context.clock.monotonic_ms()
        self._pump()

    def _check_flow(self) -> None:
        """End if the client has acked nothing for long of what waits for it."""
        if self._is_over:
            return
        now_ms = self._context.clock.monotonic_ms()
        is_blocked = self._in_flight and len(self._out) >= self._chunk
        if not is_blocked:
            self._acked_ms = max(self._acked_ms, now_ms - limits.SNAPSHOT_FLOW_MS // 2)
        elif now_ms - self._acked_ms >= limits.SNAPSHOT_FLOW_MS:
            self._end(_NO_FLOW, "no flow response")
            return
        left_ms = self._acked_ms + limits.SNAPSHOT_FLOW_MS - now_ms
        self._later(max(left_ms, 100) / 1000, self._check_flow)

    def _end(self, status: bytes, error: str) -> None:
        self._is_over = True
        context = self._context
        context.server.snapshot_count -= 1
        self._cut.close()
        self._out.clear()
        context.wires.unlisten(self._listening)
        context.wires.unwatch(self._watching)
        context.wires.publish(self._deliver, b"", status, b"")
        context.advisories.snapshot_completed(
            self._cut.config["name"], self._start_ns, error, self._client
        )


def _archived(consumers: list[ConsumerCut]) -> list[ArchivedConsumer]:
    """Return the consumers as an archive has them; those of sources and mirrors make theirs."""
    return [
        ArchivedConsumer(
            each.name,
            dict(consumer_configs.shown(each.config)),
            each.delivered,
            each.floor,
            [(seq, cseq, ts) for seq, (cseq, ts) in each.pending.items()],
            sorted(each.redelivered.items()),
        )
        for each in consumers
        if not each.config.get("direct")
    ]
