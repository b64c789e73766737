"""Output of one client connection: lines that wait to be written, and acks of its publishes.

Lines are collected in `out` without their CRLF and written once per chunk or turn (`flush`): one
`join`, one call of the transport. A client that reads too slowly is cut off by the guard, so what
waits for it stays bounded.

`Output` is also the client as message routing knows it (`pubsub`: the receiver of deliveries, the
publisher of what the client sends), so that a delivery finds all it needs in one object: the lines,
the counters, and what the client may be sent. Those settings are the session's; it alone changes
them. Streams send the acks of publishes here (`node.ports.PublishSink`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from streamd.machine.commands import PublishOutcome
from streamd.net.client.auth import UserRights
from streamd.net.client.profile import ClientProfile, after_end
from streamd.net.client.slow_consumer import SlowConsumerGuard
from streamd.net.pubsub.message_router import MessageRouter
from streamd.net.pubsub.message_trace import MessageTrace
from streamd.net.pubsub.pubacks import ack_body, ack_line, ack_run, shared_prefix
from streamd.net.pubsub.sublist import Subscription


class Output:
    """Lines on their way to one client. Nothing is sent before `open` or after `close`."""

    __slots__ = (
        "_guard",
        "_queue",
        "_resume",
        "_router",
        "_sent_msgs",
        "_table",
        "_write_bytes",
        "drop_subscription",
        "has_echo",
        "has_headers",
        "is_closed",
        "is_congested",
        "is_dirty",
        "is_granting_replies",
        "is_told_no_responders",
        "last_sent_ns",
        "out",
        "out_bytes",
        "out_msgs",
        "profile",
        "rights",
        "stall",
    )

    def __init__(
        self,
        router: MessageRouter,
        guard: SlowConsumerGuard,
        profile: ClientProfile,
        *,
        resume: Callable[[], None],
        drop_subscription: Callable[[Subscription], None],
        stall: Callable[[float], None],
    ) -> None:
        """`resume` has deliveries go on that wait for room; `drop_subscription` ends a
        subscription that had its last message; `stall` has the client read no more for some
        seconds, since a receiver of its publishes is far behind."""
        self._router = router
        self._queue = router.output_queue
        self._table = router.subscriptions.table
        self._guard = guard
        self._resume = resume
        self._write_bytes: Callable[[bytes], None] = _not_open
        self._sent_msgs = 0  # `out_msgs` at the last flush
        self.profile = profile
        self.drop_subscription = drop_subscription
        self.stall = stall
        self.out: list[bytes] = []
        self.out_msgs = self.out_bytes = 0
        self.last_sent_ns = 0  # when messages were last sent; signs of life are no activity
        self.is_dirty = False  # in the router's list of outputs to flush
        self.is_congested = False
        self.is_closed = False
        # Settings of deliveries: those of a client that sends no CONNECT.
        self.has_echo = True
        self.has_headers = False
        self.is_told_no_responders = False
        self.rights: UserRights | None = None
        self.is_granting_replies = False

    def enter(self, router: MessageRouter) -> None:
        """Serve the client in another subject space from here on."""
        self._router = router
        self._table = router.subscriptions.table

    @property
    def is_mapped(self) -> bool:
        """True if publishes of the client's account may go to other subjects."""
        return self._router.mappings is not None

    def map(self, subject: bytes) -> bytes | None:
        """Return the subject that a publish goes to; None: it is dropped."""
        return self._router.map(subject)

    def may_be_traced(self, headers: list[bytes]) -> bool:
        """Return True if publishes with some of these headers may have to be traced."""
        return self._router.may_be_traced(headers)

    def begin_trace(
        self, subject: bytes, header: bytes, payload: bytes
    ) -> tuple[MessageTrace | None, bytes]:
        """Return the trace of a publish, None if it has none, and its headers as they go on."""
        return self._router.begin_trace(self, subject, header, payload)

    def trace_mapping(self, trace: MessageTrace, before: bytes, after: bytes | None) -> None:
        """Note what mappings made of a subject, if one is for it."""
        if self._router.is_mapped(before):
            trace.mapped(after or b"")

    @property
    def account(self) -> str:
        """Name of the client's account."""
        return self._router.account

    def open(self, write_bytes: Callable[[bytes], None]) -> None:
        """Write by `write_bytes` from here on."""
        self._write_bytes = write_bytes

    def close(self) -> None:
        """Take no more lines; those that were collected are lost if they were not written.

        Also lets go of the connection, so that it is freed without the garbage collector.
        """
        self.is_closed = True
        self.out = Discard()
        self._write_bytes = _not_open
        self.drop_subscription = after_end
        self.stall = after_end

    # --- lines and blobs ------------------------------------------------------------------------

    def flush(self) -> bool:
        """Write the collected lines; True if so much waits that their source should rest."""
        out = self.out
        if not out:
            return False
        if self._sent_msgs != self.out_msgs:
            self._sent_msgs = self.out_msgs
            self.last_sent_ns = time.time_ns()
        out.append(b"")
        data = b"\r\n".join(out)
        out.clear()
        return self._write(data)

    def write_last(self) -> None:
        """Write the collected lines of a connection that ends: nothing follows from how many
        bytes wait."""
        if self.out:
            self.out.append(b"")
            self._write_bytes(b"\r\n".join(self.out))

    def send_blob(self, blob: bytes) -> None:
        """Send whole messages, CRLFs and all, behind the lines that were collected before."""
        if self.is_closed or not blob:
            return
        if self.out or self._queue.is_in_chunk:
            self.out.append(blob[:-2])
            if not self._queue.is_in_chunk:
                self.flush()
            elif not self.is_dirty:
                self.is_dirty = True
                self._queue.dirty.append(self)
            return
        self.last_sent_ns = time.time_ns()
        self._write(blob)

    def send_error(self, text: bytes) -> None:
        """Tell the client of a fault that does not end the connection."""
        self.out.append(b"-ERR '%b'" % text)
        self.touch()

    def forbid_publish(self, subject: bytes) -> None:
        """Tell the client that nobody may publish to `subject`."""
        self.send_error(b'Permissions Violation for Publish to "%b"' % subject)

    def touch(self) -> None:
        """Schedule the collected lines for the end of the chunk."""
        if self.out and not self.is_dirty:
            self.is_dirty = True
            self._queue.dirty.append(self)

    def _write(self, data: bytes) -> bool:
        """Write; True if so much waits that the source of it should rest."""
        if self.is_congested:
            self._guard.count(len(data))
        self._write_bytes(data)
        return self.is_congested and self._guard.is_near_limit()

    # --- congestion -----------------------------------------------------------------------------

    def congest(self) -> None:
        """Note that the transport holds more than it should."""
        self.is_congested = True
        self._guard.begin_deadline()

    def relax(self) -> None:
        """Note that the transport has room again, and have waiting deliveries go on."""
        self.is_congested = False
        self._guard.relax()
        self._resume()

    # --- the client, as requests and advisories name it ----------------------------------------

    @property
    def cid(self) -> int:
        return self.profile.cid

    @property
    def ip(self) -> str:
        return self.profile.ip

    @property
    def start_ns(self) -> int:
        return self.profile.start_ns

    @property
    def rtt_ns(self) -> int:
        return self.profile.rtt_ns

    @property
    def user(self) -> str:
        return self.profile.user

    @property
    def name(self) -> str:
        return self.profile.name

    @property
    def lang(self) -> str:
        return self.profile.lang

    @property
    def version(self) -> str:
        return self.profile.version

    def may_administer(self, subject: bytes) -> bool:
        """Return True if this client may make requests that concern the whole cluster."""
        identity = self.profile.identity
        return identity is not None and identity.may_administer(subject)

    # --- acks of publishes ----------------------------------------------------------------------

    def publish_acks(
        self, stream: bytes, replies: list[bytes], outcomes: Sequence[PublishOutcome]
    ) -> None:
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
        route = self._table.find_under(prefix) if prefix else None
        if route is None or len(route.plain) != 1:
            return None
        if route.queues or route.streams or route.remote is not None or route.leafs is not None:
            return None
        sub = route.plain[0]
        receiver: object = sub.conn
        if receiver is not self or sub.max_msgs or sub.is_filtered or not sub.is_open:
            return None
        return sub

    def _publish_acks_each(
        self, stream: bytes, replies: list[bytes], outcomes: Sequence[PublishOutcome]
    ) -> None:
        router = self._router
        find = self._table.find
        for reply, outcome in zip(replies, outcomes, strict=True):
            if reply:
                body = ack_body(stream, outcome, router.domain_field)
                route = find(reply)
                if route.streams:
                    router.publish(reply, b"", b"", body)
                else:
                    router.fanout.route_one(None, route, reply, b"", b"", body)
        router.fanout.flush_if_idle()


class Discard(list[bytes]):
    """Output of a closed connection: keeps nothing that is appended."""

    def append(self, item: bytes) -> None: ...

    def __iadd__(self, items: object) -> Discard:  # type: ignore[override, misc]
        return self


def _not_open(data: bytes) -> None:
    raise AssertionError(f"{len(data)} bytes written while the connection was not open")
