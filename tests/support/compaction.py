"""Common parts of the compaction tests: logs of keyed records, one run, and its invariants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.environment.files import FileSystem
from sparklog.format.batch import BatchHeader, encode_batch, iterate_batches
from sparklog.format.offset_column import decode_rows, row_offsets
from sparklog.format.schema import ENVELOPE_SCHEMA, TIMESTAMP_TYPE
from sparklog.log.compaction.offset_map import OffsetMap
from sparklog.log.compaction.rewrite import always
from sparklog.log.housekeeping.cleaner import CompactionResult, compact_log, due_for_compaction
from sparklog.log.model.log_config import LogOwner
from sparklog.log.partition_log import PartitionLog
from tests.support.logs import SCHEMAS, ManualClock, open_log, read_all

OWNER = LogOwner("events", "0" * 32, 0, "timestamp", ("key",), ("value",))
SETTINGS: dict[str, Any] = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0, "file.delete.delay.ms": 0}
BUFFER_BYTES = 1 << 20

Row = tuple[bytes | None, bytes | None]
"""Key and value."""


class Stored(NamedTuple):
    offset: int
    key: bytes | None
    value: bytes | None


def keyed_batch(rows: Sequence[Row], first_ms: int = 0, compression: str = "none", **header: int) -> bytearray:
    """One encoded batch; the timestamps are a millisecond apart."""
    times = [1000 * (first_ms + i) for i in range(len(rows))]
    columns = [
        pa.array([k for k, _ in rows], pa.binary()),
        pa.array([v for _, v in rows], pa.binary()),
        pa.nulls(len(rows), ENVELOPE_SCHEMA.field("headers").type),
        pa.array(times, TIMESTAMP_TYPE),
    ]
    return bytearray(
        encode_batch(
            pa.record_batch(columns, schema=ENVELOPE_SCHEMA),
            schema_id=1,
            min_timestamp_ms=first_ms,
            max_timestamp_ms=first_ms + len(rows) - 1,
            compression=compression,
            **header,  # type: ignore[arg-type]
        )
    )


def open_keyed(
    directory: Path,
    settings: dict[str, Any] | None = None,
    *,
    files: FileSystem | None = None,
    clock: ManualClock | None = None,
    clean: bool = True,
    **offsets: Any,
) -> PartitionLog:
    given = SETTINGS | (settings or {})
    return open_log(directory, given, files=files, clock=clock, clean=clean, owner=OWNER, **offsets)


def append_rows(log: PartitionLog, rows: Sequence[Row], first_ms: int = 0, compression: str = "none") -> int:
    """One batch; returns its base offset."""
    info = log.appender.append(keyed_batch(rows, first_ms, compression))
    log.raise_high_watermark(log.log_end_offset)
    return info.base_offset


def compact(
    log: PartitionLog,
    buffer_bytes: int = BUFFER_BYTES,
    *,
    roll: bool = True,
    deletions_may_go: Callable[[], bool] = always,
) -> CompactionResult | None:
    """One run over all that was written; None if nothing is due."""
    if roll:
        log.appender.begin_segment()
    due = due_for_compaction(log, deletions_may_go)
    return None if due is None else compact_log(due, OffsetMap(buffer_bytes))


def stored(log: PartitionLog, offset: int | None = None, max_bytes: int = 1 << 20) -> list[Stored]:
    """Every record a reader gets, from the log start (or `offset`) on."""
    found: list[Stored] = []
    at = log.log_start_offset if offset is None else offset
    while (piece := log.reader.read(at, max_bytes)) is not None:
        data = piece.read()
        for position, header in iterate_batches(data):
            batch = data[position : position + header.size_bytes]
            rows, offsets = decode_rows(batch, SCHEMAS[header.schema_id], header)
            columns = rows.column("key").to_pylist(), rows.column("value").to_pylist()
            numbers = row_offsets(header, offsets).tolist()
            found += [Stored(*r) for r in zip(numbers, *columns, strict=True) if r[0] >= at]
        assert piece.next_offset > at
        at = piece.next_offset
        piece.release()
    return found


def last_values(rows: Sequence[Stored]) -> dict[bytes, bytes]:
    """The state that the records describe: the last value of every key, without the deleted ones."""
    state: dict[bytes, bytes | None] = {row.key: row.value for row in rows if row.key is not None}
    return {key: value for key, value in state.items() if value is not None}


def check_compacted(log: PartitionLog, model: Sequence[Stored]) -> list[Stored]:
    """Check the invariants after any number of complete or interrupted runs; `model`: all records that were ever
    appended."""
    rows = stored(log)
    offsets = [row.offset for row in rows]
    assert offsets == sorted(set(offsets))
    assert set(rows) <= set(model), "a record that nobody has written"
    assert last_values(rows) == last_values(model)
    assert {r for r in model if r.key is None} <= set(rows), "a record without a key was lost"
    return rows


def model_of(*batches: list[Row]) -> list[Stored]:
    rows = [row for batch in batches for row in batch]
    return [Stored(i, *row) for i, row in enumerate(rows)]


def headers(log: PartitionLog) -> list[BatchHeader]:
    found = []
    for segment in log.segments:
        found += [header for _, header in segment.headers_from(None)]
    return found


def files_of(log: PartitionLog) -> list[str]:
    return sorted(p.name for p in log.directory.iterdir())


__all__ = ["OWNER", "SETTINGS", "ManualClock", "Row", "Stored", "append_rows", "check_compacted", "compact", "read_all"]
