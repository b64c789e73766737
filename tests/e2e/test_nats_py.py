"""What nats-py's users do: JetStream, key-value, object store, all through the library."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import nats
import pytest
from nats.errors import TimeoutError as NatsTimeout
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    KeyValueConfig,
    RetentionPolicy,
    StreamConfig,
)
from nats.js.errors import (
    APIError,
    BadRequestError,
    KeyDeletedError,
    KeyNotFoundError,
    KeyWrongLastSequenceError,
    NotFoundError,
)

from benchmarks.servers import ServerProcess
from tests.e2e.conftest import Run
from tests.wire import ANSWERED_WITHIN_S

pytestmark = pytest.mark.slow

ACK_WAIT_S = 2.0  # long enough to nak and to ack in it


@asynccontextmanager
async def client(server: ServerProcess, **options):
    connection = await nats.connect(server.url, connect_timeout=ANSWERED_WITHIN_S, **options)
    try:
        yield connection
    finally:
        await connection.close()


def test_core_request_reply_and_queue(server: ServerProcess, run: Run) -> None:
    """Requests are answered, queue members share, no responders is told at once."""

    async def body() -> None:
        async with client(server) as nc, client(server) as other:

            async def answer(msg) -> None:
                await msg.respond(b"to " + msg.data)

            await other.subscribe("service", queue="q", cb=answer)
            await other.subscribe("service", queue="q", cb=answer)
            await other.flush()
            for number in range(50):
                found = await nc.request("service", b"%d" % number, timeout=ANSWERED_WITHIN_S)
                assert found.data == b"to %d" % number
            with pytest.raises(nats.errors.NoRespondersError):
                await nc.request("nobody", b"", timeout=ANSWERED_WITHIN_S)

    run(body())


def test_publish_and_fetch(server: ServerProcess, run: Run) -> None:
    """A durable pull consumer reads all messages once, in order, with headers."""

    async def body() -> None:
        async with client(server) as nc:
            js = nc.jetstream()
            await js.add_stream(name="ORDERS", subjects=["orders.>"])
            for number in range(100):
                ack = await js.publish(f"orders.{number % 3}", b"%d" % number, headers={"N": "1"})
                assert (ack.stream, ack.seq) == ("ORDERS", number + 1)
            puller = await js.pull_subscribe("orders.>", durable="reader")
            got = []
            while len(got) < 100:
                for msg in await puller.fetch(30, timeout=ANSWERED_WITHIN_S):
                    got.append(int(msg.data))
                    assert msg.headers == {"N": "1"}
                    await msg.ack_sync()
            assert got == list(range(100))
            info = await puller.consumer_info()
            assert (info.num_pending, info.num_ack_pending) == (0, 0)
            assert info.ack_floor.stream_seq == 100
            with pytest.raises(NatsTimeout):
                await puller.fetch(1, timeout=0.2)

    run(body())


def test_push_consumer_and_redelivery(server: ServerProcess, run: Run) -> None:
    """An unacked message of a push consumer comes again; a nak brings it at once."""

    async def body() -> None:
        async with client(server) as nc:
            js = nc.jetstream()
            await js.add_stream(name="S", subjects=["s"])
            await js.publish("s", b"one")
            config = ConsumerConfig(ack_wait=ACK_WAIT_S, max_deliver=5)
            sub = await js.subscribe("s", durable="push", config=config, manual_ack=True)
            first = await sub.next_msg(timeout=ANSWERED_WITHIN_S)
            assert first.metadata.num_delivered == 1
            second = await sub.next_msg(timeout=ANSWERED_WITHIN_S)
            assert second.metadata.num_delivered == 2
            await second.nak()
            third = await sub.next_msg(timeout=ANSWERED_WITHIN_S)
            assert third.metadata.num_delivered == 3
            await third.ack_sync()
            info = await sub.consumer_info()
            assert (info.num_ack_pending, info.num_redelivered, info.num_pending) == (0, 0, 0)
            with pytest.raises(NatsTimeout):
                await sub.next_msg(timeout=1.5 * ACK_WAIT_S)

    run(body())


def test_queue_push_consumer(server: ServerProcess, run: Run) -> None:
    """Members of a deliver group share the messages."""

    async def body() -> None:
        async with client(server) as nc:
            js = nc.jetstream()
            await js.add_stream(name="S", subjects=["s"])
            seen: dict[str, int] = {"a": 0, "b": 0}

            def member(name: str):
                async def on_message(msg) -> None:
                    seen[name] += 1
                    await msg.ack()

                return on_message

            await js.subscribe("s", queue="workers", cb=member("a"))
            await js.subscribe("s", queue="workers", cb=member("b"))
            for _ in range(60):
                await js.publish("s", b"x")
            async with asyncio.timeout(ANSWERED_WITHIN_S):
                while sum(seen.values()) < 60:
                    await asyncio.sleep(0.01)
            assert sum(seen.values()) == 60
            assert min(seen.values()) > 0

    run(body())


def test_ordered_consumer(server: ServerProcess, run: Run) -> None:
    """Replay of what is stored, then what arrives, without gap or repeat."""

    async def body() -> None:
        async with client(server) as nc, client(server) as writer:
            js, out = nc.jetstream(), writer.jetstream()
            await js.add_stream(name="S", subjects=["s"])
            for number in range(500):
                await out.publish("s", b"%d" % number)
            sub = await js.subscribe("s", ordered_consumer=True)

            async def more() -> None:
                for number in range(500, 1000):
                    await out.publish("s", b"%d" % number)

            async with asyncio.TaskGroup() as group:
                group.create_task(more())
                got = [
                    int((await sub.next_msg(timeout=ANSWERED_WITHIN_S)).data) for _ in range(1000)
                ]
            assert got == list(range(1000))

    run(body())


def test_dedupe_and_expectations(server: ServerProcess, run: Run) -> None:
    """A message id counts once; a wrong expected sequence is refused."""

    async def body() -> None:
        async with client(server) as nc:
            js = nc.jetstream()
            await js.add_stream(name="S", subjects=["s"])
            first = await js.publish("s", b"x", headers={"Nats-Msg-Id": "1"})
            again = await js.publish("s", b"x", headers={"Nats-Msg-Id": "1"})
            assert (first.seq, first.duplicate, again.seq, again.duplicate) == (1, None, 1, True)
            with pytest.raises(BadRequestError) as wrong:
                await js.publish("s", b"x", headers={"Nats-Expected-Last-Sequence": "7"})
            assert wrong.value.err_code == 10071

    run(body())


def test_limits_and_purge(server: ServerProcess, run: Run) -> None:
    """Discard old drops the oldest, discard new refuses, purge empties."""

    async def body() -> None:
        async with client(server) as nc:
            js = nc.jetstream()
            await js.add_stream(name="OLD", subjects=["old"], max_msgs=10)
            config = StreamConfig(
                name="NEW", subjects=["new"], max_msgs=10, discard=DiscardPolicy.NEW
            )
            await js.add_stream(config)
            for _ in range(10):
                await js.publish("old", b"x")
                await js.publish("new", b"x")
            await js.publish("old", b"x")
            state = (await js.stream_info("OLD")).state
            assert (state.messages, state.first_seq, state.last_seq) == (10, 2, 11)
            with pytest.raises(APIError) as full:
                await js.publish("new", b"x")
            assert full.value.err_code == 10077
            await js.purge_stream("OLD")
            assert (await js.stream_info("OLD")).state.messages == 0
            assert await js.delete_stream("OLD")
            with pytest.raises(NotFoundError):
                await js.stream_info("OLD")

    run(body())


def test_workqueue(server: ServerProcess, run: Run) -> None:
    """Acked messages leave a work queue."""

    async def body() -> None:
        async with client(server) as nc:
            js = nc.jetstream()
            config = StreamConfig(name="W", subjects=["w"], retention=RetentionPolicy.WORK_QUEUE)
            await js.add_stream(config)
            for _ in range(20):
                await js.publish("w", b"x")
            puller = await js.pull_subscribe("w", durable="worker")
            for msg in await puller.fetch(20, timeout=ANSWERED_WITHIN_S):
                await msg.ack_sync()
            assert (await js.stream_info("W")).state.messages == 0

    run(body())


def test_deliver_policies(server: ServerProcess, run: Run) -> None:
    """last, new, by_start_sequence, last_per_subject begin where they say."""

    async def body() -> None:
        async with client(server) as nc:
            js = nc.jetstream()
            await js.add_stream(name="S", subjects=["s.>"])
            for number in range(9):
                await js.publish(f"s.{number % 3}", b"%d" % number)
            wanted = {
                "last": (ConsumerConfig(deliver_policy=DeliverPolicy.LAST), [8]),
                "start": (
                    ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=7),
                    [6, 7, 8],
                ),
                "per_subject": (
                    ConsumerConfig(deliver_policy=DeliverPolicy.LAST_PER_SUBJECT),
                    [6, 7, 8],
                ),
            }
            for name, (config, expected) in wanted.items():
                config.ack_policy = AckPolicy.EXPLICIT
                puller = await js.pull_subscribe("s.>", durable=name, config=config)
                got = [
                    int(msg.data)
                    for msg in await puller.fetch(len(expected), timeout=ANSWERED_WITHIN_S)
                ]
                assert got == expected, name

    run(body())


def test_key_value(server: ServerProcess, run: Run) -> None:
    """Put, get, history, update with revision, delete, purge, keys, watch."""

    async def body() -> None:
        async with client(server) as nc:
            js = nc.jetstream()
            kv = await js.create_key_value(KeyValueConfig(bucket="B", history=5))
            first = await kv.put("a", b"1")
            assert first == 1
            second = await kv.update("a", b"2", last=first)
            with pytest.raises(KeyWrongLastSequenceError):
                await kv.update("a", b"3", last=first)
            with pytest.raises(KeyWrongLastSequenceError):
                await kv.create("a", b"4")
            entry = await kv.get("a")
            assert (entry.value, entry.revision) == (b"2", second)
            assert (await kv.get("a", revision=first)).value == b"1"
            await kv.create("b", b"x")
            assert sorted(await kv.keys()) == ["a", "b"]
            assert [each.value for each in await kv.history("a")] == [b"1", b"2"]
            watcher = await kv.watchall()
            seen = {(await watcher.updates(timeout=ANSWERED_WITHIN_S)).key for _ in range(2)}
            assert seen == {"a", "b"}
            assert await watcher.updates(timeout=ANSWERED_WITHIN_S) is None
            await kv.put("c", b"new")
            assert (await watcher.updates(timeout=ANSWERED_WITHIN_S)).key == "c"
            await watcher.stop()
            await kv.delete("a")
            with pytest.raises((KeyDeletedError, KeyNotFoundError)):
                await kv.get("a")
            await kv.purge("b")
            with pytest.raises((KeyDeletedError, KeyNotFoundError)):
                await kv.get("b")
            with pytest.raises(KeyNotFoundError):
                await kv.get("zzz")
            assert (await kv.status()).bucket == "B"
            assert await js.delete_key_value("B")

    run(body())


def test_object_store(server: ServerProcess, run: Run) -> None:
    """A large object survives the way in and out; list, info, delete."""

    async def body() -> None:
        async with client(server) as nc:
            js = nc.jetstream()
            store = await js.create_object_store(bucket="FILES")
            body = bytes(range(256)) * 4000
            await store.put("big", body)
            found = await store.get("big")
            assert found.data == body
            await store.put("small", b"s")
            assert sorted(each.name for each in await store.list()) == ["big", "small"]
            info = await store.get_info("big")
            assert info.size == len(body)
            await store.delete("big")
            with pytest.raises(NotFoundError):
                await store.get("big")
            assert await js.delete_object_store("FILES")

    run(body())


def test_many_async_publishes(server: ServerProcess, run: Run) -> None:
    """A window of unacked publishes from several connections: all acked, all there, once."""

    async def body() -> None:
        async with client(server) as nc:
            await nc.jetstream().add_stream(name="S", subjects=["s.>"])

            async def writer(number: int) -> set[int]:
                async with client(server) as own:
                    js = own.jetstream()
                    waiting = [
                        await js.publish_async(f"s.{number}", b"%d" % each) for each in range(1000)
                    ]
                    return {(await ack).seq for ack in waiting}

            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(writer(number)) for number in range(4)]
            seqs = set().union(*(task.result() for task in tasks))
            assert seqs == set(range(1, 4001))

    run(body())
