"""Offline reads equal what was published, whatever happened to the stream and the server since."""

from __future__ import annotations

import logging
import os
import random
import resource
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from spark_jobs.client.options import OptionError
from spark_jobs.source.offline import DataLoss
from streamd.errors import CorruptionError
from streamd.machine.base import REWRITTEN
from streamd.offline.stream_view import StreamMissing
from streamd.store.blocks.record_format import block_name
from tests.spark.audit_stores import Replica, copy_of, small_blocks
from tests.spark.conftest import StartServer
from tests.spark.reads import Row, partitions_of, read_rows, read_table
from tests.spark.servers import SparkTestServer

Message = tuple[str, bytes, dict[str, list[str]]]


def block_path(server: SparkTestServer, block_no: int = 1, uid: int = 2) -> Path:
    return server.store_dir / "streamd" / "streams" / str(uid) / f"{block_no}.blk"


def contents(rows: list[Row]) -> dict[int, Message]:
    seqs = [row["seq"] for row in rows]
    assert seqs == sorted(set(seqs))
    for row in rows:
        assert row["stream"] == "S"
        assert row["size"] == len(row["payload"])
        assert row["ts"].timestamp() == pytest.approx(row["ts_ns"] / 1e9, abs=2e-6)
    return {row["seq"]: (row["subject"], row["payload"], row["headers"]) for row in rows}


def numbered(count: int, size: int = 40, subjects: int = 5) -> list[tuple[str, bytes]]:
    return [
        (f"s.{i % subjects}.x", f"{i}:".encode().ljust(size, b".")) for i in range(1, count + 1)
    ]


# --- equal to what was published ----------------------------------------------------------------


def random_message(rng: random.Random) -> tuple[str, bytes, bytes, dict[str, list[str]]]:
    """(subject, payload, header block, what the header block means)"""
    size = rng.choice([0, 1, 11, 12, 13, 100, 100, 100, 2047, 2048, 30_000])
    pairs = [
        (rng.choice(["A", "B", "Key-1"]), rng.choice(["", "x", "a: b", "ünï", "long " * 20]))
        for _ in range(rng.choice([0, 0, 1, 1, 3]))
    ]
    meaning: dict[str, list[str]] = {}
    for key, value in pairs:
        meaning.setdefault(key, []).append(value.strip(" "))
    lines = "".join(f"{key}: {value}\r\n" for key, value in pairs)
    block = f"NATS/1.0\r\n{lines}\r\n".encode() if pairs else b""
    return f"s.{rng.randrange(6)}", rng.randbytes(size), block, meaning


def live_seqs(server: SparkTestServer) -> set[int]:
    """The seqs that the server itself says there are."""
    state = server.api("STREAM.INFO.S", {"deleted_details": True})["state"]
    there = set(range(state["first_seq"], state["last_seq"] + 1))
    return there - set(state.get("deleted") or ()) if state["messages"] else set()


def random_work(server: SparkTestServer, rng: random.Random, kept: dict[int, Message]) -> None:
    """Publish, delete and purge at random; `kept` holds every message ever stored."""
    for _ in range(rng.randrange(3, 8)):
        what = rng.random()
        last = max(kept, default=0)
        if what < 0.6 or not last:
            made = [random_message(rng) for _ in range(rng.randrange(1, 120))]
            server.publish([(subject, payload, block) for subject, payload, block, _ in made])
            for at, (subject, payload, _, meaning) in enumerate(made):
                kept[last + 1 + at] = (subject, payload, meaning)
        elif what < 0.85:
            there = sorted(live_seqs(server))
            for seq in rng.sample(there, min(len(there), rng.randrange(1, 15))):
                if seq in live_seqs(server):
                    server.delete_msg("S", seq)
        elif what < 0.93:
            server.purge("S", filter=f"s.{rng.randrange(6)}")
        else:
            server.purge("S", seq=rng.randrange(1, last + 2))


CONFIGS: list[dict[str, Any]] = [
    {},
    {"max_msgs": 60},
    {"max_bytes": 200_000},
    {"max_msgs_per_subject": 3},
]


@pytest.mark.parametrize("seed", range(len(CONFIGS)))
def test_random_work_reads_as_published(start_server: StartServer, seed: int) -> None:
    """While the server runs, after SIGKILL, after a restart, after a clean stop: the same."""
    rng = random.Random(f"offline {seed}")
    server = start_server()
    server.create_stream("S", ["s.>"], **CONFIGS[seed])
    kept: dict[int, Message] = {}
    for end in (server.kill, server.stop):
        random_work(server, rng, kept)
        wanted = {seq: kept[seq] for seq in live_seqs(server)}
        assert contents(read_rows(server.store_dir, "S")) == wanted
        end()
        assert contents(read_rows(server.store_dir, "S")) == wanted
        server.start()
    assert contents(read_rows(server.store_dir, "S")) == wanted


@pytest.mark.parametrize("ending", ["saved", "flushed", "killed"])
def test_rewritten_blocks_are_read_whether_they_are_in_files_or_in_the_log(
    tmp_path: Path, ending: str
) -> None:
    with small_blocks():
        replica = Replica(tmp_path / "n1", max_msgs_per_subject=40)
        replica.fill(500)
        replica.snapshot()
        rng = random.Random(1)
        done = [replica.rewrite(rng) for _ in range(5)]
        assert done.count(True) >= 4
        replica.fill(20, first=501)
        if ending == "saved":
            replica.snapshot()
        if ending == "flushed":
            replica.flush()
        directory = copy_of(replica.directory, tmp_path / "copy")
        replica.close()
        index = replica.machine.index
        rewritten = [no for no in (b.block_no for b in index.blocks) if no >= REWRITTEN]
        files = {path.name for path in directory.rglob("r*.blk")}
        assert ({block_name(no) for no in rewritten} <= files) is (ending != "killed")
        rows = read_rows(directory, "S", withDebug=True)
    assert [row["seq"] for row in rows] == list(index.live.seqs(1, index.last_seq))
    assert all(row["payload"].startswith(b"%06d" % row["seq"]) for row in rows)
    assert {row["block"] for row in rows} == {block.block_no for block in index.blocks}


def test_several_blocks_and_large_and_empty_payloads(server: SparkTestServer) -> None:
    """Blocks end at 8 MiB; payloads of 1 MB lie across that, empty ones have no bytes at all."""
    server.create_stream("S")
    rng = random.Random(1)
    sent = [
        (f"s.{at % 3}", b"" if at % 3 == 0 else rng.randbytes(1_000_000) if at % 3 == 1 else b"12")
        for at in range(75)
    ]
    server.publish(sent)
    rows = read_rows(server.store_dir, "S")
    assert [(row["subject"], row["payload"]) for row in rows] == sent
    assert len({row["block"] for row in read_rows(server.store_dir, "S", withDebug=True)}) >= 3


def test_limits_that_drop_whole_blocks(server: SparkTestServer) -> None:
    server.create_stream("S", max_msgs=500)
    sent = [(f"s.{at % 7}", f"{at}".encode() * 2000) for at in range(1, 4001)]
    server.publish(sent)
    server.kill()
    assert not block_path(server, 1).exists() or block_path(server, 2).exists()
    found = contents(read_rows(server.store_dir, "S"))
    assert found == {at: (*sent[at - 1], {}) for at in range(3501, 4001)}


def test_messages_that_only_the_log_has(server: SparkTestServer) -> None:
    """The block file follows in steps of 1 MiB; what was acked before a SIGKILL is in the log."""
    server.create_stream("S")
    sent = numbered(50)
    server.publish(sent)
    server.kill()
    assert not block_path(server).exists() or block_path(server).stat().st_size <= 64
    found = contents(read_rows(server.store_dir, "S"))
    assert [found[seq][:2] for seq in range(1, 51)] == sent


def test_a_stream_made_again_has_only_its_own_messages(server: SparkTestServer) -> None:
    server.create_stream("S")
    server.publish(numbered(30))
    server.api("STREAM.DELETE.S")
    assert_missing(server, "streams there are: none")
    server.create_stream("S")
    server.publish([("s.new", b"new")])
    assert contents(read_rows(server.store_dir, "S")) == {1: ("s.new", b"new", {})}


def test_an_empty_stream_has_no_rows_but_the_columns(server: SparkTestServer) -> None:
    server.create_stream("S")
    assert read_table(server.store_dir, "S").num_rows == 0
    server.publish(numbered(3))
    server.purge("S")
    assert read_table(server.store_dir, "S").num_rows == 0


# --- beside a running server --------------------------------------------------------------------


def test_reads_beside_a_server_that_publishes_and_deletes(server: SparkTestServer) -> None:
    """Each read is one moment of the stream: nothing acked before it is missing, nothing deleted
    before it appears, nothing is torn."""
    server.create_stream("S", max_msgs=4000)
    server.publish(numbered(500))
    acked, deleted, failures = [500], [0], list[BaseException]()
    is_over = threading.Event()

    def work() -> None:
        try:
            while not is_over.is_set() and acked[0] < 60_000:
                first = acked[0] + 1
                server.publish(
                    [(f"s.{i % 5}.x", f"{i}:".encode() * 30) for i in range(first, first + 400)]
                )
                acked[0] += 400
                server.delete_msg("S", acked[0] - 1)
                deleted[0] = acked[0] - 1
        except BaseException as err:  # noqa: BLE001  (shown by the test)
            failures.append(err)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        for _ in range(6):
            known_acked, known_deleted = acked[0], deleted[0]
            rows = read_rows(server.store_dir, "S", failOnDataLoss=False)
            seqs = [row["seq"] for row in rows]
            assert seqs == sorted(set(seqs))
            assert all(row["payload"].startswith(b"%d:" % row["seq"]) for row in rows)
            assert known_deleted not in seqs
            assert seqs[-1] >= known_acked
            assert len(seqs) <= 4000
    finally:
        is_over.set()
        thread.join(30)
    assert not failures


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_idle_stream_is_read_every_time_beside_a_busy_one(
    spark: Any, server: SparkTestServer
) -> None:
    """Ten reads through a session while another stream of the same log takes 1,000 messages a
    second, each acked: a batch that is being written is no damage."""
    server.create_stream("S")
    server.publish(numbered(2000))
    server.create_stream("BUSY")
    published, failures = [0], list[BaseException]()
    is_over = threading.Event()

    def work() -> None:
        try:
            began = time.monotonic()
            while not is_over.wait(0.01):
                due = int((time.monotonic() - began) * 1000) - published[0]
                published[0] += server.publish([("busy.x", b"x" * 200)] * due)
        except BaseException as err:  # noqa: BLE001  (shown by the test)
            failures.append(err)

    reader = spark.read.format("streamd").options(path=str(server.store_dir), stream="S")
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        assert [reader.load().count() for _ in range(10)] == [2000] * 10
    finally:
        is_over.set()
        thread.join(30)
    assert not failures
    assert published[0] > 0


def test_reading_changes_nothing(server: SparkTestServer) -> None:
    """Not a byte, not a time, not a name; and the server starts again as if nothing had been."""
    server.create_stream("S")
    server.publish(numbered(3000))
    server.kill()

    def facts() -> dict[str, tuple[int, int, bytes]]:
        return {
            str(path): (path.stat().st_mtime_ns, path.stat().st_size, path.read_bytes())
            for path in server.store_dir.rglob("*")
            if path.is_file()
        }

    before = facts()
    assert len(read_rows(server.store_dir, "S")) == 3000
    assert facts() == before
    server.start()
    assert server.state("S")["messages"] == 3000


def test_memory_is_bounded_by_blocks_not_by_the_stream(server: SparkTestServer) -> None:
    """A stream of 160 MB, read in a process of its own: the peak grows by far less."""
    server.create_stream("S")
    payload = random.Random(2).randbytes(16_000)
    server.publish((f"s.{at % 9}", payload) for at in range(10_000))
    server.stop()
    code = (
        "import resource, sys\n"
        "from spark_jobs.source.offline import make_reader\n"
        "from spark_jobs.source.read_options import ReadOptions\n"
        "from spark_jobs.schema import SCHEMA\n"
        "options = ReadOptions.parse({'path': sys.argv[1], 'stream': 'S'})\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024\n"
        "reader, before, rows = make_reader(options, SCHEMA), peak(), 0\n"
        "for partition in reader.partitions():\n"
        "    for batch in reader.read(partition):\n"
        "        rows += batch.num_rows\n"
        "print(rows, peak() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(server.store_dir)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    rows, grown_mb = map(int, done.stdout.split())
    assert rows == 10_000
    assert grown_mb < 100, f"peak memory grew by {grown_mb} MiB"
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss > 0


# --- damage -------------------------------------------------------------------------------------


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 0x10]))


def test_a_damaged_record_is_named(server: SparkTestServer) -> None:
    """One bit in one payload of a sealed block: file, offset and seq; all others can be read."""
    server.create_stream("S")
    server.publish((f"s.{at}", b"p" * 10_000) for at in range(1, 1201))
    server.stop()
    row = next(r for r in read_rows(server.store_dir, "S", withDebug=True) if r["seq"] == 321)
    assert row["block"] == 1
    flip(block_path(server), row["pos"] + 5000)
    with pytest.raises(CorruptionError) as caught:
        read_rows(server.store_dir, "S")
    assert str(block_path(server)) in str(caught.value)
    assert f"offset {row['pos']}: record of seq 321" in str(caught.value)
    found = read_rows(server.store_dir, "S", failOnDataLoss=False)
    assert [r["seq"] for r in found] == [seq for seq in range(1, 1201) if seq != 321]
    assert len(read_rows(server.store_dir, "S", verify=False)) == 1200
    assert len(read_rows(server.store_dir, "S", startSeq=322)) == 879


def test_damage_that_the_log_makes_up_for(server: SparkTestServer, caplog: Any) -> None:
    """What no snapshot covers yet is in the log too: nothing is lost, but it is told."""
    server.create_stream("S")
    server.publish(numbered(200))
    server.stop()
    wanted = read_rows(server.store_dir, "S", withDebug=True)
    flip(block_path(server), wanted[99]["pos"] + 3)
    with caplog.at_level(logging.WARNING, "streamd.spark"):
        assert read_rows(server.store_dir, "S", withDebug=True) == wanted
    assert f"{block_path(server)}: offset {wanted[99]['pos'] + 3}: bytes that differ" in caplog.text


def test_a_damaged_footer_costs_nothing_but_time(server: SparkTestServer) -> None:
    server.create_stream("S")
    server.publish((f"s.{at}", b"p" * 10_000) for at in range(1, 1201))
    server.stop()
    wanted = contents(read_rows(server.store_dir, "S"))
    flip(block_path(server), block_path(server).stat().st_size - 40)
    assert contents(read_rows(server.store_dir, "S")) == wanted


@pytest.mark.parametrize("kind", ["garbage", "cut"])
def test_a_torn_tail_is_read_and_reported(server: SparkTestServer, kind: str, caplog: Any) -> None:
    """Garbage behind the last record, or a last record cut off: the log has what was acked."""
    server.create_stream("S")
    server.publish((f"s.{at}", b"p" * 400) for at in range(1, 501))
    server.stop()
    path = block_path(server)
    size = path.stat().st_size
    if kind == "garbage":
        with path.open("ab") as file:
            file.write(b"\xee" * 777)
        where = size
    else:
        os.truncate(path, size - 100)
        where = 64
    with caplog.at_level(logging.WARNING, "streamd.spark"):
        rows = read_rows(server.store_dir, "S")
    assert [row["seq"] for row in rows] == list(range(1, 501))
    assert "torn tail" in caplog.text
    assert str(path) in caplog.text
    told = int(caplog.text.split("offset ")[1].split(":")[0])
    assert where <= told <= size
    server.start()
    assert server.state("S")["messages"] == 500


def assert_missing(server: SparkTestServer, text: str, stream: str = "S") -> None:
    with pytest.raises(StreamMissing) as caught:
        read_rows(server.store_dir, stream)
    assert text in str(caught.value)


def test_missing_streams_and_directories_are_named(server: SparkTestServer, tmp_path: Path) -> None:
    server.create_stream("A")
    server.create_stream("B")
    server.create_stream("M", storage="memory")
    assert_missing(server, "no stream 'S'; streams there are: A, B, M")
    assert_missing(server, "stream 'M' is kept in memory, it has no files", "M")
    with pytest.raises(FileNotFoundError, match="no such directory"):
        read_rows(tmp_path / "nothing", "A")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no data directory of streamd"):
        read_rows(tmp_path / "empty", "A")
    with pytest.raises(OptionError, match="option readFrom is 'n9', the replicas there are"):
        read_rows(server.store_dir, "A", readFrom="n9")
    with pytest.raises(OptionError, match="startingPosition latest is for readStream"):
        read_rows(server.store_dir, "A", startingPosition="latest")


def test_a_start_that_is_gone_is_data_loss(server: SparkTestServer) -> None:
    server.create_stream("S", max_msgs=10)
    server.publish(numbered(100))
    with pytest.raises(DataLoss, match="messages from startSeq 50 to 90 are gone, it begins at 91"):
        read_rows(server.store_dir, "S", startSeq=50)
    found = read_rows(server.store_dir, "S", startSeq=50, failOnDataLoss=False)
    assert [row["seq"] for row in found] == list(range(91, 101))
    assert len(read_rows(server.store_dir, "S")) == 10


def test_a_block_removed_after_planning_is_data_loss(server: SparkTestServer) -> None:
    server.create_stream("S")
    server.publish((f"s.{at}", b"p" * 10_000) for at in range(1, 1201))
    server.stop()
    partitions = partitions_of(server.store_dir, "S")
    from spark_jobs.source.offline import read_block

    block_path(server).unlink()
    with pytest.raises(DataLoss, match="removed since this read was planned, with messages 1 to"):
        read_block(partitions[0].blocks[0], fail_on_data_loss=True)
    assert read_block(partitions[0].blocks[0], fail_on_data_loss=False) is None


# --- several replicas ---------------------------------------------------------------------------


def test_the_most_advanced_whole_replica_is_read(
    server: SparkTestServer, tmp_path: Path, caplog: Any
) -> None:
    """Copies of one node's directory, taken at different times, stand for its peers."""
    server.create_stream("S")
    many = [(f"s.{at}", b"p" * 10_000) for at in range(1, 1001)]
    server.publish(many[:900])
    server.stop()
    shutil.copytree(server.store_dir, tmp_path / "copies" / "old" / "store")
    server.start()
    server.publish(many[900:])
    server.stop()
    shutil.copytree(server.store_dir, tmp_path / "copies" / "new" / "store")
    copies = tmp_path / "copies"
    assert len(read_rows(copies, "S")) == 1000
    assert {row["replica"] for row in read_rows(copies, "S", withDebug=True)} == {"new"}
    assert len(read_rows(copies, "S", readFrom="old")) == 900
    assert len(read_rows([copies / "old", copies / "new"], "S")) == 1000
    next((copies / "new").rglob("1.blk")).unlink()
    with caplog.at_level(logging.WARNING, "streamd.spark"):
        found = read_rows(copies, "S", withDebug=True)
    assert {row["replica"] for row in found} == {"old"}
    assert "replica new is not" in caplog.text
