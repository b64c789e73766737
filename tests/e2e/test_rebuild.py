"""Streams whose only copy lost its snapshots, or its log: looked at, rebuilt, and gone on with."""

from __future__ import annotations

import json
import shutil
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import ServerDied, ServerProcess
from tests.e2e import cluster as load
from tests.e2e.conftest import MakeCluster
from tests.e2e.test_accepted_loss import body, create, health, last_seq, logged, publish, read
from tests.parity.runner import ours_binary
from tests.wire import Wire

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif("nats-server" in ours_binary(), reason="a flag of streamd's own"),
]
PADDING = b"." * 1000  # enough for a snapshot when the server stops
STREAMS: dict[str, dict[str, Any]] = {
    "LIMITS": {"subjects": ["LIMITS.>"], "max_msgs": 2500},
    "QUEUE": {"subjects": ["QUEUE.>"], "retention": "workqueue"},
    "KV_b": {"subjects": ["$KV.b.>"], "max_msgs_per_subject": 3, "allow_rollup_hdrs": True},
}


def api(wire: Wire, subject: str, request: Any = None) -> dict[str, Any]:
    payload = b"" if request is None else json.dumps(request).encode()
    answer: dict[str, Any] = wire.ask(f"$JS.API.{subject}", payload)[0].json()
    assert "error" not in answer, (subject, answer)
    return answer


def work(wire: Wire) -> list[str]:
    """Three streams that have seen some of everything. Returns where deliveries that wait for
    their acks are acked."""
    for name, config in STREAMS.items():
        api(wire, f"STREAM.CREATE.{name}", {"name": name, "allow_direct": True, **config})
    consumer = {"durable_name": "C", "ack_policy": "explicit", "ack_wait": 300_000_000_000}
    api(wire, "CONSUMER.DURABLE.CREATE.QUEUE.C", {"stream_name": "QUEUE", "config": consumer})
    for number in range(100):
        wire.publish("QUEUE.x", b"queue %d" % number + PADDING)
    wire.fence(30)
    pull = json.dumps({"batch": 100, "expires": 5_000_000_000}).encode()
    frames = wire.ask("$JS.API.CONSUMER.MSG.NEXT.QUEUE.C", pull, count=100)
    for frame in frames[:90]:
        wire.publish(frame.reply, b"+ACK")
    wire.fence(30)
    for number in range(3000):
        wire.publish("LIMITS.x", b"limits %d" % number + PADDING[:200])
        if number == 2000:
            wire.fence(30)
            for seq in (700, 1500, 1999):
                api(wire, "STREAM.MSG.DELETE.LIMITS", {"seq": seq})
    for number in range(400):
        wire.publish("QUEUE.x", b"queue %d" % number + PADDING)
        wire.publish(f"$KV.b.key{number % 50}", b"value %d" % number + PADDING)
    for subject in ("LIMITS.x", "QUEUE.x", "$KV.b.key0"):
        wire.ask(subject, b"the last one")  # and all before it is stored
    return [frame.reply for frame in frames[90:]]


def work_on(wire: Wire, waiting: list[str]) -> None:
    """What comes after the snapshots."""
    for reply in waiting:
        wire.publish(reply, b"+ACK")
    api(wire, "STREAM.MSG.DELETE.LIMITS", {"seq": 2600})
    for number in range(10):
        wire.publish("LIMITS.y", b"limits %d" % number)
        wire.publish("QUEUE.y", b"queue %d" % number)
        wire.publish("$KV.b.key1", b"value %d" % number)
    for subject in ("LIMITS.x", "QUEUE.x", "$KV.b.key0"):
        wire.ask(subject, b"the last one")


def fill(wire: Wire, server: ServerProcess) -> None:
    """So much to LIMITS that snapshots are taken, and the log released."""
    (directory,) = (d for d in directories(server) if b"LIMITS" in (d / "outline").read_bytes())
    before = set(directory.glob("stream-*.snap"))
    body = b"." * 512 * 1024
    while set(directory.glob("stream-*.snap")) <= before:
        for _ in range(32):
            wire.publish("LIMITS.z", body)
        wire.ask("LIMITS.z", b"wait")


def picture(wire: Wire) -> dict[str, Any]:
    """Every message of each stream, its state, and where the consumer stands."""
    found: dict[str, Any] = {}
    for name in STREAMS:
        state = api(wire, f"STREAM.INFO.{name}", {"subjects_filter": ">"})["state"]
        messages = {}
        for seq in range(state["first_seq"], state["last_seq"] + 1):
            frame = wire.ask(f"$JS.API.DIRECT.GET.{name}", b'{"seq":%d}' % seq)[0]
            if not frame.status:
                messages[seq] = frame.pairs["Nats-Subject"], frame.payload
        found[name] = messages, state
    info = api(wire, "CONSUMER.INFO.QUEUE.C")
    found["C"] = {key: info[key] for key in ("num_pending", "num_ack_pending")}
    found["C"] |= {key: info[key]["stream_seq"] for key in ("delivered", "ack_floor")}
    return found


def directories(server: ServerProcess) -> list[Path]:
    return sorted((server.store_dir / "streamd" / "streams").iterdir())


def files(server: ServerProcess) -> dict[str, tuple[int, bytes]]:
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(server.store_dir.rglob("*"))
        if path.is_file()
    }


def dry_run(server: ServerProcess) -> str:
    """What the dry run says; it exits with 0 and changes nothing."""
    before = files(server)
    config = server.store_dir.parent / "server.conf"
    done = subprocess.run(
        [server.binary, "-c", str(config), "--accept-loss=dry-run"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert files(server) == before
    return done.stdout


def damaged(server: ServerProcess, what: str) -> None:
    if what in ("snapshots", "both"):
        for directory in directories(server):
            for path in directory.glob("stream-*.snap"):
                path.unlink()
    if what in ("log", "both"):
        shutil.rmtree(server.store_dir / "streamd" / "wal")


@pytest.mark.parametrize(
    "what",
    [
        pytest.param("snapshots", marks=pytest.mark.proof),
        pytest.param("log", marks=pytest.mark.proof),
        "both",
    ],
)
def test_streams_are_rebuilt(tmp_path: Path, what: str) -> None:
    """Offline and untouched first; a dry run that tells; then all messages, sequences, subjects and
    the durable are back, and go on as ever."""
    with ServerProcess(ours_binary(), directory=tmp_path) as server:
        server.start()
        with Wire(server.port) as wire:
            waiting = work(wire)
        server.stop()
        assert len(list((server.store_dir / "streamd").glob("streams/*/stream-*.snap"))) == 3
        server.start()
        with Wire(server.port) as wire:
            if what == "snapshots":  # else the log has all there is
                fill(wire, server)
            work_on(wire, waiting if what == "snapshots" else [])
            before = picture(wire)
        server.stop()
        damaged(server, what)
        untouched = [path.read_bytes() for d in directories(server) for path in d.glob("*.blk")]

        server.launch()
        if what == "snapshots":
            server.wait()
            url = f"http://127.0.0.1:{server.http_port}/healthz"
            with urllib.request.urlopen(url, timeout=30) as answer:
                document = json.load(answer)
            assert document["status"] == "degraded" and document["lost"] == sorted(STREAMS)
            assert "--accept-loss=dry-run" in document["error"]
            with Wire(server.port) as wire:
                frame = wire.ask("$JS.API.STREAM.INFO.LIMITS", b"")[0]
                assert frame.json()["error"]["code"] == 500 or "error" in frame.json()
            server.stop()
        else:
            with pytest.raises(ServerDied, match="accept-loss"):
                server.wait()
        blocks = [path.read_bytes() for d in directories(server) for path in d.glob("*.blk")]
        assert blocks == untouched

        told = dry_run(server)
        for name in STREAMS:
            assert f"stream {name} (uid " in told, told
        assert "no file was changed" in told
        assert "C (delivered 100, ack floor 90)" in told, told

        server.launch("--accept-loss")
        server.wait()
        with Wire(server.port) as wire:
            assert picture(wire) == before
            for name, config in STREAMS.items():
                subject = config["subjects"][0].replace(">", "x")
                ack = wire.ask(subject, b"more")[0].json()
                assert ack["seq"] == before[name][1]["last_seq"] + 1
            after = picture(wire)
        server.stop()
        server.launch()
        server.wait()
        with Wire(server.port) as wire:
            assert picture(wire) == after
        url = f"http://127.0.0.1:{server.http_port}/jsz?accounts=1&streams=1&digest=1"
        with urllib.request.urlopen(url, timeout=10) as answer:
            details = json.load(answer)["account_details"][0]["stream_detail"]
        assert {each["name"] for each in details} == set(STREAMS)
        with urllib.request.urlopen(
            f"http://127.0.0.1:{server.http_port}/healthz", timeout=30
        ) as answer:
            assert json.load(answer) == {"status": "ok"}


@pytest.mark.parametrize("what", ["log", pytest.param("both", marks=pytest.mark.proof)])
def test_a_stream_of_one_replica_in_a_cluster_is_rebuilt(
    make_cluster: MakeCluster, what: str
) -> None:
    """ONE lives on n3 alone, which lost its log, or the stream's snapshots as well: the node is
    well and current, the stream waits untouched; a dry run tells; with the flag it is led again
    with all it had, and its consumer."""
    cluster = make_cluster(tags=["a", "a", "one"])
    nodes, server = cluster.nodes, cluster.nodes["n3"]
    create(cluster, "ONE", 1, "one")
    create(cluster, "OTHER", 1, "a")
    consumer = {"durable_name": "C", "ack_policy": "explicit"}
    load.api(cluster, "CONSUMER.DURABLE.CREATE.ONE.C", {"stream_name": "ONE", "config": consumer})
    count = 20
    for number in range(count):
        assert put(nodes["n1"], number) == number + 1
    server.stop()
    server.launch()
    cluster.leader("ONE")
    for number in range(count, count + 5):  # after the snapshot
        assert put(nodes["n1"], number) == number + 1
    count += 5
    server.stop()
    directory = next(d for d in directories(server) if list(d.glob("*.snap")))
    damaged(server, what)
    blocks = {path.name: path.read_bytes() for path in directory.glob("*.blk")}

    server.launch()
    line = cluster.wait_until(lambda: logged(server, "stream stopped", "stream=ONE "), "told")
    assert "--accept-loss" in line
    cluster.wait_until(lambda: '"degraded"' in plain_health(server), "ready, and said so")
    assert "its only copy" in health(server, "ONE")
    assert {path.name: path.read_bytes() for path in directory.glob("*.blk")} == blocks
    assert publish(nodes["n1"], "OTHER", 0) == 1
    server.stop()

    told = dry_run(server)
    assert "stream ONE (uid " in told and f"{count} messages" in told, told
    server.launch("--accept-loss")
    cluster.leader("ONE")
    for launch in range(2):
        for seq in range(1, count + 1):
            assert read(nodes["n1"], "ONE", seq) == padded(seq - 1)
        assert load.api(cluster, "CONSUMER.INFO.ONE.C")["num_pending"] == count
        assert put(nodes["n1"], count) == count + 1
        count += 1
        server.stop()
        server.launch()
        cluster.leader("ONE")
        cluster.wait_healthy(server)
        assert last_seq(cluster, server, "ONE") == count, launch


def padded(number: int) -> bytes:
    return body("ONE", number).ljust(20_000, b".")


def put(node: ServerProcess, number: int) -> int:
    """Store a message in ONE; return its sequence number."""
    with Wire(node.port) as wire:
        return int(wire.ask("ONE.x", padded(number))[0].json()["seq"])


def plain_health(server: ServerProcess) -> str:
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{server.http_port}/healthz", timeout=30
        ) as answer:
            return str(answer.read().decode())
    except OSError as err:
        return str(err)
