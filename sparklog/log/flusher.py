"""Fsyncing one log beside its appends: who comes first syncs for all that wait."""

from __future__ import annotations

import threading

from sparklog.environment.files import sync_whole
from sparklog.errors import SparklogError, StorageError, StorageUnavailableError
from sparklog.log.flushing import FlushPolicy
from sparklog.log.log_health import LogHealth
from sparklog.log.opening import LogParts
from sparklog.log.producer_files import ProducerFiles
from sparklog.log.segment import LogSegment
from sparklog.log.slices import sync_held


class LogFlusher:
    """Takes what is dirty under the log's write lock, fsyncs without it, then moves the offsets.

    After a failed fsync nobody knows what is on the disk: the log takes no more appends, and the fsync is never tried
    again. A file that could not be opened has not been fsynced: it stays dirty, and the next flush tries again. `lock` is held during a flush; it is taken before the write lock, never inside it.
    """

    def __init__(
        self, parts: LogParts, write_lock: threading.Lock, producer_files: ProducerFiles, health: LogHealth
    ) -> None:
        self.lock = threading.Lock()
        self._files = parts.files
        self._directory = parts.directory
        self._writer = parts.writer
        self._offsets = parts.offsets
        self._write_lock = write_lock
        self._producer_files = producer_files
        self._health = health

    def flush_if_due(self, policy: FlushPolicy, now_ms: int) -> bool:
        """Flushes if `policy` says so by now, or a rolled segment waits for it; whether it did. Raises StorageError."""
        dirty = self._writer.dirty
        due = policy.due(dirty.since_ms, now_ms)
        if self._health.failure is not None or not (due or dirty.rolled or self._producer_files.is_dirty):
            return False
        self.flush(active=due)
        return True

    def flush_to(self, next_offset: int) -> None:
        """Flushes unless everything below `next_offset` is on the disk by the time it is this call's turn."""
        with self.lock:
            if self._offsets.flushed < next_offset:
                self._flush(active=True, snapshots=False)  # nobody waits for those

    def flush(self, *, active: bool) -> None:
        """Flushes all that is dirty; with `active` False only rolled segments."""
        with self.lock:
            self._flush(active=active, snapshots=True)

    def _flush(self, *, active: bool, snapshots: bool) -> None:
        with self._write_lock:
            self._health.check()
            point = self._offsets.written
            last = self._writer.segments.last
            if not active and last is not None and not last.is_sealed:
                point = last.base_offset
            since_ms = self._writer.dirty.since_ms
            segments, directory = self._writer.dirty.take(active=active)
            paths = self._producer_files.take_dirty() if snapshots else []
        try:
            for segment in segments:
                self._sync(segment)
            for path in paths:
                sync_whole(self._files, path)
            if directory or paths:
                self._files.sync_directory(self._directory)
        except StorageUnavailableError:
            with self._write_lock:
                self._writer.dirty.put_back(segments, since_ms, directory=directory)
                self._producer_files.put_back(paths)
            raise
        except SparklogError as e:
            raise self._health.fail(
                StorageError(
                    f"{self._directory}: nobody knows what is on the disk after a failed fsync, no more is appended "
                    f"({e}); check the disk, then restart the broker"
                )
            ) from e
        with self._write_lock:
            point = max(point, self._offsets.log_start)
            self._offsets.flushed_to(point)
            self._offsets.recover_from(point)

    def _sync(self, segment: LogSegment) -> None:
        with self._write_lock:
            held = segment.hold_for_sync() if segment in self._writer.segments.all else []
        sync_held(held)
