"""Export with a real server: increments, cuts, refusals, compaction, verification, SIGKILL."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs.client.options import parse_time
from spark_jobs.export import export_job as export
from spark_jobs.export.export_ledger import Ledger
from spark_jobs.export.files import LocalFiles
from spark_jobs.jobs.command import EXIT_DIFFERENT, EXIT_FAILED, EXIT_OK, EXIT_WARNINGS
from streamd.machine import commands
from tests.spark import audit_damage as damage
from tests.spark.audit_stores import Replica, small_blocks
from tests.spark.reads import read_rows
from tests.spark.servers import SparkTestServer

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
REGIONS = ("eu", "us", "asia")


def message(number: int) -> tuple[str, bytes, dict[str, str] | None]:
    headers = {"Nats-Msg-Id": f"id-{number}", "Kind": "a b"} if number % 3 else None
    return f"orders.{REGIONS[number % 3]}.{number % 7}", b"\x00\xffpayload %d" % number, headers


def fill(server: SparkTestServer, first: int, last: int) -> None:
    server.publish(message(number) for number in range(first, last + 1))


@pytest.fixture
def orders(server: SparkTestServer) -> SparkTestServer:
    """A server whose stream ORDERS holds message n at seq n, 1..600."""
    server.create_stream("ORDERS", allow_direct=True)
    fill(server, 1, 600)
    return server


def run(server: SparkTestServer, target: Path, *more: str) -> int:
    where = () if "--path" in more else ("--servers", server.url)
    return export.main([*where, "--stream", "ORDERS", "--to", str(target), "--quiet", *more])


def offline(server: SparkTestServer) -> tuple[str, str]:
    return "--path", str(server.store_dir)


def ledger_of(target: Path) -> Ledger:
    return Ledger.open(LocalFiles(target))


def check_content(table: pa.Table, first: int, last: int) -> None:
    """Exactly the messages first..last, each as it was published."""
    rows = {row["seq"]: row for row in table.to_pylist()}
    assert len(rows) == table.num_rows
    assert sorted(rows) == list(range(first, last + 1))
    for seq, row in rows.items():
        subject, payload, headers = message(seq)
        assert (row["subject"], row["payload"]) == (subject, payload)
        wanted = [(key, [value]) for key, value in (headers or {}).items()]
        assert sorted(row["headers"] or []) == sorted(wanted), seq
        assert (row["stream"], row["size"]) == ("ORDERS", len(payload))
        assert (row["ts"] - EPOCH) // timedelta(microseconds=1) == row["ts_ns"] // 1000


def test_increments_offline_and_online_make_one_directory(
    spark: Any, orders: SparkTestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files first, then the server; by date and subject token; compaction; a range without rows."""
    target = tmp_path / "out"
    arguments = ("--partition-by", "date,subject:2", "--commit-rows", "300")
    assert run(orders, target, *offline(orders), *arguments) == EXIT_OK
    assert len(ledger_of(target).commits) == 2
    fill(orders, 601, 700)
    assert run(orders, target, "--verify") == EXIT_OK
    assert "verified: 700 rows are equal" in capsys.readouterr().out
    seen = spark.read.parquet(str(target))
    assert {"date", "subject_2"} <= set(seen.columns)
    assert seen.where("subject_2 = 'eu'").count() == 233
    assert {path.parent.name for path in target.rglob("*.parquet")} == {
        f"subject_2={region}" for region in REGIONS
    }
    check_content(pq.read_table(target), 1, 700)
    before = ledger_of(target)
    assert run(orders, target, "--compact", "--verify") == EXIT_OK
    after = ledger_of(target)
    assert len(before.live) == 9
    assert len(after.live) == 3
    assert (after.rows, after.digest, after.last_seq) == (700, before.digest, 700)
    check_content(pq.read_table(target), 1, 700)
    assert sum(1 for _ in target.rglob("*.parquet")) == 3
    fill(orders, 701, 703)
    for seq in (701, 702, 703):
        orders.delete_msg("ORDERS", seq)
    assert run(orders, target) == EXIT_OK
    last = ledger_of(target).commits[-1]
    assert (last.first_seq, last.last_seq, last.rows, last.files) == (701, 703, 0, ())
    records = spark.read.json(str(target / "_streamd_ledger"))
    assert records.where("kind = 'export'").selectExpr("sum(rows)").first()[0] == 700


def test_as_of_cuts_by_seq_and_by_time_and_never_goes_back(
    spark: Any, orders: SparkTestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out of [x] % {y}"
    arguments = ("--partition-by", "none", *offline(orders))
    assert run(orders, target, *arguments, "--as-of", "100") == EXIT_OK
    check_content(pq.read_table(target), 1, 100)
    found = orders.api("STREAM.MSG.GET.ORDERS", {"seq": 250})
    # Several messages may carry the time of 250: the last of them is where the cut is. The texts
    # do not sort as the times do: zeros at the end of a fraction are left out.
    time = found["message"]["time"]
    times = {}
    for seq in range(245, 300):
        reply = orders.api("STREAM.MSG.GET.ORDERS", {"seq": seq})
        times[seq] = parse_time("time", reply["message"]["time"])
    last = max(seq for seq, each in times.items() if each <= times[250])
    assert run(orders, target, "--as-of", time) == EXIT_OK
    check_content(pq.read_table(target), 1, last)
    capsys.readouterr()
    assert run(orders, target, "--as-of", "50") == EXIT_FAILED
    assert f"already goes to {last}; export into another directory" in capsys.readouterr().err
    check_content(pq.read_table(target), 1, last)


def test_the_same_beginning_again_is_no_other_one(
    spark: Any, orders: SparkTestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--start-seq before the stream's first message, again; and a cut before its first message."""
    target = tmp_path / "out"
    orders.purge("ORDERS", seq=101)
    arguments = ("--partition-by", "none", "--start-seq", "50")
    assert run(orders, target, *arguments, "--as-of", "80") == EXIT_OK
    assert ledger_of(target).commits == []
    assert run(orders, target, *arguments, "--as-of", "200") == EXIT_OK
    assert run(orders, target, *arguments) == EXIT_OK
    check_content(pq.read_table(target), 101, 600)
    for start in ("102", "300"):
        capsys.readouterr()
        assert run(orders, target, "--start-seq", start) == EXIT_FAILED
        assert f"begins at seq 101, --start-seq says {start}" in capsys.readouterr().err
    other = tmp_path / "later"
    assert run(orders, other, "--start-seq", "500") == EXIT_OK
    assert run(orders, other, "--start-seq", "400") == EXIT_FAILED


def test_another_stream_under_the_name_is_refused(
    spark: Any, orders: SparkTestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other partitions, other subjects, a gap, an older copy, and a stream created anew."""
    target = tmp_path / "out"

    def refused(*more: str) -> str:
        capsys.readouterr()
        assert run(orders, target, *more) == EXIT_FAILED
        said = capsys.readouterr().err
        assert len(said.splitlines()) == 1, said
        return said

    assert "must be date, subject:N" in refused("--partition-by", "subject:0")
    assert run(orders, target, "--partition-by", "none", "--as-of", "200") == EXIT_OK
    assert "is partitioned by none, not by date" in refused("--partition-by", "date")
    assert "holds subjects (all), not orders.eu.*" in refused("--subjects", "orders.eu.*")
    orders.purge("ORDERS", seq=301)
    assert "seqs 201..300 left stream ORDERS before" in refused()
    assert run(orders, target, "--accept-gaps") == EXIT_OK
    ledger = ledger_of(target)
    assert (ledger.rows, ledger.commits[-1].gap) == (500, (201, 300))
    orders.api("STREAM.DELETE.ORDERS")
    orders.create_stream("ORDERS", allow_direct=True)
    fill(orders, 1, 700)
    assert "stream ORDERS was created anew at" in refused()
    assert ledger_of(target).rows == 500
    other = tmp_path / "other"
    other.mkdir()
    pq.write_table(pa.table({"x": [1]}), other / "theirs.parquet")
    assert run(orders, other) == EXIT_FAILED
    assert "Parquet files that no export wrote (theirs.parquet)" in capsys.readouterr().err


def test_a_stream_in_memory_that_its_server_forgot_is_refused(
    spark: Any, server: SparkTestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It begins at seq 1 again under its old creation time, and has passed what was exported."""
    target = tmp_path / "out"
    server.create_stream("ORDERS", allow_direct=True, storage="memory")
    fill(server, 1, 20)
    assert run(server, target) == EXIT_OK
    server.purge("ORDERS", seq=11)
    fill(server, 21, 30)
    assert run(server, target) == EXIT_OK, "the same stream, with less in it"
    server.stop()
    server.start()
    fill(server, 1, 40)
    capsys.readouterr()
    assert run(server, target) == EXIT_FAILED
    assert "stream ORDERS has begun anew since" in capsys.readouterr().err
    assert ledger_of(target).rows == 30


def test_verify_tells_rows_that_left_from_rows_that_are_wrong(
    spark: Any, orders: SparkTestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "out"
    assert run(orders, target, "--partition-by", "none", *offline(orders)) == EXIT_OK
    for seq in (1, 2, 300):
        orders.delete_msg("ORDERS", seq)
    capsys.readouterr()
    assert run(orders, target, "--verify") == EXIT_OK
    assert "3 rows have left the stream since" in capsys.readouterr().out
    path = next(target.rglob("*.parquet"))
    _replace_payload(path, seq=77)
    _accept_sizes(target)
    assert run(orders, target, "--verify") == EXIT_DIFFERENT
    said = capsys.readouterr().out
    assert "NOT equal: 1 different: seq 77 (changed in payload)" in said
    _drop_row(path, seq=400)
    _accept_sizes(target)
    assert run(orders, target, "--verify") == EXIT_DIFFERENT
    assert "1 missing in the files" in capsys.readouterr().out
    path.unlink()
    assert run(orders, target, "--verify") == EXIT_FAILED
    assert f"{path.name} has no bytes, commit 1 says" in capsys.readouterr().err


def _replace_payload(path: Path, *, seq: int) -> None:
    table = pq.read_table(path, partitioning=None)
    payloads = table.column("payload").to_pylist()
    at = table.column("seq").to_pylist().index(seq)
    payloads[at] = b"something else"
    position = table.schema.get_field_index("payload")
    pq.write_table(table.set_column(position, "payload", pa.array(payloads, pa.binary())), path)


def _drop_row(path: Path, *, seq: int) -> None:
    table = pq.read_table(path, partitioning=None)
    keep = [found != seq for found in table.column("seq").to_pylist()]
    pq.write_table(table.filter(pa.array(keep)), path)


def _accept_sizes(target: Path) -> None:
    """Make the ledger believe the sizes on disk, so that only the content tells."""
    for record in sorted((target / "_streamd_ledger").glob("*.json")):
        found = json.loads(record.read_text())
        for each in found["files"]:
            each["bytes"] = (target / each["path"]).stat().st_size
        record.write_text(json.dumps(found))


def test_damage_ends_an_export_unless_it_is_accepted_and_then_it_is_named(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some records, a whole block file, and messages deleted before: the ledger says which seqs
    were lost, whatever their subjects."""
    target = tmp_path / "out"
    with small_blocks():
        replica = Replica(tmp_path / "n1", name="ORDERS")
        for first in range(1, 301, 10):
            replica.publish(*[(b"orders.%d" % (n % 5), b"", b"%d" % n * 20) for n in
                              range(first, first + 10)])  # fmt: skip
        replica.delete(20)
        replica.delete(150)
        replica.snapshot()
        replica.close()
    blocks = [block for block in replica.machine.index.blocks if block.live]
    for seq in (290, 23, 22, 20):
        block = next(each for each in blocks if each.first_seq <= seq <= each.last_seq)
        path = replica.block(block.block_no)
        damage.flip(path, damage.record_of(path, seq).offset + 60)
    gone = next(each for each in blocks if each.first_seq <= 150 <= each.last_seq)
    replica.block(gone.block_no).unlink()
    missing = {22, 23, 290, *range(gone.first_seq, gone.last_seq + 1)} - {150}
    where = ("--path", str(tmp_path / "n1"), "--stream", "ORDERS", "--quiet")

    def run_at(target: Path, *more: str) -> int:
        return export.main([*where, "--to", str(target), *more])

    assert run_at(target) == EXIT_FAILED
    assert ledger_of(target).commits == []
    capsys.readouterr()
    assert run_at(target, "--accept-damage", "--commit-rows", "130", "--verify") == EXIT_WARNINGS
    said = capsys.readouterr()
    assert f"{len(missing)} messages are damaged and left out" in said.out
    assert "lost to damage: seqs 22..23" in said.err
    ledger = ledger_of(target)
    assert {n for each in ledger.commits for a, b in each.lost for n in range(a, b + 1)} == missing
    seqs = pq.read_table(target, columns=["seq"]).column("seq").to_pylist()
    assert sorted(seqs) == [n for n in range(1, 301) if n not in {20, 150, *missing}]
    assert run_at(target, "--accept-damage") == EXIT_OK, "nothing more was lost"
    some = tmp_path / "some"
    assert run_at(some, "--accept-damage", "--subjects", "orders.1") == EXIT_WARNINGS
    assert ledger_of(some).lost_count == len(missing)
    assert ledger_of(some).rows == sum(1 for n in seqs if n % 5 == 1)
    capsys.readouterr()
    assert export.main(["--stream", "S", "--to", str(target), "--accept-damage"]) == EXIT_FAILED
    assert "give --path" in capsys.readouterr().err


def test_a_log_that_is_damaged_behind_the_export_is_told(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: Any
) -> None:
    """What it held is not known, so an export of the rest is not a success without a word."""
    replica = Replica(tmp_path / "n1", name="ORDERS")
    replica.propose([commands.STORE, replica.tick(), [[b"orders.1", b"", b"x"]] * 100])
    replica.snapshot()
    for _ in range(20):
        replica.propose([commands.STORE, replica.tick(), [[b"orders.1", b"", b"x" * 9000]]])
    replica.close()
    segments = sorted((replica.root / "wal").glob("*.wal"))
    damage.flip(segments[1], segments[1].stat().st_size // 2)
    arguments = ["--path", str(tmp_path / "n1"), "--stream", "ORDERS", "--quiet", "--to"]
    with caplog.at_level(logging.WARNING, "streamd.spark"):
        rows = read_rows(tmp_path / "n1", "ORDERS", failOnDataLoss=False)
    assert f"read up to seq {rows[-1]['seq']}, as far as the log is whole: {segments[1]}" in (
        caplog.text
    )
    assert export.main([*arguments, str(tmp_path / "a")]) == EXIT_FAILED
    capsys.readouterr()
    assert export.main([*arguments, str(tmp_path / "b"), "--accept-damage"]) == EXIT_WARNINGS
    last = ledger_of(tmp_path / "b").last_seq
    assert 100 <= last == rows[-1]["seq"] < 120
    said = f"nothing is known of what is behind seq {last}: {segments[1]}"
    assert said in capsys.readouterr().err


@pytest.mark.proof
def test_a_killed_export_goes_on_where_it_was(
    spark: Any, orders: SparkTestServer, tmp_path: Path
) -> None:
    """SIGKILL of driver and workers between two commits of a process of its own."""
    target = tmp_path / "out"
    command = [
        *(sys.executable, "-m", "spark_jobs.jobs", "export", "--stream", "ORDERS"),
        *(*offline(orders), "--to", str(target), "--commit-rows", "60", "--master", "local[1]"),
    ]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, start_new_session=True, env={**os.environ}
    )
    assert process.stderr is not None
    try:
        said = []
        for line in process.stderr:
            said.append(line)
            if line.startswith("commit 2:"):
                break
        else:
            pytest.fail("".join(said))
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stderr.close()
    done = ledger_of(target).last_seq
    assert 120 <= done < 600
    seqs = pq.read_table(target, columns=["seq"]).column("seq").to_pylist()
    assert len(set(seqs)) == len(seqs)
    assert run(orders, target, *offline(orders), "--verify") == EXIT_OK
    check_content(pq.read_table(target), 1, 600)
