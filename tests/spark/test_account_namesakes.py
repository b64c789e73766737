"""Streams of one name in two accounts: Spark reads and audits each for itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from spark_jobs.audit.audit_job import main
from spark_jobs.client import wire as wires
from spark_jobs.source.online import plan, read_range
from spark_jobs.source.read_options import ReadOptions
from streamd.offline.stream_view import StreamMissing
from tests.spark import audit_damage as damage
from tests.spark.conftest import StartServer
from tests.spark.reads import read_rows
from tests.spark.servers import SparkTestServer
from tests.wire import CONNECT, Wire

ACCOUNTS = """accounts {
  A { jetstream: enabled, users: [{user: A, password: A}] }
  B { jetstream: enabled, users: [{user: B, password: B}] }
}
"""
COUNTS = {"A": 300, "B": 200}

Audit = Callable[..., tuple[int, str, str]]


@pytest.fixture
def audit(spark: Any, capsys: pytest.CaptureFixture[str]) -> Iterator[Audit]:
    """Runs the command; returns (status, stdout, stderr)."""

    def run(*arguments: object) -> tuple[int, str, str]:
        status = main([*map(str, arguments), "--quiet"])
        told = capsys.readouterr()
        return status, told.out, told.err

    yield run


def fill(server: SparkTestServer) -> None:
    """A stream S of the same subjects in each account; a payload names its account."""
    for user, count in COUNTS.items():
        with Wire(server.port, CONNECT | {"user": user, "pass": user}) as wire:
            config = {"name": "S", "subjects": ["s.>"], "allow_direct": True}
            assert wire.api("STREAM.CREATE.S", config)["did_create"]
            for at in range(count):
                wire.publish("s.x", f"{user}{at}".encode(), reply=wire.inbox if at == 0 else "")
            wire.fence()
            assert wire.api("STREAM.INFO.S")["state"]["messages"] == count


def expected(user: str) -> list[bytes]:
    return [f"{user}{at}".encode() for at in range(COUNTS[user])]


def test_reads_and_audits_tell_namesakes_apart(start_server: StartServer, audit: Audit) -> None:
    """By the login online, by `ACCOUNT/NAME` from files; damage of one is not the other's."""
    server = start_server(extra=ACCOUNTS)
    fill(server)
    for user in COUNTS:
        given = {"servers": server.address, "stream": "S", "user": user, "password": user}
        options = ReadOptions.parse(given)
        rows = [
            row for part in plan(options) for each in read_range(options, part)
            for row in each.to_pylist()
        ]  # fmt: skip
        assert [row["payload"] for row in rows] == expected(user)
    for _, _, kept in wires._idle:
        kept.close()
    wires._idle.clear()
    url = f"nats://A:A@127.0.0.1:{server.port}"
    for live in (url, f"{url},{server.monitoring_url}"):
        status, out, _ = audit("--replica", f"n1={server.store_dir}", "--live", f"live={live}")
        assert status == 0, out
        (line,) = [line.split() for line in out.splitlines() if " live " in line]
        assert line[0] == "A/S" and "300" in line, out
    server.stop()

    for user in COUNTS:
        rows = read_rows(server.store_dir, f"{user}/S")
        assert [row["payload"] for row in rows] == expected(user)
    with pytest.raises(StreamMissing, match=r"A/S.*B/S.*name the account"):
        read_rows(server.store_dir, "S")

    status, out, _ = audit("--replica", f"n1={server.store_dir}")
    assert status == 0 and "A/S" in out and "B/S" in out, out
    streams = server.store_dir / "streamd" / "streams"
    first, second = sorted(streams.iterdir(), key=lambda path: int(path.name))
    assert read_rows(server.store_dir, "B/S")[0]["payload"] == b"B0"
    block = second / "1.blk"
    damage.flip(block, damage.record_of(block, 100).offset + 35)
    status, out, _ = audit("--replica", f"n1={server.store_dir}")
    assert status == 2
    (line,) = [line for line in out.splitlines() if "record-crc" in line]
    assert "B/S" in line and "A/S" not in line, out
    assert [row["payload"] for row in read_rows(server.store_dir, "A/S")] == expected("A")
    assert first != second
