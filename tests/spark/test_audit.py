"""The audit as a command: real servers, running and stopped; arguments, output, exit statuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

import pyarrow.parquet as pq

from spark_jobs.audit import run as audit_run
from spark_jobs.audit.audit_job import main
from spark_jobs.audit.findings import FIELDS
from spark_jobs.audit.live_nodes import held_of
from streamd.offline.stream_view import find_stores
from tests.spark import audit_damage as damage
from tests.spark.audit_stores import CLUSTER, Replica, copy_of, small_blocks
from tests.spark.conftest import StartServer

Audit = Callable[..., tuple[int, str, str]]


@pytest.fixture
def audit(spark: Any, capsys: pytest.CaptureFixture[str]) -> Audit:
    """Runs the command; returns (status, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        status = main([*map(str, arguments), "--quiet"])
        told = capsys.readouterr()
        return status, told.out, told.err

    return run


def numbered(count: int) -> list[tuple[str, bytes]]:
    return [(f"s.{n % 3}", b"message %06d" % n) for n in range(1, count + 1)]


# --- a real server ------------------------------------------------------------------------------


def test_a_server_that_runs_was_killed_or_stopped_is_clean_and_one_byte_is_found(
    start_server: StartServer, audit: Audit, tmp_path: Path
) -> None:
    server = start_server()
    server.create_stream("S", allow_direct=True)
    server.publish(numbered(3000))
    server.delete_msg("S", 17)
    arguments = ("--replica", f"n1={server.store_dir}")
    status, out, _ = audit(*arguments, "--live", f"live={server.url},{server.monitoring_url}")
    assert (status, out.split(":")[0]) == (0, "clean"), out
    assert out.count("2,999") == 2  # the files and the live node
    server.kill()
    status, out, _ = audit(*arguments)
    assert status == 0, out
    server.start()
    server.publish(numbered(20_000))
    server.stop()
    status, out, _ = audit(*arguments)
    assert status == 0, out
    block = server.store_dir / "streamd" / "streams" / "2" / "1.blk"
    record = damage.record_of(block, 4711)
    damage.flip(block, record.offset + 35)
    output = tmp_path / "report"
    status, out, _ = audit(*arguments, "--output", output)
    assert status == 2
    assert "record-crc" in out and "4711" in out
    document = json.loads((output / "findings.json").read_text())
    (found,) = document["findings"]
    assert document["verdict"] == "damage" and document["records"] == 23_000
    assert (found["code"], found["seq_lo"], found["seq_hi"]) == ("record-crc", 4711, 4711)
    assert (found["file"], found["offset"]) == (str(block), record.offset)
    table = pq.read_table(output / "findings.parquet")
    assert table.column_names == list(FIELDS)
    assert table.to_pylist() == [{name: found[name] for name in FIELDS}]
    page = (output / "report.html").read_text()
    assert "record-crc" in page and "4,711" in page
    assert sorted(path.name for path in output.iterdir()) == [
        "findings.json",
        "findings.parquet",
        "report.html",
    ]


def test_a_live_node_with_other_content_than_a_backup(
    start_server: StartServer, audit: Audit, tmp_path: Path
) -> None:
    server = start_server()
    server.create_stream("S", allow_direct=True)
    server.publish(
        [
            ("s.1", b"one", {"A": "b"}),
            ("s.2", b""),
            ("s.3", b"three"),
            ("s.3", b"four", {"Nats-Msg-Id": "4", "X": "ünï"}),
        ]
    )
    backup = copy_of(server.store_dir, tmp_path / "backup")
    live = f"live={server.url},{server.monitoring_url}"
    status, out, _ = audit("--replica", f"backup={backup}", "--live", live)
    assert status == 0, out
    server.delete_msg("S", 2)  # gone on the live node, and that is no finding
    server.publish([("s.1", b"five")])
    status, out, _ = audit("--replica", f"backup={backup}", "--live", f"live={server.url}")
    assert status == 0, out
    with small_blocks():
        other = Replica(tmp_path / "other")
        other.publish((b"s.1", b"", b"another"))
        other.close()
        status, out, _ = audit("--replica", f"other={other.directory}", "--live", live)
    assert status == 2
    assert "drift-content" in out and "drift-missing" not in out


def test_a_message_without_headers_of_its_own_has_none() -> None:
    block = (
        b"NATS/1.0\r\nNats-Stream: S\r\nNats-Subject: a.b\r\nNats-Sequence: 7\r\n"
        b"Nats-Time-Stamp: 2026-01-01T00:00:00.5Z\r\n\r\n"
    )
    seq, held = held_of(block, b"x")
    from streamd.store.blocks import record_format as fmt

    _, _, crcs = fmt.encode_batch(7, 1_767_225_600_500_000_000, [(b"a.b", b"", b"x")])
    assert (seq, held.crc) == (7, crcs[0])


# --- replicas -----------------------------------------------------------------------------------


def drifted(root: Path) -> list[Any]:
    """Three replicas with two differences in different buckets; n2 lacks a run."""
    stores = []
    for node in CLUSTER:
        replica = Replica(root / node, node=node, peers=CLUSTER)
        for start in range(0, 9000, 1000):
            replica.fill(1000, batch=200, size=10, first=start + 1)
        replica.publish((b"s.1", b"", b"right" if node != "n3" else b"wrong"))
        for seq in range(5000, 5010):
            replica.delete(seq if node == "n2" else 99_999)
        replica.snapshot()
        replica.close()
        stores += [(node, store) for store in find_stores(root / node)]
    return stores


@pytest.mark.parametrize("on_driver_max", [audit_run.DRIVER_BUCKETS_MAX, 0])
def test_drift_is_the_same_compared_on_the_driver_or_in_spark(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_driver_max: int
) -> None:
    monkeypatch.setattr(audit_run, "DRIVER_BUCKETS_MAX", on_driver_max)
    with small_blocks():
        stores = drifted(tmp_path)
        for level, codes in (
            ("full", [("drift-missing", "n2", 5000, 5009), ("drift-content", "n3", 9001, 9001)]),
            ("digest", [("drift-missing", "n2", 5000, 5009), ("drift-content", "n3", 9001, 9001)]),
            ("quick", [("drift-state", "n1, n2, n3", None, None)]),
        ):
            request = audit_run.Request(stores, level=level)
            outcome = audit_run.audit(spark, request, lambda label: nullcontext())
            found = [(e.code, e.replica, e.seq_lo, e.seq_hi) for e in outcome.findings]
            if level == "quick":  # three different fingerprints: no majority
                assert {code for code, *_ in found} == {"drift-state"}
            else:
                assert found == codes
    # Only the ranges that differ were looked at record by record.
    assert outcome.records == 3 * 9001


def test_several_nodes_below_one_directory_and_one_stream_of_them(
    audit: Audit, tmp_path: Path
) -> None:
    with small_blocks():
        for node in CLUSTER:
            replica = Replica(tmp_path / "data" / node, node=node, peers=CLUSTER)
            replica.fill(100)
            replica.close()
        status, out, _ = audit("--data", tmp_path / "data", "--level", "quick", "--throttle", "5")
        assert status == 0
        assert [line.split()[1] for line in out.splitlines() if line.startswith("S ")] == [
            "n1",
            "n2",
            "n3",
        ]
        status, _, err = audit("--data", tmp_path / "data", "--stream", "T")
    assert status == 3
    assert "none of the inputs has a file stream T" in err


def test_warnings_alone_exit_with_one(audit: Audit, tmp_path: Path) -> None:
    with small_blocks():
        replica = Replica(tmp_path / "n1")
        replica.fill(10)
        replica.close()
        with replica.block(1).open("ab") as file:
            file.write(b"\x40\x00\x00\x00\x01torn")
        status, out, _ = audit("--data", tmp_path / "n1")
    assert status == 1
    assert out.startswith("warnings: 1 findings") and "torn-tail" in out


# --- what can't run -----------------------------------------------------------------------------


def test_wrong_arguments_exit_with_three_and_say_why(
    audit: Audit, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "n1"
    Replica(data).close()
    empty = tmp_path / "empty"
    empty.mkdir()
    cases: list[tuple[tuple[object, ...], str]] = [
        ((), "nothing to audit: give --data"),
        (("--replica", data), "is not LABEL=DIR"),
        (("--replica", "a=/no/such"), "/no/such: no such directory"),
        (("--data", empty), "no data directory of streamd"),
        (("--replica", f"a={data}", "--replica", f"a={data}"), "label 'a' is given twice"),
        (("--replica", f"a={tmp_path}", "--level", "deep"), "invalid choice"),
        (("--data", data, "--throttle", "-1"), "--throttle -1.0"),
        (("--data", data, "--live", "x"), "is not LABEL=URL"),
        (("--data", data, "--live", "x=http://h:1"), "give one node's URL"),
        (("--data", data, "--expect", "f.json"), "needs one --stream"),
        (("--data", data, "--stream", "S", "--expect", "/no/f.json"), "no such file"),
        (("--data", data, "--output", data / "streamd" / "out"), "inside the data directory"),
        (("--live", "x=nats://127.0.0.1:1"), "--live x: 127.0.0.1:1 does not answer"),
    ]
    for arguments, said in cases:
        status, out, err = audit(*arguments)
        assert (status, out) == (3, ""), arguments
        assert said in err and err.count("\n") == 1, (arguments, err)
    assert not (data / "streamd" / "out").exists()


def test_a_directory_that_can_only_be_read_is_enough(
    audit: Audit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is created, written, renamed, or opened for writing below a data directory."""
    import builtins
    import os

    with small_blocks():
        replica = Replica(tmp_path / "n1")
        replica.fill(100)
        replica.snapshot()
        replica.close()
        inside = str(tmp_path / "n1")
        real_open, real_os_open = builtins.open, os.open

        def guarded(path: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            assert not str(path).startswith(inside) or set(mode) <= set("rb"), (path, mode)
            return real_open(path, mode, *args, **kwargs)

        def os_guarded(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT
            assert not str(path).startswith(inside) or not flags & writes, path
            return real_os_open(path, flags, *args, **kwargs)

        before = {str(path): path.stat().st_mtime_ns for path in Path(inside).rglob("*")}
        monkeypatch.setattr(builtins, "open", guarded)
        monkeypatch.setattr(os, "open", os_guarded)
        status, out, _ = audit("--data", inside)
        monkeypatch.undo()
    assert status == 0, out
    assert {str(path): path.stat().st_mtime_ns for path in Path(inside).rglob("*")} == before
    shutil.rmtree(inside)
