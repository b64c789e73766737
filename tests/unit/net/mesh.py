"""Several servers without sockets, their links in memory: what one sends is encoded, waits, and is
decoded when the test lets it pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from streamd.net.route.remote_messages import Remotes, connect
from streamd.protocol import peer_frames as protocol
from streamd.protocol import peer_schemas
from tests.unit.net.bed import Bed, Node, Peer


class Links:
    """The links of one node: as much of them as core NATS uses (`PeerLinks`)."""

    def __init__(self, mesh: Mesh, node_id: str) -> None:
        self.mesh = mesh
        self.node_id = node_id
        self.up: set[str] = set()
        self.take: Callable[[str, str, list[Any]], None] = lambda *_: None
        self.ups: list[Callable[[str], None]] = []
        self.downs: list[Callable[[str], None]] = []
        self.drained: list[Callable[[str], None]] = []
        self.buffered: dict[str, int] = {}  # beside what waits in the mesh
        self.sent: list[tuple[str, str, list[Any]]] = []

    def note(self, node_id: str, kind: str, args: list[Any]) -> None:
        self.sent.append((node_id, kind, args))
        if node_id in self.up:
            frame = protocol.frame(protocol.NOTE, kind, args)
            self.mesh.wire(self.node_id, node_id).append(frame)

    def nodes(self) -> list[str]:
        return sorted(self.up)

    def buffered_bytes(self, node_id: str) -> int:
        waiting = self.mesh.wire(self.node_id, node_id)
        return self.buffered.get(node_id, 0) + sum(map(len, waiting))

    def on_note_prefix(self, prefix: str, take: Callable[[str, str, list[Any]], None]) -> None:
        assert prefix == "net."
        self.take = take

    def on_up(self, on_change: Callable[[str], None]) -> None:
        self.ups.append(on_change)

    def on_down(self, on_change: Callable[[str], None]) -> None:
        self.downs.append(on_change)

    def on_drained(self, on_change: Callable[[str], None]) -> None:
        self.drained.append(on_change)

    def kinds(self) -> list[str]:
        """The kinds of what was sent since the last look."""
        sent, self.sent = self.sent, []
        return [kind for _, kind, _ in sent]


class Mesh:
    """Servers a, b, c, ..., all linked with each other from the start."""

    def __init__(self, count: int, nodes: dict[str, Node] | None = None) -> None:
        self.names = [chr(ord("a") + at) for at in range(count)]
        self.beds = {name: Bed(node=(nodes or {}).get(name)) for name in self.names}
        self.links = {name: Links(self, name) for name in self.names}
        self.remotes: dict[str, Remotes] = {}
        self._wires: dict[tuple[str, str], deque[bytes]] = {}
        self._soon: list[Callable[[], None]] = []
        for name in self.names:
            links = self.links[name]
            self.remotes[name] = connect(self.beds[name].router, links, self._soon.append)
        for at, name in enumerate(self.names):
            for other in self.names[at + 1 :]:
                self.join(name, other)
        self.settle()

    def peer(self, name: str, *args: Any) -> Peer:
        return self.beds[name].peer(*args)

    def wire(self, sender: str, receiver: str) -> deque[bytes]:
        return self._wires.setdefault((sender, receiver), deque())

    def join(self, one: str, other: str) -> None:
        for name, far in ((one, other), (other, one)):
            self.links[name].up.add(far)
        for name, far in ((one, other), (other, one)):
            for on_change in self.links[name].ups:
                on_change(far)

    def part(self, one: str, other: str) -> None:
        """Break a link; what is on its way is lost."""
        for name, far in ((one, other), (other, one)):
            self.links[name].up.discard(far)
            self.wire(name, far).clear()
        for name, far in ((one, other), (other, one)):
            for on_change in self.links[name].downs:
                on_change(far)

    def end_iteration(self) -> None:
        """What was put off until the loop's iteration is over happens."""
        soon, self._soon[:] = list(self._soon), []
        for action in soon:
            action()

    def pass_one(self, sender: str, receiver: str) -> None:
        """Let one note arrive."""
        _, kind, args = protocol.FrameReader().feed(self.wire(sender, receiver).popleft())[0]
        peer_schemas.check_note(kind, args)  # as a link does: raising, here, is a failure
        self.links[receiver].take(sender, kind, args)

    def settle(self) -> None:
        """Let everything arrive, and what follows from it."""
        while True:
            self.end_iteration()
            waiting = [ends for ends, wire in self._wires.items() if wire]
            if not waiting and not self._soon:
                return
            for sender, receiver in waiting:
                while self.wire(sender, receiver):
                    self.pass_one(sender, receiver)
