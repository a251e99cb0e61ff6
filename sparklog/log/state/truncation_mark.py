"""truncation.json: a log has been cut back, and the checkpoint on the disk may not know it yet.

``{"offset": n, "restarted_at": m}`` is written before anything is cut: until the next checkpoint, recovery-points.json
may promise records that are cut now. While the file exists, a start takes no log start, high watermark or recovery
point above n from the checkpoint. If the log has been emptied since, it begins at m (else null), even if that is above
the checkpoint's log start: nothing is missing before it. The file is removed, for good, before a checkpoint from after
the cut counts as written. A lost file was not needed yet, or not any more.
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
    """truncation.json of one partition directory. `count`: how often it has been written since the start."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self._files = files
        self._path = directory / TRUNCATION_FILE
        self._offset: int | None = None
        self._restarted_at: int | None = None
        self.count = 0

    def clamp(self, points: tuple[int, int, int]) -> tuple[int, int, int]:
        """Return the log start, high watermark and recovery point of a checkpoint, limited to the end of the last cut;
        if the log was emptied, the log start is the offset where it continued. Raises StorageError."""
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
        """Store that the log ends at `offset` now; `is_emptied`: it begins there, too. Raises StorageFullError,
        StorageError."""
        self._offset = offset if self._offset is None else min(offset, self._offset)
        if is_emptied:
            self._restarted_at = offset
        self._files.write_atomic(self._path, encode(_Content(self._offset, self._restarted_at)))
        self.count += 1

    def forget(self, count: int) -> None:
        """Remove the file after a checkpoint that was made after `count` truncations: the file goes, unless it is
        newer."""
        if self._offset is not None and count == self.count:
            self._files.remove(self._path)
            self._files.sync_directory(self._path.parent)  # come back later, it would lower a newer log start
            self._offset = self._restarted_at = None
