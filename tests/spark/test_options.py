"""Option names and values: what is taken, and how a wrong one is refused."""

from __future__ import annotations

import pickle

import pytest

pytest.importorskip("pyspark", reason="pyspark is not installed")

from pyspark.sql.types import LongType, StringType, StructField, StructType

from spark_jobs.client.options import ConnectOptions, OptionError
from spark_jobs.schema import (
    ARROW_SCHEMA,
    COLUMNS,
    DEBUG_COLUMNS,
    SCHEMA,
    arrow_schema,
    parse_headers,
    spark_schema,
)
from spark_jobs.source.read_options import ReadOptions


def parse(**options: str) -> ReadOptions:
    return ReadOptions.parse({"stream": "S", **options})


def test_defaults_are_those_of_the_documentation() -> None:
    found = parse()
    assert found.max_records_per_partition == 1_000_000
    assert found.max_bytes_per_partition == 128 * 1024 * 1024
    assert found.batch_rows == 10_000
    assert found.fail_on_data_loss
    assert found.verify
    assert not found.pushdown
    assert not found.is_offline
    assert found.columns == COLUMNS
    assert found.connection.servers == ("127.0.0.1:4222",)


def test_names_match_without_regard_to_case() -> None:
    assert parse(STARTSEQ="7", maxbytesperpartition="1m").start_seq == 7
    assert parse(maxbytesperpartition="1m").max_bytes_per_partition == 1 << 20


@pytest.mark.parametrize(
    ("name", "near"),
    [("startSequence", "startSeq"), ("pth", "path"), ("server", "servers"), ("tlsca", "tls.ca")],
)
def test_unknown_name_is_answered_with_the_nearest_one(name: str, near: str) -> None:
    with pytest.raises(OptionError, match=f"unknown option {name}; did you mean {near}"):
        parse(**{name: "x"})


def test_unlike_any_name_lists_those_there_are() -> None:
    with pytest.raises(OptionError, match=r"unknown option qqqqqqqq; known: stream, path"):
        parse(qqqqqqqq="x")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"stream": ""}, "option stream is missing"),
        ({"startSeq": "x"}, "option startSeq is 'x', must be an integer"),
        ({"startSeq": "0"}, "option startSeq is 0, must be in 1.."),
        ({"batchRows": "2000000"}, "option batchRows is 2000000, must be in 1..1000000"),
        ({"maxBytesPerPartition": "64 parsecs"}, "option maxBytesPerPartition is '64 parsecs'"),
        ({"maxBytesPerPartition": "0"}, "must be above 0"),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss is 'maybe', must be true or false"),
        ({"startTime": "yesterday"}, "option startTime is 'yesterday', must be like 2026-01-31T"),
        ({"startTime": "1790000000000"}, "a number must be nanoseconds"),
        ({"startingPosition": "middle"}, "must be earliest or latest"),
        ({"startSeq": "1", "startTime": "2026-01-01"}, "give one of startSeq, startTime"),
        ({"endSeq": "1", "endTime": "2026-01-01"}, "give one of endSeq and endTime"),
        ({"startSeq": "5", "endSeq": "4"}, "startSeq 5 is after endSeq 4"),
        ({"subjects": "a..b"}, "'a..b' is not a valid subject"),
        ({"subjects": "a.>.b"}, "'a.>.b' is not a valid subject"),
        ({"columns": "seq,colour"}, "no column 'colour'; its columns are stream, subject"),
        ({"columns": "seq,seq"}, "names a column twice"),
        ({"path": "s3://bucket/x"}, "'s3://bucket/x' is not a local directory"),
        ({"paths": "nope"}, "must be a JSON list"),
        ({"servers": ","}, "option servers is empty"),
        ({"servers": "host:port"}, "'host:port' is no host:port"),
        ({"servers": "http://host"}, "must be host:port or nats://host:port"),
        ({"tls.cert": "a.pem"}, "tls.cert and tls.key go together"),
        ({"token": "t", "user": "u"}, "not both"),
        ({"nkey": "SU..."}, "option nkey is not supported: use user and password"),
    ],
)
def test_wrong_values_are_refused_with_value_and_rule(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError) as caught:
        ReadOptions.parse({"stream": "S", **options})
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds", "nanos"),
    [
        ("2026-01-31T12:00:00Z", 1769860800, 0),
        ("2026-01-31T12:00:00", 1769860800, 0),
        ("2026-01-31T13:00:00.123456789+01:00", 1769860800, 123456789),
        ("2026-01-31T12:00:00.5Z", 1769860800, 500000000),
        ("1769860800000000007", 1769860800, 7),
    ],
)
def test_times_keep_their_nanoseconds(text: str, seconds: int, nanos: int) -> None:
    assert parse(startTime=text).start_time_ns == seconds * 1_000_000_000 + nanos


def test_times_that_no_message_has_bound_as_the_nearest_one_does() -> None:
    """0 would be no bound: endTime 1970-01-01 read all there is."""
    for text in ("1970-01-01T00:00:00Z", "1960-06-01", "0001-01-01"):
        assert parse(startTime=text).start_time_ns == 1
        assert parse(endTime=text).end_time_ns == 1
    assert parse(endTime="9999-12-31").end_time_ns == (1 << 63) - 2
    with pytest.raises(OptionError, match="startTime 2026-01-01 is after endTime 1960-01-01"):
        parse(startTime="2026-01-01", endTime="1960-01-01")


@pytest.mark.parametrize(
    ("text", "size"), [("1024", 1024), ("64MiB", 64 << 20), ("2 g", 2 << 30), ("5kB", 5 << 10)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse(maxBytesPerTrigger=text).max_bytes_per_trigger == size


def test_paths_come_as_a_list_or_as_json() -> None:
    assert parse(path="/a, file:///b").paths == ("/a", "/b")
    assert parse(paths='["/a", "/b,c"]').paths == ("/a", "/b,c")


def test_columns_follow_schema_then_option_then_default() -> None:
    given = StructType([StructField("seq", LongType()), StructField("subject", StringType())])
    assert ReadOptions.parse({"stream": "S"}, given).columns == ("seq", "subject")
    assert parse(columns="payload, seq").columns == ("payload", "seq")
    assert parse(includeHeaders="false").columns == tuple(c for c in COLUMNS if c != "headers")
    assert parse(withDebug="true").columns == (*COLUMNS, *DEBUG_COLUMNS)


def test_a_schema_with_foreign_columns_or_types_is_refused() -> None:
    with pytest.raises(ValueError, match="no column 'x'; its columns are stream"):
        ReadOptions.parse({"stream": "S"}, StructType([StructField("x", LongType())]))
    with pytest.raises(ValueError, match="column 'seq' has type bigint, the schema says string"):
        ReadOptions.parse({"stream": "S"}, StructType([StructField("seq", StringType())]))


def test_connection_takes_its_part_and_hides_secrets() -> None:
    found = ConnectOptions.parse(
        {"servers": "nats://bob:pa%40ss@h1:1, tls://h2, [::1]:9", "stream": "S", "domain": "d"}
    )
    assert found.servers == ("h1:1", "tls://h2:4222", "[::1]:9")
    assert (found.user, found.password, found.domain) == ("bob", "pa@ss", "d")
    assert "pa@ss" not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found


def test_schemas_agree() -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    assert from_arrow_schema(ARROW_SCHEMA) == SCHEMA
    every = (*COLUMNS, *DEBUG_COLUMNS)
    assert from_arrow_schema(arrow_schema(every)) == spark_schema(every)


def test_headers_keep_values_of_equal_keys_in_order() -> None:
    block = b"NATS/1.0\r\nA: 1\r\nb:x\r\nA:  2 \r\nno colon\r\n: no key\r\n\r\n"
    assert parse_headers(block) == [("A", ["1", "2"]), ("b", ["x"])]
    assert parse_headers(b"") == []


@pytest.mark.parametrize("name", ["maxMsgsPerTrigger", "minMsgsPerTrigger", "ackConsumer"])
def test_options_of_streaming_queries_are_refused_in_a_batch(name: str) -> None:
    options = ReadOptions.parse({"stream": "S", name: "10"})
    with pytest.raises(OptionError, match=f"option {name} is for spark.readStream"):
        options.check_batch()
    ReadOptions.parse({"stream": "S"}).check_batch()
