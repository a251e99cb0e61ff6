"""Search for offsets by timestamp. It goes from the largest timestamps of the segments to the time index of a segment,
to batch headers, and to one decoded column of a batch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.errors import CorruptBatchError
from sparklog.format.batch import ATTRIBUTE_LOG_APPEND_TIME, BatchHeader, decoded_size_bytes, verify_checksum
from sparklog.format.offset_column import decode_rows, row_offsets
from sparklog.log.model.inflated_memory import InflatedMemory
from sparklog.log.model.log_config import LogOwner
from sparklog.log.segments.batch_times import batch_timestamp_ms
from sparklog.log.segments.stored_schema import SchemaOf, schema_of_batch
from sparklog.log.segments.view import SegmentView
from sparklog.types import OffsetAndTimestamp

NO_RECORD = OffsetAndTimestamp(-1, -1)


class TopicSchemas(NamedTuple):
    """Inputs for decoding the topic's batches: the schemas by id, and the largest decompressed size of a batch."""

    schema_of: SchemaOf
    inflated_bytes_max: int
    inflated: InflatedMemory
    """Budget for the memory of decompressed batches."""


Bounds = tuple[int, int]
"""Log start offset and high watermark; a look-up finds only records between them."""

_LOWEST = np.iinfo(np.int64).min


class _Summary(NamedTuple):
    """Largest timestamp per segment, and largest timestamp of all segments up to it. The last segment is left out,
    because it can grow."""

    segments: Sequence[SegmentView]
    largest: np.ndarray
    largest_so_far: np.ndarray
    is_exact: bool
    """False if a segment is compacted: the record with its largest timestamp can be gone, so `largest` is only an upper
    bound."""

    def falling(self, start: int, stop: int) -> list[int]:
        """Return the numbers of the segments in [start, stop) to search for the largest timestamp, in this order; only
        one if `largest` is exact."""
        if stop <= start:
            return []
        if self.is_exact:
            return [start + int(np.argmax(self.largest[start:stop]))]
        return (start + np.argsort(-self.largest[start:stop], kind="stable")).tolist()  # type: ignore[no-any-return]


class TimeLookup:
    """Look-ups of timestamps in the segments of one log. The cost does not depend on the number of segments, except for
    the first look-up after segments were added or removed. Several threads can use it."""

    def __init__(self, owner: LogOwner) -> None:
        self._owner = owner
        self._summary = _Summary((), np.zeros(0, np.int64), np.zeros(0, np.int64), is_exact=True)

    def first_from(
        self,
        segments: Sequence[SegmentView],
        bases: Sequence[int],
        bounds: Bounds,
        timestamp_ms: int,
        schemas: TopicSchemas,
    ) -> OffsetAndTimestamp:
        """Return the first record in `bounds` with at least `timestamp_ms`, in log order, or (-1, -1).

        `segments` must be a new object whenever a segment was added or removed, because a summary of the object is
        cached. `bases` are the segments' base offsets. Raises CorruptBatchError, StorageError.
        """
        for i in self._candidates(segments, max(0, bisect_right(bases, bounds[0]) - 1), timestamp_ms):
            if segments[i].base_offset >= bounds[1]:
                break
            first = _first_in_segment(segments[i], bounds, timestamp_ms, self._owner, schemas)
            if first is not None:
                return first
        return NO_RECORD

    def largest(
        self, segments: Sequence[SegmentView], bases: Sequence[int], bounds: Bounds, schemas: TopicSchemas
    ) -> OffsetAndTimestamp:
        """Return the first record in `bounds` with the largest timestamp in `bounds`, or (-1, -1) if there is no
        record. Raises CorruptBatchError, StorageError."""
        log_start, high_watermark = bounds
        first = max(0, bisect_right(bases, log_start) - 1)
        stop = bisect_left(bases, high_watermark)
        summary = self._summarise(segments)
        # segments wholly in the bounds are chosen by their largest timestamp; all others are searched
        whole_from = first if stop and bases[first] >= log_start else first + 1
        whole_to = min(len(summary.largest), stop)
        if whole_to > whole_from and segments[whole_to - 1].next_offset > high_watermark:
            whole_to -= 1
        best = NO_RECORD
        for i in [*range(first, min(whole_from, stop)), *range(max(whole_from, whole_to), stop)]:
            best = _later(best, _largest_in_segment(segments[i], bounds, self._owner, schemas))
        for i in summary.falling(whole_from, whole_to):
            if best is not NO_RECORD and summary.largest[i] < best.timestamp_ms:
                break
            if best is NO_RECORD or summary.largest[i] > best.timestamp_ms or bases[i] < best.offset:
                best = _later(best, _largest_in_segment(segments[i], bounds, self._owner, schemas))
        return best

    def _candidates(self, segments: Sequence[SegmentView], first: int, timestamp_ms: int) -> Iterator[int]:
        """Yield the numbers of the segments, from `first` on, that can hold a record with at least `timestamp_ms`, in
        log order."""
        summary = self._summarise(segments)
        count = len(summary.largest)
        start = int(np.searchsorted(summary.largest_so_far, timestamp_ms))
        if first <= start < count:
            yield start
            start += 1
        start = max(start, first)
        yield from (start + np.flatnonzero(summary.largest[start:] >= timestamp_ms)).tolist()
        last = segments[-1].largest_timestamp if segments else None
        if last is not None and last[0] >= timestamp_ms:
            yield len(segments) - 1

    def _summarise(self, segments: Sequence[SegmentView]) -> _Summary:
        summary = self._summary
        if summary.segments is not segments:
            candidates = (s.largest_timestamp for s in segments[:-1])
            largest = np.array([_LOWEST if f is None else f[0] for f in candidates], np.int64)
            is_exact = not any(s.compacted for s in segments)
            summary = self._summary = _Summary(segments, largest, np.maximum.accumulate(largest), is_exact)
        return summary


def _first_in_segment(
    segment: SegmentView, bounds: Bounds, timestamp_ms: int, owner: LogOwner, schemas: TopicSchemas
) -> OffsetAndTimestamp | None:
    log_start, high_watermark = bounds
    if log_start >= segment.next_offset:  # all of it is deleted
        return None
    start = segment.indexes.position_before_timestamp(timestamp_ms)
    if log_start > segment.base_offset:
        start = max(start or 0, segment.find(log_start).position)
    for position, header in segment.headers_from(start):
        if header.next_offset > high_watermark:
            break
        if batch_timestamp_ms(header) < timestamp_ms:
            continue
        offsets, timestamps = _record_timestamps_ms(segment, position, header, owner, schemas)
        rows = np.flatnonzero((timestamps >= timestamp_ms) & (offsets >= log_start))
        if len(rows):
            return OffsetAndTimestamp(int(offsets[rows[0]]), int(timestamps[rows[0]]))
    return None


def _largest_in_segment(
    segment: SegmentView, bounds: Bounds, owner: LogOwner, schemas: TopicSchemas
) -> OffsetAndTimestamp | None:
    """Return the first record with the largest timestamp that the segment has in `bounds`; None without a record."""
    log_start, high_watermark = bounds
    if log_start >= segment.next_offset:
        return None
    largest = segment.largest_timestamp
    is_exact = not segment.compacted  # compaction can have removed the record
    if largest is not None and is_exact and largest[1] >= log_start and segment.next_offset <= high_watermark:
        at = segment.find(largest[1])
        position, header = next(segment.headers_from(at.position))
        if batch_timestamp_ms(header) == largest[0]:
            offsets, timestamps = _record_timestamps_ms(segment, position, header, owner, schemas)
            if len(offsets):
                row = int(np.argmax(timestamps))
                return OffsetAndTimestamp(int(offsets[row]), int(timestamps[row]))
        else:
            segment.drop_indexes()  # the time index lies
    start = segment.find(log_start).position if log_start > segment.base_offset else None
    best: OffsetAndTimestamp | None = None
    for position, header in segment.headers_from(start):  # only for a segment that a bound cuts through
        if header.next_offset > high_watermark:
            break
        if best is not None and batch_timestamp_ms(header) <= best.timestamp_ms:
            continue
        offsets, timestamps = _record_timestamps_ms(segment, position, header, owner, schemas)
        skip = int(np.searchsorted(offsets, log_start))
        if skip == len(offsets):
            continue
        row = skip + int(np.argmax(timestamps[skip:]))
        if timestamps[row] > (_LOWEST if best is None else best.timestamp_ms):
            best = OffsetAndTimestamp(int(offsets[row]), int(timestamps[row]))
    return best


def _later(best: OffsetAndTimestamp, other: OffsetAndTimestamp | None) -> OffsetAndTimestamp:
    """Return the result with the larger timestamp; of equal timestamps the record that is first in the log."""
    if other is None or best is NO_RECORD:
        return best if other is None else other
    return min(best, other, key=lambda o: (-o.timestamp_ms, o.offset))


def _record_timestamps_ms(
    segment: SegmentView, position: int, header: BatchHeader, owner: LogOwner, schemas: TopicSchemas
) -> tuple[np.ndarray, np.ndarray]:
    """Return offset and timestamp of every record of a batch, rounded down to ms. A null timestamp counts as the
    batch's largest timestamp, as for readers. The batch's checksum is verified, because its content becomes the answer
    of a look-up. Raises CorruptBatchError, which says where the batch is."""
    shared = segment.acquire()
    try:
        data = shared.file.read(position, header.size_bytes)
    finally:
        shared.release()
    try:
        verify_checksum(data, 0, header)
        with schemas.inflated.hold(decoded_size_bytes(data, header)):
            return _timestamps_in(data, header, owner, schemas)
    except CorruptBatchError as e:
        raise type(e)(f"{segment.path}, position {position}: the batch at offset {header.base_offset}: {e}") from e


def _timestamps_in(
    data: bytes, header: BatchHeader, owner: LogOwner, schemas: TopicSchemas
) -> tuple[np.ndarray, np.ndarray]:
    schema = schema_of_batch(header, schemas.schema_of)
    column = schema.get_field_index(owner.timestamp_column) if owner.timestamp_column is not None else -1
    same = column < 0 or bool(header.attributes & ATTRIBUTE_LOG_APPEND_TIME)
    if not header.record_count:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    rows, sparse = decode_rows(
        data,
        schema,
        header,
        [] if same else [column],
        inflated_bytes_max=schemas.inflated_bytes_max,
    )
    offsets = row_offsets(header, sparse)
    if same:
        return offsets, np.full(header.record_count, batch_timestamp_ms(header), np.int64)
    micros = rows.column(0).view(pa.int64())
    if not micros.null_count:
        return offsets, np.asarray(micros.to_numpy() // 1000)
    nulls = micros.is_null().to_numpy(zero_copy_only=False)
    return offsets, np.where(nulls, header.max_timestamp_ms, micros.fill_null(0).to_numpy() // 1000)
