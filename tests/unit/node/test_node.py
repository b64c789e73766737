"""A whole node on a real directory, without sockets."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from streamd import errors, limits
from streamd.api import consumer_configs
from streamd.api.router import Router, SoleAccount
from streamd.api.stream_configs import normalise
from streamd.errors import DiskError
from streamd.machine import commands
from streamd.node.env import SystemEnv
from streamd.node.groups import inbox
from streamd.node.groups.block_port import NoBlocks
from streamd.node.groups.group import MetaGroup
from streamd.node.groups.raft_members import GroupStart
from streamd.node.local_node import LocalNode
from streamd.node.node_options import NodeOptions
from streamd.node.stream_groups.forwarded_publishes import Chunk, Relayed
from streamd.store.blocks.snapshots import SnapshotFile
from streamd.store.blocks.tail_cache import CacheBudget, ChunkCache, TailCache
from streamd.store.disk import OsDisk
from streamd.store.wal import wal_writer
from streamd.store.wal.wal_writer import Pace
from tests.sim.crash import SimWires


def test_routes_looked_up_during_an_update_are_forgotten_after_it(tmp_path: Path) -> None:
    """Meta has the new subjects before the stream does; a route cached in between is stale."""
    asyncio.run(asyncio.wait_for(_update_with_a_look_midway(tmp_path), 30))


async def _update_with_a_look_midway(path: Path) -> None:
    node = LocalNode(NodeOptions(str(path), "N", "n"), SimWires())
    await node.started()
    try:
        old = normalise({"name": "S", "subjects": ["old"]}, is_pedantic=False)
        await _propose(node, [commands.CREATE_STREAM, 1, old])
        group = node.groups.meta_group
        assert group is not None
        told = group.shell.on_events

        def look(events: list[tuple[str, dict[str, Any]]]) -> None:
            told(events)
            assert node.account("$G").streams_for(b"new") == ()  # somebody publishes just now

        group.shell.on_events = look
        before = node.account("$G").topology_version
        new = normalise({"name": "S", "subjects": ["new"]}, is_pedantic=False)
        await _propose(node, [commands.UPDATE_STREAM, 2, "S", new])
        assert [handle.name for handle in node.account("$G").streams_for(b"new")] == ["S"]
        assert node.account("$G").streams_for(b"old") == ()
        assert (
            node.account("$G").topology_version > before + 1
        )  # after meta's, once more after the stream's
    finally:
        await node.stopped()


async def _propose(node: LocalNode, command: list[Any]) -> None:
    done = asyncio.Event()
    node.propose_meta(command, lambda outcome: done.set())
    await done.wait()


def test_a_deleted_stream_tells_that_its_consumers_went_too(tmp_path: Path) -> None:
    events: list[tuple[str, str]] = []

    async def run() -> None:
        node = LocalNode(NodeOptions(str(tmp_path), "N", "n"), SimWires())
        node.hooks.on_stream_event = lambda handle, kind, fields: events.append(
            (kind, fields["consumer"])
        )
        await node.started()
        try:
            await _propose(node, [commands.CREATE_STREAM, 1, normalise({"name": "S"})])
            stream = node.stream("S")
            assert stream is not None
            for name in ("a", "b"):
                made = asyncio.Event()
                config = consumer_configs.normalise({"name": name}, stream.machine.config)
                create = [commands.CREATE_CONSUMER, 2, name, config, "", False]
                stream.propose(create, lambda outcome, made=made: made.set())
                await made.wait()
            del events[:]
            await _propose(node, [commands.DELETE_STREAM, 3, "S", stream.uid])
        finally:
            await node.stopped()

    asyncio.run(asyncio.wait_for(run(), 30))
    assert events == [("consumer_deleted", "a"), ("consumer_deleted", "b")]


async def test_stopped_twice_at_once_it_stops_once(tmp_path: Path) -> None:
    """A second SIGTERM, or a fatal error meanwhile: seed 20369 unlocked the directory twice."""
    node = LocalNode(NodeOptions(str(tmp_path), "N", "n"), SimWires())
    await node.started()
    await asyncio.gather(node.stopped(), node.stopped())
    await node.stopped()


def test_a_meta_group_that_can_not_begin_anew_ends_the_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read error then went to nobody, and the node lived on without a meta group: seed 21110."""
    reasons: list[BaseException] = []

    def unreadable(*args: Any, **options: Any) -> None:
        raise OSError(errno.EIO, "pread")

    async def run() -> None:
        options = NodeOptions(str(tmp_path), "N", "n")
        node = LocalNode(options, SimWires(), on_fatal=reasons.append)
        await node.started()
        closed = asyncio.Event()
        node.parts.meta.member.close(closed.set)
        await closed.wait()
        monkeypatch.setattr(SnapshotFile, "load", unreadable)
        node.parts.meta.member.open_again()
        await node.stopped()

    asyncio.run(asyncio.wait_for(run(), 30))
    assert [type(reason) for reason in reasons] == [OSError]


async def test_a_repeating_timer_survives_an_error_of_its_callback(tmp_path: Path) -> None:
    """One error in the look at moves or damages ended all looks until the next start."""
    calls: list[int] = []
    loop = asyncio.get_running_loop()
    told: list[Any] = []
    loop.set_exception_handler(lambda loop, context: told.append(context["exception"]))
    node = LocalNode(NodeOptions(str(tmp_path), "N", "n"), SimWires())
    await node.started()
    is_twice = asyncio.Event()

    def look() -> None:
        calls.append(1)
        if len(calls) == 2:
            is_twice.set()
        raise LookupError("of a group")

    node.parts.context.timers.again("look", 0, look)
    await is_twice.wait()
    await node.stopped()
    assert [type(one) for one in told][:1] == [LookupError]  # and it is not hidden


class Acks:
    """Collects the outcomes of publishes; `all` is set when as many have come as are wanted."""

    def __init__(self, wanted: int) -> None:
        self.outcomes: list[Any] = []
        self.all = asyncio.Event()
        self._wanted = wanted

    def publish_acks(self, stream: bytes, replies: list[bytes], outcomes: Any) -> None:
        self.outcomes += outcomes
        if len(self.outcomes) == self._wanted:
            self.all.set()


@asynccontextmanager
async def _running(path: Path) -> AsyncIterator[LocalNode]:
    node = LocalNode(NodeOptions(str(path), "N", "n"), SimWires())
    await node.started()
    try:
        yield node
    finally:
        await node.stopped()


async def _create(node: LocalNode, name: str) -> None:
    config = normalise({"name": name, "subjects": [name]}, is_pedantic=False)
    await _propose(node, [commands.CREATE_STREAM, 1, config])


async def test_streams_that_are_written_in_one_round_share_one_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last turn of the round has the log written; the others leave theirs to it."""
    monkeypatch.setattr(wal_writer, "WITNESS_IDLE_S", 1000.0)
    monkeypatch.setattr(Pace, "is_quick", lambda self, now: True)
    async with _running(tmp_path) as node:
        for name in ("A", "B", "C"):
            await _create(node, name)
        handles = [node.account("$G").streams_for(name)[0] for name in (b"A", b"B", b"C")]
        for _ in range(3):
            acks = Acks(3)
            before = node.parts.context.wal.sync_count
            for handle in handles:
                handle.publish([(handle.name.encode(), b"", b"x")], [b"r"], acks)
            await acks.all.wait()
            assert node.parts.context.wal.sync_count == before + 1


async def test_a_stream_that_stopped_holds_nothing_open(tmp_path: Path) -> None:
    """Its files and its share of the memory for recent bytes, until the process ended."""
    async with _running(tmp_path) as node:
        await _create(node, "A")
        handle = node.account("$G").streams_for(b"A")[0]
        acks = Acks(1)
        handle.publish([(b"A", b"", b"x" * 1000)], [b"r"], acks)
        await acks.all.wait()
        directory = Path(node.parts.context.root) / "streams" / str(handle.uid)
        budget = node.parts.replicas.recovery._hot_budget
        handle.store.flush()
        await _idle(node)
        assert budget.used > 1000 and _open_in(directory)
        handle.monitor.post(inbox.Failed(DiskError("1.blk: Input/output error")))
        await handle.monitor.stopped.wait()
        await _idle(node)
        assert ("$G", "A") in node.failed
        assert budget.used == 0 and not _open_in(directory)


async def _idle(node: LocalNode) -> None:
    """Until the block thread has done all that was begun so far."""
    done = asyncio.Event()
    node.parts.context.block_thread.submit(lambda: None, lambda result: done.set())
    await done.wait()


def _open_in(directory: Path) -> list[str]:
    """Files of this process that are open there."""
    links = [os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return [link for link in links if link.startswith(f"{directory}/")]


async def test_while_the_disk_is_quick_the_loop_writes_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what the thread writes otherwise is acked all the same."""
    monkeypatch.setattr(wal_writer, "WITNESS_IDLE_S", 1000.0)
    monkeypatch.setattr(Pace, "is_quick", lambda self, now: True)
    async with _running(tmp_path) as node:
        await _create(node, "A")
        handle = node.account("$G").streams_for(b"A")[0]
        writers: list[str] = []
        writev = OsDisk.writev

        def noted(*args: Any, **options: Any) -> None:
            writers.append(threading.current_thread().name)
            writev(*args, **options)

        monkeypatch.setattr(OsDisk, "writev", noted)
        for is_quick in (True, True, False):  # the thread may not be done with its own yet
            monkeypatch.setattr(Pace, "is_quick", lambda self, now, is_quick=is_quick: is_quick)
            writers.clear()
            acks = Acks(1)
            handle.publish([(b"A", b"", b"x")], [b"r"], acks)
            await acks.all.wait()
            assert writers == ["MainThread" if is_quick else "disk-log"]


class HeldBlocks(OsDisk):
    """Blocks are written once `released` is set; the log has a quick disk."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()
        self._blocks: set[int] = set()

    def open(self, path: str, *, create: bool = False) -> int:
        fd = super().open(path, create=create)
        if path.endswith(".blk"):
            self._blocks.add(fd)
        return fd

    def close(self, fd: int) -> None:
        self._blocks.discard(fd)
        super().close(fd)

    def writev(self, fd: int, *args: Any, **options: Any) -> None:
        if fd in self._blocks:
            assert self.released.wait(30)
        super().writev(fd, *args, **options)


async def test_a_log_that_is_far_ahead_of_the_blocks_waits_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that was acked and in no block yet was kept in memory, however much that was."""
    monkeypatch.setitem(CacheBudget.__init__.__kwdefaults__, "queue_bytes_max", 4 << 20)
    disk = HeldBlocks()
    env = SystemEnv(disk=disk)
    node = LocalNode(NodeOptions(str(tmp_path), "N", "n"), SimWires(), env=env)
    await node.started()
    try:
        await _create(node, "A")
        handle = node.account("$G").streams_for(b"A")[0]
        held = asyncio.Event()
        hold = node.parts.context.wal.hold
        monkeypatch.setattr(node.parts.context.wal, "hold", lambda: (held.set(), hold()))
        count = 0
        while count < 100:
            count += 1
            acks = Acks(1)
            handle.publish([(b"A", b"", bytes(1 << 20))], [b"r"], acks)
            if held.is_set():
                break
            await acks.all.wait()
        assert count < 10
        for _ in range(20):  # rounds of the loop
            await asyncio.sleep(0)
        assert not acks.outcomes
        disk.released.set()
        await acks.all.wait()
        assert handle.machine.state()["messages"] == count
    finally:
        disk.released.set()
        await node.stopped()


@pytest.mark.parametrize(
    ("limit", "refused"),
    [("PUBLISH_BACKLOG_BYTES_MAX", "A"), ("PUBLISH_BACKLOGS_BYTES_MAX", "B")],
    ids=["of one stream", "of all together"],
)
async def test_publishes_that_the_log_can_not_take_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, refused: str
) -> None:
    """What waits for the log is in memory: 128 MiB for each stream had no bound for many."""
    monkeypatch.setattr(limits, limit, 2 << 20)
    async with _running(tmp_path) as node:
        handles = {}
        for name in ("A", "B"):
            await _create(node, name)
            handles[name] = node.account("$G").streams_for(name.encode())[0]

        def publish(name: str) -> Acks:
            acks = Acks(1)
            handles[name].publish([(name.encode(), b"", bytes(1 << 20))], [b"r"], acks)
            return acks

        for _ in range(2):  # the second time shows that what was taken was given back
            node.parts.context.wal.hold()
            waiting = []
            for _ in range(2):  # with what an entry costs besides, more than is allowed
                waiting.append(publish("A"))
                await asyncio.sleep(0)  # a turn of the group for each
                await asyncio.sleep(0)
            last = publish(refused)
            await last.all.wait()
            assert last.outcomes == [errors.STREAM_TOO_MANY_REQUESTS()]
            assert [acks.outcomes for acks in waiting] == [[], []]
            node.parts.context.wal.resume()
            for acks in waiting:
                await acks.all.wait()
            last = publish(refused)
            await last.all.wait()
            assert not isinstance(last.outcomes[0], errors.JsError)


async def test_a_stream_that_is_deleted_gives_back_what_it_had_under_way(tmp_path: Path) -> None:
    async with _running(tmp_path) as node:
        await _create(node, "A")
        handle = node.account("$G").streams_for(b"A")[0]
        backlog = handle.group._intake._backlog
        node.parts.context.wal.hold()
        handle.publish([(b"A", b"", bytes(1 << 20))], [b"r"], Acks(1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert backlog.byte_count > 1 << 20
        stopped = asyncio.Event()
        handle.monitor.when_stopped(stopped.set)
        await stopped.wait()
        assert backlog.byte_count == 0
        node.parts.context.wal.resume()


async def test_caches_of_a_deleted_stream_are_cleared_on_the_loop_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block thread did it, while a turn of another stream went through the same lists: that
    stream stopped, with a KeyError."""
    threads: list[int] = []
    for part in (TailCache, ChunkCache):
        clear: Callable[[Any], None] = part.clear

        def noted(held: Any, clear: Callable[[Any], None] = clear) -> None:
            threads.append(threading.get_ident())
            clear(held)

        monkeypatch.setattr(part, "clear", noted)
    async with _running(tmp_path) as node:
        await _create(node, "A")
        handle = node.account("$G").streams_for(b"A")[0]
        acks = Acks(1)
        handle.publish([(b"A", b"", bytes(1000))], [b"r"], acks)
        await acks.all.wait()
        gone = asyncio.Event()
        node.parts.replicas.replicas.when_closed(handle.uid, gone.set)
        await _propose(node, [commands.DELETE_STREAM, 3, "A", handle.uid])
        await gone.wait()
        assert not handle.store.unwritten_bytes
        assert set(threads) == {threading.get_ident()}


def test_tokens_that_peers_echo_differ_between_processes(tmp_path: Path) -> None:
    """The ack of a publish that an earlier process had relayed went to another publish with the
    same token, and might have acked what nobody had stored: seed 69692."""
    tokens: list[int] = []
    contexts: list[int] = []

    async def run() -> None:
        async with _running(tmp_path) as node:
            chunk = Chunk(b"S", [], [b"r"], Acks(1))
            row = Relayed("peer", 1, chunk, is_batch=False)
            tokens.append(node.parts.cluster.forwarding.relay.expect(row))
            for _ in range(2):  # opened again within the process
                core = node.parts.meta.member._rafts.make(GroupStart(99, is_memory=True))
                group = MetaGroup(
                    uid=99, raft=core, machine=None, blocks=NoBlocks(), snapshot_index=0
                )
                contexts.append(group._reads._count)

    for _ in range(2):
        asyncio.run(asyncio.wait_for(run(), 30))
    assert abs(tokens[0] - tokens[1]) >= 1 << 32
    ordered = sorted(contexts)
    assert all(after - before >= 1 << 20 for before, after in pairwise(ordered))
    assert max(tokens) < 1 << 63


class OtherVolume(OsDisk):
    """Nothing can be moved from streams/ to trash/."""

    def replace(self, source: str, target: str) -> None:
        if "/orphan-" in target:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source)
        super().replace(source, target)


def test_an_orphan_that_cannot_be_moved_to_trash_does_not_block_the_start(tmp_path: Path) -> None:
    """An orphan, where streams/ is a volume: the start was never over, without a word."""

    async def run() -> None:
        await (await started(tmp_path, OsDisk())).stopped()
        place = tmp_path / "streamd" / "streams" / "99"
        place.mkdir()
        node = await started(tmp_path, OtherVolume())
        assert place.exists()
        await node.stopped()
        (tmp_path / "streamd" / "trash").rmdir()
        (tmp_path / "streamd" / "trash").write_bytes(b"")
        with pytest.raises(DiskError, match=r"streamd/trash: .*Not a directory"):
            await started(tmp_path, OtherVolume())

    async def started(path: Path, disk: OsDisk) -> LocalNode:
        env = SystemEnv(disk=disk)
        node = LocalNode(NodeOptions(str(path), "N", "n"), SimWires(), env=env)
        await node.started()
        return node

    asyncio.run(asyncio.wait_for(run(), 30))


def test_the_api_hears_of_what_streams_and_the_meta_group_report(tmp_path: Path) -> None:
    async def run() -> None:
        node, wires = LocalNode(NodeOptions(str(tmp_path), "N", "n"), SimWires()), SimWires()
        router = Router(node, SoleAccount(wires), server_version="2.12.0")
        router.announce()
        assert node.hooks.on_stream_event == router._on_stream_event
        assert node.hooks.on_meta_event == router._on_meta_event

    asyncio.run(run())
