"""A node: the meta group, the groups of its streams, their disks, and who finds whom.

Start order: store directory, log (one scan), meta group, then every stream it knows. Stop order
is the reverse. The node never deletes by inference: a stream's directory leaves `streams/` only
after the meta group committed the deletion of that very uid, and by a rename into `trash/`.
"""

from __future__ import annotations

import asyncio
import os
import traceback
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from streamd import errors, limits
from streamd.errors import CorruptionError, DiskError, StreamdError
from streamd.machine import commands
from streamd.machine.meta import MetaMachine, StreamAsset
from streamd.machine.stream import StreamMachine
from streamd.node import group as g
from streamd.node import storedir
from streamd.node.batches import BatchBudget, BatchStager
from streamd.node.clock import SystemClock
from streamd.node.group import Group, NoBlocks
from streamd.node.memory_log import MemoryLog
from streamd.node.monitor import Monitor
from streamd.node.ports import Clock, Done, Wires
from streamd.node.room import MemoryRoom, StorageRoom
from streamd.node.stream_group import StreamGroup
from streamd.node.stream_handle import LocalStream
from streamd.raft.core import RaftCore
from streamd.store.blocks import StreamStore
from streamd.store.disk import DiskThread, OsDisk, default_disk
from streamd.store.format import BlockCodec
from streamd.store.hot_tail import HotBudget
from streamd.store.memory import MemoryStreamStore
from streamd.store.snapshots import SnapshotFile
from streamd.store.wal import Wal
from streamd.types import META_UID, HardState, Index, LogState, Uid


class MetaSnapshots:
    """Writes the meta group's snapshots. Given to its monitor and to nobody else."""

    def __init__(self, disk: OsDisk, directory: str, thread: DiskThread) -> None:
        self._disk = disk
        self._directory = directory
        self._thread = thread

    def save(
        self, group: Group, *, index: Index, term: int, chain: int, done: Callable[[], None]
    ) -> None:
        state = group.machine.snapshot()

        def job() -> None:
            SnapshotFile.save(
                self._disk,
                self._directory,
                "meta",
                group=META_UID,
                index=index,
                term=term,
                chain=chain,
                state=state,
            )

        self._thread.submit(job, _raise_or(done))


class StreamSnapshots:
    """Writes one stream's snapshots. Given to its monitor and to nobody else."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def save(
        self, group: Group, *, index: Index, term: int, chain: int, done: Callable[[], None]
    ) -> None:
        machine: StreamMachine = group.machine
        self._store.save_snapshot(
            index=index,
            term=term,
            chain=chain,
            state=machine.snapshot(),
            index_db=machine.index_db(),
            tail=machine.tail,
            done=done,
        )


def _raise_or(done: Callable[[], None]) -> Callable[[Any], None]:
    def completed(result: Any) -> None:
        if isinstance(result, BaseException):
            raise result
        done()

    return completed


class Node:
    """Implements `ports.NodeHandle`. Construct inside a running event loop, then `start`."""

    def __init__(
        self,
        *,
        store_dir: str,
        wires: Wires,
        server_id: str,
        server_name: str,
        sync: str | float = "always",
        max_payload: int = 1024 * 1024,
        memory_max: int = -1,
        storage_max: int = -1,
        clock: Clock | None = None,
        log: Any = None,
        on_fatal: Callable[[BaseException], None] | None = None,
    ) -> None:
        self.store_dir = store_dir
        self.server_id = server_id
        self.server_name = server_name
        self.memory_max = memory_max
        self.storage_max = storage_max
        self.sync = sync
        self.topology_version = 0
        self.failed: dict[str, str] = {}  # stream name -> why it is offline on this node
        self.on_stream_event: Callable[[LocalStream, str, dict[str, Any]], None] | None = None
        self._wires = wires
        self._max_payload = max_payload
        self._clock: Clock = clock or SystemClock()
        self._log = log
        self._on_fatal = on_fatal
        self._streams: dict[Uid, LocalStream] = {}
        self._by_name: dict[str, LocalStream] = {}
        self._sorted: list[LocalStream] | None = []
        self._routes: dict[bytes, tuple[LocalStream, ...]] = {}
        self._waiting: dict[Uid, list[Callable[[Any], None]]] = {}  # for a stream to run or stop
        self._exit = AsyncExitStack()
        self._tasks: asyncio.TaskGroup | None = None
        self._meta_group: Group | None = None
        self._meta_monitor: Monitor | None = None
        self._codec = BlockCodec()
        self._hot_budget = HotBudget()
        self._batch_budget = BatchBudget()

    # --- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover everything on disk and lead it. Raises ConfigError, CorruptionError, DiskError.

        Returns when every stream that can be served is served; those that can't are in `failed`.
        """
        loop = asyncio.get_running_loop()
        self._disk = default_disk()
        self._root, self._lock = storedir.prepare(self.store_dir, self._disk)
        self._room = StorageRoom(
            self._disk, self._root, storage_max=self.storage_max, used=self.storage_bytes
        )
        self._memory_room = MemoryRoom(memory_max=self.memory_max, used=self.memory_bytes)
        self._log_thread = DiskThread("log", loop.call_soon_threadsafe)
        self._block_thread = DiskThread("block", loop.call_soon_threadsafe)
        self._wal = Wal.open(
            self._disk,
            os.path.join(self._root, "wal"),
            self._log_thread,
            segment_bytes=self._room.segment_bytes,
            sync="always" if self.sync == "always" else float(self.sync),
            on_error=self._on_log_error,
            helper=self._block_thread,
        )
        self._memory_log = MemoryLog(loop.call_soon)
        self._tasks = await self._exit.enter_async_context(asyncio.TaskGroup())
        await self._start_meta()
        assets = sorted(self.meta.streams_by_name.values(), key=lambda asset: asset.uid)
        ready: list[asyncio.Event] = []
        for asset in assets:
            event = asyncio.Event()
            ready.append(event)
            self._open_stream(asset, _setter(event))
        for event in ready:
            await event.wait()
        self._report_orphans({asset.uid for asset in assets})
        trash = self._disk.listdir(os.path.join(self._root, "trash"))
        self._empty_trash([name for name in sorted(trash) if name.isdigit()])
        self._straggler_timer = loop.call_later(limits.STRAGGLER_CHECK_S, self._check_stragglers)

    async def stop(self) -> None:
        """Stop every group (each may take a last snapshot), then the log and the disks."""
        if self._tasks is None:
            return
        self._straggler_timer.cancel()
        for handle in self._streams.values():
            handle.group.shut_down()
        monitors = [handle.monitor for handle in self._streams.values()]
        for monitor in monitors:
            monitor.stop()
        for monitor in monitors:
            await monitor.stopped.wait()
        if self._meta_monitor is not None:
            self._meta_monitor.stop()
            await self._meta_monitor.stopped.wait()
        await self._exit.aclose()
        self._tasks = None
        for handle in self._streams.values():
            handle.store.close()
        self._wal.close()
        self._block_thread.close()
        self._log_thread.close()
        self._disk.unlock(self._lock)

    # --- the meta group ---------------------------------------------------------------------

    @property
    def meta(self) -> MetaMachine:
        assert self._meta_group is not None, "the node has not started"
        machine: MetaMachine = self._meta_group.machine
        return machine

    async def _start_meta(self) -> None:
        directory = os.path.join(self._root, "meta")
        snapshot = SnapshotFile.load(self._disk, directory, "meta", group=META_UID)
        if snapshot is None:
            machine, index, term, chain = MetaMachine(), 0, 0, 0
        else:
            machine = MetaMachine.restore(snapshot.state)
            index, term, chain = snapshot.index, snapshot.term, snapshot.chain
        raft = self._raft(META_UID, index, term, chain)
        group = Group(
            uid=META_UID, raft=raft, machine=machine, blocks=NoBlocks(), snapshot_index=index
        )
        self._meta_group = group
        monitor = Monitor(
            group,
            log=self._wal,
            clock=self._clock,
            snapshot_writer=MetaSnapshots(self._disk, directory, self._block_thread),
            on_failed=self._on_meta_failed,
            loop=asyncio.get_running_loop(),
        )
        self._meta_monitor = monitor
        ready = asyncio.Event()
        group.on_ready.append(_setter(ready))
        self._spawn(monitor)
        monitor.post((g.TICK, None, None, None))
        await ready.wait()
        if group.failure:
            raise CorruptionError(f"meta group: {group.failure}")
        group.on_events = self._on_meta_events

    def _raft(self, uid: Uid, index: Index, term: int, chain: int) -> RaftCore:
        """Build the Raft member of a group whose newest snapshot is at `index` (0: none)."""
        found = self._wal.groups.get(uid)
        log = log_from_snapshot(uid, found, index=index, term=term, chain=chain)
        wal = self._wal

        class Reader:
            def read(self, lo: Index, hi: Index, max_bytes: int) -> list[Any]:
                entries: list[Any] = wal.read(uid, lo, hi, max_bytes)
                return entries

        return RaftCore(
            group=uid,
            node_id=self.server_name,
            voters=(self.server_name,),
            log=log,
            reader=Reader(),
            now_ms=self._clock.monotonic_ms(),
            seed=uid,
            applied=index,
        )

    def propose_meta(self, command: list[Any], done: Done) -> None:
        """See ports.NodeHandle. `done` waits for the stream's group to follow."""
        assert self._meta_monitor is not None, "the node has not started"
        kind = command[0]

        def applied(result: Any) -> None:
            if isinstance(result, errors.JsError):
                done(result)
            elif kind == commands.CREATE_STREAM:
                handle = self._streams.get(result.uid)
                if handle is not None and handle.is_ready:
                    done(result)
                elif result.name in self.failed:
                    done(errors.STREAM_OFFLINE_REASON(err=self.failed[result.name]))
                else:
                    self._waiting.setdefault(result.uid, []).append(
                        lambda failure: done(failure or result)
                    )
            elif kind == commands.UPDATE_STREAM:
                self._configure(result, lambda outcome: done(_first_error(outcome, result)))
            else:
                uid = deleted_uid[0]
                if uid in self._streams:
                    self._waiting.setdefault(uid, []).append(lambda failure: done(True))
                else:
                    done(True)

        deleted_uid = [0]
        if kind == commands.DELETE_STREAM:
            asset = self.meta.streams_by_name.get(command[2])
            deleted_uid[0] = asset.uid if asset is not None else 0
        self._meta_monitor.post((g.PROPOSE, command, applied, True))

    def _on_meta_events(self, events: list[tuple[str, dict[str, Any]]]) -> None:
        for kind, fields in events:
            if kind == "stream_created":
                asset = fields["asset"]
                self._open_stream(asset, partial(self._settle, asset.uid))
            elif kind == "stream_deleted":
                self._close_stream(fields["asset"])
            elif kind == "stream_updated":
                self.topology_version += 1
                self._routes.clear()

    def _configure(self, asset: StreamAsset, done: Done) -> None:
        handle = self._streams.get(asset.uid)
        if handle is None:
            done(errors.STREAM_OFFLINE())
            return

        def configured(outcome: Any) -> None:
            # Only now does the stream capture by its new subjects; what was looked up since meta
            # announced them is stale.
            self._changed()
            done(outcome)

        handle.propose(
            [commands.CONFIGURE, self._clock.now_ns(), asset.config, asset.update_index],
            configured,
        )

    # --- streams ----------------------------------------------------------------------------

    def _open_stream(self, asset: StreamAsset, on_ready: Callable[[], None]) -> None:
        """Recover or create the group of `asset`, off the loop; then run it."""
        is_file = asset.config.get("storage", "file") == "file"
        directory = os.path.join(self._root, "streams", str(asset.uid))

        def job() -> tuple[Any, Any, StreamMachine]:
            if not is_file:
                store: Any = MemoryStreamStore(asset.uid)
                return store, None, self._new_machine(asset, store)
            store = StreamStore.open(
                self._disk,
                directory,
                asset.uid,
                self._block_thread,
                self._codec,
                budget=self._hot_budget,
            )
            snapshot = store.load_snapshot()
            if snapshot is None:
                store.truncate_to((0, 0))
                return store, None, self._new_machine(asset, store)
            store.truncate_to(snapshot.tail)
            machine = StreamMachine.restore(
                snapshot.state,
                snapshot.index_db,
                codec=self._codec,
                columns=store,
                scan=store.scan,
            )
            return store, snapshot, machine

        def opened(result: Any) -> None:
            try:
                if isinstance(result, BaseException):
                    raise result
                store, snapshot, machine = result
                self._run_stream(asset, store, snapshot, machine, on_ready)
            except (StreamdError, OSError, AssertionError, LookupError, ValueError) as err:
                self._stream_failed(asset, err)
                on_ready()

        self._block_thread.submit(job, opened)

    def _new_machine(self, asset: StreamAsset, store: Any) -> StreamMachine:
        # As it was created: the log replayed on top brings the config forward (CONFIGURE).
        machine = StreamMachine(
            uid=asset.uid,
            config=asset.created_config,
            created_ns=asset.created_ns,
            codec=self._codec,
            columns=store,
        )
        machine.use_scan(store.scan)
        return machine

    def _run_stream(
        self,
        asset: StreamAsset,
        store: Any,
        snapshot: Any,
        machine: StreamMachine,
        on_ready: Callable[[], None],
    ) -> None:
        is_file = isinstance(store, StreamStore)
        index, term, chain = (
            (snapshot.index, snapshot.term, snapshot.chain) if snapshot else (0, 0, 0)
        )
        if is_file:
            raft = self._raft(asset.uid, index, term, chain)
        else:
            raft = self._memory_raft(asset.uid)
        group = StreamGroup(
            uid=asset.uid,
            raft=raft,
            machine=machine,
            blocks=store,
            snapshot_index=index,
            wires=self._wires,
            stager=BatchStager(self._batch_budget),
            max_payload=self._max_payload,
            has_room=self._room.take if is_file else self._memory_room.take,
        )
        group.snapshot_every_bytes = self._room.snapshot_every_bytes
        monitor = Monitor(
            group,
            log=self._wal if is_file else self._memory_log,
            clock=self._clock,
            snapshot_writer=StreamSnapshots(store),
            on_failed=lambda failed, err: self._stream_failed(asset, err),
            loop=asyncio.get_running_loop(),
        )
        group.post = monitor.post
        if is_file:
            loop = asyncio.get_running_loop()
            store.on_error = lambda err: loop.call_soon_threadsafe(
                monitor.post, (g.FAILED, err, None, None)
            )
        handle = LocalStream(group, monitor, store, is_file=is_file)
        group.on_events = lambda events: self._on_stream_events(handle, events)
        self._streams[asset.uid] = handle
        self._by_name[asset.name] = handle

        def ready() -> None:
            handle.is_ready = True
            current = self.meta.streams_by_name.get(asset.name)
            if current is not None and machine.config_meta_index < current.update_index:
                self._configure(current, lambda outcome: None)  # meta is ahead: a crash between
            self._changed()
            on_ready()

        group.on_ready.append(ready)
        self._spawn(monitor)
        monitor.post((g.TICK, None, None, None))

    def _memory_raft(self, uid: Uid) -> RaftCore:
        return RaftCore(
            group=uid,
            node_id=self.server_name,
            voters=(self.server_name,),
            log=LogState(HardState(), 1, 0, 0, 0),
            reader=_NoReader(),
            now_ms=self._clock.monotonic_ms(),
            seed=uid,
            applied=0,
        )

    def _close_stream(self, asset: StreamAsset) -> None:
        """Stop the group of a deleted stream and move what it stored into trash."""
        handle = self._streams.get(asset.uid)
        if handle is None:
            self.failed.pop(asset.name, None)
            return
        handle.is_ready = False
        if self._by_name.get(asset.name) is handle:
            del self._by_name[asset.name]
        self._changed()
        handle.group.delete()

        async def close() -> None:
            handle.monitor.stop()
            await handle.monitor.stopped.wait()
            done = asyncio.Event()

            def job() -> None:
                handle.store.close()
                if handle.is_file:
                    # A crash before this rename leaves a directory without an asset, which the
                    # next start moves to trash; the committed deletion is in the meta log.
                    handle.store.move_to_trash(os.path.join(self._root, "trash"))

            self._block_thread.submit(job, lambda result: done.set())
            await done.wait()
            if handle.is_file:
                self._wal.destroy(asset.uid)
                self._empty_trash([str(asset.uid)])
            self._streams.pop(asset.uid, None)
            self._settle(asset.uid)

        assert self._tasks is not None
        self._tasks.create_task(close(), name=f"close-stream-{asset.uid}")

    def _settle(self, uid: Uid) -> None:
        """Tell those who waited for a stream to run, or to be gone."""
        asset_failed = next(
            (
                errors.STREAM_OFFLINE_REASON(err=reason)
                for name, reason in self.failed.items()
                if (asset := self.meta.streams_by_name.get(name)) is not None and asset.uid == uid
            ),
            None,
        )
        for waiting in self._waiting.pop(uid, []):
            waiting(asset_failed)

    def _stream_failed(self, asset: StreamAsset, err: BaseException) -> None:
        self.failed[asset.name] = f"{type(err).__name__}: {err}"
        handle = self._by_name.pop(asset.name, None)
        if handle is not None:
            handle.is_ready = False
            handle.group.delete()
        self._changed()
        if self._log is not None:
            where = "".join(traceback.format_exception(err)[-3:]).strip()
            self._log.error(
                "stream stopped", stream=asset.name, uid=asset.uid, reason=str(err), where=where
            )

    def _on_stream_events(
        self, handle: LocalStream, events: list[tuple[str, dict[str, Any]]]
    ) -> None:
        if self.on_stream_event is not None:
            for kind, fields in events:
                self.on_stream_event(handle, kind, fields)

    # --- finding streams --------------------------------------------------------------------

    def stream(self, name: str) -> LocalStream | None:
        return self._by_name.get(name)

    def streams(self) -> list[LocalStream]:
        if self._sorted is None:
            self._sorted = sorted(self._by_name.values(), key=lambda handle: handle.name)
        return self._sorted

    def streams_for(self, subject: bytes) -> tuple[LocalStream, ...]:
        found = self._routes.get(subject)
        if found is None:
            found = tuple(handle for handle in self.streams() if handle.captures(subject))
            if len(self._routes) >= limits.ROUTE_CACHE_MAX:
                self._routes.clear()
            self._routes[subject] = found
        return found

    def _changed(self) -> None:
        self._sorted = None
        self._routes.clear()
        self.topology_version += 1

    def on_drained(self) -> None:
        for handle in self._streams.values():
            if handle.machine.consumers:
                handle.monitor.post((g.DRAINED, None, None, None))

    def memory_bytes(self) -> int:
        return sum(h.machine.index.bytes for h in self._streams.values() if not h.is_file)

    def storage_bytes(self) -> int:
        return sum(h.machine.index.bytes for h in self._streams.values() if h.is_file)

    # --- care -------------------------------------------------------------------------------

    def _spawn(self, monitor: Monitor) -> None:
        assert self._tasks is not None
        self._tasks.create_task(monitor.run())

    def _check_stragglers(self) -> None:
        """Snapshot groups that alone keep an old log segment alive."""
        for uid in self._wal.stragglers():
            if uid == META_UID and self._meta_monitor is not None:
                self._meta_monitor.post((g.SNAPSHOT, None, None, None))
            elif uid in self._streams:
                self._streams[uid].monitor.post((g.SNAPSHOT, None, None, None))
        self._straggler_timer = asyncio.get_running_loop().call_later(
            limits.STRAGGLER_CHECK_S, self._check_stragglers
        )

    def _empty_trash(self, names: list[str]) -> None:
        """Unlink streams that a committed command deleted. Orphans stay until somebody looks."""
        for name in names:
            path = os.path.join(self._root, "trash", name)
            self._block_thread.submit(partial(self._disk.remove_tree, path), None)

    def _report_orphans(self, known: set[Uid]) -> None:
        """Move directories of no known stream to trash; their bytes are kept there."""
        streams = os.path.join(self._root, "streams")
        for name in sorted(self._disk.listdir(streams)):
            if name.isdigit() and int(name) in known:
                continue
            target = os.path.join(self._root, "trash", f"orphan-{name}-{self._clock.now_ns()}")
            self._disk.replace(os.path.join(streams, name), target)
            self._disk.sync_dir(streams)
            if self._log is not None:
                self._log.warning("directory of no stream moved to trash", path=target)

    def _on_log_error(self, err: BaseException) -> None:
        """The log failed: nothing can be promised any more, so every group stops (I10)."""
        for handle in list(self._streams.values()):
            if handle.is_file:
                self._stream_failed(self.meta.streams_by_name[handle.name], err)
        if self._on_fatal is not None:
            self._on_fatal(err)

    def _on_meta_failed(self, group: Group, err: BaseException) -> None:
        for callback in group.on_ready:
            callback()
        if self._log is not None:
            self._log.error("meta group stopped", reason=str(err))
        if self._on_fatal is not None:
            self._on_fatal(err)


class _NoReader:
    def read(self, lo: Index, hi: Index, max_bytes: int) -> list[Any]:
        raise DiskError(f"entries {lo}..{hi} of a memory group are gone")


def _setter(event: asyncio.Event) -> Callable[[], None]:
    return event.set


def _first_error(outcome: Any, otherwise: Any) -> Any:
    return outcome if isinstance(outcome, errors.JsError) else otherwise


def log_from_snapshot(
    uid: Uid, found: LogState | None, *, index: Index, term: int, chain: int
) -> LogState:
    """Join what the log knows with the snapshot: entries after the snapshot, or none.

    Raises CorruptionError when entries between them are missing: lost is not deleted.
    """
    hard_state = found.hard_state if found is not None else HardState()
    if hard_state.term < term:
        hard_state = HardState(term, "", index)
    if found is None or found.last_index <= index:
        return LogState(hard_state, index + 1, index, term, chain)
    if found.first_index > index + 1:
        raise CorruptionError(
            f"group {uid}: the newest snapshot is at index {index}, but the log starts at "
            f"{found.first_index}: entries {index + 1}..{found.first_index - 1} are missing"
        )
    return LogState(
        hard_state, found.first_index, found.last_index, found.prev_term, found.prev_chain
    )
