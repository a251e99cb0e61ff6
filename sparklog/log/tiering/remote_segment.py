"""A segment whose file is in the object store, with the same interface for reads as a local segment."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from sparklog.environment.files import RealFiles
from sparklog.errors import CorruptBatchError, RemoteStorageError
from sparklog.format import offset_index, time_index
from sparklog.format.offset_index import decode_offset_index
from sparklog.format.segment import SegmentInfo, decode_seal
from sparklog.format.time_index import decode_time_index
from sparklog.log.model.log_config import LogOwner
from sparklog.log.segments.indexes import SegmentIndexes
from sparklog.log.segments.slices import SharedFile
from sparklog.log.segments.view import SegmentEnd, SegmentView
from sparklog.log.tiering.layout import object_name
from sparklog.log.tiering.object_store import ObjectStore
from sparklog.log.tiering.read_cache import CachedFile, ReadCache
from sparklog.log.tiering.state import RemoteSegmentMetadata


class RemoteAccess(Struct, frozen=True):
    """A broker's access to the object store and to the cache of its data. `store`: None if `remote.log.storage.url` is
    empty; then nothing is copied, and reading an earlier copy raises RemoteStorageError."""

    store: ObjectStore | None = None
    cache: ReadCache | None = None

    def acquire(self, segment: RemoteSegmentMetadata) -> SharedFile:
        """Return the segment's file in the cache, with one more user. Raises RemoteStorageError, StorageError,
        StorageFullError."""
        if self.cache is None:
            self.required_store(segment)
            raise RemoteStorageError("no directory for data read from the object store")
        return self.cache.acquire(self.required_store(segment), segment)

    def required_store(self, segment: RemoteSegmentMetadata) -> ObjectStore:
        """Return the object store. Raises RemoteStorageError, which names `segment`, if no store is configured."""
        if self.store is None:
            raise RemoteStorageError(
                f"offsets {segment.base_offset} to {segment.next_offset - 1} are in an object store; set "
                "remote.log.storage.url to the URL with which they were copied"
            )
        return self.store

    def forget(self, segment: RemoteSegmentMetadata) -> None:
        """Remove the cached data of a segment that the log no longer reads."""
        if self.cache is not None:
            self.cache.forget(segment.id)


class RemoteLogSegment(SegmentView):
    """A sealed segment in the object store, which cannot be written or renamed. A read can wait for the object store,
    so an event loop must not read. The metadata (offsets, sizes, largest timestamp) are available without waiting."""

    is_remote = True

    def __init__(self, access: RemoteAccess, owner: LogOwner, segment: RemoteSegmentMetadata) -> None:
        info = SegmentInfo(
            topic=owner.topic, topic_id=owner.topic_id, partition=owner.partition,
            base_offset=segment.base_offset, schema_id=segment.schema_id,
        )  # fmt: skip
        url = "tier:" if access.store is None else access.store.url
        path = Path(url, segment.prefix, object_name(segment.base_offset, ".arrow"))  # for messages
        super().__init__(
            RealFiles(), path, info, segment.data_position, SegmentEnd(segment.next_offset, segment.data_end)
        )
        self.metadata = segment
        self.is_sealed = True
        self.append_time_ms = segment.append_time_ms
        self._access = access

    @property
    def largest_timestamp(self) -> tuple[int, int] | None:
        return self.metadata.largest_timestamp_ms, self.metadata.largest_timestamp_offset

    def acquire(self) -> SharedFile:
        return self._access.acquire(self.metadata)

    def acquire_range(self, start: int, end: int) -> SharedFile:
        shared = self.acquire()
        try:
            assert isinstance(shared.file, CachedFile)
            shared.file.ensure(start, end)
        except BaseException:
            shared.release()
            raise
        return shared

    def path_of(self, start: int, end: int) -> Path:
        shared = self.acquire_range(start, end)
        try:
            assert isinstance(shared.file, CachedFile)
            return shared.file.path
        finally:
            shared.release()

    def close_handle(self) -> None:
        """Do nothing: the cache owns the file."""

    @property
    def indexes(self) -> SegmentIndexes:
        """The indexes. The first use reads and checks them from the object store. Raises RemoteStorageError,
        CorruptBatchError, StorageError, StorageFullError."""
        indexes = self._indexes
        return indexes if indexes is not None else self._read_indexes()

    def _read_indexes(self) -> SegmentIndexes:
        """Load the indexes from their objects, and check them with the segment's footer."""
        store = self._access.required_store(self.metadata)
        shared = self.acquire()
        try:
            blocks = decode_seal(shared.file.read, shared.file.size())
        finally:
            shared.release()
        objects = [self._object(store, suffix) for suffix in (offset_index.SUFFIX, time_index.SUFFIX)]
        end = self.next_offset - self.base_offset
        positions = blocks.positions if blocks is not None else ()
        base = self.base_offset
        offsets = decode_offset_index(objects[0], base_offset=base, batch_positions=positions, relative_offset_end=end)  # type: ignore[arg-type]
        times = decode_time_index(objects[1], base_offset=base, relative_offset_end=end)
        if blocks is None or offsets is None or times is None:
            raise CorruptBatchError(f"{self.path}: the copy has no valid footer or indexes")
        indexes = SegmentIndexes(self.base_offset)
        indexes.offsets, indexes.times = offsets, times
        indexes.largest_timestamp_ms, indexes.largest_timestamp_offset = (
            self.metadata.largest_timestamp_ms, self.metadata.largest_timestamp_offset,
        )  # fmt: skip
        self._indexes = indexes
        return indexes

    def _object(self, store: ObjectStore, suffix: str) -> bytes:
        name = object_name(self.base_offset, suffix)
        return store.read(f"{self.metadata.prefix}/{name}", self.metadata.objects[name])

    def drop_indexes(self) -> bool:
        self._indexes = None
        return False  # a second look-up would load the same indexes

    def bytes_before(self, offset: int) -> int:
        """Return the bytes of the batches below `offset`. If the indexes are not loaded, this is an estimate, because
        this method must not wait for the store."""
        if offset >= self.next_offset:
            return self.data_bytes
        if self._indexes is not None:
            return super().bytes_before(offset)
        return self.data_bytes * max(0, offset - self.base_offset) // max(1, self.next_offset - self.base_offset)

    def delete(self) -> None:
        """Remove the segment's data from the cache only; the next round of tiering (`tier_run.py`) deletes the
        objects."""
        self._access.forget(self.metadata)
