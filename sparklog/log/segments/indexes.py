"""The two indexes of one segment, kept together because an entry of one belongs to an entry of the other."""

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
    """Offset index, time index, and the largest timestamp so far (None: no batch yet) with its batch's offset."""

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
        """Note the next batch of the segment; `timestamp_ms` is its largest."""
        if self._bytes_since_entry > interval_bytes:
            self.offsets.append(base_offset - self._base_offset, position)
            self.finish()
            self._bytes_since_entry = 0
        self._bytes_since_entry += size_bytes
        if self.largest_timestamp_ms is None or timestamp_ms > self.largest_timestamp_ms:
            self.largest_timestamp_offset = base_offset
            self.largest_timestamp_ms = timestamp_ms

    def finish(self) -> None:
        """Enter the largest timestamp so far into the time index."""
        if self.largest_timestamp_ms is not None:
            self.times.append_if_later(self.largest_timestamp_ms, self.largest_timestamp_offset - self._base_offset)

    def position_before_timestamp(self, timestamp_ms: int) -> int | None:
        """Return the position at which a look-up for the timestamp begins: all batches before it have smaller
        timestamps. None: begin at the first batch."""
        entry = self.times.ceiling(timestamp_ms)
        relative = entry.relative_offset if entry else self.largest_timestamp_offset - self._base_offset
        # the maximum was not yet reached when the offset entry before its batch was made
        floor = self.offsets.floor(relative)
        return floor.position if floor else None

    def resume(self, data_position: int, end_position: int) -> None:
        """Continue after noted batches that end at `end_position`: the next entry is made at the usual distance."""
        last = self.offsets.last()
        self._bytes_since_entry = end_position - (data_position if last is None else last.position)

    def cut(self, next_offset: int, largest_timestamp_ms: int | None, largest_timestamp_offset: int) -> None:
        """Forget the batches from `next_offset` on; the largest timestamp becomes the one before them."""
        self.offsets.truncate(next_offset - self._base_offset)
        self.times.truncate(next_offset - self._base_offset)
        self.largest_timestamp_ms = largest_timestamp_ms
        self.largest_timestamp_offset = largest_timestamp_offset

    def save(self, files: FileSystem, segment: Path) -> None:
        """Write both files beside `segment`."""
        self.finish()
        for path, data in zip(index_paths(segment), self.encode(), strict=True):
            write_whole(files, path, data)

    def encode(self) -> tuple[bytes, bytes]:
        """Return the content of the offset index's and the time index's file, once the segment is sealed."""
        return self.offsets.encode(self._base_offset), self.times.encode(self._base_offset)


def load_indexes(
    files: FileSystem, segment: Path, base_offset: int, next_offset: int, batch_positions: np.ndarray
) -> SegmentIndexes | None:
    """Return the indexes of a sealed segment from their files, or None if either is missing, damaged or insane."""
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
    entry of its time index; None if the file is missing, or its end damaged or insane."""
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
    """Return the paths of the two files."""
    return segment.with_suffix(offset_index.SUFFIX), segment.with_suffix(time_index.SUFFIX)


def remove_indexes(files: FileSystem, segment: Path) -> None:
    """Remove both files; they are made again when the segment is sealed."""
    for path in index_paths(segment):
        files.remove(path)
