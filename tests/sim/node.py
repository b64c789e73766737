"""One whole stream group on a simulated disk, in one thread: crash it anywhere, look what is left.

The real Monitor, StreamGroup, Raft core, machine, WAL and block store run here; only the disk, the
disk threads, the clock and the event loop are simulated. An oracle keeps every entry that was ever
handed to the log, so the recovered state can be compared with the fold of the log.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from streamd.machine.asset_configs import StreamConfig
from streamd.machine.base import Effects
from streamd.machine.streams.stream import StreamMachine
from streamd.node.groups import inbox
from streamd.node.groups.monitor import Monitor
from streamd.node.groups.raft_members import log_from_snapshot
from streamd.node.groups.snapshot_writers import StreamSnapshots
from streamd.node.stream_groups.publish_intake import PublishBounds
from streamd.node.stream_groups.stream_group import StreamGroup
from streamd.raft.core import MemberStart, RaftCore
from streamd.store.blocks.block_codec import BlockCodec
from streamd.store.blocks.stream_store import StreamStore
from streamd.store.wal.write_ahead_log import Wal
from streamd.types import Entry, HardState, Index, Uid

UID: Uid = 7
START_NS = 1_700_000_000_000_000_000


class _Env(NamedTuple):
    """Implements monitor.MonitorEnv."""

    loop: SimLoop
    clock: SimClock


class SimClock:
    """Time that moves only when the simulation says so."""

    def __init__(self) -> None:
        self.ms = 1

    def now_ns(self) -> int:
        return START_NS + self.ms * 1_000_000

    def monotonic_ms(self) -> int:
        return self.ms


class SimTimer:
    """What `call_later` returns."""

    def __init__(self) -> None:
        self.is_cancelled = False

    def cancel(self) -> None:
        self.is_cancelled = True


class SimLoop:
    """The event loop of one simulated process: callbacks in order, timers by virtual time."""

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock
        self._soon: list[tuple[Callable[..., object], tuple[Any, ...]]] = []
        self._timers: list[tuple[float, int, SimTimer, Callable[..., object], tuple[Any, ...]]] = []
        self._ties = count()

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        self._soon.append((callback, args))

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any) -> Any:
        timer = SimTimer()
        at = self._clock.ms + delay * 1000
        heapq.heappush(self._timers, (at, next(self._ties), timer, callback, args))
        return timer

    def run_ready(self) -> None:
        """Run everything that is due now."""
        while self._timers and self._timers[0][0] <= self._clock.ms:
            _, _, timer, callback, args = heapq.heappop(self._timers)
            if not timer.is_cancelled:
                self._soon.append((callback, args))
        while self._soon:
            soon, self._soon = self._soon, []
            for callback, args in soon:
                callback(*args)


class RecordingLog:
    """The WAL, with the oracle's copy of every entry handed to it."""

    def __init__(self, wal: Wal, entries: dict[Index, Entry]) -> None:
        self._wal = wal
        self._entries = entries

    def append(
        self,
        writes: list[tuple[Uid, list[Entry], HardState | None, Index]],
        done: Callable[[], None],
    ) -> None:
        for _, entries, _, truncate_from in writes:
            if truncate_from:
                for index in [index for index in self._entries if index >= truncate_from]:
                    del self._entries[index]
            for entry in entries:
                self._entries[entry.index] = entry
        self._wal.append(writes, done)

    def flush(self) -> None:
        self._wal.flush()

    def release(self, group: Uid, index: Index, term: int, chain: int) -> None:
        self._wal.release(group, index, term, chain)


class SimNode:
    """A process that runs one stream. `crash` forgets the process; build another on its disk."""

    def __init__(
        self,
        disk: Any,
        make_thread: Callable[[Callable[..., object]], Any],
        *,
        clock: SimClock,
        rng: random.Random,
        config: StreamConfig,
        wires: Any,
        oracle: dict[Index, Entry],
        segment_bytes: int,
        block_bytes: int,
        packs: bool = False,
    ) -> None:
        self.clock = clock
        self.loop = SimLoop(clock)
        self.log_thread = make_thread(self.loop.call_soon)
        self.block_thread = make_thread(self.loop.call_soon)
        self._rng = rng
        self.errors: list[BaseException] = []
        codec = BlockCodec()
        for directory in ("/n", "/n/wal", "/n/streams"):
            if not disk.exists(directory):
                disk.make_dirs(directory)
        disk.sync_dir("/n")
        self.wal = Wal.open(
            disk, "/n/wal", self.log_thread, segment_bytes=segment_bytes, sync="always",
            on_error=self.errors.append,
        )  # fmt: skip
        self.store = StreamStore.open(disk, f"/n/streams/{UID}", UID, self.block_thread)
        snapshot = self.store.load_snapshot()
        if snapshot is None:
            self.store.truncate_to((0, 0))
            machine = StreamMachine(
                uid=UID, config=config, created_ns=START_NS, codec=codec, columns=self.store,
                block_bytes=block_bytes,
            )  # fmt: skip
            index, term, chain = 0, 0, 0
        else:
            self.store.truncate_to(snapshot.tail)
            machine = StreamMachine.restore(
                snapshot.state, snapshot.index_db, codec=codec, columns=self.store,
                scan=self.store.scan, block_bytes=block_bytes,
            )  # fmt: skip
            self.store.disown(block.block_no for block in machine.index.blocks)
            index, term, chain = snapshot.index, snapshot.term, snapshot.chain
        self.store.begin_packing(lambda: packs)
        wal = self.wal

        class Reader:
            def read(self, lo: Index, hi: Index, max_bytes: int) -> list[Entry]:
                return wal.read(UID, lo, hi, max_bytes)

        raft = RaftCore(MemberStart(
            group=UID, node_id="n1", voters=("n1",),
            log=log_from_snapshot(UID, wal.groups.get(UID), index=index, term=term, chain=chain),
            reader=Reader(), now_ms=clock.ms, seed=1, applied=index,
        ))  # fmt: skip
        self.group = StreamGroup(
            raft=raft, machine=machine, blocks=self.store, snapshot_index=index, wires=wires,
            bounds=PublishBounds(has_room=lambda byte_count: True), max_payload=1 << 20,
        )  # fmt: skip
        self.monitor = Monitor(
            self.group, log=RecordingLog(wal, oracle), env=_Env(self.loop, clock),
            snapshot_writer=StreamSnapshots(self.store, is_clustered=False),
            on_failed=lambda group, err: self.errors.append(err),
        )  # fmt: skip
        self.is_ready = False
        self.group.shell.on_ready.append(self._ready)
        self.monitor.post(inbox.Tick())

    def _ready(self) -> None:
        self.is_ready = True

    def step(self) -> None:
        """One random piece of progress: a turn, a disk job, or time."""
        choice = self._rng.random()
        if choice < 0.5:
            self.turn()
        elif choice < 0.7:
            self.log_thread.step()
            self.log_thread.complete()
        elif choice < 0.9:
            self.block_thread.step()
            self.block_thread.complete()
        else:
            self.clock.ms += self._rng.choice((1, 5, 20))
        self.loop.run_ready()

    def turn(self) -> None:
        """Run the monitor's turn if it was woken."""
        if self.monitor.is_awake():
            self.monitor.step()

    def settle(self, steps_max: int = 20_000) -> None:
        """Run until nothing is left to do at this virtual time."""
        for _ in range(steps_max):
            self.loop.run_ready()
            if self.monitor.is_awake():
                self.monitor.step()
            elif self.log_thread.step() or self.block_thread.step():
                self.log_thread.complete()
                self.block_thread.complete()
            else:
                self.loop.run_ready()
                if not self.monitor.is_awake():
                    return
        raise AssertionError(f"still busy after {steps_max} steps")


def fold(entries: dict[Index, Entry], upto: Index, config: StreamConfig, block_bytes: int) -> Any:
    """Return a machine that has applied exactly entries 1..upto: what any replica must equal."""
    columns = FoldColumns()
    machine = StreamMachine(
        uid=UID, config=config, created_ns=START_NS, codec=BlockCodec(), columns=columns,
        block_bytes=block_bytes,
    )  # fmt: skip
    for index in range(1, upto + 1):
        out = Effects()
        entry = entries[index]
        machine.apply(Entry(entry.term, entry.index, entry.data), out)
        for op in out.block_ops:
            columns.note(op)
    return machine


class FoldColumns:
    """Footers of the blocks a fold has sealed."""

    def __init__(self) -> None:
        self._footers: dict[int, bytes] = {}

    def note(self, op: tuple[Any, ...]) -> None:
        if len(op) == 4 and op[0] == 2:
            self._footers[op[1]] = op[3]

    def load_footer(self, block_no: int) -> bytes:
        return self._footers[block_no]
