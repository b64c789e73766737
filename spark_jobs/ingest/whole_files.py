"""Files whose records can span lines, or that are in another encoding than UTF-8: `read_whole`.

Spark's own readers parse them and give the text of a malformed record; its line is where that text
stands in the file, which is read a second time, as a whole, if it has any.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from spark_jobs.ingest.sources import (
    MALFORMED,
    Input,
    Source,
    column,
    null_causes,
    reader_of,
    wanted_of,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_COLUMNS: Final = ["file", "line", "text", "reason"]


def read_whole(spark: SparkSession, source: Source, encoding: str) -> Input:
    """As `read.read_input`. The text of malformed records is given in UTF-8."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    wanted = wanted_of(spark, source)
    names = [column(name) for name in wanted.names]
    reader = reader_of(spark, source).options(
        mode="PERMISSIVE", columnNameOfCorruptRecord=MALFORMED, columnPruning="false"
    )
    if source.is_on("header") and not source.option("enforceschema"):
        reader = reader.option("enforceSchema", "false")
    schema = StructType([*wanted.fields, StructField(MALFORMED, StringType())])
    found = reader.schema(schema).format(source.format).load(list(source.paths))
    bad = f.col(MALFORMED)
    reason = f.when(bad.isNotNull(), f.lit(f"not {source.format.upper()} of the schema"))
    for is_so, why in null_causes(source, f.struct(*names)):
        reason = reason.when(is_so, f.lit(why))
    made = found.withColumn("file", f.input_file_name()).withColumn("reason", reason)
    rows = made.where(f.col("reason").isNull()).select(*names)
    malformed = made.where(f.col("reason").isNotNull()).select(
        "file", f.coalesce(bad, f.to_json(f.struct(*names))).alias("text"), "reason"
    )
    grouped = malformed.groupBy("file").agg(
        f.sort_array(f.collect_list(f.struct("text", "reason"))).alias("bad")
    )
    contents = reader_of(spark, source, of_files_only=True).format("binaryFile")
    whole = contents.load(list(source.paths)).select(f.input_file_name().alias("file"), "content")
    is_json = source.format == "json"

    def locate(batches: Iterator[Any]) -> Iterator[Any]:
        import pandas as pd

        for batch in batches:
            out: list[tuple[str, int, bytes, str]] = []
            for file, content, records in zip(
                batch["file"], batch["content"], batch["bad"], strict=True
            ):
                told = [(record["text"], record["reason"]) for record in records]
                text = "" if is_json else bytes(content).decode(encoding, "replace")
                out += [(file, *each) for each in located(text, told)]
            yield pd.DataFrame(out, columns=_COLUMNS)

    columns = "file string, line long, text binary, reason string"
    return Input(rows, whole.join(f.broadcast(grouped), "file").mapInPandas(locate, columns))


def located(content: str, records: list[tuple[str, str]]) -> Iterator[tuple[int, bytes, str]]:
    """(line, text as it stands there, reason) of each of `records`, (text, reason) in order of
    their texts. The line is 1 where a record's text does not stand in `content` by itself: a JSON
    file is one record."""
    after: dict[str, int] = {}
    for text, reason in records:
        # The parser makes one newline of every kind.
        lines = r"\r?\n".join(map(re.escape, text.split("\n")))
        pattern = re.compile(rf"(?:\A|(?<=\n))\ufeff?({lines})(?=\r?\n|\Z)")
        found = pattern.search(content, after.get(text, 0))
        if found is None:
            yield 1, text.encode(), reason
            continue
        after[text] = found.end()
        yield content.count("\n", 0, found.start(1)) + 1, found[1].encode(), reason
