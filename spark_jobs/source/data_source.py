"""Format "streamd": `spark.read`, `readStream`, `write` and `writeStream` of one stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from spark_jobs import schema as columns_of_streams
from spark_jobs.client.options import OptionError
from spark_jobs.source.read_options import ReadOptions
from spark_jobs.worker import quiet_broken_pipes

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )


quiet_broken_pipes()  # Spark imports this module in each process that plans or reads


class StreamdDataSource(DataSource):
    """A stream of a server, or of data directories when option `path` is given.

    Options: read_options.py. Readers and writers are imported when they are asked for.
    """

    @classmethod
    def name(cls) -> str:
        return "streamd"

    def schema(self) -> StructType:
        """The columns that the options ask for; also checks the options."""
        return columns_of_streams.spark_schema(ReadOptions.parse(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads files if there is a `path`, else asks a server."""
        options = ReadOptions.parse(self.options, schema)
        options.check_batch()
        if options.is_offline:
            from spark_jobs.source import offline

            return offline.make_reader(options, schema)
        from spark_jobs.source import online

        return online.make_reader(options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Raises OptionError for a `path`: files do not tell when they have grown."""
        options = ReadOptions.parse(self.options, schema)
        if options.is_offline:
            raise OptionError(
                "option path is for spark.read; readStream follows a server: give option servers"
            )
        from spark_jobs.source import streaming

        return streaming.make_stream_reader(options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from spark_jobs.sink import writer as sink

        return sink.make_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from spark_jobs.sink import writer as sink

        return sink.make_stream_writer(self.options, schema, overwrite)
