"""Spark looks into modules named `pyspark_*` for a `DefaultSource`: format "streamd" by itself."""

from spark_jobs.source.data_source import StreamdDataSource as DefaultSource

__all__ = ["DefaultSource"]
