"""Fan-out: a message to all its subscribers, or a run of messages to each at once.

Lines for each receiving connection are collected and written once per chunk, messages for a stream
are collected and posted to its group once per chunk.

A connection's output is a list of lines without their CRLF, joined at the flush; a message is two
of them, its control line and its payload. So a payload is copied once, by the join.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Final, Protocol

from streamd.limits import FANOUT_BYTES, FANOUT_MSG_BYTES
from streamd.machine.commands import PublishOutcome
from streamd.net.pubsub.ingest import Ingest
from streamd.net.pubsub.leaf_routes import LeafPeer
from streamd.net.pubsub.output_queue import OutputQueue
from streamd.net.pubsub.remote_routes import OtherNodes
from streamd.net.pubsub.subject_routes import Route, RouteTable
from streamd.net.pubsub.sublist import Receiver, Subscription

SERVICE_REPLIES: Final = b"_R_."
"""Reply subjects of requests that came from another account begin so; no client may use them."""
_DICE_MASK = (1 << 64) - 1


class Publisher(Receiver, Protocol):
    """A client connection whose publishes are routed; their acks come back to `publish_acks`."""

    @property
    def is_told_no_responders(self) -> bool:
        """True if the client is told of its requests that reach no subscriber."""

    def forbid_publish(self, subject: bytes) -> None:
        """Refuse a publish: no client may publish to `subject`."""

    def publish_acks(
        self, stream: bytes, replies: list[bytes], outcomes: Sequence[PublishOutcome]
    ) -> None:
        """See ports.PublishSink."""

    def stall(self, rest_s: float) -> None:
        """Read no more of the client's for a moment."""


class LeafPublisher(Publisher, Protocol):
    """A leaf link whose messages are routed."""

    @property
    def peer(self) -> LeafPeer: ...


class FanOut:
    """Delivers messages to the subscriptions of one subject space, and to other nodes."""

    def __init__(self, table: RouteTable, output_queue: OutputQueue, ingest: Ingest) -> None:
        """`ingest` takes the messages for streams; it is posted before a subscription of the server
        itself sees a message, which may build on those."""
        self.table = table
        self.remotes: OtherNodes | None = None  # None: no other nodes
        self._output_queue = output_queue
        self._dirty = output_queue.dirty
        self._ingest = ingest
        self._collecting = ingest.collecting
        self.imported: object = None
        """Origin of the request or response of another account that is being delivered, which
        stands for the client in callbacks; None: none is."""
        self._dice = int(time.monotonic_ns()) & 0xFFFF  # picks queue members; any start will do

    # --- one message ------------------------------------------------------------------------------

    def route_one(
        self,
        conn: Publisher | None,
        route: Route,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
    ) -> int:
        """Deliver one message; returns to how many receivers.

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
        plain: Iterable[Subscription] = route.plain
        queues: Iterable[list[Subscription]] = route.queues
        receiver_count = len(route.plain) + len(route.queues)
        if receiver_count > 1:
            size = len(header) + len(payload) + FANOUT_MSG_BYTES
            output = self._output_queue
            output.gathered += receiver_count * size
            if output.gathered > FANOUT_BYTES:
                plain = output.in_parts(conn, route.plain, size)
                queues = output.in_parts(conn, route.queues, size)
        for sub in plain:
            count += self.deliver_one(conn, sub, subject, reply, header, payload)
        remote, leafs = route.remote, route.leafs
        served: set[bytes] = set()  # groups that got it here
        for members in queues:
            size = len(members)
            first = self.pick_at(size)
            for offset in range(size):
                member = members[(first + offset) % size]
                if self.deliver_one(conn, member, subject, reply, header, payload):
                    count += 1
                    served.add(member.queue)
                    break
        if remote is not None:
            count += remote.send(subject, reply, header, payload, served)
            served.update(remote.groups)
        if leafs is not None:
            count += leafs.send(subject, reply, header, payload, served=served)
        if not count and reply and conn is not None and conn.is_told_no_responders:
            self.tell_no_responders(conn, subject, reply)
        return count

    def route_from_leaf(
        self,
        conn: LeafPublisher,
        route: Route,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
        queues: Sequence[bytes],
    ) -> None:
        """Deliver a message of a leaf link: to plain subscribers, and to one member of each of
        `queues`.

        What comes from a hub stays at this node, for each node of the cluster has its own link.
        """
        source = conn.peer
        if route.is_forbidden:
            return
        for stream in route.streams:
            if stream.is_local or not source.is_spoke:
                msgs, answers = self._collecting(stream)
                msgs.append((subject, header, payload))
                answers.append(reply)
        for sub in route.plain:
            self.deliver_one(conn, sub, subject, reply, header, payload)
        served: set[bytes] = set()
        for members in route.queues:
            if members[0].queue in queues:
                first = self.pick_at(len(members))
                for member in members[first:] + members[:first]:
                    if self.deliver_one(conn, member, subject, reply, header, payload):
                        served.add(member.queue)
                        break
        remote = route.remote
        if remote is not None and not source.is_spoke:
            others = served.union(name for name in remote.groups if name not in queues)
            origin = source.remote_cluster.encode()
            remote.send(subject, reply, header, payload, others, origin)
            served.update(remote.groups)
        if route.leafs is not None:
            route.leafs.send(
                subject, reply, header, payload, served=served, wanted=queues, source=source
            )

    def deliver_forwarded(
        self,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
        queues: Sequence[bytes],
        origin: str = "",
    ) -> None:
        """Deliver a message another node passed on: to those it was told of, and one member of each
        of `queues`. `origin`: the cluster of leaf nodes that it came from there.

        Goes no further: that node told all others, and the streams.
        """
        route = self.table.routes.get(subject) or self.table.find(subject)
        size = len(header) + len(payload) + FANOUT_MSG_BYTES
        output = self._output_queue
        output.gathered += len(route.plain) * size
        is_much = output.gathered > FANOUT_BYTES
        for sub in output.in_parts(None, route.plain, size) if is_much else route.plain:
            if sub.is_told:
                self.deliver_one(None, sub, subject, reply, header, payload)
        served: set[bytes] = set()
        for members in route.queues if queues else ():
            if members[0].queue in queues:
                first = self.pick_at(len(members))
                for member in members[first:] + members[:first]:
                    if self.deliver_one(None, member, subject, reply, header, payload):
                        served.add(member.queue)
                        break
        if route.leafs is not None:
            route.leafs.send(
                subject,
                reply,
                header,
                payload,
                served=served,
                wanted=queues,
                is_forwarded=True,
                origin=origin,
            )

    def deliver_one(
        self,
        conn: Publisher | None,
        sub: Subscription,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
    ) -> int:
        """Deliver a message to one subscription; returns 1, or 0 if it must not have it."""
        if not sub.is_open:
            return 0
        if sub.callback is not None:
            if conn is not None and self._ingest.collected:
                self._ingest.post(conn)
            client = conn if conn is not None else self.imported
            return 0 if sub.callback(subject, reply, header, payload, client) is False else 1
        receiver = sub.conn
        if conn is not None and receiver is conn and not conn.has_echo:
            return 0
        if sub.is_filtered:
            if sub.rename is not None:
                return self._deliver_imported(conn, sub, subject, reply, header, payload)
            rights = receiver.rights
            assert rights is not None, sub.pattern
            if rights.is_denied_delivery(subject):
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
            self._dirty.append(receiver)
        if reply and receiver.is_granting_replies:
            rights = receiver.rights
            assert rights is not None, sub.pattern
            rights.grant_reply(reply, now_ns=time.monotonic_ns())
        sub.delivered_count += 1
        if sub.max_msgs and sub.delivered_count >= sub.max_msgs:
            receiver.drop_subscription(sub)
        return 1

    def _deliver_imported(
        self,
        conn: Publisher | None,
        sub: Subscription,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
    ) -> int:
        """Deliver to a client of another account, which imports the subject under its own name."""
        if self.imported is not None or reply.startswith(SERVICE_REPLIES):
            return 0  # a request or response between two accounts is not passed on to a third one
        assert sub.rename is not None and sub.parent is not None, sub.pattern
        local = sub.rename(subject)
        if local is None:
            return 0
        return self.deliver_one(conn, sub.parent, local, reply, header, payload)

    def tell_no_responders(self, conn: Publisher, subject: bytes, reply: bytes) -> None:
        """Answer a request that reached no subscriber: with a 503 on its reply subject."""
        for sub in self.table.find(reply).plain:
            if sub.conn is conn and sub.is_open:
                header = b"NATS/1.0 503\r\nNats-Subject: %b\r\n\r\n" % subject
                size = len(header)
                conn.out += (b"HMSG %b %b %d %d" % (reply, sub.sid, size, size), header)
                conn.out_msgs += 1
                conn.out_bytes += size
                if not conn.is_dirty:
                    conn.is_dirty = True
                    self._dirty.append(conn)
                sub.delivered_count += 1
                if sub.max_msgs and sub.delivered_count >= sub.max_msgs:
                    conn.drop_subscription(sub)
                return

    # --- a run of messages on one subject ---------------------------------------------------------

    def route_run(
        self,
        conn: Publisher,
        route: Route,
        subject: bytes,
        replies: list[bytes] | None,
        headers: list[bytes] | None,
        payloads: list[bytes],
    ) -> int:
        """Deliver many messages on one subject, whole runs at a time where that is the same.
        Returns how many: all, or fewer if the client's share of the loop is used up."""
        is_plain = replies is None and headers is None and not route.is_forbidden
        remote = route.remote
        if (remote is not None and remote.groups) or route.leafs is not None:
            is_plain = False
        count = len(payloads)
        done = 0
        clock, until = self._output_queue.clock, self._output_queue.until
        if is_plain and not route.streams and not route.queues:
            step = self._run_length(route.plain, payloads)
            while done < count and (not done or clock() < until):
                part = payloads if step >= count else payloads[done : done + step]
                if remote is not None:
                    remote.send_run(subject, part)
                self._deliver_run_to_all(conn, route.plain, subject, part)
                done += len(part)
            return done
        for reply, header, payload in zip(
            replies or repeat(b""), headers or repeat(b""), payloads, strict=False
        ):
            self.route_one(conn, route, subject, reply, header, payload)
            done += 1
            if done < count and clock() >= until:
                break
        return done

    def _run_length(self, subs: list[Subscription], payloads: list[bytes]) -> int:
        """Return how many of `payloads` go to all of `subs` without being written in between."""
        count = len(payloads)
        if len(subs) < 2:
            return count
        size = (sum(map(len, payloads)) + count * FANOUT_MSG_BYTES) * len(subs)
        return max(1, min(count, FANOUT_BYTES * count // size))

    def _deliver_run_to_all(
        self, conn: Publisher | None, subs: list[Subscription], subject: bytes, run: list[bytes]
    ) -> None:
        each: Iterable[Subscription] = subs
        if len(subs) > 1:
            size = sum(map(len, run)) + len(run) * FANOUT_MSG_BYTES
            output = self._output_queue
            output.gathered += size * len(subs)
            if output.gathered > FANOUT_BYTES:
                each = output.in_parts(conn, subs, size)
        for sub in each:
            if not self._deliver_run(conn, sub, subject, run):
                for payload in run:
                    self.deliver_one(conn, sub, subject, b"", b"", payload)

    def deliver_forwarded_run(self, subject: bytes, payloads: list[bytes]) -> None:
        """`deliver_forwarded` for plain messages on one subject, which no group was chosen for."""
        route = self.table.find(subject)
        if route.leafs is not None:
            for payload in payloads:
                self.deliver_forwarded(subject, b"", b"", payload, ())
            return
        subs = [sub for sub in route.plain if sub.is_told]
        step = self._run_length(subs, payloads)
        for at in range(0, len(payloads), step):
            self._deliver_run_to_all(None, subs, subject, payloads[at : at + step])

    def _deliver_run(
        self, conn: Publisher | None, sub: Subscription, subject: bytes, payloads: list[bytes]
    ) -> bool:
        """Deliver a run of plain messages to one subscription; False: do it one by one."""
        if not sub.is_open:
            return True
        if sub.callback is not None or sub.max_msgs or sub.is_filtered:
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
            self._dirty.append(receiver)
        return True

    # --- written out ------------------------------------------------------------------------------

    def flush_if_idle(self) -> None:
        """Write collected output, unless a chunk is being handled, whose end does it."""
        output = self._output_queue
        if output.is_in_chunk:
            return
        if output.dirty:
            output.write_out(None)
        if self.remotes is not None:
            self.remotes.schedule_messages()

    # --- queue groups -----------------------------------------------------------------------------

    def pick_member(self, members: list[Subscription]) -> Subscription:
        """Choose the member of a queue group that gets the next message."""
        return members[self.pick_at(len(members))]

    def pick_at(self, size: int) -> int:
        """Choose one of `size` members, by chance: turns fall into step with publishers."""
        if size == 1:
            return 0
        # A linear congruential generator (Knuth's MMIX); its low bits are poor.
        self._dice = (self._dice * 6364136223846793005 + 1442695040888963407) & _DICE_MASK
        return (self._dice >> 40) % size
