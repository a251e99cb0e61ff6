"""One partition's log: an append-only sequence of batches in segment files.

One thread appends at a time; others may read meanwhile. Reads end at the high watermark, on a batch boundary, and give
file ranges, never decoded records.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sparklog.errors import (
    BrokerShuttingDownError,
    LogCorruptError,
    OffsetOutOfRangeError,
    SparklogError,
    StorageError,
    StorageFullError,
    UnknownTopicOrPartitionError,
)
from sparklog.format.batch import BatchHeader
from sparklog.format.checkpoint import PARTITION_FILE, PartitionMeta, decode, encode
from sparklog.format.segment import SegmentInfo, segment_name
from sparklog.log.append_check import check_payload, fits, fitting, stamp_payload
from sparklog.log.clock import Clock
from sparklog.log.dropped_segments import DroppedSegments
from sparklog.log.files import FileSystem, read_whole
from sparklog.log.model import AppendInfo, LocatedRange, LogConfig, LogOwner
from sparklog.log.recovery import LoadContext, SchemaOf, load_log
from sparklog.log.retention import Expired, deletion_offset, expired
from sparklog.log.segment import LogSegment, PlacedBatch, SegmentEnd
from sparklog.log.slices import FileSlice, HandleCache
from sparklog.log.time_lookup import find_largest_timestamp, find_timestamp
from sparklog.types import OffsetAndTimestamp

__all__ = ["AppendInfo", "FileSlice", "LocatedRange", "LogConfig", "LogOwner", "PartitionLog"]

logger = logging.getLogger(__name__)


class _Segments(NamedTuple):
    """All segments at one moment; never changed, only replaced, so that readers need no lock.

    `bytes_before[i]`: bytes of batches in the segments before the i-th.
    """

    bases: list[int]
    all: list[LogSegment]
    bytes_before: list[int]

    @classmethod
    def of(cls, segments: list[LogSegment]) -> _Segments:
        before = [0]
        for segment in segments:
            before.append(before[-1] + segment.data_bytes)
        return cls([s.base_offset for s in segments], segments, before[:-1])


class PartitionLog:
    """See the module. Made by `open`."""

    def __init__(
        self,
        directory: Path,
        owner: LogOwner,
        config: LogConfig,
        schema_of: SchemaOf,
        files: FileSystem,
        clock: Clock,
        handles: HandleCache | None = None,
    ) -> None:
        self.directory = directory
        self._handles = HandleCache() if handles is None else handles
        self.owner = owner
        self.config = config.for_partition(owner)
        self._schema_of = schema_of
        self._files = files
        self._clock = clock
        self._write_lock = threading.Lock()
        self._segments = _Segments([], [], [])
        self._log_start_offset = self._log_end_offset = self._high_watermark = self._recovery_point = 0
        self._append_time_ms = 0
        self._roll_next = False
        self._unflushed: list[LogSegment] = []
        self._unusable: SparklogError | None = None
        """Why nothing can be appended (and, once closed, read) any more."""
        self._closed = False
        self._dropped = DroppedSegments()

    @classmethod
    def open(
        cls,
        directory: Path,
        owner: LogOwner,
        config: LogConfig,
        schema_of: SchemaOf,
        *,
        files: FileSystem,
        clock: Clock,
        clean: bool,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        recovery_point: int = 0,
        handles: HandleCache | None = None,
    ) -> PartitionLog:
        """Opens the log in `directory`, which is made if it does not exist.

        `schema_of` gives the topic's schema for an id (KeyError or UnknownSchemaError for an unknown one). `clean`: the
        log was closed with its data sealed; otherwise the last segment is scanned and a torn tail cut. The offsets are
        those of the last checkpoint (0 when there is none). Raises LogCorruptError, StorageError.
        """
        log = cls(directory, owner, config, schema_of, files, clock, handles)
        _identify(directory, owner, files)
        context = LoadContext(
            directory,
            owner,
            schema_of,
            files,
            config.index_interval_bytes,
            recovery_point,
            log._handles,
            log_start_offset,
        )
        loaded = load_log(context, clean=clean)
        log._segments = _Segments.of(loaded.segments)
        log._unflushed = loaded.unflushed
        end = loaded.segments[-1].next_offset if loaded.segments else log_start_offset
        start = max(log_start_offset, loaded.segments[0].base_offset if loaded.segments else 0)
        expected = max(high_watermark, start, recovery_point)
        if expected > end:
            lost = f"{directory} ends at offset {end}, the last checkpoint says {expected}"
            if clean or max(start, recovery_point) > end:
                raise LogCorruptError(f"{lost}: files are missing; restore them from a copy or delete the topic")
            logger.warning("%s: what lies between was lost in the crash", lost)
        log._log_start_offset, log._log_end_offset = start, end
        log._high_watermark = min(max(high_watermark, start), end)
        log._recovery_point = end if clean else min(recovery_point, end)
        log._append_time_ms = max((s.append_time_ms for s in loaded.segments), default=0)
        return log

    # --- where it is ---

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self._log_start_offset

    @property
    def high_watermark(self) -> int:
        """Reads end here."""
        return self._high_watermark

    @property
    def log_end_offset(self) -> int:
        """The offset the next record gets."""
        return self._log_end_offset

    @property
    def recovery_point(self) -> int:
        """Everything below is on the disk."""
        return self._recovery_point

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        view = self._segments
        return view.bytes_before[-1] + view.all[-1].data_bytes if view.all else 0

    @property
    def segment_count(self) -> int:
        return len(self._segments.all)

    def raise_high_watermark(self, offset: int) -> None:
        """Moves the high watermark up to `offset`, at most to the log end; it never goes back."""
        self._high_watermark = max(self._high_watermark, min(offset, self._log_end_offset))

    def reconfigure(self, config: LogConfig) -> None:
        """Settings for what is appended, rolled and deleted from now on."""
        with self._write_lock:
            self.config = config.for_partition(self.owner)

    # --- retention ---

    def delete_records(self, before_offset: int) -> int:
        """Raises the log start to `before_offset`, at most to the high watermark (-1: there); returns the log start.

        What lies below cannot be read any more; `retain` frees its space. Raises OffsetOutOfRangeError,
        InvalidRequestError (the topic is only compacted).
        """
        with self._write_lock:
            self._check_usable()
            offset = deletion_offset(
                before_offset,
                cleanup_policy=self.config.cleanup_policy,
                log_start_offset=self._log_start_offset,
                high_watermark=self._high_watermark,
                name=self.owner.topic_partition,
            )
            self._log_start_offset = max(self._log_start_offset, offset)
            return self._log_start_offset

    def retain(self) -> Expired:
        """Raises the log start above the segments that need not be kept; `drop_below_log_start` follows when that has
        been written down. When none would stay, an empty one is begun, whose name keeps the offset.

        Raises StorageError, LogCorruptError.
        """
        self._expired(self._segments)  # may read index files: not while appends wait
        with self._write_lock:
            self._check_usable()
            view = self._segments
            found = self._expired(view)
            if found.count and found.count == len(view.all):
                try:
                    self._begin_segment(self._log_end_offset, view.all[-1].info.schema_id)
                except StorageFullError:
                    found = found.without_last()
            if found.count:
                self._log_start_offset = max(self._log_start_offset, view.all[found.count - 1].next_offset)
            return found

    def _expired(self, view: _Segments) -> Expired:
        return expired(
            view.all,
            self.config.retention,
            log_start_offset=self._log_start_offset,
            high_watermark=self._high_watermark,
            now_ms=self._clock.now_ms(),
            largest_timestamp_of=lambda s: s.indexes.largest_timestamp_ms,
        )

    def drop_below_log_start(self) -> int:
        """Takes the segments wholly below the log start out of the log; returns how many. The last one stays. Their
        files stay for `file.delete.delay.ms`."""
        with self._write_lock:
            segments = self._segments.all
            count = sum(s.next_offset <= self._log_start_offset for s in segments[:-1])
            if count:
                self._segments = _Segments.of(segments[count:])
                self._unflushed = [s for s in self._unflushed if s not in segments[:count]]
                self._dropped.add(segments[:count], self._clock.now_ms() + self.config.file_delete_delay_ms)
            return count

    def remove_dropped(self) -> int:
        """Unlinks the files of dropped segments whose delay is over; returns how many segments. Raises StorageError."""
        with self._write_lock:
            return 0 if self._closed else self._dropped.remove_due(self._clock.now_ms())

    # --- writing ---

    def use_schemas(self, schema_of: SchemaOf) -> None:
        """The topic's schemas from now on: those there were, and newer ones."""
        self._schema_of = schema_of

    def append(self, payload: bytearray | memoryview, *, leader_epoch: int = 0) -> AppendInfo:
        """Appends the batches in the writable `payload`, which are stamped in place, and nothing if any is wrong.

        Raises CorruptBatchError, MessageTooLargeError, UnknownSchemaError, InvalidRequestError (nothing was tried),
        StorageFullError, StorageError (what was written has been cut off again).
        """
        view = memoryview(payload).cast("B")
        with self._write_lock:
            self._check_usable()
            found = check_payload(view, self.config, self._schema_of)
            now_ms = max(self._clock.now_ms(), self._append_time_ms)
            batches = stamp_payload(view, found, self._log_end_offset, leader_epoch, now_ms)
            self._write(view, batches)
            first, last = batches[0].header, batches[-1].header
            self._append_time_ms = now_ms
            self._log_end_offset = last.next_offset
        records = last.next_offset - first.base_offset
        return AppendInfo(first.base_offset, last.last_offset, now_ms, len(batches), records)

    def _write(self, view: memoryview, batches: list[PlacedBatch]) -> None:
        """Writes the batches: as many as belong into one segment with one write. Takes all back if a write fails."""
        self._drop_empty_segment(batches[0].header.schema_id)
        before, roll_next = self._segments, self._roll_next
        written: list[LogSegment] = []
        done = 0
        try:
            while done < len(batches):
                segment = self._segment_for(batches[done].header)
                count = fitting(segment, batches, done, self.config)
                run = batches[done : done + count]
                end = run[-1].payload_position + run[-1].header.size_bytes
                written.append(segment)
                segment.append(view[run[0].payload_position : end], run, self.config.index_interval_bytes)
                done += count
        except SparklogError:
            self._roll_next = roll_next
            self._take_back(before, written)
            raise

    def _drop_empty_segment(self, schema_id: int) -> None:
        """A last segment without a batch (a crash left only its head) but with another schema gives way to a new one of
        the same name."""
        last = self._segments.all[-1] if self._segments.all else None
        if last is not None and not last.data_bytes and last.info.schema_id != schema_id:
            self._segments = _Segments.of(self._segments.all[:-1])
            self._unflushed = [s for s in self._unflushed if s is not last]
            last.delete()

    def _take_back(self, before: _Segments, written: list[LogSegment]) -> None:
        try:
            new = self._segments.all[len(before.all) :]
            self._segments = before
            self._unflushed = [s for s in self._unflushed if s not in new]
            for segment in new:
                segment.delete()
            for segment in written:
                if segment not in new:
                    segment.take_back()
        except SparklogError as e:
            self._unusable = StorageError(f"{self.directory}: a failed append could not be taken back ({e}); restart")
            raise self._unusable from e

    def _segment_for(self, header: BatchHeader) -> LogSegment:
        """The segment for the next batch: the last one, un-sealed if need be, or a new one."""
        last = self._segments.all[-1] if self._segments.all else None
        if last is not None and not self._roll_next and fits(last, header, 0, self.config):
            if last.is_sealed:
                last.unseal()
            if fits(last, header, 0, self.config):  # the age of its first batch is known only now
                return last
        return self._begin_segment(header.base_offset, header.schema_id)

    def _begin_segment(self, base_offset: int, schema_id: int) -> LogSegment:
        """Makes a new last segment; the one before is sealed."""
        last = self._segments.all[-1] if self._segments.all else None
        if last is not None and not last.is_sealed:
            self._seal(last)
        self._dropped.remove_path(self.directory / segment_name(base_offset))
        info = SegmentInfo(**self._identity(), base_offset=base_offset, schema_id=schema_id)
        schema = self._schema_of(schema_id)
        segment = LogSegment.create(self._files, self.directory, info, schema, self._handles)
        self._segments = _Segments.of([*self._segments.all, segment])
        self._roll_next = False
        return segment

    def _identity(self) -> dict[str, Any]:
        return {"topic": self.owner.topic, "topic_id": self.owner.topic_id, "partition": self.owner.partition}

    def _seal(self, segment: LogSegment) -> None:
        segment.seal(self._schema_of(segment.info.schema_id))
        if segment not in self._unflushed:
            self._unflushed.append(segment)

    def roll(self) -> None:
        """Seals the active segment; the next append begins a new one. Without batches it does nothing."""
        with self._write_lock:
            self._check_usable()
            last = self._segments.all[-1] if self._segments.all else None
            if last is not None and last.data_bytes:
                if not last.is_sealed:
                    self._seal(last)
                self._roll_next = True

    def flush(self) -> None:
        """Fsyncs the rolled segments that are not yet on the disk, and moves the recovery point.

        May run beside appends. After a failed fsync nobody knows what is on the disk: the log takes no more appends.
        """
        with self._write_lock:
            pending = [s for s in self._unflushed if s.is_sealed]
            last = self._segments.all[-1] if self._segments.all else None
            point = self._log_end_offset if last is None or last.is_sealed else last.base_offset
        try:
            for segment in pending:
                segment.sync()
            if pending:
                self._files.sync_directory(self.directory)
        except SparklogError as e:
            self._unusable = e
            raise
        with self._write_lock:
            self._unflushed = [s for s in self._unflushed if s not in pending]
            self._recovery_point = max(self._recovery_point, point)

    def close(self, *, seal: bool = True) -> None:
        """Closes the log; with `seal` its last segment is sealed and everything fsynced before. Slices stay readable.

        Raises StorageFullError, StorageError; the log is closed then too, but not cleanly.
        """
        if self._closed:
            return
        try:
            if seal:
                with self._write_lock:
                    self._check_usable()
                    last = self._segments.all[-1] if self._segments.all else None
                    if last is not None and not last.is_sealed:
                        self._seal(last)
                self.flush()
        finally:
            with self._write_lock:
                self._closed = True
                self._unusable = BrokerShuttingDownError(f"the log of {self.owner.topic_partition} is closed")
                for segment in self._segments.all:
                    segment.close_handle()

    def mark_deleted(self) -> None:
        """Closes the log for good: its topic is deleted."""
        self.close(seal=False)
        self._unusable = UnknownTopicOrPartitionError(f"{self.owner.topic_partition} is deleted")

    def take_offline(self, error: SparklogError) -> None:
        """Every use raises `error` from now on; no file is written any more. Waits for no append that hangs."""
        self._unusable, self._closed = error, True
        for segment in self._segments.all:
            segment.close_handle()

    def _check_usable(self) -> None:
        if self._unusable is not None:
            raise type(self._unusable)(str(self._unusable))  # fresh: one raised again and again gathers tracebacks

    # --- reading ---

    def read(self, offset: int, max_bytes: int, *, min_one_batch: bool = True) -> FileSlice | None:
        """A slice of whole batches, the first of which holds `offset`: at most `max_bytes`, but with `min_one_batch` at
        least one batch; within one segment, below the high watermark. None when there is nothing (yet).

        Raises OffsetOutOfRangeError below the log start and above the log end.
        """
        high_watermark = self._high_watermark
        view = self._segments  # before the check: retention raises the log start first, then takes segments away
        self._check_readable(offset)
        if offset >= high_watermark:
            return None
        i = bisect_right(view.bases, offset) - 1
        segment = view.all[i]
        start = segment.find(offset)
        upper = segment.end_below(high_watermark)
        if upper.position <= start.position:
            return None
        end: SegmentEnd | None = upper
        if start.position + max_bytes < upper.position:
            end = segment.boundary(start, start.position + max_bytes)
            if end is None:
                if not min_one_batch:
                    return None
                end = segment.batch_end(start)
        assert end is not None
        return FileSlice(
            segment.acquire(),
            start.position,
            end.position - start.position,
            start.base_offset,
            end.next_offset,
            is_tail=not segment.is_sealed and start.position >= segment.written_from,
        )

    def _check_readable(self, offset: int) -> None:
        if self._closed:
            self._check_usable()
        if not self._log_start_offset <= offset <= self._log_end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self.owner.topic_partition} is out of range: "
                f"the log goes from {self._log_start_offset} to {self._log_end_offset}"
            )

    def locate(self, start_offset: int, end_offset: int) -> list[LocatedRange]:
        """The file ranges that hold [start_offset, end_offset), whole batches, below the high watermark.

        Raises OffsetOutOfRangeError when `start_offset` is.
        """
        stop = min(end_offset, self._high_watermark)
        segments = list(self._segments_from(start_offset))
        self._check_readable(start_offset)
        ranges: list[LocatedRange] = []
        for segment in segments:
            if segment.base_offset >= stop or start_offset >= stop:
                break
            start = segment.find(max(start_offset, segment.base_offset))
            end = segment.end_below(self._high_watermark)
            if stop < end.next_offset:
                last = segment.find(stop - 1)
                end = min(end, segment.batch_end(last), key=lambda e: e.position)
            if end.position > start.position:
                ranges.append(
                    LocatedRange(
                        str(segment.path), segment.info.schema_id, segment.base_offset, start.position, end.position
                    )
                )
        return ranges

    def _segments_from(self, offset: int) -> Iterator[LogSegment]:
        view = self._segments
        yield from view.all[max(0, bisect_right(view.bases, offset) - 1) :]

    def bytes_available(self, offset: int) -> int:
        """Bytes of batches in [offset, high watermark), rounded to the nearest batches the index knows. O(log n)."""
        high_watermark = self._high_watermark
        if offset >= high_watermark:
            return 0
        view = self._segments
        return max(1, self._bytes_before(view, high_watermark) - self._bytes_before(view, offset))

    def _bytes_before(self, view: _Segments, offset: int) -> int:
        i = bisect_right(view.bases, offset) - 1
        return view.bytes_before[i] + view.all[i].bytes_before(offset) if i >= 0 else 0

    def offset_for_timestamp(self, timestamp_ms: int) -> OffsetAndTimestamp:
        """The first record, in log order, with at least this timestamp; (-1, -1) when none is below the high watermark.

        May read from the disk. Raises CorruptBatchError, StorageError.
        """
        self._check_readable(self._log_start_offset)
        bounds = self._log_start_offset, self._high_watermark
        return find_timestamp(list(self._segments_from(bounds[0])), bounds, timestamp_ms, self.owner, self._schema_of)

    def offset_of_max_timestamp(self) -> OffsetAndTimestamp:
        """The first record with the largest timestamp below the high watermark; (-1, -1) when there is no record."""
        self._check_readable(self._log_start_offset)
        bounds = self._log_start_offset, self._high_watermark
        return find_largest_timestamp(list(self._segments_from(bounds[0])), bounds, self.owner, self._schema_of)


def _identify(directory: Path, owner: LogOwner, files: FileSystem) -> None:
    """Makes the directory if needed, and checks or writes whose it is. Raises LogCorruptError."""
    expected = PartitionMeta(owner.topic, owner.topic_id, owner.partition)
    files.make_directory(directory)
    data = read_whole(files, directory / PARTITION_FILE)
    found = decode(data, PartitionMeta) if data is not None else None
    if found is None:
        if data is not None:
            logger.warning("%s cannot be read, it is written again", directory / PARTITION_FILE)
        files.write_atomic(directory / PARTITION_FILE, encode(expected))
    elif found != expected:
        raise LogCorruptError(f"{directory} belongs to {found}, not to {expected}; move it away")
