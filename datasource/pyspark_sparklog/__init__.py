"""The PySpark data source `format("sparklog")`.

Spark imports every `pyspark_*` package on its path and registers its `DefaultSource`. A failing import here would
switch that off for all sources, so this module imports PySpark only; the rest comes in when a method needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from pyspark_sparklog.spark_errors import FailedStreamReader, in_one_line

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Reads and writes sparklog topics, in batches and as a stream; options as Spark's Kafka source and sink have
    them."""

    _was_sent = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._was_sent = True

    @classmethod
    def name(cls) -> str:
        return "sparklog"

    @in_one_line
    def schema(self) -> StructType:
        """The columns of the subscribed topics, or of those picked by the option `columns`."""
        from pyspark_sparklog.source.source import infer_schema

        return infer_schema(self.options)

    @in_one_line
    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads what is there between the starting and ending offsets."""
        from pyspark_sparklog.source.source import batch_reader

        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Reads on and on. A reader that cannot be made says why when it is used."""
        from pyspark_sparklog import offset_text
        from pyspark_sparklog.source.source import stream_reader
        from sparklog.errors import SparklogError

        offset_text.install()
        try:
            return stream_reader(self.options, schema)
        except SparklogError as e:
            return FailedStreamReader(e)

    @in_one_line
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Appends a DataFrame's rows."""
        from pyspark_sparklog.sink.writer import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    @in_one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Appends a streaming query's rows. Spark makes a new source for a micro-batch's tasks to write with, and has
        a copy of the query's sent to the process that commits (pyspark/sql/worker/python_streaming_sink_runner.py)."""
        from pyspark_sparklog.sink.writer import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite, ends_only=self._was_sent)
