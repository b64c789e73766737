"""One client connection: its socket from beginning to end, and what the client asks for.

The parser turns chunks into events, `MessageRouter` routes what is published; publishes and
subscriptions are checked here in between. The rest is in the classes it is built on:
`client_session` knows who the client is, `client_output` sends.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from streamd.limits import CLIENT_SHARE_S, CONGESTED_BYTES
from streamd.net.client.output import Discard
from streamd.net.client.session import ClientSession
from streamd.net.pubsub.message_router import RESERVED_REPLIES
from streamd.net.pubsub.sublist import Subscription
from streamd.net.sockets import peer_address
from streamd.protocol import client_protocol as protocol
from streamd.protocol.client_protocol import ClientParser, Event
from streamd.subjects import is_valid, is_valid_literal

if TYPE_CHECKING:
    from streamd.net.client.listener import Listener


class ClientConn(ClientSession):
    """The server's end of one client connection."""

    __slots__ = ("_parser", "reason", "stop_ns")

    def __init__(self, listener: Listener, loop: asyncio.AbstractEventLoop | None = None) -> None:
        super().__init__(listener, loop)
        options = listener.options
        self._parser = ClientParser(
            max_payload=options.max_payload, max_control_line=options.max_control_line
        )
        self.stop_ns = 0
        self.reason = ""

    # --- the socket -----------------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.set_write_buffer_limits(high=CONGESTED_BYTES, low=CONGESTED_BYTES // 4)
        self.ip, self.port = peer_address(transport)
        refusal = self._listener.register(self)
        if refusal:
            self.close("Maximum Connections Exceeded", refusal)
            return
        self.out.append(self._listener.info_line(self))
        self.flush()
        options = self._listener.options
        if self._listener.auth.is_required and options.auth_timeout_s > 0:
            self._auth_timer = self._loop.call_later(options.auth_timeout_s, self._on_auth_timeout)
        self._arm_ping(options.ping_interval_ns / 1e9)

    def data_received(self, data: bytes) -> None:
        if self.is_closed:
            return
        attention = self._listener.attention
        if attention.is_looking:
            attention.came()
        self.last_read_ns = time.time_ns()
        # What a stranger begins with is seen by its first byte; CONNECT may come in pieces.
        is_unknown = self._identity is None and self._connect is None
        if is_unknown and not self._parser.buffered_bytes and data[0] not in b"cC":
            self._refuse()
            return
        events = self._parser.feed(data)
        if self._held is not None:
            # Not before: while nothing is read, nobody notices that a client is gone.
            self._transport.pause_reading()
            self._held += events
        elif events and not (len(events) == 1 and self._publish_lone(events[0])):
            self._handle(events)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.is_closed:
            self._forget("Read Error" if exc is not None else "Client Closed")
        if self._linger_timer is not None:
            self._linger_timer.cancel()
        self._listener.gone(self)

    def _forget(self, reason: str) -> None:
        self.reason = reason
        self.stop_ns = time.time_ns()
        self._listener.closing(self)  # while its subscriptions can still be seen
        self.is_closed = True
        self.out = Discard()
        for timer in (self._auth_timer, self._ping_timer, self._deadline_timer):
            if timer is not None:
                timer.cancel()
        subs = list(self.subs.values())
        self.subs.clear()
        for sub in subs:
            sub.is_open = False
        # From the end: members of groups first, whose messages others would get.
        subs.sort(key=lambda sub: sub.queue)
        self._unsubscribe(subs)

    def _unsubscribe(self, subs: list[Subscription]) -> None:
        """Take out subscriptions that are not open any more: as many as the client's share of the
        loop allows, for it may have had a million, and the rest when others had theirs."""
        unsubscribe, clock = self._router.subscriptions.unsubscribe, self._output_queue.clock
        until = clock() + CLIENT_SHARE_S
        while subs:
            unsubscribe(subs.pop())
            if not len(subs) % 64 and clock() >= until:
                break
        if subs:
            self._loop.call_later(0, self._unsubscribe, subs)

    def options_changed(self) -> None:
        """The configuration was read again: what a message may have is as it says now."""
        options = self._listener.options
        self._parser.limit(
            max_payload=options.max_payload, max_control_line=options.max_control_line
        )

    # --- events ---------------------------------------------------------------------------------

    def _handle(self, events: list[Event]) -> None:
        router, output_queue = self._router, self._output_queue
        router.begin_chunk()
        try:
            for at, event in enumerate(events):
                kind = event[0]
                if kind == protocol.PUBS:
                    left = self._on_publishes(event[1], event[2], event[3], event[4])
                    if left and not self.is_closed:
                        self._go_on_later([_last_of(event, left), *events[at + 1 :]])
                        break
                elif kind == protocol.PING:
                    self._on_ping()
                elif kind == protocol.SUB:
                    self._on_sub(event[1], event[2], event[3])
                elif kind == protocol.UNSUB:
                    self._on_unsub(event[1], event[2])
                elif kind == protocol.PONG:
                    self._on_pong()
                elif kind == protocol.CONNECT:
                    self._on_connect(event[1])
                    if self._held is not None:
                        self._held = list(events[at + 1 :])
                        break
                elif kind == protocol.ERROR:
                    self._fail(event[2], event[1])
                else:
                    self._fail("Client Closed")
                if self.is_closed:
                    break
                if at + 1 < len(events) and output_queue.clock() >= output_queue.until:
                    self._go_on_later(events[at + 1 :])
                    break
        finally:
            self._touch()
            router.end_chunk(self)

    # --- publishes ------------------------------------------------------------------------------

    def _publish_lone(self, event: Event) -> bool:
        """Publish the only message of a chunk if that goes to a stream here and to nobody else;
        False: nothing was done. Clients that wait for each ack send nothing but such chunks."""
        if event[0] != protocol.PUBS or len(event[4]) != 1 or self._identity is None:
            return False
        if self.is_verbose or self.is_pedantic or self.rights is not None:
            return False
        _, (subject,), replies, headers, (payload,) = event
        reply = replies[0] if replies is not None else b""
        header = headers[0] if headers is not None else b""
        if reply.startswith(RESERVED_REPLIES) or (header and not self.has_headers):
            return False
        if not self._router.publish_lone(self, subject, reply, header, payload):
            return False
        self.last_activity_ns = self.last_read_ns
        self.in_msgs += 1
        self.in_bytes += len(header) + len(payload)
        return True

    def _on_publishes(
        self,
        subjects: list[bytes],
        replies: list[bytes] | None,
        headers: list[bytes] | None,
        payloads: list[bytes],
    ) -> int:
        """Returns how many of them are left for later."""
        if self._identity is None:
            self._refuse()
            return 0
        self.last_activity_ns = self.last_read_ns
        self.in_msgs += len(payloads)
        self.in_bytes += sum(map(len, payloads))
        if headers is not None:
            self.in_bytes += sum(map(len, headers))
            if not self.has_headers:
                self._fail("Protocol Violation")
                return 0
        is_checked = self.is_verbose or self.is_pedantic or self.rights is not None
        if replies is not None and not is_checked:
            # All between these two begin with `_I` to `_Q`, so none is reserved: one look at the
            # extremes instead of one at each.
            if min(replies) < b"_H" or max(replies) >= b"_R":
                is_checked = any(reply.startswith(RESERVED_REPLIES) for reply in replies)
        publish = self._publish_checked if is_checked else self._publish_all
        left = len(payloads) - publish(subjects, replies, headers, payloads)
        if left:  # counted when they come again
            self.in_msgs -= left
            self.in_bytes -= sum(map(len, payloads[-left:]))
            if headers is not None:
                self.in_bytes -= sum(map(len, headers[-left:]))
        return left

    def _publish_all(
        self,
        subjects: list[bytes],
        replies: list[bytes] | None,
        headers: list[bytes] | None,
        payloads: list[bytes],
    ) -> int:
        return self._router.publish_batch(self, subjects, replies, headers, payloads)

    def _publish_checked(
        self,
        subjects: list[bytes],
        replies: list[bytes] | None,
        headers: list[bytes] | None,
        payloads: list[bytes],
    ) -> int:
        """Publish one by one, each with its own checks and its own `+OK` or `-ERR`. Returns how
        many were dealt with."""
        now_ns = time.monotonic_ns()
        router, output_queue = self._router, self._output_queue
        for at, subject in enumerate(subjects):
            if at and output_queue.clock() >= output_queue.until:
                return at
            reply = replies[at] if replies is not None else b""
            if self.is_pedantic and not is_valid_literal(subject):
                self._error(b"Invalid Publish Subject")
            if self.rights is not None and not self.rights.may_publish(subject, now_ns=now_ns):
                self._error(b'Permissions Violation for Publish to "%b"' % subject)
                continue
            if reply.startswith(RESERVED_REPLIES):
                self._error(b'Permissions Violation for Publish with Reply of "%b"' % reply)
                continue
            if self.is_verbose:
                self.out.append(b"+OK")
            router.publish_batch(
                self,
                [subject],
                [reply] if reply else None,
                [headers[at]] if headers is not None and headers[at] else None,
                [payloads[at]],
            )
            if self.is_closed:
                break
        return len(payloads)

    # --- subscriptions --------------------------------------------------------------------------

    def _on_sub(self, subject: bytes, queue: bytes, sid: bytes) -> None:
        if self._identity is None:
            self._refuse()
            return
        self.last_activity_ns = self.last_read_ns
        options = self._listener.options
        if not self._may_subscribe(subject, queue):
            self._forbid_subscription(subject, queue)
            return
        if options.max_sub_tokens and subject.count(b".") >= options.max_sub_tokens:
            self._error(
                b'Permissions Violation for Subscription to "%b", too many tokens' % subject
            )
            return
        if sid not in self.subs:
            if options.max_subscriptions > 0 and len(self.subs) >= options.max_subscriptions:
                self._error(b"maximum subscriptions exceeded")
                return
            if not is_valid(subject):
                self._error(b"Invalid Subject")
                return
            sub = Subscription(subject, queue, sid, self)
            sub.is_filtered = self._is_filtered(subject)
            self.subs[sid] = sub
            self._router.subscriptions.subscribe(sub)
        if self.is_verbose:
            self.out.append(b"+OK")

    def _on_unsub(self, sid: bytes, max_msgs: int) -> None:
        if self._identity is None:
            self._refuse()
            return
        self.last_activity_ns = self.last_read_ns
        sub = self.subs.get(sid)
        if sub is not None:
            if max_msgs > sub.delivered_count:
                sub.max_msgs = max_msgs
            else:
                self.drop_subscription(sub)
        if self.is_verbose:
            self.out.append(b"+OK")


def _last_of(event: Event, count: int) -> Event:
    """The last `count` publishes of a batch, as an event of their own."""
    columns = [column and column[-count:] for column in event[1:]]
    return (protocol.PUBS, *columns)
