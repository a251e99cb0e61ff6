"""One partition's log: an append-only sequence of batches in segment files.

One thread appends at a time; other threads can read meanwhile. Reads end at the high watermark, on a batch boundary,
and return file ranges, never decoded records. A log consists of parts with one job each, which share a `LogState`. This
module has the log's properties, the change of its settings, and its opening and closing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sparklog.environment.clock import Clock
from sparklog.environment.files import FileSystem
from sparklog.errors import BrokerShuttingDownError, SparklogError, UnknownTopicOrPartitionError
from sparklog.format.gaps import Gap
from sparklog.log.model.inflated_memory import InflatedMemory
from sparklog.log.model.log_config import LogConfig, LogOwner, ProducerInfo
from sparklog.log.parts.flusher import LogFlusher
from sparklog.log.parts.log_appender import LogAppender
from sparklog.log.parts.log_reader import LogReader
from sparklog.log.parts.log_retention import LogRetention
from sparklog.log.parts.log_truncation import LogTruncation
from sparklog.log.parts.opening import open_state
from sparklog.log.parts.replacement import SegmentReplacement
from sparklog.log.parts.replica_appender import ReplicaAppender
from sparklog.log.producers.states import ALL_SAFEGUARDS, Safeguards
from sparklog.log.segments.segment import LogSegment
from sparklog.log.segments.slices import HandleCache
from sparklog.log.segments.stored_schema import SchemaOf
from sparklog.log.segments.view import SegmentView
from sparklog.log.state.leader_epochs import LeaderEpochs
from sparklog.log.state.log_state import LogState
from sparklog.log.tiering.partition_tier import NO_ACCESS, PartitionTier
from sparklog.log.tiering.remote_segment import RemoteAccess


class PartitionLog:
    """The log of one partition; `open` creates the object."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self.reader = LogReader(state)
        self.appender = LogAppender(state)
        self.replica = ReplicaAppender(state)
        self.flusher = LogFlusher(state)
        self.truncation = LogTruncation(state, self.flusher)
        self.retention = LogRetention(state)
        self.replacement = SegmentReplacement(state)

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
        inflated: InflatedMemory | None = None,
        remote: RemoteAccess = NO_ACCESS,
        newest_schema_id: int = 1,
        was_created: bool = False,
        same_boot: bool = False,
        checkpointed: bool = False,
        safeguards: Safeguards = ALL_SAFEGUARDS,
    ) -> PartitionLog:
        """Open the log in `directory`, which is created if it does not exist.

        `schema_of` returns the topic's schema for an id (KeyError or UnknownSchemaError for an unknown id). `clean`:
        the log was closed with its data sealed; otherwise the end of the log is scanned and a torn tail cut off. The
        three offsets are those of the last checkpoint (0 without one). `inflated`: budget for the memory of
        decompressed batches, which the broker's logs share. `expiry_clock`: the clock that measures the records' ages;
        None: `clock`. `remote`: access to the object store. `newest_schema_id`: schema id of a marker if the log has no
        segment. `was_created`: the partition's directory was created before, so its loss is an error. `same_boot`: the
        machine has not restarted since the last write to the log, so no written data can be missing. `checkpointed`:
        the last checkpoint names the log. `safeguards`: for tests. Raises LogCorruptError, StorageError,
        StorageFullError.
        """
        state = open_state(
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
            inflated=InflatedMemory() if inflated is None else inflated,
            remote=remote,
            newest_schema_id=newest_schema_id,
            was_created=was_created,
            same_boot=same_boot,
            checkpointed=checkpointed,
            safeguards=safeguards,
        )
        return cls(state)

    # --- its settings and its end ---

    def reconfigure(self, config: LogConfig) -> None:
        """Replace the settings of later appends, rolls and deletions."""
        with self._state.write_lock:
            self._state.config = config.for_partition(self._state.owner)
            self._state.producers.states.limit = self._state.config.producers_max

    def use_schemas(self, schema_of: SchemaOf, newest_id: int | None = None) -> None:
        """Use `schema_of` for the topic's schemas from now on; it knows the earlier schemas and new ones. `newest_id`:
        id of the newest schema; None: unchanged."""
        self._state.schema_of = self._state.writer.schema_of = schema_of
        if newest_id is not None:
            self._state.newest_schema_id = newest_id

    def raise_high_watermark(self, offset: int) -> None:
        """Move the high watermark up to `offset`, at most to the log end; it never goes back."""
        self._state.offsets.raise_high_watermark(offset)
        self._state.producers.open.on_high_watermark(self._state.offsets.high_watermark)

    def close(self, *, seal: bool = True) -> None:
        """Close the log. With `seal`, its last segment is sealed and all data are fsynced before. Slices stay readable.

        Raises StorageFullError, StorageError; the log is then closed nevertheless, but not cleanly.
        """
        if self._state.health.is_closed:
            return
        try:
            if seal:
                with self._state.write_lock:
                    self._state.health.check()
                    last = self._state.segments.active
                    if last is not None and not last.is_sealed:
                        self._state.writer.seal(last)
                    self._state.save_producers()
                self.flusher.flush()
                self._state.writer.dropped.remove_all()
        finally:
            with self._state.write_lock:
                self._state.health.is_closed = True
                self._state.tier.close()
                self._state.health.fail(
                    BrokerShuttingDownError(f"the log of {self._state.owner.topic_partition} is closed")
                )
                for segment in self._state.segments.all:
                    segment.close_handle()

    def mark_deleted(self, error: SparklogError | None = None) -> None:
        """Close the log permanently. Its users get `error`; None: an UnknownTopicOrPartitionError."""
        self.close(seal=False)
        gone = UnknownTopicOrPartitionError(f"{self._state.owner.topic_partition} is deleted")
        self._state.health.fail(gone if error is None else error)

    def take_offline(self, error: SparklogError) -> None:
        """Close the log without writing: every use raises `error` from now on. Does not wait for an append that
        hangs."""
        self._state.health.fail(error)
        self._state.health.is_closed = True
        self._state.tier.close()
        for segment in self._state.segments.all:
            segment.close_handle()

    # --- where it is ---

    @property
    def directory(self) -> Path:
        return self._state.directory

    @property
    def owner(self) -> LogOwner:
        """Owner of the log."""
        return self._state.owner

    @property
    def config(self) -> LogConfig:
        """The log's settings; `reconfigure` replaces them."""
        return self._state.config

    @property
    def tier(self) -> PartitionTier:
        """Known state of the log's part in the object store."""
        return self._state.tier

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self._state.offsets.log_start

    @property
    def durable_log_start_offset(self) -> int:
        """Log start after a crash at this moment. If it is below `log_start_offset`, deleted records exist again."""
        return min(self._state.durable_log_start, self._state.offsets.log_start)

    @property
    def high_watermark(self) -> int:
        """Consumers can read the records below this offset."""
        return self._state.offsets.high_watermark

    @property
    def log_end_offset(self) -> int:
        """The offset the next record gets."""
        return self._state.offsets.written

    @property
    def flushed_offset(self) -> int:
        """End of the fsynced records."""
        return self._state.offsets.flushed

    @property
    def recovery_point(self) -> int:
        """Start of the scan after a crash: all records below this offset are fsynced."""
        return self._state.offsets.recovery_point

    @property
    def durable_end_offset(self) -> int:
        """End of the records of this log that are durable enough to be acknowledged (`FlushPolicy.durable_end`)."""
        return self.config.flush.durable_end(self.flushed_offset, self.log_end_offset)

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """The ranges of offsets, (first, end), whose records a repair could not save; ascending."""
        return self._state.gaps.all

    @property
    def epochs(self) -> LeaderEpochs:
        """The leader epochs and their start offsets."""
        return self._state.epochs

    @property
    def leader_epoch(self) -> int:
        """The epoch of the newest records, or -1."""
        return self._state.epochs.latest

    @property
    def segments(self) -> Sequence[SegmentView]:
        """The present segments; the last one receives appends."""
        return self._state.segments.all

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return self._state.segments.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self._state.segments.all)

    @property
    def write_error(self) -> SparklogError | None:
        """Reason why the log accepts no appends, or None. A retriable error ends when its cause is gone; any other
        lasts until the log is opened again."""
        return self._state.health.failure or self._state.writer.failure or self._state.writer.blocked

    @property
    def is_closed(self) -> bool:
        return self._state.health.is_closed

    # --- producers and transactions ---

    @property
    def last_stable_offset(self) -> int:
        """End of the records for readers of committed records: all transactions that begin below this offset are
        decided."""
        high_watermark = self._state.offsets.high_watermark  # first: transactions are entered before
        unstable = self._state.producers.open.first_unstable_offset
        if unstable is None or unstable >= high_watermark:
            return high_watermark
        return max(unstable, min(self._state.offsets.log_start, high_watermark))

    def producers(self) -> list[ProducerInfo]:
        """Return the producers that have written to this log and have not expired."""
        return self._state.producers.infos()

    @property
    def producer_count(self) -> int:
        """Number of `producers`."""
        return len(self._state.producers.states)

    def last_offsets_of_producers(self) -> frozenset[int]:
        """Return, for each of `producers`, the base offset of its last batch, or of its marker if it has no batch."""
        return self._state.producers.last_offsets()

    # --- tiering ---

    @property
    def files(self) -> FileSystem:
        """The file system of the log's files."""
        return self._state.files

    @property
    def local_segments(self) -> list[LogSegment]:
        """The present segments with local files; the last one receives appends."""
        return self._state.segments.local

    @property
    def local_log_start_offset(self) -> int:
        """The first offset that can be read without the object store; the log end if no segment is local."""
        return self._state.local_log_start

    @property
    def tierable_end(self) -> int:
        """End of the records that are final and fsynced, and so can be copied to the object store."""
        return min(self.last_stable_offset, self.recovery_point)

    @property
    def remote_size_bytes(self) -> int:
        """Bytes of batches in the object store without a local copy."""
        return sum(s.data_bytes for s in self._state.segments.all if s.is_remote)

    @property
    def has_remote_segments(self) -> bool:
        """True if a part of the log is only in the object store."""
        return bool(self._state.segments.all) and self._state.segments.all[0].is_remote
