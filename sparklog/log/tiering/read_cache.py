"""Pieces of remote segments on the local disk, which are sent as file ranges like local segments.

Each copy that is read has one sparse file. The requested pieces are fetched, checked, and written into it. Above the
limit, the least recently used files are removed; a reader that has a removed file open can continue. After a restart,
the cache does not know the files in the directory, and removes them.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from sparklog.environment.files import File, FileIdentity, FileSystem, RealFiles
from sparklog.errors import CorruptBatchError, SparklogError
from sparklog.format.checksum import crc32c
from sparklog.log.segments.slices import SharedFile
from sparklog.log.tiering.layout import CHECKSUMS_SUFFIX, PIECE_BYTES, decode_checksums, object_name
from sparklog.log.tiering.object_store import ObjectStore
from sparklog.log.tiering.state import RemoteSegmentMetadata

logger = logging.getLogger(__name__)

FILES_MAX = 256
"""Largest number of cached files; each has a descriptor."""
_RUN_BYTES_MAX = 16 * 1024 * 1024
"""Largest size of adjacent pieces that are fetched with one request."""


class CachedFile:
    """The `.arrow` object of one copy, as a read-only `File`. Reads first fetch the missing pieces."""

    def __init__(
        self, cache: ReadCache, store: ObjectStore, segment: RemoteSegmentMetadata, file: File, path: Path
    ) -> None:
        self._cache = cache
        self._store = store
        self._segment = segment
        self._file = file
        self.path = path
        self._name = object_name(segment.base_offset, ".arrow")
        self._checksums: np.ndarray | None = None
        self._fetched_pieces = np.zeros(-(-segment.size_bytes // PIECE_BYTES), bool)
        self._lock = threading.Lock()

    def ensure(self, start: int, end: int) -> None:
        """Fetch the missing pieces of the bytes [start, end) into the local file. Raises RemoteStorageError,
        CorruptBatchError, StorageFullError, StorageError."""
        end = min(end, self._segment.size_bytes)
        if start >= end:
            return
        first, behind = start // PIECE_BYTES, -(-end // PIECE_BYTES)
        if self._fetched_pieces[first:behind].all():
            return
        with self._lock:
            for a, b in self._missing_runs(first, behind):
                self._fetch(a, b)

    def _missing_runs(self, first: int, behind: int) -> Iterator[tuple[int, int]]:
        run_max = _RUN_BYTES_MAX // PIECE_BYTES
        missing = (first + np.flatnonzero(~self._fetched_pieces[first:behind])).tolist()
        while missing:
            count = 1
            while count < min(len(missing), run_max) and missing[count] == missing[0] + count:
                count += 1
            yield missing[0], missing[0] + count
            missing = missing[count:]

    def _fetch(self, first: int, behind: int) -> None:
        key = f"{self._segment.prefix}/{self._name}"
        if self._checksums is None:
            name = object_name(self._segment.base_offset, CHECKSUMS_SUFFIX)
            listed = self._store.read(f"{self._segment.prefix}/{name}", self._segment.objects[name])
            self._checksums = decode_checksums(listed, self._segment.size_bytes)
        position, end = first * PIECE_BYTES, min(behind * PIECE_BYTES, self._segment.size_bytes)
        data = memoryview(self._store.read_ranges(key, [(position, end)])[0])
        for i in range(first, behind):
            at = (i - first) * PIECE_BYTES
            checksum = crc32c(data[at : at + PIECE_BYTES])
            if checksum != int(self._checksums[i]):
                raise CorruptBatchError(
                    f"{self._store.url}/{key} is damaged: the bytes from {i * PIECE_BYTES} on have checksum "
                    f"{checksum:08x}, but were written with {int(self._checksums[i]):08x}"
                )
        self._cache.make_room(self, len(data))
        self._file.write(position, data)
        self._fetched_pieces[first:behind] = True

    # --- as a file ---

    def read(self, position: int, size_bytes: int) -> bytes:
        self.ensure(position, position + size_bytes)
        return self._file.read(position, size_bytes)

    def size(self) -> int:
        return self._segment.size_bytes

    def is_cached(self, position: int, size_bytes: int) -> bool:
        return self._file.is_cached(position, size_bytes)

    def fileno(self) -> int:
        return self._file.fileno()

    def identity(self) -> FileIdentity:
        return self._file.identity()

    def write(self, position: int, data: bytes | bytearray | memoryview) -> None:
        raise NotImplementedError("a remote segment is read-only")

    def truncate(self, size_bytes: int) -> None:
        raise NotImplementedError("a remote segment is read-only")

    def sync(self) -> None:
        raise NotImplementedError("a remote segment is read-only")

    def close(self) -> None:
        self._file.close()


class _Entry:
    def __init__(self, shared: SharedFile, cached: CachedFile) -> None:
        self.shared = shared
        self.cached = cached
        self.held_bytes = 0


class ReadCache:
    """Cache of copies in `directory`, with at most `limit_bytes`; a single larger request can exceed the limit. Several
    threads can use it."""

    def __init__(self, directory: Path, limit_bytes: int, *, files: FileSystem | None = None) -> None:
        self.directory = directory
        self.limit_bytes = limit_bytes
        self._files = files or RealFiles()
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._file_count = 0

    @property
    def held_bytes(self) -> int:
        """Bytes of fetched pieces in all files of the cache."""
        return sum(e.held_bytes for e in list(self._entries.values()))

    def acquire(self, store: ObjectStore, segment: RemoteSegmentMetadata) -> SharedFile:
        """Return the copy's file with one more user, which must release it. Raises StorageError, StorageFullError."""
        with self._lock:
            entry = self._entries.get(segment.id)
            if entry is None or not entry.shared.reacquire():
                entry = self._open(store, segment)
                self._entries[segment.id] = entry
                entry.shared.acquire()
            self._entries.move_to_end(segment.id)
            while len(self._entries) > FILES_MAX:
                self._drop(next(iter(self._entries)))
            return entry.shared

    def _open(self, store: ObjectStore, segment: RemoteSegmentMetadata) -> _Entry:
        self._files.make_directory(self.directory)
        self._file_count += 1
        path = self.directory / f"{segment.base_offset:020d}-{segment.id}.{self._file_count}.arrow"
        cached = CachedFile(self, store, segment, self._files.open(path, create=True), path)
        return _Entry(SharedFile(cached), cached)

    def clear(self) -> None:
        """Remove all files in the directory, which an earlier process left; call this before the first use. Raises
        StorageError."""
        for name in self._files.list_directory(self.directory) if self._files.exists(self.directory) else ():
            self._files.remove(self.directory / name)

    def make_room(self, cached: CachedFile, size_bytes: int) -> None:
        """Count `size_bytes`, which are about to be written to `cached`, and remove other files if the limit is
        exceeded. If `cached` alone exceeds the limit, it is removed too, and the next use begins with an empty file."""
        with self._lock:
            key = cached._segment.id
            own = self._entries.get(key)
            if own is None or own.cached is not cached:
                return  # it was removed already; readers that have it open keep it
            own.held_bytes += size_bytes
            self._entries.move_to_end(key)
            held = self.held_bytes
            while held > self.limit_bytes and len(self._entries) > 1:
                held -= self._drop(next(iter(self._entries)))
            if held > self.limit_bytes and own.held_bytes > size_bytes:
                self._drop(key)

    def forget(self, copy_id: str) -> None:
        """Remove the file of a copy that the log no longer reads."""
        with self._lock:
            if copy_id in self._entries:
                self._drop(copy_id)

    def _drop(self, key: str) -> int:
        """Remove a file, and return its fetched bytes. Readers that have the file open can continue."""
        entry = self._entries.pop(key)
        entry.shared.release()
        try:
            self._files.remove(entry.cached.path)
        except SparklogError as e:
            logger.warning("%s stays until the next start: %s", entry.cached.path, e)
        return entry.held_bytes

    def close(self) -> None:
        """Remove all files."""
        with self._lock:
            for key in list(self._entries):
                self._drop(key)
