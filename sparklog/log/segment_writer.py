"""Writing batches into a log's segments: which one takes them, when a new one begins, and taking a failed write back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa

from sparklog.errors import SparklogError, StorageError
from sparklog.format.batch import BatchHeader
from sparklog.format.segment import SegmentInfo, segment_name
from sparklog.log.append_check import fits, fitting
from sparklog.log.dropped_segments import DroppedSegments
from sparklog.log.files import FileSystem
from sparklog.log.flushing import Dirty
from sparklog.log.model import LogConfig, LogOwner
from sparklog.log.segment import LogSegment, PlacedBatch
from sparklog.log.segment_list import SegmentList
from sparklog.log.slices import HandleCache


class SegmentWriter:
    """The segments of a log, and what of them is not on the disk yet. Used under the log's write lock; `segments` may be
    read at any time."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        owner: LogOwner,
        schema_of: Callable[[int], pa.Schema],
        handles: HandleCache,
    ) -> None:
        self._files = files
        self._directory = directory
        self._owner = owner
        self._handles = handles
        self.schema_of = schema_of
        self.segments = SegmentList([], [], [])
        self.dirty = Dirty()
        self.dropped = DroppedSegments()
        self.roll_next = False
        """The next batch begins a new segment."""
        self.has_rolled = False
        """A segment has been begun behind another one since this was set to False."""
        self.failure: StorageError | None = None
        """Why nobody knows what the last segments hold."""

    def write(self, view: memoryview, batches: list[PlacedBatch], config: LogConfig) -> None:
        """Writes the batches: as many as belong into one segment with one write. Takes all back if a write fails."""
        self._drop_empty(batches[0].header.schema_id)
        before, roll_next = self.segments, self.roll_next
        written: list[LogSegment] = []
        done = 0
        try:
            while done < len(batches):
                segment = self._segment_for(batches[done].header, config)
                count = fitting(segment, batches, done, config)
                run = batches[done : done + count]
                end = run[-1].payload_position + run[-1].header.size_bytes
                written.append(segment)
                segment.append(view[run[0].payload_position : end], run, config.index_interval_bytes)
                self.dirty.add(segment)
                done += count
        except SparklogError:
            self.roll_next = roll_next
            self._take_back(before, written)
            raise

    def begin(self, base_offset: int, schema_id: int) -> LogSegment:
        """Makes a new last segment; the one before is sealed."""
        last = self.segments.last
        if last is not None and not last.is_sealed:
            self.seal(last)
        self.dropped.remove_path(self._directory / segment_name(base_offset))
        owner = self._owner
        info = SegmentInfo(owner.topic, owner.topic_id, owner.partition, base_offset, schema_id)
        segment = LogSegment.create(self._files, self._directory, info, self.schema_of(schema_id), self._handles)
        self.segments = SegmentList.of([*self.segments.all, segment])
        self.dirty.add(segment, made=True)
        self.roll_next = False
        self.has_rolled = self.has_rolled or last is not None
        return segment

    def seal(self, segment: LogSegment) -> None:
        """Writes a segment's indexes and footer."""
        segment.seal(self.schema_of(segment.info.schema_id))
        self.dirty.add(segment, made=True)

    def drop_oldest(self, count: int, due_ms: int) -> None:
        """Takes the `count` oldest segments out of the log; their files stay until the clock shows `due_ms`."""
        gone = self.segments.all[:count]
        self._use(self.segments.all[count:], gone, due_ms)

    def replace(self, old: list[LogSegment], new: Sequence[LogSegment], due_ms: int) -> bool:
        """Puts `new` in the place of `old`, whose files stay until the clock shows `due_ms`. False when the log does not
        have all of those any more, or nothing behind them."""
        segments = self.segments.all
        first = next((i for i, s in enumerate(segments) if s is old[0]), len(segments))
        behind = first + len(old)
        if behind >= len(segments) or segments[first:behind] != old:
            return False
        self._use([*segments[:first], *new, *segments[behind:]], old, due_ms)
        return True

    def _use(self, segments: list[LogSegment], gone: Sequence[LogSegment], due_ms: int) -> None:
        self.segments = SegmentList.of(segments)
        self.dirty.discard(gone)
        self.dropped.add(gone, due_ms)

    def _drop_empty(self, schema_id: int) -> None:
        """A last segment without a batch (a crash left only its head, or it was cut) that does not take this schema, or
        nothing at all, gives way to a new one of the same name."""
        last = self.segments.last
        if last is None or last.data_bytes:
            return
        if last.info.schema_id != schema_id or last.compacted or last.has_gaps:
            self.segments = SegmentList.of(self.segments.all[:-1])
            self.dirty.discard([last])
            last.delete()

    def _take_back(self, before: SegmentList, written: list[LogSegment]) -> None:
        try:
            new = self.segments.all[len(before.all) :]
            self.segments = before
            self.dirty.discard(new)
            for segment in new:
                segment.delete()
            if new:
                self._files.sync_directory(self._directory)  # a failed append must not come back after a power cut
            for segment in written:
                if segment not in new:
                    segment.take_back()
        except SparklogError as e:
            self.failure = StorageError(f"{self._directory}: a failed append could not be taken back ({e}); restart")
            raise self.failure from e

    def _segment_for(self, header: BatchHeader, config: LogConfig) -> LogSegment:
        """The segment for the next batch: the last one, un-sealed if need be, or a new one."""
        last = self.segments.last
        if last is not None and not self.roll_next and fits(last, header, 0, config):
            if last.is_sealed:
                last.unseal()
            if fits(last, header, 0, config):  # the age of its first batch is known only now
                return last
        return self.begin(header.base_offset, header.schema_id)
