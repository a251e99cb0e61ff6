"""repaired-gaps.json of an open log (`format/gaps.py`): the offsets whose records a repair could not save.

A follower has exactly the gaps of its leader. When it fetches, it names its own gaps, and the leader tells it where to
cut its log (`replication/replica/leader.py`). A gap is recorded before the segment after it is created. If the log is
cut to the start of a gap, the gap is removed after the segments. A crash in between leaves a gap at the log end, which
the next start removes.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from sparklog.environment.files import FileSystem, read_whole
from sparklog.format.gaps import GAPS_FILE, Gap, decode_gaps, encode_gaps


class RepairedGaps:
    """The gaps of one log. `all`: the pairs (first missing offset, first offset after the gap), ascending. Changed
    under the write lock."""

    def __init__(self, files: FileSystem, directory: Path) -> None:
        """Read the gaps. Raises StorageError."""
        self._files = files
        self._path = directory / GAPS_FILE
        self.all: tuple[Gap, ...] = tuple(sorted(decode_gaps(read_whole(files, self._path))))

    def add(self, gaps: Iterable[Gap], log_end_offset: int) -> None:
        """Add gaps of the leader. Recorded gaps at or above the log end, which this log has never reached, are removed.
        Raises StorageFullError, StorageError."""
        merged = tuple(sorted({*(gap for gap in self.all if gap[0] < log_end_offset), *gaps}))
        if merged != self.all:
            self._files.write_atomic(self._path, encode_gaps(merged))
            self.all = merged

    def cut(self, end_offset: int) -> None:
        """Remove the gaps that begin at or after `end_offset`, the new log end. Raises StorageFullError,
        StorageError."""
        kept = tuple(gap for gap in self.all if gap[0] < end_offset)
        if kept != self.all:
            self._files.write_atomic(self._path, encode_gaps(kept))
            self.all = kept
