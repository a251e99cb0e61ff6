"""One partition's log: an append-only sequence of batches in segment files.

One thread appends at a time; others may read meanwhile. Reads end at the high watermark, on a batch boundary, and give
file ranges, never decoded records.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from sparklog.errors import (
    BrokerShuttingDownError,
    LogCorruptError,
    OffsetOutOfRangeError,
    SparklogError,
    StorageError,
    StorageFullError,
    UnknownTopicOrPartitionError,
)
from sparklog.format.batch import ATTRIBUTE_CONTROL, BatchHeader, decode_header, encode_marker
from sparklog.format.checkpoint import PARTITION_FILE, PartitionMeta, decode, encode
from sparklog.format.gaps import GAPS_FILE, decode_gaps
from sparklog.format.txn_index import AbortedEntry
from sparklog.log.append_check import check_payload, stamp_payload, with_repeated, without_repeated
from sparklog.log.clock import Clock
from sparklog.log.compaction.key_hash import HashSeeds
from sparklog.log.compaction.policy import CLEANER_POINT_FILE
from sparklog.log.compaction.rewrite import RunContext
from sparklog.log.compaction.swap import commit, install, withdraw
from sparklog.log.files import FileSystem, read_whole, sync_whole
from sparklog.log.leader_epochs import EpochEnd, LeaderEpochCache, load_epochs
from sparklog.log.model import AppendInfo, LocatedRange, LogConfig, LogOwner, ProducerInfo
from sparklog.log.offsets import LogOffsets
from sparklog.log.partition_producers import PartitionProducers, encode_states
from sparklog.log.producer_files import LogBounds, ProducerFiles
from sparklog.log.producers import ALL_SAFEGUARDS, Guard, Safeguards
from sparklog.log.reading import ranges_between, slice_from
from sparklog.log.recovery import LoadContext, SchemaOf, load_log
from sparklog.log.retention import Expired, deletion_offset, expired
from sparklog.log.segment import LOWEST_TIMESTAMP_MS, LogSegment, PlacedBatch
from sparklog.log.segment_list import SegmentList
from sparklog.log.segment_writer import SegmentWriter
from sparklog.log.slices import FileSlice, HandleCache
from sparklog.log.tiering.partition_tier import NO_ACCESS, PartitionTier
from sparklog.log.tiering.remote_segment import RemoteAccess, RemoteLogSegment
from sparklog.log.time_lookup import TimeLookup
from sparklog.log.transactions import AbortedTransaction
from sparklog.log.truncation import TruncationMark, cut_segments, end_of_cut, end_of_remote_cut, remove_segments
from sparklog.testing.faults import reach
from sparklog.types import OffsetAndTimestamp

__all__ = ["AppendInfo", "FileSlice", "LocatedRange", "LogConfig", "LogOwner", "PartitionLog"]

logger = logging.getLogger(__name__)

PRODUCER_EXPIRATION_MS = 86_400_000
"""Default of `producer.id.expiration.ms`."""


class PartitionLog:
    """See the module. Made by `open`."""

    def __init__(
        self,
        directory: Path,
        owner: LogOwner,
        config: LogConfig,
        schema_of: SchemaOf,
        files: FileSystem,
        clock: Clock,
        handles: HandleCache | None = None,
        remote: RemoteAccess = NO_ACCESS,
        newest_schema_id: int = 1,
        safeguards: Safeguards = ALL_SAFEGUARDS,
    ) -> None:
        self.directory = directory
        self._handles = HandleCache() if handles is None else handles
        self.owner = owner
        self.config = config.for_partition(owner)
        self._schema_of = schema_of
        self._newest_schema_id = newest_schema_id
        self._files = files
        self._clock = clock
        self._producers = PartitionProducers(safeguards)
        self._producer_files = ProducerFiles(files, directory)
        self._write_lock = threading.Lock()
        self._swap_lock = threading.Lock()
        """Held while files of segments get other names or go; taken before the other two."""
        self._writer = SegmentWriter(files, directory, owner, schema_of, self._handles)
        self._times = TimeLookup(owner)
        self._offsets = LogOffsets()
        self._epochs = LeaderEpochCache(files, directory)
        self._truncation = TruncationMark(files, directory)
        self._append_time_ms = 0
        self._flush_lock = threading.Lock()
        """Taken before the write lock, never inside it."""
        self._dirty = self._writer.dirty
        self._unusable: SparklogError | None = None
        """Why nothing can be appended (and, once closed, read) any more."""
        self._closed = False
        self._dropped = self._writer.dropped
        self.tier = PartitionTier(files, directory, owner, remote)

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
        clean: bool,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        recovery_point: int = 0,
        handles: HandleCache | None = None,
        remote: RemoteAccess = NO_ACCESS,
        newest_schema_id: int = 1,
        safeguards: Safeguards = ALL_SAFEGUARDS,
    ) -> PartitionLog:
        """Opens the log in `directory`, which is made if it does not exist.

        `schema_of` gives the topic's schema for an id (KeyError or UnknownSchemaError for an unknown one). `clean`: the
        log was closed with its data sealed; otherwise the last segment is scanned and a torn tail cut. The offsets are
        those of the last checkpoint (0 when there is none). `remote`: how to get at what is in the object store.
        `newest_schema_id`: of a marker in a log that has no segment. `safeguards`: for tests.
        Raises LogCorruptError, StorageError.
        """
        log = cls(directory, owner, config, schema_of, files, clock, handles, remote, newest_schema_id, safeguards)
        _identify(directory, owner, files)
        points = log._truncation.clamp((log_start_offset, high_watermark, recovery_point))
        log_start_offset, high_watermark, recovery_point = points
        context = LoadContext(
            directory,
            owner,
            schema_of,
            files,
            config.index_interval_bytes,
            recovery_point,
            log._handles,
            max(log_start_offset, log.tier.state.local_start_offset),
        )
        loaded = load_log(context, clean=clean)
        gaps = decode_gaps(read_whole(files, directory / GAPS_FILE))
        remote_segments = log.tier.before(
            loaded.segments, log_start_offset, gaps, directory, expected=config.tiering.enabled
        )
        segments = [*remote_segments, *loaded.segments]
        log._segments = SegmentList.of(segments)
        for segment in loaded.dirty:
            log._dirty.add(segment, made=True)
        end = segments[-1].next_offset if segments else log_start_offset
        start = max(log_start_offset, segments[0].base_offset if segments else 0)
        expected = max(high_watermark, start, recovery_point)
        if expected > end:
            lost = f"{directory} ends at offset {end}, the last checkpoint says {expected}"
            if clean or max(start, recovery_point) > end:
                raise LogCorruptError(
                    f"{lost}: files are missing; restore them from a copy, or go on without them: "
                    f"sparklog log repair {directory}"
                )
            logger.warning("%s: what lies between was lost in the crash", lost)
        log._offsets = LogOffsets(
            log_start=start,
            recovery_point=end if clean else max(start, min(recovery_point, end)),
            log_end=end,
            high_watermark=min(max(high_watermark, start), end),
        )
        log._epochs = load_epochs(files, directory, loaded.segments, (start, end))
        log._append_time_ms = max((s.append_time_ms for s in segments), default=0)
        log._load_producers()
        return log

    # --- where it is ---

    @property
    def _segments(self) -> SegmentList:
        return self._writer.segments

    @_segments.setter
    def _segments(self, segments: SegmentList) -> None:
        self._writer.segments = segments

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
    def size_bytes(self) -> int:
        """Bytes of all batches."""
        return self._segments.size_bytes

    @property
    def segment_count(self) -> int:
        return len(self._segments.all)

    def raise_high_watermark(self, offset: int) -> None:
        """Moves the high watermark up to `offset`, at most to the log end; it never goes back."""
        self._offsets.raise_high_watermark(offset)
        self._producers.open.on_high_watermark(self._offsets.high_watermark)

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

    def aborted_in(self, start_offset: int, end_offset: int) -> list[AbortedEntry]:
        """The aborted transactions whose markers are in [start_offset, end_offset)."""
        return list(self._producers.aborted.entries(start_offset, end_offset))

    def producers(self) -> list[ProducerInfo]:
        """Who has written here and is not forgotten yet."""
        return self._producers.infos()

    def last_offsets_of_producers(self) -> frozenset[int]:
        """Base offsets of the last batch, or marker, of everyone in `producers`."""
        return self._producers.last_offsets()

    def expire_producers(self, now_ms: int, expiration_ms: int = PRODUCER_EXPIRATION_MS) -> int:
        """Forgets producers that have written nothing for so long and have no transaction open; returns how many."""
        with self._write_lock:
            return self._producers.states.expire(now_ms, expiration_ms)

    def reconfigure(self, config: LogConfig) -> None:
        """Settings for what is appended, rolled and deleted from now on."""
        with self._write_lock:
            self.config = config.for_partition(self.owner)

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

    def release_local(self, old: Sequence[LogSegment], new: Sequence[RemoteLogSegment]) -> bool:
        """The oldest local segments `old` give way to their copies `new`; their files go after `file.delete.delay.ms`.
        False when the log does not have all of those any more. Raises StorageError, StorageFullError."""
        then = self.tier.producers_behind(old)
        with self._swap_lock, self._write_lock:
            self._check_usable()
            local = self.local_segments
            if local[: len(old)] != list(old) or len(local) == len(old):
                return False
            # a crash from here on leaves any of the files
            self.tier.release_below(old[-1].next_offset, encode_states(then.states))
            return self._replace(list(old), new)

    # --- retention ---

    def delete_records(self, before_offset: int) -> int:
        """Raises the log start to `before_offset`, at most to the high watermark (-1: there); returns the log start.

        What lies below cannot be read any more; `retain` frees its space. Raises OffsetOutOfRangeError,
        InvalidRequestError (the topic is only compacted).
        """
        with self._write_lock:
            self._check_usable()
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
            self._check_usable()
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

    def _expired(self, view: SegmentList) -> Expired:
        return expired(
            view.all,
            self.config.retention,
            log_start_offset=self.log_start_offset,
            high_watermark=self.high_watermark,
            now_ms=self._clock.now_ms(),
            largest_timestamp_of=_age_timestamp_ms,
        )

    def drop_below_log_start(self) -> int:
        """Takes the segments wholly below the log start out of the log; returns how many. The last one stays. Their
        files stay for `file.delete.delay.ms`."""
        with self._write_lock:
            segments = self._segments.all
            count = sum(s.next_offset <= self.log_start_offset for s in segments[:-1])
            if count:
                if self._producer_files.newest_snapshot < self.log_start_offset:
                    self._save_producers()  # what is deleted cannot be replayed
                self._segments = SegmentList.of(segments[count:])
                self._dirty.discard(segments[:count])
                self._producer_files.drop_below(self.log_start_offset)
                self._dropped.add(segments[:count], self._clock.now_ms() + self.config.file_delete_delay_ms)
            return count

    def remove_dropped(self) -> int:
        """Unlinks the files of dropped segments whose delay is over; returns how many segments. Raises StorageError."""
        with self._swap_lock, self._write_lock:
            return 0 if self._closed else self._dropped.remove_due(self._clock.now_ms())

    # --- compaction ---

    @property
    def segments(self) -> Sequence[LogSegment]:
        """The segments at this moment; the last one is appended to."""
        return self._segments.all

    @property
    def is_closed(self) -> bool:
        return self._closed

    def compaction_context(self, throttle: Callable[[int], None]) -> RunContext:
        """What a compaction run over this log works with."""
        return RunContext(
            self.directory,
            self.owner,
            self._schema_of,
            self._files,
            self._handles,
            HashSeeds.draw(),
            self._clock.now_ms(),
            self.config.compaction.delete_retention_ms,
            self.config.segment_bytes,
            self.config.index_interval_bytes,
            throttle,
        )

    def begin_segment(self) -> None:
        """Seals the last segment and begins an empty one, so that all that was written so far can be compacted."""
        with self._write_lock:
            self._check_usable()
            last = self._segments.last
            if last is not None and last.data_bytes:
                self._writer.begin(self.log_end_offset, last.info.schema_id)
                self._save_producers()

    def replace_segments(self, old: Sequence[LogSegment], new: Sequence[LogSegment]) -> bool:
        """Puts the compacted segments `new` in the place of `old`, of which they are made. False, and `new` is removed,
        when the log does not have all of those any more. Raises StorageError, StorageFullError."""
        with self._swap_lock:
            self._check_usable()
            try:
                commit(self._files, self.directory, new)
            except SparklogError:
                self._finish_swap(withdraw, new)
                raise
            with self._write_lock:
                replaced = self._replace(list(old), new)
            if not replaced:
                self._finish_swap(withdraw, new)
                return False
            self._finish_swap(lambda files, directory, segments: install(files, directory, old, segments), new)
            for segment in old:
                segment.close_handle()
            self._forget_markers(new)
            return True

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

    def _finish_swap(
        self, step: Callable[[FileSystem, Path, Sequence[LogSegment]], None], new: Sequence[LogSegment]
    ) -> None:
        """When a swap stops half-way, what lies on the disk must not change any more before the next start sorts it out."""
        try:
            step(self._files, self.directory, new)
        except SparklogError as e:
            self._unusable = StorageError(
                f"{self.directory}: a compaction stopped half-way ({e}); restart to finish it"
            )
            raise

    def _replace(self, old: list[LogSegment], new: Sequence[LogSegment]) -> bool:
        segments = self._segments.all
        first = next((i for i, s in enumerate(segments) if s is old[0]), len(segments))
        behind = first + len(old)
        if behind >= len(segments) or segments[first:behind] != old:
            return False
        self._segments = SegmentList.of([*segments[:first], *new, *segments[behind:]])
        self._dirty.discard(old)
        self._dropped.add(old, self._clock.now_ms() + self.config.file_delete_delay_ms)
        return True

    # --- writing ---

    def use_schemas(self, schema_of: SchemaOf, newest_id: int | None = None) -> None:
        """The topic's schemas from now on: those there were, and newer ones."""
        self._schema_of = self._writer.schema_of = schema_of
        if newest_id is not None:
            self._newest_schema_id = newest_id

    def append(
        self, payload: bytearray | memoryview, *, leader_epoch: int = 0, guard: Guard | None = None
    ) -> AppendInfo:
        """Appends the batches in the writable `payload`, which are stamped in place, and nothing if any is wrong. What a
        producer has sent before is not written again, but answered with its offsets.

        `guard`: of `begin_verification`, for the first batch of a transaction. Raises CorruptBatchError,
        MessageTooLargeError, UnknownSchemaError, InvalidRequestError, InvalidProducerEpochError,
        OutOfOrderSequenceError, InvalidTxnStateError (nothing was tried), StorageFullError, StorageError (what was
        written has been cut off again).
        """
        view = memoryview(payload).cast("B")
        with self._write_lock:
            self._check_usable()
            found = check_payload(view, self.config, self._schema_of, self._clock.now_ms())
            return self._append_new(view, found, leader_epoch, guard)

    def append_internal(self, payload: bytearray | memoryview, *, leader_epoch: int = 0) -> AppendInfo:
        """`append` for what the broker itself writes: of any size, its transactions need no verification, its producers
        no sequence numbers (-1)."""
        view = memoryview(payload).cast("B")
        with self._write_lock:
            self._check_usable()
            found = check_payload(view, self.config, self._schema_of, self._clock.now_ms(), internal=True)
            return self._append_new(view, found, leader_epoch, None, verified=True)

    def append_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, *, commit: bool, leader_epoch: int = 0
    ) -> AppendInfo:
        """Ends a producer's transaction. One that has been written already is answered with its offset.

        Raises InvalidProducerEpochError, CoordinatorFencedError (nothing was tried), StorageFullError, StorageError.
        """
        with self._write_lock:
            self._check_usable()
            state = self._producers.states.admit_marker(producer_id, producer_epoch, coordinator_epoch)
            if state is not None:
                offset = max(state.marker_offset, 0)
                return AppendInfo(offset, offset, state.last_time_ms, 0, 0, duplicate=True)
            last = self._segments.last
            schema_id = self._newest_schema_id if last is None else last.info.schema_id
            view = encode_marker(
                self._schema_of(schema_id),
                schema_id=schema_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
                commit=commit,
                timestamp_ms=max(self._clock.now_ms(), self._append_time_ms),
            )
            return self._append_checked(view, [(0, decode_header(view))], leader_epoch)[0]

    def begin_verification(self, producer_id: int, producer_epoch: int) -> Guard | None:
        """What the first batch of a transaction is appended with, after the coordinator has been asked; None: the
        transaction is open here, nobody needs to be asked. A marker in between makes the guard void.

        Raises InvalidProducerEpochError.
        """
        self._check_usable()
        return self._producers.states.begin_verification(producer_id, producer_epoch, self._clock.now_ms())

    def _append_new(
        self,
        view: memoryview,
        found: list[tuple[int, BatchHeader]],
        leader_epoch: int,
        guard: Guard | None,
        *,
        verified: bool = False,
    ) -> AppendInfo:
        """Appends what is not in the log yet, if its producers may write it."""
        if all(header.producer_id < 0 for _, header in found):
            return self._append_checked(view, found, leader_epoch)[0]
        headers = [header for _, header in found]
        originals = self._producers.states.admit(headers, self.log_end_offset, guard, verified=verified)
        if not any(originals):
            return self._append_checked(view, found, leader_epoch)[0]
        view, found = without_repeated(view, found, originals)
        if not found:
            return with_repeated(None, [], originals)
        return with_repeated(*self._append_checked(view, found, leader_epoch), originals)

    def _append_checked(
        self, view: memoryview, found: Sequence[tuple[int, BatchHeader]], leader_epoch: int
    ) -> tuple[AppendInfo, list[PlacedBatch]]:
        """Stamps and writes batches that fill `view`; the batches with what they were stamped."""
        reach("log.before-append")
        now_ms = max(self._clock.now_ms(), self._append_time_ms)
        if leader_epoch != self._epochs.latest:
            self._epochs.begin(leader_epoch, self.log_end_offset)
        batches = stamp_payload(view, found, self.log_end_offset, leader_epoch, now_ms)
        first, last = batches[0].header, batches[-1].header
        self._offsets.reserve(last.next_offset)
        try:
            self._writer.write(view, batches, self.config)
        except BaseException:
            self._unusable = self._writer.failure or self._unusable
            self._offsets.take_back()
            raise
        self._append_time_ms = now_ms
        self._producers.apply((b.header for b in batches), self.high_watermark)  # before anybody can read them
        self._offsets.wrote()
        if self._dirty.since_ms is None:
            self._dirty.since_ms = now_ms
        if self._writer.has_rolled:
            self._save_producers()
        reach("log.after-append")
        records = sum(b.header.record_count for b in batches)
        return AppendInfo(first.base_offset, last.last_offset, now_ms, len(batches), records), batches

    def _load_producers(self) -> None:
        bounds = LogBounds(self.log_start_offset, self.local_log_start_offset, self.log_end_offset)
        self._producers = self._producer_files.load(
            self.local_segments,
            bounds,
            self.high_watermark,
            self._producers.safeguards,
            self.tier.before_local(self.local_segments),
        )

    def _save_producers(self) -> None:
        """A snapshot of the producers at the log end."""
        self._writer.has_rolled = False
        self._producer_files.save(self._producers, self._segments.bases, self.log_end_offset)

    def roll(self) -> None:
        """Seals the active segment; the next append begins a new one. Without batches it does nothing."""
        with self._write_lock:
            self._check_usable()
            last = self._segments.last
            if last is not None and last.data_bytes:
                if not last.is_sealed:
                    self._writer.seal(last)
                self._writer.roll_next = True

    def truncate_to(self, offset: int) -> int:
        """Cuts the log back so that it ends at `offset`, or where the batch begins that holds it; returns the log end.

        What is cut does not come back after a crash. Epochs that begin at or above the new end are forgotten, also when
        there is nothing to cut. Below the log start the log is emptied and goes on at `offset`. Raises StorageError,
        StorageFullError; the log takes no more appends then.
        """
        with self._swap_lock, self._flush_lock, self._write_lock:
            self._check_usable()
            try:
                if offset < self.log_end_offset:
                    self._truncate(offset)
                    self._load_producers()
                self._epochs.cut(self.log_end_offset)
            except SparklogError as e:
                self._unusable = StorageError(f"{self.directory}: truncation to {offset} failed ({e}); restart")
                raise self._unusable from e
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
            self._segments = SegmentList.of([])
            self._offsets.restart_at(offset)
            self._epochs.restart_at(offset)
            self._producer_files.clear()
            kept: list[LogSegment] = []
            remove_segments(segments, self._files)
        else:
            kept = cut_segments(segments, end, self._files, self.config.index_interval_bytes)
            self._segments = SegmentList.of(kept)
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

    def flush(self, *, active: bool = True) -> None:
        """Fsyncs what is not on the disk yet, and moves the recovery point; with `active` False only rolled segments.

        May run beside appends. After a failed fsync nobody knows what is on the disk: the log takes no more appends,
        and the fsync is never tried again.
        """
        self._flush(None, active=active)

    def make_durable(self, next_offset: int) -> None:
        """Fsyncs if flush.mode or flush.messages ask for it, unless everything below `next_offset` is on the disk by
        now: who comes first syncs for all. To be called after an append, before it is acknowledged."""
        if self.config.flush.due_after_append(next_offset - self.flushed_offset):
            self._flush(next_offset, active=True)

    def flush_if_due(self) -> bool:
        """Fsyncs if flush.ms is over, or a rolled segment waits for it; returns whether it did. Raises StorageError."""
        due = self.config.flush.due(self._dirty.since_ms, self._clock.now_ms())
        if self._unusable is not None or not (due or self._dirty.rolled or self._producer_files.is_dirty):
            return False
        self._flush(None, active=due)
        return True

    def _flush(self, wanted: int | None, *, active: bool) -> None:
        with self._flush_lock:
            if wanted is not None and self.flushed_offset >= wanted:
                return
            with self._write_lock:
                self._check_usable()
                point = self.log_end_offset
                last = self._segments.last
                if not active and last is not None and not last.is_sealed:
                    point = last.base_offset
                pending, directory = self._dirty.take(active=active)
                snapshots = self._producer_files.take_dirty() if wanted is None else []  # nobody waits for these
            try:
                for segment in pending:
                    with self._write_lock:
                        held = segment.hold_for_sync() if segment in self._segments.all else []
                    try:
                        for shared in held:
                            shared.file.sync()
                    finally:
                        for shared in held:
                            shared.release()
                for path in snapshots:
                    sync_whole(self._files, path)
                if directory or snapshots:
                    self._files.sync_directory(self.directory)
            except SparklogError as e:
                self._unusable = StorageError(
                    f"{self.directory}: nobody knows what is on the disk after a failed fsync, no more is appended ({e}); "
                    f"check the disk, then restart the broker"
                )
                raise self._unusable from e
            with self._write_lock:
                point = max(point, self.log_start_offset)
                self._offsets.flushed_to(point)
                self._offsets.recover_from(point)

    def close(self, *, seal: bool = True) -> None:
        """Closes the log; with `seal` its last segment is sealed and everything fsynced before. Slices stay readable.

        Raises StorageFullError, StorageError; the log is closed then too, but not cleanly.
        """
        if self._closed:
            return
        try:
            if seal:
                with self._write_lock:
                    self._check_usable()
                    last = self._segments.last
                    if last is not None and not last.is_sealed:
                        self._writer.seal(last)
                    self._save_producers()
                self.flush()
                self._dropped.remove_all()
        finally:
            with self._write_lock:
                self._closed = True
                self.tier.close()
                self._unusable = BrokerShuttingDownError(f"the log of {self.owner.topic_partition} is closed")
                for segment in self._segments.all:
                    segment.close_handle()

    def mark_deleted(self) -> None:
        """Closes the log for good: its topic is deleted."""
        self.close(seal=False)
        self._unusable = UnknownTopicOrPartitionError(f"{self.owner.topic_partition} is deleted")

    def take_offline(self, error: SparklogError) -> None:
        """Every use raises `error` from now on; no file is written any more. Waits for no append that hangs."""
        self._unusable, self._closed = error, True
        self.tier.close()
        for segment in self._segments.all:
            segment.close_handle()

    def _check_usable(self) -> None:
        if self._unusable is not None:
            raise type(self._unusable)(str(self._unusable))  # fresh: one raised again and again gathers tracebacks

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
        if self._closed:
            self._check_usable()
        if not self.log_start_offset <= offset <= self.log_end_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} of {self.owner.topic_partition} is out of range: "
                f"the log goes from {self.log_start_offset} to {self.log_end_offset}"
            )

    def locate(self, start_offset: int, end_offset: int) -> list[LocatedRange]:
        """The file ranges that hold [start_offset, end_offset), whole batches, below the high watermark.

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

    def offset_for_timestamp(self, timestamp_ms: int) -> OffsetAndTimestamp:
        """The first record, in log order, with at least this timestamp; (-1, -1) when none is below the high watermark.

        May read from the disk. Raises CorruptBatchError, StorageError.
        """
        self._check_readable(self.log_start_offset)
        view, bounds = self._segments, (self.log_start_offset, self.high_watermark)
        return self._times.first_from(view.all, view.bases, bounds, timestamp_ms, self._schema_of)

    def offset_of_max_timestamp(self) -> OffsetAndTimestamp:
        """The first record with the largest timestamp below the high watermark; (-1, -1) when there is no record."""
        self._check_readable(self.log_start_offset)
        view, bounds = self._segments, (self.log_start_offset, self.high_watermark)
        return self._times.largest(view.all, view.bases, bounds, self._schema_of)


def _age_timestamp_ms(segment: LogSegment) -> int | None:
    """The timestamp that `retention.ms` counts from: without records (markers only) that of the last append."""
    largest = segment.largest_timestamp
    if largest is not None and largest[0] == LOWEST_TIMESTAMP_MS:
        return segment.append_time_ms or None
    return None if largest is None else largest[0]


def _identify(directory: Path, owner: LogOwner, files: FileSystem) -> None:
    """Makes the directory if needed, and checks or writes whose it is. Raises LogCorruptError."""
    expected = PartitionMeta(owner.topic, owner.topic_id, owner.partition)
    files.make_directory(directory)
    data = read_whole(files, directory / PARTITION_FILE)
    found = decode(data, PartitionMeta) if data is not None else None
    if found is None:
        if data is not None:
            logger.warning("%s cannot be read, it is written again", directory / PARTITION_FILE)
        files.write_atomic(directory / PARTITION_FILE, encode(expected))
    elif found != expected:
        raise LogCorruptError(f"{directory} belongs to {found}, not to {expected}; move it away")
