"""Fsync of one log while appends continue: the fsync of one thread serves all threads that wait for it."""

from __future__ import annotations

import threading

from sparklog.environment.files import sync_whole
from sparklog.errors import RequestTimedOutError, SparklogError, StorageError, StorageUnavailableError
from sparklog.log.segments.segment import LogSegment
from sparklog.log.segments.slices import sync_held
from sparklog.log.state.log_state import LogState


class LogFlusher:
    """Flusher of one log. It takes the list of dirty segments under the log's write lock, fsyncs them without the lock,
    then moves the offsets.

    After a failed fsync the content of the disk is unknown: the log accepts no more appends, and the fsync is never
    repeated. A file that could not be opened was not fsynced: it stays dirty, and the next flush tries again. `lock` is
    held during a flush; it must be acquired before the write lock, never while the write lock is held.
    """

    def __init__(self, state: LogState) -> None:
        self.lock = threading.Lock()
        self._state = state
        self._looked_to = state.offsets.written

    @property
    def has_work(self) -> bool:
        """False if neither `flush_if_due` nor `recover_writes` has anything to do, as in an idle log."""
        writer = self._state.writer
        dirty = writer.dirty
        waits = dirty.segments or dirty.since_ms is not None or writer.blocked is not None
        return bool(waits) or self._state.producer_files.is_dirty

    @property
    def is_ahead(self) -> bool:
        """True if data were appended since the last `look`."""
        return self._state.offsets.written != self._looked_to

    def flush_if_due(self) -> bool:
        """Flush everything if `flush.ms` has passed. Otherwise flush the rolled segments and the files about producers,
        if any are not fsynced. Returns True if it flushed. Raises StorageError."""
        dirty = self._state.writer.dirty
        due = self._state.config.flush.due(dirty.since_ms, self._state.clock.now_ms())
        if self._state.health.failure is not None or not (due or dirty.rolled or self._state.producer_files.is_dirty):
            return False
        self.flush(active=due)
        return True

    def make_durable(self, next_offset: int) -> None:
        """Fsync if flush.mode or flush.messages demand it, unless everything below `next_offset` is fsynced by now: the
        first thread syncs for all. Call this after an append, before the acknowledgement. Raises StorageError, and
        RequestTimedOutError if the storage is unavailable for the moment."""
        if self._state.config.flush.due_after_append(next_offset - self._state.offsets.flushed):
            try:
                self.flush_to(next_offset)
            except StorageUnavailableError as e:
                raise RequestTimedOutError(
                    f"{self._state.owner.topic_partition}: written, but not flushed to disk yet: {e}"
                ) from e

    def flush_to(self, next_offset: int) -> None:
        """Fsync everything below `next_offset`, regardless of the settings. Raises StorageError."""
        with self.lock:
            if self._state.offsets.flushed < next_offset:
                self._flush(active=True, snapshots=False)  # no append waits for those

    def flush(self, *, active: bool = True) -> None:
        """Fsync all data that are not fsynced yet, and move the recovery point. With `active` False, only rolled
        segments are fsynced.

        Appends can continue meanwhile. Raises StorageUnavailableError if a file cannot be opened now. Raises
        StorageError if an fsync fails; the log then accepts no more appends.
        """
        with self.lock:
            self._flush(active=active, snapshots=True)

    def _flush(self, *, active: bool, snapshots: bool) -> None:
        with self._state.write_lock:
            self._state.health.check()
            point = self._state.offsets.written
            last = self._state.writer.segments.last
            if not active and last is not None and not last.is_sealed:
                point = last.base_offset
            since_ms = self._state.writer.dirty.since_ms
            segments, directory = self._state.writer.dirty.take(active=active)
            paths = self._state.producer_files.take_dirty() if snapshots else []
        try:
            for segment in segments:
                self._sync(segment)
            for path in paths:
                sync_whole(self._state.files, path)
            if directory or paths:
                self._state.files.sync_directory(self._state.directory)
        except StorageUnavailableError:
            with self._state.write_lock:
                self._state.writer.dirty.put_back(segments, since_ms, directory=directory)
                self._state.producer_files.put_back(paths)
            raise
        except SparklogError as e:
            raise self._state.health.fail(
                StorageError(
                    f"{self._state.directory}: the content of the disk is unknown after a failed fsync, so appends "
                    f"are refused ({e}); check the disk, then restart the broker"
                )
            ) from e
        with self._state.write_lock:
            point = max(point, self._state.offsets.log_start)
            self._state.offsets.flushed_to(point)
            self._state.offsets.recover_from(point)

    def _sync(self, segment: LogSegment) -> None:
        with self._state.write_lock:
            held = segment.hold_for_sync() if segment in self._state.writer.segments.all else []
        sync_held(held)

    def look(self) -> None:
        """Check that the files with the data appended since the last check are still in place. Raises StorageError; the
        log directory has then failed."""
        end = self._state.offsets.written
        if end == self._looked_to:
            return
        with self._state.write_lock:
            if not self._state.health.is_closed:
                for segment in self._state.segments.from_offset(min(self._looked_to, end)):
                    if isinstance(segment, LogSegment):
                        segment.check_in_place()
        self._looked_to = end

    def recover_writes(self) -> None:
        """Cut off the bytes of a failed append, if this was not possible at once. Raises StorageUnavailableError,
        StorageError."""
        if self._state.writer.blocked is not None and not self._state.health.is_closed:
            with self._state.write_lock:
                self._state.finish_take_back()
