"""Several routers of one cluster: real machines, an exact meta group, links that deliver in turn.

Raft is not here: who leads what is set by the test. What nodes say to each other is packed and
unpacked as on a link.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import msgpack

from streamd import errors
from streamd.api.router import Router
from streamd.config.account_options import AccountJetStream
from streamd.errors import JsError
from streamd.machine import commands
from streamd.machine.base import Effects
from streamd.machine.meta import MetaMachine, StreamAsset
from streamd.types import ACCOUNT, Entry
from tests.unit.api.bed import Accounts, Clock, Node, Stream, Wires, check_schema


def packed(value: Any) -> Any:
    """What arrives of `value`."""
    return msgpack.unpackb(msgpack.packb(value, use_bin_type=True), raw=False)


class LocalStream(Stream):
    is_local = True


class RemoteStream:
    """A stream that another node leads; it has no machine."""

    is_local = False

    def __init__(self, asset: StreamAsset) -> None:
        self.account = asset.account
        self.uid = asset.uid
        self.name = asset.name
        self.config = asset.config
        self.pulls: list[tuple[str, bytes]] = []

    def pull(self, consumer: str, reply: bytes, headers: bytes, payload: bytes) -> bool:
        self.pulls.append((consumer, reply))
        return True


class Peers:
    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name

    def is_up(self, node_id: str) -> bool:
        return node_id in self._world.nodes and node_id not in self._world.down

    def nodes(self) -> list[str]:
        return [
            name for name in sorted(self._world.nodes) if name != self._name and self.is_up(name)
        ]

    def note(self, node_id: str, kind: str, args: list[Any]) -> None:
        target = self._world.nodes[node_id]
        self._world.notes += 1
        arrived = packed(args)
        self._world.queue.append(lambda: target.take_note(self._name, kind, arrived))

    def call(
        self, node_id: str, method: str, args: list[Any], done: Any, timeout_ms: int = 5000
    ) -> None:
        if not self.is_up(node_id):
            self._world.queue.append(lambda: done(errors.CLUSTER_NOT_AVAIL()))
            return

        def answer(result: Any) -> None:
            shown = result if isinstance(result, JsError) else packed(result)
            self._world.queue.append(lambda: done(shown))

        target, arrived = self._world.nodes[node_id], packed(args)
        self._world.notes += method == "api.request"

        def arrive() -> None:
            if self.is_up(node_id):
                target.take_call(self._name, method, arrived, answer)
            else:
                done(errors.CLUSTER_NOT_AVAIL())

        self._world.queue.append(arrive)


class ClusterNode(Node):
    is_clustered = True
    is_stopping = False
    cluster_name = "C1"

    def __init__(self, world: World, name: str) -> None:
        super().__init__()
        self.world = world
        self.server_name = name
        self.clock = world.clock
        self.meta = world.meta
        self.peers = Peers(world, name)
        self.hidden: set[str] = set()  # streams this node has not heard of yet
        self.take_note: Any = None
        self.take_call: Any = None
        self.watchers: list[Callable[[], None]] = []
        self.stepped: list[tuple[int, str]] = []
        self.rescued: list[int] = []

    @property
    def node_facts(self) -> dict[str, dict[str, Any]]:
        return self.world.facts

    @property
    def meta_leader(self) -> str:
        return self.world.leaders.get(0, "")

    @property
    def is_meta_leader(self) -> bool:
        return self.meta_leader == self.server_name

    def leader_of(self, uid: int) -> str:
        return self.world.leaders.get(uid, "")

    def rescue_meta(self, quorum: int, done: Callable[[Any], None]) -> None:
        self.rescued.append(quorum)
        done(3 if quorum < 3 else errors.CLUSTER_RESCUE(err="raft: leader is known"))

    def removal_obstacle(self, name: str) -> str:
        return self.world.obstacle

    def stream(self, name: str, account: str = ACCOUNT) -> Any:
        asset = self.meta.stream(name, account)
        if asset is None or name in self.hidden:
            return None
        if self.leader_of(asset.uid) == self.server_name:
            return self.world.machines[asset.uid][self.server_name]
        return self.world.remote(asset)

    def streams(self) -> list[Any]:
        return [self.stream(name, of) for of, name in sorted(self.meta.streams_by_key)]

    def replica(self, uid: int) -> Any:
        return self.world.machines.get(uid, {}).get(self.server_name)

    def block_bytes(self, uid: int) -> tuple[int, int] | None:
        return 4000, 1000

    def group_info(self, uid: int) -> dict[str, Any] | None:
        names = sorted(self.world.nodes) if uid == 0 else self.meta.streams_by_uid[uid].members
        if uid and self.server_name not in self.world.machines[uid]:
            return None
        return {
            "state": "ok",
            "leader": self.leader_of(uid),
            "leader_since_ns": self.clock.ns,
            "is_changing": self.world.is_changing,
            "peers": [
                {"name": name, "current": name not in self.world.down, "offline": False}
                | {"active_ns": 5, "lag": 0, "is_voter": True}
                for name in names
                if name != self.server_name
            ],
        }

    def watch_leaders(self, on_change: Callable[[], None]) -> None:
        self.watchers.append(on_change)

    def step_down(self, uid: int, preferred: str, done: Callable[[Any], None]) -> None:
        assert self.leader_of(uid) == self.server_name
        self.stepped.append((uid, preferred))
        done(True)

    def wait_configured(
        self, uid: int, meta_index: int, done: Callable[[Any], None], timeout_ms: int = 5000
    ) -> None:
        assert self.is_meta_leader
        done(True)

    def on_note_prefix(self, prefix: str, take: Any) -> None:
        assert prefix == "api."
        self.take_note = take

    def wait_for_requests(self, has_any: Callable[[], bool]) -> None:
        self.has_requests = has_any

    def on_call_prefix(self, prefix: str, serve: Any) -> None:
        assert prefix == "api."
        self.take_call = serve

    def propose_meta(self, command: list[Any], done: Callable[[Any], None]) -> None:
        assert self.is_meta_leader
        world, data = self.world, packed(command)
        if world.is_meta_busy:
            world.queue.append(lambda: done(world.apply_meta(data)))
        else:
            done(world.apply_meta(data))


class World:
    """The cluster. All replicas of a stream are one machine, seen from each of its peers."""

    def __init__(
        self, *names: str, accounts: Mapping[str, AccountJetStream | None] | None = None
    ) -> None:
        self.clock = Clock()
        self.meta = MetaMachine()
        self.facts: dict[str, dict[str, Any]] = {
            name: {"tags": [], "storage_max": -1, "memory_max": -1} for name in names
        }
        self.leaders: dict[int, str] = {0: names[0]}
        self.machines: dict[int, dict[str, LocalStream]] = {}
        self.down: set[str] = set()
        self.queue: list[Callable[[], None]] = []
        self.timers: list[tuple[int, Callable[[], None]]] = []
        self.notes = 0
        self.is_changing = False  # the meta group's members
        self.is_meta_busy = False  # what is proposed comes to be applied in a while
        self.obstacle = ""  # to the removal of a server: a stream
        self._remotes: dict[int, RemoteStream] = {}
        self._reply_count = 0
        self.nodes = {name: ClusterNode(self, name) for name in names}
        self.wires = Wires()  # core NATS reaches everywhere
        self.accounts = Accounts(self.wires, accounts or {})
        self.routers = {
            name: Router(
                node,  # type: ignore[arg-type]
                self.accounts,
                server_version="2.14.0",
                clock=self.clock,
                call_later=self._call_later,
            )
            for name, node in self.nodes.items()
        }

    def remote(self, asset: StreamAsset) -> RemoteStream:
        return self._remotes.setdefault(asset.uid, RemoteStream(asset))

    def apply_meta(self, command: list[Any]) -> Any:
        effects = Effects()
        self.meta.apply(Entry(1, self.meta.applied + 1, b"x", command, tag=object()), effects)
        for kind, fields in effects.events:
            if kind == "server_removed":
                continue
            asset = fields["asset"]
            if kind == "stream_created":
                machine = LocalStream(self.nodes[asset.peers[0]], asset)
                self.machines[asset.uid] = dict.fromkeys(asset.peers, machine)
                self.leaders[asset.uid] = asset.peers[0]
            elif kind == "stream_deleted":
                del self.machines[asset.uid], self.leaders[asset.uid]
            else:
                machine = next(iter(self.machines[asset.uid].values()))
                machine.apply([commands.CONFIGURE, self.clock.ns, asset.config, asset.update_index])
        return effects.outcomes[0][1]

    def _call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> object:
        def ring() -> None:
            callback(*args)

        self.timers.append((self.clock.ns + int(delay * 1e9), ring))
        return None

    def run(self) -> None:
        """Deliver what nodes have said until they are silent."""
        while self.queue:
            self.queue.pop(0)()

    def pass_ms(self, ms: int) -> None:
        until = self.clock.ns + ms * 1_000_000
        while due := [timer for timer in self.timers if timer[0] <= until]:
            at, callback = min(due, key=lambda timer: timer[0])
            self.timers.remove((at, callback))
            self.clock.ns = at
            callback()
            self.run()
        self.clock.ns = until

    def lead(self, uid: int, name: str) -> None:
        """`name` leads the group from now on (empty: nobody), and all know."""
        self.leaders[uid] = name
        for node in self.nodes.values():
            for watcher in node.watchers:
                watcher()
        self.pass_ms(0)

    def send(
        self,
        node: str,
        subject: str,
        body: Any = b"",
        client: Any = None,
        *,
        runs: bool = True,
        account: str = ACCOUNT,
        headers: bytes = b"",
    ) -> bytes:
        """Send a request to a node; returns its reply subject. `runs`: see `run`."""
        self._reply_count += 1
        reply = b"_INBOX.%d" % self._reply_count
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        asked = b"$JS.API." + subject.encode()
        self.routers[node].handle(asked, reply, headers, payload, client, account)
        if runs:
            self.run()
        return reply

    def replies(self, reply: bytes) -> list[tuple[bytes, bytes]]:
        return [item[2:] for item in self.wires.sent if item[0] == reply]

    def ask(
        self, node: str, subject: str, body: Any = b"", account: str = ACCOUNT
    ) -> dict[str, Any]:
        """Send a request that has one JSON answer; returns it, checked against its schema."""
        ((_, payload),) = self.replies(self.send(node, subject, body, account=account))
        answer: dict[str, Any] = json.loads(payload)
        check_schema("api", answer)
        return answer

    def error(
        self, node: str, subject: str, body: Any = b"", account: str = ACCOUNT
    ) -> tuple[int, str]:
        answer = self.ask(node, subject, body, account)
        assert "error" in answer, answer
        return answer["error"]["err_code"], answer["error"]["description"]

    def make(
        self, name: str, node: str = "n1", account: str = ACCOUNT, **config: Any
    ) -> StreamAsset:
        answer = self.ask(node, f"STREAM.CREATE.{name}", {"name": name} | config, account)
        assert "error" not in answer, answer
        return self.meta.streams_by_key[account, name]
