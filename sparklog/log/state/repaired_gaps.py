"""repaired-gaps.json of an open log (`format/gaps.py`): the offsets that a repair could not save.

A follower has the gaps that its leader has, and no others: it names its own when it fetches, and the leader says where
it is to cut its log (`replication/replica/leader.py`). A gap is written down before the segment after it is made, and
forgotten when the log has been cut to its beginning, not before the segments are: a crash in between leaves a gap at
the log end, which the next start forgets.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sparklog.environment.files import FileSystem, read_whole
from sparklog.format.gaps import GAPS_FILE, Gap, decode_gaps, encode_gaps


class RepairedGaps:
    """The gaps of one log. `all`: (first offset that is missing, first that is there again), ascending. Changed under
    the write lock."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        """Read the gaps. Raises StorageError."""
        self._files = files
        self._path = directory / GAPS_FILE
        self.all: tuple[Gap, ...] = tuple(sorted(decode_gaps(read_whole(files, self._path))))

    def add(self, gaps: Iterable[Gap], log_end_offset: int) -> None:
        """Add gaps of the leader; noted gaps from the log end on, which were never reached, are forgotten. Raises
        StorageFullError, StorageError."""
        known = tuple(sorted({*(gap for gap in self.all if gap[0] < log_end_offset), *gaps}))
        if known != self.all:
            self._files.write_atomic(self._path, encode_gaps(known))
            self.all = known

    def cut(self, end_offset: int) -> None:
        """Remove the gaps that begin at or after `end_offset`, because the log has been cut there. Raises
        StorageFullError, StorageError."""
        left = tuple(gap for gap in self.all if gap[0] < end_offset)
        if left != self.all:
            self._files.write_atomic(self._path, encode_gaps(left))
            self.all = left
