"""Core NATS: the subject space of one server. What comes in, and where it goes.

Publishes arrive in batches (one socket chunk of one connection) and leave in batches. `PubSub` is
also what a node sees of the network (`node.ports.Wires`). Everything here runs on the event loop.
Below it: who listens (`subscriptions.py`), and how they get it (`fanout.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final

from streamd.config.options import Options
from streamd.limits import CLIENT_SHARE_S, STALL_S
from streamd.machine.message_headers import TRACE_ONLY, are_stored_as_sent, is_trace_only
from streamd.net.pubsub.delivery_sinks import InboxSink, ServerSink
from streamd.net.pubsub.fanout import FanOut
from streamd.net.pubsub.ingest import ingest, is_ingested_as_sent, refuse_fast
from streamd.net.pubsub.pubacks import domain_field
from streamd.net.route.remote_messages import Remotes
from streamd.obs.server_log import Log
from streamd.protocol import acks
from streamd.types import Msg

if TYPE_CHECKING:
    from streamd.net.client.connection import ClientConn
    from streamd.net.client.session import ClientSession
    from streamd.net.route.links import Cluster
    from streamd.node.ports import DeliverSink, NodeHandle, StreamHandle

RESERVED_REPLIES: Final = (b"$JS.ACK.", b"_R_.", b"_GR_.", b"$GR.")
"""A client must not have others answer to these: it would forge acks or service replies."""

_ACK_PREFIX: Final = acks.PREFIX
_FLOW_PREFIX: Final = acks.FLOW_PREFIX
_OWN_PREFIX: Final = b"$JS."
_NEVER_TRACED: Final = (
    _ACK_PREFIX,
    _FLOW_PREFIX,
    b"$JS.API.CONSUMER.MSG.NEXT.",
    b"$JS.API.DIRECT.GET.",
)
"""What is asked of consumers and replicas; whether it is to be traced is not looked at."""


class PubSub(FanOut):
    """The subject space of one server, and the only place that routes messages in it."""

    def __init__(
        self, options: Options, *, server_id: str, server_name: str, log: Log | None = None
    ) -> None:
        super().__init__(options)
        self.server_id = server_id
        self.server_name = server_name
        self.domain_field = domain_field(options.jetstream.domain)  # in acks of publishes
        self._log = log
        self._node: NodeHandle | None = None
        self._topology = -1
        self._when_drained: list[Callable[[], None]] = []
        # Of the chunk being handled: whose acks came last.
        self._ack_key = b""
        self._ack_consumer = ""
        self._ack_stream: StreamHandle | None = None
        self._server_sink = ServerSink(self)
        # What clients of servers without JetStream published, in one note.
        self._gated: dict[StreamHandle, tuple[list[Msg], list[bytes]]] = {}

    def attach(self, node: NodeHandle) -> None:
        """Connect the node whose streams capture subjects. At most once."""
        assert self._node is None
        self._node = node
        self._refresh_topology()

    def attach_peers(
        self, links: Cluster, call_soon: Callable[[Callable[[], None]], Any] | None = None
    ) -> None:
        """Share interest and messages with other nodes. At most once; see `Remotes`."""
        assert self.remotes is None
        self.remotes = Remotes(self, links, self._remote_interest, call_soon)

    def sink(self, subject: bytes, queue: bytes = b"") -> DeliverSink | None:
        if not self.table.find(subject).has_subscribers(queue):
            return None
        return InboxSink(self, subject, queue)

    def on_drained(self) -> None:
        """A connection or link that was congested has room again."""
        if self.remotes is not None:
            self.remotes.on_drained()
        waiting, self._when_drained = self._when_drained, []
        for tell in waiting:
            tell()

    def when_drained(self, tell: Callable[[], None]) -> None:
        self._when_drained.append(tell)

    def _refresh_topology(self) -> None:
        node = self._node
        assert node is not None
        self._topology = node.topology_version
        self.table.set_streams(node.streams_for, node.streams_under)
        self._ack_key = b""
        self._ack_stream = None

    # --- chunks -----------------------------------------------------------------------------------

    def begin_chunk(self) -> None:
        """A connection starts to hand over what one socket chunk held."""
        assert not self.is_in_chunk
        self.is_in_chunk = True
        self.until = self.clock() + CLIENT_SHARE_S
        self._has_slow_receiver = False
        self._has_odd_headers = False
        if self._node is not None and self._node.topology_version != self._topology:
            self._refresh_topology()

    def end_chunk(self, conn: ClientSession) -> None:
        """The chunk is done: post what streams get, write what connections get."""
        if self._collected:
            self.post_collected(conn)
        self._ack_key = b""
        self._ack_stream = None
        self.is_in_chunk = False
        if self.dirty:
            self.write_out(conn)
        rest_s = STALL_S if self._has_slow_receiver else 0.0
        if self.remotes is not None:
            rest_s = max(rest_s, self.remotes.flush())
        if rest_s:
            self.stalled_count += 1
            conn.stall(rest_s)

    # --- publishing -------------------------------------------------------------------------------

    def publish_batch(
        self,
        conn: ClientConn,
        subjects: list[bytes],
        replies: list[bytes] | None,
        headers: list[bytes] | None,
        payloads: list[bytes],
    ) -> int:
        """Route publishes of `conn`, which were allowed. Only between begin and end of a chunk.

        `replies` or `headers` None: no message has one. Returns how many were routed: all, or at
        least one if it took the client's share of the loop.
        """
        if self.remotes is not None and self.remotes.has_untold:
            self.remotes.tell()  # before anything that may be answered from there
        if headers is not None:
            joined = b"".join(headers)
            if not are_stored_as_sent(joined):
                self._has_odd_headers = True  # of the whole chunk: they may wait to be posted
                if TRACE_ONLY in joined:
                    return self._publish_traced(conn, subjects, replies, headers, payloads)
        return self._publish_all(conn, subjects, replies, headers, payloads)

    def _publish_all(
        self,
        conn: ClientConn,
        subjects: list[bytes],
        replies: list[bytes] | None,
        headers: list[bytes] | None,
        payloads: list[bytes],
    ) -> int:
        subject = subjects[0]
        if subjects.count(subject) == len(subjects) and not subject.startswith(_OWN_PREFIX):
            route = self.table.routes.get(subject) or self.table.find(subject)
            if route.only_stream is not None:
                self._collect_run(route.only_stream, subject, replies, headers, payloads)
                return len(payloads)
            return self._route_run(conn, route, subject, replies, headers, payloads)
        if subject.startswith(_ACK_PREFIX) and not self._ack_watcher_count:
            if self._take_acks(conn, subjects, replies, headers, payloads):
                return len(payloads)
        routes = self.table.routes
        stream: StreamHandle | None = None
        add_msg: Callable[[Msg], None] = _ignore
        add_reply: Callable[[bytes], None] = _ignore
        length, size_text = -1, b""  # of the payload before
        clock, until = self.clock, self.until
        coming = iter(payloads)
        for subject, reply, header, payload in zip(
            subjects, replies or repeat(b""), headers or repeat(b""), coming, strict=False
        ):
            route_or_none = routes.get(subject)
            if route_or_none is None:
                if subject.startswith(_OWN_PREFIX):
                    if self._collected:
                        self.post_collected(conn)
                        stream = None
                    if self._take_ack(subject, reply, header, payload):
                        continue
                route = self.table.find(subject)
            else:
                route = route_or_none
            wanted = route.only_stream
            if wanted is not None:
                if wanted is not stream:
                    stream = wanted
                    msgs, answers = self._collecting(wanted)
                    add_msg, add_reply = msgs.append, answers.append
                add_msg((subject, header, payload))
                add_reply(reply)
                continue
            sole = route.sole
            if sole is not None and not header and not reply and not sole.max_msgs:
                # As `_deliver_one`, without the calls.
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
                        self.dirty.append(receiver)
                    continue
            self.route_one(conn, route, subject, reply, header, payload)
            stream = None  # routing may have posted what was collected
            if clock() >= until:
                break
        return len(payloads) - length_hint(coming)

    def _publish_traced(
        self,
        conn: ClientConn,
        subjects: list[bytes],
        replies: list[bytes] | None,
        headers: list[bytes],
        payloads: list[bytes],
    ) -> int:
        """As `_publish_all`, where some messages may be meant to reach nobody."""
        done = 0
        for subject, reply, header, payload in zip(
            subjects, replies or repeat(b""), headers, payloads, strict=False
        ):
            if subject.startswith(_NEVER_TRACED) or not is_trace_only(header):
                self._publish_all(conn, [subject], [reply], [header], [payload])
            else:
                self._trace_only(conn, (subject, header, payload), reply)
            done += 1
            if self.clock() >= self.until:
                break
        return done

    def _trace_only(self, conn: ClientConn, msg: Msg, reply: bytes) -> None:
        """Deliver nothing; the client hears only where nobody would have got the message. Requests
        to the server itself are not done, and count as that."""
        subject = msg[0]
        route = self.table.find(subject)
        if route.is_forbidden:
            conn.forbid_publish(subject)
            return
        refused = [refuse_fast(stream, msg, reply, conn) for stream in route.streams]
        listeners = (*route.plain, *(member for group in route.queues for member in group))
        is_wanted = bool(refused or route.remote is not None) or any(
            sub.callback is None and sub.is_open and (sub.conn is not conn or conn.has_echo)
            for sub in listeners
        )
        if not is_wanted and reply and conn.is_told_no_responders:
            self._tell_no_responders(conn, subject, reply)

    def publish_lone(
        self, conn: ClientConn, subject: bytes, reply: bytes, header: bytes, payload: bytes
    ) -> bool:
        """`publish_batch` of a chunk with one message, if that goes to a stream here and to nobody
        else; False: nothing was done."""
        node, remotes = self._node, self.remotes
        if node is None or node.topology_version != self._topology:
            return False
        route = self.table.routes.get(subject)
        if route is None or subject.startswith(_OWN_PREFIX):
            return False
        stream = route.only_stream
        if stream is None or stream.config.get("no_ack"):
            return False
        if not is_ingested_as_sent(reply, header):
            return False
        if remotes is not None and (remotes.has_untold or not stream.is_local):
            return False
        stream.publish([(subject, header, payload)], [reply], conn)
        return True

    def _collect_run(
        self,
        stream: StreamHandle,
        subject: bytes,
        replies: list[bytes] | None,
        headers: list[bytes] | None,
        payloads: list[bytes],
    ) -> None:
        msgs = list(
            zip(repeat(subject), headers or repeat(b""), payloads, strict=False),
        )
        answers = replies if replies is not None else [b""] * len(payloads)
        collecting = self._collected.get(stream)
        if collecting is None:
            self._collected[stream] = (msgs, answers)
        else:
            collecting[0].extend(msgs)
            collecting[1].extend(answers)

    # --- acks of deliveries -----------------------------------------------------------------------

    def _take_acks(
        self,
        conn: ClientConn,
        subjects: list[bytes],
        replies: list[bytes] | None,
        headers: list[bytes] | None,
        payloads: list[bytes],
    ) -> bool:
        """Handle a batch that is all acks for one consumer; False: it is not, nothing was done."""
        subject = subjects[0]
        tokens = subject.split(b".")
        if self._node is None or len(tokens) != 9:
            return False
        key = b".".join(tokens[:4]) + b"."
        # All lie between the least and the greatest, so if both begin with the key all do.
        if not (min(subjects).startswith(key) and max(subjects).startswith(key)):
            return False
        stream = self._stream_named(tokens[2])
        if stream is None or not stream.takes_acks(tokens[3].decode(errors="replace")):
            return False  # nobody is there: who wants an answer hears "no responders"
        if self._collected:
            self.post_collected(conn)
        stream.acks(subjects, replies, payloads)
        return True

    def _take_ack(self, subject: bytes, reply: bytes, header: bytes, payload: bytes) -> bool:
        """Handle an ack or flow-control reply; False: it is none, or others want to see it."""
        if not subject.startswith(_ACK_PREFIX):
            if not subject.startswith(_FLOW_PREFIX) or self._node is None:
                return False
            tokens = subject.split(b".", 4)
            stream = self._stream_named(tokens[2]) if len(tokens) == 5 else None
            if stream is None:
                return False
            stream.flow_reply(tokens[3].decode(errors="replace"), subject, header)
            return self._ack_watcher_count == 0
        key = self._ack_key
        if not key or not subject.startswith(key):
            if self._node is None:
                return False
            tokens = subject.split(b".")
            at = 2 if len(tokens) == 9 else 4
            if len(tokens) != 9 and len(tokens) < 11:
                return False
            self._ack_stream = self._stream_named(tokens[at])
            self._ack_key = b".".join(tokens[: at + 2]) + b"."
            self._ack_consumer = tokens[at + 1].decode(errors="replace")
        if self._ack_stream is None or not self._ack_stream.takes_acks(self._ack_consumer):
            self._ack_key = b""
            return False
        self._ack_stream.acks([subject], [reply] if reply else None, [payload])
        return self._ack_watcher_count == 0

    def _stream_named(self, name: bytes) -> StreamHandle | None:
        assert self._node is not None
        return self._node.stream(name.decode(errors="replace"))

    # --- from the server itself -------------------------------------------------------------------

    def publish(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        node = self._node
        if node is not None and node.topology_version != self._topology:
            self._refresh_topology()
        route = self.table.find(subject)
        is_odd = bool(route.streams and headers) and not are_stored_as_sent(headers)
        for stream in route.streams:
            msgs = [(subject, headers, payload)]
            ingest(stream, msgs, [reply], self._server_sink, has_odd_headers=is_odd)
        if route.plain or route.queues or route.remote:
            self.route_one(None, route, subject, reply, headers, payload)
            self.flush_if_idle()

    def publish_for(
        self, client: Any, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> None:
        """Take in what a client of a server without JetStream published, as far as that concerns
        streams and the API; `published_for` ends a run of these. Who else listens got it from
        there. (See gate.py.)"""
        node = self._node
        if node is not None and node.topology_version != self._topology:
            self._refresh_topology()
        if subject.startswith(_OWN_PREFIX):
            self._post_gated()
            self._ack_key = b""
            if self._take_ack(subject, reply, headers, payload):
                return
        route = self.table.find(subject)
        for stream in route.streams:
            msgs, replies = self._gated.setdefault(stream, ([], []))
            msgs.append((subject, headers, payload))
            replies.append(reply)
        for sub in route.plain:
            if sub.callback is not None and not sub.is_told:
                sub.callback(subject, reply, headers, payload, client)

    def published_for(self) -> None:
        """Hand what came by `publish_for` to the streams, and write out what followed."""
        self._post_gated()
        self._ack_key = b""
        self.flush_if_idle()

    def _post_gated(self) -> None:
        gated, self._gated = self._gated, {}
        for stream, (msgs, replies) in gated.items():
            is_odd = not are_stored_as_sent(b"".join(msg[1] for msg in msgs))
            ingest(stream, msgs, replies, self._server_sink, has_odd_headers=is_odd)


def _ignore(_value: Any) -> None: ...
