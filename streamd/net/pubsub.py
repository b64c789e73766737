"""Core NATS: who gets which message. The registry of subscriptions, and the fan-out.

Publishes arrive in batches (one socket chunk of one connection) and leave in batches: lines for
each receiving connection are collected and written once per chunk, messages for a stream are
collected and posted to its group once per chunk. `PubSub` is also what a node sees of the network
(`node.ports.Wires`). Everything here runs on the event loop.

A connection's output is a list of lines without their CRLF, joined at the flush; a message is two
of them, its control line and its payload. So a payload is copied once, by the join.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final

from streamd.config.options import Options
from streamd.net.facts import connection_facts
from streamd.net.interest import RemoteInterest, sees_acks
from streamd.net.monitoring import ConnectionFacts
from streamd.net.pubacks import domain_field
from streamd.net.remote import Links, Remotes
from streamd.net.routes import Route, RouteTable
from streamd.net.sinks import InboxSink, ServerSink
from streamd.net.sublist import Callback, Sublist, Subscription
from streamd.obs.log import Log
from streamd.protocol import acks
from streamd.types import Msg

if TYPE_CHECKING:
    from streamd.net.client_conn import ClientConn
    from streamd.net.client_output import ClientOutput
    from streamd.net.client_session import ClientSession
    from streamd.node.ports import DeliverSink, NodeHandle, StreamHandle

RESERVED_REPLIES: Final = (b"$JS.ACK.", b"_R_.", b"_GR_.")
"""A client must not have others answer to these: it would forge acks or service replies."""

_ACK_PREFIX: Final = acks.PREFIX
_FLOW_PREFIX: Final = acks.FLOW_PREFIX
_OWN_PREFIX: Final = b"$JS."


class Watch:
    """Somebody who wants to know when interest in a subject appears or ends."""

    __slots__ = ("has_interest", "on_change", "queue", "subject")

    def __init__(self, subject: bytes, queue: bytes, on_change: Callable[[bool], None]) -> None:
        self.subject = subject
        self.queue = queue
        self.on_change = on_change
        self.has_interest = False


class PubSub:
    """The subject space of one server, and the only place that routes messages in it."""

    def __init__(
        self, options: Options, *, server_id: str, server_name: str, log: Log | None = None
    ) -> None:
        self.options = options
        self.server_id = server_id
        self.server_name = server_name
        self.domain_field = domain_field(options.jetstream.domain)  # in acks of publishes
        self._log = log
        self.sublist = Sublist()
        self._remote_interest = RemoteInterest()
        self.table = RouteTable(self.sublist, self._remote_interest.sublist)
        self.remotes: Remotes | None = None  # None: no other nodes
        self.conns: dict[int, ClientConn] = {}  # by cid; registered by the listener
        self.closed: deque[ConnectionFacts] = deque(maxlen=max(0, options.max_closed_clients))
        # Totals of connections that are gone; the living are added when somebody asks.
        self.closed_in_msgs = self.closed_in_bytes = 0
        self.closed_out_msgs = self.closed_out_bytes = 0
        self.slow_consumers_count = 0
        self.stale_connections_count = 0
        self.stalled_count = 0
        self.connections_total = 0
        self.server_in_msgs = 0  # published by the server itself
        self._node: NodeHandle | None = None
        self._topology = -1
        self._on_drained: Callable[[], None] = _nothing
        self._watches: dict[bytes, list[Watch]] = {}
        # Subscriptions of clients that could see acks; while 0, acks need no routing.
        self._ack_watcher_count = 0
        self._remote_ack_watcher_count = 0  # those of them at other nodes
        # Of the chunk being handled: connections with output, publishes for streams, acks' stream.
        self.dirty: list[ClientOutput] = []
        self.is_in_chunk = False
        self._collected: dict[StreamHandle, tuple[list[Msg], list[bytes]]] = {}
        self._ack_key = b""
        self._ack_consumer = ""
        self._ack_stream: StreamHandle | None = None
        self._dice = int(time.monotonic_ns()) & 0xFFFF  # picks queue members; any start will do
        self._server_sink = ServerSink(self)

    def attach(self, node: NodeHandle) -> None:
        """Connect the node whose streams capture subjects. At most once."""
        assert self._node is None
        self._node = node
        self._on_drained = getattr(node, "on_drained", _nothing)
        self._refresh_topology()

    def attach_peers(
        self, links: Links, call_soon: Callable[[Callable[[], None]], Any] | None = None
    ) -> None:
        """Share interest and messages with other nodes. At most once; see `Remotes`."""
        assert self.remotes is None
        self.remotes = Remotes(self, links, self._remote_interest, call_soon)

    # --- totals, for monitoring -----------------------------------------------------------------

    @property
    def in_msgs(self) -> int:
        return self.closed_in_msgs + sum(conn.in_msgs for conn in self.conns.values())

    @property
    def in_bytes(self) -> int:
        return self.closed_in_bytes + sum(conn.in_bytes for conn in self.conns.values())

    @property
    def out_msgs(self) -> int:
        return self.closed_out_msgs + sum(conn.out_msgs for conn in self.conns.values())

    @property
    def out_bytes(self) -> int:
        return self.closed_out_bytes + sum(conn.out_bytes for conn in self.conns.values())

    def conn_closing(self, conn: ClientConn) -> None:
        """A connection ends: its counters join the totals, its facts the ring of closed ones."""
        if self.conns.pop(conn.cid, None) is None:
            return
        self.closed_in_msgs += conn.in_msgs
        self.closed_in_bytes += conn.in_bytes
        self.closed_out_msgs += conn.out_msgs
        self.closed_out_bytes += conn.out_bytes
        self.closed.append(connection_facts(conn))

    # --- subscriptions --------------------------------------------------------------------------

    def subscribe(self, sub: Subscription) -> None:
        """Add a client's subscription."""
        self.sublist.insert(sub)
        self.table.on_interest_changed(sub.pattern)
        if sees_acks(sub.pattern):
            self._ack_watcher_count += 1
        if self.remotes is not None:
            self.remotes.subscribed(sub)
        if self._watches:
            self._tell_watches(sub.pattern)

    def unsubscribe(self, sub: Subscription) -> None:
        """Take a subscription out; it gets no message from here on."""
        sub.is_open = False
        self.sublist.remove(sub)
        self.table.on_interest_changed(sub.pattern)
        if sub.callback is None:
            if sees_acks(sub.pattern):
                self._ack_watcher_count -= 1
            if self.remotes is not None:
                self.remotes.unsubscribed(sub)
        if self._watches:
            self._tell_watches(sub.pattern)

    def subscribe_internal(self, pattern: bytes, callback: Callback) -> Subscription:
        """Have `callback(subject, reply, headers, payload, conn)` called for each message."""
        sub = Subscription(pattern, callback=callback)
        self.sublist.insert(sub)
        self.table.on_interest_changed(pattern)
        return sub

    def watch(self, subject: bytes, queue: bytes, on_change: Callable[[bool], None]) -> object:
        token = Watch(subject, queue, on_change)
        self._watches.setdefault(subject, []).append(token)
        token.has_interest = self._is_listened_to(subject, queue)
        on_change(token.has_interest)
        return token

    def unwatch(self, token: object) -> None:
        assert isinstance(token, Watch)
        watches = self._watches.get(token.subject, [])
        if token in watches:
            watches.remove(token)
            if not watches:
                del self._watches[token.subject]

    def on_remote_interest(self, patterns: list[bytes] | None) -> None:
        """What other nodes want of `patterns` changed (None: of anything)."""
        watcher_count = self._remote_interest.ack_watcher_count
        self._ack_watcher_count += watcher_count - self._remote_ack_watcher_count
        self._remote_ack_watcher_count = watcher_count
        if patterns is None:
            self.table.clear()
            for subject in list(self._watches):
                self._tell_watches(subject)
        for pattern in patterns or ():
            self.table.on_interest_changed(pattern)
            if self._watches:
                self._tell_watches(pattern)

    def _tell_watches(self, pattern: bytes) -> None:
        for watch in list(self._watches.get(pattern, ())):
            has_interest = self._is_listened_to(watch.subject, watch.queue)
            if has_interest != watch.has_interest:
                watch.has_interest = has_interest
                watch.on_change(has_interest)

    def _is_listened_to(self, subject: bytes, queue: bytes) -> bool:
        elsewhere = self._remote_interest.sublist
        return self.sublist.has_literal(subject, queue) or elsewhere.has_literal(subject, queue)

    def has_interest(self, subject: bytes) -> bool:
        route = self.table.find(subject)
        return bool(route.plain or route.queues or route.streams or route.remote)

    def sink(self, subject: bytes, queue: bytes = b"") -> DeliverSink | None:
        if not self.table.find(subject).has_subscribers(queue):
            return None
        return InboxSink(self, subject, queue)

    def on_drained(self) -> None:
        """A connection or link that was congested has room again."""
        if self.remotes is not None:
            self.remotes.on_drained()
        self._on_drained()

    # --- chunks ---------------------------------------------------------------------------------

    def begin_chunk(self) -> None:
        """A connection starts to hand over what one socket chunk held."""
        assert not self.is_in_chunk
        self.is_in_chunk = True
        if self._node is not None and self._node.topology_version != self._topology:
            self._refresh_topology()

    def end_chunk(self, conn: ClientSession) -> None:
        """The chunk is done: post what streams get, write what connections get."""
        if self._collected:
            self.post_collected(conn)
        self._ack_key = b""
        self._ack_stream = None
        self.is_in_chunk = False
        dirty = self.dirty
        if dirty:
            self.dirty = []
            is_stalling = False
            for receiver in dirty:
                receiver.is_dirty = False
                if receiver.flush() and receiver is not conn:
                    is_stalling = True
            if is_stalling:
                self.stalled_count += 1
                conn.stall()
        if self.remotes is not None and self.remotes.flush():
            self.stalled_count += 1
            conn.stall()

    def post_collected(self, conn: ClientOutput) -> None:
        """Hand publishes collected so far to their streams, so that what follows comes after."""
        collected = self._collected
        self._collected = {}
        for stream, (msgs, replies) in collected.items():
            if stream.config.get("no_ack"):
                replies = [b""] * len(msgs)
            stream.publish(msgs, replies, conn)
            if self.remotes is not None and not stream.is_local:
                self.remotes.has_relayed = True

    def _refresh_topology(self) -> None:
        node = self._node
        assert node is not None
        self._topology = node.topology_version
        self.table.set_streams(node.streams_for, node.streams_under)
        self._ack_key = b""
        self._ack_stream = None

    # --- publishing -----------------------------------------------------------------------------

    def publish_batch(
        self,
        conn: ClientConn,
        subjects: list[bytes],
        replies: list[bytes] | None,
        headers: list[bytes] | None,
        payloads: list[bytes],
    ) -> None:
        """Route publishes of `conn`, which were allowed. Only between begin and end of a chunk.

        `replies` or `headers` None: no message has one.
        """
        if self.remotes is not None and self.remotes.has_untold:
            self.remotes.tell()  # before anything that may be answered from there
        subject = subjects[0]
        if subjects.count(subject) == len(subjects) and not subject.startswith(_OWN_PREFIX):
            route = self.table.routes.get(subject) or self.table.find(subject)
            if route.only_stream is not None:
                self._collect_run(route.only_stream, subject, replies, headers, payloads)
            else:
                self._route_run(conn, route, subject, replies, headers, payloads)
            return
        if subject.startswith(_ACK_PREFIX) and not self._ack_watcher_count:
            if self._take_acks(conn, subjects, replies, headers, payloads):
                return
        routes = self.table.routes
        stream: StreamHandle | None = None
        add_msg: Callable[[Msg], None] = _ignore
        add_reply: Callable[[bytes], None] = _ignore
        length, size_text = -1, b""  # of the payload before
        for subject, reply, header, payload in zip(
            subjects, replies or repeat(b""), headers or repeat(b""), payloads, strict=False
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
        if remotes is not None and (remotes.has_untold or not stream.is_local):
            return False
        stream.publish([(subject, header, payload)], [reply], conn)
        return True

    def _collecting(self, stream: StreamHandle) -> tuple[list[Msg], list[bytes]]:
        collecting = self._collected.get(stream)
        if collecting is None:
            collecting = self._collected[stream] = ([], [])
        return collecting

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
            stream.flow_reply(tokens[3].decode(errors="replace"), subject)
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

    def route_one(
        self,
        conn: ClientConn | None,
        route: Route,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
    ) -> int:
        """Deliver one message; returns how many got it.

        `conn` None: published by the server, which sees to the streams itself.
        """
        if conn is not None and route.is_forbidden:
            conn.forbid_publish(subject)
            return 0
        count = len(route.streams)
        for stream in route.streams if conn is not None else ():
            msgs, answers = self._collecting(stream)
            msgs.append((subject, header, payload))
            answers.append(reply)
        for sub in route.plain:
            count += self._deliver_one(conn, sub, subject, reply, header, payload)
        remote = route.remote
        served: tuple[bytes, ...] = ()  # groups that got it here
        for members in route.queues:
            size = len(members)
            first = self.pick_at(size)
            for offset in range(size):
                member = members[(first + offset) % size]
                if self._deliver_one(conn, member, subject, reply, header, payload):
                    count += 1
                    if remote is not None:
                        served += (member.queue,)
                    break
        if remote is not None:
            count += remote.send(subject, reply, header, payload, served)
        if not count and reply and conn is not None and conn.is_told_no_responders:
            self._tell_no_responders(conn, subject, reply)
        return count

    def deliver_forwarded(
        self, subject: bytes, reply: bytes, header: bytes, payload: bytes, queues: Sequence[bytes]
    ) -> None:
        """Deliver a message another node passed on: to clients, and one member of each of `queues`.

        Goes no further: that node told all others, and the streams.
        """
        route = self.table.routes.get(subject) or self.table.find(subject)
        for sub in route.plain:
            if sub.callback is None:
                self._deliver_one(None, sub, subject, reply, header, payload)
        if not queues:
            return
        for members in route.queues:
            if members[0].queue in queues:
                first = self.pick_at(len(members))
                for member in members[first:] + members[:first]:
                    if self._deliver_one(None, member, subject, reply, header, payload):
                        break

    def deliver_forwarded_run(self, subject: bytes, payloads: list[bytes]) -> None:
        """`deliver_forwarded` for plain messages on one subject, which no group was chosen for."""
        for sub in self.table.find(subject).plain:
            if sub.callback is None and not self._deliver_run(None, sub, subject, payloads):
                for payload in payloads:
                    self._deliver_one(None, sub, subject, b"", b"", payload)

    def _deliver_one(
        self,
        conn: ClientConn | None,
        sub: Subscription,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
    ) -> int:
        if not sub.is_open:
            return 0
        if sub.callback is not None:
            if self._collected and conn is not None:
                self.post_collected(conn)
            sub.callback(subject, reply, header, payload, conn)
            return 1
        receiver: Any = sub.conn
        if conn is not None and receiver is conn and not conn.has_echo:
            return 0
        if sub.is_filtered and receiver.rights.is_denied_delivery(subject):
            return 0
        if header and receiver.has_headers:
            if reply:
                line = b"HMSG %b %b %b %d %d" % (
                    subject,
                    sub.sid,
                    reply,
                    len(header),
                    len(header) + len(payload),
                )
            else:
                line = b"HMSG %b %b %d %d" % (
                    subject,
                    sub.sid,
                    len(header),
                    len(header) + len(payload),
                )
            body = header + payload
        elif reply:
            line = b"MSG %b %b %b %d" % (subject, sub.sid, reply, len(payload))
            body = payload
        else:
            line = b"MSG %b %b %d" % (subject, sub.sid, len(payload))
            body = payload
        receiver.out += (line, body)
        receiver.out_msgs += 1
        receiver.out_bytes += len(body)
        if not receiver.is_dirty:
            receiver.is_dirty = True
            self.dirty.append(receiver)
        if reply and receiver.is_granting_replies:
            receiver.rights.grant_reply(reply, now_ns=time.monotonic_ns())
        sub.delivered_count += 1
        if sub.max_msgs and sub.delivered_count >= sub.max_msgs:
            receiver.drop_subscription(sub)
        return 1

    def _route_run(
        self,
        conn: ClientConn,
        route: Route,
        subject: bytes,
        replies: list[bytes] | None,
        headers: list[bytes] | None,
        payloads: list[bytes],
    ) -> None:
        """Deliver many messages on one subject, whole runs at a time where that is the same."""
        is_plain = replies is None and headers is None and not route.is_forbidden
        remote = route.remote
        if remote is not None and remote.groups:
            is_plain = False
        if is_plain and not route.streams and not route.queues:
            if remote is not None:
                remote.send_run(subject, payloads)
            for sub in route.plain:
                if not self._deliver_run(conn, sub, subject, payloads):
                    for payload in payloads:
                        self._deliver_one(conn, sub, subject, b"", b"", payload)
            return
        for reply, header, payload in zip(
            replies or repeat(b""), headers or repeat(b""), payloads, strict=False
        ):
            self.route_one(conn, route, subject, reply, header, payload)

    def _deliver_run(
        self, conn: ClientConn | None, sub: Subscription, subject: bytes, payloads: list[bytes]
    ) -> bool:
        """Deliver a run of plain messages to one subscription; False: do it one by one."""
        if sub.callback is not None or sub.max_msgs or sub.is_filtered or not sub.is_open:
            return False
        receiver = sub.conn
        if conn is not None and receiver is conn and not receiver.has_echo:
            return True
        count = len(payloads)
        size = len(payloads[0])
        start = b"MSG %b %b " % (subject, sub.sid)
        lines: list[bytes]
        if set(map(len, payloads)) == {size}:
            lines = [start + b"%d" % size] * (2 * count)
            total = size * count
        else:
            lines = [b""] * (2 * count)
            lines[0::2] = [start + b"%d" % len(payload) for payload in payloads]
            total = sum(map(len, payloads))
        lines[1::2] = payloads
        receiver.out += lines
        receiver.out_msgs += count
        receiver.out_bytes += total
        sub.delivered_count += count
        if not receiver.is_dirty:
            receiver.is_dirty = True
            self.dirty.append(receiver)
        return True

    def _tell_no_responders(self, conn: ClientConn, subject: bytes, reply: bytes) -> None:
        for sub in self.table.find(reply).plain:
            if sub.conn is conn and sub.is_open:
                header = b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % subject
                size = len(header)
                conn.out += (b"HMSG %b %b %d %d" % (reply, sub.sid, size, size), header)
                conn.out_msgs += 1
                conn.out_bytes += size
                if not conn.is_dirty:
                    conn.is_dirty = True
                    self.dirty.append(conn)
                sub.delivered_count += 1
                if sub.max_msgs and sub.delivered_count >= sub.max_msgs:
                    conn.drop_subscription(sub)
                return

    # --- from the server itself -----------------------------------------------------------------

    def publish(self, subject: bytes, reply: bytes, headers: bytes, payload: bytes) -> None:
        node = self._node
        if node is not None and node.topology_version != self._topology:
            self._refresh_topology()
        route = self.table.find(subject)
        self.server_in_msgs += 1
        for stream in route.streams:
            answer = b"" if stream.config.get("no_ack") else reply
            stream.publish([(subject, headers, payload)], [answer], self._server_sink)
        if route.plain or route.queues or route.remote:
            self.route_one(None, route, subject, reply, headers, payload)
            self.flush_if_idle()

    def flush_if_idle(self) -> None:
        """Write out what connections got, unless the chunk being handled will do it anyway."""
        if not self.is_in_chunk and self.dirty:
            dirty, self.dirty = self.dirty, []
            for receiver in dirty:
                receiver.is_dirty = False
                receiver.flush()
        if self.remotes is not None and not self.is_in_chunk:
            self.remotes.schedule_messages()

    def pick_member(self, members: list[Subscription]) -> Subscription:
        """Choose who of a queue group gets the next message."""
        return members[self.pick_at(len(members))]

    def pick_at(self, size: int) -> int:
        """Choose one of `size` members, by chance: turns fall into step with publishers."""
        if size == 1:
            return 0
        # A linear congruential generator (Knuth's MMIX); its low bits are poor.
        self._dice = (self._dice * 6364136223846793005 + 1442695040888963407) & _DICE_MASK
        return (self._dice >> 40) % size


_DICE_MASK = (1 << 64) - 1


def _nothing() -> None: ...


def _ignore(_value: Any) -> None: ...
