"""Core NATS across nodes: tells others of the interest here, and passes messages on to them.

A message is passed on by the node whose client published it, once to each node that wants it, and
from there to clients only: never on to a third node, never into a stream.

Each account has its own exchange, for its subject space. Notes to other nodes
(`streamd.node.ports.Peers.note`) begin with the account; in order on each link:

    net.sub      [.., is_full, [[pattern, queue, members], ...]]   interest of clients here
    net.msgs     [.., [[subject, payload, reply?, headers?, queues?, origin?], ...]]   or, for a run
                 of plain messages on one subject, [subject, [payload, ...]]; `origin` is the
                 cluster of leaf nodes that a message comes from, and does not go back to
    net.trace    [.., item]                     a traced message, see `traced_delivery.TracedItem`
    net.deliver  [.., to, queue, [[subject, reply, headers, payload], ...], origin?]   a consumer's
                 messages
    net.run      [.., to, ack, subjects, payloads, numbers]    the same, see `InboxSink.deliver_run`
    net.full     [.., to]                                      stop delivering to that subject
    net.room     [.., [to, ...]]                               go on

Queued messages go out at the end of a chunk, or else of the loop's iteration. Interest goes
before anything else a chunk led to, so that the answer to a request finds its way back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeVar

from streamd.callbacks import ignore
from streamd.limits import (
    REMOTE_CHANGES_MAX,
    REMOTE_CONGESTED_BYTES,
    REMOTE_NOTE_BYTES,
    REMOTE_NOTE_SUBS,
    REMOTE_STALL_BYTES,
    STALL_S,
)
from streamd.net.pubsub.delivery_sinks import deliver_here, deliver_run_here, is_congested_here
from streamd.net.pubsub.fanout import FanOut
from streamd.net.pubsub.interest import Change, Delivery, LocalInterest, Numbers, RouteItem
from streamd.net.pubsub.message_router import MessageRouter
from streamd.net.pubsub.output_queue import OutputQueue
from streamd.net.pubsub.sublist import Subscription
from streamd.net.pubsub.subscriptions import Subscriptions
from streamd.net.pubsub.traced_delivery import TracedDelivery, TracedItem
from streamd.types import ACCOUNT, NodeId

PREFIX: Final = "net."
_KINDS: Final = (
    "net.sub", "net.msgs", "net.trace", "net.deliver", "net.run", "net.full", "net.room",
)  # fmt: skip

TakeNote = Callable[[NodeId, str, Any], None]
"""Takes a note: (sender, kind, arguments), which a link has checked (protocol/peer_schemas.py)."""
OnNode = Callable[[NodeId], None]
Item = TypeVar("Item", bound=RouteItem)


class PeerLinks(Protocol):
    """The links to other nodes, as messages and interest use them."""

    def nodes(self) -> list[NodeId]:
        """Nodes with a link, sorted."""

    def note(self, node_id: NodeId, kind: str, args: Sequence[object]) -> None:
        """Tell a node something; nobody answers."""

    def buffered_bytes(self, node_id: NodeId) -> int:
        """Bytes that a node has not been sent yet."""

    def on_note_prefix(self, prefix: str, take: TakeNote) -> None:
        """Hand notes whose kind starts with `prefix` to `take`."""

    def on_up(self, on_change: OnNode) -> None:
        """Call when a link is up."""

    def on_down(self, on_change: OnNode) -> None:
        """Call when a link is gone."""

    def on_drained(self, on_change: OnNode) -> None:
        """Call when a link that was behind has nearly caught up."""


class Exchange:
    """Exchange of all accounts with other nodes: takes notes to the account that they name."""

    def __init__(
        self,
        links: PeerLinks,
        obtain: Callable[[str], object],
        call_soon: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        """`obtain` makes the subject space of an account that another node knows and this one does
        not yet, and connects it. `call_soon` is the event loop's; it may be left out where a loop
        is running."""
        self._links = links
        self._obtain = obtain
        self._call_soon = call_soon or asyncio.get_running_loop().call_soon
        self._by_account: dict[str, Remotes] = {}
        links.on_note_prefix(PREFIX, self._on_note)
        links.on_up(self._on_up)
        links.on_down(self._on_down)
        links.on_drained(self._on_drained)

    def connect(self, router: MessageRouter, account: str = ACCOUNT) -> Remotes:
        """Connect an account's `router`: interest and messages are shared. At most once."""
        remotes = Remotes(
            account,
            router.subscriptions,
            router.fanout,
            router.output_queue,
            self._links,
            self._call_soon,
            router,
        )
        self._by_account[account] = remotes
        router.attach_remotes(remotes)
        return remotes

    def nodes(self) -> list[RemoteNode]:
        """Return the nodes of all accounts, with their counters."""
        return [node for remotes in self._by_account.values() for node in remotes.nodes()]

    def _on_note(self, sender: NodeId, kind: str, args: Any) -> None:
        if kind not in _KINDS:
            return
        account, *rest = args
        remotes = self._by_account.get(account)
        if remotes is None:
            self._obtain(account)
            remotes = self._by_account.get(account)
        if remotes is not None:
            remotes.on_note(sender, kind, rest)

    def _on_up(self, node_id: NodeId) -> None:
        for remotes in list(self._by_account.values()):
            remotes.on_up(node_id)

    def _on_down(self, node_id: NodeId) -> None:
        for remotes in list(self._by_account.values()):
            remotes.on_down(node_id)

    def _on_drained(self, _node_id: NodeId) -> None:
        for remotes in list(self._by_account.values()):
            remotes.resume()


def connect(
    router: MessageRouter,
    links: PeerLinks,
    call_soon: Callable[[Callable[[], None]], object] | None = None,
) -> Remotes:
    """Connect the `router` of a server that has one account."""
    return Exchange(links, ignore, call_soon).connect(router)


class RemoteNode:
    """Another node, as core NATS sees it; see `interest.PeerNode`."""

    __slots__ = (
        "_account",
        "_links",
        "full",
        "in_bytes",
        "in_msgs",
        "node_id",
        "out_bytes",
        "out_msgs",
        "outbox",
        "told_full",
    )

    def __init__(self, account: str, node_id: NodeId, links: PeerLinks) -> None:
        self._account = account
        self._links = links
        self.node_id = node_id
        self.outbox: list[RouteItem] = []  # items of a net.msgs
        self.full: set[bytes] = set()  # deliver subjects whose receivers there are congested
        self.told_full: set[bytes] = set()  # those of receivers here, as that node was told
        self.in_msgs = self.in_bytes = self.out_msgs = self.out_bytes = 0

    def flush(self) -> None:
        """Send queued messages."""
        if self.outbox:
            outbox, self.outbox = self.outbox, []
            for part, size in _parts(outbox):
                self._count(_msgs_in(part), size)
                self._links.note(self.node_id, "net.msgs", [self._account, part])

    def pass_traced(self, item: Sequence[object]) -> None:
        """See `interest.PeerNode`."""
        self.flush()  # order: messages queued before go before
        self._count(1, len(item[7]))  # type: ignore[arg-type]
        self._links.note(self.node_id, "net.trace", [self._account, list(item)])

    def deliver(self, to: bytes, queue: bytes, batch: list[Delivery], origin: bytes = b"") -> None:
        """Send a consumer's messages to the plain subscribers of `to` there, or, if a queue group
        is named, to that group alone."""
        self.flush()  # order: messages queued before go before
        for part, size in _parts(batch):
            self._count(len(part), size)
            args = [self._account, to, queue, part, *([origin] if origin else [])]
            self._links.note(self.node_id, "net.deliver", args)

    def deliver_run(
        self,
        to: bytes,
        ack: bytes,
        subjects: Sequence[bytes],
        payloads: Sequence[bytes],
        numbers: Numbers,
    ) -> None:
        """See ports.DeliverSink; the acks are formatted there."""
        self.flush()
        size = len(payloads[0])
        step = max(1, REMOTE_NOTE_BYTES // (size + 64))
        for at in range(0, len(subjects), step):
            part = slice(at, at + step)
            columns = [list(column[part]) for column in numbers]
            names = list(subjects[part])
            args = (self._account, to, ack, names, list(payloads[part]), columns)
            self._count(len(names), size * len(names))
            self._links.note(self.node_id, "net.run", args)

    def is_congested(self, to: bytes) -> bool:
        """True while deliveries to `to` there should wait."""
        return to in self.full or self._links.buffered_bytes(self.node_id) > REMOTE_CONGESTED_BYTES

    def _count(self, msgs: int, size: int) -> None:
        self.out_msgs += msgs
        self.out_bytes += size


class RemoteReceiver(Protocol):
    """Router of the account, as far as this room does not use its parts."""

    @property
    def traced(self) -> TracedDelivery: ...

    def on_drained(self) -> None:
        """Resume deliveries that wait for room in connections or links."""


class Remotes:
    """Exchange of one account with all other nodes: interest and messages; see
    `remote_routes.OtherNodes`."""

    def __init__(
        self,
        account: str,
        subscriptions: Subscriptions,
        fanout: FanOut,
        output_queue: OutputQueue,
        links: PeerLinks,
        call_soon: Callable[[Callable[[], None]], object],
        router: RemoteReceiver,
    ) -> None:
        self._account = account
        self._subscriptions = subscriptions
        self._fanout = fanout
        self._output_queue = output_queue
        self._links = links
        self._call_soon = call_soon
        self._tell_drained = router.on_drained
        self._traced = router.traced
        self._interest = subscriptions.remote_interest
        self._local = LocalInterest()
        self._nodes: dict[NodeId, RemoteNode] = {}
        self._is_scheduled = False
        self.has_untold = False  # interest that others have not heard of yet
        self._has_told_full = False
        for sub in subscriptions.sublist.all():
            if sub.is_told:
                self._local.add(sub.pattern, sub.queue)
        self._local.take_changes()  # no node is there yet, and each that comes is told all
        for node_id in links.nodes():
            self.on_up(node_id)

    def resume(self) -> None:
        """Resume deliveries that wait for room in a link."""
        self._tell_drained()

    # --- from this node -------------------------------------------------------------------------

    def subscribed(self, sub: Subscription) -> None:
        """A client subscribed."""
        self._local.add(sub.pattern, sub.queue)
        self._note_untold()

    def unsubscribed(self, sub: Subscription) -> None:
        """A client's subscription has ended."""
        self._local.discard(sub.pattern, sub.queue)
        self._note_untold()
        if self._has_told_full:
            self.schedule()  # a receiver that was full may be gone

    def _note_untold(self) -> None:
        if self._local.has_changes:
            self.has_untold = True
            # Also in a chunk, whose end tells of one account: an import subscribes in another.
            self.schedule()

    def tell(self) -> None:
        """Tell the other nodes of changed interest."""
        self.has_untold = False
        changes = self._local.take_changes()
        for node_id in list(self._nodes):  # a link that can't take it is gone
            self._tell(node_id, changes)

    def _tell(self, node_id: NodeId, changes: list[Change], *, is_full: bool = False) -> None:
        # A full set is told even if there is nothing in it: it says what is no longer wanted.
        for at in range(0, max(len(changes), 1 if is_full else 0), REMOTE_NOTE_SUBS):
            part = changes[at : at + REMOTE_NOTE_SUBS]
            self._links.note(node_id, "net.sub", [self._account, is_full and at == 0, part])

    def schedule(self) -> None:
        """Send queued messages when the loop's iteration is over."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._on_scheduled)

    def schedule_messages(self) -> None:
        """As `schedule`, if there are messages to send."""
        if not self._is_scheduled and any(node.outbox for node in self._nodes.values()):
            self.schedule()

    def _on_scheduled(self) -> None:
        self._is_scheduled = False
        self.flush()
        self.on_drained()

    def flush(self, *, is_forwarded: bool = False) -> float:
        """Send queued messages. Returns how many seconds their publisher should rest, since they go
        to a node that is behind: with the square of how far, for many publishers, each of which
        sends a chunk between two rests, would fill any link that takes less."""
        if self.has_untold:
            self.tell()
        behind = 0.0
        for node in list(self._nodes.values()):
            if node.outbox or is_forwarded:
                node.flush()
                behind = max(behind, self._links.buffered_bytes(node.node_id) / REMOTE_STALL_BYTES)
        return STALL_S * behind**2 if behind > 1 else 0.0

    def on_drained(self) -> None:
        """Let other nodes go on that wait for a connection here: it has room again, or is gone."""
        if not self._has_told_full:
            return
        self._has_told_full = False
        for node in list(self._nodes.values()):
            free = [to for to in node.told_full if not is_congested_here(self._fanout, to)]
            if free:
                node.told_full.difference_update(free)
                self._links.note(node.node_id, "net.room", [self._account, sorted(free)])
            if node.told_full:
                self._has_told_full = True

    # --- from other nodes -----------------------------------------------------------------------

    def on_up(self, node_id: NodeId) -> None:
        """Exchange with a node whose link is up: tell it all interest here."""
        self.tell()  # first, since later changes are counted from the full set below
        node = self._node(node_id)
        node.outbox.clear()
        node.full.clear()
        node.told_full.clear()
        self._tell(node_id, self._local.all(), is_full=True)

    def on_down(self, node_id: NodeId) -> None:
        """Forget a node whose link is gone."""
        node = self._nodes.pop(node_id, None)
        if node is not None:
            self._changed(self._interest.forget(node), is_all=True)
            self._tell_drained()  # deliveries may have waited for that link

    def _node(self, node_id: NodeId) -> RemoteNode:
        node = self._nodes.get(node_id)
        if node is None:
            node = self._nodes[node_id] = RemoteNode(self._account, node_id, self._links)
        return node

    def _changed(self, keys: list[tuple[bytes, bytes]], *, is_all: bool = False) -> None:
        if keys or is_all:
            patterns = list(dict.fromkeys(pattern for pattern, _ in keys))
            is_all = is_all or len(patterns) > REMOTE_CHANGES_MAX
            self._subscriptions.on_remote_interest(None if is_all else patterns)

    def on_note(self, sender: NodeId, kind: str, args: Any) -> None:
        """Take a note of another node, without the account."""
        if kind == "net.trace":
            self._on_trace(self._node(sender), TracedItem(*args[0]))
        elif kind == "net.msgs":
            self._on_msgs(self._node(sender), *args)
        elif kind == "net.run":
            self._on_run(self._node(sender), *args)
        elif kind == "net.deliver":
            self._on_deliver(self._node(sender), *args)
        elif kind == "net.sub":
            self._on_sub(self._node(sender), *args)
        elif kind == "net.full":
            self._node(sender).full.add(args[0])
        elif kind == "net.room":
            self._node(sender).full.difference_update(args[0])
            self._tell_drained()

    def _on_sub(self, node: RemoteNode, is_full: bool, changes: list[Change]) -> None:
        before = self._interest.forget(node) if is_full else []
        self._changed(before + self._interest.apply(node, changes))

    def _on_trace(self, node: RemoteNode, item: TracedItem) -> None:
        node.in_msgs += 1
        node.in_bytes += len(item.payload)
        self._traced.take_forwarded(node.node_id, item)
        self._fanout.flush_if_idle()

    def _on_msgs(self, node: RemoteNode, items: list[RouteItem]) -> None:
        fanout = self._fanout
        node.in_msgs += _msgs_in(items)
        for item in items:
            subject, payload = item[0], item[1]
            if isinstance(payload, list):
                node.in_bytes += sum(map(len, payload))
                fanout.deliver_forwarded_run(subject, payload)
                continue
            node.in_bytes += len(payload)
            reply, headers = (item[2], item[3]) if len(item) > 2 else (b"", b"")
            queues = item[4] if len(item) > 4 else ()
            origin = item[5].decode(errors="replace") if len(item) > 5 else ""
            fanout.deliver_forwarded(subject, reply, headers, payload, queues, origin)
        fanout.flush_if_idle()

    def _on_deliver(
        self,
        node: RemoteNode,
        to: bytes,
        queue: bytes,
        batch: list[Delivery],
        origin: bytes = b"",
    ) -> None:
        node.in_msgs += len(batch)
        node.in_bytes += sum(len(item[2]) + len(item[3]) for item in batch)
        deliver_here(self._fanout, to, queue, batch, origin.decode(errors="replace"))
        self._check_room(node, to)

    def _on_run(
        self,
        node: RemoteNode,
        to: bytes,
        ack: bytes,
        subjects: list[bytes],
        payloads: list[bytes],
        numbers: Numbers,
    ) -> None:
        node.in_msgs += len(payloads)
        node.in_bytes += len(payloads[0]) * len(payloads)
        deliver_run_here(self._fanout, to, ack, subjects, payloads, numbers)
        self._check_room(node, to)

    def _check_room(self, node: RemoteNode, to: bytes) -> None:
        """Tell a node to wait if a client here takes its deliveries too slowly."""
        if to not in node.told_full and is_congested_here(self._fanout, to):
            node.told_full.add(to)
            self._has_told_full = True
            self._links.note(node.node_id, "net.full", [self._account, to])

    # --- for monitoring -------------------------------------------------------------------------

    def nodes(self) -> list[RemoteNode]:
        """The nodes there are links to, with their counters."""
        return list(self._nodes.values())


def _msgs_in(items: list[RouteItem]) -> int:
    return sum(len(item[1]) if type(item[1]) is list else 1 for item in items)


def _parts(items: list[Item]) -> Iterator[tuple[list[Item], int]]:
    """Cut messages into pieces that are no burden to a link, with the bytes of each."""
    sizes = [sum(map(len, item[1] if type(item[1]) is list else item)) for item in items]
    total = sum(sizes)
    if total <= REMOTE_NOTE_BYTES:
        yield items, total
        return
    part: list[Item] = []
    filled = 0
    for item, size in zip(items, sizes, strict=True):
        if part and filled + size > REMOTE_NOTE_BYTES:
            yield part, filled
            part, filled = [], 0
        part.append(item)
        filled += size
    yield part, filled
