"""One segment of a log. One thread at a time appends to it, seals and cuts it; other threads can read meanwhile."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.environment.files import TEMPORARY_SUFFIX, FileIdentity, FileSystem
from sparklog.errors import CorruptBatchError, LogCorruptError, SparklogError, StorageError
from sparklog.format.batch import BatchHeader
from sparklog.format.offset_column import with_offset_column
from sparklog.format.segment import SealedBlocks, SegmentInfo, decode_seal, encode_head, encode_seal, segment_name
from sparklog.log.model.watched_files import LOOK_AGE_S_MAX
from sparklog.log.segments.batch_times import batch_timestamp_ms, roll_time_ms
from sparklog.log.segments.header_walk import header_at, walk_headers
from sparklog.log.segments.indexes import SegmentIndexes, index_paths, remove_indexes
from sparklog.log.segments.slices import HandleCache, SharedFile
from sparklog.log.segments.view import SegmentEnd, SegmentView, Tail

_COPY_BYTES = 1 << 20


class PlacedBatch(NamedTuple):
    """A batch about to be appended: its position in the payload, and its header with the offset that it gets."""

    payload_position: int
    header: BatchHeader


class SyncFailedError(StorageError):
    """An fsync has failed: the content of the disk is unknown."""


class _Before(NamedTuple):
    """State that an append changes."""

    end: SegmentEnd
    first_timestamp_ms: int | None
    append_time_ms: int
    largest_timestamp: tuple[int | None, int]


class LogSegment(SegmentView):
    """One segment of a log: its file and its indexes."""

    _before: _Before | None = None
    """State that `take_back` restores."""
    _file_identity: FileIdentity | None = None
    """Identity of the file that receives appends."""
    _checked: SharedFile | None = None
    """The open file whose identity was compared with `_file_identity`."""
    _has_excess = False
    """True if the bytes of a failed footer follow the batches."""
    _in_place_s = 0.0
    """Time of the last check that the path leads to the open file (monotonic, in s)."""

    @classmethod
    def create(
        cls,
        files: FileSystem,
        directory: Path,
        info: SegmentInfo,
        schema: pa.Schema,
        handles: HandleCache | None = None,
        *,
        compacted: bool = False,
    ) -> LogSegment:
        """Create an active segment with a new file, which has only the head. `compacted`: the segment is for compacted
        batches. After a failure, the caller removes the file, which can be incomplete or absent. Raises StorageError,
        StorageFullError."""
        path = directory / segment_name(info.base_offset)
        head = encode_head(with_offset_column(schema) if compacted else schema, info)
        end = SegmentEnd(info.base_offset, len(head))
        segment = cls(files, path, info, len(head), end, handles, compacted=compacted)
        shared = SharedFile(files.open(path, create=True))
        try:
            shared.file.truncate(0)
            shared.file.write(0, head)
            segment._file_identity = shared.file.identity()
        except BaseException:
            shared.release()
            raise
        segment._shared = segment._checked = shared
        segment._in_place_s = files.monotonic_s()
        segment._handles.add(shared)
        segment.begin(Tail(), SegmentIndexes(info.base_offset))
        segment.written_from = len(head)
        return segment

    def append(self, data: memoryview, batches: Sequence[PlacedBatch], interval_bytes: int) -> None:
        """Append `data`, the batches back to back, with one write. `take_back` undoes this append, even if it has
        failed. Raises StorageError, StorageFullError."""
        tail, indexes = self._active()
        self._before = None  # there is nothing to undo before the file is open
        shared = self._acquire_to_write()
        largest = indexes.largest_timestamp_ms, indexes.largest_timestamp_offset
        self._before = _Before(self.end, self.first_timestamp_ms, self.append_time_ms, largest)
        start = self.end.position - batches[0].payload_position
        try:
            shared.file.write(self.end.position, data)
        finally:
            shared.release()
        for payload_position, header in batches:
            self.note(tail, indexes, start + payload_position, header, interval_bytes)
        self.written_from = min(self.written_from, self.end.position)
        self.end = SegmentEnd(batches[-1].header.next_offset, self.end.position + len(data))

    def note(
        self, tail: Tail, indexes: SegmentIndexes, position: int, header: BatchHeader, interval_bytes: int
    ) -> None:
        """Enter the batch at `position` of the file into the tail and the indexes."""
        timestamp_ms = batch_timestamp_ms(header)
        if self.first_timestamp_ms is None:
            self.first_timestamp_ms = roll_time_ms(header)
        indexes.add(header.base_offset, position, header.size_bytes, timestamp_ms, interval_bytes)
        self.append_time_ms = header.append_time_ms
        tail.positions.append(position)
        tail.metadata_lengths.append(header.metadata_length_bytes)
        tail.relative_offsets.append(header.base_offset - self.base_offset)

    def take_back(self) -> None:
        """Cut the file and the state in memory back to before the last `append`, even if the segment was sealed since.
        After a StorageError or StorageFullError, the call can be repeated; after a SyncFailedError, the content of the
        disk is unknown."""
        before = self._before
        if before is None:
            return
        if self.is_sealed:
            self.unseal()
        tail, indexes = self._active()
        shared = self._acquire_to_write()
        try:
            if shared.file.size() != before.end.position:
                shared.file.truncate(before.end.position)
                try:
                    shared.file.sync()  # a failed append must not come back after a power cut
                except SparklogError as e:
                    raise SyncFailedError(str(e)) from e
        finally:
            shared.release()
        self.end = before.end
        self.first_timestamp_ms, self.append_time_ms = before.first_timestamp_ms, before.append_time_ms
        keep = bisect_right(tail.positions, before.end.position - 1)
        del tail.relative_offsets[max(0, keep - tail.positions_from) :]
        del tail.positions[keep:], tail.metadata_lengths[keep:]
        tail.positions_from = min(tail.positions_from, keep)
        indexes.cut(before.end.next_offset, *before.largest_timestamp)
        indexes.resume(self.data_position, before.end.position)
        self._before = None

    def cut(self, offset: int, interval_bytes: int, *, committed: int = 0) -> SegmentEnd:
        """Cut off the batches from the batch that holds `offset` on, durably, and return the new end. The segment is
        active afterwards.

        Readers can have mapped the part of the file below `committed`, or the part that an earlier process has written.
        They would crash if the file became shorter there, so in this case the remaining batches are copied to a new
        file. Raises LogCorruptError, StorageError, StorageFullError.
        """
        end = self.end_below(offset)
        if self.is_sealed:
            self.unseal()
        if end.next_offset < committed or end.position < self.written_from:
            self._write_anew(end.position)
        tail, indexes = Tail(), SegmentIndexes(self.base_offset)
        self.first_timestamp_ms = None
        next_offset = self.base_offset
        shared = self._acquire_to_write()
        try:
            shared.file.truncate(end.position)
            shared.file.sync()  # later appends must not be mixed with the cut bytes
            for position, header in walk_headers(shared.file.read, self.data_position, end.position):
                self.note(tail, indexes, position, header, interval_bytes)
                next_offset = header.next_offset
        except CorruptBatchError as e:
            raise LogCorruptError(f"{self.path}: {e}") from e
        finally:
            shared.release()
        end = SegmentEnd(
            next_offset, end.position
        )  # a gap directly before the cut is cut off too: the next start would not know it
        with self._lock:
            self.end = end
            self.begin(tail, indexes)
        self._before = None
        return end

    def _write_anew(self, size_bytes: int) -> None:
        """Replace the segment's file by a new file with its first `size_bytes`. Readers that have the old file open or
        mapped keep it."""
        temporary = self.path.with_name(self.path.name + TEMPORARY_SUFFIX)
        shared = self._acquire_to_write()
        try:
            file = self._files.open(temporary, create=True)
            try:
                file.truncate(0)
                for position in range(0, size_bytes, _COPY_BYTES):
                    file.write(position, shared.file.read(position, min(_COPY_BYTES, size_bytes - position)))
                file.sync()
            finally:
                file.close()
        finally:
            shared.release()
        self._files.rename(temporary, self.path)
        self._files.sync_directory(self.path.parent)
        self.close_handle()
        self._file_identity = self._checked = None
        self.written_from = size_bytes

    def seal(self, schema: pa.Schema) -> None:
        """Write the index files and the footer. After a failure, the segment is active as before, and the next append
        or `seal` cuts off an incomplete footer. Raises StorageError, StorageFullError."""
        tail, indexes = self._active()
        positions = np.array(tail.positions, np.int64)
        schema = with_offset_column(schema) if self.compacted else schema
        footer = encode_seal(schema, self.info, positions, np.array(tail.metadata_lengths, np.int32), self.end.position)
        indexes.save(self._files, self.path)
        shared = self._acquire_to_write()
        try:
            self._has_excess = True
            try:
                shared.file.write(self.end.position, footer)
            except SparklogError:
                self._cut_excess(shared)
                raise
            self._has_excess = False
        finally:
            shared.release()
        self.is_sealed = True
        self._tail = None  # readers use the indexes from now on

    def unseal(self) -> None:
        """Cut the footer off, so that batches can be appended again. A damaged footer is no obstacle. Raises
        LogCorruptError if the batch headers are needed instead and are damaged, StorageError."""
        indexes = self.indexes
        shared = self._acquire_to_write()
        try:
            blocks = decode_seal(shared.file.read, shared.file.size())
            if blocks is None or blocks.data_end != self.end.position:
                blocks = self._blocks_from_headers(shared)  # the footer is damaged, but it goes anyway
            if self.first_timestamp_ms is None and len(blocks.positions):
                first = header_at(shared.file.read, self.data_position, self.end.position)
                self.first_timestamp_ms = roll_time_ms(first)
            remove_indexes(self._files, self.path)  # the files would be incomplete after appends; `seal` writes them
            shared.file.truncate(self.end.position)
        finally:
            shared.release()
        indexes.resume(self.data_position, self.end.position)
        tail = Tail(blocks.positions.tolist(), blocks.metadata_lengths.tolist())
        with self._lock:
            self.begin(tail, indexes)

    def _blocks_from_headers(self, shared: SharedFile) -> SealedBlocks:
        try:
            headers = list(walk_headers(shared.file.read, self.data_position, self.end.position))
        except CorruptBatchError as e:
            raise LogCorruptError(f"{self.path}: {e}") from e
        positions = np.array([position for position, _ in headers], np.int64)
        lengths = np.array([header.metadata_length_bytes for _, header in headers], np.int32)
        return SealedBlocks(positions, lengths, self.end.position)

    def _acquire_to_write(self) -> SharedFile:
        """Return the open file with one more user. If the last check is too old, this checks that the segment's path
        still leads to the file; an incomplete footer is cut off. Raises StorageError."""
        shared = self.acquire()
        try:
            if shared is not self._checked:
                identity = shared.file.identity()
                if self._file_identity is None:
                    self._file_identity = identity
                elif identity != self._file_identity:
                    self._in_place_s = 0.0
                self._checked = shared
            if self._files.monotonic_s() - self._in_place_s > LOOK_AGE_S_MAX:
                self.check_in_place()
            if self._has_excess:
                self._cut_excess(shared)
        except BaseException:
            shared.release()
            raise
        return shared

    def check_in_place(self) -> None:
        """Check that the segment's path still leads to the file that receives appends. Raises StorageError if the file
        was replaced, renamed or removed."""
        with self._lock:  # `move` renames the file before it changes the path
            if self._file_identity is not None:
                self._files.check_in_place(self.path, self._file_identity)
                self._in_place_s = self._files.monotonic_s()

    def _cut_excess(self, shared: SharedFile) -> None:
        """Cut off the bytes after the batches, which are an incomplete footer. Raises StorageError."""
        shared.file.truncate(self.end.position)
        self._has_excess = False

    def _active(self) -> tuple[Tail, SegmentIndexes]:
        if self._tail is None or self._indexes is None:
            raise LogCorruptError(f"{self.path} is sealed, it cannot be written to")
        return self._tail, self._indexes

    # --- its files ---

    def move(self, path: Path) -> None:
        """Rename the file and its index files. Readers that have the file open, or open it through this object, are not
        disturbed. Raises StorageError."""
        with self._lock:
            before = self.path
            self._files.rename(before, path)
            self.path = path
            for source, target in zip(index_paths(before), index_paths(path), strict=True):
                if source != target and self._files.exists(source):
                    self._files.rename(source, target)

    def hold_for_sync(self) -> list[SharedFile]:
        """Return the open files whose fsync makes everything written so far durable; the caller passes them to
        `sync_held`. For a sealed segment these include the index files: after a power cut, an index file from before an
        `unseal` would look complete. Raises StorageError."""
        held = [self.acquire()]
        try:
            with self._lock:
                for path in index_paths(self.path) if self.is_sealed else ():
                    if self._files.exists(path):
                        held.append(SharedFile(self._files.open(path)))
        except BaseException:
            for shared in held:
                shared.release()
            raise
        return held
