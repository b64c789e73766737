"""What a client connection sends: lines and blobs, acks of its publishes, and errors.

Output is collected in `out` as lines without CRLF and written once per chunk or turn (`flush`). A
client that reads too slowly is cut off, so what waits for it stays bounded. An object of this class
is also where the acks of a client's publishes come back (`node.ports.PublishSink`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from streamd.net.pubsub.pubacks import ack_body, ack_line, ack_run, shared_prefix
from streamd.net.pubsub.sublist import Subscription

if TYPE_CHECKING:
    from streamd.net.client.listener import Listener


class ClientOutput(asyncio.Protocol):
    """The part of `ClientConn` that sends."""

    __slots__ = (
        "_deadline_timer",
        "_given_bytes",
        "_linger_timer",
        "_listener",
        "_loop",
        "_output_queue",
        "_router",
        "_sent_msgs",
        "_transport",
        "cid",
        "ip",
        "is_closed",
        "is_congested",
        "is_dirty",
        "last_activity_ns",
        "name",
        "out",
        "out_bytes",
        "out_msgs",
        "port",
    )

    def __init__(self, listener: Listener, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._listener = listener
        self._router = listener.router
        self._output_queue = listener.router.output_queue
        self._loop = loop or asyncio.get_running_loop()
        self._transport: Any = None
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._given_bytes = 0  # to the transport, since that timer runs
        self._linger_timer: asyncio.TimerHandle | None = None
        self.cid = 0
        self.ip = ""
        self.port = 0
        self.name = ""
        self.out_msgs = self.out_bytes = 0
        self._sent_msgs = 0  # `out_msgs` at the last flush
        # When messages came or went, or subscriptions changed; signs of life are no activity.
        self.last_activity_ns = time.time_ns()
        self.out: list[bytes] = []
        self.is_dirty = False  # in PubSub's list of those to flush
        self.is_congested = False
        self.is_closed = False

    # --- lines and blobs ------------------------------------------------------------------------

    def flush(self) -> bool:
        """Write what was collected. True if so much waits that whoever fills it should rest."""
        out = self.out
        if not out:
            return False
        if self._sent_msgs != self.out_msgs:
            self._sent_msgs = self.out_msgs
            self.last_activity_ns = time.time_ns()
        out.append(b"")
        data = b"\r\n".join(out)
        out.clear()
        return self._write(data)

    def send_blob(self, blob: bytes) -> None:
        """Send whole messages, CRLFs and all, behind what was collected before."""
        if self.is_closed or not blob:
            return
        if self.out or self._output_queue.is_in_chunk:
            self.out.append(blob[:-2])
            if not self._output_queue.is_in_chunk:
                self.flush()
            elif not self.is_dirty:
                self.is_dirty = True
                self._output_queue.dirty.append(self)
            return
        self.last_activity_ns = time.time_ns()
        self._write(blob)

    def _write(self, data: bytes) -> bool:
        """True if so much waits that whoever fills it should rest."""
        if self.is_congested:
            self._given_bytes += len(data)
        self._transport.write(data)
        return self.is_congested and self._is_near_limit()

    def _touch(self) -> None:
        if self.out and not self.is_dirty:
            self.is_dirty = True
            self._output_queue.dirty.append(self)

    def _error(self, text: bytes) -> None:
        self.out.append(b"-ERR '%b'" % text)
        self._touch()

    def forbid_publish(self, subject: bytes) -> None:
        """Tell the client that nobody may publish to `subject`."""
        self._error(b'Permissions Violation for Publish to "%b"' % subject)

    # --- slow consumers -------------------------------------------------------------------------

    def pause_writing(self) -> None:
        self.is_congested = True
        if self._deadline_timer is None:
            self._start_deadline()

    def _start_deadline(self) -> None:
        """From now on what waits has until the deadline to be gone."""
        self._given_bytes = 0
        deadline_s = self._listener.options.write_deadline_ns / 1e9
        if deadline_s > 0:
            self._deadline_timer = self._loop.call_later(deadline_s, self._on_write_deadline)

    def resume_writing(self) -> None:
        self.is_congested = False
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        self._router.on_drained()

    def _is_near_limit(self) -> bool:
        waiting = self._transport.get_write_buffer_size()
        limit = self._listener.options.max_pending
        if waiting > limit and not self.is_closed:
            self._drop_slow("Slow Consumer (Pending Bytes)")
            return False
        return bool(waiting * 4 > limit * 3)

    @property
    def pending_bytes(self) -> int:
        """Bytes that wait for the client to read them."""
        if self._transport is None or self.is_closed:
            return 0
        return int(self._transport.get_write_buffer_size())

    def _on_write_deadline(self) -> None:
        self._deadline_timer = None
        if self.is_closed:
            return
        if self.pending_bytes > self._given_bytes:
            self._drop_slow("Slow Consumer (Write Deadline)")
        else:  # all that waits came later: it reads as fast as it is sent messages, a bit behind
            self._start_deadline()

    def _drop_slow(self, reason: str) -> None:
        self._listener.registry.slow_consumers_count += 1
        self._listener.on_slow_consumer(self, reason)
        self._forget(reason)
        self._transport.abort()

    # --- acks of what it published --------------------------------------------------------------

    def publish_acks(self, stream: bytes, replies: list[bytes], outcomes: Any) -> None:
        """Answer publishes: one write for all of them where the replies allow it."""
        if type(outcomes) is range:
            if len(replies) == 1:
                if self._answer_lone(stream, replies[0], outcomes[0]):
                    return
            elif self._answer_run(stream, replies, outcomes):
                return
        self._publish_acks_each(stream, replies, outcomes)

    def _answer_lone(self, stream: bytes, reply: bytes, seq: int) -> bool:
        sub = self._sole_receiver(reply[: reply.rfind(b".") + 1])
        if sub is None:
            return False
        blob, body_bytes = ack_line(stream, sub.sid, reply, seq, self._router.domain_field)
        self.out_msgs += 1
        self.out_bytes += body_bytes
        sub.delivered_count += 1
        self.send_blob(blob)
        self._listener.attention.acked(self._loop.call_soon)
        return True

    def _answer_run(self, stream: bytes, replies: list[bytes], seqs: range) -> bool:
        sub = self._sole_receiver(shared_prefix(replies))
        if sub is None:
            return False
        blob, body_bytes = ack_run(stream, sub.sid, replies, seqs, self._router.domain_field)
        count = len(replies)
        self.out_msgs += count
        self.out_bytes += body_bytes
        sub.delivered_count += count
        self.send_blob(blob)
        return True

    def _sole_receiver(self, prefix: bytes | None) -> Subscription | None:
        """Return this connection's subscription if it alone receives all replies of `prefix`."""
        route = self._router.subscriptions.table.find_under(prefix) if prefix else None
        if route is None or len(route.plain) != 1:
            return None
        if route.queues or route.streams or route.remote is not None:
            return None
        sub = route.plain[0]
        receiver: object = sub.conn
        if receiver is not self or sub.max_msgs or sub.is_filtered or not sub.is_open:
            return None
        return sub

    def _publish_acks_each(
        self, stream: bytes, replies: list[bytes], outcomes: Sequence[Any]
    ) -> None:
        router = self._router
        find = router.subscriptions.table.find
        for reply, outcome in zip(replies, outcomes, strict=True):
            if reply:
                body = ack_body(stream, outcome, router.domain_field)
                route = find(reply)
                if route.streams:
                    router.publish(reply, b"", b"", body)
                else:
                    router.fanout.route_one(None, route, reply, b"", b"", body)
        router.fanout.flush_if_idle()

    # --- the end --------------------------------------------------------------------------------

    def close(self, reason: str, text: bytes = b"") -> None:
        """End the connection: what is buffered still goes out, with an `-ERR` if there is one."""
        if self.is_closed:
            return
        if text:
            self.out.append(b"-ERR '%b'" % text)
        if self.out:
            self.out.append(b"")
            self._transport.write(b"\r\n".join(self.out))
        self._forget(reason)
        self._transport.close()
        # A client that reads no more must not keep its buffer alive.
        linger_s = self._listener.options.write_deadline_ns / 1e9
        self._linger_timer = self._loop.call_later(linger_s, self._transport.abort)

    def _fail(self, reason: str, text: bytes = b"") -> None:
        # What the chunk published before the fault counts; it is only posted at the chunk's end.
        self._router.post_collected(self)
        self.close(reason, text)

    def cut_off(self) -> None:
        """Drop the socket with whatever is still buffered."""
        self._transport.abort()

    def _forget(self, reason: str) -> None:
        """Subclasses let go of all they hold: this connection has ended, if not its socket."""


class Discard(list[bytes]):
    """Takes the place of a closed connection's output: nothing stays in it."""

    def append(self, item: bytes) -> None: ...

    def __iadd__(self, items: Any) -> Discard:  # type: ignore[override, misc]
        return self
