"""What a Python data source can reach at most in Spark: ready Arrow batches out of mapped files or made of nothing,
and a sink that looks at no more than when rows were due. The difference to sparklog is what sparklog costs; the rest
is Spark's.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
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
_VALUE_WORDS = VALUE_BYTES // 8


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


class DueRows(NamedTuple):
    """Rows `first` to `end` of a schedule: row i is due at `begin_ns` (of `time.time_ns`) + i / `rate`."""

    begin_ns: int
    rate: float
    first: int
    end: int

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Keys (none) and values of 1 KiB, which begin with the time in ns at which the row is due."""
        for first in range(self.first, self.end, ROWS_PER_BATCH):
            numbers = np.arange(first, min(first + ROWS_PER_BATCH, self.end))
            content = np.zeros((len(numbers), _VALUE_WORDS), np.int64)
            content[:, 0] = self.begin_ns + (numbers * (1e9 / self.rate)).astype(np.int64)
            ends = np.arange(len(numbers) + 1, dtype=np.int32) * VALUE_BYTES
            buffers = [None, pa.py_buffer(ends), pa.py_buffer(content)]
            values = pa.Array.from_buffers(pa.binary(), len(numbers), buffers)
            yield pa.record_batch({"key": pa.nulls(len(numbers), pa.binary()), "value": values})


def due_ns(batch: pa.RecordBatch) -> np.ndarray:
    """When the rows of such a batch were due."""
    values = batch.column("value")
    _, ends, content = values.buffers()
    start = np.frombuffer(ends, np.int32)[values.offset]
    found = np.frombuffer(content, np.int64, len(values) * _VALUE_WORDS, start)
    return found.reshape(len(values), _VALUE_WORDS)[:, 0]


class CeilingRateReader(DataSourceStreamReader):
    """`rate` rows a second, from IDLE_S after the first question on: until then the query is seen to wait."""

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
        assert self._begin_ns is not None  # the end comes from latestOffset
        return [InputPartition(DueRows(self._begin_ns, self._rate, start["rows"], end["rows"]))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        imported_objects.freeze()
        return partition.value.batches()


class CeilingWriter(DataSourceArrowWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        deque(iterator, maxlen=0)
        return WriterCommitMessage()


class CeilingStreamWriter(DataSourceStreamArrowWriter):
    """Leaves Spark's garbage collections as little to do as sparklog does."""

    def __init__(self, delays: str) -> None:
        self._delays = delays
        imported_objects.freeze()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._delays:
            for batch in iterator:
                note_delays(self._delays, due_ns(batch), time.time_ns())
        deque(iterator, maxlen=0)
        imported_objects.freeze()
        return WriterCommitMessage()


def note_delays(path: str, due: np.ndarray, now_ns: int) -> None:
    """Appends to the file: when each row was due, and how much later it is now, in ns."""
    with Path(path).open("ab", buffering=0) as file:
        file.write(np.stack((due, now_ns - due), axis=1).tobytes())


def read_delays(path: str | Path) -> np.ndarray:
    """What `note_delays` has written: a line per row, two columns."""
    return np.fromfile(path, np.int64).reshape(-1, 2)


class CeilingSource(DataSource):
    """Options: `path` (the files' directory) and `ddl` to read; or `rate` instead of `path`, for streams of key and
    value. To write: `delays`, a file for `note_delays`, if the rows are of such a stream.
    """

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
        return CeilingStreamWriter(self.options.get("delays", ""))
