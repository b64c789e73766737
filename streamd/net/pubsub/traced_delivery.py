"""Delivery of traced messages in one subject space: as `FanOut` delivers others, with an event for
each place that a message comes to.

It is a second way beside that of all other messages, which so cost nothing more. It goes through
the same route, in the same order, by the same calls for each receiver.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from streamd import errors
from streamd.errors import JsError
from streamd.machine import message_headers
from streamd.machine.commands import PublishOutcome
from streamd.net.pubsub.fanout import SERVICE_REPLIES, FanOut, LeafPublisher, Publisher
from streamd.net.pubsub.ingest import Ingest, refuse_fast
from streamd.net.pubsub.leaf_routes import LeafPeer
from streamd.net.pubsub.message_trace import (
    HOP,
    Kind,
    MessageTrace,
    TraceEvent,
    header_values,
    replaced,
)
from streamd.net.pubsub.message_tracing import MessageTracing, Sampling, Source
from streamd.net.pubsub.subject_routes import CapturingStream, Judged, Place, Route, RouteTable
from streamd.net.pubsub.sublist import Subscription
from streamd.types import SYSTEM_ACCOUNT

if TYPE_CHECKING:  # a server without streams does not load that room
    from streamd.node.ports import PublishSink

_API: Final = b"$JS.API."
_BATCH: Final = b"Nats-Batch-Id"
_NOT_DELIVERED: Final = "Not delivered because remote does not support message tracing"
_NOT_TRACED: Final = (
    "Message delivered but remote does not support message tracing"
    " so no trace event generated from there"
)
_TRACED: Final = b"$trace"
"""Reply of a traced publish that wants no ack, so that its outcome comes back nevertheless."""


class TracedMsg(NamedTuple):
    """A message on its way, with its trace."""

    trace: MessageTrace
    subject: bytes
    reply: bytes
    headers: bytes
    payload: bytes


class TracedItem(NamedTuple):
    """Traced message as one node passes it on to another (`net.trace`)."""

    account: str  # in which events are published
    destination: bytes
    is_only: bool
    hop: str
    subject: bytes
    reply: bytes
    headers: bytes
    payload: bytes
    queues: list[bytes]
    origin: str  # cluster of leaf nodes that it comes from; empty: none


class TracedDelivery:
    """Delivers the traced messages of one account."""

    def __init__(
        self,
        account: str,
        tracing: MessageTracing,
        table: RouteTable,
        fanout: FanOut,
        ingest: Ingest,
        server_sink: PublishSink,
    ) -> None:
        self.account = account
        self.tracing = tracing
        self.sampling: Sampling | None = None  # None: `traceparent` means nothing here
        self._table = table
        self._fanout = fanout
        self._ingest = ingest
        self._server_sink = server_sink

    # --- the beginning ----------------------------------------------------------------------------

    def begin(
        self, source: Source, kind: Kind, subject: bytes, headers: bytes, payload: bytes
    ) -> tuple[MessageTrace | None, bytes]:
        """See `MessageTracing.begin`."""
        return self.tracing.begin(
            source, kind, self.account, subject, headers, payload, self.sampling
        )

    # --- ways in ----------------------------------------------------------------------------------

    def publish(self, conn: Publisher, msg: TracedMsg) -> None:
        """Deliver a message of a client, and tell the client if nobody would get it."""
        route = self._table.find(msg.subject)
        if route.is_forbidden:
            conn.forbid_publish(msg.subject)
        else:
            count = self._deliver(conn, route, msg, conn)
            if not count and msg.reply and conn.is_told_no_responders:
                self._fanout.tell_no_responders(conn, msg.subject, msg.reply)
        msg.trace.finish()

    def pass_through(self, msg: TracedMsg) -> int:
        """Deliver a request of another account; returns to how many receivers. The trace goes on
        there, and ends where it began."""
        route = self._table.find(msg.subject)
        return 0 if route.is_forbidden else self._deliver(None, route, msg, self._server_sink)

    def publish_from_leaf(
        self, conn: LeafPublisher, msg: TracedMsg, queues: Sequence[bytes]
    ) -> None:
        """Deliver a message of a leaf link; see `FanOut.route_from_leaf`."""
        route = self._table.find(msg.subject)
        if not route.is_forbidden:
            source = conn.peer
            streams = [s for s in route.streams if s.is_local or not source.is_spoke]
            self._store_all(streams, msg, conn)
            served: set[bytes] = set()
            self._to_clients(conn, route, msg, served, queues)
            if not source.is_spoke:
                self._to_nodes(route, msg, served, queues, source.remote_cluster)
            self._to_leafs(route, msg, served, queues, source)
        msg.trace.finish()

    def take_forwarded(self, node: str, item: TracedItem) -> None:
        """Deliver a message that another node passed on; see `FanOut.deliver_forwarded`."""
        trace = MessageTrace(
            self.tracing.send,
            header_values(item.headers),
            len(item.headers) + len(item.payload),
            account=item.account,
            destination=item.destination,
            is_only=item.is_only,
        )
        trace.hop = item.hop
        trace.came_in(Kind.ROUTE, 0, node, self.account, item.subject)
        msg = TracedMsg(trace, item.subject, item.reply, item.headers, item.payload)
        route = self._table.find(item.subject)
        served: set[bytes] = set()
        self._to_clients(None, route, msg, served, item.queues, is_forwarded=True)
        self._to_leafs(route, msg, served, item.queues, None, is_forwarded=True, origin=item.origin)
        trace.finish()

    # --- receivers --------------------------------------------------------------------------------

    def _deliver(
        self, conn: Publisher | None, route: Route, msg: TracedMsg, sink: PublishSink
    ) -> int:
        if msg.subject.startswith(_API):
            msg.trace.asked(SYSTEM_ACCOUNT, msg.subject, msg.subject)
        count = self._store_all(route.streams, msg, sink)
        served: set[bytes] = set()
        count += self._to_clients(conn, route, msg, served, None)
        count += self._to_nodes(route, msg, served, None)
        return count + self._to_leafs(route, msg, served, None, None)

    def _to_clients(
        self,
        conn: Publisher | None,
        route: Route,
        msg: TracedMsg,
        served: set[bytes],
        wanted: Collection[bytes] | None,
        *,
        is_forwarded: bool = False,
    ) -> int:
        """Deliver to clients here, and add the groups that have it to `served`; `wanted`: the only
        ones that may get it, if not None; `is_forwarded`: by another node, which told all others.
        """
        count = 0
        for sub in route.plain:
            if sub.is_told or not is_forwarded:
                count += self._to_client(conn, sub, msg)
        for members in route.queues:
            if wanted is not None and members[0].queue not in wanted:
                continue
            first = self._fanout.pick_at(len(members))
            for member in members[first:] + members[:first]:
                if self._to_client(conn, member, msg):
                    count += 1
                    served.add(member.queue)
                    break
        return count

    def _to_client(self, conn: Publisher | None, sub: Subscription, msg: TracedMsg) -> int:
        trace, subject, reply, headers, payload = msg
        if not sub.is_open:
            return 0
        deliver = partial(self._fanout.deliver_one, conn, sub, subject, reply, headers, payload)
        if sub.callback is not None:
            if sub.is_traced:
                return self.tracing.pass_on(trace, deliver)
            return 0 if trace.is_only else deliver()
        receiver = sub.conn
        error = ""
        if conn is not None and receiver is conn and not conn.has_echo:
            error = "Not delivered because of no echo"
        elif sub.rename is not None:
            if self._fanout.imported is not None or reply.startswith(SERVICE_REPLIES):
                return 0
            local = sub.rename(subject)
            if local is None:
                return 0
            trace.exported(receiver.account, local)
            if not sub.is_traced:
                return 1 if trace.is_only else deliver()
        elif sub.is_filtered:
            rights = receiver.rights
            assert rights is not None, sub.pattern
            if rights.is_denied_delivery(subject):
                error = "Not delivered because subscription denies this subject"
        trace.left(
            Kind.CLIENT,
            receiver.cid,
            receiver.name,
            account=receiver.account,
            pattern=sub.pattern,
            queue=sub.queue,
            error=error,
        )
        if error:
            return 0
        return 1 if trace.is_only else deliver()

    def _to_nodes(
        self,
        route: Route,
        msg: TracedMsg,
        served: set[bytes],
        wanted: Collection[bytes] | None,
        origin: str = "",
    ) -> int:
        remote = route.remote
        if remote is None:
            return 0
        trace = msg.trace
        others = served
        if wanted is not None:
            others = served.union(name for name in remote.groups if name not in wanted)
        chosen = remote.choose(others)
        for node, queues in chosen.items():
            hop = trace.next_hop()
            trace.left(Kind.ROUTE, 0, node.node_id, hop=hop)
            headers = replaced(msg.headers, HOP, hop.encode())
            node.pass_traced(
                TracedItem(
                    trace.account, trace.destination, trace.is_only, hop,
                    msg.subject, msg.reply, headers, msg.payload, queues, origin,
                )
            )  # fmt: skip
        served.update(remote.groups)
        return len(chosen)

    def _to_leafs(
        self,
        route: Route,
        msg: TracedMsg,
        served: Collection[bytes],
        wanted: Collection[bytes] | None,
        source: LeafPeer | None,
        *,
        is_forwarded: bool = False,
        origin: str = "",
    ) -> int:
        if route.leafs is None:
            return 0
        count = 0
        chosen = route.leafs.choose(
            msg.subject,
            served=served,
            wanted=wanted,
            source=source,
            is_forwarded=is_forwarded,
            origin=origin,
        )
        for peer, queues in chosen.items():
            hop, error = msg.trace.next_hop(), ""
            if not peer.is_tracing:  # it would deliver what is only to be traced
                error = _NOT_DELIVERED if msg.trace.is_only else _NOT_TRACED
            msg.trace.left(Kind.LEAF, peer.cid, peer.name, hop=hop, error=error)
            if error and msg.trace.is_only:
                continue
            headers = replaced(msg.headers, HOP, hop.encode())
            peer.send(msg.subject, msg.reply, queues, headers, msg.payload)
            count += 1
        return count

    # --- streams ----------------------------------------------------------------------------------

    def _store_all(
        self, streams: Sequence[CapturingStream], msg: TracedMsg, sink: PublishSink
    ) -> int:
        if streams:
            self._ingest.post(sink)  # the order of the publisher is the order stored
        for stream in streams:
            self._store(stream, msg, sink)
        return len(streams)

    def _store(self, stream: CapturingStream, msg: TracedMsg, sink: PublishSink) -> None:
        trace, subject, reply, headers, payload = msg
        stored = (subject, message_headers.as_stored(headers), payload)
        if refuse_fast(stream, stored, reply, sink):
            return
        if not stream.name_bytes:  # of a server without streams: another one has the stream
            if not trace.is_only:
                stream.publish([stored], [reply], sink)
            return
        if _BATCH in headers:
            # Whether it is stored is known when the batch ends; nats-server sends no events.
            trace.destination = b""
            if not trace.is_only:
                stream.publish([stored], [reply], sink)
            return
        event = trace.stored(stream.name_bytes.decode())
        done = partial(_complete, trace, event, headers)
        if trace.is_only:
            stream.judge(stored, done)
            return
        ack = b"" if stream.config.get("no_ack") else reply
        stream.publish(
            [stored], [_TRACED], _OutcomeSink(sink, ack, done, partial(stream.place, subject))
        )


class _OutcomeSink:
    """Sink of one traced publish: hands its outcome on to the trace, and to the publisher."""

    def __init__(
        self,
        sink: PublishSink,
        reply: bytes,
        done: Judged,
        place: Callable[[], Place],
    ) -> None:
        self._sink = sink
        self._place = place
        self._reply = reply
        self._done = done

    def publish_acks(
        self, stream: bytes, replies: list[bytes], outcomes: Sequence[PublishOutcome]
    ) -> None:
        """See ports.PublishSink."""
        (outcome,) = outcomes
        if self._reply:
            self._sink.publish_acks(stream, [self._reply], outcomes)
        self._done(outcome, self._place())


def _complete(
    trace: MessageTrace,
    event: TraceEvent,
    headers: bytes,
    outcome: PublishOutcome,
    place: Place,
) -> None:
    """Complete the event of a stream that answered."""
    subject = place[0].decode(errors="replace")
    if isinstance(outcome, JsError):
        was_admitted = outcome.err_code in _OF_STORE
        error = _reason(outcome, headers)
        trace.answered(event, subject=subject if was_admitted else "", error=error)
    elif isinstance(outcome, tuple):
        trace.answered(event, error="msgid is duplicate")
    else:
        trace.answered(event, subject=subject, nointerest=not place[1])


_EXPECTED_LAST_SEQ: Final = b"Nats-Expected-Last-Sequence"
_EXPECTED_SUBJECT_SEQ: Final = b"Nats-Expected-Last-Subject-Sequence"
_EXPECTED_MSG_ID: Final = b"Nats-Expected-Last-Msg-Id"
_OF_STORE: Final = (errors.STREAM_STORE_FAILED.err_code, errors.MESSAGE_TTL_INVALID.err_code)
_TEXTS: Final = {
    errors.STREAM_MESSAGE_EXCEEDS_MAXIMUM.err_code: "maximum payload exceeded",
    errors.STREAM_NOT_MATCH.err_code: "expected stream does not match",
    errors.MESSAGE_TTL_DISABLED.err_code: "message TTL disabled",
}


def _reason(error: JsError, headers: bytes) -> str:
    """Return why a message was not stored, in the words that nats-server has for itself."""
    code, text = error.err_code, error.description
    found = text.rpartition(": ")[2]
    given = partial(_header, headers)
    if code == errors.STREAM_WRONG_LAST_SEQUENCE.err_code:
        by_subject = given(_EXPECTED_SUBJECT_SEQ)
        if by_subject and by_subject != found:
            return f"last sequence by subject mismatch: {by_subject} vs {found}"
        return f"last sequence mismatch: {given(_EXPECTED_LAST_SEQ)} vs {found}"
    if code == errors.STREAM_WRONG_LAST_MSG_ID.err_code:
        return f'last msgid mismatch: "{given(_EXPECTED_MSG_ID)}" vs "{found}"'
    if code in (errors.STREAM_STORE_FAILED.err_code, errors.STREAM_ROLLUP_FAILED.err_code):
        return text
    return _TEXTS.get(code, str(error))


def _header(headers: bytes, key: bytes) -> str:
    return (message_headers.get(headers, key) or b"").decode(errors="replace")
