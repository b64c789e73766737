"""Delivery sinks: inboxes that take the messages of consumers; and the sink for acks of publishes
that the server itself made."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from streamd.machine.commands import PublishOutcome
from streamd.net.pubsub.fanout import FanOut
from streamd.net.pubsub.interest import Delivery, Numbers
from streamd.net.pubsub.leaf_routes import LeafPeer
from streamd.net.pubsub.pubacks import ack_body
from streamd.net.pubsub.subject_routes import Route
from streamd.net.pubsub.sublist import Subscription


class InboxSink:
    """A deliver subject or a pull's inbox; follows the subscriptions to it from call to call."""

    __slots__ = ("_fanout", "_queue", "_subject", "_table")

    def __init__(self, fanout: FanOut, subject: bytes, queue: bytes) -> None:
        self._fanout = fanout
        self._table = fanout.table
        self._subject = subject
        self._queue = queue

    def deliver(self, batch: list[Delivery]) -> None:
        """Send messages under their own subjects to the subscribers of the sink's subject."""
        route = self._table.find(self._subject)
        if route.remote is not None:
            route.remote.deliver(self._subject, batch, route.queue_names())
        if route.leafs is not None:
            served = set(route.queue_names())
            if route.remote is not None:
                served.update(route.remote.groups)
            route.leafs.deliver(self._subject, batch, served=served)
            self._fanout.flush_if_idle()
        for sub in route.plain:
            _deliver_to(sub, self._subject, batch)
        for members in route.queues:
            _share(self._fanout, members, self._subject, batch)

    def deliver_run(
        self,
        ack: bytes,
        subjects: Sequence[bytes],
        payloads: Sequence[bytes],
        numbers: Numbers,
    ) -> None:
        """See ports.DeliverSink."""
        route = self._table.find(self._subject)
        remote = route.remote
        if route.leafs is not None:
            pass  # message by message
        elif remote is not None:
            if not (remote.groups or route.plain or route.queues):
                for node in remote.plain:
                    node.deliver_run(self._subject, ack, subjects, payloads, numbers)
                return
        elif len(route.plain) == 1 and not route.queues:
            _deliver_run_to(route.plain[0], self._subject, ack, subjects, payloads, numbers)
            return
        self.deliver(_expanded(ack, subjects, payloads, numbers))

    def status(self, headers: bytes, reply: bytes = b"") -> None:
        """Send a header-only message on the sink's own subject."""
        route = self._table.find(self._subject)
        self._fanout.route_one(None, route, self._subject, reply, headers, b"")
        self._fanout.flush_if_idle()

    def is_open(self) -> bool:
        """True while there is a subscription to the sink's subject."""
        return self._table.find(self._subject).has_subscribers(self._queue)

    def is_congested(self) -> bool:
        """True while a connection behind the sink has more buffered than it should."""
        route = self._table.find(self._subject)
        if route.remote is not None and route.remote.is_congested(self._subject):
            return True
        return _is_congested(route)


class ServerSink:
    """Publishes the acks of messages that the server itself published into streams."""

    __slots__ = ("_domain_field", "_publish")

    def __init__(
        self, publish: Callable[[bytes, bytes, bytes, bytes], None], domain_field: bytes
    ) -> None:
        """`publish(subject, reply, headers, payload)` is the router's."""
        self._publish = publish
        self._domain_field = domain_field

    def publish_acks(
        self, stream: bytes, replies: list[bytes], outcomes: Sequence[PublishOutcome]
    ) -> None:
        """See ports.PublishSink."""
        for reply, outcome in zip(replies, outcomes, strict=True):
            if reply:
                self._publish(reply, b"", b"", ack_body(stream, outcome, self._domain_field))


# --- deliveries of another node's consumers to clients here ---------------------------------------


def deliver_here(
    fanout: FanOut, to: bytes, queue: bytes, batch: list[Delivery], origin: str = ""
) -> None:
    """Send messages to the plain subscribers of `to` here, or to one queue group of them alone;
    `origin`: the cluster of leaf nodes that they come from."""
    route = fanout.table.find(to)
    if not queue:
        for sub in route.plain:
            if sub.is_told:
                _deliver_to(sub, to, batch)
        if route.leafs is not None:
            route.leafs.deliver(to, batch, wanted=(), is_forwarded=True, origin=origin)
            fanout.flush_if_idle()
        return
    for members in route.queues:
        if members[0].queue == queue:
            _share(fanout, members, to, batch)
            return
    if route.leafs is not None:
        route.leafs.deliver(to, batch, wanted=(queue,), is_forwarded=True, origin=origin)
        fanout.flush_if_idle()


def deliver_from_leaf(
    fanout: FanOut, source: LeafPeer, to: bytes, queues: Sequence[bytes], batch: list[Delivery]
) -> None:
    """Deliver messages of a consumer behind a leaf link to the subscribers of `to`."""
    route = fanout.table.find(to)
    for sub in route.plain:
        _deliver_to(sub, to, batch)
    served: set[bytes] = set()
    for members in route.queues:
        if members[0].queue in queues:
            served.add(members[0].queue)
            _share(fanout, members, to, batch)
    remote = route.remote
    if remote is not None and not source.is_spoke:
        others = served.union(name for name in remote.groups if name not in queues)
        remote.deliver(to, batch, others, source.remote_cluster.encode())
        served.update(remote.groups)
    if route.leafs is not None:
        route.leafs.deliver(to, batch, served=served, wanted=queues, source=source)


def deliver_run_here(
    fanout: FanOut,
    to: bytes,
    ack: bytes,
    subjects: Sequence[bytes],
    payloads: Sequence[bytes],
    numbers: Numbers,
) -> None:
    """`deliver_here` for a run, to plain subscribers."""
    route = fanout.table.find(to)
    for sub in route.plain:
        if sub.is_told:
            _deliver_run_to(sub, to, ack, subjects, payloads, numbers)
    if route.leafs is not None:
        batch = _expanded(ack, subjects, payloads, numbers)
        route.leafs.deliver(to, batch, wanted=(), is_forwarded=True)
        fanout.flush_if_idle()


def is_congested_here(fanout: FanOut, to: bytes) -> bool:
    """True while a connection of this node that receives `to` has more buffered than it should."""
    return _is_congested(fanout.table.find(to))


def _is_congested(route: Route) -> bool:
    if route.leafs is not None and route.leafs.is_congested():
        return True
    for sub in route.plain:
        if _is_full(sub):
            return True
    return any(_is_full(sub) for members in route.queues for sub in members)


def _is_full(sub: Subscription) -> bool:
    """True if the client behind a subscription has more buffered than it should."""
    return (sub.parent or sub).callback is None and sub.conn.is_congested


def _share(fanout: FanOut, members: list[Subscription], to: bytes, batch: list[Delivery]) -> None:
    """Deliver each message to one member of a queue group."""
    if len(members) == 1:
        _deliver_to(members[0], to, batch)
        return
    is_filtered = any(member.is_filtered for member in members)
    for message in batch:
        able = members
        if is_filtered:
            able = [member for member in members if not _is_denied(member, message[0])]
        while able:
            member = fanout.pick_member(able)
            if member.is_open:
                _deliver_to(member, to, [message])
                break
            # It had its last message, or was too slow, perhaps within this batch.
            members = [each for each in members if each.is_open]
            able = [each for each in able if each.is_open]


def _is_denied(sub: Subscription, subject: bytes) -> bool:
    if not sub.is_filtered:
        return False
    if sub.parent is not None:
        return _is_denied(sub.parent, subject)
    rights = sub.conn.rights
    assert rights is not None, sub.pattern
    return rights.is_denied_delivery(subject)


def _deliver_run_to(
    sub: Subscription,
    to: bytes,
    ack: bytes,
    subjects: Sequence[bytes],
    payloads: Sequence[bytes],
    numbers: Numbers,
) -> None:
    """Deliver a run to one subscription: a single `%` over a repeated template formats it."""
    is_plain = sub.callback is None and not (sub.max_msgs or sub.is_filtered) and sub.is_open
    if not is_plain or sub.conn.is_granting_replies:
        _deliver_to(sub, to, _expanded(ack, subjects, payloads, numbers))
        return
    count = len(subjects)
    size = len(payloads[0])
    # `ack` has four %d of its own, which the formatting below fills.
    template = b"MSG %%b %b %b %d\r\n%%b\r\n" % (sub.sid.replace(b"%", b"%%"), ack, size)
    fields: list[bytes | int] = [0] * (6 * count)
    fields[0::6] = subjects
    fields[1::6], fields[2::6], fields[3::6], fields[4::6] = numbers
    fields[5::6] = payloads
    receiver = sub.conn
    receiver.out_msgs += count
    receiver.out_bytes += size * count
    receiver.send_blob(template * count % tuple(fields))
    sub.delivered_count += count


def _expanded(
    ack: bytes, subjects: Sequence[bytes], payloads: Sequence[bytes], numbers: Numbers
) -> list[Delivery]:
    rows = zip(subjects, zip(*numbers, strict=True), payloads, strict=True)
    return [(subject, ack % row, b"", payload) for subject, row, payload in rows]


def _deliver_to(sub: Subscription, to: bytes, batch: list[Delivery]) -> None:
    if sub.callback is not None:
        if sub.relay is not None:
            sub.relay(to, batch)
            return
        for subject, reply, headers, payload in batch:
            sub.callback(subject, reply, headers, payload, None)
        return
    if not sub.is_open:
        return
    receiver = sub.conn
    if sub.parent is not None:
        _deliver_to(sub.parent, to, batch)  # a client of another account, which imports `to`
        return
    if sub.is_filtered:
        batch = [item for item in batch if not _is_denied(sub, item[0])]
        if not batch:
            return
    if sub.max_msgs:
        batch = batch[: sub.max_msgs - sub.delivered_count]
    if not receiver.has_headers:
        batch = [(subject, reply, b"", payload) for subject, reply, _, payload in batch]
    start = b"MSG "
    gap = b" " + sub.sid + b" "
    end = b"\r\n"
    parts: list[bytes] = []
    extend = parts.extend
    length, size_text = -1, b""  # of the message before: most have one and the same size
    for subject, reply, headers, payload in batch:
        if headers:
            size = len(headers)
            if reply:
                extend((b"H", start, subject, gap, reply))
                total = size + len(payload)
                extend((b" %d %d\r\n" % (size, total), headers, payload, b"\r\n"))
            else:
                extend((b"H", start, subject, gap))
                total = size + len(payload)
                extend((b"%d %d\r\n" % (size, total), headers, payload, b"\r\n"))
            continue
        if len(payload) != length:
            length = len(payload)
            size_text = b" %d\r\n" % length
        if reply:
            extend((start, subject, gap, reply, size_text, payload, end))
        else:
            extend((start, subject, gap[:-1], size_text, payload, end))
    count = len(batch)
    receiver.out_msgs += count
    receiver.out_bytes += sum(len(item[2]) + len(item[3]) for item in batch)
    receiver.send_blob(b"".join(parts))
    if receiver.is_granting_replies:
        now_ns = time.monotonic_ns()
        rights = receiver.rights
        assert rights is not None, sub.pattern
        for item in batch:
            if item[1]:
                rights.grant_reply(item[1], now_ns=now_ns)
    sub.delivered_count += count
    if sub.max_msgs and sub.delivered_count >= sub.max_msgs:
        receiver.drop_subscription(sub)
