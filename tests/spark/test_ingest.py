"""The job `ingest`: what becomes of rows, resuming, dead letters, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from spark_jobs.ingest import ingest_job as ingest
from spark_jobs.jobs.command import JobError
from tests.spark.servers import SparkTestServer
from tests.spark.sink_bed import stored

pytestmark = pytest.mark.timeout(300)  # Spark starts once, and slowly


@pytest.fixture
def orders(tmp_path: Path) -> str:
    """Two files of JSON lines; 3000 rows, one region with characters that a subject can't have."""
    directory = tmp_path / "orders"
    directory.mkdir()
    for file in range(2):
        with (directory / f"{file}.json").open("w") as out:
            for at in range(file * 1500, file * 1500 + 1500):
                region = ("eu", "us", "far east.1")[at % 3]
                out.write(json.dumps({"id": at, "region": region, "price": at / 4}) + "\n")
    return str(directory)


def run(server: SparkTestServer, *more: str) -> int:
    return ingest.main(["--servers", server.address, "--stream", "ORDERS", "--quiet", *more])


def from_json(path: str, *more: str) -> list[str]:
    subject = "orders.{region}.{id}"
    return ["--format", "json", "--from", path, "--subject-template", subject, *more]


def test_rows_become_messages_and_a_second_run_adds_nothing(
    spark: Any, server: SparkTestServer, orders: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--create", "--id-columns", "region,id", "--headers", "region", "--job-id", "day1"]
    assert run(server, *from_json(orders, *more)) == 0
    assert "3,000 sent" in capsys.readouterr().out
    found = stored(server.port, "ORDERS")
    rows = sorted((json.loads(one.payload) for one in found), key=lambda row: row["id"])
    assert [row["id"] for row in rows] == list(range(3000))
    assert rows[4] == {"id": 4, "price": 1.0, "region": "us"}
    by_id = {json.loads(one.payload)["id"]: one for one in found}
    assert by_id[5].subject == "orders.far_east_1.5"
    assert by_id[5].header("region") == "far east.1"
    assert by_id[5].header("Nats-Msg-Id") == "far east.1:5"
    assert run(server, *from_json(orders, *more)) == 0
    assert "3,000 there before" in capsys.readouterr().out
    assert len(stored(server.port, "ORDERS")) == 3000


def test_the_same_job_with_other_input_is_refused(
    spark: Any, server: SparkTestServer, orders: str, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--create", "--job-id", "day1", "--no-row-ids"]
    assert run(server, *from_json(orders, *more)) == 0
    (Path(orders) / "2.json").write_text('{"id": 1, "region": "eu", "price": 0}\n')
    assert run(server, *from_json(orders, *more)) == 3
    assert "another plan" in capsys.readouterr().err
    assert len(stored(server.port, "ORDERS")) == 3000
    assert run(server, *from_json(orders, *more, "--forget")) == 0
    assert len(stored(server.port, "ORDERS")) == 6001


def test_refused_rows_go_to_the_dead_letters(
    spark: Any, server: SparkTestServer, tmp_path: Path
) -> None:
    """CSV with a header; one row's TTL is no duration."""
    csv = tmp_path / "rows.csv"
    csv.write_text("name,ttl\na,1h\nb,soon\nc,\n")
    server.create_stream("DEAD")
    arguments = [
        *("--format", "csv", "--option", "header=true", "--from", str(csv), "--create"),
        *("--subject-template", "orders.csv", "--payload-columns", "name", "--raw"),
        *("--ttl-column", "ttl", "--dlq", "stream:DEAD"),
    ]
    assert run(server, *arguments) == 1
    assert [one.payload for one in stored(server.port, "ORDERS")] == [b"a", b"c"]
    (letter,) = stored(server.port, "DEAD")
    assert (letter.subject, letter.payload) == ("dead.rejected", b"b")
    assert letter.header("Streamd-Code") == "10165"


def test_dry_run_shows_and_sends_nothing(
    spark: Any, server: SparkTestServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tmp_path / "lines.txt"
    text.write_text("one\ntwo\n")
    server.create_stream("ORDERS")
    arguments = ["--format", "text", "--from", str(text), "--subject-template", "other.x"]
    assert run(server, *arguments, "--dry-run") == 1
    out = capsys.readouterr().out
    assert '"payload": "two"' in out
    assert "does not capture" in out
    assert "give --prepare" in out
    assert server.state("ORDERS")["messages"] == 0


@pytest.mark.parametrize(
    ("template", "said"),
    [("a.{b", "must enclose"), ("a.b}", "without its"), ("a.{}", "must enclose"), ("", "empty")],
)
def test_bad_templates_are_refused(template: str, said: str) -> None:
    with pytest.raises(JobError, match=said):
        ingest._pieces(template)


def test_errors_are_one_line(
    spark: Any, server: SparkTestServer, orders: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(server, *from_json(orders)) == 3
    assert "give --create" in capsys.readouterr().err
    server.create_stream("ORDERS")
    assert run(server, *from_json(orders)) == 3
    assert "--prepare" in capsys.readouterr().err
    assert run(server, *from_json(orders, "--id-columns", "nope")) == 3
    assert "no column 'nope'; there are id, price, region" in capsys.readouterr().err
    assert run(server, *from_json("/nowhere")) == 3
    error = capsys.readouterr().err
    assert "there is no /nowhere" in error
    assert error.count("\n") == 1
