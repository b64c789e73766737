"""Core NATS: the router of one subject space, from publishes to their receivers.

Publishes arrive in batches (one socket chunk of one connection) and leave in batches. Everything
here runs on the event loop. `MessageRouter` owns the parts of its subject space:

    Subscriptions  interest, and the table of routes           `subscriptions.py`
    FanOut         delivery to clients and other nodes         `fanout.py`
    Ingest         publishes that wait for their streams       `ingest.py`
    DeliveryAcks   acks of deliveries, to their consumers      `delivery_acks.py`
    TracedDelivery messages that are traced                    `traced_delivery.py`

and shares the server's `OutputQueue`. It is also what a node sees of the network
(`node.ports.Wires`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import length_hint
from typing import TYPE_CHECKING, Final, Protocol

from streamd.callbacks import ignore
from streamd.limits import STALL_S
from streamd.machine.message_headers import TRACE_DEST, are_stored_as_sent
from streamd.net.pubsub.delivery_acks import ACK_PREFIX, FLOW_PREFIX, DeliveryAcks, NamedStreams
from streamd.net.pubsub.delivery_sinks import InboxSink, ServerSink, deliver_from_leaf
from streamd.net.pubsub.fanout import SERVICE_REPLIES, FanOut, LeafPublisher, Publisher
from streamd.net.pubsub.ingest import Ingest, ingest, is_ingested_as_sent
from streamd.net.pubsub.joined_streams import ImportingStreams, JoinedStreams
from streamd.net.pubsub.message_trace import Kind, MessageTrace, has_traceparent
from streamd.net.pubsub.message_tracing import MessageTracing
from streamd.net.pubsub.output_queue import OutputQueue
from streamd.net.pubsub.own_requests import Delivered, ServerRequester, own_subscription
from streamd.net.pubsub.pubacks import domain_field
from streamd.net.pubsub.remote_routes import OtherNodes
from streamd.net.pubsub.subject_routes import CapturingStream, no_streams
from streamd.net.pubsub.sublist import Callback, Subscription
from streamd.net.pubsub.subscriptions import Subscriptions
from streamd.net.pubsub.traced_delivery import TracedDelivery, TracedMsg
from streamd.protocol.leaf_protocol import LeafMsg
from streamd.subject_mapping import WeightedMappings
from streamd.types import ACCOUNT, Msg

if TYPE_CHECKING:  # a server without streams does not load that room
    from streamd.node.ports import DeliverSink, PublishSink

RESERVED_REPLIES: Final = (b"$JS.ACK.", SERVICE_REPLIES, b"_GR_.", b"$GR.")
"""A client must not have others answer to these: it would forge acks or service replies."""

_OWN_PREFIX: Final = b"$JS."
_NEVER_TRACED: Final = (
    ACK_PREFIX,
    FLOW_PREFIX,
    b"$JS.API.CONSUMER.MSG.NEXT.",
    b"$JS.API.DIRECT.GET.",
)
"""Requests to consumers and replicas; whether one of these is to be traced is not looked at."""


_SERVER: Final = ServerRequester()


class Streams(NamedStreams, Protocol):
    """The streams of a node, as routing sees them."""

    @property
    def topology_version(self) -> int:
        """Another number whenever anything about streams has changed."""

    def streams_for(self, subject: bytes) -> tuple[CapturingStream, ...]:
        """Streams that capture `subject`."""

    def streams_under(self, prefix: bytes) -> tuple[CapturingStream, ...] | None:
        """Streams that capture every subject of `prefix` and one more token; None: some capture
        only a part of them."""


class MessageRouter:
    """Routes messages in one subject space; nothing else does."""

    def __init__(
        self,
        *,
        account: str = ACCOUNT,
        domain: str = "",
        output_queue: OutputQueue | None = None,
        tracing: MessageTracing | None = None,
    ) -> None:
        """`domain`: JetStream's, which acks name."""
        self.account = account
        self.output_queue = output_queue if output_queue is not None else OutputQueue()
        self.subscriptions = Subscriptions()
        self.domain_field = domain_field(domain)
        self._domain_prefix = b"$JS.%b.API." % domain.encode() if domain else b""
        self.stalled_count = 0  # chunks after which their publisher was told to rest
        self._routes = self.subscriptions.table.routes
        self._find = self.subscriptions.table.find
        self._ingest = Ingest()
        self.fanout = FanOut(self.subscriptions.table, self.output_queue, self._ingest)
        self._acks = DeliveryAcks(self.subscriptions, self._ingest)
        self.mappings: WeightedMappings | None = None  # of publishes; None: there are none
        self.own_streams: Streams | None = None  # of this account; None: it has none
        self._importing: Sequence[ImportingStreams] = ()
        self._streams: Streams | JoinedStreams | None = None  # with those of importing accounts
        self._topology = -1
        self._remotes: OtherNodes | None = None  # None: no other nodes
        self._when_drained: list[Callable[[], None]] = []
        self._server_sink = ServerSink(self.publish, self.domain_field)
        self.traced = TracedDelivery(
            account,
            tracing if tracing is not None else MessageTracing(),
            self.subscriptions.table,
            self.fanout,
            self._ingest,
            self._server_sink,
        )
        # Publishes of clients of servers without JetStream, of one note.
        self._gateway_ingest = Ingest()

    def attach(self, streams: Streams) -> None:
        """Connect the node whose streams capture subjects. At most once."""
        assert self.own_streams is None
        self.own_streams = self._acks.streams = streams
        self._join_streams()

    @property
    def server_sink(self) -> ServerSink:
        """The sink for acks of publishes that no client of this account made."""
        return self._server_sink

    def set_importing(self, importing: Sequence[ImportingStreams]) -> None:
        """Let streams of these accounts capture what they import of this one's subjects."""
        self._importing = importing
        self._join_streams()

    def _join_streams(self) -> None:
        self._streams = self.own_streams
        if self._importing:
            self._streams = JoinedStreams(self.own_streams, self._importing)
        if self._streams is not None:
            self._refresh_topology()
        else:
            self.subscriptions.table.set_streams(no_streams, no_streams)

    def attach_remotes(self, remotes: OtherNodes) -> None:
        """Share interest and messages with other nodes. At most once."""
        assert self._remotes is None
        self._remotes = self.fanout.remotes = self.subscriptions.remotes = remotes

    def _refresh_topology(self) -> None:
        streams = self._streams
        assert streams is not None
        self._topology = streams.topology_version
        for each in self._importing:
            each.forget()
        self.subscriptions.table.set_streams(streams.streams_for, streams.streams_under)
        self._acks.forget()

    # --- for the node and the API -----------------------------------------------------------------

    def sink(self, subject: bytes, queue: bytes = b"") -> DeliverSink | None:
        """See ports.Wires."""
        if not self.subscriptions.table.find(subject).has_subscribers(queue):
            return None
        return InboxSink(self.fanout, subject, queue)

    def has_interest(self, subject: bytes) -> bool:
        """See ports.Wires."""
        return self.subscriptions.has_interest(subject)

    def watch(self, subject: bytes, queue: bytes, on_change: Callable[[bool], None]) -> object:
        """See ports.Wires."""
        return self.subscriptions.watch(subject, queue, on_change)

    def unwatch(self, token: object) -> None:
        """See ports.Wires."""
        self.subscriptions.unwatch(token)

    def listen(self, pattern: bytes, on_message: Callback) -> object:
        """See api.request.ApiWires."""
        sub = self.subscriptions.subscribe_internal(pattern, on_message, is_told=True)
        if self._remotes is not None:
            self._remotes.tell()  # before the message that says what to publish there
        return sub

    def unlisten(self, token: object) -> None:
        """See api.request.ApiWires."""
        assert isinstance(token, Subscription)
        self.subscriptions.unsubscribe(token)

    def when_drained(self, tell: Callable[[], None]) -> None:
        """See ports.Wires."""
        self._when_drained.append(tell)

    def on_drained(self) -> None:
        """Resume deliveries that wait for room: a congested connection or link has some again."""
        if self._remotes is not None:
            self._remotes.on_drained()
        waiting, self._when_drained = self._when_drained, []
        for tell in waiting:
            tell()

    # --- chunks -----------------------------------------------------------------------------------

    def begin_chunk(self) -> None:
        """Begin with the publishes of one socket chunk of a connection."""
        self.output_queue.begin_chunk()
        self._ingest.has_odd_headers = False
        if self._streams is not None and self._streams.topology_version != self._topology:
            self._refresh_topology()

    def end_chunk(self, conn: Publisher) -> None:
        """Post publishes to their streams, write output; have `conn` rest if a receiver or another
        node is far behind."""
        if self._ingest.collected:
            self._ingest.post(conn)
        self._acks.forget()
        rest_s = STALL_S if self.output_queue.end_chunk(conn) else 0.0
        if self._remotes is not None:
            is_forwarded = self._ingest.take_forwarded()
            rest_s = max(rest_s, self._remotes.flush(is_forwarded=is_forwarded))
        if rest_s:
            self.stalled_count += 1
            conn.stall(rest_s)

    def post_collected(self, sink: PublishSink) -> None:
        """Hand publishes collected so far to their streams, before something that must follow."""
        self._ingest.post(sink)

    # --- publishing -------------------------------------------------------------------------------

    def publish_batch(
        self,
        conn: Publisher,
        subjects: list[bytes],
        replies: list[bytes] | None,
        headers: list[bytes] | None,
        payloads: list[bytes],
    ) -> int:
        """Route publishes of `conn`, which were allowed. Only between begin and end of a chunk.

        `replies` or `headers` None: no message has one. Returns how many were routed: all, or at
        least one if it took the client's share of the loop.
        """
        if self._remotes is not None and self._remotes.has_untold:
            self._remotes.tell()  # before anything that may be answered from there
        if headers is not None:
            joined = b"".join(headers)
            if not are_stored_as_sent(joined):
                # Of the whole chunk: they may wait to be posted.
                self._ingest.has_odd_headers = True
                if TRACE_DEST in joined:
                    return self._publish_traced(conn, subjects, replies, headers, payloads)
            if self.traced.sampling is not None and has_traceparent(joined):
                return self._publish_traced(conn, subjects, replies, headers, payloads)
        return self._publish_all(conn, subjects, replies, headers, payloads)

    def _publish_all(
        self,
        conn: Publisher,
        subjects: list[bytes],
        replies: list[bytes] | None,
        headers: list[bytes] | None,
        payloads: list[bytes],
    ) -> int:
        subject = subjects[0]
        if subjects.count(subject) == len(subjects) and not subject.startswith(_OWN_PREFIX):
            route = self._routes.get(subject) or self._find(subject)
            if route.only_stream is not None:
                self._ingest.collect_run(route.only_stream, subject, replies, headers, payloads)
                return len(payloads)
            return self.fanout.route_run(conn, route, subject, replies, headers, payloads)
        if subject.startswith(ACK_PREFIX) and not self.subscriptions.ack_watcher_count:
            if self._acks.take_batch(conn, subjects, replies, payloads):
                return len(payloads)
        stream: CapturingStream | None = None
        add_msg: Callable[[Msg], None] = ignore
        add_reply: Callable[[bytes], None] = ignore
        length, size_text = -1, b""  # of the payload before
        routes, find, route_one = self._routes, self._find, self.fanout.route_one
        clock, until, dirty = (
            self.output_queue.clock,
            self.output_queue.until,
            self.output_queue.dirty,
        )
        waiting, take_ack = self._ingest, self._acks.take
        coming = iter(payloads)
        for subject, reply, header, payload in zip(
            subjects, replies or repeat(b""), headers or repeat(b""), coming, strict=False
        ):
            route_or_none = routes.get(subject)
            if route_or_none is None:
                if subject.startswith(_OWN_PREFIX):
                    if waiting.collected:
                        waiting.post(conn)
                        stream = None
                    if take_ack(subject, reply, header, payload):
                        continue
                route = find(subject)
            else:
                route = route_or_none
            wanted = route.only_stream
            if wanted is not None:
                if wanted is not stream:
                    stream = wanted
                    msgs, answers = waiting.collecting(wanted)
                    add_msg, add_reply = msgs.append, answers.append
                add_msg((subject, header, payload))
                add_reply(reply)
                continue
            sole = route.sole
            if sole is not None and not header and not reply and not sole.max_msgs:
                # As `deliver_one`, without the calls.
                receiver = sole.conn
                if receiver is not conn:
                    if len(payload) != length:
                        length = len(payload)
                        size_text = b"%d" % length
                    receiver.out += (route.start + size_text, payload)
                    receiver.out_msgs += 1
                    receiver.out_bytes += length
                    sole.delivered_count += 1
                    if not receiver.is_dirty:
                        receiver.is_dirty = True
                        dirty.append(receiver)
                    continue
            route_one(conn, route, subject, reply, header, payload)
            stream = None  # routing may have posted what was collected
            if clock() >= until:
                break
        return len(payloads) - length_hint(coming)

    def _publish_traced(
        self,
        conn: Publisher,
        subjects: list[bytes],
        replies: list[bytes] | None,
        headers: list[bytes],
        payloads: list[bytes],
    ) -> int:
        """As `_publish_all`, where some messages may be traced."""
        clock, until = self.output_queue.clock, self.output_queue.until
        done = 0
        for subject, reply, header, payload in zip(
            subjects, replies or repeat(b""), headers, payloads, strict=False
        ):
            trace, header = self.begin_trace(conn, subject, header, payload)
            if trace is None:
                self._publish_all(conn, [subject], [reply], [header], [payload])
            else:
                msg = TracedMsg(trace, subject, reply, header, payload)
                self.traced.publish(conn, msg)
            done += 1
            if clock() >= until:
                break
        return done

    def may_be_traced(self, headers: list[bytes]) -> bool:
        """Return True if messages with some of these header blocks may have to be traced."""
        joined = b"".join(headers)
        if TRACE_DEST in joined:
            return True
        return self.traced.sampling is not None and has_traceparent(joined)

    def begin_trace(
        self, conn: Publisher, subject: bytes, header: bytes, payload: bytes
    ) -> tuple[MessageTrace | None, bytes]:
        """Return the trace of a publish, None if it has none, and its headers as they go on."""
        if subject.startswith(_NEVER_TRACED):
            return None, header
        return self.traced.begin(conn, Kind.CLIENT, subject, header, payload)

    def publish_trace(self, conn: Publisher, msg: TracedMsg) -> None:
        """Route a traced publish that was allowed. Only between begin and end of a chunk."""
        if self._remotes is not None and self._remotes.has_untold:
            self._remotes.tell()
        self.traced.publish(conn, msg)

    def publish_lone(
        self, conn: Publisher, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> bool:
        """`publish_batch` of a chunk with one message, if a stream here is its only receiver;
        False: nothing was done."""
        streams, remotes = self._streams, self._remotes
        if streams is None or streams.topology_version != self._topology:
            return False
        route = self._routes.get(subject)
        if route is None or subject.startswith(_OWN_PREFIX):
            return False
        stream = route.only_stream
        if stream is None or stream.config.get("no_ack"):
            return False
        if not is_ingested_as_sent(reply, header):
            return False
        if header and self.traced.sampling is not None:
            return False
        if remotes is not None and (remotes.has_untold or not stream.is_local):
            return False
        stream.publish([(subject, header, payload)], [reply], conn)
        return True

    # --- from the server itself -------------------------------------------------------------------

    def publish(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        """See ports.Wires."""
        streams = self._streams
        if streams is not None and streams.topology_version != self._topology:
            self._refresh_topology()
        route = self._find(subject)
        self._ingest_of_server(route.streams, subject, reply, headers, payload)
        if route.plain or route.queues or route.remote or route.leafs:
            fanout = self.fanout
            # It may come out of a request of another account; it is this account's own.
            before, fanout.imported = fanout.imported, None
            try:
                fanout.route_one(None, route, subject, reply, headers, payload)
            finally:
                fanout.imported = before
            fanout.flush_if_idle()

    def subscribe(self, subject: bytes, on_messages: Delivered) -> object:
        """See ports.Wires."""
        sub = own_subscription(subject, on_messages)
        self.subscriptions.subscribe(sub)
        return sub

    def unsubscribe(self, token: object) -> None:
        """See ports.Wires."""
        assert isinstance(token, Subscription)
        if token.is_open:
            self.subscriptions.unsubscribe(token)

    def request(
        self, subject: bytes, reply: bytes, headers: bytes, payload: bytes, *, is_external: bool
    ) -> None:
        """See ports.Wires."""
        if is_external and subject.startswith(FLOW_PREFIX):
            # A stream here may have the name of the one that is meant, which is elsewhere.
            route = self._find(subject)
            if route.plain or route.remote or route.leafs:
                self.publish(subject, reply, headers, payload)
                return
        self.publish_imported(_SERVER, subject, reply, headers, payload)

    # --- from other accounts ----------------------------------------------------------------------

    def map(self, subject: bytes) -> bytes | None:
        """Return what a published subject becomes by JetStream's domain and this account's
        mappings; None: it is dropped."""
        subject = self.without_domain(subject)
        return subject if self.mappings is None else self.mappings.map(subject)

    def is_mapped(self, subject: bytes) -> bool:
        """Return True if a mapping is for a published subject, even if it leads to itself."""
        if self.without_domain(subject) != subject:
            return True
        return self.mappings is not None and self.mappings.has(subject)

    def without_domain(self, subject: bytes) -> bytes:
        """Return the subject that `$JS.<domain>.API.>` stands for; any other as it is."""
        prefix = self._domain_prefix
        if not prefix or not subject.startswith(prefix):
            return subject
        rest = subject[len(prefix) :]
        # Clients name keys and objects of another domain so.
        return rest if rest.startswith((b"$KV.", b"$OBJ.")) else b"$JS.API." + rest

    def publish_imported(
        self,
        imported: object,
        subject: bytes,
        reply: bytes,
        headers: bytes,
        payload: bytes,
        trace: MessageTrace | None = None,
    ) -> int:
        """Deliver a request or response of another account; returns to how many receivers.

        `imported` says where it comes from, to the imports of this account (`FanOut.imported`).
        Answers of streams go to `reply` in this account, not to the client that published. `trace`:
        of the message, if it is traced here too.
        """
        streams = self._streams
        if streams is not None and streams.topology_version != self._topology:
            self._refresh_topology()
        if self._remotes is not None and self._remotes.has_untold:
            self._remotes.tell()  # before anything that may be answered from there
        if subject.startswith(_OWN_PREFIX) and self._acks.take(subject, reply, headers, payload):
            self._acks.forget()
            return 1
        route = self._find(subject)
        if route.is_forbidden:
            return 0
        if trace is None:
            self._ingest_of_server(route.streams, subject, reply, headers, payload)
        before, self.fanout.imported = self.fanout.imported, imported
        try:
            if trace is not None:
                msg = TracedMsg(trace, subject, reply, headers, payload)
                count = self.traced.pass_through(msg)
            else:
                count = self.fanout.route_one(None, route, subject, reply, headers, payload)
        finally:
            self.fanout.imported = before
        self.fanout.flush_if_idle()
        if self._remotes is not None:
            self._remotes.schedule_messages()  # the end of the chunk sends the other account's
        return count

    def _ingest_of_server(
        self,
        streams: Sequence[CapturingStream],
        subject: bytes,
        reply: bytes,
        headers: bytes,
        payload: bytes,
    ) -> None:
        is_odd = bool(streams and headers) and not are_stored_as_sent(headers)
        for stream in streams:
            msgs = [(subject, headers, payload)]
            ingest(stream, msgs, [reply], self._server_sink, has_odd_headers=is_odd)

    # --- from leaf links --------------------------------------------------------------------------

    def publish_from_leaf(self, conn: LeafPublisher, msgs: Sequence[LeafMsg]) -> int:
        """Route messages of a leaf link, which were allowed. Only between begin and end of a chunk.
        Returns how many were routed: all, or at least one if that took the link's share of the
        loop."""
        if self._remotes is not None and self._remotes.has_untold:
            self._remotes.tell()
        clock, until = self.output_queue.clock, self.output_queue.until
        for at, (subject, reply, queues, headers, payload) in enumerate(msgs):
            if at and clock() >= until:
                return at
            if headers and not are_stored_as_sent(headers):
                self._ingest.has_odd_headers = True
            if subject.startswith(_OWN_PREFIX):
                self._ingest.post(conn)
                if self._acks.take(subject, reply, headers, payload):
                    continue
            if headers and self.may_be_traced([headers]):
                trace, headers = self.traced.begin(conn, Kind.LEAF, subject, headers, payload)
                if trace is not None:
                    msg = TracedMsg(trace, subject, reply, headers, payload)
                    self.traced.publish_from_leaf(conn, msg, queues)
                    continue
            if reply.startswith(ACK_PREFIX) and b"@" in reply:
                ack, _, stored = reply.partition(b"@")
                batch = [(stored, ack, headers, payload)]
                deliver_from_leaf(self.fanout, conn.peer, subject, queues, batch)
                continue
            route = self._routes.get(subject) or self._find(subject)
            self.fanout.route_from_leaf(conn, route, subject, reply, headers, payload, queues)
        return len(msgs)

    # --- for servers without JetStream (net/route/jetstream_gateway.py) ---------------------------

    def publish_for(
        self, client: object, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> None:
        """Take in a message of a client of a server without JetStream, as far as that concerns
        streams and the API; `published_for` ends a run of these. All other subscribers got it from
        that server."""
        streams = self._streams
        if streams is not None and streams.topology_version != self._topology:
            self._refresh_topology()
        if subject.startswith(_OWN_PREFIX):
            self._post_gateway()
            self._acks.forget()
            if self._acks.take(subject, reply, headers, payload):
                return
        route = self._find(subject)
        for stream in route.streams:
            msgs, replies = self._gateway_ingest.collecting(stream)
            msgs.append((subject, headers, payload))
            replies.append(reply)
        for sub in route.plain:
            # That server also passed on the requests to services of other accounts.
            if sub.callback is not None and not sub.is_told and sub.relay is None:
                sub.callback(subject, reply, headers, payload, client)

    def published_for(self) -> None:
        """Post the messages of `publish_for` to their streams, and write the output."""
        self._post_gateway()
        self._acks.forget()
        self.fanout.flush_if_idle()

    def _post_gateway(self) -> None:
        waiting = self._gateway_ingest
        waiting.has_odd_headers = any(
            not are_stored_as_sent(b"".join(msg[1] for msg in msgs))
            for msgs, _ in waiting.collected.values()
        )
        waiting.post(self._server_sink)
