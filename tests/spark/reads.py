"""Offline reads without a Spark session, by the same reader and partitions that Spark gets."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from spark_jobs.schema import arrow_schema, spark_schema
from spark_jobs.source.offline import make_reader
from spark_jobs.source.read_options import ReadOptions

Row = dict[str, Any]


def read_table(path: str | Path | Iterable[Path], stream: str, **options: Any) -> pa.Table:
    """What a read yields, partitions in order, each sent through pickle as Spark does."""
    where = str(path) if isinstance(path, str | Path) else ",".join(map(str, path))
    parsed = ReadOptions.parse({"path": where, "stream": stream, **_texts(options)})
    reader = make_reader(parsed, spark_schema(parsed.columns))
    batches: list[pa.RecordBatch] = []
    for partition in reader.partitions():
        there_reader, there = pickle.loads(pickle.dumps((reader, partition)))
        batches += there_reader.read(there)
    for batch in batches:
        batch.validate(full=True)
    return pa.Table.from_batches(batches, schema=arrow_schema(parsed.columns))


def read_rows(path: str | Path | Iterable[Path], stream: str, **options: Any) -> list[Row]:
    """The rows of `read_table`; headers as a dict of lists."""
    rows = read_table(path, stream, **options).to_pylist()
    for row in rows:
        if row.get("headers") is not None:
            row["headers"] = dict(row["headers"])
    return rows


def partitions_of(path: str | Path, stream: str, **options: Any) -> list[Any]:
    """The partitions that a read would have."""
    parsed = ReadOptions.parse({"path": str(path), "stream": stream, **_texts(options)})
    return list(make_reader(parsed, spark_schema(parsed.columns)).partitions())


def _texts(options: dict[str, Any]) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
    }
