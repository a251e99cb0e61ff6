"""Shared state of the parts of one log: its segments, offsets, epochs and producers, its settings, and its locks."""

from __future__ import annotations

import threading
from pathlib import Path

from msgspec import Struct, field

from sparklog.environment.clock import Clock
from sparklog.environment.fault_points import reach
from sparklog.environment.files import FileSystem
from sparklog.log.model.inflated_memory import InflatedMemory
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.log.model.log_health import LogHealth
from sparklog.log.producers.files import LogBounds, ProducerFiles
from sparklog.log.producers.partition_producers import PartitionProducers
from sparklog.log.segments.segment import PlacedBatch
from sparklog.log.segments.segment_list import SegmentList
from sparklog.log.segments.slices import HandleCache
from sparklog.log.segments.stored_schema import SchemaOf
from sparklog.log.state.leader_epochs import LeaderEpochCache
from sparklog.log.state.offsets import LogOffsets
from sparklog.log.state.repaired_gaps import RepairedGaps
from sparklog.log.state.segment_writer import SegmentWriter
from sparklog.log.state.truncation_mark import TruncationMark
from sparklog.log.tiering.partition_tier import PartitionTier


class LogState(Struct, eq=False):
    """The shared state of one log. It is changed under `write_lock` and read without a lock, unless a method says
    otherwise. The caller of a method holds the write lock.

    `swap_lock` is held while segment files are renamed or removed. The order of acquisition is: `swap_lock`, the
    flusher's lock, `write_lock`.
    """

    directory: Path
    owner: LogOwner
    config: LogConfig
    schema_of: SchemaOf
    newest_schema_id: int
    files: FileSystem
    clock: Clock
    expiry_clock: Clock
    """Clock that measures the age of records."""
    handles: HandleCache
    tier: PartitionTier
    truncation_mark: TruncationMark
    gaps: RepairedGaps
    writer: SegmentWriter
    offsets: LogOffsets
    epochs: LeaderEpochCache
    producers: PartitionProducers
    producer_files: ProducerFiles
    append_time_ms: int
    """Append time of the last batch. Append times never go back within a log."""
    durable_log_start: int = 0
    """Log start of the last checkpoint: after a crash, the log can begin there again."""
    inflated: InflatedMemory = field(default_factory=InflatedMemory)
    """Budget for the memory of decompressed batches, which all logs of a broker share."""
    health: LogHealth = field(default_factory=LogHealth)
    write_lock: threading.Lock = field(default_factory=threading.Lock)
    swap_lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def inflated_bytes_max(self) -> int:
        """Largest accepted decompressed size of a batch: the smaller of the topic's and the broker's limit."""
        return self.inflated.batch_bytes_max(self.config.inflated_bytes_max)

    @property
    def segments(self) -> SegmentList:
        """The present segments."""
        return self.writer.segments

    @property
    def local_log_start(self) -> int:
        """The first offset that can be read without the object store; the log end if no segment is local."""
        local = self.segments.local
        return max(self.offsets.log_start, local[0].base_offset) if local else self.offsets.written

    def enter(self, view: memoryview, batches: list[PlacedBatch], now_ms: int) -> None:
        """Write stamped batches, whose offsets are reserved, and enter them into the producers' state before the log
        end moves. Raises StorageFullError, StorageError; the written bytes are then cut off, at once or before the next
        write."""
        try:
            self.writer.write(view, batches, self.config, self.offsets.written)
        except BaseException:
            if self.writer.failure is not None:
                self.health.fail(self.writer.failure)
            self.offsets.take_back()
            raise
        self.append_time_ms = max(self.append_time_ms, now_ms)
        self.producers.apply((b.header for b in batches), self.offsets.high_watermark)  # before records can be read
        self.offsets.wrote()
        if self.writer.dirty.since_ms is None:
            self.writer.dirty.since_ms = now_ms
        if self.writer.has_rolled:
            self.save_producers()
        elif self.writer.has_begun:
            self.writer.has_begun = False
            # This snapshot is the earliest evidence that the log has records: without it, the loss of the segment file
            # would stay unnoticed. This is not worth an fsync.
            self.producer_files.save(self.producers, self.segments.bases, self.offsets.written, fsync=False)
        reach("log.after-append")

    def load_producers(self) -> None:
        """Load the producers from the newest usable snapshot and the batches after it. Raises StorageError,
        StorageFullError."""
        local = self.segments.local
        self.producers = self.producer_files.load(
            local,
            LogBounds(self.offsets.log_start, self.offsets.written),
            self.offsets.high_watermark,
            self.producers.safeguards,
            self.tier.before_local(local),
            self.config.producers_max,
        )

    def save_producers(self) -> None:
        """Save a snapshot of the producers at the log end. A failure is only logged."""
        self.writer.has_rolled = False
        self.producer_files.save(self.producers, self.segments.bases, self.offsets.written)

    def raise_log_start(self, offset: int) -> None:
        """Raise the log start to `offset`: records below it cannot be read any more."""
        self.offsets.raise_log_start(offset)
        self.epochs.truncate_from_start(self.offsets.log_start)
        self.producers.aborted.drop_below(self.offsets.log_start)

    def finish_take_back(self) -> None:
        """Remove the remains of a failed append, which must happen before any other write. Raises
        StorageUnavailableError, which allows another attempt, or StorageError, which fails the log."""
        try:
            self.writer.finish_take_back()
        finally:
            if self.writer.failure is not None:
                self.health.fail(self.writer.failure)

    def delete_due_ms(self) -> int:
        """Return the time from which on the files of segments that the log drops now can be unlinked."""
        return self.clock.now_ms() + self.config.file_delete_delay_ms
