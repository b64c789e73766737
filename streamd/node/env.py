"""`NodeEnv`: the world of a node: a loop, a clock, a disk, threads. The simulator has its own."""

from __future__ import annotations

import asyncio
from typing import Generic, Protocol, TypeVar

from streamd.node.clock import SystemClock
from streamd.node.groups.monitor import Loop, Monitor
from streamd.node.ports import Clock
from streamd.store.disk import Disk, DiskThread, OsDisk, Thread

T = TypeVar("T")


class NodeThread(Thread, Protocol):
    def close(self) -> None: ...


class NodeEnv(Protocol):
    """The world of one node."""

    loop: Loop
    clock: Clock
    disk: Disk

    def make_thread(self, name: str) -> NodeThread: ...

    def spawn(self, monitor: Monitor) -> None:
        """Run `monitor` until it is done; it calls its own `on_stopped` then."""


class SystemEnv:
    """The real world. Construct inside a running event loop."""

    def __init__(self, *, clock: Clock | None = None, disk: Disk | None = None) -> None:
        self._asyncio_loop = asyncio.get_running_loop()
        self.loop: Loop = self._asyncio_loop
        self.clock: Clock = clock or SystemClock()
        self.disk: Disk = disk or OsDisk()
        self._tasks: set[asyncio.Task[None]] = set()

    def make_thread(self, name: str) -> NodeThread:
        loop = self._asyncio_loop
        return DiskThread(name, loop.call_soon_threadsafe, loop.call_soon)

    def spawn(self, monitor: Monitor) -> None:
        task = self._asyncio_loop.create_task(monitor.run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class StoreEnv:
    """World of a node in which files are seen through another disk."""

    def __init__(self, env: NodeEnv, disk: Disk) -> None:
        self.loop = env.loop
        self.clock = env.clock
        self.disk = disk
        self.make_thread = env.make_thread
        self.spawn = env.spawn


class Completion(Generic[T]):
    """Outcome that a task waits for: give `done` to whoever calls it once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._results: list[T] = []

    def done(self, result: T) -> None:
        """Record the result; `wait` returns it."""
        self._results.append(result)
        self._event.set()

    async def wait(self) -> T:
        """Wait for the result."""
        await self._event.wait()
        return self._results[0]
