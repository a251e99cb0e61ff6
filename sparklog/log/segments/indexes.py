"""The offset index and the time index of one segment, in one object, because their entries are made together."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np

from sparklog.environment.files import FileSystem, OddFileError, read_rebuildable, write_whole
from sparklog.format import offset_index, time_index
from sparklog.format.offset_index import OffsetIndex, decode_offset_index
from sparklog.format.time_index import TimeIndex, decode_time_index

logger = logging.getLogger(__name__)


class SegmentIndexes:
    """Offset index, time index, and the largest timestamp so far (None: no batch yet) with the base offset of the batch
    that reached it first."""

    __slots__ = (
        "_base_offset",
        "_bytes_since_entry",
        "largest_timestamp_ms",
        "largest_timestamp_offset",
        "offsets",
        "times",
    )

    def __init__(self, base_offset: int) -> None:
        self._base_offset = base_offset
        self.offsets = OffsetIndex()
        self.times = TimeIndex()
        self.largest_timestamp_ms: int | None = None
        self.largest_timestamp_offset = -1
        self._bytes_since_entry = 0

    def add(self, base_offset: int, position: int, size_bytes: int, timestamp_ms: int, interval_bytes: int) -> None:
        """Enter the next batch of the segment. Index entries are made at most every `interval_bytes`. `timestamp_ms`:
        the batch's largest timestamp."""
        if self._bytes_since_entry > interval_bytes:
            self.offsets.append(base_offset - self._base_offset, position)
            self.finish()
            self._bytes_since_entry = 0
        self._bytes_since_entry += size_bytes
        if self.largest_timestamp_ms is None or timestamp_ms > self.largest_timestamp_ms:
            self.largest_timestamp_offset = base_offset
            self.largest_timestamp_ms = timestamp_ms

    def finish(self) -> None:
        """Add the largest timestamp so far to the time index, if it is larger than the last entry's."""
        if self.largest_timestamp_ms is not None:
            self.times.append_if_later(self.largest_timestamp_ms, self.largest_timestamp_offset - self._base_offset)

    def position_before_timestamp(self, timestamp_ms: int) -> int | None:
        """Return the position at which a look-up for the timestamp begins: all batches before it have smaller
        timestamps. None: begin at the first batch."""
        entry = self.times.ceiling(timestamp_ms)
        relative = entry.relative_offset if entry else self.largest_timestamp_offset - self._base_offset
        # the batches before this offset entry have smaller timestamps; otherwise the time index had an earlier entry
        floor = self.offsets.floor(relative)
        return floor.position if floor else None

    def resume(self, data_position: int, end_position: int) -> None:
        """Continue after the entered batches, which end at `end_position`, so that the next index entry has the usual
        distance from the last one."""
        last = self.offsets.last()
        self._bytes_since_entry = end_position - (data_position if last is None else last.position)

    def cut(self, next_offset: int, largest_timestamp_ms: int | None, largest_timestamp_offset: int) -> None:
        """Forget the batches from `next_offset` on. The caller gives the largest timestamp of the remaining batches."""
        self.offsets.truncate(next_offset - self._base_offset)
        self.times.truncate(next_offset - self._base_offset)
        self.largest_timestamp_ms = largest_timestamp_ms
        self.largest_timestamp_offset = largest_timestamp_offset

    def save(self, files: FileSystem, segment: Path) -> None:
        """Write both index files beside the file `segment`. Raises StorageError, StorageFullError."""
        self.finish()
        for path, data in zip(index_paths(segment), self.encode(), strict=True):
            write_whole(files, path, data)

    def encode(self) -> tuple[bytes, bytes]:
        """Return the contents of the offset index file and of the time index file; call `finish` before."""
        return self.offsets.encode(self._base_offset), self.times.encode(self._base_offset)


def load_indexes(
    files: FileSystem, segment: Path, base_offset: int, next_offset: int, batch_positions: np.ndarray
) -> SegmentIndexes | None:
    """Return the indexes of a sealed segment from their files; None if one of the two files is missing, damaged, or
    does not fit the segment. Raises StorageError."""
    offsets, times = (read_rebuildable(files, path) for path in index_paths(segment))
    if offsets is None or times is None:
        return None
    end = next_offset - base_offset
    decoded_offsets = decode_offset_index(
        offsets, base_offset=base_offset, batch_positions=batch_positions, relative_offset_end=end
    )
    decoded_times = decode_time_index(times, base_offset=base_offset, relative_offset_end=end)
    if decoded_offsets is None or decoded_times is None:
        logger.warning("%s: the index is damaged and is rebuilt", segment)
        return None
    indexes = SegmentIndexes(base_offset)
    indexes.offsets, indexes.times = decoded_offsets, decoded_times
    last = decoded_times.last()
    if last is not None:
        indexes.largest_timestamp_offset = base_offset + last.relative_offset
        indexes.largest_timestamp_ms = last.timestamp_ms
    return indexes


def read_largest_timestamp(
    files: FileSystem, segment: Path, base_offset: int, next_offset: int
) -> tuple[int, int] | None:
    """Return a sealed segment's largest timestamp and the base offset of the batch that reached it first, from the last
    entry of its time index. None if the file is missing, or if its end is damaged or does not fit the segment."""
    path = segment.with_suffix(time_index.SUFFIX)
    if not files.exists(path):
        return None
    try:
        file = files.open(path)
    except OddFileError:
        return None
    try:
        end_bytes = time_index.LAST_ENTRY_BYTES
        size = file.size()
        data = file.read(size - end_bytes, end_bytes) if size >= end_bytes else b""
    finally:
        file.close()
    entry = time_index.decode_last_entry(data, base_offset=base_offset, relative_offset_end=next_offset - base_offset)
    return None if entry is None else (entry.timestamp_ms, base_offset + entry.relative_offset)


def index_paths(segment: Path) -> tuple[Path, Path]:
    """Return the paths of a segment's offset index file and time index file."""
    return segment.with_suffix(offset_index.SUFFIX), segment.with_suffix(time_index.SUFFIX)


def remove_indexes(files: FileSystem, segment: Path) -> None:
    """Remove both index files; sealing the segment writes them again."""
    for path in index_paths(segment):
        files.remove(path)
