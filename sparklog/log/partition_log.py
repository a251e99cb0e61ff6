"""One partition's log: an append-only sequence of batches in segment files.

One thread appends at a time; others may read meanwhile. Reads end at the high watermark, on a batch boundary, and give
file ranges, never decoded records. Reading is in `log_view.py`, appending in `appending.py`, opening in `opening.py`;
here is what happens to a log besides: flushing, closing, truncation, retention, and segments that give way to others.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from sparklog.environment.clock import Clock
from sparklog.environment.files import FileSystem
from sparklog.errors import (
    BrokerShuttingDownError,
    RequestTimedOutError,
    SparklogError,
    StorageError,
    StorageFullError,
    StorageUnavailableError,
    UnknownTopicOrPartitionError,
)
from sparklog.format.batch import ATTRIBUTE_CONTROL
from sparklog.log.appending import AppendableLog
from sparklog.log.batch_times import LOWEST_TIMESTAMP_MS
from sparklog.log.compaction.key_hash import HashSeeds
from sparklog.log.compaction.policy import CLEANER_POINT_FILE
from sparklog.log.compaction.rewrite import RunContext
from sparklog.log.compaction.swap import swap_segments
from sparklog.log.flusher import LogFlusher
from sparklog.log.model import LogConfig, LogOwner
from sparklog.log.opening import LogParts, open_parts
from sparklog.log.partition_producers import encode_states
from sparklog.log.producers import ALL_SAFEGUARDS, Safeguards
from sparklog.log.retention import Expired, deletion_offset, expired
from sparklog.log.segment import LogSegment
from sparklog.log.segment_list import SegmentList
from sparklog.log.slices import HandleCache
from sparklog.log.stored_schema import SchemaOf
from sparklog.log.tiering.partition_tier import NO_ACCESS
from sparklog.log.tiering.remote_segment import RemoteAccess, RemoteLogSegment
from sparklog.log.truncation import cut_segments, end_of_cut, end_of_remote_cut, remove_segments


class PartitionLog(AppendableLog):
    """See the module. Made by `open`."""

    def __init__(self, parts: LogParts) -> None:
        super().__init__(parts)
        self._handles = parts.handles
        self._truncation = parts.truncation
        self._dropped = parts.writer.dropped
        self._swap_lock = threading.Lock()
        """Held while files of segments get other names or go; taken before the flusher's lock, which comes before the
        write lock."""
        self._looked_to = self.log_end_offset
        self._flusher = LogFlusher(parts, self._write_lock, self._producer_files, self._health)

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
        expiry_clock: Clock | None = None,
        clean: bool,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        recovery_point: int = 0,
        handles: HandleCache | None = None,
        remote: RemoteAccess = NO_ACCESS,
        newest_schema_id: int = 1,
        made: bool = False,
        same_boot: bool = False,
        safeguards: Safeguards = ALL_SAFEGUARDS,
    ) -> PartitionLog:
        """Opens the log in `directory`, which is made if it does not exist.

        `schema_of` gives the topic's schema for an id (KeyError or UnknownSchemaError for an unknown one). `clean`: the
        log was closed with its data sealed; otherwise the last segment is scanned and a torn tail cut. The offsets are
        those of the last checkpoint (0 when there is none). `expiry_clock`: by which records grow old. `remote`: how to get at what is in the object store.
        `newest_schema_id`: of a marker in a log that has no segment. `made`: the directory was there before, as a
        partition's. `same_boot`: the machine has not stopped since the log was last written to, so that nothing of it can be
        lost but by somebody's hand. `safeguards`: for tests.
        Raises LogCorruptError, StorageError.
        """
        parts = open_parts(
            directory,
            owner,
            config,
            schema_of,
            files=files,
            clock=clock,
            expiry_clock=expiry_clock or clock,
            clean=clean,
            points=(log_start_offset, high_watermark, recovery_point),
            handles=HandleCache() if handles is None else handles,
            remote=remote,
            newest_schema_id=newest_schema_id,
            made=made,
            same_boot=same_boot,
            safeguards=safeguards,
        )
        return cls(parts)

    # --- the disk ---

    def flush(self, *, active: bool = True) -> None:
        """Fsyncs what is not on the disk yet, and moves the recovery point; with `active` False only rolled segments.

        May run beside appends. Raises StorageError; the log takes no more appends then.
        """
        self._flusher.flush(active=active)

    def make_durable(self, next_offset: int) -> None:
        """Fsyncs if flush.mode or flush.messages ask for it, unless everything below `next_offset` is on the disk by
        now: who comes first syncs for all. To be called after an append, before it is acknowledged."""
        if self.config.flush.due_after_append(next_offset - self.flushed_offset):
            try:
                self._flusher.flush_to(next_offset)
            except StorageUnavailableError as e:
                raise RequestTimedOutError(
                    f"{self.owner.topic_partition}: written, but not on the disk yet: {e}"
                ) from e

    def look(self) -> None:
        """Checks that what has been appended since the last look went into files that are still there. Raises StorageError;
        the log directory has failed then."""
        end = self.log_end_offset
        if end == self._looked_to:
            return
        with self._write_lock:
            if not self._health.is_closed:
                for segment in self._segments.from_offset(min(self._looked_to, end)):
                    segment.check_in_place()
        self._looked_to = end

    def recover_writes(self) -> None:
        """Takes a failed append back that could not be taken back at once. Raises StorageUnavailableError, StorageError."""
        if self._writer.blocked is not None and not self._health.is_closed:
            with self._write_lock:
                self._finish_take_back()

    def flush_if_due(self) -> bool:
        """Fsyncs if flush.ms is over, or a rolled segment waits for it; returns whether it did. Raises StorageError."""
        return self._flusher.flush_if_due(self.config.flush, self._clock.now_ms())

    def close(self, *, seal: bool = True) -> None:
        """Closes the log; with `seal` its last segment is sealed and everything fsynced before. Slices stay readable.

        Raises StorageFullError, StorageError; the log is closed then too, but not cleanly.
        """
        if self._health.is_closed:
            return
        try:
            if seal:
                with self._write_lock:
                    self._health.check()
                    last = self._segments.last
                    if last is not None and not last.is_sealed:
                        self._writer.seal(last)
                    self._save_producers()
                self.flush()
                self._dropped.remove_all()
        finally:
            with self._write_lock:
                self._health.is_closed = True
                self.tier.close()
                self._health.fail(BrokerShuttingDownError(f"the log of {self.owner.topic_partition} is closed"))
                for segment in self._segments.all:
                    segment.close_handle()

    def mark_deleted(self) -> None:
        """Closes the log for good: its topic is deleted."""
        self.close(seal=False)
        self._health.fail(UnknownTopicOrPartitionError(f"{self.owner.topic_partition} is deleted"))

    def take_offline(self, error: SparklogError) -> None:
        """Every use raises `error` from now on; no file is written any more. Waits for no append that hangs."""
        self._health.fail(error)
        self._health.is_closed = True
        self.tier.close()
        for segment in self._segments.all:
            segment.close_handle()

    # --- truncation ---

    def truncate_to(self, offset: int) -> int:
        """Cuts the log back so that it ends at `offset`, or where the batch begins that holds it; returns the log end.

        What is cut does not come back after a crash. Epochs that begin at or above the new end are forgotten, also when
        there is nothing to cut. Below the log start the log is emptied and goes on at `offset`. Raises StorageError,
        StorageFullError; the log takes no more appends then.
        """
        with self._swap_lock, self._flusher.lock, self._write_lock:
            self._health.check()
            self._finish_take_back()
            try:
                if offset < self.log_end_offset:
                    self._truncate(offset)
                    self._load_producers()
                self._epochs.cut(self.log_end_offset)
            except SparklogError as e:
                error = StorageError(f"{self.directory}: truncation to {offset} failed ({e}); restart")
                raise self._health.fail(error) from e
            return self.log_end_offset

    def _truncate(self, offset: int) -> None:
        segments = self._segments.all
        schema_id = segments[-1].info.schema_id if segments else None
        offset, is_emptied = end_of_remote_cut(segments, offset, self.log_start_offset)
        is_emptied = is_emptied or offset < self.log_start_offset or not segments
        end = offset if is_emptied else end_of_cut(segments, offset)
        self._files.remove(self.directory / CLEANER_POINT_FILE)
        self._truncation.write(end)  # until the next checkpoint the one on the disk promises too much
        self._producer_files.cut(end)
        if is_emptied:
            self._writer.segments = SegmentList.of([])
            self._offsets.restart_at(offset)
            self._epochs.restart_at(offset)
            self._producer_files.clear()
            kept: list[LogSegment] = []
            remove_segments(segments, self._files)
        else:
            kept = cut_segments(segments, end, self._files, self.config.index_interval_bytes)
            self._writer.segments = SegmentList.of(kept)
            self._offsets.truncate(end)
        self.tier.cut(0 if is_emptied else end)
        self._dirty.discard([s for s in segments if s not in kept])
        self._writer.roll_next = False
        if schema_id is not None and not kept:
            self._writer.begin(self.log_end_offset, schema_id)  # its name keeps the offset

    @property
    def truncation_count(self) -> int:
        """How often the log has been cut since it was opened."""
        return self._truncation.count

    def unless_cut(self, count: int, job: Callable[[], None]) -> bool:
        """Does `job` if the log has not been cut since `truncation_count` was `count`; whether it did."""
        with self._swap_lock:
            if self.truncation_count == count:
                job()
            return self.truncation_count == count

    def forget_truncation(self, count: int) -> None:
        """A checkpoint made after `count` truncations is on the disk. Raises StorageError."""
        self._truncation.forget(count)

    # --- retention ---

    def delete_records(self, before_offset: int) -> int:
        """Raises the log start to `before_offset`, at most to the high watermark (-1: there); returns the log start.

        What lies below cannot be read any more; `retain` frees its space. Raises OffsetOutOfRangeError,
        InvalidRequestError (the topic is only compacted).
        """
        with self._write_lock:
            self._health.check()
            offset = deletion_offset(
                before_offset,
                cleanup_policy=self.config.cleanup_policy,
                log_start_offset=self.log_start_offset,
                high_watermark=self.high_watermark,
                name=self.owner.topic_partition,
            )
            self._raise_log_start(offset)
            return self.log_start_offset

    def _raise_log_start(self, offset: int) -> None:
        self._offsets.raise_log_start(offset)
        self._epochs.truncate_from_start(self.log_start_offset)
        self._producers.aborted.drop_below(self.log_start_offset)

    def retain(self) -> Expired:
        """Raises the log start above the segments that need not be kept; `drop_below_log_start` follows when that has
        been written down. When none would stay, an empty one is begun, whose name keeps the offset.

        Raises StorageError, LogCorruptError.
        """
        found = self._expired(self._segments)  # may read index files: not while appends wait
        if not found.count:
            return found
        with self._write_lock:
            self._health.check()
            view = self._segments
            found = self._expired(view)
            if found.count and found.count == len(view.all):
                try:
                    self._writer.begin(self.log_end_offset, view.all[-1].info.schema_id)
                except StorageFullError:
                    found = found.without_last()
            if found.count:
                self._raise_log_start(view.all[found.count - 1].next_offset)
            return found

    def held_back(self) -> tuple[int, int]:
        """How many segments, and bytes, would be deleted but for the clock by which records grow old, which has not followed
        a jump yet. Raises StorageError, LogCorruptError."""
        segments = self._segments
        now, later = self._expired(segments).count, self._expired(segments, self._clock.now_ms()).count
        return later - now, sum(s.data_bytes for s in segments.all[now:later])

    def _expired(self, view: SegmentList, now_ms: int | None = None) -> Expired:
        return expired(
            view.all,
            self.config.retention,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            now_ms=self._expiry_clock.now_ms() if now_ms is None else now_ms,
            largest_timestamp_of=_age_timestamp_ms,
        )

    def drop_below_log_start(self) -> int:
        """Takes the segments wholly below the log start out of the log; returns how many. The last one stays. Their
        files stay for `file.delete.delay.ms`."""
        with self._write_lock:
            if self._health.is_closed:
                return 0
            segments = self._segments.all
            count = sum(s.next_offset <= self.log_start_offset for s in segments[:-1])
            if count:
                if self._producer_files.newest_snapshot < self.log_start_offset:
                    self._save_producers()  # what is deleted cannot be replayed
                self._writer.drop_oldest(count, self._delete_due_ms())
                self._producer_files.drop_below(self.log_start_offset)
            return count

    def remove_dropped(self) -> int:
        """Unlinks the files of dropped segments whose delay is over; returns how many segments. Raises StorageError."""
        with self._swap_lock, self._write_lock:
            return 0 if self._health.is_closed else self._dropped.remove_due(self._clock.now_ms())

    # --- compaction and tiering ---

    def compaction_context(self, throttle: Callable[[int], None]) -> RunContext:
        """What a compaction run over this log works with."""
        return RunContext(
            self.directory,
            self.owner,
            self._schema_of,
            self._files,
            self._handles,
            HashSeeds.draw(),
            self._expiry_clock.now_ms(),
            self.config.compaction.delete_retention_ms,
            self.config.segment_bytes,
            self.config.index_interval_bytes,
            self.config.inflated_bytes_max,
            throttle,
        )

    def replace_segments(self, old: Sequence[LogSegment], new: Sequence[LogSegment]) -> bool:
        """Puts the compacted segments `new` in the place of `old`, of which they are made. False, and `new` is removed,
        when the log does not have all of those any more. Raises StorageError, StorageFullError."""

        def replace() -> bool:
            with self._write_lock:
                return self._writer.replace(list(old), new, self._delete_due_ms())

        with self._swap_lock:
            self._health.check()
            replaced = swap_segments(self._files, self.directory, old, new, replace=replace, health=self._health)
            if replaced:
                self._forget_markers(new)
            return replaced

    def _forget_markers(self, new: Sequence[LogSegment]) -> None:
        """Aborted transactions whose markers are gone from the compacted segments `new` need not be known any more: their
        data went before."""
        start, end = new[0].base_offset, new[-1].next_offset
        if next(self._producers.aborted.entries(start, end), None) is None:
            return
        kept = {h.base_offset for s in new for _, h in s.headers_from(None) if h.attributes & ATTRIBUTE_CONTROL}
        with self._write_lock:
            self._producers.aborted.retain(start, end, kept)
            self._producer_files.forget_aborted(start, end)
            self._save_producers()

    def release_local(self, old: Sequence[LogSegment], new: Sequence[RemoteLogSegment]) -> bool:
        """The oldest local segments `old` give way to their copies `new`; their files go after `file.delete.delay.ms`.
        False when the log does not have all of those any more. Raises StorageError, StorageFullError."""
        then = self.tier.producers_behind(old, self.config.producers_max)
        with self._swap_lock, self._write_lock:
            self._health.check()
            local = self.local_segments
            if local[: len(old)] != list(old) or len(local) == len(old):
                return False
            # a crash from here on leaves any of the files
            self.tier.release_below(old[-1].next_offset, encode_states(then.states.by_last_use()))
            return self._writer.replace(list(old), new, self._delete_due_ms())

    def _delete_due_ms(self) -> int:
        """When the files of what leaves the log now may go."""
        return self._clock.now_ms() + self.config.file_delete_delay_ms


def _age_timestamp_ms(segment: LogSegment) -> int | None:
    """The timestamp that `retention.ms` counts from: without records (markers only) that of the last append."""
    largest = segment.largest_timestamp
    if largest is not None and largest[0] == LOWEST_TIMESTAMP_MS:
        return segment.append_time_ms or None
    return None if largest is None else largest[0]
