"""What a log tells of itself, and what it gives to its readers: nothing here changes the log, or takes a lock of it.

Readers take the list of segments first and check the log start after; who takes segments away goes the other way round.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.environment.files import FileSystem
from sparklog.errors import OffsetOutOfRangeError, SparklogError
from sparklog.format.txn_index import AbortedEntry
from sparklog.log.leader_epochs import EpochEnd
from sparklog.log.log_health import LogHealth
from sparklog.log.model import LocatedRange, ProducerInfo
from sparklog.log.opening import LogParts
from sparklog.log.reading import ranges_between, slice_from
from sparklog.log.segment import LogSegment
from sparklog.log.segment_list import SegmentList
from sparklog.log.slices import FileSlice
from sparklog.log.time_lookup import TimeLookup, TopicSchemas
from sparklog.log.transactions import AbortedTransaction
from sparklog.types import OffsetAndTimestamp


class LogView:
    """See the module. Its parts belong to `PartitionLog`, which changes them."""

    def __init__(self, parts: LogParts) -> None:
        self.directory = parts.directory
        self.owner = parts.owner
        self.config = parts.config
        self.tier = parts.tier
        self._files = parts.files
        self._schema_of = parts.schema_of
        self._writer = parts.writer
        self._offsets = parts.offsets
        self._epochs = parts.epochs
        self._producers = parts.producers
        self._times = TimeLookup(parts.owner)
        self._health = LogHealth()

    # --- where it is ---

    @property
    def _segments(self) -> SegmentList:
        return self._writer.segments

    @property
    def log_start_offset(self) -> int:
        """The first offset that can be read."""
        return self._offsets.log_start

    @property
    def high_watermark(self) -> int:
        """Reads end here."""
        return self._offsets.high_watermark

    @property
    def log_end_offset(self) -> int:
        """The offset the next record gets."""
        return self._offsets.written

    @property
    def flushed_offset(self) -> int:
        """Everything below has been fsynced."""
        return self._offsets.flushed

    @property
    def recovery_point(self) -> int:
        """Everything below is on the disk: a start after a crash scans from here on."""
        return self._offsets.recovery_point

    @property
    def leader_epoch(self) -> int:
        """The epoch of the newest records, or -1."""
        return self._epochs.latest

    def end_offset_for(self, leader_epoch: int) -> EpochEnd:
        """Where the records of `leader_epoch`, or else of the largest epoch below it that is known, end; (-1, -1) for an
        epoch newer than all of the log's."""
        return self._epochs.end_offset_for(leader_epoch, self.log_end_offset)

    @property
    def segments(self) -> Sequence[LogSegment]:
        """The segments at this moment; the last one is appended to."""
        return self._segments.all

    @property
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return self._segments.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self._segments.all)

    @property
    def write_error(self) -> SparklogError | None:
        """Why nothing can be appended: until the cause is gone (retriable), or until the log is opened again."""
        return self._health.failure or self._writer.failure or self._writer.blocked

    @property
    def is_closed(self) -> bool:
        return self._health.is_closed

    # --- producers and transactions ---

    @property
    def last_stable_offset(self) -> int:
        """Readers of committed records end here: all transactions that begin below are decided."""
        high_watermark = self._offsets.high_watermark  # first: what it passes has been entered before
        unstable = self._producers.open.first_unstable_offset
        if unstable is None or unstable >= high_watermark:
            return high_watermark
        return max(unstable, min(self._offsets.log_start, high_watermark))

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """The aborted transactions that may have records in [start_offset, end_offset), which lies below the last stable
        offset; in the order of their markers."""
        return self._producers.aborted.between(start_offset, end_offset)

    def end_with_few_aborted(self, count_max: int, start_offset: int, end_offset: int) -> int:
        """`end_offset`, or a smaller one, above `start_offset`, up to which `aborted_transactions` has about `count_max`."""
        return self._producers.aborted.end_with_at_most(count_max, start_offset, end_offset)

    def aborted_in(self, start_offset: int, end_offset: int) -> list[AbortedEntry]:
        """The aborted transactions whose markers are in [start_offset, end_offset)."""
        return list(self._producers.aborted.entries(start_offset, end_offset))

    def producers(self) -> list[ProducerInfo]:
        """Who has written here and is not forgotten yet."""
        return self._producers.infos()

    def last_offsets_of_producers(self) -> frozenset[int]:
        """Base offsets of the last batch, or marker, of everyone in `producers`."""
        return self._producers.last_offsets()

    # --- tiering ---

    @property
    def files(self) -> FileSystem:
        """Where the log's files are."""
        return self._files

    @property
    def local_segments(self) -> list[LogSegment]:
        """The segments whose files are here, at this moment; the last one is appended to."""
        return [s for s in self._segments.all if not s.is_remote]

    @property
    def local_log_start_offset(self) -> int:
        """The first offset that can be read without the object store; the log end if there is none."""
        local = next((s for s in self._segments.all if not s.is_remote), None)
        return self.log_end_offset if local is None else max(self.log_start_offset, local.base_offset)

    @property
    def tierable_end(self) -> int:
        """What lies below cannot change any more and is on the disk: it may be copied."""
        return min(self.last_stable_offset, self.recovery_point)

    @property
    def remote_size_bytes(self) -> int:
        """Bytes of batches that are only in the object store."""
        return sum(s.data_bytes for s in self._segments.all if s.is_remote)

    @property
    def has_remote_segments(self) -> bool:
        """Whether a part of the log is only in the object store."""
        return bool(self._segments.all) and self._segments.all[0].is_remote

    def epochs_in(self, start_offset: int, end_offset: int) -> list[tuple[int, int]]:
        """Pairs (leader epoch, its first offset) of the records in [start_offset, end_offset)."""
        entries = self._epochs.entries
        inside = [(e.epoch, e.start_offset) for e in entries if start_offset < e.start_offset < end_offset]
        return [(self._epochs.epoch_of(start_offset), start_offset), *inside]

    # --- reading ---

    def read(
        self,
        offset: int,
        max_bytes: int,
        *,
        end: int | None = None,
        min_one_batch: bool = True,
        may_wait: bool = True,
    ) -> FileSlice | None:
        """A slice of whole batches, the first of which holds `offset`: at most `max_bytes`, but with `min_one_batch` at
        least one batch; within one segment, below the high watermark and `end`. None when there is nothing (yet).

        Raises OffsetOutOfRangeError below the log start and above the log end, RemoteReadRequired if the object store
        would have to be waited for and `may_wait` is False, RemoteStorageError if it fails.
        """
        bound = self.high_watermark if end is None else min(end, self.high_watermark)
        view = self._segments  # before the check: retention raises the log start first, then takes segments away
        self._check_readable(offset)
        if offset >= bound:
            return None
        return slice_from(view, offset, bound, max_bytes, min_one_batch=min_one_batch, may_wait=may_wait)

    def _check_readable(self, offset: int) -> None:
        if self._health.is_closed:
            self._health.check()
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self.owner.topic_partition} is out of range: "
                f"the log goes from {self.log_start_offset} to {self.log_end_offset}"
            )

    def locate(self, start_offset: int, end_offset: int) -> list[LocatedRange]:
        """The file ranges that hold [start_offset, end_offset), whole batches, below the high watermark; at most
        LOCATE_RANGES_MAX.

        Of what is in the object store only the first LOCATE_REMOTE_BYTES or so, as files of the read cache, and nothing
        behind them: it has to be fetched. Raises OffsetOutOfRangeError when `start_offset` is, RemoteStorageError.
        """
        segments = self._segments.from_offset(start_offset)  # before the check, as in `read`
        self._check_readable(start_offset)
        return ranges_between(segments, start_offset, end_offset, self.high_watermark)

    def bytes_available(self, offset: int, *, end: int | None = None) -> int:
        """Bytes of batches in [offset, high watermark), and below `end`, rounded to the nearest batches the index knows.
        O(log n)."""
        bound = self.high_watermark if end is None else min(end, self.high_watermark)
        return self._segments.bytes_between(offset, bound) if offset < bound else 0

    @property
    def _schemas(self) -> TopicSchemas:
        return TopicSchemas(self._schema_of, self.config.inflated_bytes_max)

    def offset_for_timestamp(self, timestamp_ms: int) -> OffsetAndTimestamp:
        """The first record, in log order, with at least this timestamp; (-1, -1) when none is below the high watermark.

        May read from the disk. Raises CorruptBatchError, StorageError.
        """
        self._check_readable(self.log_start_offset)
        view, bounds = self._segments, (self.log_start_offset, self.high_watermark)
        return self._times.first_from(view.all, view.bases, bounds, timestamp_ms, self._schemas)

    def offset_of_max_timestamp(self) -> OffsetAndTimestamp:
        """The first record with the largest timestamp below the high watermark; (-1, -1) when there is no record."""
        self._check_readable(self.log_start_offset)
        view, bounds = self._segments, (self.log_start_offset, self.high_watermark)
        return self._times.largest(view.all, view.bases, bounds, self._schemas)
