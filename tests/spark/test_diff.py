"""Diff of servers and files, by seq, id and subject; a real nats-server where there is one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.jobs import diff
from spark_jobs.jobs.command import EXIT_DIFFERENT, EXIT_FAILED, EXIT_OK
from tests.parity.runner import peer_binary
from tests.spark.conftest import StartServer
from tests.spark.servers import SparkTestServer

COUNT = 9000  # three ranges of 4096 seqs


def message(number: int) -> tuple[str, bytes, dict[str, str]]:
    return f"s.{number % 11}", b"payload %d" % number, {"Nats-Msg-Id": f"id-{number}", "K": "v"}


def create(server: SparkTestServer, name: str) -> None:
    server.create_stream(name, subjects=[f"{name}.>"], allow_direct=True)


def fill(server: SparkTestServer, name: str, numbers: list[int]) -> None:
    create(server, name)
    made = ((name + subject[1:], *rest) for subject, *rest in map(message, numbers))
    server.publish(made)  # type: ignore[arg-type]


def between(left: SparkTestServer, right: SparkTestServer, *more: str) -> list[str]:
    return ["--left-servers", left.url, "--right-servers", right.url, "--quiet", *more]


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[SparkTestServer]:
    """A running nats-server."""
    binary = peer_binary()
    if not binary:
        pytest.skip("no nats-server to compare with (STREAMD_PEER)")
    made = SparkTestServer(binary, tmp_path / "peer")
    made.start()
    yield made
    made.close()


def test_copies_are_equal_and_each_kind_of_difference_is_found_at_its_seq(
    spark: Any, start_server: StartServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files of a server against the server; then a second one with other records at known seqs."""
    left, right = start_server(), start_server()
    fill(left, "S", list(range(1, COUNT + 1)))
    offline = ["--left-path", str(left.store_dir), "--right-servers", left.url, "--quiet"]
    assert diff.main(["--stream", "S", *offline]) == EXIT_OK
    assert "equal, by seq, in subject, ts, headers, payload" in capsys.readouterr().out
    create(right, "S")
    changed = {100: ("S.1", b"other", message(100)[2])}
    changed[5000] = ("S.other", message(5000)[1], message(5000)[2])
    changed[5001] = (f"S.{5001 % 11}", message(5001)[1], {"K": "w"})
    for number in range(1, COUNT + 1):
        subject, payload, headers = message(number)
        changed.setdefault(number, ("S" + subject[1:], payload, headers))
    right.publish(changed[number] for number in range(1, COUNT + 1))
    right.delete_msg("S", 7)
    fields = ("--stream", "S", "--fields", "subject,headers,payload", "--output", "json")
    assert diff.main([*between(left, right), *fields]) == EXIT_DIFFERENT
    found = json.loads(capsys.readouterr().out)
    assert (found["ranges"], found["ranges_different"]) == (3, 2)
    assert {row["seq"]: (row["kind"], row["fields"]) for row in found["records"]} == {
        7: ("only left", []),
        100: ("changed", ["payload"]),
        5000: ("changed", ["subject"]),
        5001: ("changed", ["headers"]),
    }
    assert found["left"]["records"] == COUNT
    assert found["right"]["records"] == COUNT - 1
    target = tmp_path / "differences"
    parquet = ("--fields", "payload", "--output", "parquet", "--to", str(target))
    assert diff.main([*between(left, right), "--stream", "S", *parquet]) == EXIT_DIFFERENT
    assert {row.seq for row in spark.read.parquet(str(target)).collect()} == {7, 100}


def test_a_stream_migrated_to_or_from_a_nats_server_is_compared_by_key(
    spark: Any, server: SparkTestServer, peer: SparkTestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """The copy begins with another message and is published in another order."""
    fill(peer, "OLD", list(range(1, 301)))
    create(server, "OLD")
    server.publish([("OLD.x", b"first of all", {"Nats-Msg-Id": "id-0"})])
    # By residue: within a subject the order stays, between subjects it does not.
    order = sorted(range(1, 301), key=lambda number: number % 11)
    server.publish(("OLD" + subject[1:], *rest) for subject, *rest in map(message, order))
    server.delete_msg("OLD", 1)
    sides = between(peer, server, "--stream", "OLD")
    assert diff.main([*sides, "--by", "msg-id"]) == EXIT_OK
    assert diff.main([*sides, "--by", "subject"]) == EXIT_OK
    assert diff.main([*sides, "--limit", "1"]) == EXIT_DIFFERENT
    assert "more: --limit N" in capsys.readouterr().out
    server.publish([("OLD.3", b"late", {"Nats-Msg-Id": "id-late"})])
    assert diff.main([*sides, "--by", "msg-id"]) == EXIT_DIFFERENT
    assert "id-late #1: only right: right seq 302, OLD.3, 4 bytes" in capsys.readouterr().out
    assert diff.main([*sides, "--by", "subject"]) == EXIT_DIFFERENT
    assert "OLD.3 #29: only right" in capsys.readouterr().out


def test_streams_without_messages_are_equal(
    spark: Any, server: SparkTestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that never had any, and one whose messages are all deleted."""
    create(server, "NEW")
    fill(server, "OLD", [1, 2, 3])
    server.purge("OLD")
    offline = ("--left-path", str(server.store_dir), "--right-servers", server.url, "--quiet")
    for stream in ("NEW", "OLD"):
        assert diff.main(["--stream", stream, *offline]) == EXIT_OK
    assert capsys.readouterr().out.count("equal, by seq") == 2


def test_wrong_arguments_are_refused_and_an_emptied_stream_differs(
    spark: Any, server: SparkTestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    fill(server, "A", [1, 2])
    fill(server, "B", [3])
    same = ["--left-servers", server.url, "--right-servers", server.url, "--quiet"]
    assert diff.main([*same, "--stream", "A"]) == EXIT_FAILED
    assert "both sides are A at" in capsys.readouterr().err
    assert diff.main([*same, "--left-stream", "A"]) == EXIT_FAILED
    assert "no stream given: --stream NAME, or --right-stream NAME" in capsys.readouterr().err
    pair = [*same, "--left-stream", "A", "--right-stream", "B"]
    assert diff.main([*pair, "--fields", "colour"]) == EXIT_FAILED
    assert "'colour' is none of subject, ts" in capsys.readouterr().err
    assert diff.main([*pair, "--left-path", "/tmp"]) == EXIT_FAILED
    assert "--left-path reads files: leave out --left-servers" in capsys.readouterr().err
    assert diff.main([*pair, "--subjects", "nothing.>"]) == EXIT_OK
    purged = server.purge("A")
    assert purged == 2
    assert diff.main(pair) == EXIT_DIFFERENT
    assert "1 only right" in capsys.readouterr().out
