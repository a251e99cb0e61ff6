"""Segments that a log no longer has, whose files are still there.

A segment that retention removes from a log stays on the disk for `file.delete.delay.ms`. So a reader on the same host
that knows its path, or a fetch that is about to open it, can finish. After a crash the files are found again: they lie
below the log start, and opening the log removes them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from sparklog.environment.files import FileSystem
from sparklog.errors import StorageError
from sparklog.format.segment import segment_name
from sparklog.log.segments.indexes import remove_indexes
from sparklog.log.segments.segment import LogSegment
from sparklog.log.segments.view import SegmentView

logger = logging.getLogger(__name__)


class DroppedSegments:
    """Used under the log's write lock."""

    def __init__(self) -> None:
        self._due: list[tuple[int, SegmentView]] = []

    def __len__(self) -> int:
        return len(self._due)

    def add(self, segments: Sequence[SegmentView], due_ms: int) -> None:
        """Keep the files of `segments` until the clock shows `due_ms`."""
        self._due += [(due_ms, segment) for segment in segments]

    def remove_due(self, now_ms: int) -> int:
        """Unlink the segments that are due, the oldest first; returns their number. Slices of them can still be read.

        Raises StorageError; the next call tries the remaining ones again.
        """
        removed = 0
        for due in [d for d in self._due if d[0] <= now_ms]:
            due[1].delete()
            self._due.remove(due)
            removed += 1
        return removed

    def remove_all(self) -> None:
        """Unlink everything because the log is closed; files that cannot be unlinked are removed when the log is opened
        again."""
        try:
            self.remove_due(max((due_ms for due_ms, _ in self._due), default=0))
        except StorageError as e:
            logger.warning("files of deleted segments cannot be removed before the next start: %s", e)

    def take_from(self, end_offset: int) -> list[SegmentView]:
        """Return the segments after `end_offset`, ascending. The caller unlinks them: the log has been cut there, and
        at the next start they would overlap with later appends."""
        taken = [segment for _, segment in self._due if segment.next_offset > end_offset]
        self._due = [due for due in self._due if due[1].next_offset <= end_offset]
        return sorted(taken, key=lambda segment: segment.base_offset)

    def remove_path(self, path: Path) -> None:
        """Unlink a segment at once because a new one needs its name; readers keep their open files."""
        for due in [d for d in self._due if d[1].path == path]:
            due[1].delete()
            self._due.remove(due)


def remove_below(files: FileSystem, directory: Path, bases: Sequence[int], log_start_offset: int) -> list[int]:
    """Unlink the segments of `bases` (ascending) that lie wholly below the log start, without looking into them:
    a crash may have removed some of them already, in any order. Returns the others."""
    count = sum(following <= log_start_offset for following in bases[1:])
    for base in bases[:count]:
        path = directory / segment_name(base)
        files.remove(path)
        remove_indexes(files, path)
    return list(bases[count:])


def discard(segments: Sequence[LogSegment], log_start_offset: int) -> None:
    """Unlink all segments of a log that ends below its log start: a crash took its end, but the lost records had been
    deleted on request. The log continues, empty, at the log start, so no offset is used twice."""
    end = segments[-1].next_offset
    logger.warning(
        "%s: after the crash the log ends at offset %d, below its log start; the log begins empty at %d",
        segments[-1].path.parent, end, log_start_offset,
    )  # fmt: skip
    for segment in segments:
        segment.delete()
