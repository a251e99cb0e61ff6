"""The limit of a Python data source in Spark: ready Arrow batches out of mapped files or made of nothing, and a sink
that drops them. The difference to sparklog is sparklog's cost; the rest is Spark's.
"""

from __future__ import annotations

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

from .latency import VALUE_BYTES

FORMAT = "ceiling"
IDLE_S = 4.0
ROWS_PER_BATCH = 4_000


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


def _read(partition: InputPartition) -> Iterator[pa.RecordBatch]:
    with pa.memory_map(partition.value) as file:
        yield from pa.ipc.open_stream(file)


class CeilingReader(DataSourceReader):
    """Reads ready Arrow files, one for each partition. No stream reader: of one that is both, Spark scans nothing."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def partitions(self) -> list[InputPartition]:
        return _files(self._directory)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)


class CeilingStreamReader(DataSourceStreamReader):
    """Reads ready Arrow files in one micro-batch."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def initialOffset(self) -> dict[str, Any]:
        return {"read": 0}

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        return {"read": 1}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [] if start == end else _files(self._directory)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _read(partition)


class CeilingRateReader(DataSourceStreamReader):
    """`rate` rows a second, with no key and a value of 1 KiB. The first are due after IDLE_S."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._begin_ns: int | None = None

    def initialOffset(self) -> dict[str, Any]:
        return {"rows": 0}

    def latestOffset(self, start: dict[str, Any] | None = None, limit: Any = None) -> dict[str, Any]:
        now_ns = time.time_ns()
        if self._begin_ns is None:
            self._begin_ns = now_ns + int(IDLE_S * 1e9)
        return {"rows": max(0, int((now_ns - self._begin_ns) / 1e9 * self._rate))}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [InputPartition((start["rows"], end["rows"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        imported_objects.freeze()
        start, end = partition.value
        for first in range(start, end, ROWS_PER_BATCH):
            count = min(ROWS_PER_BATCH, end - first)
            values = pa.array([bytes(VALUE_BYTES)] * count, pa.binary())
            yield pa.record_batch({"key": pa.nulls(count, pa.binary()), "value": values})


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
    """Options: `path` (the files' directory) and `ddl` to read; or `rate` instead of `path`, for streams of key and
    value. Writing needs none."""

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
