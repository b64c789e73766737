"""A machine with its disk and clock, and the processes that run on it one after another.

A process is a real `Node` on a simulated event loop, simulated disk threads and links. It may be
killed (the disk keeps what was written), lose its power (the disk loses what was not synced), be
paused, or end in order; what belonged to it never runs again.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

from streamd.api.router import Router, SoleAccount
from streamd.errors import StreamdError
from streamd.node.groups.monitor import Loop, Monitor
from streamd.node.local_node import LocalNode
from streamd.node.node_options import NodeOptions
from streamd.node.ports import Clock
from streamd.store.disk import Disk
from streamd.store.frames.keyring import EncryptionKeys
from streamd.types import NodeId
from tests.sim.disk import SimCrash, SimDisk
from tests.sim.net import SimNet, SimPeers
from tests.sim.wires import SimWires
from tests.sim.world import MS, SECOND, Violation, World

START_NS = 1_700_000_000_000_000_000
QUICK_SHARE = 0.7
ROUNDS_MAX = 20_000  # of one loop iteration; more means that a group never comes to rest
STORE_DIR = "/data"
ROOT = STORE_DIR + "/streamd"


class HostClock:
    """The clocks of one machine: monotonic since boot, and a wall clock that may be off."""

    def __init__(self, world: World, skew_ns: int) -> None:
        self._world = world
        self.skew_ns = skew_ns

    def now_ns(self) -> int:
        return START_NS + self._world.now_us * 1000 + self.skew_ns

    def monotonic_ms(self) -> int:
        return self._world.now_us // MS + 1


class HostTimer:
    """What `call_later` returns."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class HostLoop:
    """The event loop of one process."""

    def __init__(self, process: SimProcess) -> None:
        self._process = process
        self.soon: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self.soon.append((callback, args))

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> HostTimer:
        timer = HostTimer()
        self._process.schedule(int(delay * SECOND), self._fire, timer, callback, args)
        return timer

    def _fire(
        self, timer: HostTimer, callback: Callable[..., object], args: tuple[Any, ...]
    ) -> None:
        if not timer.is_cancelled:
            callback(*args)


class HostThread:
    """A disk thread: one job after another, each taking its time."""

    def __init__(self, process: SimProcess, name: str) -> None:
        self._process = process
        self._name = name
        self._rng = process.host.rng
        self._base_us = 150 if name == "log" else 400
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any], None] | None]] = deque()
        self._for_loop: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()
        self._is_busy = False
        self._is_running = False
        self._is_closed = False

    def submit(self, job: Callable[[], Any], done: Callable[[Any], None] | None) -> None:
        self._jobs += self._for_loop
        self._for_loop.clear()
        self._jobs.append((job, done))
        if not self._is_busy:
            self._begin()

    def submit_soon(self, job: Callable[[], Any], done: Callable[[Any], None]) -> None:
        host = self._process.host
        is_quick = host.has_quick_disk and host.slowness_of(self._name) == 1
        if self._is_busy or self._is_closed or not is_quick:
            self.submit(job, done)
            return
        self._for_loop.append((job, done))
        if len(self._for_loop) == 1:
            self._process.loop.call_soon(self.do_now)

    def do_now(self) -> None:
        while self._for_loop:
            job, done = self._for_loop.popleft()
            result = self._run(job, done)[1]
            if isinstance(result, BaseException):
                self._finish(done, result)
            else:
                done(result)
            self._process.world.counts["writes by the loop"] += 1

    def submit_later(self, delay_s: float, job: Callable[[], Any]) -> None:
        def due() -> None:
            if not self._is_closed:
                self.submit(job, None)

        self._process.schedule(int(delay_s * SECOND), due)

    def is_current(self) -> bool:
        return self._is_running

    def close(self) -> None:
        """Run what was submitted, at once."""
        self._is_closed = True
        self.do_now()
        while self._jobs:
            self._finish(*self._run(*self._jobs.popleft()))

    def _begin(self) -> None:
        self._is_busy = True
        took_us = self._base_us + int(self._rng.expovariate(1.0) * self._base_us)
        took_us *= self._process.host.slowness_of(self._name)
        # The job happens somewhere within the time it takes: a crash may come before or after.
        before_us = self._rng.randint(0, took_us)
        self._process.schedule(before_us, self._do, took_us - before_us)

    def _do(self, after_us: int) -> None:
        if not self._jobs:
            self._is_busy = False
            return
        done, result = self._run(*self._jobs.popleft())
        self._process.schedule(after_us, self._done, done, result)

    def _run(
        self, job: Callable[[], Any], done: Callable[[Any], None] | None
    ) -> tuple[Callable[[Any], None] | None, Any]:
        self._is_running = True
        try:
            return done, job()
        except Exception as err:  # noqa: BLE001 - as the real thread does; SimCrash passes
            return done, err
        finally:
            self._is_running = False

    def _done(self, done: Callable[[Any], None] | None, result: Any) -> None:
        self._finish(done, result)
        if self._jobs:
            self._begin()
        else:
            self._is_busy = False

    def _finish(self, done: Callable[[Any], None] | None, result: Any) -> None:
        if done is not None:
            self._process.loop.call_soon(done, result)


class HostLog:
    """The server's log: into the trace."""

    def __init__(self, process: SimProcess) -> None:
        self._process = process

    def _write(self, level: str, text: str, facts: dict[str, Any]) -> None:
        shown = " ".join(f"{key}={value}" for key, value in facts.items() if key != "where")
        self._process.world.note(f"{self._process.name} {level}: {text} {shown}")
        self._process.world.counts[f"log {level}: {text}"] += 1

    def info(self, text: str, **facts: Any) -> None:
        self._write("info", text, facts)

    def warning(self, text: str, **facts: Any) -> None:
        self._write("warning", text, facts)

    def error(self, text: str, **facts: Any) -> None:
        self._write("error", text, facts)


class SimProcess:
    """A life of a node. Implements `net.Process` and `node.parts.context.env.NodeEnv`."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.world = host.world
        self.name: NodeId = host.name
        self.is_alive = True
        self.is_paused = False
        self.is_started = False
        self.clock: Clock = host.clock
        self.disk: Disk = host.disk
        self._loop = HostLoop(self)
        self.loop: Loop = self._loop
        self.monitors: list[Monitor] = []
        self.router: Router
        self.wires = SimWires(self)
        self.peers = SimPeers(host.net, self, host.names)
        self._deferred: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        options = NodeOptions(
            store_dir=STORE_DIR,
            server_id=f"ID-{self.name}",
            server_name=self.name,
            cluster_name="sim" if len(host.names) > 1 else "",
            accepts_loss=host.accepts_loss,
            encryption=host.encryption,
        )
        log = HostLog(self)
        self.node = LocalNode(options, self.wires, env=self, log=log, on_fatal=self._on_fatal)

    # --- NodeEnv ----------------------------------------------------------------------------

    def make_thread(self, name: str) -> HostThread:
        return HostThread(self, name)

    def spawn(self, monitor: Monitor) -> None:
        self.monitors.append(monitor)

    # --- running ----------------------------------------------------------------------------

    def schedule(self, delay_us: int, callback: Callable[..., object], *args: Any) -> None:
        """See net.Process."""
        self.world.after(delay_us, self._fire, callback, args)

    def _fire(self, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        if not self.is_alive:
            return
        if self.is_paused:
            self._deferred.append((callback, args))
        else:
            self.run(callback, *args)

    def run(self, callback: Callable[..., object], *args: Any) -> None:
        """Call into the process and let it do all that follows at once."""
        if not self.is_alive:
            return
        try:
            callback(*args)
            self._settle()
        except SimCrash as crash:
            self.host.lose_power(f"at {crash}")

    def _settle(self) -> None:
        soon = self._loop.soon
        after_turn = self.host.after_turn
        has_stopped = False
        for _ in range(ROUNDS_MAX):
            is_quiet = not soon
            for _ in range(len(soon)):
                callback, args = soon.popleft()
                callback(*args)
                if not self.is_alive:
                    return
            for monitor in self.monitors:
                if monitor.is_awake():
                    is_quiet = False
                    monitor.step()
                    if not self.is_alive:
                        return
                    after_turn(self, monitor)
                    has_stopped = has_stopped or monitor.stopped.is_set()
            if is_quiet:
                if has_stopped:
                    self.monitors = [m for m in self.monitors if not m.stopped.is_set()]
                return
        raise Violation(f"{self.name} never comes to rest")

    def start(self) -> None:
        """Begin to run the node."""
        self.peers.on_send = self.host.on_send(self)
        if self.node.is_clustered:
            self.node.attach_peers(self.peers, lambda: len(self.host.names))
        self.router = Router(
            self.node,
            SoleAccount(self.wires),
            server_version="2.12.0",
            clock=self.clock,
            call_later=self.loop.call_later,
        )
        self.router.announce()
        self.host.on_process(self)
        self.run(self._start)

    def _start(self) -> None:
        def started(result: BaseException | None) -> None:
            if result is not None:
                raise result
            self.is_started = True

        try:
            self.node.start(started)
            if self.host.encryption is not None:  # for the checks that look into the disk
                framed: Any = self.node.parts.context.env.disk
                self.host.disk.keys = framed._keys
        except (StreamdError, OSError) as err:
            self.host.start_failed(err)
            return
        if self.node.is_clustered:
            self.peers.start(self.node)

    def pause(self) -> None:
        self.is_paused = self.peers.is_deaf = True

    def resume(self) -> None:
        """All timers that were due meanwhile, and all that arrived, come in a burst."""
        self.peers.is_deaf = False
        self.world.after(0, self._replay)

    def _replay(self) -> None:
        if not self._deferred:
            self.is_paused = False
        elif self.is_alive and not self.peers.is_deaf:
            callback, args = self._deferred.popleft()
            self.run(callback, *args)
            self.world.after(self.host.rng.randint(0, 20), self._replay)

    def end(self, *, is_silent: bool) -> None:
        """The process is gone. `is_silent`: its machine too, so its links are not reset."""
        self.is_alive = False
        self.host.net.vanish(self.peers, is_silent=is_silent)

    def _on_fatal(self, err: BaseException) -> None:
        self.host.on_fatal(err)


class Host:
    """A machine. `process` is what runs on it, if anything."""

    def __init__(self, name: NodeId, world: World, net: SimNet, names: list[NodeId]) -> None:
        self.name = name
        self.world = world
        self.net = net
        self.names = names
        self.rng = world.rng(f"host/{name}")
        self.disk = SimDisk(self.rng.randint(0, 1 << 30))
        self.disk.make_dirs(STORE_DIR)
        self.clock = HostClock(world, self.rng.randint(-400, 400) * 1_000_000)
        self.slowness = 1
        self.slow_thread = ""  # only this one is slow; empty: both are
        # Of every fourth seed: syncs take no time, so the event loop does them (docs/adr/0021).
        is_quick = random.Random(f"quick/{world.seed}/{name}").random() < QUICK_SHARE
        self.has_quick_disk = is_quick and world.seed % 4 == 3
        self.process: SimProcess | None = None
        self.failures: list[str] = []  # why it could not start, or could not go on
        self.excused_until_us = 0  # until then a fault explains why it can't start or go on
        self.restart_wanted = True
        self.encryption: EncryptionKeys | None = None
        self.accepts_loss = False  # of processes from now on: they start with --accept-loss
        self._points_seen = 0
        # Given by the cluster.
        self.after_turn: Callable[[SimProcess, Monitor], None] = lambda process, monitor: None
        self.on_send: Callable[[SimProcess], Any] = lambda process: None
        self.on_process: Callable[[SimProcess], None] = lambda process: None
        self.on_end: Callable[[NodeId], None] = lambda name: None

    @property
    def node(self) -> LocalNode | None:
        """The node, if one runs."""
        process = self.process
        return process.node if process is not None and process.is_alive else None

    def slowness_of(self, thread: str) -> int:
        """How many times as long as usual what this thread does takes."""
        return self.slowness if self.slow_thread in ("", thread) else 1

    @property
    def is_failing(self) -> bool:
        """True if something was done to its disk that may keep it from running."""
        return self.world.now_us < self.excused_until_us

    def boot(self) -> None:
        """Start a process, unless one runs."""
        if self.process is not None and self.process.is_alive:
            return
        self.world.note(f"{self.name} starts")
        self.world.counts["starts"] += 1
        self.process = SimProcess(self)
        self.process.start()

    def boot_later(self, delay_us: int) -> None:
        self.world.after(delay_us, self._boot_if_wanted)

    def _boot_if_wanted(self) -> None:
        if self.restart_wanted:
            self.boot()

    def kill(self, why: str = "killed") -> None:
        """SIGKILL: the process is gone, the page cache is not."""
        if self._end(why, is_silent=False):
            self.disk.kill()

    def lose_power(self, why: str = "power lost") -> None:
        """The machine is gone with all that was not synced."""
        self._end(why, is_silent=True)
        self.disk.crash(keep=self.rng.choice((0.0, 0.0, 0.3, 0.7)))
        self.boot_later(self.rng.randint(100, 3000) * MS)

    def _end(self, why: str, *, is_silent: bool) -> bool:
        process = self.process
        self.count_points()
        if process is None or not process.is_alive:
            return False
        self.world.note(f"{self.name} ends: {why}")
        self.on_end(self.name)
        process.end(is_silent=is_silent)
        return True

    def count_points(self) -> None:
        """Count the named crash points that were passed."""
        for point in self.disk.points[self._points_seen :]:
            self.world.reached(point)
        self._points_seen = len(self.disk.points)

    def stop(self, then: Callable[[], None] = lambda: None) -> None:
        """SIGTERM: hand over, stop, end; `then` is called when it has ended so."""
        process = self.process
        if process is None or not process.is_alive or process.is_paused:
            return

        def stopped() -> None:
            self.kill("stopped")
            then()

        process.run(process.node.stop, stopped)

    def start_failed(self, err: BaseException) -> None:
        """The node refused to start; somebody looks, and tries again."""
        text = f"{type(err).__name__}: {err}"
        self.world.note(f"{self.name} can't start: {text}")
        self.world.counts["failed starts"] += 1
        if not self.is_failing:
            raise Violation(f"{self.name} can't start: {text}")
        self.kill("could not start")
        self.boot_later(500 * MS)

    def on_fatal(self, err: BaseException) -> None:
        """The node can't go on: its supervisor starts it anew."""
        self.world.note(f"{self.name} fatal: {type(err).__name__}: {err}")
        self.world.counts["fatal errors"] += 1
        if not self.is_failing:
            raise Violation(f"{self.name} fatal: {type(err).__name__}: {err}")
        process = self.process
        assert process is not None
        process.schedule(0, self._restart)

    def _restart(self) -> None:
        self.kill("fatal error")
        self.boot_later(self.rng.randint(300, 1500) * MS)
