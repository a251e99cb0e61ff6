"""truncation.json: a record that a log was cut back, for the time until the next checkpoint.

``{"offset": n, "restarted_at": m}`` is written before the log is cut. Until the next checkpoint, recovery-points.json
can have offsets above the cut. While truncation.json exists, a start lowers the checkpoint's log start, high watermark
and recovery point to n. If the log was emptied, it begins at m (otherwise m is null), even if m is above the
checkpoint's log start: no records are missing before m. After a checkpoint that is newer than the cut, the file is
removed durably, before the checkpoint counts as written.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from sparklog.environment.files import FileSystem, read_whole
from sparklog.format.checkpoint import decode, encode

TRUNCATION_FILE = "truncation.json"


class _Content(Struct, frozen=True):
    offset: int
    restarted_at: int | None = None


class TruncationMark:
    """truncation.json of one partition directory. `count` rises with every write; it begins at 1 if the file was there
    at the start, else at 0."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self._files = files
        self._path = directory / TRUNCATION_FILE
        self._offset: int | None = None
        self._restarted_at: int | None = None
        self.count = 0

    def clamp(self, points: tuple[int, int, int]) -> tuple[int, int, int]:
        """Read the file. Return the log start, high watermark and recovery point of a checkpoint, each lowered to the
        end of the lowest recorded cut. If the log was emptied, the log start is the offset at which it continued.
        Raises StorageError."""
        data = read_whole(self._files, self._path)
        if data is None:
            return points
        content = decode(data, _Content)
        self._offset = max(0, content.offset) if content is not None else 0
        if content is not None and content.restarted_at is not None:
            self._restarted_at = max(0, content.restarted_at)
        self.count = 1
        log_start, high_watermark, recovery_point = (min(p, self._offset) for p in points)
        return log_start if self._restarted_at is None else self._restarted_at, high_watermark, recovery_point

    def write(self, offset: int, *, is_emptied: bool = False) -> None:
        """Record a cut to `offset`. `is_emptied`: the log is emptied and begins at `offset` too. Raises
        StorageFullError, StorageError."""
        self._offset = offset if self._offset is None else min(offset, self._offset)
        if is_emptied:
            self._restarted_at = offset
        self._files.write_atomic(self._path, encode(_Content(self._offset, self._restarted_at)))
        self.count += 1

    def forget(self, count: int) -> None:
        """Remove the file durably, because a checkpoint made when `count` had this value is on the disk. Does nothing
        if the log was cut again since. Raises StorageError."""
        if self._offset is not None and count == self.count:
            self._files.remove(self._path)
            self._files.sync_directory(self._path.parent)  # a file that returned would lower a newer log start
            self._offset = self._restarted_at = None
