"""Writing batches into a log's segments: the choice of the segment, the beginning of new segments, and the removal of
failed writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
from msgspec import Struct, field

from sparklog.environment.files import FileSystem
from sparklog.errors import SparklogError, StorageError, StorageUnavailableError
from sparklog.format.batch import ATTRIBUTE_OFFSET_COLUMN, BatchHeader
from sparklog.format.segment import SegmentInfo, segment_name
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.log.segments.dropped import DroppedSegments
from sparklog.log.segments.indexes import remove_indexes
from sparklog.log.segments.segment import LogSegment, PlacedBatch, SyncFailedError
from sparklog.log.segments.segment_list import SegmentList
from sparklog.log.segments.slices import HandleCache
from sparklog.log.segments.view import SegmentView
from sparklog.log.state.check import fits, fitting
from sparklog.log.state.dirty_segments import Dirty


class _TakeBack(Struct):
    """Remains of a failed append on the disk: files to remove, and segments to cut. A failed step can be repeated."""

    files: list[Path] = field(default_factory=list)
    removed: bool = False
    """True if files were removed and the directory is not fsynced yet."""
    segments: list[LogSegment] = field(default_factory=list)


class SegmentWriter:
    """The segments of a log, with their parts that are not fsynced yet. Used under the log's write lock; `segments` can
    be read without it."""

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
        """True if the next batch begins a new segment."""
        self.has_rolled = False
        """True if a segment was begun after another one since the attribute was set to False."""
        self.has_begun = False
        """True if the first segment of an empty log was begun since the attribute was set to False."""
        self.failure: StorageError | None = None
        """The reason why the content of the last segments is unknown until the next start."""
        self.blocked: SparklogError | None = None
        """Reason why the bytes of a failed append are not removed yet; nothing is written before they are. None: there
        are none."""
        self._remains = _TakeBack()

    def write(self, view: memoryview, batches: list[PlacedBatch], config: LogConfig, log_end: int) -> None:
        """Write the batches, with one write per segment. If a write fails, the bytes of all batches are removed before
        the error is raised, or, if the disk does not permit this, before the next write.

        A compacted batch can begin after `log_end`. A segment that begins with such a batch is named by the log end
        nevertheless, so that segments follow each other without a gap. Raises StorageFullError, StorageError."""
        self.finish_take_back()
        self._drop_empty(batches[0].header)
        before, roll_next = self.segments, self.roll_next
        written: list[LogSegment] = []
        done = 0
        try:
            while done < len(batches):
                segment = self._segment_for(batches[done].header, config, log_end)
                count = fitting(segment, batches, done, config)
                run = batches[done : done + count]
                end = run[-1].payload_position + run[-1].header.size_bytes
                written.append(segment)
                segment.append(view[run[0].payload_position : end], run, config.index_interval_bytes)
                self.dirty.add(segment)
                log_end = segment.next_offset
                done += count
        except SparklogError:
            self.roll_next = roll_next
            self._take_back(before, written)
            raise

    def begin(self, base_offset: int, schema_id: int, *, compacted: bool = False) -> LogSegment:
        """Seal the last segment, and begin a new one at `base_offset`. `compacted`: the new segment is for compacted
        batches. Raises StorageFullError, StorageError."""
        self.finish_take_back()
        last, active = self.segments.last, self.segments.active
        if active is not None and not active.is_sealed:
            self.seal(active)
        if active is not None:
            active.check_in_place()  # the new file must not be created in a directory that has replaced the old one's
            self._keep_first_name()
        path = self._directory / segment_name(base_offset)
        self.dropped.remove_path(path)
        owner = self._owner
        info = SegmentInfo(owner.topic, owner.topic_id, owner.partition, base_offset, schema_id)
        try:
            segment = LogSegment.create(
                self._files, self._directory, info, self.schema_of(schema_id), self._handles, compacted=compacted
            )
        except SparklogError:
            self._remains.files.append(path)
            self.finish_take_back()
            raise
        self.segments = SegmentList.of([*self.segments.all, segment])
        self.dirty.add(segment, is_new=True)
        self.roll_next = False
        self.has_rolled = self.has_rolled or last is not None
        self.has_begun = self.has_begun or last is None
        return segment

    def _keep_first_name(self) -> None:
        """Fsync the directory entry of the first segment before a second segment exists. If a power cut took only the
        first entry, the log would seem to begin at the second segment, and the loss would stay unnoticed. Later entries
        need no such fsync, because a gap between segments is noticed. Raises StorageError."""
        if len(self.segments.all) > 1:
            return
        try:
            self._sync_directory()
        except SyncFailedError as e:
            self.failure = StorageError(f"{self._directory}: the first segment may not be on the disk ({e}); restart")
            raise self.failure from e

    def seal(self, segment: LogSegment) -> None:
        """Write a segment's index files and footer. Raises StorageFullError, StorageError."""
        self.finish_take_back()
        segment.seal(self.schema_of(segment.info.schema_id))
        self.dirty.add(segment, is_new=True)

    def drop_oldest(self, count: int, due_ms: int) -> None:
        """Remove the `count` oldest segments from the log; their files stay until the clock shows `due_ms`."""
        gone = self.segments.all[:count]
        self._use(self.segments.all[count:], gone, due_ms)

    def replace(self, old: list[LogSegment], new: Sequence[SegmentView], due_ms: int) -> bool:
        """Replace `old` by `new`; the files of `old` stay until the clock shows `due_ms`. Returns False, without a
        change, if the log no longer has all of `old`, or has no segment after them."""
        segments = self.segments.all
        first = next((i for i, s in enumerate(segments) if s is old[0]), len(segments))
        behind = first + len(old)
        if behind >= len(segments) or segments[first:behind] != old:
            return False
        self._use([*segments[:first], *new, *segments[behind:]], old, due_ms)
        return True

    def _use(self, segments: Sequence[SegmentView], gone: Sequence[SegmentView], due_ms: int) -> None:
        self.segments = SegmentList.of(segments)
        self.dirty.discard(gone)
        self.dropped.add(gone, due_ms)

    def _drop_empty(self, header: BatchHeader) -> None:
        """Remove the last segment if it has no batch (a crash left only its head, or it was cut) and does not accept
        the batch of `header`. The new segment for the batch then gets the same name."""
        last = self.segments.active
        if last is None or last.data_bytes:
            return
        compacted = bool(header.attributes & ATTRIBUTE_OFFSET_COLUMN)
        if last.info.schema_id != header.schema_id or last.compacted != compacted or last.has_gaps:
            last.delete()
            self.segments = SegmentList.of(self.segments.all[:-1])
            self.dirty.discard([last])

    def _take_back(self, before: SegmentList, written: list[LogSegment]) -> None:
        new = [s for s in self.segments.local if s not in before.all]
        self.segments = before
        self.dirty.discard(new)
        for segment in new:
            segment.close_handle()
        self._remains.files += [segment.path for segment in new]
        self._remains.segments += [segment for segment in written if segment not in new]
        self.finish_take_back()

    def finish_take_back(self) -> None:
        """Remove the remains of failed appends. Nothing must be written before this succeeds: the remains could return
        after a crash and contradict the new data. Raises StorageUnavailableError (also in `blocked`), which allows
        another attempt, or StorageError (also in `failure`) if the content of the disk is unknown."""
        if self.failure is not None:
            raise self.failure
        remains = self._remains
        try:
            while remains.files:
                self._files.remove(remains.files[0])
                remove_indexes(self._files, remains.files[0])
                remains.removed = True
                del remains.files[0]
            if remains.removed:
                self._sync_directory()  # so that a failed append does not come back after a power cut
                remains.removed = False
            while remains.segments:
                remains.segments[0].take_back()
                del remains.segments[0]
        except SyncFailedError as e:
            self.failure = StorageError(f"{self._directory}: a failed append could not be undone ({e}); restart")
            raise self.failure from e
        except SparklogError as e:
            self.blocked = StorageUnavailableError(
                f"{self._directory}: a failed append is not undone yet; the broker retries ({e})"
            )
            raise self.blocked from e
        self.blocked = None

    def _sync_directory(self) -> None:
        """Fsync the directory. Raises StorageUnavailableError (a later attempt can succeed), SyncFailedError."""
        try:
            self._files.sync_directory(self._directory)
        except StorageUnavailableError:
            raise
        except SparklogError as e:
            raise SyncFailedError(str(e)) from e

    def _segment_for(self, header: BatchHeader, config: LogConfig, log_end: int) -> LogSegment:
        """Return the segment for the next batch: the last segment, un-sealed if it is sealed, or a new segment."""
        last = self.segments.active
        if last is not None and not self.roll_next and fits(last, header, 0, config):
            if last.is_sealed:
                last.unseal()
            if fits(last, header, 0, config):  # checked again: un-sealing has read the time of the first batch
                return last
        compacted = bool(header.attributes & ATTRIBUTE_OFFSET_COLUMN)
        return self.begin(log_end, header.schema_id, compacted=compacted)
