"""Parquet as rows: `read_parquet`. A file's schema fits, or all its records are malformed.

Spark takes the schema of one file for all: a column that only others have is dropped, one that
another lacks is null, and another type ends the job in the middle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import unquote

from spark_jobs.ingest.sources import Input, Source, column, reader_of
from spark_jobs.jobs.command import one_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

_COLUMNS: Final = "file string, line long, text binary, reason string"
_WIDER: Final = {  # what Spark's reader makes of a type without a loss
    "tinyint": ("smallint", "int", "bigint", "double"),
    "smallint": ("int", "bigint", "double"),
    "int": ("bigint", "double"),
    "float": ("double",),
    "date": ("timestamp_ntz",),
}
_REASON_MAX: Final = 300


def read_parquet(spark: SparkSession, source: Source) -> Input:
    """As `read.read_input`. In the place of the line is the number of the row, 0 for a file
    that can't be read; the text is the row as JSON by the file's own schema."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StructType

    listed = reader_of(spark, source, of_files_only=True).format("binaryFile")
    place = listed.load(list(source.paths))
    partitions = set(place.columns) - {"path", "modificationTime", "length", "content"}
    files = sorted(place.inputFiles())
    groups, unreadable = _schemas(spark, files)
    merges = source.is_on("mergeschema")
    wanted: StructType | None = None
    if source.schema:
        wanted = cast("StructType", StructType.fromDDL(source.schema))
    elif groups and not merges:
        wanted = groups[0][0]
    others: list[tuple[StructType, list[str], str]] = []
    for schema, names in groups:
        why = wanted and misfit(
            wanted,
            schema,
            known=partitions,
            may_lack=merges,
            may_have_more=bool(source.schema) or merges,
        )
        if why:
            others.append((schema, names, why))
    refused = [name for _, names, _ in others for name in names]
    refused += [name for name, _ in unreadable]
    reader = reader_of(spark, source)
    if wanted is not None:
        reader = reader.schema(wanted)
    if not refused:
        return Input(reader.format("parquet").load(list(source.paths)), None)
    if len(refused) == len(files):
        rows = spark.createDataFrame([], wanted or "no_column string")
    else:
        if wanted is None:  # merged of those that can be read
            whole = [name for _, names in groups for name in names]
            reader = reader.schema(reader_of(spark, source).parquet(*map(unquote, whole)).schema)
        rows = reader.format("parquet").load(list(source.paths))
        # A condition on this column leaves out whole files, before anything of them is read. It
        # writes file: with one slash where the list of files has three.
        spelled = {*refused, *(name.replace("file:///", "file:/", 1) for name in refused)}
        rows = rows.where(~f.col("_metadata.file_path").isin(sorted(spelled)))
    parts = [
        spark.read.schema(schema)
        .parquet(*map(unquote, names))
        .select(
            f.col("_metadata.file_path").alias("file"),
            (f.col("_metadata.row_index") + 1).alias("line"),
            f.to_json(f.struct(*map(column, schema.names))).cast("binary").alias("text"),
            f.lit(why).alias("reason"),
        )
        for schema, names, why in others
    ]
    if unreadable:
        told = [(name, 0, bytearray(), why) for name, why in unreadable]
        parts.append(spark.createDataFrame(told, _COLUMNS))
    return Input(rows, reduce(lambda left, right: left.unionByName(right), parts))


def _schemas(
    spark: SparkSession, files: Sequence[str]
) -> tuple[list[tuple[StructType, list[str]]], list[tuple[str, str]]]:
    """The files by their schema, in order of their first file; and those without one, and why."""
    same: dict[str, list[str]] = defaultdict(list)
    unreadable: list[tuple[str, str]] = []
    for name in files:
        words, problem = _footer(name)
        if problem:
            unreadable.append((name, f"not Parquet that can be read: {problem[:_REASON_MAX]}"))
        else:
            same[words].append(name)
    found: list[tuple[StructType, list[str]]] = []
    for names in same.values():
        try:
            found.append((spark.read.parquet(unquote(names[0])).schema, names))
        except Exception as err:  # noqa: BLE001 - of Spark, of its JVM or of a file system
            text = f"not Parquet that can be read: {one_line(err)[:_REASON_MAX]}"
            unreadable += [(name, text) for name in names]
    return found, unreadable


def _footer(name: str) -> tuple[str, str]:
    """Return the columns that the footer of a local file tells, and the reason if it can't be read.
    Files with equal texts have the same schema, of which Spark then reads one; elsewhere it reads
    each."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not name.startswith("file:"):
        return name, ""
    try:
        found = pq.read_schema("/" + unquote(name.removeprefix("file:")).lstrip("/"))
    except (OSError, pa.ArrowException) as err:
        return "", str(err)
    return (
        f"{found.to_string(show_field_metadata=False)}{sorted((found.metadata or {}).items())}",
        "",
    )


def misfit(
    wanted: StructType,
    schema: StructType,
    *,
    known: set[str],
    may_lack: bool,
    may_have_more: bool,
) -> str:
    """Why a file of `schema` does not fit; "" if it does. `known`: columns that are no file's."""
    there = {each.name.lower(): each.dataType.simpleString() for each in schema.fields}
    for each in wanted.fields:
        if each.name in known:
            continue
        kind, mine = each.dataType.simpleString(), there.pop(each.name.lower(), "")
        if not mine and not may_lack:
            return f"the file has no column {each.name} ({kind})"
        if mine and mine != kind and kind not in _WIDER.get(mine, ()):
            return f"the file's column {each.name} is {mine}, not {kind}"
    if there and not may_have_more:
        name, kind = next(iter(there.items()))
        return f"the file has a column {name} ({kind}) that the others do not have"
    return ""
