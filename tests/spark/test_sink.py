"""The sink: each row exactly once whatever is repeated, cut or killed; refusals that say which."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.cluster import ClusterProcess
from spark_jobs.client.options import OptionError
from spark_jobs.client.wire import Wire
from spark_jobs.sink import ledger
from spark_jobs.sink import rows as sink_rows
from spark_jobs.sink import summary as sink_report
from spark_jobs.sink.at_least_once import PlainWriter
from spark_jobs.sink.exactly_once import ExactWriter
from spark_jobs.sink.ledger import LedgerError
from spark_jobs.sink.refused_rows import SinkError
from spark_jobs.sink.sink_options import Layout, SinkOptions
from spark_jobs.sink.summary import Listener, tell
from spark_jobs.sink.task import Outcome, Task
from tests.parity.runner import ours_binary
from tests.spark.conftest import StartServer
from tests.spark.servers import SparkTestServer
from tests.spark.sink_bed import CuttingProxy, exact_writer, payloads, rows, stored
from tests.wire import Wire as WireOfTests


@pytest.fixture
def stream(server: SparkTestServer) -> SparkTestServer:
    server.create_stream("T", allow_msg_ttl=True)
    return server


def numbered(count: int, tag: str = "r") -> list[str]:
    return [f"{tag}{n}" for n in range(count)]


# --- frames -----------------------------------------------------------------------------------


def header_batch(maps: list[Any], kind: Any) -> sink_rows.Rows:
    count = len(maps)
    batch = pa.record_batch(
        [
            pa.array(["a.b"] * count),
            pa.array([b"x"] * count, pa.binary()),
            pa.array(maps, pa.map_(pa.string(), kind)),
        ],
        names=["subject", "payload", "headers"],
    )
    return sink_rows.rows_of(batch, Layout(0, 1, 2), first=0)


def test_headers_become_lines_also_of_slices_and_nulls() -> None:
    """Both map types, several values, an empty and a null map; slices keep to their rows."""
    maps = [[("A", ["1", "2"])], None, [], [("B", ["x"]), ("C", [])], [("D", ["é"])]]
    found = header_batch(maps, pa.list_(pa.string()))
    lines = ["A: 1\r\nA: 2\r\n", "", "", "B: x\r\n", "D: é\r\n"]
    assert [one.decode() for one in found.headers.to_pylist()] == lines
    assert found.bad_headers is None
    cut = found.slice(3, 5)
    assert [one.decode() for one in cut.headers.to_pylist()] == lines[3:]
    plain = header_batch([[("A", "1"), ("B", None)], None], pa.string())
    assert plain.headers.to_pylist() == [b"A: 1\r\nB: \r\n", b""]


def test_checksums_do_not_depend_on_how_rows_are_cut() -> None:
    batch = next(rows(500))
    whole = sink_rows.rows_of(batch, Layout(0, 1), first=0)
    sums: tuple[int, ...] = ()
    for start, stop in ((0, 1), (1, 130), (130, 499), (499, 500)):
        sums = sink_rows.add_sums(sums, whole.slice(start, stop))
    assert sums == sink_rows.add_sums((), whole)
    swapped = whole.pick(whole.numbers != 7)
    assert sums != sink_rows.add_sums((), swapped)


# --- exactly once, without Spark --------------------------------------------------------------


@pytest.mark.parametrize("is_late", [True, False], ids=["ack lost", "commit lost"])
def test_lost_connection_around_a_commit(stream: SparkTestServer, is_late: bool) -> None:
    """The connection ends at the 2nd and the 4th commit; every row is there once, in order."""
    proxy = CuttingProxy(stream.port, cuts=(2, 4), is_late=is_late)
    try:
        done = exact_writer(proxy.address).write(rows(5000))
    finally:
        proxy.close()
    assert proxy.cut_count == 2
    assert payloads(stored(stream.port, "T")) == numbered(5000)
    assert done.rows == 5000


def test_two_attempts_at_once_write_every_row_once(stream: SparkTestServer) -> None:
    """Three writers of the same partition run against each other."""
    writers = [exact_writer(stream.address) for _ in range(3)]
    outcomes: list[Outcome] = []
    threads = [
        threading.Thread(target=lambda one=one: outcomes.append(one.write(rows(12_000))))
        for one in writers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [one.rows for one in outcomes] == [12_000] * 3
    assert payloads(stored(stream.port, "T")) == numbered(12_000)


def test_a_repeated_attempt_skips_stored_rows(stream: SparkTestServer) -> None:
    """An attempt whose input fails after 3000 rows is repeated with other batch sizes."""

    def failing() -> Any:
        yield from rows(3000)
        raise RuntimeError("the input broke")

    with pytest.raises(RuntimeError, match="the input broke"):
        exact_writer(stream.address).write(failing())
    before = len(stored(stream.port, "T"))
    assert 900 < before < 3000  # something was left to do
    done = exact_writer(stream.address, batchRows="333").write(rows(5000))
    assert payloads(stored(stream.port, "T")) == numbered(5000)
    assert done.resumed == before
    again = exact_writer(stream.address).write(rows(5000))
    assert (again.rows, again.resumed) == (5000, 5000)
    assert len(stored(stream.port, "T")) == 5000


@pytest.mark.parametrize(
    ("again", "said"),
    [
        (lambda: rows(2000, tag="q"), "are not the same"),
        (lambda: rows(1999), "had 2000 or more"),
        (lambda: rows(2001), "has more now"),
    ],
    ids=["other rows", "fewer", "more"],
)
def test_other_rows_than_before_are_refused(stream: SparkTestServer, again: Any, said: str) -> None:
    exact_writer(stream.address).write(rows(2000))
    with pytest.raises(LedgerError, match=said):
        exact_writer(stream.address).write(again())
    assert payloads(stored(stream.port, "T")) == numbered(2000)


def test_another_plan_is_refused(stream: SparkTestServer) -> None:
    exact_writer(stream.address, planId="a").write(rows(10))
    with pytest.raises(LedgerError, match="another plan"):
        exact_writer(stream.address, planId="b").write(rows(10))


def test_a_removed_ledger_is_noticed(stream: SparkTestServer) -> None:
    """The ledger is purged while a writer runs: its next commit is refused, with the reason."""

    def purging() -> Any:
        yield from rows(2800)
        stream.purge("T", filter=ledger.pattern_of("T"))
        yield from rows(2800, start=2800)

    with pytest.raises(LedgerError, match=r"is gone|is still at|not in its ledger"):
        exact_writer(stream.address).write(purging())
    assert max(Counter(payloads(stored(stream.port, "T"))).values()) == 1


def test_the_ledger_keeps_one_entry_per_partition(stream: SparkTestServer) -> None:
    exact_writer(stream.address).write(rows(5000))
    every = stored(stream.port, "T", with_ledger=True)
    entries = [one for one in every if ledger.is_ledger(one.subject)]
    assert [one.subject for one in entries] == ["$LEDGER.T.job.0"]
    assert entries[0].header("Nats-TTL") == "never"
    assert ledger.decode(entries[0].payload, seq=1).rows == 5000


def test_a_killed_server_loses_and_doubles_nothing(stream: SparkTestServer) -> None:
    """SIGKILL in the middle, start again on the same ports: the writer goes on."""
    killed = threading.Event()

    def killing() -> Any:
        yield from rows(4200)
        stream.kill()
        starter.start()
        killed.set()
        yield from rows(4200, start=4200)

    starter = threading.Thread(target=stream.start)
    exact_writer(stream.address).write(killing())
    starter.join()
    assert killed.is_set()
    assert payloads(stored(stream.port, "T")) == numbered(8400)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_three_nodes_lose_their_leader_under_two_writers(tmp_path: Path) -> None:
    """SIGKILL to the stream's leader while two attempts write the same rows: once each, in order;
    the node comes back and holds the same."""
    binary = ours_binary()
    if not binary:
        pytest.skip("streamd is not installed beside this interpreter")
    with ClusterProcess(binary, directory=tmp_path / "cluster") as cluster:
        cluster.start()
        servers = ",".join(url.removeprefix("nats://") for url in cluster.urls)
        port = next(iter(cluster.ports.values()))
        with WireOfTests(port) as wire:
            made = wire.api(
                "STREAM.CREATE.T", {"name": "T", "subjects": ["t.>"], "num_replicas": 3}
            )
            assert "error" not in made, made
        leader = cluster.leader("T")
        is_due = threading.Event()

        def pausing(kills: bool) -> Any:
            yield from rows(4200)
            if kills:
                cluster.kill(leader)
                is_due.set()
            yield from rows(8400, start=4200)

        writers = [exact_writer(servers), exact_writer(servers)]
        other = threading.Thread(target=lambda: writers[1].write(pausing(False)))
        other.start()
        done = writers[0].write(pausing(True))
        other.join(90)
        assert is_due.is_set()
        assert done.rows == writers[1].outcome.rows == 12_600
        cluster.start()
        cluster.wait_until(lambda: cluster.is_whole("T"), "whole")
        assert payloads(stored(cluster.nodes[leader].port, "T")) == numbered(12_600)


# --- refused rows -----------------------------------------------------------------------------

SCHEMA = pa.schema(
    [
        ("subject", pa.string()),
        ("payload", pa.binary()),
        ("headers", pa.map_(pa.string(), pa.string())),
        ("msg_id", pa.string()),
        ("ttl", pa.string()),
    ]
)
GOOD: dict[str, Any] = {
    "subject": "t.a", "payload": b"x", "headers": None, "msg_id": None, "ttl": None,
}  # fmt: skip
RULES: list[tuple[str, dict[str, Any], str, int]] = [
    ("null subject", {"subject": None}, "null or empty", 0),
    ("wildcard", {"subject": "t.*"}, "wildcard", 0),
    ("white space", {"subject": "t. a"}, "white space", 0),
    ("empty token", {"subject": "t..a"}, "empty token", 0),
    ("long", {"subject": "t." + "x" * 4000}, "4002 bytes", 0),
    ("other stream", {"subject": "u.a"}, "does not capture", 0),
    ("ledger", {"subject": "$LEDGER.T.x.1"}, "sink's own", 0),
    ("too big", {"payload": b"x" * 70_001}, "max_msg_size is 70000", 10054),
    ("header name", {"headers": [("a b", "1")]}, "header name", 0),
    ("header value", {"headers": [("a", "1\r\nb: 2")]}, "line end", 0),
    ("reserved", {"headers": [("nats-batch-id", "1")]}, "sink's own", 0),
    ("many headers", {"headers": [("a", "x" * 66_000)]}, "limit of headers", 10097),
    ("msg_id", {"msg_id": "a\nb"}, "msg_id", 0),
    ("ttl", {"ttl": "1 hour"}, "not 1 s or more", 10165),
    ("server: incr", {"headers": [("Nats-Incr", "+1")]}, "message counters is disabled", 10168),
    ("server: rollup", {"headers": [("Nats-Rollup", "sub")]}, "rollup not permitted", 10111),
]


def typed(bad: list[dict[str, Any]], *, good: int = 3) -> Any:
    """A batch: some good rows, the bad ones, good ones again."""
    made = [GOOD] * good + [GOOD | one for one in bad] + [GOOD] * good
    return pa.RecordBatch.from_pylist(
        [one | {"payload": one["payload"] + b"%d" % at} for at, one in enumerate(made)], SCHEMA
    )


def typed_writer(server: SparkTestServer, kind: Any = ExactWriter, **options: str) -> Any:
    delivery = "exactly-once" if kind is ExactWriter else "at-least-once"
    given = {"servers": server.address, "stream": "T", "jobId": "typed", "delivery": delivery}
    parsed = SinkOptions.parse(given | options)
    task = Task(parsed.job, 0)
    with Wire.connect(parsed.connection) as wire:
        facts = ledger.ready_stream(wire, "T", with_ledger=True, may_change=True)
    return kind(parsed, Layout(0, 1, 2, 3, 4), facts, task)


@pytest.fixture
def picky(server: SparkTestServer) -> SparkTestServer:
    server.create_stream("T", allow_msg_ttl=True, max_msg_size=70_000)
    server.create_stream("DEAD")
    return server


@pytest.mark.parametrize("kind", [ExactWriter, PlainWriter])
def test_every_rule_names_its_row(picky: SparkTestServer, kind: Any) -> None:
    """All rules at once into a dead letter stream: each bad row with its reason and code."""
    batch = typed([bad for _, bad, _, _ in RULES])
    done = typed_writer(picky, kind, dlq="dead.rows").write(iter([batch]))
    letters = stored(picky.port, "DEAD")
    assert len(letters) == len(RULES) == done.rejected
    by_row = {int(one.header("Streamd-Row")): one for one in letters}
    for at, (name, _, said, code) in enumerate(RULES):
        letter = by_row[3 + at]
        assert said in letter.header("Streamd-Reason"), (name, letter.headers)
        assert letter.header("Streamd-Code") == str(code), name
        assert letter.payload.endswith(b"%d" % (3 + at)), name
    last = 3 + len(RULES)
    good = [f"x{at}" for at in (0, 1, 2, last, last + 1, last + 2)]
    assert payloads(stored(picky.port, "T")) == good


def test_a_refused_row_fails_without_a_dlq(picky: SparkTestServer) -> None:
    """One rule that the sink checks, one that only the server knows."""
    for name, bad, said, code in RULES:
        if name not in ("too big", "server: rollup"):
            continue
        with pytest.raises(SinkError, match=r"partition 0 row 3 subject") as caught:
            typed_writer(picky, jobId=f"job{code}").write(iter([typed([bad])]))
        assert said in str(caught.value)
        assert f"(error {code})" in str(caught.value)


def test_dead_letters_of_the_same_stream_are_in_the_same_batch(picky: SparkTestServer) -> None:
    writer = typed_writer(picky, dlq="t.rejected")
    writer.write(iter([typed([{"subject": "u.a"}])]))
    found = stored(picky.port, "T")
    assert [one.subject for one in found] == ["t.a"] * 6 + ["t.rejected"]
    assert len({one.header("Nats-Batch-Id") for one in found}) == 1


def test_given_ids_that_are_there_already_are_left_out(picky: SparkTestServer) -> None:
    """Doubles within a batch, and of a message published before by somebody else."""
    picky.publish([("t.z", b"old", {"Nats-Msg-Id": "b"})])
    bad = [{"msg_id": one} for one in ("a", "b", "c", "a")]
    done = typed_writer(picky).write(iter([typed(bad)]))
    assert (done.rows, done.duplicates, done.rejected) == (10, 2, 0)
    kept = [one.payload.decode() for one in stored(picky.port, "T")]
    assert kept == ["old", "x0", "x1", "x2", "x3", "x5", "x7", "x8", "x9"]


def test_columns_arrive_as_written(picky: SparkTestServer) -> None:
    good = {"headers": [("K", "v"), ("L", "")], "msg_id": "mine", "ttl": "1h", "payload": b""}
    typed_writer(picky).write(iter([typed([good], good=1)]))
    first, found, _ = stored(picky.port, "T")
    assert first.header("Nats-Msg-Id") == "typed:0:0"
    assert (found.subject, found.payload) == ("t.a", b"1")
    names = ("K", "L", "Nats-Msg-Id", "Nats-TTL")
    assert [found.header(name) for name in names] == ["v", "", "mine", "1h"]


UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"retention": "workqueue"}, "retention is workqueue"),
    ({"retention": "interest"}, "retention is interest"),
    ({"max_msgs": 5000}, "max_msgs is 5000"),
    ({"max_bytes": 1000}, "max_bytes is 1000"),
    ({"max_msg_size": 100}, "max_msg_size is 100"),
    (
        {"discard": "new", "discard_new_per_subject": True, "max_msgs_per_subject": 1},
        "discard_new_per_subject",
    ),
    ({"no_ack": True}, "no_ack"),
    ({}, "allow_atomic"),
    ({"allow_atomic": True}, "LEDGER"),
    ({"max_age": 10**12, "allow_atomic": True}, "allow_msg_ttl"),
]


def test_streams_that_cannot_keep_a_ledger(server: SparkTestServer) -> None:
    """What only needs a change of config is changed when that is allowed."""
    connection = SinkOptions.parse({"servers": server.address, "stream": "T"}).connection
    with Wire.connect(connection) as wire:
        for at, (config, said) in enumerate(UNFIT):
            name = f"T{at}"
            server.create_stream(name, **config)
            with pytest.raises(OptionError) as caught:
                ledger.ready_stream(wire, name, with_ledger=True, may_change=False)
            assert said in str(caught.value)
            if said in ("allow_atomic", "LEDGER", "allow_msg_ttl"):
                ready = ledger.ready_stream(wire, name, with_ledger=True, may_change=True)
                assert ready.ledger_changes() == {}
    moved = {"subject_transform": {"src": ">", "dest": "x.>"}}
    facts = ledger.StreamFacts("T", ("t.>",), 1 << 20, config=moved)
    assert "would move the ledger" in facts.ledger_faults()[0]
    kept = {"subject_transform": {"src": "t.>", "dest": "x.>"}}
    assert ledger.StreamFacts("T", ("t.>",), 1 << 20, config=kept).ledger_faults() == []


def test_at_least_once_resends_after_a_lost_connection(stream: SparkTestServer) -> None:
    given = {"servers": stream.address, "stream": "T", "delivery": "at-least-once"}
    options = SinkOptions.parse(given | {"jobId": "p", "windowRows": "1000"})
    with Wire.connect(options.connection) as wire:
        facts = ledger.ready_stream(wire, "T", with_ledger=False, may_change=False)

    def killing() -> Any:
        yield from rows(2800)
        stream.kill()
        starter.start()
        yield from rows(2800, start=2800)

    starter = threading.Thread(target=stream.start)
    PlainWriter(options, Layout(0, 1), facts, Task("p", 0)).write(killing())
    starter.join()
    # Within the duplicate window no row is doubled either.
    assert Counter(payloads(stored(stream.port, "T"))) == Counter(numbered(5600))


# --- with Spark -------------------------------------------------------------------------------


def frame(spark: Any, count: int, partitions: int) -> Any:
    return spark.range(0, count, 1, partitions).selectExpr(
        "concat('t.', id % 3) AS subject", "cast(id AS string) AS payload"
    )


def write(df: Any, server: SparkTestServer, **options: str) -> None:
    made = df.write.format("streamd").mode("append")
    given = {"servers": server.address, "stream": "T", "prepareStream": "true"}
    for key, value in (given | options).items():
        made = made.option(key, value)
    made.save()


def by_partition(port: int) -> dict[str, list[int]]:
    """Payloads in stored order, by the partition in their ids."""
    found: dict[str, list[int]] = {}
    for one in stored(port, "T"):
        partition = one.header("Nats-Msg-Id").rsplit(":", 2)[1]
        found.setdefault(partition, []).append(int(one.payload))
    return found


@pytest.mark.timeout(300)  # the session may have to start first
def test_batch_write_resumes_after_a_failed_task(
    spark: Any, stream: SparkTestServer, tmp_path: Path
) -> None:
    """A row breaks the last of four tasks, of which two run at a time, so one at least has written
    all its rows; the same job id again writes the rest, each row once."""
    df = frame(spark, 20_000, 4)
    broken = df.selectExpr(
        "subject", "if(payload = '19000', raise_error('row 19000'), payload) AS payload"
    )
    with pytest.raises(Exception, match="row 19000"):
        write(broken, stream, jobId="nightly")
    # Spark reports the failure while other tasks of the job are still being ended.
    before = len(stored(stream.port, "T"))
    assert 0 < before < 20_000
    summary = tmp_path / "summary.json"
    write(df, stream, jobId="nightly", summaryFile=str(summary))
    told = json.loads(summary.read_text())
    found = by_partition(stream.port)
    assert {key: sorted(value) == value for key, value in found.items()} == dict.fromkeys(
        "0123", True
    )
    assert sorted(row for some in found.values() for row in some) == list(range(20_000))
    assert told["rows"] == told["resumed"] + told["sent"] == 20_000
    assert before <= told["resumed"] < 20_000
    assert told["duplicates"] == 0


def test_a_summary_is_told_on_a_subject_also_after_a_lost_connection(
    stream: SparkTestServer,
) -> None:
    """What Spark Connect's client hears of a write, whose server may restart meanwhile."""
    options = SinkOptions.parse({"servers": stream.address, "stream": "T"})
    with Listener(options.connection) as listener:
        assert listener.summary(0.01) == {}
        options = replace(options, summary_subject=listener.subject)
        stream.kill()
        stream.start()
        for _ in range(100):  # it may be subscribed again a moment later
            tell(options, {"rows": 7, "samples": ["é"]})
            if listener.summary(0.2):
                break
        assert listener.summary() == {"rows": 7, "samples": ["é"]}


def test_a_summary_that_cannot_be_told_does_not_fail_the_write(
    stream: SparkTestServer, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_report, "TELL_WITHIN_S", 0.3)
    given = {"servers": stream.address, "stream": "T", "summarySubject": "_INBOX.x"}
    stream.kill()
    tell(SinkOptions.parse(given), {"rows": 7})
    assert "the counts of a write to T could not be reported" in caplog.text
    with pytest.raises(OptionError, match="summarySubject is 'a b'"):
        SinkOptions.parse(given | {"summarySubject": "a b"})


def test_fewer_partitions_than_before_are_noticed(spark: Any, stream: SparkTestServer) -> None:
    write(frame(spark, 40, 4), stream, jobId="shrunk")
    with pytest.raises(Exception, match=r"rows may be doubled|are not the same|has more now"):
        write(frame(spark, 20, 1), stream, jobId="shrunk")


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("'t.a' AS subject, 1L AS payload", "column payload has type bigint, must be string or"),
        ("1L AS subject, 'x' AS payload", "column subject has type bigint, must be string"),
        ("'t.a' AS subject", "column payload .* is missing"),
        ("'t.a' AS subject, 'x' AS payload, 1L AS seq", "column seq is none"),
        ("'t.a' AS subject, 'x' AS payload, 'x' AS data", "mean the same"),
        ("'t.a' AS subject, 'x' AS data, map('a', 1) AS headers", "map<string,string>"),
    ],
)
def test_wrong_columns_are_named(
    spark: Any, stream: SparkTestServer, columns: str, said: str
) -> None:
    with pytest.raises(Exception, match=said):
        write(spark.sql(f"SELECT {columns}"), stream)


@pytest.mark.proof
@pytest.mark.timeout(300)
def test_query_is_killed_and_goes_on_from_its_checkpoint(
    spark: Any, start_server: StartServer, tmp_path: Path
) -> None:
    """A query over files fails in its second batch, then runs again: every row once, in order."""
    server = start_server()
    server.create_stream("T")
    source = tmp_path / "in"
    source.mkdir()
    for batch in range(3):
        lines = "".join(f"{n}\n" for n in range(batch * 3000, batch * 3000 + 3000))
        (source / f"{batch}.txt").write_text(lines)
        os.utime(source / f"{batch}.txt", (1_000_000 + batch, 1_000_000 + batch))
    trap = tmp_path / "trap"
    trap.touch()
    path = str(trap)

    def spring(batches: Any) -> Any:
        import os

        seen = 0
        for batch in batches:
            yield batch
            seen += batch.num_rows
            if os.path.exists(path) and batch.column(1)[0].as_py() == "3000" and seen >= 2000:
                raise RuntimeError("the trap")

    def run() -> None:
        lines = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(source))
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "2500")
        query = (
            lines.selectExpr("concat('t.', length(value)) AS subject", "value AS payload")
            .mapInArrow(spring, "subject string, payload string")
            .writeStream.format("streamd")
            .option("servers", server.address)
            .option("stream", "T")
            .option("prepareStream", "true")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(90)

    try:
        with pytest.raises(Exception, match="the trap"):
            run()
        assert 3000 <= len(stored(server.port, "T")) < 9000
        trap.unlink()
        run()
    finally:
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "10000")
    found = stored(server.port, "T")
    assert [int(one.payload) for one in found] == list(range(9000))
    ids = [one.header("Nats-Msg-Id").split(":", 1)[1] for one in found]
    assert (ids[0], ids[3000], ids[8999]) == ("0:0:0", "1:0:0", "2:0:2999")


ATTEMPTS = """
import sys
from pathlib import Path
from spark_jobs.session import session

spark = session("attempts", master="local[2,3]", conf={
    "spark.driver.memory": "512m", "spark.local.dir": sys.argv[2]})

def failing(batches):
    from pyspark import TaskContext
    for batch in batches:
        yield batch.slice(0, 2500)
        if TaskContext.get().attemptNumber() < 2:
            raise RuntimeError("this attempt fails")
        yield batch.slice(2500)

(spark.range(0, 20000, 1, 2)
    .selectExpr("concat('t.', id % 3) AS subject", "cast(id AS string) AS payload")
    .mapInArrow(failing, "subject string, payload string")
    .write.format("streamd").mode("append")
    .options(servers=sys.argv[1], stream="T", prepareStream="true").save())
spark.stop()
"""


@pytest.mark.proof
@pytest.mark.timeout(400)
def test_failed_attempts_are_repeated_by_spark(
    spark: Any, stream: SparkTestServer, tmp_path: Path
) -> None:
    """A session that tries tasks three times: each task fails twice in the middle."""
    script = tmp_path / "attempts.py"
    script.write_text(ATTEMPTS)
    done = subprocess.run(
        [sys.executable, str(script), stream.address, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = by_partition(stream.port)
    assert found == {"0": list(range(10_000)), "1": list(range(10_000, 20_000))}
