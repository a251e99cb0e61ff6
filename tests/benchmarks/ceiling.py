"""What a Python data source can reach at most in Spark: ready Arrow batches out of mapped files, and a sink that looks at
nothing. The difference to sparklog is what sparklog costs; the rest is Spark's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

FORMAT = "ceiling"


def write_files(directory: Path, batches: Sequence[Iterator[pa.RecordBatch]]) -> None:
    """A file for each partition. The batches are as large as Spark's own: 10,000 rows."""
    directory.mkdir()
    for partition, content in enumerate(batches):
        first = next(content)
        with (
            pa.OSFile(str(directory / f"{partition}.arrows"), "wb") as file,
            pa.ipc.new_stream(file, first.schema) as out,
        ):
            out.write_batch(first)
            for batch in content:
                out.write_batch(batch)


def _files(directory: str) -> list[InputPartition]:
    return [InputPartition(str(path)) for path in sorted(Path(directory).glob("*.arrows"))]


def _read(path: str) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(path) as file:
        yield from pa.ipc.open_stream(file)


class CeilingReader(DataSourceReader):
    def __init__(self, directory: str) -> None:
        self._directory = directory

    def partitions(self) -> list[InputPartition]:
        return _files(self._directory)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition.value)


class CeilingStreamReader(DataSourceStreamReader):
    """Everything in one micro-batch."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def initialOffset(self) -> dict[str, Any]:
        return {"read": 0}

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        return {"read": 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [] if start == end else _files(self._directory)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition.value)


class CeilingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        deque(iterator, maxlen=0)
        return WriterCommitMessage()


class CeilingStreamWriter(DataSourceStreamArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        deque(iterator, maxlen=0)
        return WriterCommitMessage()


class CeilingSource(DataSource):
    """Options: `path` (the files' directory) and `ddl` to read."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return str(self.options["ddl"])

    def reader(self, schema: Any) -> DataSourceReader:
        return CeilingReader(self.options["path"])

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return CeilingStreamReader(self.options["path"])

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return CeilingWriter()

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        return CeilingStreamWriter()
