"""truncation.json: a log has been cut back, and the checkpoint on the disk may not know it yet.

``{"offset": n}`` is written before anything is cut: until the next checkpoint, recovery-points.json may promise what is
cut now. As long as it is there, a start takes no log start, high watermark or recovery point above n from the
checkpoint. It goes, for good, before a checkpoint made after the cut counts as written. If it is lost, it was not
needed yet or no more.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from sparklog.environment.files import FileSystem, read_whole
from sparklog.format.checkpoint import decode, encode

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
