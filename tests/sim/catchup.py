"""Two or more nodes that hold one stream, as far as catch-up sees them: real machine, store,
source, install and `SnapshotFetch`; the wire is a queue that a test may bend, time is a list of
timers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import msgpack

from streamd import errors
from streamd.machine.asset_configs import StreamConfig
from streamd.machine.base import Effects
from streamd.machine.streams.stream import StreamMachine
from streamd.node.catchup.fetch import FetchSlots, InstalledSnapshot, SnapshotFetch
from streamd.node.catchup.serve import SnapshotServer
from streamd.node.groups.snapshot_state import unwrap, wrap
from streamd.node.integrity.scrub import check_content, check_installed
from streamd.raft.membership import Membership
from streamd.store.blocks.block_codec import BlockCodec
from streamd.store.blocks.memory_blocks import MemoryStreamStore
from streamd.store.blocks.stream_store import StreamStore
from streamd.store.transfer.install import FileInstall, finish_install
from streamd.store.transfer.install_buffered import MemoryInstall
from streamd.store.transfer.source import FileSource, MemorySource, SnapshotSource
from streamd.types import Entry, Index, Uid
from tests.sim.disk import SimDisk, SimThread

UID: Uid = 7
ROOT = "/n"
BLOCK_BYTES = 4096
MEMBERS = Membership(("a", "b", "c"))
CONFIG: StreamConfig = {"name": "S", "subjects": [">"], "storage": "file", "retention": "limits"}

STORE, PURGE, DELETE_MSG = 1, 11, 12


class Replica:
    """One node's copy of the stream: a machine and its store, files or memory."""

    def __init__(self, name: str, *, seed: int = 0, is_file: bool = True) -> None:
        self.name = name
        self.is_file = is_file
        self.disk = SimDisk(seed)
        for directory in (f"{ROOT}/streams", f"{ROOT}/trash", f"{ROOT}/meta"):
            self.disk.make_dirs(directory)
        self.thread = SimThread()
        self.memory = MemoryStreamStore(UID, keeps_snapshots=True)
        self.is_leading = False
        self.damages: list[tuple[Uid, errors.StreamdError]] = []
        self.voids: list[str] = []
        self.saved_index: Index = 0
        self.waiting: list[tuple[Index, Callable[[], None]]] = []  # for a snapshot
        self.files = SnapshotServer(
            find=lambda uid: self if uid == UID and self.is_leading else None,
            on_damaged=lambda uid, err, no: self.damages.append((uid, err)),
            on_void=lambda uid, reason: self.voids.append(reason),
        )
        self.open()

    @property
    def source(self) -> SnapshotSource:
        if self.is_file:
            return FileSource(self.disk, f"{ROOT}/streams/{UID}", UID, self.thread)
        return MemorySource(self.memory, self.thread)

    @property
    def last_index(self) -> Index:
        return self.machine.applied

    def when_saved(self, min_index: Index, then: Callable[[], None]) -> None:
        self.waiting.append((min_index, then))

    def save_anew(self, then: Callable[[], None]) -> None:
        self.waiting.append((0, then))

    def open(self) -> None:
        """What a start does: finish an install, recover."""
        codec = BlockCodec()
        self.installed = None
        if self.is_file:
            self.installed = finish_install(self.disk, ROOT, UID)
            self.store: Any = StreamStore.open(self.disk, f"{ROOT}/streams/{UID}", UID, self.thread)
        else:
            self.store = self.memory
        found = self.store.load_snapshot()
        self.store.truncate_to(found.tail if found else (0, 0))
        if found is None:
            self.machine = StreamMachine(
                uid=UID, config=CONFIG.copy(), created_ns=1, codec=codec, columns=self.store,
                block_bytes=BLOCK_BYTES,
            )  # fmt: skip
            self.machine.use_scan(self.store.scan)
            return
        self.machine = StreamMachine.restore(
            unwrap(found.state)[1],
            found.index_db,
            codec=codec,
            columns=self.store,
            scan=self.store.scan,
            block_bytes=BLOCK_BYTES,
        )

    def apply(self, *command: Any) -> None:
        """Apply one command as the next entry."""
        out = Effects()
        data = msgpack.packb(list(command), use_bin_type=True)
        self.machine.apply(Entry(3, self.machine.applied + 1, data), out)
        self.store.apply(out.block_ops)

    def publish(self, count: int, *, size: int = 200) -> None:
        for _ in range(count):
            seq = self.machine.index.last_seq + 1
            self.apply(STORE, 1000 + seq, [[b"s.%d" % (seq % 7), b"", b"%0*d" % (size, seq)]])

    def save(self) -> None:
        """What the monitor does: the state between two turns, durable."""
        machine = self.machine
        self.store.save_snapshot(
            index=machine.applied,
            term=3,
            chain=machine.applied * 11,
            state=wrap(MEMBERS, machine.snapshot()),
            index_db=machine.index_db(),
            tail=machine.tail,
            done=lambda: None,
        )
        self.saved_index = machine.applied
        self.thread.run()
        waiting, self.waiting = self.waiting, []
        for min_index, then in waiting:
            assert machine.applied >= min_index, (machine.applied, min_index)
            then()


class World:
    """A follower, those who may lead, and the wire between them."""

    def __init__(self, follower: Replica, *leaders: Replica, keep_free_bytes: int = 0) -> None:
        self.follower = follower
        self._keep_free_bytes = keep_free_bytes
        self.leaders = {leader.name: leader for leader in leaders}
        for leader in leaders:
            leader.is_leading = True
        self.calls: deque[tuple[str, str, Any, Callable[[Any], None]]] = deque()
        self.timers: list[Callable[[], None]] = []
        self.asked: list[tuple[str, str, Any]] = []
        self.troubles: list[str] = []
        self.failures: list[BaseException] = []
        self.done: list[InstalledSnapshot] = []
        self.swaps_wanted = True
        self.has_offer = True
        self.slots = FetchSlots()
        # May replace what comes over the wire: (method, args, result) -> result.
        self.bend: Callable[[str, list[Any], Any], Any] = lambda method, args, result: result
        self.catchup = self.make_catchup()

    def make_catchup(self) -> SnapshotFetch:
        node = self.follower
        target: Any
        if node.is_file:
            target = FileInstall(
                node.disk,
                ROOT,
                UID,
                node.thread,
                close_live=self._close_live,
                keep_free_bytes=self._keep_free_bytes,
            )
        else:
            target = MemoryInstall(node.memory, node.thread, close_live=self._close_live)
        return SnapshotFetch(
            UID,
            call=self._call,
            target=target,
            later=lambda delay_s, callback: self.timers.append(callback),
            host=self,
            slots=self.slots,
        )

    # --- fetch.FetchHost --------------------------------------------------------------------

    def on_done(self, uid: Uid, found: InstalledSnapshot) -> None:
        self.done.append(found)

    def on_failed(self, uid: Uid, err: BaseException) -> None:
        self.failures.append(err)

    def is_wanted(self, uid: Uid, index: Index) -> bool:
        return self.swaps_wanted

    def is_offered(self, uid: Uid) -> bool:
        return self.has_offer

    def on_trouble(self, uid: Uid, text: str) -> None:
        self.troubles.append(text)

    def on_conflict(self, uid: Uid, text: str) -> None: ...

    # --- the wire ---------------------------------------------------------------------------

    def _close_live(self, done: Callable[[], None]) -> None:
        if self.follower.is_file:
            self.follower.store.close()
        done()

    def _call(self, node: str, method: str, args: Any, done: Callable[[Any], None]) -> None:
        self.asked.append((node, method, args))
        self.calls.append((node, method, args, done))

    def step(self) -> bool:
        """One piece of progress; False if nothing is left but timers."""
        if self.calls:
            node, method, args, done = self.calls.popleft()
            leader = self.leaders.get(node)

            def answered(result: Any) -> None:
                if not isinstance(result, errors.JsError):
                    result = msgpack.unpackb(msgpack.packb(result))  # as the wire would
                done(self.bend(method, args, result))

            if leader is None:
                answered(errors.CLUSTER_NOT_AVAIL())
            elif method == "manifest":
                leader.files.on_manifest(args, answered)
            else:
                leader.files.on_block(args, answered)
            return True
        progress = False
        for replica in (*self.leaders.values(), self.follower):
            if replica.thread.step():
                replica.thread.complete()
                progress = True
            replica.thread.complete()
        return progress

    def run(self, *, retries: int = 20) -> None:
        """Until done, failed, or nothing more happens after `retries` rounds of timers."""
        for _ in range(retries + 1):
            while self.step():
                if self.done or self.failures:
                    return
            if not self.timers:
                return
            timers, self.timers = self.timers, []
            for callback in timers:
                callback()

    def reopened(self) -> Replica:
        """The follower after it opened what was installed; its content is proven."""
        node = self.follower
        node.thread.run()
        node.open()
        assert check_content(node.machine, node.store) == []
        if node.installed is not None:
            assert check_installed(node.installed, node.machine, node.store) == []
        if self.done:
            assert node.machine.digest == self.done[-1].digest
        return node
