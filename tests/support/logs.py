"""Common parts of the log's tests: batches, a clock that is set by hand, a disk that fills up."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparklog.environment.files import File, FileSystem, RealFile, RealFiles
from sparklog.errors import StorageError, StorageFullError
from sparklog.format.batch import BatchHeader, decode_batch, encode_batch, iterate_batches
from sparklog.format.packed_batch import encode_packed_batch
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.log.partition_log import PartitionLog

OWNER = LogOwner("events", "0" * 32, 0, "timestamp")
WIDER_SCHEMA = pa.schema([*ENVELOPE_SCHEMA, pa.field("extra", pa.int64())])
SCHEMAS = {1: ENVELOPE_SCHEMA, 2: WIDER_SCHEMA}


class ManualClock:
    """A clock that stands still until it is set."""

    def __init__(self, now_ms: int = 1_000_000) -> None:
        self.time_ms = now_ms

    def now_ms(self) -> int:
        return self.time_ms

    def monotonic_s(self) -> float:
        return 0.0

    def uptime_ms(self) -> int:
        return 0


def batch(
    timestamps_ms: Sequence[int | None],
    *,
    value: bytes = b"v",
    keys: Sequence[bytes | None] | None = None,
    values: Sequence[bytes | None] | None = None,
    schema_id: int = 1,
    attributes: int = 0,
    compression: str = "none",
) -> bytearray:
    """One encoded batch with a record per timestamp; `keys` default to "0", "1", ..., `values` to `value`."""
    n = len(timestamps_ms)
    schema = SCHEMAS[schema_id]
    columns = [
        pa.array([str(i).encode() for i in range(n)] if keys is None else keys, pa.binary()),
        pa.array([value] * n if values is None else values, pa.binary()),
        pa.nulls(n, schema.field("headers").type),
        pa.array([None if t is None else t * 1000 for t in timestamps_ms], schema.field("timestamp").type),
    ]
    if schema_id == 2:
        columns.append(pa.array(range(n), pa.int64()))
    known = [t for t in timestamps_ms if t is not None] or [0]
    return bytearray(
        encode_batch(
            pa.record_batch(columns, schema=schema),
            schema_id=schema_id,
            min_timestamp_ms=min(known),
            max_timestamp_ms=max(known),
            attributes=attributes,
            compression=compression,
        )
    )


def packed(rows: pa.RecordBatch) -> bytearray:
    """One packed batch of these rows."""
    found = encode_packed_batch(rows, schema_id=1)
    assert found is not None
    return bytearray(found.payload)


def records(count: int, *, first_ms: int = 0, **more: Any) -> bytearray:
    """One encoded batch of `count` records, a millisecond apart."""
    return batch(range(first_ms, first_ms + count), **more)


def open_log(
    directory: Path,
    settings: dict[str, Any] | None = None,
    *,
    files: FileSystem | None = None,
    clock: ManualClock | None = None,
    clean: bool = True,
    owner: LogOwner = OWNER,
    **offsets: Any,
) -> PartitionLog:
    log = PartitionLog.open(
        directory / owner.directory_name,
        owner,
        LogConfig.from_settings(settings or {}),
        SCHEMAS.__getitem__,
        files=files or RealFiles(),
        clock=clock or ManualClock(),
        clean=clean,
        **offsets,
    )
    log.raise_high_watermark(log.log_end_offset)
    return log


def append(log: PartitionLog, *batches: bytearray) -> int:
    """Appends the batches as one payload and commits them; returns the base offset."""
    info = log.appender.append(bytearray(b"".join(batches)))
    log.raise_high_watermark(log.log_end_offset)
    return info.base_offset


def read_all(log: PartitionLog, max_bytes: int = 1 << 20, offset: int | None = None) -> list[tuple[BatchHeader, bytes]]:
    """(header, bytes) of every batch from `offset` (default: log start) to the high watermark, checksums verified."""
    offset = log.log_start_offset if offset is None else offset
    found = []
    while (piece := log.reader.read(offset, max_bytes)) is not None:
        data = piece.read()
        assert len(data) == piece.length_bytes
        batches = list(iterate_batches(data))
        assert batches[0][1].base_offset == piece.base_offset
        assert batches[-1][1].next_offset == piece.next_offset
        assert batches[0][1].base_offset <= offset < batches[0][1].next_offset
        assert len(data) <= max_bytes or len(batches) == 1
        found += [(h, data[p : p + h.size_bytes]) for p, h in batches]
        offset = piece.next_offset
        piece.release()
    return found


def values(log: PartitionLog, max_bytes: int = 1 << 20) -> list[tuple[int, bytes]]:
    """(offset, value) of every record."""
    found = []
    for header, data in read_all(log, max_bytes):
        column = decode_batch(data, SCHEMAS[header.schema_id]).column("value")
        found += [(header.base_offset + i, v.as_py()) for i, v in enumerate(column)]
    return found


def segment_files(directory: Path) -> list[Path]:
    return sorted((directory / OWNER.directory_name).glob("*.arrow"))


class LimitedFile:
    """A file on a disk with `disk.free_bytes` left: a write that does not fit is cut short and raises. Overwriting
    needs no new room, as on most file systems."""

    def __init__(self, inner: File, path: Path, disk: LimitedFiles) -> None:
        self._inner, self._path, self._disk = inner, path, disk

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        over = max(0, min(len(data), self._inner.size() - position))
        fits = over + max(0, min(len(data) - over, self._disk.free_bytes))
        if fits:
            self._inner.write(position, memoryview(data)[:fits])
        self._disk.free_bytes -= fits - over
        if fits < len(data):
            raise StorageFullError(f"the disk is full: cannot write {self._path}")

    def truncate(self, size_bytes: int) -> None:
        if self._disk.fail_truncate:
            raise StorageFullError(f"cannot truncate {self._path}")
        self._disk.free_bytes += self._inner.size() - size_bytes
        self._inner.truncate(size_bytes)

    def sync(self) -> None:
        self._disk.synced.append(self._path.name)
        if self._disk.fail_sync:
            raise StorageFullError(f"cannot fsync {self._path}")
        # no fsync: these tests end no machine, and it takes milliseconds

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


class LimitedFiles(RealFiles):
    """The real file system with little space."""

    def __init__(self, free_bytes: int = 1 << 40) -> None:
        self.free_bytes = free_bytes
        self.fail_truncate = False
        self.fail_sync = False
        self.fail_open = ""
        """Name of a file that cannot be opened."""
        self.synced: list[str] = []

    def sync_directory(self, path: Path) -> None:
        pass

    def open(self, path: Path, *, create: bool = False) -> File:
        if path.name == self.fail_open:
            raise StorageError(f"cannot open {path}: Input/output error")
        inner = super().open(path, create=create)
        assert isinstance(inner, RealFile)
        return LimitedFile(inner, path, self)  # type: ignore[return-value]
