"""Search for committed transactions in the headers of batches, from an append time on."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sparklog.errors import LogCorruptError
from sparklog.log.producers.whole_transactions import Commit, CommitScan
from sparklog.log.segments.view import SegmentView

logger = logging.getLogger(__name__)


def commits_in(segments: Sequence[SegmentView], offset: int, since_ms: int) -> list[Commit]:
    """Return the committed transactions of some segments, for `LogReader.commits`.

    Append times never go back within a log, so the first batch to read is found by bisection.

    `offset`: offset from which on all headers are read. `since_ms`: append time from which on all headers are read, in
    ms. Raises StorageError."""
    first = len(segments)
    while first > 0 and _reaches(segments[first - 1], offset, since_ms):
        first -= 1
    scan = CommitScan()
    for i, segment in enumerate(segments[first:]):
        try:
            start = _position(segment, offset, since_ms) if i == 0 else None
            for _, header in segment.headers_from(start):
                scan.note(header)
        except LogCorruptError as e:
            logger.warning("transactions behind the damage are not known: %s", e)
    return scan.commits


def _reaches(segment: SegmentView, offset: int, since_ms: int) -> bool:
    last_ms = segment.append_time_ms  # 0: not known
    return segment.next_offset > offset or not last_ms or last_ms >= since_ms


def _position(segment: SegmentView, offset: int, since_ms: int) -> int | None:
    """Return the position of the first batch to read; None: the first batch of the segment."""
    low, high = segment.base_offset, min(max(offset, segment.base_offset), segment.next_offset - 1)
    while low < high:
        middle = (low + high) // 2
        at = segment.find(middle)
        header = next(segment.headers_from(at.position))[1]
        if header.append_time_ms < since_ms:
            low = max(middle + 1, header.next_offset)
        else:
            high = middle
    return segment.find(min(low, high)).position if low > segment.base_offset else None
