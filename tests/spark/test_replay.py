"""The job `replay`: subjects, ids, filters, resuming, distances in time."""

from __future__ import annotations

import re
from typing import Any

import pytest

from spark_jobs.jobs import replay
from spark_jobs.jobs.command import JobError
from streamd.machine import rfc3339
from tests.spark.conftest import StartServer
from tests.spark.servers import SparkTestServer
from tests.spark.sink_bed import stored

pytestmark = pytest.mark.timeout(300)  # Spark starts once, and slowly


def run(server: SparkTestServer, *more: str) -> int:
    return replay.main(["--servers", server.address, "--stream", "SRC", "--quiet", *more])


def test_another_user_of_the_same_servers_is_not_looked_for_elsewhere() -> None:
    """What is said of the target alone keeps the source's servers; other servers keep nothing."""

    def target(*arguments: str) -> dict[str, str]:
        common = ("--stream", "A", "--to-stream", "B", "--servers", "nats://a:1", "--user", "me")
        return replay._target(replay._parser().parse_args([*common, *arguments]))

    assert target() == {"servers": "nats://a:1", "user": "me"}
    assert target("--to-user", "you") == {"servers": "nats://a:1", "user": "you"}
    assert target("--to-servers", "nats://b:2") == {"servers": "nats://b:2"}


@pytest.mark.parametrize(
    ("mapping", "subject", "wanted"),
    [
        ("a.>=b.>", "a.x.y", "b.x.y"),
        ("a.*.c=z.$1", "a.b.c", "z.b"),
        ("*.*=y.{{wildcard(2)}}.$1", "p.q", "y.q.p"),
        ("a.*.>=$1.cost$.>", "a.b.c.d", "b.cost$.c.d"),
        ("a.b=c.d", "a.b", "c.d"),
        ("a.b=c.d", "aXb", None),
        ("a.*=c.$1", "a.b.c", None),
    ],
)
def test_mappings(mapping: str, subject: str, wanted: str | None) -> None:
    """The expression and replacement, tried with Python's, whose groups are spelt \\1."""
    pattern, replacement = replay.parse_mapping(mapping)
    if wanted is None:
        assert not re.search(pattern, subject)
        return
    spelt = re.sub(r"(?<!\\)\$(\d)", r"\\\1", replacement).replace("\\$", "$")
    assert re.sub(pattern, spelt, subject) == wanted


@pytest.mark.parametrize("text", ["a", "a=", "a.>=b", "a.*=b.$2", "a.*=b.*", "a..b=c", "a=b..c"])
def test_bad_mappings_are_refused(text: str) -> None:
    with pytest.raises(JobError, match="--map"):
        replay.parse_mapping(text)


def test_replay_to_another_cluster_with_filter_and_mapping(
    spark: Any, start_server: StartServer
) -> None:
    """Headers stay, ids are those of the source, and a second run with the job's id adds nothing,
    although the source has grown."""
    source, target = start_server("a"), start_server("b")
    source.create_stream("SRC", allow_direct=True)
    source.publish(
        (f"src.{n % 2}", b"%d" % n, {"Nats-Msg-Id": f"old{n}", "K": str(n)}) for n in range(2000)
    )
    more = [
        *("--to-servers", target.address, "--to-stream", "DST", "--create"),
        *("--map", "src.*=dst.part.$1", "--where", "seq > 100", "--job-id", "copy"),
    ]
    assert run(source, *more) == 0
    found = stored(target.port, "DST")
    assert sorted(int(one.payload) for one in found) == list(range(100, 2000))
    one = next(one for one in found if one.payload == b"777")
    assert (one.subject, one.header("K")) == ("dst.part.1", "777")
    assert one.header("Nats-Msg-Id") == "SRC:778"
    assert one.headers.count(b"Nats-Msg-Id") == 1
    source.publish((f"src.{n % 2}", b"%d" % n) for n in range(2000, 2100))
    assert run(source, *more) == 0
    assert len(stored(target.port, "DST")) == 1900


def test_replay_keeps_order_and_leaves_out_the_ledger(spark: Any, server: SparkTestServer) -> None:
    """Copied twice in one server: the second copy's source has a ledger, its target has not."""
    server.create_stream("SRC", allow_direct=True)
    server.publish(("src.a", b"%d" % n) for n in range(1500))
    first = ["--to-stream", "DST", "--create", "--map", "src.>=dst.>", "--ordered"]
    assert run(server, *first) == 0
    every = stored(server.port, "DST", with_ledger=True)
    assert len(every) > 1500
    for where in ({"path": str(server.store_dir)}, {"servers": server.address}):
        read = spark.read.format("streamd").options(stream="DST", **where)
        assert read.load().count() == 1500
        entries = read.option("subjects", "$LEDGER.>").load().collect()
        assert len(entries) == len(every) - 1500, where
    second = ["--stream", "DST", "--to-stream", "TRD", "--create", "--map", "dst.>=trd.>"]
    assert run(server, *second, "--ordered", "--delivery", "at-least-once") == 0
    found = stored(server.port, "TRD", with_ledger=True)
    assert [int(one.payload) for one in found] == list(range(1500))
    assert all(one.header("Nats-Batch-Id") == "" for one in found)


def test_a_stream_without_messages_is_replayed_as_none(
    spark: Any, server: SparkTestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """It never had any; all of them are gone; --start-seq is behind the last one."""
    server.create_stream("SRC", subjects=["s.>"])
    server.create_stream("DST", subjects=["d.>"])
    arguments = ("--to-stream", "DST", "--prepare", "--map", "s.>=d.>")
    assert run(server, *arguments) == 0
    server.publish([("s.a", b"x")] * 5)
    assert run(server, *arguments, "--start-seq", "9") == 0
    server.purge("SRC")
    assert run(server, *arguments) == 0
    assert capsys.readouterr().out.count("replay: 0 rows to DST") == 3
    server.publish([("s.a", b"x")] * 5)
    assert run(server, *arguments) == 0
    assert len(stored(server.port, "DST")) == 5


def test_speed_keeps_distances(spark: Any, server: SparkTestServer) -> None:
    """Messages over at least 1.5 s take at least half of that at speed 2, by the target's times."""
    server.create_stream("SRC", allow_direct=True)
    server.publish([("src.a", b"1")])
    first_ns = stored_ns(server, "SRC", 1)
    while stored_ns(server, "SRC", server.state("SRC")["last_seq"]) - first_ns < 1_500_000_000:
        server.publish([("src.a", b"x")])
    count = server.state("SRC")["messages"]
    more = ["--to-stream", "DST", "--create", "--map", "src.>=dst.>", "--speed", "2"]
    assert run(server, *more) == 0
    assert len(stored(server.port, "DST")) == count
    last = server.state("DST")["last_seq"]
    spread_ns = stored_ns(server, "DST", last) - stored_ns(server, "DST", 1)
    assert spread_ns >= 650_000_000


def stored_ns(server: SparkTestServer, stream: str, seq: int) -> int:
    found = server.api(f"STREAM.MSG.GET.{stream}", {"seq": seq})["message"]["time"]
    return int(rfc3339.parse_ns(found) or 0)


def test_the_stream_itself_is_no_target(
    server: SparkTestServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(server, "--to-stream", "SRC") == 3
    assert "the stream that is read" in capsys.readouterr().err
