"""Written data of a log that are not fsynced yet, and the time since they wait for an fsync.

A flush takes the dirty segments, fsyncs them, and only then moves the offsets. Several appends that wait for the disk
share one fsync (group commit), which the first of these appends runs. A failed fsync is never repeated, because the
kernel can have dropped the data that it could not write: the log then accepts no more appends.
"""

from __future__ import annotations

from collections.abc import Collection

from sparklog.log.segments.segment import LogSegment
from sparklog.log.segments.view import SegmentView


class Dirty:
    """Segments with bytes that are not fsynced, oldest first. `directory`: new files were created, so the directory
    needs an fsync too. Used under the write lock."""

    def __init__(self) -> None:
        self.segments: list[LogSegment] = []
        self.directory = False
        self.since_ms: int | None = None
        """The broker's clock at the first append since the last flush; None: no append since."""

    def add(self, segment: LogSegment, *, is_new: bool = False) -> None:
        """Add `segment`, which was written to, as the newest. `is_new`: its file is new."""
        if not self.segments or self.segments[-1] is not segment:  # nearly always the last one
            self.discard([segment])
            self.segments.append(segment)
        self.directory |= is_new

    def discard(self, segments: Collection[SegmentView]) -> None:
        """Remove `segments`, which the log no longer has."""
        if self.segments and segments:
            self.segments = [s for s in self.segments if s not in segments]

    @property
    def rolled(self) -> bool:
        """True if a segment that accepts no more appends waits for its fsync."""
        return any(s.is_sealed for s in self.segments)

    def put_back(self, segments: Collection[LogSegment], since_ms: int | None, *, directory: bool) -> None:
        """Put back the result of `take`, which was not fsynced, with the `since_ms` from before `take`."""
        self.segments = [*segments, *(s for s in self.segments if s not in segments)]
        self.directory |= directory
        self.since_ms = since_ms if self.since_ms is None else self.since_ms

    def take(self, *, active: bool) -> tuple[list[LogSegment], bool]:
        """Remove the segments to fsync now, and return them in offset order, and True if the directory needs an fsync.
        With `active`, the active segment is included."""
        taken = [s for s in self.segments if active or s.is_sealed]
        self.segments = [s for s in self.segments if s not in taken]
        directory, self.directory = self.directory, False
        if not self.segments:
            self.since_ms = None
        return sorted(taken, key=lambda s: s.base_offset), directory
