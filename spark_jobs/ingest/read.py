"""Files as rows, and beside them the records that do not parse as their schema says: `read_input`.

Spark's readers make nulls of what they cannot parse. Here such a record is kept as it stands in
its file, with the file's name and the line: JSON and CSV are read as lines and parsed by
`from_json` and `from_csv` with a column for what is malformed; files whose records can span lines
or are in another encoding go through Spark's own readers; a Parquet file of another schema is
malformed as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from spark_jobs.ingest.parquet import read_parquet
from spark_jobs.ingest.sources import (
    MALFORMED,
    OF_FILES,
    Input,
    Source,
    column,
    null_causes,
    reader_of,
    wanted_of,
)
from spark_jobs.ingest.whole_files import read_whole
from spark_jobs.jobs.command import JobError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

FORMATS: Final = ("json", "csv", "parquet", "text")
_FILE, _START, _AT, _TEXT = "__streamd_file", "__streamd_start", "__streamd_at", "__streamd_text"
_OURS: Final = ("mode", "columnnameofcorruptrecord", "badrecordspath")
_UTF8: Final = ("utf-8", "utf8")


def read_input(spark: SparkSession, source: Source) -> Input:
    """Plan the reading of `source`; nothing but schemas is read yet. Raises JobError."""
    for name in source.options:
        if name.lower() in _OURS:
            raise JobError(
                f"--option {name}: malformed records are never dropped or changed: they go to "
                "--dlq, or end the job"
            )
    missing = [
        path
        for path in source.paths
        if "://" not in path and not set(path) & set("*?[{") and not Path(path).exists()
    ]
    if missing:
        raise JobError(f"--from: there is no {', '.join(missing)}")
    # Both passes over the files must cut them alike, however many executors there are by then.
    spark.conf.set("spark.sql.files.minPartitionNum", str(_parallelism(spark)))
    if source.format == "parquet":
        return read_parquet(spark, source)
    if source.format == "text":
        return Input(reader_of(spark, source).format("text").load(list(source.paths)), None)
    encoding = source.option("encoding") or source.option("charset") or "utf-8"
    if source.is_on("multiline") or encoding.lower() not in _UTF8:
        return read_whole(spark, source, encoding)
    return _read_lines(spark, source)


def _parallelism(spark: SparkSession) -> int:
    try:
        return int(spark.sparkContext.defaultParallelism)
    except Exception:  # noqa: BLE001 - Spark Connect has no context
        return 4


# --- lines ------------------------------------------------------------------------------------


def _read_lines(spark: SparkSession, source: Source) -> Input:
    """JSON lines and CSV, one record a line."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    wanted = wanted_of(spark, source)
    text = reader_of(spark, source, of_files_only=True).format("text").load(list(source.paths))
    partitions = [name for name in text.columns if name != "value"]
    own = StructType([each for each in wanted.fields if each.name not in partitions])
    # These functions of where a row was read are the same in every pass over the same files, and
    # keep Spark from leaving out files in one of the passes.
    lines = text.select(
        f.col("value").alias(_TEXT),
        f.input_file_name().alias(_FILE),
        f.input_file_block_start().alias(_START),
        f.monotonically_increasing_id().alias(_AT),
        *[column(name) for name in partitions],
    )
    splits = lines.groupBy(_FILE, _START).agg(f.min(_AT).alias("first"), f.count("*").alias("n"))
    told = lines.where(f.trim(f.col(_TEXT), f.lit(" \t\r")) != "")
    if source.format == "csv":
        comment = source.option("comment")
        if comment:
            told = told.where(~f.col(_TEXT).startswith(comment))
        if source.is_on("header"):
            told = _without_headers(told, source, own)
    parser = StructType([*own.fields, StructField(MALFORMED, StringType())])
    options = _parser_options(source)
    if source.format == "json":
        parsed = f.from_json(_TEXT, parser, options)
    else:
        parsed = f.from_csv(f.col(_TEXT), _ddl(parser), options)
    made = told.withColumn("parsed", parsed)
    cause = _cause(source, own, f.col("parsed"), made.columns, options)
    made = made.withColumn("reason", cause)
    rows = made.where(f.col("reason").isNull()).select(
        *[f.col("parsed").getField(each.name).alias(each.name) for each in own.fields],
        *[column(name).cast(wanted[name].dataType) for name in partitions],
    )
    malformed = made.where(f.col("reason").isNotNull()).select(_FILE, _START, _AT, _TEXT, "reason")
    return Input(rows, _numbered(malformed, splits))


def _ddl(schema: StructType) -> str:
    parts = []
    for each in schema.fields:
        parts.append(f"`{each.name.replace('`', '``')}` {each.dataType.simpleString()}")
    return ", ".join(parts)


def _parser_options(source: Source) -> dict[str, str]:
    """The options of the reader that say how a line is parsed."""
    others = ("header", "inferschema", "enforceschema", "samplingratio", "multiline", *OF_FILES)
    chosen = {k: v for k, v in source.options.items() if k.lower() not in others}
    return chosen | {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": MALFORMED}


def _cause(
    source: Source,
    own: StructType,
    parsed: Column,
    known: Sequence[str],
    options: Mapping[str, str],
) -> Column:
    """Why a line is malformed; null if it is not."""
    from pyspark.sql import functions as f

    text = f.col(_TEXT)
    causes = [(~f.is_valid_utf8(text), "not UTF-8")]
    if not own.fields:
        causes.append((f.lit(True), "no line of any file parses"))
    if "bad_header" in known:
        causes.append((f.col("bad_header"), "the file's header names other columns"))
    causes.append(
        (
            parsed.isNull() | parsed.getField(MALFORMED).isNotNull(),
            f"not {source.format.upper()} of the schema",
        )
    )
    if source.format == "json":
        # The parser stops after the first value: what follows it would be lost.
        alone = f.from_json(
            f.concat(f.lit("["), text, f.lit("\n]")), "array<string>", dict(options)
        )
        causes.append((f.coalesce(f.size(alone), f.lit(-1)) != 1, "more than one value in a line"))
    else:
        causes.append((_has_open_quote(source, own), "a quoted field that does not end"))
    causes += null_causes(source, parsed)
    found = f.lit(None).cast("string")
    for is_so, why in reversed(causes):
        found = f.when(f.coalesce(is_so, f.lit(False)), f.lit(why)).otherwise(found)
    return found


def _has_open_quote(source: Source, own: StructType) -> Column:
    """True if a quoted field goes on behind the end of the line, of which the parser makes a whole
    one: one more field, put at the end, is then no field of its own."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    text = f.col(_TEXT)
    separator = source.option("sep") or source.option("delimiter") or ","
    fields = [StructField(f"c{at}", StringType()) for at in range(len(own.fields) + 1)]
    parser = StructType([*fields, StructField(MALFORMED, StringType())])
    more = f.concat(text, f.lit(f"{separator}x"))
    parsed = f.from_csv(more, _ddl(parser), _parser_options(source))
    quote = source.option("quote", '"')
    if not quote:
        return f.lit(False)
    return text.contains(quote) & parsed.getField(MALFORMED).isNotNull()


def _without_headers(lines: DataFrame, source: Source, own: StructType) -> DataFrame:
    """`lines` without the first of each file; `bad_header`: that one names other columns."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    names = [each.name for each in own.fields]
    place = f.struct(f.col(_START), f.col(_AT))
    firsts = lines.groupBy(_FILE).agg(f.min(f.struct(place.alias("place"), _TEXT)).alias("h"))
    fields = [StructField(f"c{at}", StringType()) for at in range(len(names))]
    parser = StructType([*fields, StructField(MALFORMED, StringType())])
    header = f.from_csv(f.col(f"h.{_TEXT}"), _ddl(parser), _parser_options(source))
    differs = f.col(f"p.{MALFORMED}").isNotNull()
    if not source.is_on("enforceschema"):
        for at, name in enumerate(names):
            if source.schema or not name.startswith("_c"):  # Spark's name for a column without one
                same = f.lower(f.col(f"p.c{at}")) == f.lit(name.lower())
                differs = differs | ~f.coalesce(same, f.lit(False))
    known = firsts.select(
        _FILE,
        f.col("h.place").alias("header_place"),
        header.alias("p"),
    ).select(_FILE, "header_place", f.coalesce(differs, f.lit(True)).alias("bad_header"))
    return lines.join(f.broadcast(known), _FILE).where(place != f.col("header_place"))


def _numbered(malformed: DataFrame, splits: DataFrame) -> DataFrame:
    """`malformed` with the line in the file: what its part of the file begins with, and how many
    lines are before that part."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    before = (
        Window.partitionBy(_FILE)
        .orderBy(_START)
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    placed = splits.select(
        _FILE, _START, "first", (f.sum("n").over(before) - f.col("n")).alias("lines_before")
    )
    return malformed.join(placed, [_FILE, _START]).select(
        f.col(_FILE).alias("file"),
        (f.col("lines_before") + f.col(_AT) - f.col("first") + 1).alias("line"),
        f.col(_TEXT).cast("binary").alias("text"),
        "reason",
    )
