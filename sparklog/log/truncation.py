"""Cutting a log back, in an order that a crash at any point leaves sound.

truncation.json, ``{"offset": n}``, is written before anything is cut: until the next checkpoint, recovery-points.json
may promise what is cut now. As long as it is there, a start takes no log start, high watermark or recovery point above
n from the checkpoint. It goes, for good, before a checkpoint made after the cut counts as written. If it is lost, it
was not needed yet or no more. The newest segments go first: whatever is left at any moment is a log.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct

from sparklog.environment.files import FileSystem, read_whole
from sparklog.format.checkpoint import decode, encode
from sparklog.log.segment import LogSegment

TRUNCATION_FILE = "truncation.json"


class _Content(Struct, frozen=True):
    offset: int


class TruncationMark:
    """truncation.json of one partition directory. `count`: how often it has been written since the start."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self._files = files
        self._path = directory / TRUNCATION_FILE
        self._offset: int | None = None
        self.count = 0

    def clamp(self, points: tuple[int, int, int]) -> tuple[int, int, int]:
        """The offsets of a checkpoint, none of them above what the log has been cut to since. Raises StorageError."""
        data = read_whole(self._files, self._path)
        if data is None:
            return points
        content = decode(data, _Content)
        self._offset = max(0, content.offset) if content is not None else 0
        self.count = 1
        a, b, c = (min(p, self._offset) for p in points)
        return a, b, c

    def write(self, offset: int) -> None:
        """Raises StorageFullError, StorageError."""
        self._offset = offset if self._offset is None else min(offset, self._offset)
        self._files.write_atomic(self._path, encode(_Content(self._offset)))
        self.count += 1

    def forget(self, count: int) -> None:
        """A checkpoint that was made after `count` truncations is on the disk: the file goes, unless it is newer."""
        if self._offset is not None and count == self.count:
            self._files.remove(self._path)
            self._files.sync_directory(self._path.parent)  # come back later, it would lower a newer log start
            self._offset = None


def remove_segments(segments: Sequence[LogSegment], files: FileSystem) -> None:
    """Removes segments, the newest first, each of them for good before the next."""
    for segment in reversed(segments):
        segment.delete()
        if not segment.is_remote:
            files.sync_directory(segment.path.parent)


def end_of_cut(segments: Sequence[LogSegment], offset: int) -> int:
    """Where a log ends that is cut to `offset`, which lies in it: there, or where the batch begins that holds it, or,
    where there is a gap before that, where the gap begins. Raises LogCorruptError."""
    segment = segments[max(0, sum(s.base_offset < offset for s in segments) - 1)]
    if not segment.compacted and not segment.has_gaps:
        return segment.end_below(offset).next_offset
    end = segment.base_offset
    for _, header in segment.headers_from(None):
        if header.next_offset > offset:
            break
        end = header.next_offset
    return end


def end_of_remote_cut(segments: Sequence[LogSegment], offset: int, log_start_offset: int) -> tuple[int, bool]:
    """Where a cut to `offset` ends that reaches into the object store, and whether nothing of the log is left then: a copy
    is not changed, it goes as a whole. Without remote segments there it is `offset`."""
    if offset < log_start_offset:
        return offset, True
    for i, segment in enumerate(segments):
        if segment.is_remote and offset < segment.next_offset:
            return max(segment.base_offset, log_start_offset), i == 0
    return offset, False


def cut_segments(
    segments: Sequence[LogSegment], offset: int, files: FileSystem, interval_bytes: int
) -> list[LogSegment]:
    """Cuts a log's segments, the first of which begins at or below `offset` (see `end_of_cut`); returns what is left.

    Raises LogCorruptError, StorageError.
    """
    kept = [s for s in segments if s.base_offset < offset] or list(segments[:1])
    remove_segments(segments[len(kept) :], files)
    last = kept[-1]
    if last.next_offset > offset:
        last.cut(offset, interval_bytes)
    return kept
