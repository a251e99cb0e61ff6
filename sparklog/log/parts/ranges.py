"""Results of reads: whole batches, as slices or ranges of files."""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.log.model.log_config import LocatedRange
from sparklog.log.segments.segment_list import SegmentList
from sparklog.log.segments.slices import FileSlice, RemoteReadRequired
from sparklog.log.segments.view import SegmentEnd, SegmentView

LOCATE_REMOTE_BYTES = 32 * 1024 * 1024
LOCATE_RANGES_MAX = 1_000
"""Largest number of ranges in a result; the reader asks again for the rest."""


def slice_from(
    segments: SegmentList, offset: int, bound: int, max_bytes: int, *, min_one_batch: bool, may_wait: bool
) -> FileSlice | None:
    """Return whole batches of one segment, from the batch with `offset` on, below `bound`; None if there are none.

    Raises RemoteReadRequired, RemoteStorageError, LogCorruptError.
    """
    segment = segments.holding(offset)
    if segment.is_remote and not may_wait:
        raise RemoteReadRequired
    if max(offset, segment.base_offset) >= min(bound, segment.next_offset):
        return None
    start = segment.find(max(offset, segment.base_offset))
    upper = segment.end_below(bound)
    if upper.position <= start.position:
        return None
    end: SegmentEnd | None = upper
    if start.position + max_bytes < upper.position:
        end = segment.boundary(start, start.position + max_bytes)
        if end is None:
            if not min_one_batch:
                return None
            end = segment.batch_end(start)
    assert end is not None
    return FileSlice(
        segment.acquire_range(start.position, end.position),
        start.position,
        end.position - start.position,
        start.base_offset,
        end.next_offset,
        is_tail=not segment.is_sealed and start.position >= segment.written_from,
    )


def ranges_between(
    segments: Sequence[SegmentView], start_offset: int, end_offset: int, high_watermark: int, ranges_max: int
) -> list[LocatedRange]:
    """Return the file ranges of the whole batches in `segments` that hold [start_offset, end_offset), below the high
    watermark; only the first `ranges_max` ranges. A range in the object store has about LOCATE_REMOTE_BYTES at most,
    and is the last one."""
    stop = min(end_offset, high_watermark)
    ranges: list[LocatedRange] = []
    for segment in segments:
        if segment.base_offset >= stop or start_offset >= stop or len(ranges) == ranges_max:
            break
        if start_offset >= segment.next_offset or not segment.data_bytes:
            continue
        start = segment.find(max(start_offset, segment.base_offset))
        end = segment.end_below(high_watermark)
        if stop < end.next_offset:
            last = segment.find(stop - 1)
            end = min(end, segment.batch_end(last), key=lambda e: e.position)
        if segment.is_remote and start.position + LOCATE_REMOTE_BYTES < end.position:
            end = segment.boundary(start, start.position + LOCATE_REMOTE_BYTES) or segment.batch_end(start)
        if end.position > start.position:
            ranges.append(
                LocatedRange(
                    str(segment.path_of(start.position, end.position)),
                    segment.info.schema_id,
                    segment.base_offset,
                    start.position,
                    end.position,
                    start.base_offset,
                )
            )
        if segment.is_remote:
            break  # a further range could push this one out of the cache
    return ranges
