"""repaired-gaps.json of an open log (`format/gaps.py`): the offsets that a repair could not save.

A follower cuts its log to the first of them and copies from there: its leader has what is missing. A gap is forgotten
when the log has been cut to its beginning, and not before the segments are: a crash in between leaves a gap at the log
end, which the next start forgets.
"""

from __future__ import annotations

from pathlib import Path

from sparklog.environment.files import FileSystem, read_whole
from sparklog.format.gaps import GAPS_FILE, decode_gaps, encode_gaps


class RepairedGaps:
    """`all`: (first offset that is missing, first that is there again), ascending. Changed under the write lock."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        """Raises StorageError."""
        self._files = files
        self._path = directory / GAPS_FILE
        self.all: tuple[tuple[int, int], ...] = tuple(sorted(decode_gaps(read_whole(files, self._path))))

    def first_from(self, log_start_offset: int) -> int | None:
        """The first offset from `log_start_offset` on that is missing; None: all are there."""
        return next((max(start, log_start_offset) for start, end in self.all if end > log_start_offset), None)

    def cut(self, end_offset: int) -> None:
        """The log has been cut to `end_offset`: what begins there or behind is no gap of it any more. Raises
        StorageFullError, StorageError."""
        left = tuple(gap for gap in self.all if gap[0] < end_offset)
        if left != self.all:
            self._files.write_atomic(self._path, encode_gaps(left))
            self.all = left
