"""Publishers' logs against streams: what was acked and is not there, and what nobody published."""

from __future__ import annotations

import hashlib
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from spark_jobs.audit import expectations as audit_expect
from spark_jobs.audit import run as audit_run
from spark_jobs.audit.expectations import BadExpectation
from streamd.machine import commands
from streamd.offline.stream_view import find_stores
from tests.spark import audit_damage as damage
from tests.spark.audit_stores import Replica, small_blocks

Row = dict[str, Any]


def headers(msg_id: str) -> bytes:
    return f"NATS/1.0\r\nNats-Msg-Id: {msg_id}\r\n\r\n".encode()


def stored(directory: Path, *, has_ids: bool, count: int = 60) -> Replica:
    """`count` messages m1, m2, ... on two subjects, in several blocks."""
    replica = Replica(directory)
    for n in range(1, count + 1):
        block = headers(f"id{n}") if has_ids else b""
        replica.publish((b"s.%d" % (n % 2), block, b"m%d" % n + bytes(200)))
    return replica


def acked(n: int, **fields: Any) -> Row:
    payload = b"m%d" % n + bytes(200)
    row = {"seq": n, "subject": f"s.{n % 2}", "payload_hash": hashlib.sha256(payload).hexdigest()}
    return {**row, **fields}


def audited(spark: Any, replica: Replica, log: Path) -> tuple[list[Any], list[str]]:
    """((code, seq, got) of each finding, notes)"""
    with small_blocks():
        replica.close()
        stores = [("n1", store) for store in find_stores(replica.directory)]
        request = audit_run.Request(stores, expect=str(log), expect_stream="S")
        outcome = audit_run.audit(spark, request, lambda label: nullcontext())
    return [(e.code, e.seq_lo, e.got) for e in outcome.findings], outcome.notes


def test_acks_with_seqs(spark: Any, tmp_path: Path) -> None:
    """Content, subject and end are judged; a deleted message is not lost."""
    replica = stored(tmp_path / "n1", has_ids=False)
    replica.delete(10)
    rows = [acked(n) for n in range(1, 61) if n not in (30, 31)]
    rows[19]["payload_hash"] = "00" * 32
    rows += [acked(99), {"seq": 61, "subject": None, "payload_hash": None}]
    log = tmp_path / "log.parquet"
    pq.write_table(pa.Table.from_pylist(rows), log)
    found, notes = audited(spark, replica, log)
    assert found == [
        ("lost-write", 20, "another message: subject s.0"),
        ("lost-write", 61, "the stream ends at 60"),
        ("lost-write", 99, "the stream ends at 60"),
        ("phantom-write", 30, "subject s.0"),
        ("phantom-write", 31, "subject s.1"),
    ]
    assert notes == []


def test_acks_by_id_with_unanswered_ones(spark: Any, tmp_path: Path) -> None:
    """An unanswered publish may be stored or not; a stored message has one publish."""
    replica = stored(tmp_path / "n1", has_ids=True)
    replica.publish((b"s.1", headers("id5"), b"again"), seconds=200)
    replica.publish((b"other.1", headers("foreign"), b"not on a subject of the log"))
    rows = [{"msg_id": f"id{n}", "subject": f"s.{n % 2}"} for n in range(1, 60)]
    rows.append({"msg_id": "id60", "subject": "s.0", "status": "unknown"})
    rows.append({"msg_id": "never", "subject": "s.0", "status": "unknown"})
    rows.append({"msg_id": "lost", "subject": "s.0"})
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found, notes = audited(spark, replica, log)
    assert found == [
        ("lost-write", None, "no message"),
        ("phantom-write", 61, "stored again: subject s.1, id id5"),
    ]
    assert notes == []


def test_acks_by_content_and_deletions_that_leave_it_open(spark: Any, tmp_path: Path) -> None:
    replica = stored(tmp_path / "n1", has_ids=False, count=20)
    rows: list[Row] = [
        {"subject": f"s.{n % 2}", "payload": (b"m%d" % n + bytes(200)).decode()}
        for n in range(1, 20)
    ]
    rows.append({"subject": "s.1", "payload": "gone"})
    log = tmp_path / "log.json"
    log.write_text(json.dumps(rows))
    replica.delete(3)
    found, notes = audited(spark, replica, log)
    assert found == [("phantom-write", 20, "subject s.0")]
    assert len(notes) == 1 and notes[0].startswith(
        "S: 1 acked messages without a seq are not there"
    )


def test_a_complete_log_finds_nothing_also_after_a_purge(spark: Any, tmp_path: Path) -> None:
    """The blocks of what was purged are gone, and the stream says so."""
    replica = stored(tmp_path / "n1", has_ids=True)
    replica.propose([commands.PURGE, replica.tick(), b"", 50, 0])
    dropped = replica.machine.index.blocks[0].first_seq - 1
    rows = [acked(n, id=f"id{n}") for n in range(1, 61)]
    log = tmp_path / "log.parquet"
    pq.write_table(pa.Table.from_pylist(rows), log)
    note = f"S: {dropped} acked messages were deleted since, as the stream says"
    assert dropped > 10
    assert audited(spark, replica, log) == ([], [note])


def test_a_damaged_record_is_the_only_one_lost_of_its_block(spark: Any, tmp_path: Path) -> None:
    """The messages behind it are read, and compared with what was acked."""
    replica = stored(tmp_path / "n1", has_ids=True)
    replica.snapshot()
    path = replica.block(1)
    damage.flip(path, damage.record_of(path, 3).offset + 90)
    log = tmp_path / "log.parquet"
    pq.write_table(pa.Table.from_pylist([acked(n, id=f"id{n}") for n in range(1, 61)]), log)
    found, notes = audited(spark, replica, log)
    assert [(code, seq) for code, seq, _ in found] == [("lost-write", 3), ("record-crc", 3)]
    assert notes == []


def test_deleted_messages_do_not_hide_lost_ones(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many acked messages have left the stream since: the lost ones are looked for
    behind them, and all are counted."""
    monkeypatch.setattr(audit_expect, "FINDINGS_MAX", 2)
    replica = stored(tmp_path / "n1", has_ids=False)
    replica.propose([commands.PURGE, replica.tick(), b"", 50, 0])
    gone = replica.machine.index.blocks[0].first_seq - 1
    log = tmp_path / "log.parquet"
    pq.write_table(pa.Table.from_pylist([acked(n) for n in range(1, 66)]), log)
    found, notes = audited(spark, replica, log)
    assert [(code, seq) for code, seq, _ in found] == [("lost-write", 61), ("lost-write", 62)]
    assert notes == [
        f"S: {gone} acked messages were deleted since, as the stream says",
        "S: 3 more lost writes, not listed",
    ]


def test_a_log_that_names_no_messages_is_refused(spark: Any, tmp_path: Path) -> None:
    replica = stored(tmp_path / "n1", has_ids=False, count=3)
    log = tmp_path / "log.parquet"
    pq.write_table(pa.table({"time": [1], "subject": ["s.1"]}), log)
    with pytest.raises(BadExpectation, match="has columns time, subject; a row must have seq"):
        audited(spark, replica, log)
