"""The streaming source: no message is lost or comes twice, whatever stops the query."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed: make spark")

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)

from benchmarks.cluster import ClusterProcess
from spark_jobs.client import wire as wires
from spark_jobs.client.options import OptionError
from spark_jobs.client.stream_facts import DataLost, StreamChanged, rfc3339
from spark_jobs.client.wire import WireError
from spark_jobs.schema import spark_schema
from spark_jobs.source.read_options import ReadOptions
from spark_jobs.source.streaming import StreamdStreamReader, grid, make_stream_reader
from streamd.machine.rfc3339 import parse_ns
from tests.parity.runner import ours_binary
from tests.spark.servers import SparkTestServer, flood, frame_of
from tests.wire import Wire as PlainWire

ENDS_WITHIN_S = 60
Rows = list[tuple[int, bytes]]


@pytest.fixture(autouse=True)
def no_kept_connections() -> Iterator[None]:
    yield
    for _, _, kept in wires._idle:
        kept.close()
    wires._idle.clear()


def reader_of(server: SparkTestServer, **more: Any) -> StreamdStreamReader:
    given = {name: str(value) for name, value in more.items()}
    options = ReadOptions.parse({"servers": server.address, "stream": "S", **given})
    made = make_stream_reader(options, spark_schema(options.columns))
    assert isinstance(made, StreamdStreamReader)
    return made


def publish(server: SparkTestServer, count: int, *, first: int = 1, size: int = 30) -> None:
    server.publish((f"s.{n % 7}", b"%0*d" % (size, n)) for n in range(first, first + count))


def fill(server: SparkTestServer, count: int, **config: Any) -> None:
    server.create_stream("S", **config)
    publish(server, count)


def seqs_between(reader: StreamdStreamReader, start: Any, end: Any) -> list[int]:
    found: list[int] = []
    for part in reader.partitions(start, end):
        for batch in reader.read(part):
            found += batch.column("seq").to_pylist()
    return found


# --- offsets, against a server but without Spark --------------------------------------------------


def test_an_offset_names_the_next_seq_and_the_stream_it_is_of(server: SparkTestServer) -> None:
    fill(server, 10)
    created = server.api("STREAM.INFO.S")["created"]
    reader = reader_of(server)
    until = parse_ns(server.state("S")["last_ts"])
    assert reader.initialOffset() == {"v": 1, "seq": 1, "epoch": created, "until": until}
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    assert end == {"v": 1, "seq": 11, "epoch": created, "until": until}
    assert reader.latestOffset(end, ReadAllAvailable()) is end
    assert reader.reportLatestOffset() == end
    assert seqs_between(reader, reader.initialOffset(), end) == list(range(1, 11))


def test_a_query_begins_where_it_is_told(server: SparkTestServer) -> None:
    fill(server, 20)
    server.purge("S", seq=6)
    moment = next(
        batch.column("ts_ns")[4].as_py()
        for part in reader_of(server).partitions(*ends(reader_of(server)))
        for batch in reader_of(server).read(part)
    )

    def first(**more: Any) -> int:
        return int(reader_of(server, **more).initialOffset()["seq"])

    assert first() == first(startingPosition="earliest") == 6
    assert first(startingPosition="latest") == 21
    assert first(startSeq=9) == 9
    assert first(startSeq=100) == 100
    assert first(startTime=rfc3339(moment)) == 10
    assert first(startTime="2099-01-01T00:00:00Z") == 21
    with pytest.raises(DataLost, match=r"holds 6\.\.20, but seqs 3\.\.5 were removed"):
        first(startSeq=3)
    assert first(startSeq=3, failOnDataLoss="false") == 3


def ends(reader: StreamdStreamReader) -> tuple[Any, Any]:
    start = reader.initialOffset()
    return start, reader.latestOffset(start, ReadAllAvailable())


def test_limits_bound_a_batch_and_read_all_ignores_them(server: SparkTestServer) -> None:
    fill(server, 100)
    reader = reader_of(server, maxMsgsPerTrigger=30, minMsgsPerTrigger=20)
    start = reader.initialOffset()

    def span(limit: Any, begin: Any = start, of: StreamdStreamReader = reader) -> int:
        return int(of.latestOffset(begin, limit)["seq"] - begin["seq"])

    assert reader.getDefaultReadLimit() == ReadMaxRows(30)
    assert span(ReadMaxRows(30)) == 30
    assert span(ReadMaxRows(7)) == 7
    assert span(ReadAllAvailable()) == 100
    assert span(ReadMinRows(20)) == 30, "the options hold beside Spark's limit"
    assert span(ReadMaxRows(30), {**start, "seq": 91}) == 0, "10 are fewer than minMsgsPerTrigger"
    by_bytes = reader_of(server, maxBytesPerTrigger=1000)
    assert by_bytes.getDefaultReadLimit() == ReadMaxBytes(1000)
    average = server.state("S")["bytes"] // 100
    assert span(ReadMaxBytes(1000), of=by_bytes) == 1000 // average
    assert span(ReadMaxBytes(1), of=by_bytes) == 1, "one message must always pass"
    assert reader_of(server, minMsgsPerTrigger=5).getDefaultReadLimit() == ReadMinRows(5)
    assert reader_of(server).getDefaultReadLimit() == ReadAllAvailable()


def test_available_now_ends_at_the_end_of_its_beginning(server: SparkTestServer) -> None:
    fill(server, 100)
    reader = reader_of(server, maxMsgsPerTrigger=40, minMsgsPerTrigger=30)
    reader.prepareForTriggerAvailableNow()
    publish(server, 50)
    seqs, offset = [], reader.initialOffset()
    while (after := reader.latestOffset(offset, ReadMaxRows(40))) != offset:
        offset = after
        seqs.append(offset["seq"])
    assert seqs == [41, 81, 101], "the last 20 are not held back by minMsgsPerTrigger"


def test_partitions_depend_on_nothing_but_the_offsets() -> None:
    """No server is there to ask."""
    options = {"servers": "127.0.0.1:1", "stream": "S", "maxRecordsPerPartition": "100"}
    reader = StreamdStreamReader(ReadOptions.parse(options))
    start, end = ({"v": 1, "seq": seq, "epoch": "e"} for seq in (51, 351))
    ranges = [(part.start, part.end, part.created) for part in reader.partitions(start, end)]
    assert ranges == [(51, 100, "e"), (101, 200, "e"), (201, 300, "e"), (301, 350, "e")]
    assert reader.partitions(start, end) == reader.partitions(dict(start), dict(end))
    assert reader.partitions(start, start) == []
    assert [(part.start, part.end) for part in reader.partitions({**start, "epoch": "d"}, end)] == (
        grid(1, 350, 100)
    ), "of a stream made again, all is read"
    more = StreamdStreamReader(ReadOptions.parse({**options, "minPartitions": "10"}))
    assert len(more.partitions(start, end)) == 10
    with pytest.raises(WireError, match="version 2"):
        reader.partitions({**start, "v": 2}, end)


def test_a_query_outlives_a_server_that_is_away_for_a_while(
    server: SparkTestServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the next batch ends is asked for as long as tasks ask for messages. The pauses between
    two tries are counted, not made."""
    fill(server, 10)
    reader = reader_of(server)
    start = reader.initialOffset()
    server.stop()
    away_s = 0.0

    def pause(seconds: float) -> None:
        nonlocal away_s
        was, away_s = away_s, away_s + seconds
        if was < 20 <= away_s:
            server.start()

    monkeypatch.setattr(wires, "time", SimpleNamespace(sleep=pause, monotonic=time.monotonic))
    assert reader.latestOffset(start, ReadAllAvailable())["seq"] == 11


def test_a_stream_made_again_stops_the_query_unless_loss_is_allowed(
    server: SparkTestServer,
) -> None:
    fill(server, 30)
    strict, lenient = reader_of(server), reader_of(server, failOnDataLoss="false")
    start, old_end = ends(strict)
    server.api("STREAM.DELETE.S")
    fill(server, 12)
    with pytest.raises(StreamChanged, match=r"deleted and created again.*up to seq 30"):
        strict.latestOffset(old_end, ReadAllAvailable())
    # A batch that was planned before must not be filled from the new stream.
    with pytest.raises(StreamChanged):
        seqs_between(lenient, start, old_end)
    end = lenient.latestOffset(old_end, ReadAllAvailable())
    assert seqs_between(lenient, old_end, end) == list(range(1, 13))


def test_a_stream_in_memory_that_its_server_forgot_stops_the_query_unless_loss_is_allowed(
    server: SparkTestServer,
) -> None:
    """It begins at seq 1 again under its old creation time, and soon reaches the checkpoint."""
    fill(server, 30, storage="memory")
    strict, lenient = reader_of(server), reader_of(server, failOnDataLoss="false")
    _, old_end = ends(strict)
    server.stop()
    server.start()
    publish(server, 40)
    with pytest.raises(StreamChanged, match=r"begun anew.*up to seq 30"):
        strict.latestOffset(old_end, ReadAllAvailable())
    end = lenient.latestOffset(old_end, ReadMaxRows(35))
    assert seqs_between(lenient, old_end, end) == list(range(1, 36)), "the new ones, from the first"
    last = strict.latestOffset(end, ReadAllAvailable())
    assert seqs_between(strict, end, last) == list(range(36, 41))
    server.purge("S", seq=40)
    assert strict.latestOffset(last, ReadAllAvailable()) is last, "the same stream, with less in it"


def test_a_purged_head_stops_the_query_unless_loss_is_allowed(server: SparkTestServer) -> None:
    fill(server, 30)
    strict, lenient = reader_of(server), reader_of(server, failOnDataLoss="false")
    start = {**strict.initialOffset(), "seq": 5}
    server.purge("S", seq=21)
    with pytest.raises(DataLost, match=r"seqs 5\.\.20 were removed"):
        strict.latestOffset(start, ReadAllAvailable())
    end = lenient.latestOffset(start, ReadMaxRows(4))
    assert end["seq"] == 25, "what is gone does not count"
    assert seqs_between(lenient, start, end) == [21, 22, 23, 24]


def test_a_stream_that_is_shorter_than_the_checkpoint_is_loss(server: SparkTestServer) -> None:
    fill(server, 30)
    start = {**reader_of(server).initialOffset(), "seq": 40}
    with pytest.raises(DataLost, match="has read up to seq 39"):
        reader_of(server).latestOffset(start, ReadAllAvailable())
    lenient = reader_of(server, failOnDataLoss="false")
    assert lenient.latestOffset(start, ReadAllAvailable()) == start


def test_the_ack_consumer_shows_the_lag_and_takes_nothing(server: SparkTestServer) -> None:
    fill(server, 100)
    reader = reader_of(server, ackConsumer="lag")
    offset = {**reader.initialOffset(), "seq": 41}
    reader.commit(offset)
    assert server.api("CONSUMER.INFO.S.lag")["num_pending"] == 60
    reader.commit({**offset, "seq": 101})
    assert server.api("CONSUMER.INFO.S.lag")["num_pending"] == 0
    publish(server, 5)
    assert server.api("CONSUMER.INFO.S.lag")["num_pending"] == 5
    assert server.state("S")["messages"] == 105


def test_a_consumer_that_the_query_did_not_make_is_left_alone(
    server: SparkTestServer, caplog: pytest.LogCaptureFixture
) -> None:
    fill(server, 10)
    theirs = {"durable_name": "worker", "ack_policy": "explicit"}
    server.api("CONSUMER.CREATE.S.worker", {"stream_name": "S", "config": theirs})
    reader = reader_of(server, ackConsumer="worker")
    reader.commit({**reader.initialOffset(), "seq": 5})
    assert "did not make" in caplog.text
    assert server.api("CONSUMER.INFO.S.worker")["num_pending"] == 10


def test_options_of_batches_are_refused(server: SparkTestServer) -> None:
    for name, value in (("endSeq", 5), ("endTime", "2030-01-01"), ("lastPerSubject", "true")):
        with pytest.raises(OptionError, match=name):
            reader_of(server, **{name: value})


# --- queries --------------------------------------------------------------------------------------


class Batches:
    """What each batch of a query held. A batch that is done again replaces what it held first."""

    def __init__(self) -> None:
        self.held: dict[int, Rows] = {}
        self.repeated = 0
        self.before: Callable[[int], None] = lambda number: None

    def take(self, frame: Any, number: int) -> None:
        rows = [(row.seq, bytes(row.payload)) for row in frame.select("seq", "payload").collect()]
        if number in self.held:
            self.repeated += 1
            assert rows == self.held[number], f"batch {number} is another one when done again"
        self.held[number] = rows
        self.before(number)

    @property
    def rows(self) -> Rows:
        return [row for number in sorted(self.held) for row in self.held[number]]

    @property
    def sizes(self) -> list[int]:
        return [len(self.held[number]) for number in sorted(self.held)]


def start(
    spark: Any, address: str, checkpoint: Path, batches: Batches, trigger: Any = None, **more: Any
) -> Any:
    reading = spark.readStream.format("streamd").option("servers", address).option("stream", "S")
    for name, value in more.items():
        reading = reading.option(name, str(value))
    writing = reading.load().writeStream.foreachBatch(batches.take)
    return (
        writing.option("checkpointLocation", str(checkpoint))
        .trigger(**(trigger or {"availableNow": True}))
        .start()
    )


def wanted(first: int, last: int, size: int = 30) -> Rows:
    return [(seq, b"%0*d" % (size, seq)) for seq in range(first, last + 1)]


@pytest.mark.slow
def test_a_query_that_dies_repeats_its_batch_exactly(
    spark: Any, server: SparkTestServer, tmp_path: Path
) -> None:
    """Batch 1 fails after its work is done; more is published; the query starts again from its
    checkpoint: the same batch with the same rows, then the rest, nothing lost, nothing twice."""
    fill(server, 1000)
    batches = Batches()

    def die(number: int) -> None:
        if number == 1:
            raise RuntimeError("killed in batch 1")

    batches.before = die
    query = start(spark, server.address, tmp_path / "c", batches, maxMsgsPerTrigger=400)
    with pytest.raises(Exception, match="killed in batch 1"):
        query.awaitTermination(ENDS_WITHIN_S)
    assert batches.sizes == [400, 400]
    publish(server, 300, first=1001)
    batches.before = lambda number: None
    # Another limit: the batch under way must not change by it.
    again = start(
        spark,
        server.address,
        tmp_path / "c",
        batches,
        maxMsgsPerTrigger=250,
        maxRecordsPerPartition=100,
    )
    assert again.awaitTermination(ENDS_WITHIN_S)
    assert batches.repeated == 1
    assert batches.sizes == [400, 400, 250, 250]
    assert batches.rows == wanted(1, 1300)


@pytest.mark.slow
def test_a_recreated_stream_ends_the_query_with_the_reason(
    spark: Any, server: SparkTestServer, tmp_path: Path
) -> None:
    fill(server, 50)
    batches = Batches()
    assert start(spark, server.address, tmp_path / "c", batches).awaitTermination(ENDS_WITHIN_S)
    server.api("STREAM.DELETE.S")
    fill(server, 80)
    query = start(spark, server.address, tmp_path / "c", batches)
    with pytest.raises(Exception, match="deleted and created again"):
        query.awaitTermination(ENDS_WITHIN_S)
    assert batches.rows == wanted(1, 50)


@pytest.mark.slow
def test_a_following_query_survives_the_death_of_its_node(spark: Any, tmp_path: Path) -> None:
    """Continuous trigger, three nodes: the leader is killed between two batches, messages go on
    coming; all arrive once, in order."""
    binary = ours_binary()
    if not binary:
        pytest.skip("streamd is not installed beside this interpreter")
    with ClusterProcess(binary, directory=tmp_path / "cluster") as cluster:
        cluster.start()
        with PlainWire(cluster.ports["n1"]) as wire:
            config = {"name": "S", "subjects": ["s.>"], "num_replicas": 3}
            assert "error" not in wire.api("STREAM.CREATE.S", config)
        leader = cluster.leader("S")

        def send(port: int, first: int, count: int) -> None:
            flood(port, (frame_of(("s.1", b"%030d" % n)) for n in range(first, first + count)))

        send(cluster.ports[leader], 1, 2000)
        batches = Batches()
        address = ",".join(url.removeprefix("nats://") for url in cluster.urls)
        trigger = {"processingTime": "0 seconds"}
        query = start(spark, address, tmp_path / "c", batches, trigger, maxMsgsPerTrigger=700)
        try:
            cluster.wait_until(lambda: batches.sizes or query.exception(), "a first batch")
            cluster.kill(leader)
            new = cluster.leader("S", but=leader)
            send(cluster.ports[new], 2001, 500)
            cluster.wait_until(
                lambda: sum(batches.sizes) >= 2500 or query.exception(), "all batches"
            )
        finally:
            query.stop()
        assert query.exception() is None
        assert batches.rows == wanted(1, 2500)
