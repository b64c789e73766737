"""Archives under load and in trouble: bounded memory, publishers, lost clients, lost leaders."""

from __future__ import annotations

import asyncio
import json
import os
import time
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js.api import KeyValueConfig

from benchmarks.servers import ServerProcess
from streamd.archives import message_archive
from streamd.archives.archive_reader import ArchiveReader
from streamd.archives.archive_records import ArchivedMessages, ArchivedState, Row
from streamd.archives.s2_frames import S2Writer
from streamd.backup.stream_transfer import Download, TransferError, api_request, upload
from tests.e2e.conftest import MakeCluster, Run, Start
from tests.waiting import until_told

pytestmark = pytest.mark.slow

SECOND = 1_000_000_000
WITHIN_S = 45.0


async def is_free(nc: Client, stream: str, **fields: Any) -> bool:
    """True once nothing is left of a stream: its name can be taken, and is given back."""
    try:
        await api_request(nc, f"STREAM.CREATE.{stream}", config_of(stream, **fields))
    except TransferError as err:
        assert "10058" in str(err) or "10008" in str(err) or "no answer" in str(err), err
        return False
    await api_request(nc, f"STREAM.DELETE.{stream}")
    return True


def config_of(stream: str, **fields: Any) -> dict[str, Any]:
    return {"name": stream, "subjects": [f"{stream}.>"], "storage": "file",
            "retention": "limits", "num_replicas": 1} | fields  # fmt: skip


def archive_of(rows: list[Row], consumers: int = 0, **state: Any) -> bytes:
    """An archive as nats-server writes it."""
    first, last = (rows[0][0], rows[-1][0]) if rows else (1, 0)
    head = {"messages": len(rows), "bytes": 1, "first_seq": first, "last_seq": last}
    head |= {"consumer_count": consumers} | state
    frames = S2Writer()
    plain = message_archive.begin(head, 1) + message_archive.encode_messages(rows)
    return frames.write(plain + message_archive.end()) + frames.finish()


async def restore(nc: Client, config: dict[str, Any], blob: bytes) -> dict[str, Any]:
    async def pieces() -> AsyncIterator[bytes]:
        yield blob

    return await upload(nc, config, {}, pieces())


def read(blob: bytes) -> tuple[ArchivedState, list[Row]]:
    reader = ArchiveReader()
    records = [*reader.feed(blob), *reader.finish()]
    (state,) = [each for each in records if isinstance(each, ArchivedState)]
    rows = [row for each in records if isinstance(each, ArchivedMessages) for row in each.rows]
    return state, rows


# --- memory -------------------------------------------------------------------------------------


@pytest.mark.timeout(600)
def test_memory_of_the_server_stays_bounded_both_ways(
    server: ServerProcess, tmp_path: Path
) -> None:
    """300 MiB that do not compress, out to a file and in again."""
    size, count = 100_000, 3_150
    path = tmp_path / "archive"

    async def fill(nc: Client) -> None:
        js = nc.jetstream()
        await js.add_stream(name="BIG", subjects=["big.>"])
        for at in range(0, count, 50):
            acks = [
                asyncio.ensure_future(js.publish(f"big.{one}", os.urandom(size), timeout=60))
                for one in range(at, min(at + 50, count))
            ]
            await asyncio.wait(acks)

    async def out(nc: Client) -> dict[str, Any]:
        download = Download(nc, "BIG")
        begun = await download.begin()
        with path.open("wb") as file:
            async for chunk in download.chunks():
                file.write(chunk)
        return begun

    async def back(nc: Client, begun: dict[str, Any]) -> dict[str, Any]:
        async def pieces() -> AsyncIterator[bytes]:
            with path.open("rb") as file:
                while piece := file.read(1 << 20):
                    yield piece

        return await upload(nc, begun["config"], begun["state"], pieces())

    async def main() -> None:
        nc = await nats.connect(server.url)
        await fill(nc)
        before, _ = server.memory_mb()
        Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # the peak from here on
        begun = await out(nc)
        _, peak_out = server.memory_mb()
        assert path.stat().st_size > size * count
        await api_request(nc, "STREAM.DELETE.BIG")
        before_back, _ = server.memory_mb()
        Path(f"/proc/{server.pid}/clear_refs").write_text("5")
        info = await back(nc, begun)
        _, peak_back = server.memory_mb()
        print(f"out {before:.0f} -> {peak_out:.0f} MiB, back {before_back:.0f} -> {peak_back:.0f}")
        assert info["state"]["messages"] == count
        assert peak_out - before < 64
        assert peak_back - min(before, before_back) < 64
        await nc.close()

    asyncio.run(asyncio.wait_for(main(), 500))


# --- one moment -----------------------------------------------------------------------------------


def test_an_archive_is_of_one_moment_whatever_happens_meanwhile(
    server: ServerProcess, run: Run
) -> None:
    """While a slow client takes it: publishes, deletions, a purge, consumers that come and go."""

    async def main() -> None:
        nc = await nats.connect(server.url)
        js = nc.jetstream()
        await js.add_stream(name="M", subjects=["m.>"])
        for at in range(4000):
            await nc.publish(f"m.{at % 5}", os.urandom(3000))
        await api_request(nc, "STREAM.INFO.M")
        for seq in range(10, 3000, 7):
            await nc.publish("$JS.API.STREAM.MSG.DELETE.M", json.dumps({"seq": seq}).encode())
            await nc.publish("$JS.API.STREAM.MSG.DELETE.M", b"")
        await nc.request("$JS.API.STREAM.MSG.DELETE.M", b'{"seq":3}', timeout=10)
        before = await api_request(nc, "STREAM.INFO.M", {"deleted_details": True})
        download = Download(nc, "M")
        begun = await download.begin(chunk_bytes=64 * 1024, window_bytes=128 * 1024)
        assert begun["state"] == {k: v for k, v in before["state"].items() if k != "deleted"}
        chunks = download.chunks()
        pieces = [await anext(chunks)]
        await api_request(nc, "STREAM.PURGE.M", {"filter": "m.1"})
        for _ in range(3000):
            await nc.publish("m.new", os.urandom(3000))
        await api_request(nc, "STREAM.PURGE.M", {"keep": 10})
        pieces += [chunk async for chunk in chunks]
        state, rows = read(b"".join(pieces))
        deleted = set(before["state"].get("deleted") or ())
        first, last = before["state"]["first_seq"], before["state"]["last_seq"]
        assert [row[0] for row in rows] == [
            seq for seq in range(first, last + 1) if seq not in deleted
        ]
        assert state.message_count == len(rows) and state.last_seq == last
        assert all(len(row[4]) == 3000 for row in rows)
        await nc.close()

    run(main())


# --- what a restored stream is --------------------------------------------------------------------


def test_limits_times_and_ids_hold_of_what_is_restored(server: ServerProcess, run: Run) -> None:
    """The config of the request: limits, age, TTL, sealed, memory, duplicate ids, roll-ups."""

    async def main() -> None:
        nc = await nats.connect(server.url)
        now = time.time_ns()
        rows: list[Row] = [
            (seq, now - (60 - seq) * SECOND, b"%b.%d" % (b"L", seq % 3), b"", b"x" * 100)
            for seq in range(5, 45)
        ]

        async def restored(**fields: Any) -> dict[str, Any]:
            info = await restore(nc, config_of("L", **fields), archive_of(rows))
            await api_request(nc, "STREAM.DELETE.L")
            assert "did_create" not in info and "restoring" not in info["config"]
            state: dict[str, Any] = info["state"]
            return state

        assert (await restored())["messages"] == 40
        found = await restored(max_msgs=7)
        assert (found["messages"], found["first_seq"], found["last_seq"]) == (7, 38, 44)
        assert (await restored(max_msgs_per_subject=2))["messages"] == 6
        found = await restored(max_age=35 * SECOND, duplicate_window=SECOND)
        assert 0 < found["messages"] <= 20 and found["last_seq"] == 44
        assert (await restored(max_age=SECOND, duplicate_window=SECOND))["messages"] == 0
        assert (await restored(discard="new", max_msgs=3))["messages"] == 40
        assert (await restored(retention="interest"))["messages"] == 40
        assert (await restored(storage="memory"))["messages"] == 40
        assert (await restored(sealed=True))["messages"] == 40
        assert (await restored(compression="s2"))["messages"] == 40
        with pytest.raises(TransferError, match="maximum message size"):
            await restored(max_msg_size=50)

        block = b"NATS/1.0\r\nNats-TTL: %b\r\nNats-Msg-Id: %b\r\n\r\n"
        rows[:] = [
            (1, now - 60 * SECOND, b"L.a", block % (b"30s", b"a"), b""),
            (2, now - 60 * SECOND, b"L.b", block % (b"1h", b"b"), b""),
            (3, now - 60 * SECOND, b"L.c", block % (b"never", b"c"), b""),
        ]
        fields = {"allow_msg_ttl": True, "max_age": 50 * SECOND, "duplicate_window": 50 * SECOND}
        found = await restored(**fields)
        assert (found["messages"], found["first_seq"], found["last_seq"]) == (1, 3, 3)
        found = await restored(allow_msg_ttl=True)
        assert (found["messages"], found["first_seq"]) == (2, 2)
        await restore(nc, config_of("L", allow_msg_ttl=True), archive_of(rows))
        answer = await nc.request("L.b", b"again", headers={"Nats-Msg-Id": "b"}, timeout=10)
        assert json.loads(answer.data) == {"stream": "L", "seq": 2, "duplicate": True}
        await api_request(nc, "STREAM.DELETE.L")

        found = await restore(nc, config_of("L"), archive_of([], first_seq=500, last_seq=499))
        assert (found["state"]["first_seq"], found["state"]["last_seq"]) == (500, 499)
        await nc.close()

    run(main())


def test_buckets_of_keys_and_of_objects_come_back(server: ServerProcess, run: Run) -> None:
    async def main() -> None:
        nc = await nats.connect(server.url)
        js = nc.jetstream()
        kv = await js.create_key_value(KeyValueConfig(bucket="b", history=5))
        for at in range(20):
            await kv.put(f"k{at % 6}", b"v%d" % at)
        await kv.delete("k3")
        store = await js.create_object_store("o")
        await store.put("large", os.urandom(400_000))
        wanted = (await store.get("large")).data
        for stream in ("KV_b", "OBJ_o"):
            download = Download(nc, stream)
            begun = await download.begin()
            blob = b"".join([chunk async for chunk in download.chunks()])
            await api_request(nc, f"STREAM.DELETE.{stream}")
            await restore(nc, begun["config"], blob)
        kv = await js.key_value("b")
        assert [(await kv.get("k5")).value, (await kv.get("k5")).revision] == [b"v17", 18]
        assert len(await kv.history("k0")) == 4
        assert sorted(await kv.keys()) == ["k0", "k1", "k2", "k4", "k5"]
        assert (await (await js.object_store("o")).get("large")).data == wanted
        await nc.close()

    run(main())


async def taken(nc: Client, stream: str) -> tuple[dict[str, Any], bytes]:
    """A stream's archive; the stream is deleted."""
    download = Download(nc, stream)
    begun = await download.begin()
    blob = b"".join([chunk async for chunk in download.chunks()])
    await api_request(nc, f"STREAM.DELETE.{stream}")
    return begun["config"], blob


def test_counters_schedules_and_copies_go_on_where_they_were(
    server: ServerProcess, run: Run
) -> None:
    """A counter its total, a schedule its time, a mirror and a source their origin's position."""

    async def main() -> None:
        nc = await nats.connect(server.url)

        async def make(stream: str, **fields: Any) -> None:
            await api_request(nc, f"STREAM.CREATE.{stream}", config_of(stream, **fields))

        async def last(stream: str) -> int:
            info = await api_request(nc, f"STREAM.INFO.{stream}")
            return int(info["state"]["messages"])

        await make("CNT", allow_msg_counter=True)
        await nc.request("CNT.x", b"", headers={"Nats-Incr": "5"}, timeout=10)
        await restore(nc, *await taken(nc, "CNT"))
        answer = await nc.request("CNT.x", b"", headers={"Nats-Incr": "2"}, timeout=10)
        assert json.loads(answer.data)["val"] == "7"

        await make("SCH", allow_msg_schedules=True)
        due = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3))
        headers = {"Nats-Schedule": f"@at {due}", "Nats-Schedule-Target": "SCH.out"}
        answer = await nc.request("SCH.plan", b"body", headers=headers, timeout=10)
        assert "error" not in json.loads(answer.data)
        await restore(nc, *await taken(nc, "SCH"))

        async def has_fired() -> bool:
            wanted = {"last_by_subj": "SCH.out"}
            try:
                await api_request(nc, "STREAM.MSG.GET.SCH", wanted)
            except TransferError:
                return False
            return True

        await until_told(has_fired, "the schedule never came")

        await make("ORG")
        for at in range(10):
            await nc.request(f"ORG.{at}", b"%d" % at, timeout=10)
        mirror = config_of("MIR", subjects=None, mirror={"name": "ORG"})
        source = config_of("SRC", subjects=None, sources=[{"name": "ORG"}])
        for config in (mirror, source):
            config.pop("subjects")
            await api_request(nc, f"STREAM.CREATE.{config['name']}", config)

        async def have(count: int) -> bool:
            return [await last("MIR"), await last("SRC")] == [count, count]

        await until_told(lambda: have(10), "nothing was copied")
        archives = [await taken(nc, stream) for stream in ("MIR", "SRC")]
        for at in range(10, 15):
            await nc.request(f"ORG.{at}", b"%d" % at, timeout=10)
        for config, blob in archives:
            await restore(nc, config, blob)
        await until_told(lambda: have(15), "copying did not go on")
        for stream in ("MIR", "SRC"):
            bodies = []
            for seq in range(1, 16):
                found = await api_request(nc, f"STREAM.MSG.GET.{stream}", {"seq": seq})
                bodies.append(found["message"]["subject"])
            assert bodies == [f"ORG.{at}" for at in range(15)]
        await nc.close()

    run(main())


# --- trouble --------------------------------------------------------------------------------------


def test_an_upload_that_ends_too_early_leaves_nothing(make_server: Start, run: Run) -> None:
    """Damaged, cut off, without a client, over a kill: nobody ever sees the stream."""
    rows: list[Row] = [(seq, seq, b"U.a", b"", os.urandom(5000)) for seq in range(1, 400)]
    blob = archive_of(rows)
    server = make_server()
    server.start()

    async def half(nc: Client) -> str:
        begun = await api_request(nc, "STREAM.RESTORE.U", {"config": config_of("U")})
        subject: str = begun["deliver_subject"]
        answer = await nc.request(subject, blob[: len(blob) // 2], timeout=20)
        assert answer.data == b""
        return subject

    async def damaged() -> None:
        nc = await nats.connect(server.url)
        changed = bytearray(blob)
        changed[len(blob) // 2] ^= 1
        with pytest.raises(TransferError, match="10062"):
            await restore(nc, config_of("U"), bytes(changed))
        with pytest.raises(TransferError, match="10062"):
            await restore(nc, config_of("U"), blob[:-3])
        with pytest.raises(TransferError, match="10062"):
            await restore(nc, config_of("U"), b"")
        assert (await api_request(nc, "STREAM.NAMES"))["streams"] is None
        # While it is under way it is no stream, but its name and its subjects are taken.
        await half(nc)
        for subject in ("STREAM.INFO.U", "CONSUMER.NAMES.U", "STREAM.PURGE.U"):
            with pytest.raises(TransferError, match="10059"):
                await api_request(nc, subject)
        assert (await api_request(nc, "STREAM.NAMES"))["streams"] is None
        with pytest.raises(nats.errors.NoRespondersError):
            await nc.request("U.a", b"x", timeout=30)
        for other in ("U", "V"):
            with pytest.raises(TransferError, match=r"10058|10065"):
                wanted = config_of(other, subjects=["U.>"])
                await api_request(nc, f"STREAM.CREATE.{other}", wanted)
        await until_told(lambda: is_free(nc, "U"), "it was never taken away")
        await nc.close()

    async def killed() -> None:
        nc = await nats.connect(server.url)
        await half(nc)
        await api_request(nc, "STREAM.DELETE.U")  # an operator may
        assert await is_free(nc, "U")
        await half(nc)
        await nc.close()
        server.kill()
        server.start()
        nc = await nats.connect(server.url)
        await until_told(lambda: is_free(nc, "U"), "it outlived the server")
        assert (await restore(nc, config_of("U"), blob))["state"]["messages"] == len(rows)
        server.kill()
        server.start()
        await until_told(lambda: is_answering(nc), "no answer")
        assert (await api_request(nc, "STREAM.INFO.U"))["state"]["messages"] == len(rows)
        await nc.close()

    run(damaged())
    run(killed())


async def is_answering(nc: Client) -> bool:
    try:
        await api_request(nc, "INFO")
    except TransferError:
        return False
    return True


def test_archives_of_an_encrypted_store_are_plain(make_server: Start, run: Run) -> None:
    """Archives restore wherever they are taken; what comes in is encrypted as all else, and no page
    shows the key."""
    secret, key = b"the cardinal's letters", b"hush, and not a word"
    server = make_server(jetstream=f'  key: "{key.decode()}"\n')
    server.start()

    def is_readable() -> bool:
        files = [path for path in server.store_dir.rglob("*") if path.is_file()]
        assert len(files) > 5
        return any(secret in path.read_bytes() for path in files)

    async def main() -> None:
        nc = await nats.connect(server.url)
        js = nc.jetstream()
        await js.add_stream(name="ENC", subjects=["ENC.>"])
        await js.publish("ENC.a", secret)
        download = Download(nc, "ENC")
        begun = await download.begin()
        blob = b"".join([chunk async for chunk in download.chunks()])
        assert [row[4] for row in read(blob)[1]] == [secret]
        await api_request(nc, "STREAM.DELETE.ENC")
        await restore(nc, begun["config"], blob)
        assert (await js.get_msg("ENC", 1)).data == secret
        for path in ("varz", "jsz?accounts=1&streams=1&config=1"):
            url = f"http://127.0.0.1:{server.http_port}/{path}"
            with urllib.request.urlopen(url, timeout=30) as answer:
                assert key not in answer.read()
        await nc.close()

    run(main())
    server.stop()
    assert not is_readable()


def test_a_client_that_does_not_ack_is_left(server: ServerProcess, run: Run) -> None:
    """408, and why; the same where nobody listens any more; then blocks are free to go again."""

    async def main() -> None:
        nc = await nats.connect(server.url)
        js = nc.jetstream()
        await js.add_stream(name="F", subjects=["f"])
        for _ in range(50):
            await js.publish("f", os.urandom(20_000))
        sub = await nc.subscribe("archive.here")
        wanted = {"deliver_subject": "archive.here", "chunk_size": 65536, "window_size": 131072}
        await api_request(nc, "STREAM.SNAPSHOT.F", wanted)
        got = [await sub.next_msg(timeout=20) for _ in range(3)]
        assert [len(msg.data) for msg in got] == [65536, 65536, 0]
        assert got[0].reply.startswith("$JS.SNAPSHOT.ACK.F.") and got[0].reply.endswith(".65536.1")
        assert got[2].headers == {"Status": "408", "Description": "No Flow Response"}
        await nc.close()

    run(main())


def test_a_client_that_goes_away_ends_its_archive(server: ServerProcess, run: Run) -> None:
    """In the middle of it: nothing more is sent, and the advisory says why."""

    async def main() -> None:
        nc = await nats.connect(server.url)
        js = nc.jetstream()
        told = await nc.subscribe("$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.G")
        await js.add_stream(name="G", subjects=["g"])
        for _ in range(50):
            await js.publish("g", os.urandom(20_000))
        sub = await nc.subscribe("archive.gone")
        wanted = {"deliver_subject": "archive.gone", "chunk_size": 65536, "window_size": 65536}
        await api_request(nc, "STREAM.SNAPSHOT.G", wanted)
        await sub.next_msg(timeout=20)  # the next chunk would come with its ack
        await sub.unsubscribe()
        advisory = json.loads((await told.next_msg(timeout=20)).data)
        assert (advisory["stream"], advisory["error"]) == ("G", "no interest")
        again = Download(nc, "G")
        await again.begin()
        assert sum([len(chunk) async for chunk in again.chunks()]) > 1_000_000
        await nc.close()

    run(main())


def test_consumers_of_an_archive_are_held_to_the_limits(make_server: Start, run: Run) -> None:
    """Limits of the stream and of its account, on bytes too: nothing is there then. Fields of a
    consumer that a later release has are passed over."""
    accounts = """accounts { A { jetstream: {max_store: 8192, max_consumers: 2}
                                users: [{user: A, password: A}] } }"""
    server = make_server(extra=accounts)
    server.launch()
    server.wait_for_log("Server is ready")
    row: Row = (1, 1_700_000_000_000_000_000, b"L.a", b"", b"x" * 4000)

    def archived(consumer_count: int, *rows: Row) -> bytes:
        start = {"consumer_seq": 0, "stream_seq": 0}
        state = {"delivered": start, "ack_floor": start}
        consumers: list[Row] = []
        for at in range(consumer_count):
            config = {"durable_name": f"c{at}", "ack_policy": "explicit", "of_later": True}
            body = json.dumps({"config": config, "state": state}).encode()
            consumers.append((0, 1, b"consumers/c%d" % at, b"", body))
        state = {"first_seq": 1, "last_seq": len(rows), "messages": len(rows)}
        return archive_of([*consumers, *rows], consumers=consumer_count, **state)

    async def main() -> None:
        nc = await nats.connect(server.url, user="A", password="A")

        async def refused(blob: bytes, **fields: Any) -> str:
            with pytest.raises(TransferError) as caught:
                await restore(nc, config_of("L", **fields), blob)
            assert (await api_request(nc, "STREAM.NAMES"))["streams"] is None
            return str(caught.value)

        too_many = 'failed to add consumer "c{}": maximum consumers limit reached (10026)'
        assert too_many.format(1) in await refused(archived(2, row), max_consumers=1)
        assert too_many.format(2) in await refused(archived(3, row))
        several = "multiple non-filtered consumers not allowed on workqueue stream (10099)"
        assert several in await refused(archived(2, row), retention="workqueue")
        rows = [(seq, *row[1:]) for seq in (1, 2, 3)]
        assert "insufficient storage resources" in await refused(archived(0, *rows))
        info = await restore(nc, config_of("L"), archived(2, *rows[:2]))
        assert info["state"]["messages"] == info["state"]["consumer_count"] == 2
        await nc.close()

    run(main())


def test_advisories_tell_of_snapshots_and_restores(server: ServerProcess, run: Run) -> None:
    """All four, each with the stream and the client."""

    async def main() -> None:
        nc = await nats.connect(server.url, name="backup")
        js = nc.jetstream()
        sub = await nc.subscribe("$JS.EVENT.ADVISORY.STREAM.*.ADV")
        await js.add_stream(name="ADV", subjects=["adv"])
        await js.publish("adv", b"x")
        download = Download(nc, "ADV")
        begun = await download.begin()
        blob = b"".join([chunk async for chunk in download.chunks()])
        await api_request(nc, "STREAM.DELETE.ADV")
        await restore(nc, begun["config"], blob)
        kinds: dict[str, Any] = {}
        while "restore_complete" not in kinds:
            advisory = json.loads((await sub.next_msg(timeout=10)).data)
            kinds[advisory["type"].rpartition(".")[2]] = advisory
        for kind in ("snapshot_create", "snapshot_complete", "restore_create", "restore_complete"):
            assert kinds[kind]["stream"] == "ADV" and kinds[kind]["client"]["name"] == "backup"
        assert kinds["restore_complete"]["bytes"] == len(blob)
        assert kinds["snapshot_create"]["state"]["messages"] == 1
        await nc.close()

    run(main())


@pytest.mark.timeout(300)
def test_a_leader_that_is_lost_takes_the_upload_with_it(make_cluster: MakeCluster) -> None:
    """Three replicas: killed in the middle of an upload, its leader is not missed. The client
    hears no more, nothing is left, and the next try succeeds, on all replicas alike."""
    cluster = make_cluster()
    rows: list[Row] = [(seq, seq, b"K.a", b"", os.urandom(20_000)) for seq in range(1, 90)]
    blob = archive_of(rows)
    config = config_of("K", num_replicas=3)

    async def main() -> None:
        nc = await nats.connect(cluster.urls[0])
        begun = await api_request(nc, "STREAM.RESTORE.K", {"config": config})
        await nc.request(begun["deliver_subject"], blob[: len(blob) // 2], timeout=30)
        leader = cluster.leader("K")
        await nc.close()
        cluster.kill(leader)
        other = next(node for name, node in cluster.nodes.items() if name != leader)
        nc = await nats.connect(other.url)
        await until_told(lambda: is_free(nc, "K", num_replicas=1), "it outlived its upload")
        cluster.nodes[leader].start()
        cluster.wait_healthy(cluster.nodes[leader])
        info = await restore(nc, config, blob)
        assert info["state"]["messages"] == len(rows)
        cluster.wait_until(lambda: cluster.is_whole("K"), "the replicas are not alike")
        await nc.close()

    asyncio.run(asyncio.wait_for(main(), 250))
