"""Archives go both ways: of nats-server to streamd, of streamd to nats-server, and each to itself.

Compared are the messages with sequences, times and headers, the deleted ones, and the consumers.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client

from benchmarks.servers import ServerProcess
from streamd.archives import message_archive
from streamd.archives.archive_records import Row
from streamd.archives.s2_frames import S2Writer
from streamd.backup.stream_transfer import Download, TransferError, upload
from tests.unit.test_archive_formats import CONFIG, RECORD, tar_of
from tests.waiting import until
from tests.wire import Wire

pytestmark = pytest.mark.slow

WAYS = [("ours", "peer"), ("peer", "ours"), ("ours", "ours"), ("peer", "peer")]


async def publish(nc: Client, subject: str, body: bytes, **headers: str) -> None:
    answer = await nc.request(subject, body, timeout=10, headers=headers or None)
    assert b"error" not in answer.data, answer.data


async def api(nc: Client, subject: str, body: Any = None) -> dict[str, Any]:
    payload = json.dumps(body).encode() if body is not None else b""
    answer = await nc.request(f"$JS.API.{subject}", payload, timeout=30)
    return json.loads(answer.data)


async def archive(nc: Client, stream: str, **options: Any) -> tuple[dict[str, Any], bytes]:
    download = Download(nc, stream)
    begun = await download.begin(**options)
    return begun, b"".join([chunk async for chunk in download.chunks()])


async def restore(nc: Client, begun: dict[str, Any], blob: bytes) -> dict[str, Any]:
    async def pieces() -> AsyncIterator[bytes]:
        for at in range(0, len(blob), 50_000):
            yield blob[at : at + 50_000]

    return await upload(nc, begun["config"], begun["state"], pieces())


async def content(nc: Client, stream: str) -> list[Any]:
    """All messages as MSG.GET has them."""
    info = await api(nc, f"STREAM.INFO.{stream}", {"deleted_details": True})
    found: list[Any] = []
    for seq in range(info["state"]["first_seq"], info["state"]["last_seq"] + 1):
        answer = await api(nc, f"STREAM.MSG.GET.{stream}", {"seq": seq})
        found.append(answer.get("message", seq))
    state = {key: info["state"].get(key) for key in STATE}
    consumers = await api(nc, f"CONSUMER.LIST.{stream}")
    rows = [{key: each[key] for key in CONSUMER} for each in consumers.get("consumers") or []]
    for row in rows:
        row["config"] = {k: v for k, v in row["config"].items() if k != "metadata"}
        for field in ("delivered", "ack_floor"):
            row[field].pop("last_active", None)
    return [state, found, sorted(rows, key=lambda row: row["name"])]


STATE = ("messages", "bytes", "first_seq", "first_ts", "last_seq", "deleted", "num_deleted")
CONSUMER = (
    "name", "config", "delivered", "ack_floor", "num_ack_pending", "num_redelivered", "num_pending",
)  # fmt: skip


async def fill(nc: Client, stream: str, replicas: int = 1) -> None:
    """A stream with headers, gaps, ids, large and empty messages, and consumers in all states."""
    js = nc.jetstream()
    await api(
        nc,
        f"STREAM.CREATE.{stream}",
        {"name": stream, "subjects": [f"{stream}.>"], "storage": "file", "retention": "limits",
         "description": "moved", "allow_direct": True, "num_replicas": replicas},
    )  # fmt: skip
    for at in range(60):
        headers = {"Nats-Msg-Id": f"id{at}", "X-A": "b c"} if at % 3 == 0 else {}
        await publish(nc, f"{stream}.{at % 7}", b"%d " % at * (at % 11), **headers)
    await publish(nc, f"{stream}.large", bytes(range(256)) * 1200)
    for at in range(60, 70):
        await publish(nc, f"{stream}.{at % 7}", b"")
    for seq in (1, 2, 20, 21, 22, 40, 71):
        answer = await api(nc, f"STREAM.MSG.DELETE.{stream}", {"seq": seq})
        assert answer.get("success"), answer
    sub = await js.pull_subscribe(f"{stream}.>", durable="worker", stream=stream)
    messages = await sub.fetch(10, timeout=10)
    for at in (0, 1, 2, 5, 7):
        await messages[at].ack_sync(timeout=10)
    await messages[4].nak()
    for _ in range(20):  # until it comes again: nothing says that a nak was taken in
        again = await sub.fetch(1, timeout=10)
        if again[0].metadata.num_delivered == 2:
            break
    else:
        raise AssertionError("what was refused did not come again")
    config = {"durable_name": "fresh", "ack_policy": "explicit", "filter_subject": f"{stream}.3"}
    await api(
        nc, f"CONSUMER.DURABLE.CREATE.{stream}.fresh", {"stream_name": stream, "config": config}
    )
    await api(
        nc,
        f"CONSUMER.CREATE.{stream}.late.{stream}.1",
        {"stream_name": stream, "config": {
            "name": "late", "durable_name": "late", "ack_policy": "none", "deliver_policy": "new",
            "filter_subject": f"{stream}.1"}},
    )  # fmt: skip
    await publish(nc, f"{stream}.1", b"last")
    # What acks and naks did is in the log of the consumer.
    for name in ("worker", "fresh", "late"):
        await api(nc, f"CONSUMER.INFO.{stream}.{name}")


@pytest.mark.parametrize("source,target", WAYS, ids=["-".join(way) for way in WAYS])
def test_an_archive_restores_with_all_that_was_in_the_stream(
    ours: ServerProcess, peer: ServerProcess, source: str, target: str
) -> None:
    """Fill, take the archive in small chunks, delete if it is the same server, restore, compare."""
    servers = {"ours": ours, "peer": peer}
    stream = f"A_{source}_{target}"

    async def run() -> None:
        one, other = (
            await nats.connect(servers[source].url),
            await nats.connect(servers[target].url),
        )
        try:
            await fill(one, stream)
            begun, blob = await archive(one, stream, chunk_bytes=4096, window_bytes=8192)
            before = await content(one, stream)
            if source == target:
                await api(one, f"STREAM.DELETE.{stream}")
            info = await restore(other, begun, blob)
            assert info["config"]["name"] == stream
            assert await content(other, stream) == before
            # It is a stream as any: it stores what comes next, and delivers what was not acked.
            await publish(other, f"{stream}.next", b"on")
            after = await api(other, f"STREAM.INFO.{stream}")
            assert after["state"]["last_seq"] == before[0]["last_seq"] + 1
            await api(other, f"STREAM.DELETE.{stream}")
        finally:
            await one.close()
            await other.close()

    asyncio.run(run())


@pytest.mark.parametrize("source,target", WAYS[:2], ids=["-".join(way) for way in WAYS[:2]])
def test_consumers_that_are_not_durable_come_back(
    ours: ServerProcess, peer: ServerProcess, source: str, target: str
) -> None:
    """They are in the archive as others, and are not durable afterwards either."""
    servers = {"ours": ours, "peer": peer}

    async def run() -> None:
        one, other = (
            await nats.connect(servers[source].url),
            await nats.connect(servers[target].url),
        )
        try:
            config = {"name": "EPH", "subjects": ["eph"], "storage": "file", "num_replicas": 1}
            await api(one, "STREAM.CREATE.EPH", config | {"retention": "limits"})
            for _ in range(3):
                await publish(one, "eph", b"x")
            short = {"name": "short", "ack_policy": "explicit", "inactive_threshold": 60 * 10**9}
            await api(one, "CONSUMER.CREATE.EPH.short", {"stream_name": "EPH", "config": short})
            begun, blob = await archive(one, "EPH")
            before = await content(one, "EPH")
            assert [row["name"] for row in before[2]] == ["short"]
            assert "durable_name" not in before[2][0]["config"]
            await restore(other, begun, blob)
            assert await content(other, "EPH") == before
        finally:
            for nc in (one, other):
                await api(nc, "STREAM.DELETE.EPH")
                await nc.close()

    asyncio.run(run())


def test_refusals_are_those_of_nats_server(ours: ServerProcess, peer: ServerProcess) -> None:
    """Requests that make no sense, in the same order at both: same codes, same texts."""
    inbox = "_INBOX.refused"
    requests: list[tuple[str, Any]] = [
        ("STREAM.SNAPSHOT.R", None),
        ("STREAM.SNAPSHOT.R", {}),
        ("STREAM.SNAPSHOT.NONE", {"deliver_subject": inbox}),
        ("STREAM.SNAPSHOT.R", {"deliver_subject": "a.*"}),
        ("STREAM.SNAPSHOT.R", {"deliver_subject": ""}),
        ("STREAM.SNAPSHOT.R", {"deliver_subject": inbox, "x": 1}),
        ("STREAM.SNAPSHOT.R", {"deliver_subject": 7}),
        ("STREAM.RESTORE.N", None),
        ("STREAM.RESTORE.N", {}),
        ("STREAM.RESTORE.N", {"config": {"name": "M", "storage": "file"}}),
        ("STREAM.RESTORE.R", {"config": {"name": "R", "storage": "file"}}),
        ("STREAM.RESTORE.N", {"config": {"name": "N", "storage": "file", "zz": 1}}),
        ("STREAM.RESTORE.N", {"config": {"name": "N", "storage": "file"}, "state": {"zz": 1}}),
        ("STREAM.RESTORE.N", {"config": {"name": "N", "storage": "file", "max_age": -1}}),
        ("STREAM.RESTORE.N", {"config": {"name": "N", "storage": "file", "discard_new_per_subject":
                                         True}}),
    ]  # fmt: skip

    async def run(server: ServerProcess) -> list[Any]:
        nc = await nats.connect(server.url)
        try:
            config = {"name": "R", "subjects": ["r.>"], "storage": "file", "num_replicas": 1}
            await api(nc, "STREAM.CREATE.R", config | {"retention": "limits"})
            answers = [await api(nc, subject, body) for subject, body in requests]
            await api(nc, "STREAM.DELETE.R")
            return [
                (*request, answer["type"], answer.get("error"))
                for request, answer in zip(requests, answers, strict=True)
            ]
        finally:
            await nc.close()

    assert asyncio.run(run(ours)) == asyncio.run(run(peer))


REPLY = re.compile(r"\$JS\.SNAPSHOT\.ACK\.E\.\w+\.(\d+)\.(\d+)")
SNAPSHOT = {"deliver_subject": "out.e", "chunk_size": 10, "window_size": 2048}


@contextmanager
def stream_of_chunks(
    server: ServerProcess, size: int, storage: str = "file", stream: str = "E"
) -> Iterator[Wire]:
    """A client of a server with a stream of `size` bytes that do not compress."""
    with Wire(server.port) as wire:
        config = {"name": stream, "subjects": [stream], "storage": storage}
        wire.api(f"STREAM.CREATE.{stream}", config)
        wire.ask(stream, random.Random(size).randbytes(size))
        yield wire
        wire.api(f"STREAM.DELETE.{stream}")


def test_chunks_and_their_end_are_those_of_nats_server(
    ours: ServerProcess, peer: ServerProcess
) -> None:
    """A full chunk asks for an ack, the rest does not; the end has a status if there was a full
    one. Chunks have 1024 bytes at the least."""

    def seen(server: ServerProcess, size: int, storage: str) -> list[Any]:
        found: list[Any] = []
        with stream_of_chunks(server, size, storage) as wire:
            wire.subscribe("out.e")
            wire.fence()
            answer = wire.api("STREAM.SNAPSHOT.E", SNAPSHOT)
            found.append([answer["type"], sorted(answer), sorted(answer["config"]["metadata"])])
            while not found[1:] or found[-1][0] != "end":
                frame = wire.next(20)
                if frame.reply:
                    wire.publish(frame.reply)
                full = REPLY.fullmatch(frame.reply)
                kind = "full" if full else "rest" if frame.payload else "end"
                numbers = full.groups() if full else ()
                found.append([kind, frame.headers.decode(), len(frame.payload) == 1024, *numbers])
        return [found[:5], found[-1]] if size > 2000 else found

    for size, storage in ((10, "file"), (9000, "file"), (9000, "memory")):
        assert seen(ours, size, storage) == seen(peer, size, storage)


def test_an_archive_that_nobody_takes(ours: ServerProcess, peer: ServerProcess) -> None:
    """Who listens to more than just that subject gets it, too."""

    def seen(server: ServerProcess) -> list[Any]:
        found: list[Any] = []
        with stream_of_chunks(server, 9000) as wire:
            wire.subscribe("out.>")
            wire.fence()
            wire.api("STREAM.SNAPSHOT.E", SNAPSHOT)
            frames = wire.collect(count=1, within_s=20)
            found.append([[len(frame.payload), frame.status] for frame in frames])
        return found

    assert seen(ours) == seen(peer)


def test_an_archive_ends_with_the_interest_in_it(ours: ServerProcess, peer: ServerProcess) -> None:
    """The end is told to subscribers of more, and where nothing is acked to one of just that
    subject. Neither a wider subscription nor a queue group is interest: it is waited for."""

    def seen(server: ServerProcess, stream: str, *, queue: str = "", is_left: bool) -> list[Any]:
        subject = f"out.{stream}"
        with stream_of_chunks(server, 9000, stream=stream) as wire, Wire(server.port) as other:
            other.subscribe("*." + stream)
            other.subscribe(f"$JS.EVENT.ADVISORY.STREAM.SNAPSHOT_COMPLETE.{stream}")
            other.fence()
            sid = wire.subscribe(subject, queue)
            wire.fence()
            began = time.monotonic()
            answer = wire.api(f"STREAM.SNAPSHOT.{stream}", SNAPSHOT | {"deliver_subject": subject})
            chunks = [len(frame.payload) for frame in other.collect(count=2, within_s=20)]
            # Interest is waited for, for 2 s.
            found = [answer["type"], chunks, not queue or time.monotonic() - began > 1.5]
            if is_left:
                wire.unsubscribe(sid)
            ends = [
                [frame.status, frame.json()["error"] if frame.payload else ""]
                for frame in other.collect(count=2, within_s=20)
            ]
        return [*found, *sorted(ends)]  # either may come first

    interest, flow = ["408 No Interest", ""], ["408 No Flow Response", ""]
    for stream, end, options in (
        ("I1", interest, {"is_left": True}),
        ("I2", flow, {"is_left": False}),
        ("I3", flow, {"is_left": True, "queue": "q"}),
    ):
        mine = seen(ours, stream, **options)
        assert mine == seen(peer, stream, **options)
        assert mine[-1] == end


def test_a_chunk_without_a_reply_ends_an_upload(ours: ServerProcess, peer: ServerProcess) -> None:
    """Nobody listens to its subject any more."""

    def seen(server: ServerProcess) -> list[Any]:
        with Wire(server.port) as wire:
            config = {"name": "U", "subjects": ["u"], "storage": "file", "num_replicas": 1}
            answer = wire.api("STREAM.RESTORE.U", {"config": config})
            wire.publish(answer["deliver_subject"], b"x")
            wire.fence()

            def statuses() -> list[str]:
                frames = wire.ask(answer["deliver_subject"], b"x", within_s=1)
                return [frame.status for frame in frames if frame.status]

            found = until(statuses, "nobody listens", 20)
            until(lambda: "error" in wire.api("STREAM.DELETE.U"), "the stream is gone", 20)
            return [answer["type"], sorted(answer), found]

    assert seen(ours) == seen(peer)


def entries(state: dict[str, Any], *rows: Row, has_end: bool = True) -> bytes:
    """An archive of W with any entries."""
    whole = {"messages": 1, "bytes": 1, "first_seq": 1, "last_seq": 1, "consumer_count": 0} | state
    frames = S2Writer()
    plain = message_archive.begin(whole, 1) + message_archive.encode_messages(rows)
    return frames.write(plain + (message_archive.end() if has_end else b"")) + frames.finish()


ROW: Row = (1, 1_700_000_000_000_000_000, b"W.a", b"", b"content")
TAR_HEAD = {"Created": "2026-01-01T00:00:00Z", "max_msgs": -1, "max_bytes": -1, "discard": "old"}
TAR_CONSUMER = {"Created": "2026-01-01T00:00:00Z", "deliver_policy": "all"}
ONE_CONSUMER = {"consumer_count": 1}
BROKEN: dict[str, tuple[dict[str, Any], bytes]] = {
    "nothing": ({}, b""),
    "no frames": ({}, b"no archive" * 20),
    "another checksum": ({}, entries({}, ROW)[:-1] + b"\1"),
    "no consumer": ({}, entries(ONE_CONSUMER, ROW)),
    "no state of a consumer": (
        {},
        entries(ONE_CONSUMER, (0, 1, b"consumers/c", b"", b'{"config":{"name":"c"}}'), ROW),
    ),
    "a message without a seq": ({}, entries({}, ROW, (0, 1, b"W.a", b"", b""))),
    "a large message": ({"max_msg_size": 5}, entries({}, ROW)),
    "no end": ({}, entries({}, ROW, has_end=False)),
    "no room": ({}, entries({"bytes": 10**18}, ROW)),
    "a tar of another stream": ({}, tar_of([("meta.inf", CONFIG), ("msgs/1.blk", RECORD)])),
}


def test_what_is_said_of_broken_archives(ours: ServerProcess, peer: ServerProcess) -> None:
    """The same as nats-server says; only that of a stream nothing is left here."""

    async def run(server: ServerProcess) -> list[Any]:
        nc = await nats.connect(server.url)
        found: list[Any] = []
        try:
            for number, (title, (more, blob)) in enumerate(BROKEN.items()):
                name = f"W{number}"
                config = {"name": name, "subjects": [name], "storage": "file", "num_replicas": 1}
                with pytest.raises(TransferError) as caught:
                    await restore(nc, {"config": config | more, "state": {}}, blob)
                found.append((title, str(caught.value)))
                await api(nc, f"STREAM.DELETE.{name}")
        finally:
            await nc.close()
        return found

    mine, theirs = asyncio.run(run(ours)), asyncio.run(run(peer))
    assert mine == theirs


EXPLICIT = {"ack_policy": "explicit"}
REFUSED: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "more than the stream may have": ({"max_consumers": 1}, [EXPLICIT, EXPLICIT]),
    "two of a work queue": ({"retention": "workqueue"}, [EXPLICIT, EXPLICIT]),
    "no acks of a work queue": ({"retention": "workqueue"}, [{"ack_policy": "none"}]),
    "threshold": (
        {"consumer_limits": {"inactive_threshold": 10**9}},
        [EXPLICIT | {"inactive_threshold": 10**10}],
    ),
    "pending": ({"consumer_limits": {"max_ack_pending": 9}}, [EXPLICIT | {"max_ack_pending": 10}]),
    "filter": ({}, [EXPLICIT | {"filter_subject": "a..b"}]),
    "deliver subject": ({}, [EXPLICIT | {"deliver_subject": "a..b"}]),
    "no start": ({}, [EXPLICIT | {"deliver_policy": "by_start_sequence"}]),
    "heartbeat of a pull": ({}, [EXPLICIT | {"idle_heartbeat": 10**9}]),
    "an unknown word": ({}, [EXPLICIT | {"deliver_policy": "zzz"}]),
    "two names": ({}, [EXPLICIT | {"durable_name": "b"}]),
    "an unknown field": ({}, [EXPLICIT | {"zzz": 1}]),
}


@pytest.mark.parametrize("is_tar", [False, True], ids=["messages", "tar"])
def test_consumers_of_archives_are_refused_as_by_nats_server(
    ours: ServerProcess, peer: ServerProcess, is_tar: bool
) -> None:
    """At the end, and each with the error that a request for it would get. What a later release has
    of them is passed over."""

    def archived(config: dict[str, Any], given: list[dict[str, Any]]) -> bytes:
        named = [
            {"name": f"c{at}", "durable_name": f"c{at}"} | each for at, each in enumerate(given)
        ]
        if is_tar:
            files = [("meta.inf", json.dumps(TAR_HEAD | config).encode()), ("meta.sum", b"")]
            for each in named:
                body = json.dumps(TAR_CONSUMER | {"Name": each["name"]} | each).encode()
                files += [(f"obs/{each['name']}/meta.inf", body)]
                files += [(f"obs/{each['name']}/meta.sum", b"")]
            return tar_of(files)
        start = {"consumer_seq": 0, "stream_seq": 0}
        rows: list[Row] = []
        for each in named:
            body = {"config": each, "state": {"delivered": start, "ack_floor": start}}
            name = f"consumers/{each['name']}".encode()
            rows.append((0, 1, name, b"", json.dumps(body).encode()))
        return entries({"consumer_count": len(given)}, *rows, (1, 1, b"S.a", b"", b""))

    async def run(server: ServerProcess) -> dict[str, str]:
        nc = await nats.connect(server.url)
        found: dict[str, str] = {}
        try:
            for title, (more, given) in REFUSED.items():
                config = {"name": "S", "subjects": ["S.>"], "storage": "file", "num_replicas": 1}
                config |= {"retention": "limits"} | more
                blob = archived(config, given)
                try:
                    await restore(nc, {"config": config, "state": {}}, blob)
                    found[title] = ""
                except TransferError as err:
                    found[title] = str(err)
                await api(nc, "STREAM.DELETE.S")
        finally:
            await nc.close()
        return found

    mine = asyncio.run(run(ours))
    assert mine == asyncio.run(run(peer))
    assert [title for title, text in mine.items() if not text] == ["an unknown field"]


def test_advisories_have_the_fields_of_nats_server(
    ours: ServerProcess, peer: ServerProcess
) -> None:
    """The same advisories in the same order, each with the same fields; but nats-server tells the
    end of a restore and the stream that it made in either order."""

    async def run(server: ServerProcess) -> list[Any]:
        nc = await nats.connect(server.url, name="backup")
        try:
            sub = await nc.subscribe("$JS.EVENT.ADVISORY.STREAM.*.ADV")
            config = {"name": "ADV", "subjects": ["adv"], "storage": "file", "num_replicas": 1}
            await api(nc, "STREAM.CREATE.ADV", config | {"retention": "limits"})
            await publish(nc, "adv", b"x")
            begun, blob = await archive(nc, "ADV")
            await api(nc, "STREAM.DELETE.ADV")
            await restore(nc, begun, blob)
            found: list[Any] = []
            for _ in range(7):  # of two creations, a deletion; begin and end of a backup, a restore
                advisory = json.loads((await sub.next_msg(timeout=20)).data)
                kind = advisory["type"].rpartition(".")[2]
                found.append((kind, list(advisory), sorted(advisory.get("client", ()))))
            await api(nc, "STREAM.DELETE.ADV")
            return found[:-2] + sorted(found[-2:])
        finally:
            await nc.close()

    assert asyncio.run(run(ours)) == asyncio.run(run(peer))


def test_archives_of_an_old_nats_server_restore(ours: ServerProcess, tmp_path: Path) -> None:
    """A tar, of a server before 2.15 (STREAMD_OLD_PEER), with all that was in the stream."""
    binary = os.environ.get("STREAMD_OLD_PEER", "")
    if not binary:
        pytest.skip("no nats-server before 2.15 to take an archive from (STREAMD_OLD_PEER)")

    async def run(old: ServerProcess) -> None:
        one, other = await nats.connect(old.url), await nats.connect(ours.url)
        try:
            await fill(one, "OLD")
            begun, blob = await archive(one, "OLD")
            before = await content(one, "OLD")
            await restore(other, begun, blob)
            after = await content(other, "OLD")
            for consumer in (*before[2], *after[2]):
                if not consumer["ack_floor"]["consumer_seq"]:
                    del consumer["ack_floor"]  # of one that acked nothing they show it otherwise
            assert after == before
            await api(other, "STREAM.DELETE.OLD")
        finally:
            await one.close()
            await other.close()

    with ServerProcess(binary, directory=tmp_path / "old") as old:
        old.start()
        asyncio.run(run(old))
