"""Part of a route that lies at other nodes: which of them get a message, and for which groups.

A message goes to each node at most once, with the names of the queue groups that node was chosen
for. A group with members here is served here; otherwise nodes get a share by their members.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import count
from typing import Final, Protocol

from streamd.net.pubsub.interest import Delivery, PeerNode, RemoteSub, RouteItem
from streamd.net.pubsub.sublist import Match, Subscription

_TURN_MAX: Final = 1024  # places in one round of a group; the shares of larger ones are rounded
_starts = count()  # so that routes made anew for each message don't all begin with one node


class OtherNodes(Protocol):
    """The other nodes of the cluster together, as the subject space of this one uses them."""

    has_untold: bool
    """True while interest of clients here changed and the other nodes have not heard of it."""

    def subscribed(self, sub: Subscription) -> None:
        """Note a subscription that other nodes have to be told of."""

    def unsubscribed(self, sub: Subscription) -> None:
        """Note the end of a subscription that `subscribed` was told of."""

    def tell(self) -> None:
        """Tell the other nodes of changed interest."""

    def flush(self, *, is_forwarded: bool = False) -> float:
        """Send queued messages; returns how many seconds their publisher should rest.
        `is_forwarded`: it published into streams that other nodes lead."""

    def schedule_messages(self) -> None:
        """Send messages that wait when the loop's iteration is over."""

    def on_drained(self) -> None:
        """Let other nodes go on that wait for a receiver here."""


class RemoteGroup:
    """The nodes with members of one queue group, and the turns of each."""

    __slots__ = ("_at", "_nodes", "_turn")

    def __init__(self) -> None:
        self._nodes: dict[PeerNode, int] = {}
        self._turn: list[PeerNode] = []
        self._at = 0

    def add(self, node: PeerNode, weight: int) -> None:
        self._nodes[node] = self._nodes.get(node, 0) + weight

    def nodes(self) -> list[PeerNode]:
        return list(self._nodes)

    def pick(self) -> PeerNode:
        """Return the node that gets the next message."""
        turn = self._turn
        if not turn:
            turn = self._turn = _shares(self._nodes)
            self._at = next(_starts)
        self._at += 1
        return turn[self._at % len(turn)]


class RemoteRoute:
    """The other nodes that want a subject."""

    __slots__ = ("groups", "plain")

    def __init__(self, match: Match[RemoteSub]) -> None:
        # Each node once, in the order found.
        self.plain = list(dict.fromkeys(sub.node for sub in match.plain))
        self.groups: dict[bytes, RemoteGroup] = {}
        for members in match.queues:
            group = self.groups[members[0].queue] = RemoteGroup()
            for sub in members:
                group.add(sub.node, sub.weight)

    def send(
        self,
        subject: bytes,
        reply: bytes,
        headers: bytes,
        payload: bytes,
        served: Collection[bytes] = (),
        origin: bytes = b"",
    ) -> int:
        """Send one message; returns to how many nodes. `served`: groups that got it here; `origin`:
        the leaf node, or the cluster of leaf nodes, that it comes from."""
        item: RouteItem = (subject, payload)
        if origin:
            item = (subject, payload, reply, headers, [], origin)
        elif reply or headers:
            item = (subject, payload, reply, headers)
        if not self.groups:
            for node in self.plain:
                node.outbox.append(item)
            return len(self.plain)
        chosen = self.choose(served)
        for node, queues in chosen.items():
            if not queues:
                node.outbox.append(item)
            elif origin:
                node.outbox.append((subject, payload, reply, headers, queues, origin))
            else:
                node.outbox.append((subject, payload, reply, headers, queues))
        return len(chosen)

    def choose(self, served: Collection[bytes]) -> dict[PeerNode, list[bytes]]:
        """Return the nodes that get the next message, and for which groups. `served`: groups that
        got it elsewhere."""
        chosen: dict[PeerNode, list[bytes]] = {node: [] for node in self.plain}
        for name, group in self.groups.items():
            if name not in served:
                chosen.setdefault(group.pick(), []).append(name)
        return chosen

    def send_run(self, subject: bytes, payloads: list[bytes]) -> None:
        """Send plain messages on one subject, which no queue group wants."""
        assert not self.groups
        item = (subject, payloads if len(payloads) > 1 else payloads[0])
        for node in self.plain:
            node.outbox.append(item)

    def deliver(
        self, to: bytes, batch: list[Delivery], served: Collection[bytes], origin: bytes = b""
    ) -> None:
        """Deliver messages under their own subjects to the subscribers of `to`; `origin` as for
        `send`."""
        for node in self.plain:
            node.deliver(to, b"", batch, origin)
        for name, group in self.groups.items():
            if name in served:
                continue
            shares: dict[PeerNode, list[Delivery]] = {}
            for message in batch:
                shares.setdefault(group.pick(), []).append(message)
            for node, share in shares.items():
                node.deliver(to, name, share, origin)

    def is_congested(self, subject: bytes) -> bool:
        """True while more waits on the way to a receiver than should."""
        if any(node.is_congested(subject) for node in self.plain):
            return True
        return any(
            node.is_congested(subject) for group in self.groups.values() for node in group.nodes()
        )


def remote_route(match: Match[RemoteSub]) -> RemoteRoute | None:
    """Return the route to other nodes; None if no other node wants the subject."""
    return RemoteRoute(match) if match.plain or match.queues else None


def _shares(weights: dict[PeerNode, int]) -> list[PeerNode]:
    """Return one round: each node as often as it has members, spread evenly."""
    if len(weights) == 1:
        return list(weights)
    total = sum(weights.values())
    length = min(total, _TURN_MAX)
    credit = dict.fromkeys(weights, 0)
    turn: list[PeerNode] = []
    for _ in range(length):
        for node, weight in weights.items():
            credit[node] += weight
        best = max(credit, key=lambda node: credit[node])
        credit[best] -= total
        turn.append(best)
    return turn
