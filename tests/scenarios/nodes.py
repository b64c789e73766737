"""Drives a simulated cluster by hand: whole nodes with their API on disks, links and virtual time.

What a scenario does is written out in its test; here is what it does it with. The checkers of the
simulator watch all along: safety of Raft, durability of what is committed, and that every replica
equals the fold of its log (but for nodes in `suspects`, whose files a test has falsified).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Self

from streamd.api.router import Router, SoleAccount
from streamd.machine import commands
from streamd.machine.streams.stream import StreamMachine
from streamd.node.groups import inbox
from streamd.node.groups.monitor import Monitor
from streamd.node.local_node import LocalNode
from streamd.node.stream_groups.stream_group import StreamGroup
from streamd.raft import log as raft_log
from streamd.types import META_UID, NodeId, Uid
from tests.sim.checkers import Checkers, Probes
from tests.sim.cluster import small_limits
from tests.sim.host import ROOT, Host, HostThread, SimProcess
from tests.sim.net import SimNet
from tests.sim.world import MS, SECOND, Violation, World

LOOK_EVERY_US = 2 * MS


class Thread(HostThread):
    """A disk thread that can be held up before its next job."""

    def __init__(self, process: SimProcess, name: str) -> None:
        super().__init__(process, name)
        self._is_held = False
        self._waiting: list[int] = []

    def hold(self) -> None:
        """Let no further job begin: the disk is stuck."""
        self._is_held = True

    def release(self) -> None:
        """The disk goes on."""
        self._is_held = False
        waiting, self._waiting = self._waiting, []
        for after_us in waiting:
            self._process.schedule(0, self._do, after_us)

    def _do(self, after_us: int) -> None:
        if self._is_held:
            self._waiting.append(after_us)
        else:
            super()._do(after_us)


class Process(SimProcess):
    """A node's process with its API, and with disk threads that can be held up."""

    host: Machine

    def __init__(self, host: Machine) -> None:
        self.threads: dict[str, Thread] = {}
        super().__init__(host)

    def make_thread(self, name: str) -> Thread:
        thread = self.threads[name] = Thread(self, name)
        return thread

    def start(self) -> None:
        self.router = Router(
            self.node,
            SoleAccount(self.wires),
            server_version="2.14.0",
            clock=self.clock,
            call_later=self.loop.call_later,
        )
        super().start()


class Machine(Host):
    """A host that starts only when told to."""

    is_cache_kept = False  # a crash point kills the process only

    def boot(self) -> None:
        if self.node is not None:
            return
        self.world.note(f"{self.name} starts")
        process = self.process = Process(self)
        process.start()

    def lose_power(self, why: str = "power lost") -> None:
        """Ends at a crash point too: with the machine, or (`is_cache_kept`) just the process."""
        self._end(why, is_silent=not self.is_cache_kept)
        if self.is_cache_kept:
            self.disk.kill()
        else:
            self.disk.crash(keep=0.0)


class Inbox:
    """A client that is connected to one machine, whatever process runs there."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.received: dict[bytes, list[tuple[bytes, bytes, bytes, bytes]]] = {}
        self.outcomes: dict[bytes, Any] = {}

    @property
    def process(self) -> SimProcess | None:
        process = self._machine.process
        return process if process is not None and process.is_alive else None

    def on_message(
        self, to: bytes, subject: bytes, reply: bytes, headers: bytes, payload: bytes
    ) -> None:
        self.received.setdefault(to, []).append((subject, reply, headers, payload))

    def publish_acks(self, stream: bytes, replies: list[bytes], outcomes: Any) -> None:
        """See ports.PublishSink."""
        self.outcomes.update(zip(replies, outcomes, strict=True))


class Nodes:
    """Nodes n1, n2, ...: time, machines and groups. `driver.Cluster` adds clients."""

    def __init__(self, size: int = 3, *, seed: int = 1) -> None:
        self.world = World(seed)
        self.net = SimNet(self.world)
        self.names: list[NodeId] = [f"n{at + 1}" for at in range(size)]
        self.hosts = {name: Machine(name, self.world, self.net, self.names) for name in self.names}
        self.inboxes = {name.encode(): Inbox(host) for name, host in self.hosts.items()}
        self.checkers = Checkers(self.world, {name: h.disk for name, h in self.hosts.items()})
        self.suspects: set[NodeId] = set()
        self._stack = ExitStack()
        self._replies = 0
        for host in self.hosts.values():
            host.after_turn = self._after_turn
            host.on_process = lambda process: process.wires.attach(self.inboxes, {})  # type: ignore[arg-type]
            host.on_send = self._on_send

    def __enter__(self) -> Self:
        self._stack.enter_context(small_limits())
        self._stack.enter_context(setting(raft_log, "RAFT_TRAILING_ENTRIES", 8))
        self._stack.enter_context(Probes(self.checkers))
        return self

    def __exit__(self, kind: Any, *exc: object) -> None:
        if kind is not None:
            print("\n".join(self.world.recent[-60:]))
        self._stack.close()

    def _after_turn(self, process: SimProcess, monitor: Monitor) -> None:
        if process.name not in self.suspects:
            self.checkers.after_turn(process.name, monitor._group)
        else:
            self.checkers._seen.clear()

    def _on_send(self, process: SimProcess) -> Any:
        def on_send(receiver: NodeId, uid: Uid, messages: list[Any]) -> None:
            self.checkers.on_send(process.name, receiver, uid, messages)

        return on_send

    # --- time -------------------------------------------------------------------------------

    def run_ms(self, ms: float) -> None:
        """Let time pass."""
        self.world.run(self.world.now_us + int(ms * MS))

    def until(self, what: str, is_true: Callable[[], Any], within_s: float = 10.0) -> None:
        """Let time pass until something is so; a Violation if it takes too long."""
        deadline = self.world.now_us + int(within_s * SECOND)
        next_us = 0

        def look() -> bool:
            nonlocal next_us
            if self.world.now_us < next_us:
                return False
            next_us = self.world.now_us + LOOK_EVERY_US
            return bool(is_true())

        if not is_true() and not self.world.run(deadline, look) and not is_true():
            raise Violation(f"not {what} within {within_s} s")

    # --- nodes ------------------------------------------------------------------------------

    def boot(self, *names: NodeId) -> None:
        """Start nodes (all of them, if none is named); with all running, wait for a leader."""
        for name in names or self.names:
            self.hosts[name].boot()
        if not names:
            self.until("a meta leader", lambda: self.leader_name(META_UID), 20)

    def node(self, name: NodeId) -> LocalNode:
        found = self.hosts[name].node
        assert found is not None, f"{name} does not run"
        return found

    def process(self, name: NodeId) -> Process:
        found = self.hosts[name].process
        assert isinstance(found, Process)
        return found

    def stop(self, name: NodeId, within_s: float = 5.0) -> None:
        """SIGTERM, and wait for the end."""
        self.hosts[name].stop()
        self.until(f"{name} stopped", lambda: self.hosts[name].node is None, within_s)

    def kill(self, *names: NodeId) -> None:
        """SIGKILL."""
        for name in names:
            self.hosts[name].kill()

    def lose_power(self, *names: NodeId) -> None:
        """All at the same moment; what was not synced is lost."""
        for name in names:
            self.hosts[name].lose_power()

    def running(self) -> list[NodeId]:
        return [name for name in self.names if self.hosts[name].node is not None]

    def isolate(self, name: NodeId) -> None:
        """Let nothing pass between the node and the others, until `net.heal`."""
        others = [other for other in self.names if other != name]
        self.net.block({(name, other) for other in others} | {(other, name) for other in others})

    # --- groups -----------------------------------------------------------------------------

    def uid(self, stream: str) -> Uid:
        machine = self.checkers.truths[META_UID].machine
        return int(machine.streams_by_key["$G", stream].uid)

    def group(self, name: NodeId, stream: str) -> StreamGroup | None:
        host = self.hosts[name]
        replica = host.node.groups.get(self.uid(stream)) if host.node is not None else None
        return replica.group if replica is not None else None

    def machine(self, name: NodeId, stream: str) -> StreamMachine:
        found = self.group(name, stream)
        assert found is not None, f"{name} has no replica of {stream}"
        return found.machine

    def leader_name(self, uid: Uid) -> NodeId:
        for name in self.running():
            group = self.node(name).groups.group_of(uid)
            if group is not None and group.is_ready and not group.failure:
                return name
        return ""

    def leader(self, stream: str) -> NodeId:
        """Who leads, once somebody does."""
        uid = self.uid(stream)
        self.until(f"{stream} led", lambda: self.leader_name(uid))
        return self.leader_name(uid)

    def followers(self, stream: str) -> list[NodeId]:
        leader = self.leader(stream)
        return [name for name in self.names if name != leader]

    def step_down(self, stream: str, preferred: NodeId = "") -> Any:
        """Ask the leader to hand over; return what it said."""
        leader = self.leader(stream)
        told: list[Any] = []
        self.process(leader).run(
            self.node(leader).step_down, self.uid(stream), preferred, told.append
        )
        self.until("an answer to a step-down", lambda: told)
        return told[0]

    def lead(self, stream: str, name: NodeId) -> None:
        """Have `name` lead the stream."""

        def try_it() -> bool:
            if self.leader(stream) != name:
                self.step_down(stream, name)
            return self.leader_name(self.uid(stream)) == name

        for _ in range(20):
            if try_it():
                return
            self.run_ms(200)
        raise Violation(f"{name} does not come to lead {stream}")

    def set_peers(self, uid: Uid, peers: Iterable[NodeId]) -> None:
        """Have the meta group want a stream elsewhere."""
        now_ns = self.world.now_us * 1000
        self.command(META_UID, [commands.SET_PEERS, now_ns, uid, list(peers)])

    def directory(self, stream: str) -> str:
        """Where each node has its files of the stream."""
        return f"{ROOT}/streams/{self.uid(stream)}"

    def save(self, uid: Uid, *names: NodeId) -> None:
        """Have nodes take a snapshot of a group and let go of the log before it."""
        for name in names or self.running():
            monitor = self.node(name).groups.monitor_of(uid)
            assert monitor is not None
            saved: list[bool] = []
            index = monitor._group.machine.applied
            self.process(name).run(monitor.when_saved, index, partial(saved.append, True))
            self.until(f"{name} saves {uid}", partial(bool, saved))
        self.checkpoint(uid)  # the next entry takes the release to the disk
        self.run_ms(50)

    def checkpoint(self, uid: Uid) -> None:
        """Have all replicas compare what they hold, now."""
        self.command(uid, [commands.CHECKPOINT, 1, 0, 0])

    def command(self, uid: Uid, command: list[Any]) -> Any:
        """Propose a command at a group's leader; return its outcome."""
        told: list[Any] = []
        self.until(f"{uid} led", lambda: self.leader_name(uid))
        name = self.leader_name(uid)
        monitor = self.node(name).groups.monitor_of(uid)
        assert monitor is not None
        self.process(name).run(monitor.post, inbox.Propose(command, told.append, True))
        self.until(f"an outcome of {command[0]}", lambda: told)
        return told[0]


@contextmanager
def setting(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Another value for a module's constant, inside."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
