"""What a Python data source can reach at most in Spark: ready Arrow batches out of mapped files, and a sink that looks at
nothing. The difference to sparklog is what sparklog costs; the rest is Spark's.
"""

from __future__ import annotations

import functools
import time
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
from pyspark_sparklog.worker_process import imported_objects

FORMAT = "ceiling"
IDLE_S = 4.0
READY_ROWS = 4_000


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


class CeilingRateReader(DataSourceStreamReader):
    """`rate` ready rows a second, from IDLE_S after the first question on: until then the query is seen to wait."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._begin_s: float | None = None

    def initialOffset(self) -> dict[str, Any]:
        return {"rows": 0}

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        now_s = time.monotonic()
        if self._begin_s is None:
            self._begin_s = now_s + IDLE_S
        return {"rows": max(0, int((now_s - self._begin_s) * self._rate))}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition(end["rows"] - start["rows"])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        imported_objects.freeze()
        for first in range(0, partition.value, READY_ROWS):
            yield _ready_rows().slice(0, partition.value - first)


@functools.cache
def _ready_rows() -> pa.RecordBatch:
    """Keys (none) and values of 1 KiB."""
    keys, values = pa.nulls(READY_ROWS, pa.binary()), pa.array([bytes(1024)] * READY_ROWS, pa.binary())
    return pa.record_batch({"key": keys, "value": values})


class CeilingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        deque(iterator, maxlen=0)
        return WriterCommitMessage()


class CeilingStreamWriter(DataSourceStreamArrowWriter):
    """Leaves Spark's garbage collections as little to do as sparklog does."""

    def __init__(self) -> None:
        imported_objects.freeze()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        deque(iterator, maxlen=0)
        imported_objects.freeze()
        return WriterCommitMessage()


class CeilingSource(DataSource):
    """Options: `path` (the files' directory) and `ddl` to read; or `rate` instead of `path`, for streams of key and value."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return str(self.options["ddl"])

    def reader(self, schema: Any) -> DataSourceReader:
        return CeilingReader(self.options["path"])

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        if "rate" in self.options:
            return CeilingRateReader(float(self.options["rate"]))
        return CeilingStreamReader(self.options["path"])

    def writer(self, schema: Any, overwrite: bool) -> DataSourceArrowWriter:
        return CeilingWriter()

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamArrowWriter:
        return CeilingStreamWriter()
