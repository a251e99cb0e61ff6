"""The PySpark data source `format("sparklog")`.

Spark imports every `pyspark_*` package on its path and registers the package's `DefaultSource`. A failing import here
would stop this registration for all packages. So this module imports PySpark only, and its methods import the rest.
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
    """The data source of topics: batch and stream, read and write. Its options are those of Spark's Kafka source and
    sink."""

    _was_sent = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._was_sent = True

    @classmethod
    def name(cls) -> str:
        """Return the format's name.

        Returns:
            "sparklog".
        """
        return "sparklog"

    @in_one_line
    def schema(self) -> StructType:
        """Return the columns of the subscribed topics, limited to the option `columns` if it is given.

        Returns:
            The schema.

        Raises:
            InvalidConfigError: An option is wrong.
            SparklogError: Another error, for example a topic that does not exist.
        """
        from pyspark_sparklog.source.source import infer_schema

        return infer_schema(self.options)

    @in_one_line
    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the records between the starting and ending offsets.

        Args:
            schema: The columns to read.

        Returns:
            The batch reader.

        Raises:
            InvalidConfigError: An option is wrong.
            SchemaMismatchError: The columns do not fit the topics.
        """
        from pyspark_sparklog.source.source import batch_reader

        return batch_reader(self.options, schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader for a streaming query. If it cannot be created, it raises the reason on its first use.

        Args:
            schema: The columns to read.

        Returns:
            The stream reader.
        """
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
        """Return a writer that appends a DataFrame's rows.

        Args:
            schema: The columns of the DataFrame.
            overwrite: True for the save mode overwrite, which is refused.

        Returns:
            The batch writer.

        Raises:
            InvalidConfigError: An option is wrong, or `overwrite` is True.
            SchemaMismatchError: The columns do not fit the topic.
        """
        from pyspark_sparklog.sink.writer import batch_writer

        return batch_writer(self.options, schema, overwrite=overwrite)

    @in_one_line
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return a writer that appends a streaming query's rows.

        Spark creates a new source for the tasks of a micro-batch, and sends a copy of the query's source to the process
        that commits (pyspark/sql/worker/python_streaming_sink_runner.py).

        Args:
            schema: The columns of the streaming DataFrame.
            overwrite: True for the output mode complete, which is refused.

        Returns:
            The stream writer.

        Raises:
            InvalidConfigError: An option is wrong, `overwrite` is True, or PySpark is older than 4.1.
            SchemaMismatchError: The columns do not fit the topic.
        """
        from pyspark_sparklog.sink.writer import stream_writer

        return stream_writer(self.options, schema, overwrite=overwrite, ends_only=self._was_sent)
