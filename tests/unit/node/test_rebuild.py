"""A single server's stream whose snapshots, or whose log, are gone: rebuilt from what is left."""

from __future__ import annotations

import asyncio
import random
import re
import shutil
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from streamd.api.stream_configs import normalise
from streamd.errors import CorruptionError
from streamd.machine import commands
from streamd.machine.streams.stream import StreamMachine
from streamd.node.local_node import LocalNode
from streamd.node.recovery.dry_run import DryRun
from streamd.store.blocks.salvage import harvest
from tests.unit.node.test_quorum_loss_recovery import Log, make, publish, save

MSGS = 400
SEEDS = 20


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    restores: Any = (StreamMachine.restore, StreamMachine.of_state)
    for function in (StreamMachine.__init__, *(each.__func__ for each in restores)):
        monkeypatch.setitem(function.__kwdefaults__, "block_bytes", 4096)  # type: ignore[arg-type]
    yield


def run(main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(main(), 60))


async def started(path: Path, *, accepts_loss: bool = False) -> LocalNode:
    node = make(path, accepts_loss=accepts_loss)
    await node.started()
    return node


async def propose(node: LocalNode, command: list[Any], name: str = "S") -> Any:
    stream = node.stream(name)
    assert stream is not None
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    stream.propose(command, told.set_result)
    return await told


async def create(node: LocalNode, name: str = "S", **config: Any) -> int:
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    wanted = normalise({"name": name, "subjects": [f"{name}.>"], **config}, is_pedantic=False)
    node.propose_meta([commands.CREATE_STREAM, 1, wanted], told.set_result)
    uid: int = (await told).uid
    return uid


async def add_consumer(node: LocalNode, name: str, **config: Any) -> Any:
    wanted = {"durable_name": name, "ack_policy": "explicit", "deliver_policy": "all", **config}
    await propose(node, [commands.CREATE_CONSUMER, 1, name, wanted, "", ""])
    stream = node.stream("S")
    assert stream is not None
    return stream.machine.consumers[name]


async def deliver(node: LocalNode, name: str, count: int, *, acked: int) -> None:
    """The next `count` messages go to a client, which acks the last `acked` of them."""
    stream = node.stream("S")
    assert stream is not None
    machine = stream.machine
    consumer = machine.consumers[name]
    seqs, at = [], consumer.next_sseq
    for _ in range(count):
        seqs.append(machine.index.live.first_from(at))
        at = seqs[-1] + 1
    cseq = consumer.delivered_cseq + 1
    items = [(seq, seq, cseq + number, False) for number, seq in enumerate(seqs)]
    await propose(node, [commands.DELIVERED, 5, consumer.uid, items, consumer.resets])
    if acked:
        await propose(node, [commands.ACKED, 6, consumer.uid, seqs[-acked:]])


async def written(node: LocalNode) -> None:
    """Have all blocks written to their files."""
    for stream in node.groups:
        stream.store.flush()
    idle = asyncio.Event()
    node.parts.context.block_thread.submit(lambda: None, lambda result: idle.set())
    await idle.wait()


async def copied(node: LocalNode, source: Path, target: Path) -> None:
    """Copy the files of a running node, on the thread that renames and removes some of them."""
    copying: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    ignored = shutil.ignore_patterns("LOCK")
    node.parts.context.block_thread.submit(
        lambda: shutil.copytree(source, target, ignore=ignored), copying.set_result
    )
    found = await copying
    assert not isinstance(found, BaseException), found


def picture(node: LocalNode, name: str = "S") -> dict[str, Any]:
    """All that clients can see of a stream's state, and the digest of its content."""
    stream = node.stream(name)
    assert stream is not None, node.failed
    machine = stream.machine
    index = machine.index
    return {
        "state": machine.state(),
        "digest": machine.digest,
        "subjects": {name: index.subjects.count_of(name) for name in sorted(index.subjects.rows)},
        "deleted": list(index.live.deleted.ranges()),
        "live": list(index.live.seqs(index.first_seq, index.last_seq)),
        "consumers": {
            each.name: (each.info(), sorted(each.pending), each.config)
            for each in machine.consumers.values()
        },
        "dedupe": sorted(arrival[1:] for arrival in machine.content.dedupe.arrivals()),
        "config": machine.config,
    }


async def worked(path: Path, per_subject: int = 300) -> tuple[dict[str, Any], Path]:
    """A stream that has seen some of everything, and saved it twice; killed, all of it in `path`
    but nothing more written. What it was, and where."""
    node = await started(path / "work")
    uid = await create(node, max_msgs_per_subject=per_subject)
    rng = random.Random(7)
    await add_consumer(node, "C")
    for at in range(8):
        await publish(node, "S", MSGS // 8)
        if at in (3, 5):
            await save(node, "S")
        for seq in sorted(rng.sample(range(at * 50 + 1, at * 50 + 40), 5)):
            await propose(node, [commands.DELETE_MSG, 3, seq, False])
        await deliver(node, "C", 20, acked=10 + at)
    await with_ids(node, 3)
    await written(node)
    before = picture(node)
    await copied(node, path / "work", path / "image")
    await node.stopped()
    return before, path / "image" / "streamd" / "streams" / str(uid)


async def with_ids(node: LocalNode, count: int) -> None:
    stream = node.stream("S")
    assert stream is not None
    for number in range(count):
        headers = b"NATS/1.0\r\nNats-Msg-Id: id%d\r\n\r\n" % number
        await propose(node, [commands.STORE, 9, [(b"S.id", headers, b"x")]])


async def rebuilt(directory: Path) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """What the image is after a start with the flag; and after ten more messages, one start more.
    Without the flag the stream is not served, and none of its files changes."""
    image = directory.parents[2]
    before = files(directory)
    node = make(image)
    try:
        await node.started()
    except CorruptionError as err:
        assert "wal" in str(err)
        node._env.disk.unlock(node._opening.lock)
    else:
        assert node.stream("S") is None
        await node.stopped()
    assert files(directory) == before
    node = await started(image, accepts_loss=True)
    assert not node.failed
    found = picture(node)
    lines = [line for report in node.parts.recovery.quorum_loss.reports for line in report.lines()]
    await publish(node, "S", 10)
    after = picture(node)
    await node.stopped()
    node = await started(image)
    assert picture(node) == after
    assert after["state"]["last_seq"] == found["state"]["last_seq"] + 10
    await node.stopped()
    return found, after, lines


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def remove(directory: Path, *patterns: str) -> None:
    for pattern in patterns:
        for path in directory.glob(pattern):
            path.unlink()


def test_all_snapshots_gone(tmp_path: Path) -> None:
    """Blocks, outline and the log bring back all there was."""

    async def main() -> None:
        before, directory = await worked(tmp_path)
        remove(directory, "stream-*.snap")
        found, _, lines = await rebuilt(directory)
        assert found == before
        assert any("no message that any file names" in line for line in lines)

    run(main)


def flip(path: Path, offset: int) -> None:
    blob = bytearray(path.read_bytes())
    blob[offset] ^= 0x20
    path.write_bytes(blob)


def spoil(directory: Path) -> None:
    """A bit of each snapshot."""
    for path in directory.glob("stream-*.snap"):
        flip(path, path.stat().st_size // 2)


def messages_of(found: dict[str, Any]) -> dict[str, Any]:
    """Without consumers, and what counts them."""
    state = {key: value for key, value in found["state"].items() if key != "consumer_count"}
    return {key: found[key] for key in ("digest", "subjects", "deleted")} | state


def check_messages(found: dict[str, Any], before: dict[str, Any]) -> None:
    """All are there, and none that was deleted, but for some that had left the front."""
    assert found["state"]["last_seq"] == before["state"]["last_seq"]
    live, then = set(found["live"]), set(before["live"])
    assert then <= live
    assert max(live - then, default=0) < min(then)
    assert found["state"]["messages"] == len(live) <= 303  # max_msgs_per_subject: 300


def test_all_snapshots_damaged(tmp_path: Path) -> None:
    """As if they were gone; their files go to trash."""

    async def main() -> None:
        before, directory = await worked(tmp_path)
        spoil(directory)
        found, _, _ = await rebuilt(directory)
        assert found == before
        kept = list((directory.parents[1] / "trash").glob("*-lost-*/stream-*.snap"))
        assert len(kept) == 2

    run(main)


def test_the_newest_snapshot_and_the_outline_damaged(tmp_path: Path) -> None:
    """The one before it is whole, and the log begins after that: what the blocks have stays, and
    consumers stand where that one and the log say."""

    async def main() -> None:
        before, directory = await worked(tmp_path)
        newest = max(directory.glob("stream-*.snap"))
        flip(newest, 900)
        flip(directory / "outline", 900)
        found, _, lines = await rebuilt(directory)
        check_messages(found, before)
        then, now = before["consumers"]["C"][0], found["consumers"]["C"][0]
        assert now["ack_floor"]["stream_seq"] <= then["ack_floor"]["stream_seq"]
        assert now["delivered"]["stream_seq"] == then["delivered"]["stream_seq"]
        assert any("it may come again" in line for line in lines)

    run(main)


def test_snapshots_and_outline_gone(tmp_path: Path) -> None:
    """The log brings what came after its beginning; its consumers nobody knows, and is told so."""

    async def main() -> None:
        before, directory = await worked(tmp_path)
        remove(directory, "stream-*.snap", "outline")
        found, _, lines = await rebuilt(directory)
        assert messages_of(found) == messages_of(before)
        assert found["config"] == before["config"] and not found["consumers"]
        assert any("forgotten: its consumers" in line for line in lines)

    run(main)


@pytest.mark.parametrize("is_outline_gone", [False, True])
def test_the_log_gone(tmp_path: Path, is_outline_gone: bool) -> None:
    """Messages of after the newest snapshot come from the blocks; the consumer stands where that
    snapshot says."""

    async def main() -> None:
        before, directory = await worked(tmp_path)
        shutil.rmtree(directory.parents[1] / "wal")
        if is_outline_gone:
            remove(directory, "outline")
        found, _, lines = await rebuilt(directory)
        check_messages(found, before)
        then, now = before["consumers"]["C"][0], found["consumers"]["C"][0]
        assert 0 < now["delivered"]["stream_seq"] <= then["delivered"]["stream_seq"]
        assert [seq for _, seq in found["dedupe"]] == [seq for _, seq in before["dedupe"]]
        assert any("stood in the log alone" in line for line in lines)

    run(main)


def test_the_log_and_all_snapshots_gone(tmp_path: Path) -> None:
    """The meta group's too: the outline says what the stream was."""

    async def main() -> None:
        before, directory = await worked(tmp_path)
        shutil.rmtree(directory.parents[1] / "wal")
        remove(directory, "stream-*.snap")
        remove(directory.parents[1] / "meta", "*.snap")
        found, _, _ = await rebuilt(directory)
        check_messages(found, before)
        assert found["config"] == before["config"]
        assert found["consumers"]["C"][0]["delivered"]["stream_seq"] > 0

    run(main)


def test_a_young_stream_whose_log_is_gone(tmp_path: Path) -> None:
    """It has no snapshot yet, nor has the meta group: its outline names it, its blocks have its
    messages. It is no orphan."""

    async def main() -> None:
        node = await started(tmp_path / "work")
        uid = await create(node, "S", max_msgs=10_000)
        await publish(node, "S", MSGS)
        await propose(node, [commands.DELETE_MSG, 3, 7, False])
        await written(node)
        before = picture(node)
        await copied(node, tmp_path / "work", tmp_path / "image")
        await node.stopped()
        directory = tmp_path / "image" / "streamd" / "streams" / str(uid)
        assert not list(directory.glob("*.snap"))
        shutil.rmtree(directory.parents[1] / "wal")
        found, _, _ = await rebuilt(directory)
        assert messages_of(found) == messages_of(before) and found["config"] == before["config"]
        assert not list((directory.parents[1] / "trash").glob("orphan*"))

    run(main)


def test_nothing_but_blocks(tmp_path: Path) -> None:
    """Nobody knows what the stream was called: its messages are all there, under a name of their
    own."""

    async def main() -> None:
        before, directory = await worked(tmp_path)
        shutil.rmtree(directory.parents[1] / "wal")
        remove(directory, "stream-*.snap", "outline", "index.db")
        remove(directory.parents[1] / "meta", "*.snap")
        node = await started(directory.parents[2], accepts_loss=True)
        found = picture(node, f"RECOVERED_{directory.name}")
        assert {*before["subjects"]} == {*found["subjects"]}
        assert found["state"]["last_seq"] == before["state"]["last_seq"]
        assert found["state"]["messages"] >= before["state"]["messages"]
        await node.stopped()

    run(main)


@pytest.mark.parametrize("is_log_gone", [False, True])
def test_a_block_in_the_middle_damaged_too(tmp_path: Path, is_log_gone: bool) -> None:
    """Its other messages stay, and the one that is lost is named."""

    async def main() -> None:
        before, directory = await worked(tmp_path, -1)
        remove(directory, "stream-*.snap")
        if is_log_gone:
            shutil.rmtree(directory.parents[1] / "wal")
        path = directory / "3.blk"
        blob = path.read_bytes()
        numbers = [int(seq) for seq in re.findall(rb"S-(\d+)\.", blob)]
        deleted = {seq for low, high in before["deleted"] for seq in range(low, high + 1)}
        first = before["state"]["first_seq"]
        lost = next(seq for seq in numbers[2:] if seq not in deleted and seq >= first)
        flip(path, blob.index(b"S-%d." % lost) + 60)
        flip(path, path.stat().st_size - 40)
        found, _, lines = await rebuilt(directory)
        assert found["state"]["messages"] == before["state"]["messages"] - 1
        assert found["state"]["last_seq"] == before["state"]["last_seq"]
        assert any(f"1 messages: {lost}" in line and "3.blk" in line for line in lines), lines
        kept = list((directory.parents[1] / "trash").glob("*-lost-*/3.blk"))
        assert [len(each.read_bytes()) for each in kept] == [len(blob)]

    run(main)


def test_deletions_that_a_lost_block_named(tmp_path: Path) -> None:
    """The outline knows them: what was deleted stays so. Without it they come back, and nothing
    that was not stored does."""

    async def main() -> None:
        before, directory = await worked(tmp_path, -1)
        remove(directory, "stream-*.snap")
        doomed = [path for path in directory.glob("*.blk") if int(path.stem) in (4, 5)]
        # Checksums and times may have the same bytes: only whole ids count.
        blocks = b"".join(path.read_bytes() for path in doomed)
        lost = {int(seq) for seq in re.findall(rb"S-(\d+)\.", blocks)}
        for path in doomed:
            path.unlink()
        shutil.copytree(tmp_path / "image", tmp_path / "other")
        shutil.rmtree(directory.parents[1] / "wal")
        deleted = {seq for low, high in before["deleted"] for seq in range(low, high + 1)}
        found, _, lines = await rebuilt(directory)
        gone = {seq for low, high in found["deleted"] for seq in range(low, high + 1)}
        first = found["state"]["first_seq"]
        assert {seq for seq in deleted if seq > first} <= gone and gone - deleted <= lost
        assert any("4.blk" in line for line in lines)

        other = tmp_path / "other" / "streamd" / "streams" / directory.name
        remove(other, "outline")
        found, _, lines = await rebuilt(other)
        assert found["state"]["last_seq"] == before["state"]["last_seq"]
        back = deleted - {seq for low, high in found["deleted"] for seq in range(low, high + 1)}
        assert back - lost == back  # of what the lost blocks held nothing is back
        assert any("lost or deleted" in line for line in lines)

    run(main)


def test_the_last_block_torn(tmp_path: Path) -> None:
    """And no log: whole records count, and no seq that any file names is given again."""

    async def main() -> None:
        before, directory = await worked(tmp_path, -1)
        remove(directory, "stream-*.snap")
        shutil.rmtree(directory.parents[1] / "wal")
        path = max(directory.glob("*.blk"), key=lambda each: int(each.stem))
        path.write_bytes(path.read_bytes()[:-70])
        found, _, lines = await rebuilt(directory)
        last = before["state"]["last_seq"]
        assert last - 3 <= found["state"]["last_seq"] < last
        assert any("the end of" in line for line in lines)

    run(main)


def tree(path: Path) -> dict[str, tuple[int, int, bytes]]:
    return {
        str(each.relative_to(path)): (
            each.stat().st_mtime_ns,
            each.stat().st_ino,
            b"" if each.is_dir() else each.read_bytes(),
        )
        for each in sorted(path.rglob("*"))
    }  # fmt: skip


@pytest.mark.parametrize("is_log_gone", [False, True])
def test_a_dry_run_says_what_comes_and_changes_no_file(tmp_path: Path, is_log_gone: bool) -> None:
    """To the letter what the start says that does it."""

    async def main() -> None:
        _, directory = await worked(tmp_path)
        remove(directory, "stream-*.snap")
        (directory / "3.blk").unlink()
        if is_log_gone:
            shutil.rmtree(directory.parents[1] / "wal")
        image = directory.parents[2]
        before = tree(image)
        told: list[str] = []
        run = DryRun(
            store_dir=str(image), server_name="n", cluster_name="", sync="always", log=Log(),
            tell=told.append,
        )  # fmt: skip
        await run.run()
        assert tree(image) == before
        _, _, lines = await rebuilt(directory)
        assert told[: len(lines)] == lines
        assert any("lost:" in line and "3.blk" in line for line in told), told
        assert told[-1].startswith("dry run: no file was changed")

    run(main)


RETENTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"max_msgs": 150},
    {"max_msgs_per_subject": 2},
    {"retention": "workqueue"},
    {"retention": "interest"},
)


async def random_work(node: LocalNode, rng: random.Random) -> None:
    """Publishes to a few subjects, deletes, purges, deliveries and acks, snapshots in between."""
    stream = node.stream("S")
    assert stream is not None
    machine = stream.machine
    for _ in range(rng.randint(20, 60)):
        what = rng.random()
        index = machine.index
        if what < 0.5:
            msgs = [
                (
                    b"S.%d" % rng.randrange(30),
                    b"",
                    b"%d" % rng.randrange(10**6) * rng.randint(1, 40),
                )
                for _ in range(rng.randint(1, 20))
            ]
            await propose(node, [commands.STORE, 10, msgs])
        elif what < 0.65 and index.count:
            seq = index.live.first_from(rng.randint(index.first_seq, index.last_seq))
            await propose(node, [commands.DELETE_MSG, 11, min(seq, index.last_seq), False])
        elif what < 0.7:
            await propose(node, [commands.PURGE, 12, b"S.%d" % rng.randrange(30), 0, 0])
        elif what < 0.72:
            await propose(node, [commands.PURGE, 12, b"", 0, rng.randint(0, 50)])
        elif what < 0.9:
            left = machine.consumers["C"].num_pending
            count = min(left, rng.randint(1, 15))
            if count:
                await deliver(node, "C", count, acked=rng.randint(0, count))
        else:
            await save(node, "S")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_rebuild_after_any_loss_has_only_right_messages(tmp_path: Path, seed: int) -> None:
    """Random work, a crash, and random losses. Each message that is there is what was stored under
    its seq; each that was there, and of which a whole record is left, is there still; nothing is
    back that was deleted while some state of it is whole, but from the front; no seq is given again
    that is known; consumers stand within the stream; and the next starts need no word."""

    async def main() -> None:
        rng = random.Random(seed)
        node = await started(tmp_path / "work")
        uid = await create(node, **RETENTIONS[seed % len(RETENTIONS)])
        await add_consumer(node, "C")
        await random_work(node, rng)
        await written(node)
        before = picture(node)
        stored = await all_contents(node)
        await copied(node, tmp_path / "work", tmp_path / "image")
        await node.stopped()
        directory = tmp_path / "image" / "streamd" / "streams" / str(uid)
        is_log_gone, is_outline_gone = rng.random() < 0.5, rng.random() < 0.3
        if is_log_gone:
            shutil.rmtree(directory.parents[1] / "wal")
        if is_outline_gone and not is_log_gone:
            (directory / "outline").unlink()
        if rng.random() < 0.8:
            remove(directory, "stream-*.snap")
        held: set[int] = set()
        blocks = sorted(directory.glob("*.blk"), key=lambda path: int(path.stem.strip("r")))
        if len(blocks) > 1 and rng.random() < 0.5:
            victim = rng.choice(blocks[:-1])
            held = set(harvest(victim.read_bytes(), uid, int(victim.stem)).seqs)
            if rng.random() < 0.5:
                victim.unlink()
            else:
                flip(victim, rng.randrange(64, victim.stat().st_size))

        node = await started(directory.parents[2], accepts_loss=True)
        assert not node.failed
        found, now = picture(node), await all_contents(node)
        seqs, then = set(found["live"]), set(before["live"])
        assert all(now[seq] == stored[seq] for seq in seqs & then)
        assert then - held <= seqs
        if not (is_log_gone or is_outline_gone):
            assert max(seqs - then, default=0) < min(then, default=1 << 60)
        assert found["state"]["last_seq"] >= max(then - held, default=0)
        consumer = node.stream("S").machine.consumers.get("C")
        if consumer is not None:
            assert consumer.floor_sseq <= consumer.delivered_sseq
            assert consumer.delivered_sseq <= max(found["state"]["last_seq"], consumer.floor_sseq)
        await propose(node, [commands.STORE, 20, [(b"S.1", b"", b"more")]])
        after = picture(node)
        await node.stopped()
        for _ in range(2):
            node = await started(directory.parents[2])
            assert picture(node) == after
            await node.stopped()

    run(main)


async def all_contents(node: LocalNode) -> dict[int, tuple[bytes, bytes, bytes]]:
    """Subject, headers and payload of every message, by seq."""
    stream = node.stream("S")
    assert stream is not None
    index = stream.machine.index
    told: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    stream.read(list(range(index.first_seq, index.last_seq + 1)), told.set_result)
    return {
        message.seq: (message.subject, message.headers, message.payload)
        for message in await told
        if message is not None
    }


async def features_found_again(
    path: Path, work: Callable[[LocalNode], Coroutine[Any, Any, None]], **config: Any
) -> tuple[Any, Any]:
    """What a snapshot keeps of features, before its snapshots, outline and log are gone, and of the
    stream that was rebuilt from the rest."""
    node = await started(path / "work")
    uid = await create(node, **config)
    await work(node)
    stream = node.stream("S")
    assert stream is not None
    before = stream.machine.content.features_state()
    await save(node, "S")
    meta, saved = node.groups.meta_monitor, asyncio.Event()
    assert meta is not None
    meta.when_saved(node.meta.applied, saved.set)
    await saved.wait()
    await written(node)
    await copied(node, path / "work", path / "image")
    await node.stopped()
    directory = path / "image" / "streamd" / "streams" / str(uid)
    assert list(directory.glob("stream-*.snap"))
    remove(directory, "stream-*.snap", "outline")
    shutil.rmtree(directory.parents[1] / "wal")
    node = await started(path / "image", accepts_loss=True)
    stream = node.stream("S")
    assert stream is not None
    after = stream.machine.content.features_state()
    await node.stopped()
    return before, after


def test_counters_stand_at_what_their_newest_messages_have(tmp_path: Path) -> None:
    async def work(node: LocalNode) -> None:
        head = b"NATS/1.0\r\nNats-Incr: %d\r\n\r\n"
        for number in range(200):
            subject = b"S.%d" % (number % 5)
            await propose(node, [commands.STORE, 20, [(subject, head % number, b"")], 1])
        await propose(node, [commands.PURGE, 20, b"S.4", 0, 0])

    async def main() -> None:
        before, after = await features_found_again(tmp_path, work, allow_msg_counter=True)
        assert len(before["counters"]) == 4
        found = {row[0]: row[2] for row in after["counters"]}
        assert found.items() >= {row[0]: row[2] for row in before["counters"]}.items()

    run(main)


def test_producers_stand_at_their_newest_messages(tmp_path: Path) -> None:
    """What a producer sends again after the rebuild is a duplicate, as before."""

    async def work(node: LocalNode) -> None:
        head = b"NATS/1.0\r\nNats-Producer-Id: p%d\r\nNats-Producer-Seq: %d\r\n"
        head += b"Nats-Producer-Previous: any\r\n\r\n"
        for number in range(1, 120):
            msg = (b"S.x", head % (number % 3, number), b"x" * 50)
            await propose(node, [commands.STORE, 20, [msg], commands.PUBLISH_RULES])

    async def main() -> None:
        before, after = await features_found_again(tmp_path, work)
        assert after["producers"] == before["producers"]
        assert [row[:3] for row in after["producers"]] == [
            [b"p%d" % (number % 3), number, number] for number in (117, 118, 119)
        ]

    run(main)


def test_a_producer_that_began_anew_stands_at_its_newest_message(tmp_path: Path) -> None:
    """Not at its highest number, or messages that come next would be acked and not stored."""

    async def work(node: LocalNode) -> None:
        head = b"NATS/1.0\r\nNats-Producer-Id: p\r\nNats-Producer-Seq: %d\r\n\r\n"
        for ts, numbers in ((20, range(1, 9)), (10**12, range(1, 4))):
            for number in numbers:
                msg = (b"S.x", head % number, b"x")
                await propose(node, [commands.STORE, ts, [msg], commands.PUBLISH_RULES])

    async def main() -> None:
        expiry = {"streamd.producer_expiry": "1m"}
        before, after = await features_found_again(tmp_path, work, metadata=expiry)
        assert after["producers"] == before["producers"]
        assert [row[:3] for row in after["producers"]] == [[b"p", 3, 11]]

    run(main)
