"""Batch reads from servers: what was published comes out once, in order, or there is an error."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make spark")

from pyspark.sql.datasource import In

from benchmarks.cluster import ClusterProcess
from spark_jobs.client import wire as wires
from spark_jobs.client.options import OptionError
from spark_jobs.client.stream_facts import DataLost, StreamChanged, rfc3339
from spark_jobs.client.wire import ApiError, WireError, WireLost
from spark_jobs.schema import COLUMNS, spark_schema
from spark_jobs.source import online_read
from spark_jobs.source.online import SeqRange, make_reader, partition_count, plan, read_range, split
from spark_jobs.source.online_frames import Frames
from spark_jobs.source.read_options import ReadOptions
from tests.parity.runner import ours_binary
from tests.spark.servers import SparkTestServer, flood, frame_of
from tests.wire import Wire as PlainWire

HEADERS = {"Nats-Msg-Id": "", "Region": "eu"}


@pytest.fixture(autouse=True)
def no_kept_connections() -> Iterator[None]:
    yield
    for _, _, kept in wires._idle:
        kept.close()
    wires._idle.clear()


def options_of(server: SparkTestServer | str, **more: Any) -> ReadOptions:
    servers = server if isinstance(server, str) else server.address
    given = {name: str(value) for name, value in more.items()}
    return ReadOptions.parse({"servers": servers, "stream": "S", **given})


def rows_of(options: ReadOptions, parts: list[SeqRange] | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for part in plan(options) if parts is None else parts:
        for batch in read_range(options, part):
            found += batch.to_pylist()
    return found


def seqs_of(options: ReadOptions, parts: list[SeqRange] | None = None) -> list[int]:
    return [row["seq"] for row in rows_of(options, parts)]


def fill(server: SparkTestServer, count: int, *, size: int = 20, **config: Any) -> None:
    server.create_stream("S", **config)
    server.publish((f"s.{number % 7}", b"%0*d" % (size, number + 1)) for number in range(count))


# --- frames ---------------------------------------------------------------------------------------


def delivery(number: int, rng: random.Random, *, is_regular: bool) -> tuple[bytes, tuple[Any, ...]]:
    subject = b"s.%d" % (number % 10) if is_regular else b"s." + b"x" * rng.randrange(1, 9)
    payload = rng.randbytes(30 if is_regular else rng.randrange(60))
    head = b"NATS/1.0\r\nA: b\r\n\r\n" if not is_regular and number % 3 == 0 else b""
    ts = 1_700_000_000_000_000_000 + number
    ack = b"$JS.ACK.S.c.1.%d.%d.%d.%d" % (number + 95, number, ts, 2000 - number)
    if head:
        sizes = (len(head), len(head) + len(payload))
        frame = b"HMSG %b 3 %b %d %d\r\n%b%b\r\n" % (subject, ack, *sizes, head, payload)
    else:
        frame = b"MSG %b 3 %b %d\r\n%b\r\n" % (subject, ack, len(payload), payload)
    return frame, (number + 95, ts, subject, head, payload)


@pytest.mark.parametrize("kind", ["regular", "irregular", "mixed"])
def test_frames_become_rows_however_they_are_laid_out_and_cut(kind: str) -> None:
    """Lengths of numbers change on the way (9 to 10, 99 to 100, ...); chunks end anywhere."""
    rng = random.Random(kind)
    frames, wanted = [], []
    for number in range(1, 1600):
        is_regular = kind == "regular" or (kind == "mixed" and number // 100 % 2 == 0)
        frame, row = delivery(number, rng, is_regular=is_regular)
        frames.append(frame)
        wanted.append(row)
        if number % 97 == 0:
            frames.append(rng.choice([b"PING\r\n", b"MSG other 9 3\r\nabc\r\n"]))
    data = b"".join(frames)
    for _ in range(6):
        lines: list[bytes] = []
        collected = Frames(3, lines.append)
        found: list[tuple[Any, ...]] = []
        pos, end = 0, 0
        while pos < len(data):
            end = min(len(data), end + rng.randrange(1, 9000))
            used, needed = collected.feed(data[pos:end])
            assert not needed or pos + used + needed > end
            pos += used
            if rng.random() < 0.3:
                found += rows_in(collected)
        found += rows_in(collected)
        assert found == wanted
        assert (collected.received, collected.last_seq) == (1599, 1694)
        assert (collected.last_cseq, collected.pending) == (1599, 401)
        assert set(lines) <= {b"PING"}


def rows_in(frames: Frames) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    for rows in frames.take():
        arrays = (rows.subjects, rows.headers, rows.payloads)
        columns = [rows.seqs.tolist(), rows.ts_ns.tolist(), *(one.to_pylist() for one in arrays)]
        found += zip(*columns, strict=True)
    return found


def test_a_payload_that_looks_like_frames_is_a_payload() -> None:
    evil, _ = delivery(500, random.Random(1), is_regular=True)
    frames = []
    for number in range(100, 180):
        payload = evil if number % 2 else evil[::-1]
        ack = b"$JS.ACK.S.c.1.%d.%d.1700000000000000000.%d" % (number, number, 400)
        frames.append(b"MSG s.1 3 %b %d\r\n%b\r\n" % (ack, len(payload), payload))
    collected = Frames(3, print)
    collected.feed(b"".join(frames))
    rows = rows_in(collected)
    assert [row[0] for row in rows] == list(range(100, 180))
    assert {row[4] for row in rows} == {evil, evil[::-1]}


def test_a_status_is_told_and_is_no_row() -> None:
    collected = Frames(3, print)
    block = b"NATS/1.0 409 Consumer Deleted\r\n\r\n"
    collected.feed(b"HMSG _INBOX.a 3 %d %d\r\n%b\r\n" % (len(block), len(block), block))
    assert collected.status == (409, "Consumer Deleted")
    assert collected.count == 0


@pytest.mark.parametrize(
    "data", [b"MSG a 3 $JS.ACK.S.c.1.2.3 1\r\nx\r\n", b"MSG a 3 r x\r\n", b"MSG a 3 r.r 1\r\nx\r\n"]
)
def test_a_delivery_that_is_none_is_an_error(data: bytes) -> None:
    with pytest.raises(WireError):
        collected = Frames(3, print)
        collected.feed(data)
        collected.take()


# --- planning -------------------------------------------------------------------------------------


def test_ranges_cover_all_seqs_and_differ_by_one_at_most() -> None:
    for start, end, count in ((1, 10, 3), (5, 5, 1), (1, 1000, 7), (2, 9, 8)):
        ranges = split(start, end, count)
        covered = [seq for low, high in ranges for seq in range(low, high + 1)]
        assert covered == list(range(start, end + 1))
        sizes = {high - low + 1 for low, high in ranges}
        assert max(sizes) - min(sizes) <= 1


def test_the_number_of_ranges_follows_the_tightest_bound() -> None:
    def count(**more: int) -> int:
        options = options_of("h", **more)
        return partition_count(options, seqs=1000, messages=1000, average_size=100)

    assert count() == 1
    assert count(maxRecordsPerPartition=300) == 4
    assert count(maxBytesPerPartition=10_000) == 10
    assert count(minPartitions=6, maxRecordsPerPartition=300) == 6
    assert count(minPartitions=5000) == 1000, "no range without a seq"


def test_the_end_is_frozen_when_the_read_is_planned(server: SparkTestServer) -> None:
    fill(server, 100)
    options = options_of(server)
    parts = plan(options)
    server.publish([("s.1", b"later")] * 50)
    assert seqs_of(options, parts) == list(range(1, 101))
    assert seqs_of(options) == list(range(1, 151))


def test_bounds_by_seq_and_time_are_inclusive(server: SparkTestServer) -> None:
    fill(server, 50)
    rows = rows_of(options_of(server))
    assert seqs_of(options_of(server, startSeq=10, endSeq=20)) == list(range(10, 21))
    assert seqs_of(options_of(server, startSeq=45, endSeq=1000)) == list(range(45, 51))
    assert seqs_of(options_of(server, startSeq=51)) == []
    at, until = rows[19]["ts_ns"], rows[29]["ts_ns"]
    wanted = [row["seq"] for row in rows if at <= row["ts_ns"] <= until]
    assert seqs_of(options_of(server, startTime=rfc3339(at), endTime=until)) == wanted
    assert seqs_of(options_of(server, startTime=rows[-1]["ts_ns"] + 1)) == []
    assert seqs_of(options_of(server, endTime=rows[0]["ts_ns"] - 1)) == []


def test_an_empty_stream_has_no_rows(server: SparkTestServer) -> None:
    server.create_stream("S")
    assert rows_of(options_of(server)) == []
    server.publish([("s.1", b"x")] * 3)
    server.purge("S")
    assert rows_of(options_of(server)) == []


def test_a_read_that_cannot_be_planned_names_the_option_at_fault(server: SparkTestServer) -> None:
    fill(server, 20)
    server.purge("S", seq=11)
    with pytest.raises(DataLost, match=r"'S' begins at seq 11, startSeq is 3"):
        plan(options_of(server, startSeq=3))
    assert seqs_of(options_of(server, startSeq=3, failOnDataLoss="false")) == list(range(11, 21))
    with pytest.raises(OptionError, match="latest"):
        plan(options_of(server, startingPosition="latest"))
    with pytest.raises(ApiError, match="stream not found"):
        plan(ReadOptions.parse({"servers": server.address, "stream": "NONE"}))
    with pytest.raises(WireLost, match="no server named 'n9'"):
        plan(options_of(server, readFrom="n9"))
    with pytest.raises(OptionError, match="lastPerSubject"):
        plan(options_of(server, lastPerSubject="true", endSeq=5))


# --- content --------------------------------------------------------------------------------------


def test_every_column_equals_the_published_message(server: SparkTestServer) -> None:
    """Sizes of 0 to 200 KB, with and without headers, many subjects; also by nats-py's eyes."""
    rng = random.Random(5)
    server.create_stream("S")
    sent = []
    for number in range(900):
        size = rng.choice([0, 1, 100, 100, 100, 3000, 200_000 if number % 90 == 0 else 5])
        headers = None if number % 4 else {**HEADERS, "Nats-Msg-Id": f"id{number}", "Ü": "ß"}
        sent.append((f"s.{'x' * (number % 13 + 1)}", rng.randbytes(size), headers))
    server.publish(sent)
    rows = rows_of(options_of(server, batchRows=250))
    assert [row["seq"] for row in rows] == list(range(1, 901))
    for row, (subject, payload, headers) in zip(rows, sent, strict=True):
        assert (row["stream"], row["subject"], row["payload"]) == ("S", subject, payload)
        assert row["size"] == len(payload)
        assert dict(row["headers"]) == {key: [value] for key, value in (headers or {}).items()}

    async def times(client: Any, js: Any) -> list[int]:
        got = [await js.get_msg("S", seq) for seq in (1, 450, 900)]
        return [round(one.time.timestamp() * 1e6) for one in got]

    found = [rows[seq - 1] for seq in (1, 450, 900)]
    assert [row["ts_ns"] // 1000 for row in found] == server.with_nats(times)
    assert [round(row["ts"].timestamp() * 1e6) for row in found] == [
        row["ts_ns"] // 1000 for row in found
    ]


def test_spark_sees_the_stream_as_it_is(spark: Any, server: SparkTestServer) -> None:
    """Through a real session: counts, order within partitions, content, columns, pruning."""
    fill(server, 20_000, size=100)
    reader = spark.read.format("streamd").option("servers", server.address).option("stream", "S")
    frame = reader.option("minPartitions", 4).load()
    rows = frame.selectExpr("seq", "subject", "payload", "spark_partition_id() part").collect()
    assert [row.part for row in rows] == [number // 5000 for number in range(20_000)]
    assert [row.seq for row in rows] == list(range(1, 20_001))
    assert all(int(row.payload) == row.seq for row in rows)
    assert all(row.subject == f"s.{(row.seq - 1) % 7}" for row in rows)
    some = reader.option("columns", "seq,size").option("subjects", "s.1,s.3").load()
    assert some.columns == ["seq", "size"]
    wanted = [seq for seq in range(1, 20_001) if (seq - 1) % 7 in (1, 3)]
    assert [row.seq for row in some.collect()] == wanted
    with pytest.raises(Exception, match="stream not found"):
        reader.option("stream", "NONE").load().count()


def test_filters_return_exactly_the_matching_messages(server: SparkTestServer) -> None:
    server.create_stream("S", ["s.>"], max_msgs=-1)
    sent = [f"s.{'rare' if number % 997 == 0 else number % 5}.x" for number in range(8000)]
    server.publish((subject, b"y") for subject in sent)
    for subjects, is_match in (
        ("s.rare.*", lambda subject: subject == "s.rare.x"),
        ("s.1.x,s.rare.>", lambda subject: subject in ("s.1.x", "s.rare.x")),
        ("s.none.>", lambda subject: False),
    ):
        wanted = [at for at, subject in enumerate(sent, 1) if is_match(subject)]
        assert seqs_of(options_of(server, subjects=subjects, minPartitions=3)) == wanted


def test_a_pushed_filter_does_not_bring_back_the_ledger(server: SparkTestServer) -> None:
    """Without option subjects the sink's ledger is not read, and no filter changes that."""
    server.create_stream("S", subjects=["s.>", "$LEDGER.S.>"])
    server.publish([("s.1", b"x"), ("$LEDGER.S.job.0", b"{}"), ("s.2", b"x")])

    def seqs(*subjects: str, **more: str) -> list[int]:
        reader = make_reader(options_of(server, pushdown="true", **more), spark_schema(COLUMNS))
        assert list(reader.pushFilters([In(("subject",), subjects)])) == []
        batches = [batch for part in reader.partitions() for batch in reader.read(part)]
        return [row["seq"] for batch in batches for row in batch.to_pylist()]

    assert seqs("$LEDGER.S.job.0") == []
    assert seqs("$LEDGER.S.job.0", "s.2") == [3]
    assert seqs("$LEDGER.S.job.0", "s.2", subjects=">") == [2, 3]


def test_pushed_filters_give_the_rows_that_spark_would(spark: Any, server: SparkTestServer) -> None:
    """With and without option pushdown, the same query has the same rows."""
    fill(server, 500)
    server.purge("S", seq=20)
    reader = spark.read.format("streamd").option("servers", server.address).option("stream", "S")
    pushed = reader.option("pushdown", "true").option("subjects", "s.1,s.2,s.3").load()
    for condition, wanted in (
        ("seq > 100 and seq <= 200 and subject = 's.1'", range(100, 200)),
        ("seq >= 3 and subject in ('s.2', 's.5', 's.*')", range(19, 500)),
        ("seq = 93 or size = 7", ()),
        ("subject = 's.6'", ()),
        ("seq < 5", ()),
    ):
        matching = {"s.1": (1,), "s.2": (2,)}
        subjects = next((matching[name] for name in matching if name in condition), ())
        expected = [number + 1 for number in wanted if number % 7 in subjects]
        if "93" in condition:
            expected = [93]
        assert [row.seq for row in pushed.where(condition).select("seq").collect()] == expected


def test_deleted_messages_are_left_out_without_an_error(server: SparkTestServer) -> None:
    fill(server, 300)
    gone = {2, 3, 100, 299, 300}
    for seq in gone:
        server.delete_msg("S", seq)
    wanted = [seq for seq in range(1, 301) if seq not in gone]
    assert seqs_of(options_of(server, minPartitions=3)) == wanted
    assert seqs_of(options_of(server, startSeq=299)) == []


def test_the_last_of_each_subject(server: SparkTestServer) -> None:
    fill(server, 1000)
    rows = rows_of(options_of(server, lastPerSubject="true", batchRows=3))
    assert [row["seq"] for row in rows] == list(range(994, 1001))
    assert seqs_of(options_of(server, lastPerSubject="true", subjects="s.2,s.5")) == [997, 1000]


@pytest.mark.parametrize("retention", ["workqueue", "interest"])
def test_streams_that_consumers_empty_are_read_without_one(
    server: SparkTestServer, retention: str
) -> None:
    server.create_stream("S", retention=retention, allow_direct=True)
    consumer = {"durable_name": "worker", "ack_policy": "explicit"}
    server.api("CONSUMER.CREATE.S.worker", {"stream_name": "S", "config": consumer})
    sent = [(f"s.{number % 3}", b"%d" % number, {"N": str(number)}) for number in range(500)]
    server.publish(sent)
    rows = rows_of(options_of(server, minPartitions=2, batchRows=100))
    assert [int(row["payload"]) for row in rows] == list(range(500))
    assert [dict(row["headers"])["N"] for row in rows] == [[str(n)] for n in range(500)]
    assert {row["ts_ns"] // 10**15 for row in rows} != {0}
    assert len(rows_of(options_of(server, subjects="s.1"))) == 167
    assert len(rows_of(options_of(server, subjects="s.1,s.2"))) == 333
    assert server.state("S")["messages"] == 500, "reading must not take anything away"


def test_a_work_queue_without_direct_gets_is_refused_with_the_remedy(
    server: SparkTestServer,
) -> None:
    server.create_stream("S", retention="workqueue")
    server.publish([("s.1", b"x")])
    with pytest.raises(WireError, match="set allow_direct"):
        rows_of(options_of(server))


def test_no_consumers_allowed_means_direct_gets(server: SparkTestServer) -> None:
    fill(server, 50, max_consumers=1, allow_direct=True)
    taken = {"durable_name": "only", "ack_policy": "explicit"}
    server.api("CONSUMER.CREATE.S.only", {"stream_name": "S", "config": taken})
    assert seqs_of(options_of(server)) == list(range(1, 51))


def test_a_read_leaves_no_consumer_behind(server: SparkTestServer) -> None:
    fill(server, 100)
    rows_of(options_of(server, minPartitions=5))
    rows_of(options_of(server, subjects="s.1"))
    assert server.state("S")["consumer_count"] == 0


def test_large_messages_come_in_batches_of_bounded_size(
    server: SparkTestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.create_stream("S")
    server.publish([("s.1", b"%d" % number + bytes(200_000)) for number in range(99)])
    monkeypatch.setattr(online_read, "BATCH_BYTES_MAX", 2_000_000)
    options = options_of(server)
    batches = [batch for part in plan(options) for batch in read_range(options, part)]
    assert max(batch.nbytes for batch in batches) < 3_000_000
    found = [row["payload"][:3].rstrip(b"\0") for batch in batches for row in batch.to_pylist()]
    assert found == [b"%d" % number for number in range(99)]


# --- loss -----------------------------------------------------------------------------------------


def test_a_stream_made_again_is_an_error_whatever_the_option(server: SparkTestServer) -> None:
    fill(server, 100)
    for more in ({}, {"failOnDataLoss": "false"}):
        options = options_of(server, **more)
        parts = plan(options)
        server.api("STREAM.DELETE.S")
        with pytest.raises(StreamChanged, match="was deleted while"):
            seqs_of(options, parts)
        fill(server, 100)
        with pytest.raises(StreamChanged, match="deleted and created again"):
            seqs_of(options, parts)


def test_a_purge_between_plan_and_read_is_loss(server: SparkTestServer) -> None:
    fill(server, 100)
    options = options_of(server)
    lenient = options_of(server, failOnDataLoss="false")
    parts = plan(options)
    server.purge("S", seq=31)
    with pytest.raises(DataLost, match=r"seqs 1\.\.30 were removed before they were read"):
        seqs_of(options, parts)
    assert seqs_of(lenient, parts) == list(range(31, 101))
    server.purge("S")
    assert seqs_of(lenient, parts) == []
    with pytest.raises(DataLost, match=r"seqs 1\.\.100 "):
        seqs_of(options, parts)


def test_a_purge_in_the_middle_of_the_read_is_loss(server: SparkTestServer) -> None:
    fill(server, 1000, size=2000)
    options = options_of(server, batchRows=100)
    reading = read_range(options, plan(options)[0])
    first = next(reading)
    assert first.column("seq")[0].as_py() == 1
    server.purge("S", seq=901)
    with pytest.raises(DataLost, match=r"\.\.900 were removed"):
        list(reading)


def test_a_purge_of_messages_already_read_is_no_loss(server: SparkTestServer) -> None:
    """A head that moves behind the reader is no loss."""
    fill(server, 1000)
    options = options_of(server, batchRows=100)
    found: list[int] = []
    for batch in read_range(options, plan(options)[0]):
        found += batch.column("seq").to_pylist()
        if found[-1] == 300:
            server.purge("S", seq=200)
    assert found == list(range(1, 1001))


def test_keys_written_again_meanwhile_are_no_loss(server: SparkTestServer) -> None:
    server.create_stream("S", max_msgs_per_subject=1)
    server.publish([(f"s.{number}", b"1") for number in range(200)])
    options = options_of(server)
    parts = plan(options)
    server.publish([(f"s.{number}", b"2") for number in range(50)])
    assert seqs_of(options, parts) == list(range(51, 201))


# --- faults ---------------------------------------------------------------------------------------


def test_a_server_that_starts_again_in_the_middle_is_waited_for(server: SparkTestServer) -> None:
    fill(server, 3000)
    options = options_of(server, batchRows=500)
    reading = read_range(options, plan(options)[0])
    found = next(reading).column("seq").to_pylist()
    server.kill()
    server.start()
    for batch in reading:
        found += batch.column("seq").to_pylist()
    assert found == list(range(1, 3001))


def test_a_consumer_that_is_taken_away_is_made_again(server: SparkTestServer) -> None:
    fill(server, 3000)
    options = options_of(server, batchRows=500)
    found: list[int] = []
    for batch in read_range(options, plan(options)[0]):
        found += batch.column("seq").to_pylist()
        for name in server.api("CONSUMER.NAMES.S")["consumers"]:
            server.api(f"CONSUMER.DELETE.S.{name}")
    assert found == list(range(1, 3001))


@pytest.mark.parametrize("is_broken", [False, True])
@pytest.mark.parametrize("kept", [1, 2, -1])
def test_the_last_of_each_subject_comes_once_whatever_happens_meanwhile(
    server: SparkTestServer, kept: int, is_broken: bool
) -> None:
    """When 500 of 3,000 subjects are read, two of them and one that is still to come are written
    again, and the server may be killed. `kept`: of a subject; with 1 what was replaced is gone."""
    server.create_stream("S", max_msgs_per_subject=kept)
    server.publish([(f"s.{number}", b"1") for number in range(3000)])
    options = options_of(server, lastPerSubject="true", batchRows=500)
    reading = read_range(options, plan(options)[0])
    rows = next(reading).to_pylist()
    server.publish([("s.0", b"2"), ("s.1", b"2"), ("s.2999", b"2")])
    if is_broken:
        server.kill()
        server.start()
    for batch in reading:
        rows += batch.to_pylist()
    seqs = [row["seq"] for row in rows]
    assert seqs == sorted(set(seqs))
    assert sorted(row["subject"] for row in rows) == sorted(f"s.{n}" for n in range(3000))
    payloads = {row["subject"]: row["payload"] for row in rows}
    assert payloads.pop("s.2999") == (b"2" if is_broken or kept == 1 else b"1")
    assert set(payloads.values()) == {b"1"}


def test_the_last_of_each_subject_is_read_on_without_its_consumer(server: SparkTestServer) -> None:
    server.create_stream("S")
    server.publish([(f"s.{number}", b"1") for number in range(3000)])
    options = options_of(server, lastPerSubject="true", batchRows=500)
    found: list[int] = []
    for batch in read_range(options, plan(options)[0]):
        found += batch.column("seq").to_pylist()
        for name in server.api("CONSUMER.NAMES.S")["consumers"]:
            server.api(f"CONSUMER.DELETE.S.{name}")
    assert found == list(range(1, 3001))


def test_a_read_fails_when_no_server_can_be_reached(
    server: SparkTestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(server, 10)
    options = options_of(server)
    parts = plan(options)
    server.kill()
    monkeypatch.setattr(online_read, "GIVES_UP_S", 0.3)
    with pytest.raises(WireLost, match=f"no server could be reached: {server.address}"):
        seqs_of(options, parts)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    binary = ours_binary()
    if not binary:
        pytest.skip("streamd is not installed beside this interpreter")
    with ClusterProcess(binary, directory=tmp_path_factory.mktemp("cluster")) as made:
        made.start()
        yield made


def fill_cluster(cluster: ClusterProcess, count: int, *, size: int = 100) -> str:
    """Make stream S anew with three replicas and return its leader. What was sent to a leader that
    lost its office gets no ack, or an error, and without ids it can't be sent again: then all
    begins anew."""
    cluster.start()
    port = next(iter(cluster.ports.values()))
    for is_last in (False, False, True):
        with PlainWire(port) as wire:
            wire.api("STREAM.DELETE.S")
            config = {"name": "S", "subjects": ["s.>"], "num_replicas": 3}
            made = wire.api("STREAM.CREATE.S", config)
            assert "error" not in made, made
        leader = cluster.leader("S")
        frames = (frame_of((f"s.{n % 7}", b"%0*d" % (size, n + 1))) for n in range(count))
        try:
            flood(cluster.ports[leader], frames)
        except (TimeoutError, AssertionError):
            if is_last:
                raise
        else:
            break
    return leader


def all_servers(cluster: ClusterProcess) -> str:
    return ",".join(url.removeprefix("nats://") for url in cluster.urls)


@pytest.mark.slow
@pytest.mark.parametrize("read_from", ["leader", "any", "follower"])
def test_the_node_read_from_is_killed_in_the_middle(
    cluster: ClusterProcess, read_from: str
) -> None:
    """SIGKILL after the first batch: every message once, in order, with its content. The read
    knows one address at first; the others it learns from the cluster."""
    leader = fill_cluster(cluster, 12_000)
    followers = [name for name in cluster.ports if name != leader]
    place = followers[0] if read_from == "follower" else leader
    begin = cluster.nodes[place].url.removeprefix("nats://")
    options = options_of(
        begin, batchRows=1000, readFrom=place if read_from == "follower" else read_from
    )
    reading = read_range(options, plan(options)[0])
    rows = next(reading).to_pylist()
    cluster.kill(place)
    for batch in reading:
        rows += batch.to_pylist()
    cluster.start()
    assert [row["seq"] for row in rows] == list(range(1, 12_001))
    assert all(int(row["payload"]) == row["seq"] for row in rows)


@pytest.mark.slow
def test_spark_reads_on_when_the_leader_is_killed(spark: Any, cluster: ClusterProcess) -> None:
    """The leader dies when the first task has begun to read; the job does not notice."""
    leader = fill_cluster(cluster, 30_000)
    reader = spark.read.format("streamd").option("servers", all_servers(cluster))
    frame = reader.option("stream", "S").option("minPartitions", 6).load()
    pid = cluster.nodes[leader].pid

    def slow_first(batches: Iterator[Any]) -> Iterator[Any]:
        import contextlib
        import os
        import signal

        for number, batch in enumerate(batches):
            if number == 0 and batch.column("seq")[0].as_py() == 1:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            yield batch

    rows = (
        frame.select("seq", "payload").mapInArrow(slow_first, "seq long, payload binary").collect()
    )
    assert cluster.nodes[leader].is_running() is False
    cluster.kill(leader)
    cluster.start()
    assert [row.seq for row in rows] == list(range(1, 30_001))
    assert all(int(row.payload) == row.seq for row in rows)


@pytest.mark.slow
def test_reads_begin_at_the_leader_or_where_they_are_told(cluster: ClusterProcess) -> None:
    leader = fill_cluster(cluster, 100)
    follower = next(name for name in cluster.ports if name != leader)
    everywhere = all_servers(cluster)

    def servers_of(**more: str) -> set[str]:
        options = options_of(everywhere, columns="seq,replica", **more)
        return {row["replica"] for row in rows_of(options)}

    assert servers_of() == servers_of(readFrom="leader") == {leader}
    assert servers_of(readFrom=follower) == {follower}
    assert len(servers_of(readFrom="any")) == 1


def test_a_path_of_the_repository_is_not_needed_by_tasks() -> None:
    """What tasks import is real modules: nothing of it lives in __main__ or in tests."""
    for part in (SeqRange(1, 2, "c"), options_of("h")):
        assert type(part).__module__.startswith("spark_jobs.")
        assert Path(__import__(type(part).__module__, fromlist=["x"]).__file__ or "").exists()
