"""The network between simulated nodes: links that carry real frames, late, cut, or broken.

A link is a connection: frames of one direction arrive in order, or the link breaks and what was
under way is lost. Raft frames are also dropped, doubled and overtaken one by one, as if each came
by datagram: Raft must not need more. A direction that is blocked holds its frames (TCP would send
them again); a side that hears nothing for a second gives the link up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from streamd import errors
from streamd.errors import ConfigError, JsError
from streamd.protocol import peer_frames, peer_schemas
from streamd.protocol.node_hello import Hello
from streamd.raft.messages import Message
from streamd.types import NodeId, Uid
from tests.sim.world import MS, World

BEAT_US = 250 * MS
SILENCE_US = 1000 * MS
DIAL_US = 100 * MS


class Handler(Protocol):
    """The part of ports.PeerHandler that links call."""

    def hello(self) -> Hello: ...

    def on_peer_up(self, node_id: NodeId, hello: Hello) -> None: ...

    def on_peer_down(self, node_id: NodeId) -> None: ...

    def on_raft(self, sender: NodeId, uid: Uid, messages: list[Message]) -> None: ...

    def on_call(
        self, sender: NodeId, method: str, args: list[Any], answer: Callable[[Any], None]
    ) -> None: ...

    def on_note(self, sender: NodeId, kind: str, args: list[Any]) -> None: ...


class Process(Protocol):
    """What owns one end of links: a running node's process."""

    name: NodeId

    @property
    def is_alive(self) -> bool: ...

    def schedule(self, delay_us: int, callback: Callable[..., object], *args: Any) -> None:
        """Call in `delay_us`, unless the process is gone by then; later while it is paused."""


class Weather:
    """How bad the network is now. Changed by faults; all zero is a good network."""

    def __init__(self) -> None:
        self.loss = 0.0  # of single raft frames
        self.duplicate = 0.0
        self.reorder = 0.0
        self.mean_us = 300  # added to every frame, exponential
        self.min_us = 100
        self.clog = 0.0  # frames that take much longer, and hold up what follows


class Link:
    """One connection between two processes."""

    __slots__ = ("arrives_us", "ends", "heard_us", "held", "is_open", "is_up", "number")

    def __init__(self, number: int, a: SimPeers, b: SimPeers) -> None:
        self.number = number
        self.ends = {a.name: a, b.name: b}
        self.is_open = {a.name: True, b.name: True}
        self.is_up = {a.name: False, b.name: False}  # the handshake is over at that end
        self.heard_us = {a.name: 0, b.name: 0}
        self.arrives_us = {a.name: 0, b.name: 0}  # by receiver: when the latest frame arrives
        self.held: dict[NodeId, list[bytes]] = {a.name: [], b.name: []}  # by receiver

    def other(self, name: NodeId) -> NodeId:
        a, b = self.ends
        return b if name == a else a


class SimNet:
    """All links of one cluster."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.weather = Weather()
        self.blocked: set[tuple[NodeId, NodeId]] = set()  # (from, to)
        self.peers: dict[NodeId, SimPeers] = {}  # of the processes that run
        self._rng = world.rng("net")
        self._numbers = 0

    # --- faults -----------------------------------------------------------------------------

    def block(self, pairs: set[tuple[NodeId, NodeId]]) -> None:
        """Let nothing pass from the first to the second of each pair."""
        self.blocked |= pairs

    def heal(self) -> None:
        """Let everything pass; what was held goes on its way."""
        self.blocked.clear()
        for peers in list(self.peers.values()):
            for link in list(peers.links.values()):
                self._release(link)

    def break_link(self, a: NodeId, b: NodeId) -> bool:
        """Reset the connection between two nodes; False if there is none."""
        peers = self.peers.get(a)
        link = peers.links.get(b) if peers is not None else None
        if link is None:
            return False
        for name in sorted(link.ends):
            self.close_end(link, name, "reset")
        return True

    def _release(self, link: Link) -> None:
        for receiver in sorted(link.held):
            if link.held[receiver]:
                process = link.ends[receiver].process
                process.schedule(self._delay_us(), self._flush, link, receiver)

    def _flush(self, link: Link, receiver: NodeId) -> None:
        """Deliver what was held, in order, unless the direction is blocked again."""
        if (link.other(receiver), receiver) in self.blocked:
            return
        frames, link.held[receiver] = link.held[receiver], []
        for data in frames:
            self._deliver(link, receiver, data)

    # --- frames -----------------------------------------------------------------------------

    def transmit(self, link: Link, receiver: NodeId, data: bytes) -> None:
        """Put frames on a link, in order."""
        self._deliver_later(link, receiver, data)

    def transmit_raft(self, link: Link, receiver: NodeId, data: bytes) -> None:
        """Put one raft frame on a link; it may be lost, doubled or overtaken."""
        weather, rng = self.weather, self._rng
        if weather.loss and rng.random() < weather.loss:
            self.world.fault("raft frame lost")
            return
        if weather.duplicate and rng.random() < weather.duplicate:
            self.world.fault("raft frame doubled")
            self._alone(link, receiver, data)
        if weather.reorder and rng.random() < weather.reorder:
            self.world.fault("raft frame overtaken")
            self._alone(link, receiver, data)
            return
        self._deliver_later(link, receiver, data)

    def _alone(self, link: Link, receiver: NodeId, data: bytes) -> None:
        """Deliver a frame at its own pace, whatever else is under way."""
        delay_us = self._delay_us() + self._rng.randint(0, 20 * MS)
        link.ends[receiver].process.schedule(delay_us, self._deliver, link, receiver, data)

    def _deliver_later(self, link: Link, receiver: NodeId, data: bytes) -> None:
        world = self.world
        at_us = max(world.now_us + self._delay_us(), link.arrives_us[receiver] + 1)
        link.arrives_us[receiver] = at_us
        process = link.ends[receiver].process
        process.schedule(at_us - world.now_us, self._deliver, link, receiver, data)

    def _delay_us(self) -> int:
        weather, rng = self.weather, self._rng
        delay_us = weather.min_us + int(rng.expovariate(1.0) * weather.mean_us)
        if weather.clog and rng.random() < weather.clog:
            self.world.fault("clog")
            delay_us += rng.randint(20 * MS, 400 * MS)
        return delay_us

    def _deliver(self, link: Link, receiver: NodeId, data: bytes) -> None:
        if not link.is_open[receiver]:
            return
        sender = link.other(receiver)
        if (sender, receiver) in self.blocked or link.held[receiver]:
            link.held[receiver].append(data)  # until the direction is free again, then in order
            return
        link.heard_us[receiver] = self.world.now_us
        for frame in peer_frames.FrameReader().feed(data):
            if not link.is_open[receiver]:
                return
            link.ends[receiver].on_frame(link, sender, frame)

    # --- links ------------------------------------------------------------------------------

    def dial(self, dialer: SimPeers, target: NodeId) -> None:
        """Try to connect; the link comes up at each end when the other's hello arrives."""
        other = self.peers.get(target)
        name = dialer.name
        if other is None or not other.process.is_alive or other.is_deaf:
            return
        if (name, target) in self.blocked or (target, name) in self.blocked:
            return
        if other.links.get(name) is not None:
            # The other end has not noticed that the old connection is gone. It does now.
            self.close_end(other.links[name], target, "replaced")
        self._numbers += 1
        link = Link(self._numbers, dialer, other)
        dialer.links[target] = other.links[name] = link
        link.heard_us = dict.fromkeys(link.heard_us, self.world.now_us)
        self.transmit(link, target, peer_frames.hello(dialer.handler.hello()))

    def close_end(self, link: Link, name: NodeId, reason: str) -> None:
        """Close one end: that side knows at once, the other when the news reaches it."""
        if not link.is_open[name]:
            return
        other = link.other(name)
        link.is_open[name] = False
        link.held[name].clear()
        peers = link.ends[name]
        if peers.links.get(other) is link:
            del peers.links[other]
        if link.is_up[name]:
            link.is_up[name] = False
            self.world.note(f"link {name}-{other} closed at {name}: {reason}")
            peers.process.schedule(0, peers.on_down, other)
        if link.is_open[other] and (name, other) not in self.blocked:
            far = link.ends[other].process
            far.schedule(self._delay_us(), self.close_end, link, other, "closed by the other side")

    def vanish(self, peers: SimPeers, *, is_silent: bool) -> None:
        """A process ended; `is_silent`: with its machine, so nobody is told."""
        if self.peers.get(peers.name) is peers:
            del self.peers[peers.name]
        for other, link in sorted(peers.links.items()):
            link.is_open[peers.name] = link.is_up[peers.name] = False
            if not is_silent and (peers.name, other) not in self.blocked and link.is_open[other]:
                far = link.ends[other].process
                far.schedule(self._delay_us(), self.close_end, link, other, "reset")
        peers.links.clear()


class SimPeers:
    """Implements ports.Peers for one process."""

    def __init__(self, net: SimNet, process: Process, names: list[NodeId]) -> None:
        self.name = process.name
        self.process = process
        self.links: dict[NodeId, Link] = {}
        self.is_deaf = False  # paused: takes no connections
        self.on_send: Callable[[NodeId, Uid, list[Message]], None] | None = None
        self._net = net
        self._names = [name for name in names if name != self.name]
        self._calls: dict[int, tuple[NodeId, Callable[[Any], None]]] = {}
        self._call_count = 0
        self._own: dict[str, Callable[..., None]] = {}  # notes that are not the node's
        self.handler: Handler

    def start(self, handler: Handler) -> None:
        """Begin to dial and to be dialed."""
        self.handler = handler
        self._net.peers[self.name] = self
        self._beat()
        self._dial()

    def on_note_prefix(self, prefix: str, take: Callable[..., None]) -> None:
        """Have notes whose kind begins so taken: (sender, kind, args)."""
        self._own[prefix] = take

    # --- ports.Peers ------------------------------------------------------------------------

    def send(self, node_id: NodeId, uid: Uid, messages: list[Message]) -> None:
        link = self._up(node_id)
        if self.on_send is not None:
            self.on_send(node_id, uid, messages)
        if link is None:
            return
        weather = self._net.weather
        if weather.loss or weather.duplicate or weather.reorder:
            for message in messages:  # each on its own, for each may get lost
                self._net.transmit_raft(link, node_id, peer_frames.encode_raft(uid, [message]))
        else:
            self._net.transmit(link, node_id, peer_frames.encode_raft(uid, messages))

    def call(
        self,
        node_id: NodeId,
        method: str,
        args: Sequence[object],
        done: Callable[[Any], None],
        timeout_ms: int = 5000,
    ) -> None:
        link = self._up(node_id)
        if link is None:
            self.process.schedule(0, done, errors.CLUSTER_NOT_AVAIL())
            return
        self._call_count += 1
        number = self._call_count
        self._calls[number] = (node_id, done)
        self._net.transmit(link, node_id, peer_frames.frame(peer_frames.CALL, number, method, args))
        self.process.schedule(timeout_ms * MS, self._settle, number, errors.CLUSTER_NOT_AVAIL())

    def note(self, node_id: NodeId, kind: str, args: Sequence[object]) -> None:
        link = self._up(node_id)
        if link is not None:
            self._net.transmit(link, node_id, peer_frames.frame(peer_frames.NOTE, kind, args))

    def is_up(self, node_id: NodeId) -> bool:
        return self._up(node_id) is not None

    def nodes(self) -> list[NodeId]:
        return sorted(name for name in self.links if self._up(name) is not None)

    def refuse(self, node_id: NodeId, reason: str) -> None:
        link = self._up(node_id)
        if link is not None:
            self._net.close_end(link, self.name, f"refused: {reason}")

    def _up(self, node_id: NodeId) -> Link | None:
        link = self.links.get(node_id)
        return link if link is not None and link.is_up[self.name] else None

    # --- what arrives -----------------------------------------------------------------------

    def on_frame(self, link: Link, sender: NodeId, frame: list[Any]) -> None:
        """Take one frame of a link."""
        kind = frame[0]
        if kind == peer_frames.HELLO:
            self._on_hello(link, sender, peer_frames.check_hello(frame))
        elif not link.is_up[self.name]:
            return  # nothing counts before the handshake is over
        elif kind == peer_frames.RAFT:
            uid, messages = peer_frames.raft_of(frame)
            self.handler.on_raft(sender, uid, messages)
        elif kind == peer_frames.CALL:
            peer_schemas.check_call(
                frame[2], frame[3]
            )  # as a link does: raising, here, is a failure
            self._on_call(link, sender, frame)
        elif kind == peer_frames.ANSWER:
            _, number, is_error, value = frame
            self._settle(number, JsError(*value) if is_error else value)
        elif kind == peer_frames.NOTE:
            self._on_note(sender, frame[1], frame[2])

    def _on_hello(self, link: Link, sender: NodeId, facts: dict[str, Any]) -> None:
        net = self._net
        is_dialed = self.name == list(link.ends)[1]
        if is_dialed:
            net.transmit(link, sender, peer_frames.hello(self.handler.hello()))
        link.is_up[self.name] = True
        net.world.note(f"link {self.name}-{sender} up at {self.name}")
        hello = peer_schemas.check_hello(facts)
        try:
            self.handler.on_peer_up(sender, hello)
        except ConfigError as err:
            link.is_up[self.name] = False
            net.close_end(link, self.name, f"refused: {err}")

    def _on_call(self, link: Link, sender: NodeId, frame: list[Any]) -> None:
        _, number, method, args = frame

        def answer(value: Any) -> None:
            if isinstance(value, JsError):
                fields = [value.code, value.err_code, value.description]
                data = peer_frames.frame(peer_frames.ANSWER, number, True, fields)
            else:
                data = peer_frames.frame(peer_frames.ANSWER, number, False, value)
            if link.is_open[self.name]:
                self._net.transmit(link, sender, data)

        self.handler.on_call(sender, method, args, answer)

    def _on_note(self, sender: NodeId, kind: str, args: list[Any]) -> None:
        for prefix, take in self._own.items():
            if kind.startswith(prefix):
                take(sender, kind, args)
                return
        peer_schemas.check_note(kind, args)
        self.handler.on_note(sender, kind, args)

    def _settle(self, number: int, result: Any) -> None:
        waiting = self._calls.pop(number, None)
        if waiting is not None:
            waiting[1](result)

    def on_down(self, node_id: NodeId) -> None:
        """A link is gone: calls that it carried get no answer."""
        lost = [number for number, (target, _) in self._calls.items() if target == node_id]
        for number in lost:
            self._settle(number, errors.CLUSTER_NOT_AVAIL())
        self.handler.on_peer_down(node_id)

    # --- life signs -------------------------------------------------------------------------

    def _beat(self) -> None:
        net = self._net
        beat = peer_frames.frame(peer_frames.BEAT, 0, False)
        for other, link in sorted(self.links.items()):
            if net.world.now_us - link.heard_us[self.name] >= SILENCE_US:
                net.close_end(link, self.name, "silence")
            else:
                net.transmit(link, other, beat)
        self.process.schedule(BEAT_US, self._beat)

    def _dial(self) -> None:
        for other in self._names:
            if other not in self.links:
                self._net.dial(self, other)
        self.process.schedule(DIAL_US, self._dial)
