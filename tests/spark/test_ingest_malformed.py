"""The job `ingest`: records that do not parse go to the dead letters as they stood, or end it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from spark_jobs.ingest import ingest_job as ingest
from spark_jobs.ingest.malformed import Malformed, Record, directory_of
from spark_jobs.ingest.read import read_input
from spark_jobs.ingest.sources import Source
from spark_jobs.ingest.whole_files import located
from spark_jobs.jobs.command import JobError
from tests.spark.servers import SparkTestServer
from tests.spark.sink_bed import stored

pytestmark = pytest.mark.timeout(300)  # Spark starts once, and slowly

LINES = [
    b'{"id":1,"r":"eu"}',
    b"not json",
    b"",
    b'{"id":2,"r":"eu"',
    b'{"id":"x","r":"eu"}',
    b'{"id":3} {"id":4}',
    b'[{"id":5}]',
    b'{"id":6,"r":"\xff"}',
    b'{"id":7,"r":"us"}',
]
SCHEMA = "id long, r string"


def run(server: SparkTestServer, *more: str) -> int:
    return ingest.main(["--servers", server.address, "--stream", "ORDERS", "--quiet", *more])


def read(spark: Any, kind: str, path: Path, schema: str = "", **options: str) -> Any:
    """(rows as dicts, {line: text} of what is malformed)"""
    found = read_input(spark, Source(kind, [str(path)], options, schema))
    rows = [row.asDict() for row in found.rows.collect()]
    if found.malformed is None:
        return rows, {}
    records = found.malformed.collect()
    return rows, {row["line"]: bytes(row["text"]) for row in records}


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "in put.json"
    path.write_bytes(b"\n".join(LINES) + b"\n")
    return path


def test_without_dead_letters_nothing_is_sent_and_the_first_ones_are_named(
    spark: Any, server: SparkTestServer, lines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        *("--format", "json", "--from", str(lines), "--schema", SCHEMA, "--create"),
        *("--subject-template", "orders.{id}"),
    ]
    assert run(server, *arguments) == 1
    said = capsys.readouterr().err
    assert "6 records do not parse as their schema says, and nothing was sent" in said
    assert f"malformed: {lines}:2: not JSON of the schema: not json\n" in said
    assert f"{lines}:8: not UTF-8: " in said
    assert f"{lines}:6: more than one value in a line: " in said
    assert run(server, *arguments, "--dry-run") == 1
    assert "6 records are malformed" in capsys.readouterr().out


def test_malformed_records_become_letters_with_file_line_and_the_exact_text(
    spark: Any, server: SparkTestServer, lines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.create_stream("DEAD")
    arguments = [
        *("--format", "json", "--from", str(lines), "--schema", SCHEMA, "--create"),
        *("--subject-template", "orders.{id}", "--dlq", "stream:DEAD"),
    ]
    assert run(server, *arguments) == 1
    out = capsys.readouterr().out
    assert "2 sent" in out
    assert "6 malformed records went to dead.rejected (stream DEAD)" in out
    assert [one.subject for one in stored(server.port, "ORDERS")] == ["orders.1", "orders.7"]
    letters = {int(one.header("Streamd-Line")): one for one in stored(server.port, "DEAD")}
    assert {at: one.payload for at, one in letters.items()} == {
        at: LINES[at - 1] for at in (2, 4, 5, 6, 7, 8)
    }
    assert letters[2].header("Streamd-File").endswith("/in%20put.json")
    assert letters[2].header("Streamd-Reason") == "malformed: not JSON of the schema"


def test_a_directory_takes_malformed_records_as_files(
    spark: Any, server: SparkTestServer, lines: Path, tmp_path: Path
) -> None:
    dead = tmp_path / "dead"
    arguments = [
        *("--format", "json", "--from", str(lines), "--schema", SCHEMA, "--create"),
        *("--subject-template", "orders.{id}", "--dlq", str(dead), "--job-id", "day1"),
    ]
    for _ in range(2):  # a second run replaces what the first one wrote
        assert run(server, *arguments) == 1
        files = (dead / "malformed-day1").glob("*.json")
        rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
        told = {row["line"]: row for row in rows}
        assert sorted(row["line"] for row in rows) == [2, 4, 5, 6, 7, 8]
        assert told[4]["text"] == '{"id":2,"r":"eu"'
        assert "text" not in told[8]
        assert told[8]["base64"] == "eyJpZCI6NiwiciI6Iv8ifQ=="
    assert len(stored(server.port, "ORDERS")) == 2


def test_lines_are_counted_over_the_parts_of_a_file(spark: Any, tmp_path: Path) -> None:
    """A file cut into several parts, with blank lines, malformed ones in the first, a middle and
    the last part."""
    path = tmp_path / "big.json"
    bad = {3, 20_000, 39_999}
    with path.open("w") as out:
        for at in range(1, 40_000):
            out.write("\n" if at % 7 == 0 else f"bad {at}\n" if at in bad else f'{{"id":{at}}}\n')
    before = spark.conf.get("spark.sql.files.maxPartitionBytes")
    spark.conf.set("spark.sql.files.maxPartitionBytes", "100000")
    try:
        rows, told = read(spark, "json", path)
    finally:
        spark.conf.set("spark.sql.files.maxPartitionBytes", before)
    assert told == {at: f"bad {at}".encode() for at in bad}
    assert len(rows) == sum(at % 7 != 0 for at in range(1, 40_000)) - len(bad)


def test_csv_keeps_lines_with_other_columns_or_a_bad_number(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    body = ["id,a,b", "1,x,y", "", "2,x", "3,x,y,z", "bad,x,y", '4,x,"y', '5,"q, ""r""","w"']
    path.write_text("\n".join(body) + "\n")
    schema = "id long, a string, b string"
    rows, told = read(spark, "csv", path, schema, header="true", escape='"')
    assert rows == [{"id": 1, "a": "x", "b": "y"}, {"id": 5, "a": 'q, "r"', "b": "w"}]
    assert told == {at: body[at - 1].encode() for at in (4, 5, 6, 7)}
    other = tmp_path / "two.csv"
    other.write_text("id,b,a\n8,x,y\n")
    _, told = read(spark, "csv", other, schema, header="true")
    assert told == {2: b"8,x,y"}  # by position a and b would change places
    rows, told = read(spark, "csv", other, schema, header="true", enforceSchema="true")
    assert (rows, told) == ([{"id": 8, "a": "x", "b": "y"}], {})


def test_csv_over_several_lines_names_the_line_a_record_begins_with(
    spark: Any, tmp_path: Path
) -> None:
    path = tmp_path / "multi.csv"
    path.write_bytes(b'id,a\r\n1,"x\r\ny"\r\nbad,"q\r\nr"\r\n2\r\n3,z\r\n2\r\n')
    rows, told = read(spark, "csv", path, "id long, a string", header="true", multiLine="true")
    assert [row["id"] for row in rows] == [1, 3]
    assert told == {4: b'bad,"q\r\nr"', 6: b"2", 8: b"2"}


def test_a_text_is_found_where_a_record_begins() -> None:
    content = "a,ab\nab\nxab\nab"
    assert list(located(content, [("ab", "r"), ("ab", "r"), ("{}", "r")])) == [
        (2, b"ab", "r"),
        (4, b"ab", "r"),
        (1, b"{}", "r"),
    ]


def test_parquet_of_another_schema_is_malformed_as_a_whole(spark: Any, tmp_path: Path) -> None:
    folder = tmp_path / "par quet"
    folder.mkdir()
    pq.write_table(pa.table({"id": [1, 2], "n": ["a", "b"]}), folder / "1.parquet")
    pq.write_table(pa.table({"id": ["x", "y"], "n": ["a", "b"]}), folder / "2.parquet")
    more = pa.table({"id": [3], "n": ["a"], "z": pa.array([1], pa.int32())})
    pq.write_table(more, folder / "3.parquet")
    pq.write_table(pa.table({"id": [4]}), folder / "4.parquet")
    (folder / "5.parquet").write_bytes(b"PAR1 and no more")
    found = read_input(spark, Source("parquet", [str(folder)]))
    assert sorted(row["id"] for row in found.rows.collect()) == [1, 2]
    malformed = Malformed(found.malformed)
    assert malformed.count == 5
    told = {(Path(each.file).name, each.line): each for each in malformed.sample}
    assert told["2.parquet", 2].text == b'{"id":"y","n":"b"}'
    assert told["2.parquet", 2].reason == "the file's column id is string, not bigint"
    assert "column z (int)" in told["3.parquet", 1].reason
    assert "no column n" in told["4.parquet", 1].reason
    assert told["5.parquet", 0].reason.startswith("not Parquet that can be read")
    malformed.close()
    chosen = read_input(spark, Source("parquet", [str(folder / "3.parquet")], {}, "z long"))
    assert chosen.malformed is None  # fewer columns, wider: what the schema asks for
    merged = read_input(
        spark,
        Source(
            "parquet", [str(folder / f"{n}.parquet") for n in (1, 3, 4)], {"mergeSchema": "true"}
        ),
    )
    assert merged.malformed is None
    assert {row["id"]: row["z"] for row in merged.rows.collect()} == {
        1: None,
        2: None,
        3: 1,
        4: None,
    }


def test_columns_declared_not_null_must_be_present(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "null.json"
    path.write_text('{"id":1}\n{"r":"eu"}\n')
    rows, told = read(spark, "json", path, "id long NOT NULL, r string")
    assert ([row["id"] for row in rows], told) == ([1], {2: b'{"r":"eu"}'})


def test_files_of_which_nothing_parses_are_malformed_line_by_line(
    spark: Any, tmp_path: Path
) -> None:
    path = tmp_path / "none.json"
    path.write_text("no\n\nnever\n")
    assert read(spark, "json", path) == ([], {1: b"no", 3: b"never"})


def test_options_that_drop_malformed_records_are_refused(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="never dropped or changed"):
        read_input(None, Source("json", [str(tmp_path)], {"mode": "DROPMALFORMED"}))  # type: ignore[arg-type]


def test_a_place_for_dead_letters_is_a_directory_or_a_subject() -> None:
    places = ["dir:dead", "/var/dead", "./dead", "s3a://b/dead", "dead.x", "stream:DEAD", None]
    found = [directory_of(place) for place in places]
    assert found == ["dead", "/var/dead", "./dead", "s3a://b/dead", "", "", ""]
    record = Record("/a.json", 3, b"x" * 200, "not JSON")
    assert str(record) == f"/a.json:3: not JSON: {'x' * 120}..."
