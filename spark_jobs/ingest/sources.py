"""Files to ingest and how Spark reads them: `Source`, and `Input`, the outcome of a reading."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

MALFORMED: Final = "__streamd_malformed"
OF_FILES: Final = (
    "linesep", "pathglobfilter", "recursivefilelookup", "modifiedbefore", "modifiedafter",
    "basepath",
)  # fmt: skip


@dataclass(frozen=True)
class Source:
    """Which files to read, and how."""

    format: str
    paths: Sequence[str]
    options: Mapping[str, str] = field(default_factory=dict)  # of Spark's reader
    schema: str = ""  # DDL; "": inferred

    def option(self, name: str, default: str = "") -> str:
        """The option `name`, whatever its case."""
        return next((v for k, v in self.options.items() if k.lower() == name), default)

    def is_on(self, name: str) -> bool:
        return self.option(name).lower() == "true"


@dataclass(frozen=True)
class Input:
    """Rows that parse and records that do not. `malformed` has the columns file, line, text
    (binary), reason, and is None where every record parses by construction."""

    rows: DataFrame
    malformed: DataFrame | None


def reader_of(spark: SparkSession, source: Source, *, of_files_only: bool = False) -> Any:
    """Spark's reader with the options of `source`, or with those that say which files there are."""
    chosen = {
        name: value
        for name, value in source.options.items()
        if not of_files_only or name.lower() in OF_FILES
    }
    return spark.read.options(**chosen)


def wanted_of(spark: SparkSession, source: Source) -> StructType:
    """The schema of the rows, without a column for malformed ones."""
    from pyspark.sql.types import StructType

    reader = reader_of(spark, source).options(
        mode="PERMISSIVE", columnNameOfCorruptRecord=MALFORMED
    )
    if source.schema:
        reader = reader.schema(source.schema)
    found = reader.format(source.format).load(list(source.paths)).schema
    return StructType([each for each in found.fields if each.name != MALFORMED])


def column(name: str) -> Column:
    """The column `name`, whatever characters it has."""
    from pyspark.sql import functions as f

    return f.col("`" + name.replace("`", "``") + "`")


def null_causes(source: Source, parsed: Column) -> list[tuple[Column, str]]:
    """Columns that the given schema declares NOT NULL; Spark's readers ignore that."""
    from pyspark.sql.types import StructType

    if not source.schema:
        return []
    given = cast("StructType", StructType.fromDDL(source.schema))
    return [
        (parsed.getField(each.name).isNull(), f"{each.name} is missing, the schema says NOT NULL")
        for each in given.fields
        if not each.nullable
    ]
