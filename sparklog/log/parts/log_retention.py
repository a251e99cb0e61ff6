"""Deletions from a log: records deleted on request, and segments that are too old or too many."""

from __future__ import annotations

from sparklog.errors import InvalidRequestError, StorageFullError
from sparklog.log.model.retention_policy import ExpiredSegments, deletion_offset, expired
from sparklog.log.segments.batch_times import LOWEST_TIMESTAMP_MS
from sparklog.log.segments.segment_list import SegmentList
from sparklog.log.segments.view import SegmentView
from sparklog.log.state.log_state import LogState


class LogRetention:
    """Retention of one log. Appends and reads can continue meanwhile. Only one thread at a time is allowed to use
    it."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self.leader_log_start = 0
        """The highest log start that this log has taken over from its leader since it was opened; 0: none."""
        self._lake_offset: int | None = None
        """Next offset of the partition in the topic's Delta table; None: no worker has reported it since the start."""

    def note_lake_offset(self, offset: int) -> None:
        """Note the next offset of the partition in the topic's Delta table, as a worker reports it."""
        self._lake_offset = offset

    @property
    def held_from(self) -> int | None:
        """First offset that must stay because the topic's Delta table lacks it; None: nothing is held."""
        if not self._state.config.lake_holds:
            return None
        return self._state.offsets.log_start if self._lake_offset is None else self._lake_offset

    def _below_held(self, offset: int) -> int:
        held = self.held_from
        return offset if held is None else min(offset, held)

    def delete_records(self, before_offset: int) -> int:
        """Raise the log start to `before_offset` (-1: to the high watermark), and return the log start.

        Records below it cannot be read any more; `retain` frees their space. Raises OffsetOutOfRangeError above the
        high watermark, InvalidRequestError if the topic is only compacted or its Delta table lacks the records.
        """
        with self._state.write_lock:
            self._state.health.check()
            offset = deletion_offset(
                before_offset,
                cleanup_policy=self._state.config.cleanup_policy,
                log_start_offset=self._state.offsets.log_start,
                high_watermark=self._state.offsets.high_watermark,
                name=self._state.owner.topic_partition,
            )
            held = self.held_from
            if held is not None and offset > max(held, self._state.offsets.log_start):
                raise InvalidRequestError(
                    f"records of {self._state.owner.topic_partition} before offset {offset} cannot be deleted: the "
                    f"topic's Delta table has the offsets below {held} only; wait for the lake worker, or set "
                    "lake.hold.retention=false"
                )
            self._state.raise_log_start(offset)
            return self._state.offsets.log_start

    def follow_log_start(self, offset: int) -> None:
        """Raise this log's start to the leader's log start `offset`, regardless of the topic's settings, but never
        above its high watermark. Raises StorageError."""
        with self._state.write_lock:
            self._state.health.check()
            self._state.raise_log_start(min(offset, self._state.offsets.high_watermark))
            self.leader_log_start = max(self.leader_log_start, self._state.offsets.log_start)

    def note_checkpoint(self, log_start_offset: int) -> None:
        """Note that a checkpoint with this log start is on the disk."""
        self._state.durable_log_start = log_start_offset

    def retain(self) -> ExpiredSegments:
        """Raise the log start above the segments that can be deleted, and return their number. The caller then writes
        the checkpoint and calls `drop_below_log_start`. If no segment would stay, an empty one is begun, whose name
        keeps the offset.

        Raises StorageError, LogCorruptError.
        """
        expired = self._expired_segments(self._state.segments)  # this can read index files, so without the lock
        if not expired.count:
            return expired
        with self._state.write_lock:
            self._state.health.check()
            view = self._state.segments
            expired = self._expired_segments(view)
            if expired.count and expired.count == len(view.all):
                try:
                    self._state.writer.begin(self._state.offsets.written, view.all[-1].info.schema_id)
                except StorageFullError:
                    expired = expired.without_last()
            if expired.count:
                self._state.raise_log_start(view.all[expired.count - 1].next_offset)
            return expired

    def held_back(self) -> tuple[int, int]:
        """Return the number and the bytes of the segments that are expired by the wall clock, but not yet by the expiry
        clock, which follows a jump slowly. Raises StorageError, LogCorruptError."""
        segments = self._state.segments
        now, later = (
            self._expired_segments(segments).count,
            self._expired_segments(segments, self._state.clock.now_ms()).count,
        )
        return later - now, sum(s.data_bytes for s in segments.all[now:later])

    def _expired_segments(self, view: SegmentList, now_ms: int | None = None) -> ExpiredSegments:
        return expired(
            view.all,
            self._state.config.retention,
            log_start_offset=self._state.offsets.log_start,
            high_watermark=self._below_held(self._state.offsets.high_watermark),
            now_ms=self._state.expiry_clock.now_ms() if now_ms is None else now_ms,
            largest_timestamp_of=_age_timestamp_ms,
        )

    def drop_below_log_start(self) -> int:
        """Remove the segments wholly below the log start from the log, and return their number. The log's last segment
        stays. The files of the removed segments stay for `file.delete.delay.ms`."""
        with self._state.write_lock:
            if self._state.health.is_closed:
                return 0
            segments = self._state.segments.all
            count = sum(s.next_offset <= self._state.offsets.log_start for s in segments[:-1])
            if count:
                if self._state.producer_files.newest_snapshot < self._state.offsets.log_start:
                    self._state.save_producers()  # deleted records cannot be replayed
                self._state.writer.drop_oldest(count, self._state.delete_due_ms())
                self._state.producer_files.drop_below(self._state.offsets.log_start)
            return count

    def remove_dropped(self) -> int:
        """Unlink the files of dropped segments whose delay has passed; return the number of segments. Raises
        StorageError."""
        with self._state.swap_lock, self._state.write_lock:
            return (
                0 if self._state.health.is_closed else self._state.writer.dropped.remove_due(self._state.clock.now_ms())
            )


def _age_timestamp_ms(segment: SegmentView) -> int | None:
    """Return the timestamp for `retention.ms`; for a segment without records (markers only) its last append time.
    None: unknown."""
    largest = segment.largest_timestamp
    if largest is not None and largest[0] == LOWEST_TIMESTAMP_MS:
        return segment.append_time_ms or None
    return None if largest is None else largest[0]
