"""Interest of servers behind leaf links in one subject space, and the part of a route that lies
there.

A message goes to each link at most once, with the names of the queue groups that the link was
chosen for. Members here come first, then other nodes of the cluster, then leaf links.

Which links may get a message depends on where it comes from: one of a leaf link goes neither back
nor to another link of the same remote cluster, and one that another node passed on goes to links
that others dialed, not up to a hub, to which that node has its own.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable
from typing import Protocol

from streamd.net.pubsub.interest import Delivery
from streamd.net.pubsub.sublist import Match, Sublist


class LeafPeer(Protocol):
    """The server at the other end of a leaf link, as routing uses it."""

    @property
    def cid(self) -> int: ...

    @property
    def name(self) -> str:
        """Name of the server at the other end."""

    @property
    def is_spoke(self) -> bool:
        """True if this server is the other one's leaf node."""

    @property
    def remote_cluster(self) -> str:
        """Name of the cluster, or of the lone server, at the other end."""

    @property
    def is_tracing(self) -> bool:
        """True if the server at the other end knows of traces."""

    @property
    def is_congested(self) -> bool:
        """True while more waits for the other end to read it than should."""

    def may_send(self, subject: bytes) -> bool:
        """True if messages on `subject` may go there."""

    def send(
        self, subject: bytes, reply: bytes, queues: list[bytes], headers: bytes, payload: bytes
    ) -> None:
        """Send a message; it is written at the end of the chunk."""


class LeafSub:
    """Interest told by a leaf link; of a queue group with its members there."""

    __slots__ = ("pattern", "peer", "queue", "weight")

    def __init__(self, pattern: bytes, queue: bytes, peer: LeafPeer, weight: int) -> None:
        self.pattern = pattern
        self.queue = queue
        self.peer = peer
        self.weight = weight


class LeafRoute:
    """The leaf links that want a subject."""

    __slots__ = ("groups", "plain")

    def __init__(self, match: Match[LeafSub]) -> None:
        self.plain = list(dict.fromkeys(sub.peer for sub in match.plain))
        self.groups = {members[0].queue: members for members in match.queues}

    def send(
        self,
        subject: bytes,
        reply: bytes,
        headers: bytes,
        payload: bytes,
        *,
        served: Collection[bytes] = (),
        wanted: Collection[bytes] | None = None,
        source: LeafPeer | None = None,
        is_forwarded: bool = False,
        origin: str = "",
    ) -> int:
        """Send one message to the links of `choose`; returns to how many."""
        chosen = self.choose(
            subject,
            served=served,
            wanted=wanted,
            source=source,
            is_forwarded=is_forwarded,
            origin=origin,
        )
        for peer, queues in chosen.items():
            peer.send(subject, reply, queues, headers, payload)
        return len(chosen)

    def choose(
        self,
        subject: bytes,
        *,
        served: Collection[bytes],
        wanted: Collection[bytes] | None,
        source: LeafPeer | None,
        is_forwarded: bool,
        origin: str = "",
    ) -> dict[LeafPeer, list[bytes]]:
        """Return the links that get a message, and for which groups.

        `served`: groups that got it elsewhere; `wanted`: the only ones that may get it, if not
        None; `source`: the link that it came from; `is_forwarded`: another node passed it on,
        which got it from the cluster `origin` of leaf nodes, if that is not empty.
        """
        chosen: dict[LeafPeer, list[bytes]] = {}
        for peer in self.plain:
            if _may_take(peer, source, is_forwarded, origin):
                chosen[peer] = []
        for name, members in self.groups.items():
            if name in served or (wanted is not None and name not in wanted):
                continue
            able = [sub for sub in members if _may_take(sub.peer, source, is_forwarded, origin)]
            if able:
                weights = [sub.weight for sub in able]
                chosen.setdefault(random.choices(able, weights)[0].peer, []).append(name)
        return {peer: queues for peer, queues in chosen.items() if peer.may_send(subject)}

    def deliver(
        self,
        to: bytes,
        batch: list[Delivery],
        *,
        served: Collection[bytes] = (),
        wanted: Collection[bytes] | None = None,
        source: LeafPeer | None = None,
        is_forwarded: bool = False,
        origin: str = "",
    ) -> None:
        """Deliver a consumer's messages to the subscribers of `to`: the reply carries the subject
        under which each was stored."""
        for subject, reply, headers, payload in batch:
            self.send(
                to,
                b"%b@%b" % (reply, subject) if reply else b"",
                headers,
                payload,
                served=served,
                wanted=wanted,
                source=source,
                is_forwarded=is_forwarded,
                origin=origin,
            )

    def is_congested(self) -> bool:
        """True while more waits on the way to a receiver than should."""
        return any(peer.is_congested for peer in self.plain) or any(
            sub.peer.is_congested for members in self.groups.values() for sub in members
        )

    def peers(self) -> Iterable[LeafPeer]:
        """Return the links, some perhaps more than once."""
        yield from self.plain
        for members in self.groups.values():
            for sub in members:
                yield sub.peer


class LeafInterest:
    """Interest of all leaf links. Keeps `sublist`, which routes are made from."""

    __slots__ = ("_subs", "sublist")

    def __init__(self) -> None:
        self.sublist: Sublist[LeafSub] = Sublist()
        self._subs: dict[LeafPeer, dict[tuple[bytes, bytes], LeafSub]] = {}

    def set(self, peer: LeafPeer, pattern: bytes, queue: bytes, weight: int) -> int:
        """Note what a link tells (weight 0: it ends); returns the weight until now."""
        subs = self._subs.setdefault(peer, {})
        sub = subs.get((pattern, queue))
        before = sub.weight if sub is not None else 0
        if sub is None and weight:
            sub = subs[pattern, queue] = LeafSub(pattern, queue, peer, weight)
            self.sublist.insert(sub)
        elif sub is not None and weight:
            sub.weight = weight
        elif sub is not None:
            del subs[pattern, queue]
            self.sublist.remove(sub)
        return before

    def forget(self, peer: LeafPeer) -> None:
        """Drop what is left of a link that is gone: nothing, once each interest has ended."""
        self._subs.pop(peer, None)

    def of_peer(self, peer: LeafPeer) -> list[LeafSub]:
        """Return the interest of a link."""
        return list(self._subs.get(peer, {}).values())

    def count(self, peer: LeafPeer) -> int:
        """Return how much interest a link has told."""
        return len(self._subs.get(peer, ()))


def leaf_route(match: Match[LeafSub]) -> LeafRoute | None:
    """Return the route to leaf links; None if none of them wants the subject."""
    return LeafRoute(match) if match.plain or match.queues else None


def _may_take(peer: LeafPeer, source: LeafPeer | None, is_forwarded: bool, origin: str) -> bool:
    if is_forwarded and (peer.is_spoke or (origin and peer.remote_cluster == origin)):
        return False
    if source is None:
        return True
    return peer is not source and peer.remote_cluster != source.remote_cluster
