"""Publishes to streams that this node does not lead: on to the leader, or kept until there is one.

What is kept was never proposed, so each message is stored once or refused, not both; or it has an
id, by which the next leader finds out whether the last one, which is gone, has stored it. A
publisher's order is the order stored: while something of a stream is kept, or sent to a leader that
was and not answered yet, all that comes later waits. What that leader did not take it gives back.
"""

from __future__ import annotations

from bisect import insort
from typing import NamedTuple

from streamd import errors, limits
from streamd.machine.streams.publish import MSG_ID, is_stored_once
from streamd.node.cluster.leaders import Leaders
from streamd.node.context import NodeContext
from streamd.node.meta_group.catalog import Catalogs
from streamd.node.ports import Peers, PublishSink
from streamd.node.replicas.local_groups import LocalGroups
from streamd.node.stream_groups.fast_members import is_member
from streamd.node.stream_groups.forwarded_publishes import (
    Chunk,
    Part,
    Relay,
    Relayed,
    RelaySink,
    WireOutcomes,
)
from streamd.types import Msg, NodeId, Uid

_BATCH = b"Nats-Batch-"


class _Kept(NamedTuple):
    chunk: Chunk
    byte_count: int
    until_ms: int
    place: tuple[int, int] = (0, 0)  # token under which it was sent last, and which part of that


class _Route:
    """Publishes of one stream that wait for its leader, or for the answers of its leader."""

    __slots__ = ("floor", "given_back", "kept", "leader", "sent_count")

    def __init__(self) -> None:
        self.leader: NodeId = ""  # to which something was sent last
        self.sent_count = 0  # chunks with it that may come back
        self.floor = 0  # tokens up to it may not: too much was sent since
        self.given_back: list[_Kept] = []  # by that leader; before `kept`
        self.kept: list[_Kept] = []

    @property
    def oldest(self) -> _Kept:
        return (self.given_back or self.kept)[0]


class PublishForwarding:
    """Forwarding of one node's publishes. `relay` knows which client waits for the acks of what
    was sent."""

    def __init__(
        self,
        context: NodeContext,
        groups: LocalGroups,
        leaders: Leaders,
        catalogs: Catalogs,
        peers: Peers | None,
    ) -> None:
        self.relay = Relay(self._on_over, self._on_lost)
        self.kept_bytes = 0  # of messages that wait
        self._context = context
        self._groups = groups
        self._leaders = leaders
        self._catalogs = catalogs
        self._peers = peers
        self._routes: dict[Uid, _Route] = {}
        self._keeping: dict[Uid, _Route] = {}  # those that keep something
        self._has_timer = False
        self._is_closed = False
        leaders.watch(self._on_leaders)

    def is_expected(self, uid: Uid) -> bool:
        """See Leaders."""
        return self._leaders.is_expected(uid)

    def publish(
        self, uid: Uid, stream: bytes, msgs: list[Msg], replies: list[bytes], sink: PublishSink
    ) -> None:
        """Send `msgs` to the leader, or keep them for it. Acks come back over the link; when it
        breaks, the next leader is asked (`_on_lost`), or the client's timeout is the answer."""
        if isinstance(sink, RelaySink):
            sink.give_back(msgs, replies)
            return
        route = self._routes.get(uid)
        if route is None:
            route = self._routes[uid] = _Route()
        chunk = Chunk(stream, msgs, replies, sink)
        leader = self._leaders.leader_of(uid)
        if uid not in self._keeping and self._is_open(route, leader):
            self._send(leader, uid, route, chunk)
        elif self._is_closed or not self.is_expected(uid):
            _refuse(chunk)
        else:
            self._keep(uid, route, chunk)

    def on_pubacks(self, sender: NodeId, args: tuple[int, Part, WireOutcomes]) -> None:
        """Take acks of what was sent: the note `pubacks`."""
        token, part, outcomes = args
        self.relay.on_acks(token, part, outcomes)

    def on_given_back_note(self, sender: NodeId, args: tuple[int, Part, list[Msg]]) -> None:
        """Take back what a former leader did not take: the note `given_back`."""
        token, part, msgs = args
        self.on_given_back(
            token, part, [(subject, headers, payload) for subject, headers, payload in msgs]
        )

    def on_given_back(
        self, token: int, part: list[int] | list[bytes] | None, msgs: list[Msg]
    ) -> None:
        """Send again the publishes that a former leader did not take: those sent under `token`, or
        one part of them."""
        found = self.relay.part_of(token, part)
        if found is None:
            return
        row, replies = found
        chunk = row.chunk._replace(msgs=msgs, replies=replies)
        route = self._routes.get(row.uid)
        if route is None or self._is_closed or token <= route.floor:
            _refuse(chunk)
        else:
            first = part[0] if part else 0
            self._keep(row.uid, route, chunk, (token, first if isinstance(first, int) else 0))
        self.relay.finish(token, part)

    def _on_lost(self, token: int, row: Relayed, places: list[int]) -> None:
        """Send again the messages of a chunk that were with a leader that is gone. That leader may
        have stored them: the next one finds out by their ids, unless it may have forgotten ids."""
        chunk = row.chunk
        route = self._routes.get(row.uid)
        if route is None or self._is_closed or token <= route.floor:
            return
        asset = self._groups.meta.streams_by_uid.get(row.uid)
        window_ns = asset.config.get("duplicate_window") or 0 if asset is not None else 0
        is_fresh = self._now_ms() - chunk.sent_ms <= limits.PUBLISH_KEPT_MS
        if not is_fresh or window_ns < limits.SENT_AGAIN_WINDOW_NS_MIN:
            return
        msgs = [chunk.msgs[place] for place in places]
        if all(is_stored_once(msg[1]) for msg in msgs):
            replies = [chunk.replies[place] for place in places]
            chunk = chunk._replace(msgs=msgs, replies=replies, is_again=True)
            self._keep(row.uid, route, chunk, (token, places[0]))

    def on_leading(self, uid: Uid) -> None:
        """Publish what was kept first: this node leads the stream now."""
        route, replica = self._routes.get(uid), self._groups.get(uid)
        if route is not None and replica is not None:
            replica.is_gated = route.sent_count > 0
            self._flush(uid, route)

    def forget(self, uid: Uid) -> None:
        """The stream is gone. What its leader was sent too late is never answered; what it took
        before is, soon."""
        route = self._routes.pop(uid, None)
        if route is not None:
            self._refuse_kept(uid, route)
            delay_s = limits.PUBLISH_KEPT_MS / 1000
            self._context.env.loop.call_later(delay_s, self.relay.forget, uid)

    def close(self) -> None:
        """The node stops: nothing waits any more. What has a leader elsewhere still goes there."""
        self._is_closed = True
        for uid, route in list(self._keeping.items()):
            self._refuse_kept(uid, route)

    # --- sending and keeping ------------------------------------------------------------------

    def _is_open(self, route: _Route, leader: NodeId) -> bool:
        """True if nothing can come back that would have to be stored before."""
        is_elsewhere = leader not in ("", self._context.name)
        return is_elsewhere and (route.leader == leader or not route.sent_count)

    def _send(self, leader: NodeId, uid: Uid, route: _Route, chunk: Chunk) -> None:
        peers = self._peers
        assert peers is not None
        msgs = chunk.msgs
        # Members of batches are answered one by one, each at its own reply.
        is_batch = any(_BATCH in msg[1] for msg in msgs if msg[1]) or is_member(chunk.replies)
        has_ids = not is_batch and all(MSG_ID in msg[1] for msg in msgs)
        held = msgs if has_ids else []
        left = chunk._replace(msgs=held, sent_ms=chunk.sent_ms or self._now_ms())
        token = self.relay.expect(Relayed(leader, uid, left, is_batch, _size(held)))
        route.leader = leader
        if token and not is_batch:
            route.sent_count += 1
        self._arm()
        peers.note(leader, "publish", [uid, token, msgs, chunk.replies if is_batch else None])

    def _keep(self, uid: Uid, route: _Route, chunk: Chunk, place: tuple[int, int] = (0, 0)) -> None:
        """Hold a chunk until there is a leader; a sent one, at `place`, precedes unsent ones."""
        size = _size(chunk.msgs)
        if self.kept_bytes + size > limits.PUBLISH_KEPT_BYTES_MAX:
            _refuse(chunk)
            return
        kept = _Kept(chunk, size, self._now_ms() + limits.PUBLISH_KEPT_MS, place)
        if place[0]:
            insort(route.given_back, kept, key=lambda one: one.place)
        else:
            route.kept.append(kept)
        self.kept_bytes += size
        self._keeping[uid] = route
        self._arm()

    def _now_ms(self) -> int:
        return self._context.env.clock.monotonic_ms()

    def _take(self, uid: Uid, route: _Route) -> list[Chunk]:
        taken = route.given_back + route.kept
        route.given_back, route.kept = [], []
        self._keeping.pop(uid, None)
        self.kept_bytes -= sum(one.byte_count for one in taken)
        return [one.chunk for one in taken]

    def _flush(self, uid: Uid, route: _Route) -> None:
        """Pass on what is kept, in order, if there is a leader and nothing else may come back."""
        leader = self._leaders.leader_of(uid)
        replica = self._groups.get(uid)
        if replica is not None and replica.is_ready:
            if not route.sent_count:
                replica.is_gated = False
                for chunk in self._take(uid, route):
                    replica.publish(chunk.msgs, chunk.replies, chunk.sink)
        elif self._is_open(route, leader):
            for chunk in self._take(uid, route):
                self._send(leader, uid, route, chunk)

    def _refuse_kept(self, uid: Uid, route: _Route) -> None:
        for chunk in self._take(uid, route):
            _refuse(chunk)

    # --- what happens -------------------------------------------------------------------------

    def _on_over(self, token: int, row: Relayed) -> None:
        """The relay waits for no answer to a chunk any more."""
        route = self._routes.get(row.uid)
        if route is None or row.is_batch or token <= route.floor:
            return
        route.sent_count -= 1
        if route.given_back and self._leaders.leader_of(row.uid) == row.leader:
            return  # it is about to say that it leads no more
        if not route.sent_count:
            replica = self._groups.get(row.uid)
            if row.uid in self._keeping or (replica is not None and replica.is_gated):
                self._flush(row.uid, route)

    def _on_leaders(self) -> None:
        """At once, so that nothing that comes now can overtake what was kept."""
        for uid, route in list(self._keeping.items()):
            self._flush(uid, route)
        self._arm()

    def _arm(self) -> None:
        if self._has_timer or self._is_closed:
            return
        if self._keeping or self.relay.waiting_count or self._leaders.has_expected():
            self._has_timer = True
            self._context.env.loop.call_later(limits.PUBLISH_LOOK_S, self._on_timer)

    def _on_timer(self) -> None:
        self._has_timer = False
        now_ms = self._now_ms()
        patience_ms = limits.PUBLISH_KEPT_MS - int(limits.PUBLISH_LOOK_S * 1000)
        for uid, route in list(self._keeping.items()):
            until_ms = route.oldest.until_ms
            if until_ms - now_ms <= patience_ms:
                if route.sent_count:
                    # The leader before is silent. Publishes that it gives back now are too late.
                    route.floor, route.sent_count = self.relay.count, 0
                self._flush(uid, route)
            if uid in self._keeping and until_ms <= now_ms:
                # All of the stream: what came later must not be stored before.
                self._refuse_kept(uid, route)
        if self._leaders.expire_expected():
            self._catalogs.changed()
        self.relay.expire(now_ms)
        self._arm()


def _size(msgs: list[Msg]) -> int:
    return sum(len(headers) + len(payload) for _, headers, payload in msgs)


def _refuse(chunk: Chunk) -> None:
    if not chunk.is_again:  # else it may be stored: the client's timeout is the honest answer
        refused = [errors.CLUSTER_NOT_AVAIL()] * len(chunk.replies)
        chunk.sink.publish_acks(chunk.stream, chunk.replies, refused)
