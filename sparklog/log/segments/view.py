"""One segment for readers: its file, its indexes, and the places of its batches.

A segment is active or sealed. An active segment accepts batches, and all its properties are in memory. A sealed segment
has a footer, and its indexes are files that are loaded at their first use. Look-ups can run while `segment.py` writes:
a look-up uses the state that was complete when it began.
"""

from __future__ import annotations

import logging
import threading
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sparklog.environment.files import FileSystem, OddFileError
from sparklog.errors import CorruptBatchError, LogCorruptError, StorageFullError, StorageUnavailableError
from sparklog.format.batch import BatchHeader
from sparklog.format.offset_index import OffsetIndex
from sparklog.format.segment import SegmentInfo, decode_seal
from sparklog.log.segments.batch_times import batch_timestamp_ms
from sparklog.log.segments.header_walk import walk_headers
from sparklog.log.segments.indexes import SegmentIndexes, load_indexes, read_largest_timestamp, remove_indexes
from sparklog.log.segments.slices import HandleCache, SharedFile

logger = logging.getLogger(__name__)

_INTERVAL_BYTES = 4096
"""Interval of rebuilt indexes: the default of `index.interval.bytes`."""


class SegmentEnd(NamedTuple):
    """End of a segment's batches: the offset after the last record and the position after the last batch."""

    next_offset: int
    position: int


class BatchStart(NamedTuple):
    """Start of a batch: its base offset and its position in the file. `end`: end of the batch; None if its header was
    not read."""

    base_offset: int
    position: int
    end: SegmentEnd | None = None


class Tail:
    """Places of all batches of an active segment. `relative_offsets` lacks the first `positions_from` batches, whose
    headers were not read."""

    __slots__ = ("metadata_lengths", "positions", "positions_from", "relative_offsets")

    def __init__(self, positions: Sequence[int] = (), metadata_lengths: Sequence[int] = ()) -> None:
        self.positions = array("I", positions)
        self.metadata_lengths = array("I", metadata_lengths)
        self.relative_offsets = array("I")
        self.positions_from = len(self.positions)


class SegmentView:
    """One segment, as readers see it. `end` is replaced as a whole, so its offset and its position always match."""

    is_remote = False
    """True if the segment's file is in the object store, so that a read can have to wait for it."""

    def __init__(
        self,
        files: FileSystem,
        path: Path,
        info: SegmentInfo,
        data_position: int,
        end: SegmentEnd,
        handles: HandleCache | None = None,
        *,
        compacted: bool = False,
    ) -> None:
        """Wrap a segment file. `begin` has to follow, with the result of a scan. `handles` closes the file when it is
        idle, to limit the number of open files. `compacted`: the batches have the offset column; only a follower
        appends to such a segment."""
        self._files = files
        self._handles = HandleCache() if handles is None else handles
        self.path = path
        self.info = info
        self.data_position = data_position
        self.end = end
        self.is_sealed = False
        self.compacted = compacted
        self.has_gaps = False
        """True if a repair has left out offsets in the segment, which then accepts no more appends."""
        self.first_timestamp_ms: int | None = None
        self.append_time_ms = 0
        """Append time of the last batch; 0: not known."""
        self.written_from = 2**63 - 1
        """Position from which on this process has written the batches; 2^63 - 1: it has written none."""
        self._tail: Tail | None = None
        self._indexes: SegmentIndexes | None = None
        self._largest_timestamp: tuple[int, int] | None = None
        """`largest_timestamp` as read from the time index file, while the indexes are not in memory."""
        self._shared: SharedFile | None = None
        self._lock = threading.Lock()

    def begin(self, tail: Tail | None, indexes: SegmentIndexes) -> None:
        """Set the result of a scan: with a tail, the segment is active from now on; without a tail, it is sealed."""
        self._tail, self._indexes, self.is_sealed = tail, indexes, tail is None
        self._largest_timestamp = None

    @property
    def base_offset(self) -> int:
        return self.info.base_offset

    @property
    def next_offset(self) -> int:
        return self.end.next_offset

    @property
    def data_bytes(self) -> int:
        """Bytes of batches."""
        return self.end.position - self.data_position

    # --- handles ---

    def acquire(self) -> SharedFile:
        """Return the open file with one more user; open the file if it is closed. Raises StorageError."""
        with self._lock:
            shared = self._shared
            if shared is not None and shared.reacquire():
                self._handles.touch(shared)
                return shared
            shared = self._shared = SharedFile(self._files.open(self.path)).acquire()
            self._handles.add(shared)  # under the lock: `close_handle` must not forget the file before it is added
        return shared

    def acquire_range(self, start: int, end: int) -> SharedFile:
        """Return the file like `acquire`, for the bytes [start, end). Raises StorageError."""
        return self.acquire()

    def path_of(self, start: int, end: int) -> Path:
        """Return the path of a file on this host that has the bytes [start, end) at these positions. Raises
        StorageError."""
        return self.path

    def close_handle(self) -> None:
        """Release the file as its owner. Slices keep it open, and the next `acquire` opens it again."""
        with self._lock:
            shared, self._shared = self._shared, None
        if shared is not None:
            self._handles.forget(shared)
            shared.release()

    def delete(self) -> None:
        """Remove the segment file and its index files. Slices stay readable. Raises StorageError."""
        self.close_handle()
        self._files.remove(self.path)
        remove_indexes(self._files, self.path)

    # --- lookups ---

    @property
    def largest_timestamp(self) -> tuple[int, int] | None:
        """The largest timestamp and the base offset of the batch that reached it first; None without a batch.

        For a sealed segment, the first use reads only the last entry of the time index, and does not load the indexes.
        """
        end = self.end
        if end.next_offset == self.base_offset:
            return None
        if self._indexes is None and self._largest_timestamp is None:
            self._largest_timestamp = read_largest_timestamp(self._files, self.path, self.base_offset, end.next_offset)
        indexes = self._indexes
        if indexes is None and self._largest_timestamp is not None:
            return self._largest_timestamp
        indexes = self.indexes
        if indexes.largest_timestamp_ms is None:
            return None
        return indexes.largest_timestamp_ms, indexes.largest_timestamp_offset

    @property
    def indexes(self) -> SegmentIndexes:
        """The indexes; those of a sealed segment are loaded, or rebuilt, at the first use."""
        indexes = self._indexes
        return indexes if indexes is not None else self._load_indexes()

    def _load_indexes(self) -> SegmentIndexes:
        shared = self.acquire()
        try:
            with self._lock:
                if self._indexes is None:
                    blocks = decode_seal(shared.file.read, shared.file.size())
                    positions = blocks.positions if blocks else np.zeros(0, np.int64)
                    end = self.end
                    self._indexes = load_indexes(self._files, self.path, self.base_offset, end.next_offset, positions)
                    if self._indexes is None:
                        self._indexes = self._rebuild(shared, end)
                return self._indexes
        finally:
            shared.release()

    def _rebuild(self, shared: SharedFile, end: SegmentEnd) -> SegmentIndexes:
        indexes = SegmentIndexes(self.base_offset)
        due = self.base_offset
        try:
            for position, header in walk_headers(shared.file.read, self.data_position, end.position):
                if header.base_offset < due or header.next_offset > end.next_offset:
                    raise CorruptBatchError(f"position {position}: offset {header.base_offset} where {due} is expected")
                due = header.next_offset
                indexes.add(
                    header.base_offset, position, header.size_bytes, batch_timestamp_ms(header), _INTERVAL_BYTES
                )
        except CorruptBatchError as e:
            raise LogCorruptError(f"{self.path}: {e}") from e
        try:
            indexes.save(self._files, self.path)
        except (StorageFullError, StorageUnavailableError, OddFileError) as e:
            logger.warning("%s: the rebuilt indexes could not be written and stay in memory: %s", self.path, e)
        return indexes

    def headers_from(self, position: int | None) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of the batches from `position` on (None: the first). Raises LogCorruptError."""
        shared = self.acquire()
        try:
            start = self.data_position if position is None else position
            yield from walk_headers(shared.file.read, start, self.end.position)
        except CorruptBatchError as e:
            raise LogCorruptError(f"{self.path}: {e}") from e
        finally:
            shared.release()

    def find(self, offset: int) -> BatchStart:
        """Return the start of the batch that holds `offset`; if `offset` lies in a gap, that of the next batch. The
        offset must lie in [base_offset, next_offset). Raises LogCorruptError, StorageError."""
        relative = offset - self.base_offset
        tail = self._tail
        if tail is not None:
            i = bisect_right(tail.relative_offsets, relative) - 1
            if i >= 0:
                if (self.compacted or self.has_gaps) and self._ends_below(
                    tail.positions[tail.positions_from + i], offset
                ):
                    i += 1
                return BatchStart(self.base_offset + tail.relative_offsets[i], tail.positions[tail.positions_from + i])
        start = self._find_by_index(offset)
        if start is None and self.drop_indexes():
            start = self._find_by_index(offset)
        if start is None:
            raise LogCorruptError(
                f"{self.path}: no batch with offset {offset}, the segment should end at {self.next_offset}; "
                f"restore the file from a copy or delete the topic"
            )
        return start

    def _ends_below(self, position: int, offset: int) -> bool:
        """Return True if the batch at `position` ends before `offset`, which then lies in a gap."""
        return next(self.headers_from(position))[1].next_offset <= offset

    def _find_by_index(self, offset: int) -> BatchStart | None:
        """Return the result of `find`, by the index and the headers after its entry; None if the index is wrong."""
        floor = self.indexes.offsets.floor(offset - self.base_offset)
        for position, header in self.headers_from(floor.position if floor else None):
            lies = floor and position == floor.position and header.base_offset - self.base_offset != floor[0]
            if lies:
                return None
            if header.next_offset > offset:
                end = SegmentEnd(header.next_offset, position + header.size_bytes)
                return BatchStart(header.base_offset, position, end)
        return None

    def drop_indexes(self) -> bool:
        """Remove the wrong indexes of a sealed segment; the next use rebuilds them. Returns False, without a change, if
        the segment is active."""
        with self._lock:
            if not self.is_sealed:
                return False
            logger.warning("%s: the index is wrong and is rebuilt", self.path)
            remove_indexes(self._files, self.path)
            self._indexes = self._largest_timestamp = None
            return True

    def end_below(self, offset: int) -> SegmentEnd:
        """Return the end of the last batch that lies wholly below `offset`."""
        end = self.end
        if offset >= end.next_offset:
            return end
        start = self.find(offset)
        return SegmentEnd(start.base_offset, start.position)

    def boundary(self, start: BatchStart, limit: int) -> SegmentEnd | None:
        """Return the last batch boundary in (start.position, limit] that the index knows, or the headers if the index
        knows none; None if the first batch ends after `limit`. Raises LogCorruptError, StorageError.

        `limit` must lie below the end of the segment's batches.
        """
        tail = self._tail
        if tail is not None:
            i = bisect_right(tail.positions, limit) - 1
            if i >= tail.positions_from:
                position = tail.positions[i]
                if position > start.position:
                    return SegmentEnd(self.base_offset + tail.relative_offsets[i - tail.positions_from], position)
                return None
        if start.end is not None and start.end.position > limit:
            return None
        index: OffsetIndex = self.indexes.offsets
        entry = index.floor_position(limit)
        if entry is not None and entry.position > start.position:
            # the base offset in a header has no checksum; if it is wrong, a reader would continue at a wrong offset
            if next(self.headers_from(entry.position))[1].base_offset == self.base_offset + entry.relative_offset:
                return SegmentEnd(self.base_offset + entry.relative_offset, entry.position)
            limit = entry.position  # the batch before this entry decides if the index or the header is right
        best = start.end
        for position, header in self.headers_from(start.position if best is None else best.position):
            end = position + header.size_bytes
            if end > limit:
                break
            best = SegmentEnd(header.next_offset, end)
        return best

    def batch_end(self, start: BatchStart) -> SegmentEnd:
        """Return the end of the batch that begins at `start`. Raises LogCorruptError."""
        if start.end is not None:
            return start.end
        header = next(self.headers_from(start.position))[1]
        return SegmentEnd(header.next_offset, start.position + header.size_bytes)

    def bytes_before(self, offset: int) -> int:
        """Return the bytes of the batches below `offset`, rounded down to a batch that the index knows."""
        end = self.end
        if offset >= end.next_offset:
            return end.position - self.data_position
        relative = offset - self.base_offset
        tail = self._tail
        if tail is not None:
            i = bisect_right(tail.relative_offsets, relative) - 1
            if i >= 0:
                return tail.positions[tail.positions_from + i] - self.data_position
        floor = self.indexes.offsets.floor(relative)
        return floor.position - self.data_position if floor else 0
