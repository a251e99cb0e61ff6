"""Segments that a log no longer has, but whose files still exist.

A segment that retention removes from a log stays on the disk for `file.delete.delay.ms`. So a reader on the same host
that knows its path, or a fetch that is about to open it, can finish. After a crash, opening the log removes the files,
because they lie below the log start.
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
    """The dropped segments of one log, each with the time at which its files are to be unlinked. Used under the log's
    write lock."""

    def __init__(self) -> None:
        self._due: list[tuple[int, SegmentView]] = []

    def __len__(self) -> int:
        return len(self._due)

    def add(self, segments: Sequence[SegmentView], due_ms: int) -> None:
        """Keep the files of `segments` until the clock shows `due_ms`."""
        self._due += [(due_ms, segment) for segment in segments]

    def remove_due(self, now_ms: int) -> int:
        """Unlink the segments that are due, in the order of `add`; return their number. Slices of them stay readable.

        Raises StorageError; the next call tries the remaining ones again.
        """
        removed = 0
        for due in [d for d in self._due if d[0] <= now_ms]:
            due[1].delete()
            self._due.remove(due)
            removed += 1
        return removed

    def remove_all(self) -> None:
        """Unlink all dropped segments, because the log is closed. A failure is logged; the files are then removed when
        the log is opened again."""
        try:
            self.remove_due(max((due_ms for due_ms, _ in self._due), default=0))
        except StorageError as e:
            logger.warning("files of deleted segments cannot be removed before the next start: %s", e)

    def take_from(self, end_offset: int) -> list[SegmentView]:
        """Remove the segments that reach beyond `end_offset` from the list, and return them, ascending. The caller
        unlinks them: the log was cut there, and at the next start they would overlap with later appends."""
        taken = [segment for _, segment in self._due if segment.next_offset > end_offset]
        self._due = [due for due in self._due if due[1].next_offset <= end_offset]
        return sorted(taken, key=lambda segment: segment.base_offset)

    def remove_path(self, path: Path) -> None:
        """Unlink a dropped segment with the path `path` at once, because a new segment needs this path. Readers keep
        their open files."""
        for due in [d for d in self._due if d[1].path == path]:
            due[1].delete()
            self._due.remove(due)


def remove_below(files: FileSystem, directory: Path, bases: Sequence[int], log_start_offset: int) -> list[int]:
    """Unlink the segments of `bases` (base offsets, ascending) that lie wholly below the log start, and return the
    remaining bases. The files are not read: a crash can have left any of them."""
    count = sum(following <= log_start_offset for following in bases[1:])
    for base in bases[:count]:
        path = directory / segment_name(base)
        files.remove(path)
        remove_indexes(files, path)
    return list(bases[count:])


def discard(segments: Sequence[LogSegment], log_start_offset: int) -> None:
    """Unlink all segments of a log that ends below its log start. A crash took the end of such a log; the lost records
    were below the log start, so they had been deleted on request. The log continues, empty, at the log start, so no
    offset is used twice."""
    end = segments[-1].next_offset
    logger.warning(
        "%s: after the crash the log ends at offset %d, below its log start; the log begins empty at %d",
        segments[-1].path.parent, end, log_start_offset,
    )  # fmt: skip
    for segment in segments:
        segment.delete()
