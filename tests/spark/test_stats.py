"""Stats against figures counted in plain Python, from a server and from its files."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from spark_jobs.jobs import stats
from spark_jobs.jobs.command import EXIT_FAILED, EXIT_OK
from tests.spark.servers import SparkTestServer

NS = 1_000_000_000


def batch(rows: list[tuple[str, int, int, int]]) -> pa.RecordBatch:
    """Of (subject, seq, ts_ns, size)."""
    subjects, seqs, times, sizes = map(list, zip(*rows, strict=True))
    return pa.record_batch(
        [pa.array(subjects), pa.array(seqs), pa.array(times), pa.array(sizes, pa.int32())],
        names=["subject", "seq", "ts_ns", "size"],
    )


def counted(batches: list[pa.RecordBatch]) -> list[dict[str, Any]]:
    return [row for made in stats.count_partition(iter(batches)) for row in made.to_pylist()]


def test_a_partition_counts_across_its_batches() -> None:
    rows = [("a", 5, 0, 10), ("b", 6, 3 * NS, 0), ("a", 9, 3 * NS + 1, 7), ("a", 10, 2 * NS, 1)]
    whole = counted([batch(rows)])
    parts = counted([batch(rows[:1]), batch(rows[1:3]), batch(rows[3:])])
    assert sorted(parts, key=str) == sorted(whole, key=str)
    found = {(row["kind"], row["key"], row["number"]): row for row in whole}
    assert found["subject", "a", 0]["count"] == 3
    assert found["subject", "a", 0]["bytes"] == 18
    assert found["second", "", 3]["count"] == 2
    assert found["backwards", "", 0]["count"] == 1
    edge = found["edge", "", 5]
    assert (edge["count"], edge["low"], edge["high"]) == (10, 0, 2 * NS)
    gaps = sorted(row["high"] for row in whole if row["kind"] == "gap")
    assert gaps == [0, 1, 3 * NS]
    assert found["long gap", "", 6]["count"] == 3 * NS


@pytest.mark.parametrize("value", [0, 1, 2, 3, 1000, 999_999_937, 10**15])
def test_a_step_stands_for_its_values_within_five_percent(value: int) -> None:
    step = int(stats._steps(stats.np.array([value]))[0])
    assert abs(stats._step_value(step) - value) <= max(0.05 * value, 1)


def test_figures_are_those_of_the_messages(
    spark: Any, server: SparkTestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.create_stream("S", subjects=["s.>"], allow_direct=True)
    sent = [(f"s.{min(n % 10, 3)}", b"x" * (n % 50)) for n in range(1000)]
    server.publish(sent)
    server.delete_msg("S", 500)
    kept = [each for seq, each in enumerate(sent, start=1) if seq != 500]
    counts = Counter(subject for subject, _ in kept)
    online = ("--servers", server.url, "--stream", "S", "--quiet")
    assert stats.main([*online, "--output", "json", "--top", "2"]) == EXIT_OK
    found = json.loads(capsys.readouterr().out)
    assert (found["messages"], found["first_seq"], found["last_seq"]) == (999, 1, 1000)
    assert found["missing_seqs"] == 1
    assert found["bytes"] == sum(len(payload) for _, payload in kept)
    assert [row["subject"] for row in found["top_subjects"]] == ["s.3", "s.0"]
    assert found["top_subjects"][0]["messages"] == counts["s.3"]
    assert found["subjects"] == 4
    assert found["skew"] == pytest.approx(counts["s.3"] / (999 / 4))
    assert (found["size"]["min"], found["size"]["max"]) == (0, 49)
    assert found["size"]["percentiles"]["p50"] == pytest.approx(24.5, rel=0.1)
    times = [
        row.ts_ns
        for row in spark.read.format("streamd")
        .options(servers=server.url, stream="S", columns="seq,ts_ns")
        .load()
        .orderBy("seq")
        .collect()
    ]
    gaps = [after - before for before, after in pairwise(times)]
    assert found["gap_ns"]["max"] == max(gaps)
    assert found["long_gaps"][0]["seconds"] == max(gaps) / NS
    offline = ("--path", str(server.store_dir), "--stream", "S", "--quiet")
    parquet = ("--output", "parquet", "--to", str(tmp_path / "p"))
    assert stats.main([*offline, *parquet]) == EXIT_OK
    rows = spark.read.parquet(str(tmp_path / "p")).where("kind = 'subject'").collect()
    assert {row.key: row["count"] for row in rows} == counts


def test_a_count_that_fails_is_said_in_one_line(
    spark: Any, server: SparkTestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.create_stream("EMPTY", allow_direct=True)
    online = ("--servers", server.url, "--quiet", "--stream")
    assert stats.main([*online, "EMPTY"]) == EXIT_OK
    assert capsys.readouterr().out.split() == ["stream", "EMPTY", "messages", "0"]
    assert stats.main([*online, "NOPE"]) == EXIT_FAILED
    assert "stream 'NOPE': stream not found" in capsys.readouterr().err
    assert stats.main([*online, "EMPTY", "--output", "parquet"]) == EXIT_FAILED
    assert "needs --to DIR" in capsys.readouterr().err
    assert stats.main(["--servers", "127.0.0.1:1", "--stream", "S", "--quiet"]) == EXIT_FAILED
    assert "no answer from 127.0.0.1:1" in capsys.readouterr().err
