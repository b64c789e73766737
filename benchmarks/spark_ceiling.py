"""A data source that has its rows ready: what Spark itself takes to get them from Python.

Each partition yields one Arrow batch again and again, with the columns of format "streamd". No read
through Python can be faster; `make bench-spark` prints it beside ours.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from spark_jobs.schema import SCHEMA

PARTITIONS = 8
BATCH_ROWS = 10_000


class CeilingSource(DataSource):
    """Format "ceiling": options count, size (payload bytes)."""

    @classmethod
    def name(cls) -> str:
        return "ceiling"

    def schema(self) -> StructType:
        return SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        return CeilingReader(int(self.options["count"]), int(self.options["size"]))


class CeilingReader(DataSourceReader):
    """Yields the same batch until about `count` rows are out."""

    def __init__(self, count: int, size: int) -> None:
        self._count = count
        self._size = size

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        rows = min(BATCH_ROWS, self._count // PARTITIONS)
        numbers = pa.array(range(rows), pa.int64())
        headers = pa.map_(pa.string(), pa.list_(pa.string()))
        batch = pa.RecordBatch.from_pydict(
            {
                "stream": pa.array(["BENCH"] * rows),
                "subject": pa.array(["bench.subject"] * rows),
                "seq": numbers,
                "ts": numbers.cast(pa.timestamp("us", tz="UTC")),
                "ts_ns": numbers,
                "headers": pa.array([[]] * rows, headers),
                "payload": pa.array([bytes(self._size)] * rows),
                "size": pa.array([self._size] * rows, pa.int32()),
            }
        )
        for _ in range(self._count // PARTITIONS // rows):
            yield batch
