"""Filters, partitions, pushdown, and offline reads through Spark itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

import numpy as np

from spark_jobs.replica.decode import Selection, batches_of
from streamd.offline.stream_view import BlockRoom
from tests.parity.runner import ours_binary
from tests.spark.reads import Row, partitions_of, read_rows
from tests.spark.servers import SparkTestServer


def block_path(server: SparkTestServer, block_no: int) -> Path:
    return server.store_dir / "streamd" / "streams" / "2" / f"{block_no}.blk"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkTestServer]:
    """4000 messages in several blocks, on 50 subjects, some deleted. Tests only read it."""
    binary = ours_binary()
    if not binary:
        pytest.skip("streamd is not installed beside this interpreter")
    server = SparkTestServer(binary, tmp_path_factory.mktemp("filled"))
    server.start()
    server.create_stream("S")
    server.publish(
        (f"s.{at % 50}.{'ab'[at % 2]}", f"{at}:".encode().ljust(6000, b"."))
        for at in range(1, 4001)
    )
    for seq in (1, 7, 2000, 4000):
        server.delete_msg("S", seq)
    server.stop()  # leaves a snapshot, so that readers have little log to replay
    server.start()
    yield server
    server.close()


FILTERS: list[tuple[dict[str, Any], Callable[[Row], bool]]] = [
    ({"startSeq": 3000}, lambda row: row["seq"] >= 3000),
    ({"endSeq": 123}, lambda row: row["seq"] <= 123),
    ({"startSeq": 1999, "endSeq": 2001}, lambda row: 1999 <= row["seq"] <= 2001),
    ({"startSeq": 5000}, lambda row: False),
    ({"subjects": "s.7.>"}, lambda row: row["subject"].startswith("s.7.")),
    ({"subjects": "*.*.a, s.3.b"}, lambda row: row["subject"].endswith(("a", ".3.b"))),
    ({"subjects": "none.>"}, lambda row: False),
]


def test_filters_are_those_of_plain_python(filled: SparkTestServer) -> None:
    every = read_rows(filled.store_dir, "S")
    assert len(every) == 3996
    for options, wanted in FILTERS:
        found = read_rows(filled.store_dir, "S", **options)
        assert found == [row for row in every if wanted(row)], options


def test_times_and_last_per_subject(filled: SparkTestServer) -> None:
    every = read_rows(filled.store_dir, "S")
    low, high = every[1000]["ts_ns"], every[3000]["ts_ns"]
    found = read_rows(filled.store_dir, "S", startTime=low, endTime=high)
    assert found == every[1000:3001]
    newest = {row["subject"]: row for row in every}
    found = read_rows(filled.store_dir, "S", lastPerSubject=True)
    assert found == sorted(newest.values(), key=lambda row: int(row["seq"]))
    early = {
        row["subject"]: row for row in every if row["seq"] <= 777 and row["subject"][-1] == "a"
    }
    found = read_rows(filled.store_dir, "S", lastPerSubject=True, endSeq=777, subjects="s.*.a")
    assert found == sorted(early.values(), key=lambda row: int(row["seq"]))


def test_partitions_are_runs_of_whole_blocks(filled: SparkTestServer) -> None:
    """Within the limits, unless one block alone is beyond; every block once, in order."""
    whole = partitions_of(filled.store_dir, "S")
    assert len(whole) == 1
    blocks = [block.block_no for block in whole[0].blocks]
    assert len(blocks) >= 3
    for options in (
        {"maxBytesPerPartition": "17m"},
        {"maxRecordsPerPartition": 2900},
        {"minPartitions": 2},
        {"maxBytesPerPartition": 1},
    ):
        parts = partitions_of(filled.store_dir, "S", **options)
        assert len(parts) >= 2
        assert [block.block_no for part in parts for block in part.blocks] == blocks
        limit = options.get("maxRecordsPerPartition")
        for part in parts:
            live = sum(block.live for block in part.blocks)
            assert len(part.blocks) == 1 or not limit or live <= int(limit)
    only = partitions_of(filled.store_dir, "S", startSeq=3990)
    assert len(only[0].blocks) == 1


def test_more_partitions_than_blocks_split_them_by_seqs(filled: SparkTestServer) -> None:
    """As many as asked for, of about equal size; together they are the stream, also with bounds.
    The newest block has no footer and stays whole."""
    every = read_rows(filled.store_dir, "S", withDebug=True)
    (whole,) = partitions_of(filled.store_dir, "S")
    assert [block.has_footer for block in whole.blocks] == [True] * (len(whole.blocks) - 1) + [
        False
    ]
    for count in (len(whole.blocks), len(whole.blocks) + 1, 40):
        parts = partitions_of(filled.store_dir, "S", minPartitions=count)
        assert len(parts) == count
        found = read_rows(filled.store_dir, "S", withDebug=True, minPartitions=count)
        assert found == every
    newest = whole.blocks[-1]
    assert [part for part in parts if part.blocks[-1].block_no == newest.block_no] == parts[-1:]
    sizes = [(part.bounds.end_seq - part.bounds.start_seq + 1) * 6000 for part in parts[:-1]]
    assert max(sizes) <= 2 * min(sizes)
    bounds = {"startSeq": 100, "endSeq": 180}
    assert len(partitions_of(filled.store_dir, "S", minPartitions=10, **bounds)) == 10
    assert len(partitions_of(filled.store_dir, "S", minPartitions=1000, **bounds)) == 81
    for more in (bounds, {"lastPerSubject": True}, {"subjects": "s.7.>"}):
        wanted = read_rows(filled.store_dir, "S", **more)
        assert read_rows(filled.store_dir, "S", minPartitions=33, **more) == wanted


def test_a_part_of_a_block_is_read_without_the_rest(
    filled: SparkTestServer, tmp_path: Path
) -> None:
    """Unless its footer is damaged: then the records themselves must tell where they are."""
    (whole,) = partitions_of(filled.store_dir, "S")
    block = whole.blocks[1]
    blob = Path(block.path).read_bytes()
    first, last = block.first_seq + 10, block.first_seq + 19
    room = BlockRoom()
    room.take(len(blob))[:] = b"\xff" * len(blob)
    found = block.read(room, first_seq=first, last_seq=last)
    assert len(found) == len(blob)
    assert found[block.end_offset :] == blob[block.end_offset :]
    same = np.frombuffer(found, np.uint8) == np.frombuffer(blob, np.uint8)
    assert same[: block.end_offset].sum() < 20 * 6100
    selection = Selection(start_seq=first, end_seq=last)
    (batch,) = batches_of(found, block, stream="S", selection=selection)
    assert batch.column("seq").to_pylist() == list(range(first, last + 1))
    damaged = tmp_path / "1.blk"
    damaged.write_bytes(blob[:-100] + bytes([blob[-100] ^ 1]) + blob[-99:])
    again = replace(block, path=str(damaged))
    assert again.read(room, first_seq=first, last_seq=last) == damaged.read_bytes()
    (read,) = batches_of(again.read(room), again, stream="S", selection=selection)
    assert read.equals(batch)


def test_debug_columns_say_where_a_record_lies(filled: SparkTestServer) -> None:
    rows = read_rows(filled.store_dir, "S", withDebug=True, startSeq=1290, endSeq=1300)
    assert len(rows) == 11
    for row in rows:
        blob = block_path(filled, row["block"]).read_bytes()
        length = int.from_bytes(blob[row["pos"] : row["pos"] + 4], "little")
        end = row["pos"] + length
        assert blob[end - 4 - row["size"] : end - 4] == row["payload"]
        assert int.from_bytes(blob[end - 4 : end], "little") == row["crc"]
        assert row["replica"] == filled.store_dir.parent.name


# --- through Spark ------------------------------------------------------------------------------


def test_spark_reads_the_same(filled: SparkTestServer, spark: Any) -> None:
    """Found by its name alone; count, projection, a schema of the user's, and an error's text."""
    wanted = read_rows(filled.store_dir, "S", includeHeaders=False)
    options = {"path": str(filled.store_dir), "stream": "S", "maxBytesPerPartition": "9m"}
    frame = spark.read.format("streamd").options(**options).load()
    assert frame.count() == len(wanted)
    assert frame.rdd.getNumPartitions() >= 2
    rows = frame.select("seq", "subject", "payload", "size", "ts_ns").collect()
    assert [(r.seq, r.subject, bytes(r.payload), r.size, r.ts_ns) for r in rows] == [
        (r["seq"], r["subject"], r["payload"], r["size"], r["ts_ns"]) for r in wanted
    ]
    reader = spark.read.format("streamd").options(**options)
    narrow = reader.schema("size int, seq bigint").load()
    assert narrow.columns == ["size", "seq"]
    assert narrow.agg({"seq": "sum"}).first()[0] == sum(r["seq"] for r in wanted)
    with pytest.raises(Exception, match="no stream 'X'; streams there are: S"):
        spark.read.format("streamd").options(**{**options, "stream": "X"}).load().count()


def test_spark_sees_headers_and_times(server: SparkTestServer, spark: Any) -> None:
    server.create_stream("S")
    block = b"NATS/1.0\r\nA: 1\r\nB: x\r\nA: 2\r\n\r\n"
    server.publish([("s.a", b"", block), ("s.b", b"\x00\xff", None)])
    frame = spark.read.format("streamd").options(path=str(server.store_dir), stream="S").load()
    first, second = frame.orderBy("seq").collect()
    assert first.headers == {"A": ["1", "2"], "B": ["x"]}
    assert second.headers == {}
    assert bytes(second.payload) == b"\x00\xff"
    seconds = frame.selectExpr("unix_micros(ts) * 1000 <= ts_ns", "ts_ns - unix_micros(ts) * 1000")
    assert all(row[0] and row[1] < 1000 for row in seconds.collect())


def test_pushdown_changes_only_which_rows_are_read(filled: SparkTestServer, spark: Any) -> None:
    options = {"path": str(filled.store_dir), "stream": "S", "columns": "seq,subject,ts_ns"}
    conditions = [
        "seq > 100 and seq <= 1500",
        "seq >= 3000 and subject = 's.3.b'",
        "subject in ('s.1.b', 's.2.a', 's.*.a') or seq < 0",
        "subject in ('s.1.b', 's.2.a', 's.*.a') and subject like 's.1%'",
        "seq < 0",
    ]
    plain = spark.read.format("streamd").options(**options).load().cache()
    for condition in conditions:
        pushed = spark.read.format("streamd").options(**options, pushdown="true").load()
        found, wanted = (
            frame.where(condition)
            .selectExpr("count(1)", "sum(seq)", "bit_xor(xxhash64(seq, subject, ts_ns))")
            .first()
            for frame in (pushed, plain)
        )
        assert found == wanted, condition
    plain.unpersist()


def test_pushed_filters_leave_out_blocks(filled: SparkTestServer) -> None:
    from datetime import UTC, datetime, timedelta

    from pyspark.sql.datasource import EqualTo, GreaterThan, IsNotNull, LessThan, LessThanOrEqual

    from spark_jobs.source.offline import PushdownReader
    from spark_jobs.source.read_options import ReadOptions

    every = read_rows(filled.store_dir, "S")

    def seqs_of(*filters: Any) -> tuple[list[Any], list[int], int]:
        options = {"path": str(filled.store_dir), "stream": "S", "pushdown": "true"}
        reader = PushdownReader(ReadOptions.parse(options))
        left = list(reader.pushFilters(list(filters)))
        parts: list[Any] = list(reader.partitions())
        seqs = [s for p in parts for b in reader.read(p) for s in b.column("seq").to_pylist()]
        return left, seqs, sum(len(part.blocks) for part in parts)

    blocks = seqs_of()[2]
    left, seqs, read = seqs_of(IsNotNull(("seq",)), GreaterThan(("seq",), 3900))
    assert (left, seqs) == ([IsNotNull(("seq",))], list(range(3901, 4000)))
    assert read < blocks
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=every[500]["ts_ns"] // 1000)
    for kind, holds in (
        (LessThan, lambda ts: ts < moment),
        (LessThanOrEqual, lambda ts: ts <= moment),
        (GreaterThan, lambda ts: ts > moment),
        (EqualTo, lambda ts: ts == moment),
    ):
        left, seqs, _ = seqs_of(kind(("ts",), moment))
        assert left == []
        assert seqs == [row["seq"] for row in every if holds(row["ts"])]
    left, seqs, _ = seqs_of(EqualTo(("subject",), "s.*.a"))
    assert len(left) == 1
    assert seqs_of(LessThan(("seq",), 0))[1:] == ([], 0)
