"""Rows of the files of an export: `read_files`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spark_jobs.export.export_ledger import Ledger
from spark_jobs.schema import COLUMNS, spark_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_files(spark: SparkSession, ledger: Ledger, paths: Sequence[str]) -> DataFrame:
    """Read some files of an export as rows, without its partition columns."""
    schema = spark_schema(COLUMNS)
    if not paths:
        return spark.createDataFrame([], schema)
    return spark.read.schema(schema).parquet(
        *[literal_url(f"{ledger.files.url}/{path}") for path in paths]
    )


def literal_url(url: str) -> str:
    """Escape a URL, so that Spark takes it as it is and not as a pattern."""
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", url)
