"""Reads of a log. This module neither changes the log nor takes its locks.

Readers take the list of segments first and check the log start afterwards. Code that removes segments uses the opposite
order: it raises the log start first.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence

from sparklog.errors import LogCorruptError, OffsetOutOfRangeError, StorageError
from sparklog.format.txn_index import AbortedEntry
from sparklog.log.model.log_config import LocatedRange
from sparklog.log.parts.ranges import LOCATE_RANGES_MAX, ranges_between, slice_from
from sparklog.log.parts.time_lookup import TimeLookup, TopicSchemas
from sparklog.log.producers.transactions import AbortedTransaction
from sparklog.log.producers.whole_transactions import Commit, CommitScan
from sparklog.log.segments.slices import FileSlice
from sparklog.log.segments.stored_schema import SchemaOf
from sparklog.log.segments.view import SegmentView
from sparklog.log.state.log_state import LogState
from sparklog.types import OffsetAndTimestamp


class LogReader:
    """Reader of one log. Any number of threads can read at a time."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._times = TimeLookup(state.owner)

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        end: int | None = None,
        min_one_batch: bool = True,
        may_wait: bool = True,
        to_log_end: bool = False,
    ) -> FileSlice | None:
        """Return a slice of whole batches of one segment, the first of which holds `offset`. All its records are below
        the high watermark and below `end`. It has at most `max_bytes`, but with `min_one_batch` at least one batch.
        Returns None if there is no such batch (yet).

        `to_log_end`: read up to the log end, for a follower, which also copies uncommitted records. Raises
        OffsetOutOfRangeError below the log start and above the log end, RemoteStorageError if the object store fails,
        RemoteReadRequired if the read has to wait for the object store and `may_wait` is False, LogCorruptError,
        StorageError.
        """
        offsets = self._state.offsets
        limit = offsets.written if to_log_end else offsets.high_watermark
        bound = limit if end is None else min(end, limit)
        view = self._state.segments  # before the check: retention raises the log start first, then takes segments away
        self._check_readable(offset)
        if offset >= bound:
            return None
        return slice_from(view, offset, bound, max_bytes, min_one_batch=min_one_batch, may_wait=may_wait)

    def _check_readable(self, offset: int) -> None:
        if self._state.health.is_closed:
            self._state.health.check()
        if not self._state.offsets.log_start <= offset <= self._state.offsets.written:
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self._state.owner.topic_partition} is out of range: "
                f"the log goes from {self._state.offsets.log_start} to {self._state.offsets.written}"
            )

    def locate(self, start_offset: int, end_offset: int, *, ranges_max: int = LOCATE_RANGES_MAX) -> list[LocatedRange]:
        """Return the file ranges of the whole batches that hold [start_offset, end_offset), below the high watermark;
        at most the first `ranges_max` ranges.

        If the ranges begin in the object store, about the first LOCATE_REMOTE_BYTES of them are fetched, and the result
        has only one range, in a file of the read cache. Raises OffsetOutOfRangeError if `start_offset` is out of range,
        RemoteStorageError, LogCorruptError, StorageError.
        """
        segments = self._state.segments.from_offset(start_offset)  # before the check, as in `read`
        self._check_readable(start_offset)
        return ranges_between(segments, start_offset, end_offset, self._state.offsets.high_watermark, ranges_max)

    def bytes_available(self, offset: int, *, end: int | None = None) -> int:
        """Return the number of bytes of the batches from `offset` up to `end` or the high watermark, estimated from the
        index. O(log n)."""
        bound = self._state.offsets.high_watermark if end is None else min(end, self._state.offsets.high_watermark)
        return self._state.segments.bytes_between(offset, bound) if offset < bound else 0

    def commits(self, offset: int, since_ms: int) -> list[Commit]:
        """Return the transactions that are committed by a marker from `offset` on, or by a marker appended since
        `since_ms`.

        Only headers of local segments are read, from the first batch appended since `since_ms`, or from `offset` if
        that lies before. So the result can have only a part of the records of a transaction that began earlier.

        `since_ms`: append time from which on all markers count, in ms. Raises StorageError."""
        while True:
            segments = self._state.segments
            try:
                return commits_in([s for s in segments.local if s.data_bytes], offset, since_ms)
            except StorageError:
                if segments is self._state.segments:  # else compaction or retention has removed a file
                    raise

    def has_commits_behind(self, offset: int) -> bool:
        """Return True if the log can have a commit marker at or after `offset`, False if it surely has none."""
        return self._state.producers.last_commit_offset >= offset

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions that can have records in [start_offset, end_offset), in the order of their
        markers. The range must lie below the last stable offset."""
        return self._state.producers.aborted.between(start_offset, end_offset)

    def end_with_few_aborted(self, count_max: int, start_offset: int, end_offset: int) -> int:
        """Return an end for a read from `start_offset`: `end_offset`, or a smaller offset, such that
        `aborted_transactions` has about `count_max` entries at most for the range."""
        return self._state.producers.aborted.end_with_at_most(count_max, start_offset, end_offset)

    def aborted_in(self, start_offset: int, end_offset: int) -> list[AbortedEntry]:
        """Return the aborted transactions whose markers are in [start_offset, end_offset)."""
        return list(self._state.producers.aborted.entries(start_offset, end_offset))

    def bases_in(self, start_offset: int, end_offset: int) -> list[int]:
        """Return the segments' base offsets that lie in [start_offset, end_offset)."""
        bases = self._state.segments.bases
        return bases[bisect_left(bases, start_offset) : bisect_left(bases, end_offset)]

    @property
    def schema_of(self) -> SchemaOf:
        """The topic's schemas by their ids; KeyError or UnknownSchemaError for an unknown id."""
        return self._state.schema_of

    @property
    def _schemas(self) -> TopicSchemas:
        return TopicSchemas(self._state.schema_of, self._state.inflated_bytes_max, self._state.inflated)

    def offset_for_timestamp(self, timestamp_ms: int) -> OffsetAndTimestamp:
        """Return the first record, in log order, with at least this timestamp; (-1, -1) if no such record is below the
        high watermark.

        The look-up can read files. Raises CorruptBatchError, LogCorruptError, StorageError, RemoteStorageError.
        """
        self._check_readable(self._state.offsets.log_start)
        view, bounds = self._state.segments, (self._state.offsets.log_start, self._state.offsets.high_watermark)
        return self._times.first_from(view.all, view.bases, bounds, timestamp_ms, self._schemas)

    def offset_of_max_timestamp(self) -> OffsetAndTimestamp:
        """Return the first record with the largest timestamp below the high watermark; (-1, -1) if there is no record.
        Raises the same errors as `offset_for_timestamp`."""
        self._check_readable(self._state.offsets.log_start)
        view, bounds = self._state.segments, (self._state.offsets.log_start, self._state.offsets.high_watermark)
        return self._times.largest(view.all, view.bases, bounds, self._schemas)


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
