"""Interest across nodes: that of this node's clients, as others are told, and that of others.

Each node tells every other each pattern its clients subscribe to, once however many there are, and
for queue groups how many members they have. What others want is a second subject space: an index
like the one of local subscriptions, but with a node behind each entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from streamd.callbacks import ignore
from streamd.net.pubsub.sublist import Sublist
from streamd.types import NodeId

Key = tuple[bytes, bytes]
Change = tuple[bytes, bytes, int]
"""(pattern, queue, members there are now); without a queue 1, and 0 when the last one ended."""


Delivery = tuple[bytes, bytes, bytes, bytes]
"""(subject, ack reply, headers, payload)"""

RouteItem = (
    tuple[bytes, bytes | list[bytes]]
    | tuple[bytes, bytes, bytes, bytes]
    | tuple[bytes, bytes, bytes, bytes, list[bytes]]
    | tuple[bytes, bytes, bytes, bytes, list[bytes], bytes]
)
"""Item of a `net.msgs` note: (subject, payload), or several payloads; with reply and headers behind
them if there are any, with the queue groups that the node was chosen for, and with the cluster of
leaf nodes that the message comes from."""

Numbers = tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int]]
"""Per message of a run: stream seqs, consumer seqs, times, how many are pending."""


class PeerNode(Protocol):
    """Another node of the cluster, as routing uses it: where messages for its clients go.

    `outbox` takes items of a `net.msgs` note (see `net/route/remote_messages.py`).
    """

    outbox: list[RouteItem]

    @property
    def node_id(self) -> NodeId: ...

    def pass_traced(self, item: Sequence[object]) -> None:
        """Send a traced message (`traced_delivery.TracedItem`), behind those of `outbox`."""

    def deliver(self, to: bytes, queue: bytes, batch: list[Delivery], origin: bytes = b"") -> None:
        """Send messages to the plain subscribers of `to` there, or to a queue group alone.
        `origin`: the cluster of leaf nodes that they come from."""

    def deliver_run(
        self,
        to: bytes,
        ack: bytes,
        subjects: Sequence[bytes],
        payloads: Sequence[bytes],
        numbers: Numbers,
    ) -> None:
        """Send messages as `ports.DeliverSink.deliver_run` takes them."""

    def is_congested(self, to: bytes) -> bool:
        """True while deliveries to `to` there should wait."""


class LocalInterest:
    """Subscriptions of this node's clients, counted; and which changed since others were told."""

    __slots__ = ("_counts", "_told")

    def __init__(self) -> None:
        self._counts: dict[Key, int] = {}
        self._told: dict[Key, int] = {}  # of those that changed: what others were told last

    def add(self, pattern: bytes, queue: bytes) -> None:
        """A client subscribed."""
        key = (pattern, queue)
        count = self._counts.get(key, 0)
        self._counts[key] = count + 1
        if queue or not count:
            self._told.setdefault(key, count)

    def discard(self, pattern: bytes, queue: bytes) -> None:
        """A subscription that was added has ended."""
        key = (pattern, queue)
        count = self._counts[key]
        if count > 1:
            self._counts[key] = count - 1
        else:
            del self._counts[key]
        if queue or count == 1:
            self._told.setdefault(key, count)

    @property
    def has_changes(self) -> bool:
        """True if `take_changes` may have something to tell."""
        return bool(self._told)

    def take_changes(self) -> list[Change]:
        """Return the changes that other nodes have to be told; they count as told now."""
        told, self._told = self._told, {}
        return [
            change
            for key, before in told.items()
            if (change := self._change(key))[2] != (before if key[1] else min(before, 1))
        ]

    def all(self) -> list[Change]:
        """Return everything, for a node that knows nothing of it yet."""
        return [self._change(key) for key in self._counts]

    def _change(self, key: Key) -> Change:
        count = self._counts.get(key, 0)
        return (key[0], key[1], count if key[1] else min(count, 1))


class RemoteSub:
    """Interest of another node's clients in a pattern (of a queue group, if one is named)."""

    __slots__ = ("node", "pattern", "queue", "weight")

    def __init__(self, pattern: bytes, queue: bytes, node: PeerNode, weight: int) -> None:
        self.pattern = pattern
        self.queue = queue
        self.node = node
        self.weight = weight  # members of the queue group at that node


class RemoteInterest:
    """Interest of all other nodes. Keeps `sublist`, which routes are made from."""

    __slots__ = ("_subs", "ack_watcher_count", "on_change", "sublist")

    def __init__(self) -> None:
        self.sublist: Sublist[RemoteSub] = Sublist()
        self.ack_watcher_count = 0  # patterns that could see acks
        self._subs: dict[PeerNode, dict[Key, RemoteSub]] = {}
        # Told of each change of a node's interest: (node, pattern, queue, members there are now).
        self.on_change: Callable[[PeerNode, bytes, bytes, int], None] = ignore

    def apply(self, node: PeerNode, changes: Iterable[Change]) -> list[Key]:
        """Apply changes that a node told; returns (pattern, queue) of each that took effect."""
        subs = self._subs.setdefault(node, {})
        changed: list[Key] = []
        for pattern, queue, count in changes:
            key = (pattern, queue)
            sub = subs.get(key)
            if sub is None:
                if not count:
                    continue
                sub = subs[key] = RemoteSub(pattern, queue, node, count)
                self.sublist.insert(sub)
                self.ack_watcher_count += sees_acks(pattern)
            elif not count:
                self._remove(subs.pop(key))
            elif count != sub.weight:
                sub.weight = count
            else:
                continue
            changed.append(key)
            self.on_change(node, pattern, queue, count)
        return changed

    def forget(self, node: PeerNode) -> list[Key]:
        """Drop the interest of a node that is gone; returns (pattern, queue) of each entry."""
        subs = self._subs.pop(node, {})
        for sub in subs.values():
            self._remove(sub)
            self.on_change(node, sub.pattern, sub.queue, 0)
        return list(subs)

    def _remove(self, sub: RemoteSub) -> None:
        self.sublist.remove(sub)
        self.ack_watcher_count -= sees_acks(sub.pattern)

    def all(self) -> list[RemoteSub]:
        """Return the interest of all nodes."""
        return [sub for subs in self._subs.values() for sub in subs.values()]

    def of_node(self, node_id: NodeId) -> list[RemoteSub]:
        """Return the interest of a node."""
        for node, subs in self._subs.items():
            if node.node_id == node_id:
                return list(subs.values())
        return []


def sees_acks(pattern: bytes) -> bool:
    """True if a subscription to `pattern` may receive acks or answers to flow control."""
    head = pattern.split(b".", 2)
    first = head[0]
    if first == b">":
        return True
    if first != b"$JS" and first != b"*":
        return False
    return len(head) > 1 and head[1] in (b"ACK", b"FC", b"*", b">")
