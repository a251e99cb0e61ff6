"""Truncation of a log. Its order leaves a sound state after a crash at any point.

The newest segments are removed first, so the remaining files are a log at any moment. The offsets in the last
checkpoint can lie above the cut; `truncation_mark.py` records the cut for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparklog.environment.files import FileSystem
from sparklog.errors import SparklogError, StorageError
from sparklog.log.model.compaction_policy import CLEANER_POINT_FILE
from sparklog.log.parts.flusher import LogFlusher
from sparklog.log.segments.segment import LogSegment
from sparklog.log.segments.segment_list import SegmentList
from sparklog.log.segments.view import SegmentView
from sparklog.log.state.log_state import LogState


class LogTruncation:
    """Truncation of one log. It takes all locks of the log; readers continue."""

    def __init__(self, state: LogState, flusher: LogFlusher) -> None:
        self._state = state
        self._flusher = flusher

    def truncate_to(self, offset: int) -> int:
        """Cut the log back so that it ends at `offset`, or at the start of the batch that holds `offset`; return the
        log end.

        Cut records do not return after a crash. Leader epochs that begin at or above the new end are forgotten, even if
        no record is cut. If `offset` is below the log start, the log is emptied and continues at `offset`. Raises
        StorageError; the log then accepts no more appends.
        """
        with self._state.swap_lock, self._flusher.lock, self._state.write_lock:
            self._state.health.check()
            self._state.finish_take_back()
            try:
                if offset < self._state.offsets.written:
                    self._truncate(offset)
                    self._state.load_producers()
                self._state.epochs.cut(self._state.offsets.written)
            except SparklogError as e:
                error = StorageError(f"{self._state.directory}: truncation to {offset} failed ({e}); restart")
                raise self._state.health.fail(error) from e
            return self._state.offsets.written

    def restart_at(self, offset: int) -> None:
        """Empty the log; it continues at `offset`, which can be any offset. A follower needs this if its leader's log
        begins after the follower's end. Raises StorageError; the log then accepts no more appends."""
        with self._state.swap_lock, self._flusher.lock, self._state.write_lock:
            self._state.health.check()
            self._state.finish_take_back()
            try:
                self._truncate(offset, whole=True)
                self._state.load_producers()
            except SparklogError as e:
                error = StorageError(
                    f"{self._state.directory}: resetting the log to offset {offset} failed ({e}); restart"
                )
                raise self._state.health.fail(error) from e

    def _truncate(self, offset: int, *, whole: bool = False) -> None:
        segments = self._state.segments.all
        schema_id = segments[-1].info.schema_id if segments else self._state.newest_schema_id if whole else None
        offset, is_emptied = end_of_remote_cut(segments, offset, self._state.offsets.log_start)
        is_emptied = whole or is_emptied or offset < self._state.offsets.log_start or not segments
        end = offset if is_emptied else end_of_cut(segments, offset)
        self._state.files.remove(self._state.directory / CLEANER_POINT_FILE)
        # the checkpoint on the disk has too high offsets, or too low a log start, until the next checkpoint
        self._state.truncation_mark.write(end, is_emptied=is_emptied)
        self._state.producer_files.cut(end)
        if is_emptied:
            self._state.writer.segments = SegmentList.of([])
            self._state.offsets.restart_at(offset)
            self._state.epochs.restart_at(offset)
            self._state.producer_files.clear()
            kept: list[SegmentView] = []
            remove_segments(segments, self._state.files)
        else:
            kept = cut_segments(
                segments,
                end,
                self._state.files,
                self._state.config.index_interval_bytes,
                self._state.offsets.high_watermark,
            )
            self._state.writer.segments = SegmentList.of(kept)
            self._state.offsets.truncate(end)
        remove_segments(self._state.writer.dropped.take_from(-1 if is_emptied else end), self._state.files)
        self._state.tier.cut(0 if is_emptied else end)
        self._state.gaps.cut(0 if is_emptied else end)
        self._state.writer.dirty.discard([s for s in segments if s not in kept])
        self._state.writer.roll_next = False
        if schema_id is not None and not kept:
            self._state.writer.begin(self._state.offsets.written, schema_id)  # its name keeps the offset

    @property
    def count(self) -> int:
        """A number that rises with every cut of the log."""
        return self._state.truncation_mark.count

    def unless_cut(self, count: int, job: Callable[[], None]) -> bool:
        """Call `job` if the number of cuts is still `count`. Returns True if `job` was called."""
        with self._state.swap_lock:
            if self.count == count:
                job()
            return self.count == count

    def forget(self, count: int) -> None:
        """Remove the record of the cuts, because a checkpoint written after `count` cuts is on the disk; does nothing
        if the log was cut again since. Raises StorageError."""
        self._state.truncation_mark.forget(count)


def remove_segments(segments: Sequence[SegmentView], files: FileSystem) -> None:
    """Remove segments, the newest first; each removal is durable before the next."""
    for segment in reversed(segments):
        segment.delete()
        if isinstance(segment, LogSegment):
            files.sync_directory(segment.path.parent)


def end_of_cut(segments: Sequence[SegmentView], offset: int) -> int:
    """Return the end of a log after a cut to `offset`, which lies in the log. It is `offset`, or the start of the batch
    that holds `offset`, or the start of a gap directly before this batch. Raises LogCorruptError."""
    segment = segments[max(0, sum(s.base_offset < offset for s in segments) - 1)]
    if not segment.compacted and not segment.has_gaps:
        return segment.end_below(offset).next_offset
    end = segment.base_offset
    for _, header in segment.headers_from(None):
        if header.next_offset > offset:
            break
        end = header.next_offset
    return end


def end_of_remote_cut(segments: Sequence[SegmentView], offset: int, log_start_offset: int) -> tuple[int, bool]:
    """Return the end of the log after a cut to `offset`, as far as remote segments decide it, and True if nothing of
    the log remains. A copy in the object store is not changed: a cut inside a copy removes the whole copy from the log.
    If `offset` is in no copy, the end is `offset`."""
    if offset < log_start_offset:
        return offset, True
    for i, segment in enumerate(segments):
        if segment.is_remote and offset < segment.next_offset:
            return max(segment.base_offset, log_start_offset), i == 0
    return offset, False


def cut_segments(
    segments: Sequence[SegmentView], offset: int, files: FileSystem, interval_bytes: int, committed: int = 0
) -> list[SegmentView]:
    """Cut a log's segments at `offset`, a result of `end_of_cut`, and return the remaining segments. The first segment
    begins at or below `offset`.

    `committed`: readers that map the files can have seen the records below this offset. Raises LogCorruptError,
    StorageError.
    """
    kept = [s for s in segments if s.base_offset < offset] or list(segments[:1])
    remove_segments(segments[len(kept) :], files)
    last = kept[-1]
    if isinstance(last, LogSegment) and last.next_offset > offset:
        last.cut(offset, interval_bytes, committed=committed)
    return kept
