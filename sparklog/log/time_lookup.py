"""Finding offsets by timestamp: segment by its largest timestamp, index, batch headers, and one decoded column."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from sparklog.format.batch import ATTRIBUTE_LOG_APPEND_TIME, BatchHeader, decode_batch
from sparklog.log.model import LogOwner
from sparklog.log.segment import LogSegment, batch_timestamp_ms
from sparklog.types import OffsetAndTimestamp

NOT_FOUND = OffsetAndTimestamp(-1, -1)
SchemaOf = Callable[[int], pa.Schema]


def find_timestamp(
    segments: Sequence[LogSegment], bounds: tuple[int, int], timestamp_ms: int, owner: LogOwner, schema_of: SchemaOf
) -> OffsetAndTimestamp:
    """The first record in [bounds) with at least `timestamp_ms`, in log order, or (-1, -1)."""
    log_start, high_watermark = bounds
    for segment in segments:
        if segment.base_offset >= high_watermark:
            break
        largest = segment.indexes.largest_timestamp_ms
        if largest is None or largest < timestamp_ms:
            continue
        for position, header in segment.headers_from(segment.indexes.position_before_timestamp(timestamp_ms)):
            if header.next_offset > high_watermark:
                return NOT_FOUND
            if header.next_offset <= log_start or batch_timestamp_ms(header) < timestamp_ms:
                continue
            timestamps = _record_timestamps_ms(segment, position, header, owner, schema_of)
            skip = max(0, log_start - header.base_offset)
            rows = np.flatnonzero(timestamps[skip:] >= timestamp_ms)
            if len(rows):
                row = skip + int(rows[0])
                return OffsetAndTimestamp(header.base_offset + row, int(timestamps[row]))
    return NOT_FOUND


def find_largest_timestamp(
    segments: Sequence[LogSegment], bounds: tuple[int, int], owner: LogOwner, schema_of: SchemaOf
) -> OffsetAndTimestamp:
    """The first record in [bounds) with the largest timestamp of all, or (-1, -1) when there is no record."""
    best: tuple[int, LogSegment, int, BatchHeader] | None = None
    for segment in segments:
        candidate = _largest_batch(segment, *bounds)
        if candidate is not None and (best is None or batch_timestamp_ms(candidate[1]) > best[0]):
            best = (batch_timestamp_ms(candidate[1]), segment, *candidate)
    if best is None:
        return NOT_FOUND
    _, segment, position, header = best
    timestamps = _record_timestamps_ms(segment, position, header, owner, schema_of)
    skip = max(0, bounds[0] - header.base_offset)
    row = skip + int(np.argmax(timestamps[skip:]))
    return OffsetAndTimestamp(header.base_offset + row, int(timestamps[row]))


def _largest_batch(segment: LogSegment, log_start: int, high_watermark: int) -> tuple[int, BatchHeader] | None:
    """The first batch with the segment's largest timestamp within the bounds."""
    if segment.base_offset >= high_watermark:
        return None
    indexes = segment.indexes
    offset = indexes.largest_timestamp_offset
    if indexes.largest_timestamp_ms is not None and offset >= log_start:
        start = segment.find(offset)
        found = next(segment.headers_from(start.position))
        if found[1].next_offset <= high_watermark:
            return found
    best: tuple[int, BatchHeader] | None = None
    for position, header in segment.headers_from(None):  # only for a segment that a bound cuts through
        if header.next_offset > high_watermark:
            break
        if header.next_offset > log_start and (
            best is None or batch_timestamp_ms(header) > batch_timestamp_ms(best[1])
        ):
            best = (position, header)
    return best


def _record_timestamps_ms(
    segment: LogSegment, position: int, header: BatchHeader, owner: LogOwner, schema_of: SchemaOf
) -> np.ndarray:
    """Timestamp of every record of a batch, rounded down to ms. A null is smaller than every timestamp, unless all are
    null: then every record has the batch's."""
    schema = schema_of(header.schema_id)
    column = schema.get_field_index(owner.timestamp_column) if owner.timestamp_column is not None else -1
    if column < 0 or header.attributes & ATTRIBUTE_LOG_APPEND_TIME:
        return np.full(header.record_count, batch_timestamp_ms(header), np.int64)
    shared = segment.acquire()
    try:
        data = shared.file.read(position, header.size_bytes)
    finally:
        shared.release()
    timestamps = decode_batch(data, schema, [column]).column(0)
    if timestamps.null_count == len(timestamps):
        return np.full(header.record_count, header.max_timestamp_ms, np.int64)
    micros = timestamps.view(pa.int64())
    if not micros.null_count:
        return np.asarray(micros.to_numpy() // 1000)
    nulls = micros.is_null().to_numpy(zero_copy_only=False)
    lowest = np.iinfo(np.int64).min
    return np.where(nulls, lowest, micros.fill_null(0).to_numpy() // 1000)
