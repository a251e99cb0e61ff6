"""Appends to a follower's log: the leader's batches unchanged, and the start offsets of leader epochs.

The leader has checked the content of the batches and stamped them. The follower checks only their checksums, and that
they continue its log. Before a batch that the leader has compacted, offsets can be missing; such a batch is stored in a
compacted segment. Every other batch begins at the log end, or after a gap that the leader has named. A gap is a range
of offsets whose records a repair of the leader's log could not save. After a gap, a new segment begins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from sparklog.environment.fault_points import reach
from sparklog.errors import CorruptBatchError, FencedLeaderEpochError, OffsetOutOfRangeError, UnknownSchemaError
from sparklog.format.batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_OFFSET_COLUMN,
    BatchHeader,
    iterate_batches,
    verify_checksum,
)
from sparklog.format.epoch_checkpoint import EpochEntry
from sparklog.format.gaps import Gap
from sparklog.log.model.log_config import AppendInfo
from sparklog.log.segments.segment import PlacedBatch
from sparklog.log.segments.slices import sync_held
from sparklog.log.state.log_state import LogState


class ReplicaAppender:
    """Appends a leader's batches to a follower's log. Every change acquires the log's write lock."""

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._first_follow: tuple[int, int] | None = None
        """The number of cuts of the log, and the wall clock in ms, when the first batches after the last cut
        arrived."""
        self._last_ms = 0
        """Time in ms at which the leader appended the last batch of the log."""
        self._has_deletions = False
        """True if the leader cannot have removed records that this log lacks; False: this is not known yet."""

    def begin_epoch(self, leader_epoch: int) -> None:
        """Begin `leader_epoch` at the log end, because this replica leads now. The epoch is in memory only until its
        first record is appended. Raises FencedLeaderEpochError, StorageError, StorageFullError."""
        with self._state.write_lock:
            self._state.health.check()
            self._state.gaps.cut(self._state.offsets.written)
            self._state.epochs.expect(leader_epoch, self._state.offsets.written)

    def first_header(self, payload: bytes | bytearray | memoryview) -> BatchHeader:
        """Return the header of the first of the leader's batches. Raises CorruptBatchError."""
        for _, header in iterate_batches(memoryview(payload).cast("B"), verify=False):
            return header
        raise CorruptBatchError("the leader has sent no batch")

    def may_lack_deletions(self, payload: bytes | bytearray | memoryview) -> bool:
        """Return True if the leader can have removed tombstones or markers of aborted transactions before or between
        the batches of `payload`: this log would keep forever the records that they delete. Call this before each
        `append`. Raises CorruptBatchError.

        While a replica is not in sync, the leader removes no tombstones or markers. But after a power cut or a repair,
        a replica can lack records and still count as in sync. The missing records were appended after its last batch,
        and removed at the earliest `delete.retention.ms` later. So nothing is missing if the replica has followed its
        leader again by then. An empty log has no records that a missing tombstone could delete.
        """
        state = self._state
        cuts = state.truncation_mark.count
        if self._first_follow is None or self._first_follow[0] != cuts:
            self._first_follow = cuts, state.clock.now_ms()
            filled = (s.append_time_ms for s in reversed(state.segments.all) if s.data_bytes)
            self._last_ms, self._has_deletions = next(filled, 0), False
        in_time_ms = self._first_follow[1] - state.config.compaction.delete_retention_ms
        if state.offsets.written == state.offsets.log_start or self._last_ms >= in_time_ms:
            self._has_deletions = True
        if self._has_deletions:
            return False
        before_ms = self._last_ms
        for _, header in iterate_batches(memoryview(payload).cast("B"), verify=False):
            if _is_compacted(header):
                return before_ms < in_time_ms
            before_ms = header.append_time_ms
        return False

    def append(
        self,
        payload: bytes | bytearray | memoryview,
        epochs: Sequence[EpochEntry] = (),
        segments: Sequence[int] = (),
        gaps: Sequence[Gap] = (),
    ) -> AppendInfo:
        """Append whole batches of the leader's log, with the leader's stamps. The first batch must begin at the log
        end; a compacted batch, or a batch after one of `gaps` (the gaps of the leader's log), can begin later.

        `epochs`: start offsets of leader epochs in the appended batches, from the leader, because compaction can have
        removed the first records of an epoch. `segments`: base offsets of the leader's segments, at which segments
        begin here too; further segments begin as the settings demand. Nothing is appended if a batch is wrong. Raises
        CorruptBatchError, OffsetOutOfRangeError (the batches do not continue the log), UnknownSchemaError (the topic's
        metadata have not arrived yet), FencedLeaderEpochError, StorageFullError, StorageError.
        """
        view = memoryview(payload).cast("B")
        self._state.health.check()
        batches = self._check_batches(view, frozenset(gaps))
        with self._state.write_lock:
            self._state.health.check()
            if not _follows(batches[0].header, self._state.offsets.written, gaps):
                raise OffsetOutOfRangeError(
                    f"{self._state.owner.topic_partition} ends at {self._state.offsets.written}, the leader's batches "
                    f"begin at {batches[0].header.base_offset}"
                )
            if gaps:
                self._note(gaps, batches[0].header)
            return self._append(view, batches, epochs, segments, gaps)

    def skip(self, gaps: Sequence[Gap], epochs: Sequence[EpochEntry] = ()) -> None:
        """Continue the log after the first of `gaps`, which must begin at the log end. The leader's log has no records
        in the gap, and none after it yet. `epochs`: leader epochs, some of which can begin in the gap. Raises
        OffsetOutOfRangeError, StorageFullError, StorageError.
        """
        with self._state.write_lock:
            self._state.health.check()
            first, behind = gaps[0]
            if first != self._state.offsets.written:
                raise OffsetOutOfRangeError(
                    f"{self._state.owner.topic_partition} ends at {self._state.offsets.written}, the leader's gap "
                    f"begins at {first}"
                )
            self._state.gaps.add(gaps[:1], first)
            self._begin_epochs(epochs, behind)
            last = self._state.segments.last
            self._begin_behind(behind, last.info.schema_id if last is not None else self._state.newest_schema_id)

    def _note(self, gaps: Sequence[Gap], first: BatchHeader) -> None:
        """Record the gaps on the disk, before the records after them. A log without segments gets an empty one at its
        end first: a log with a gap and no segment would begin after the gap."""
        state = self._state
        if state.segments.last is None and gaps[0][0] > state.offsets.written:
            start = state.writer.begin(state.offsets.written, first.schema_id, compacted=_is_compacted(first))
            sync_held(start.hold_for_sync())
            state.files.sync_directory(state.directory)
        state.gaps.add(gaps, state.offsets.written)

    def _begin_behind(self, offset: int, schema_id: int) -> None:
        """Begin a segment at `offset`, the end of a gap. The segment's name records the offset even if no batch
        follows."""
        self._state.writer.begin(offset, schema_id)
        self._state.offsets.reserve(offset)
        self._state.offsets.wrote()

    def _check_batches(self, view: memoryview, gaps: frozenset[Gap]) -> list[PlacedBatch]:
        batches: list[PlacedBatch] = []
        for position, header in iterate_batches(view, verify=False):
            verify_checksum(view, position, header)
            self._check_header(header, batches[-1].header if batches else None, gaps)
            batches.append(PlacedBatch(position, header))
        if not batches:
            raise CorruptBatchError("the leader has sent no batch")
        return batches

    def _check_header(self, header: BatchHeader, before: BatchHeader | None, gaps: Collection[Gap]) -> None:
        where = f"the leader's batch at offset {header.base_offset}"
        if min(header.leader_epoch, header.base_offset) < 0 or not _has_its_offsets(header):
            raise CorruptBatchError(
                f"{where} has {header.record_count} records, last offset delta {header.last_offset_delta}, epoch "
                f"{header.leader_epoch}"
            )
        if before is not None and not _follows(header, before.next_offset, gaps):
            raise CorruptBatchError(f"{where} does not follow the previous batch, which ends at {before.next_offset}")
        if before is not None and before.leader_epoch > header.leader_epoch:
            raise CorruptBatchError(
                f"{where} has leader epoch {header.leader_epoch}, below {before.leader_epoch} of the batch before"
            )
        try:
            self._state.schema_of(header.schema_id)
        except KeyError as e:
            raise UnknownSchemaError(
                f"{where} has schema {header.schema_id}, which this broker does not know yet"
            ) from e

    def _append(
        self,
        view: memoryview,
        batches: list[PlacedBatch],
        epochs: Sequence[EpochEntry],
        segments: Sequence[int],
        gaps: Sequence[Gap],
    ) -> AppendInfo:
        reach("log.before-append")
        state = self._state
        first, last = batches[0].header, batches[-1].header
        if first.leader_epoch < state.epochs.latest:
            raise FencedLeaderEpochError(
                f"{state.owner.topic_partition}: the leader's batch at offset {first.base_offset} has epoch "
                f"{first.leader_epoch}, this log has records of epoch {state.epochs.latest}"
            )
        self._begin_epochs((e for e in epochs if e.epoch <= last.leader_epoch), last.next_offset)
        for _, header in batches:
            if header.leader_epoch >= state.epochs.latest:  # else the leader has named the epochs after it already
                state.epochs.begin(header.leader_epoch, header.base_offset)
        behind_gaps = {behind for _, behind in gaps}
        for run in _split_at(batches, {*segments, *behind_gaps}):
            base = run[0].header.base_offset
            if not _is_compacted(run[0].header):
                for behind in _led_over(gaps, state.offsets.written, base):
                    self._begin_behind(behind, run[0].header.schema_id)
            active = state.segments.active
            if base in segments and active is not None and active.data_bytes:
                state.writer.roll_next = True
            state.offsets.reserve(run[-1].header.next_offset)
            state.enter(view, run, run[-1].header.append_time_ms)
        self._last_ms = last.append_time_ms
        records = sum(b.header.record_count for b in batches)
        return AppendInfo(
            first.base_offset, last.last_offset, last.append_time_ms, len(batches), records, size_bytes=len(view)
        )

    def _begin_epochs(self, epochs: Iterable[EpochEntry], end_offset: int) -> None:
        """Begin those of `epochs` that are newer than this log's and begin below `end_offset`."""
        state = self._state
        for epoch, start_offset in sorted(epochs):
            if state.epochs.latest < epoch and start_offset < end_offset:
                state.epochs.begin(epoch, max(start_offset, state.offsets.written))


def _split_at(batches: list[PlacedBatch], offsets: Collection[int]) -> Iterator[list[PlacedBatch]]:
    """Yield the batches in runs. Each run after the first begins at one of `offsets`."""
    begin = 0
    for i in range(1, len(batches)):
        if batches[i].header.base_offset in offsets:
            yield batches[begin:i]
            begin = i
    yield batches[begin:]


def _follows(header: BatchHeader, end: int, gaps: Collection[Gap]) -> bool:
    """Return True if the batch can be appended to a log that ends at `end`, given the `gaps` of the leader's log."""
    if header.base_offset <= end:
        return header.base_offset == end
    return _is_compacted(header) or bool(_led_over(gaps, end, header.base_offset))


def _led_over(gaps: Collection[Gap], end: int, base_offset: int) -> list[int]:
    """Return the ends of the adjacent gaps that reach from the log end to a batch at `base_offset`. Two repairs can
    leave adjacent gaps, on both sides of a segment's start. Empty if the gaps do not reach to the batch."""
    bounds = [end]
    behind_of = dict(gaps)
    while (behind := behind_of.get(bounds[-1], -1)) > bounds[-1]:
        bounds.append(behind)
        if behind == base_offset:
            return bounds[1:]
    return []


def _is_compacted(header: BatchHeader) -> bool:
    return bool(header.attributes & ATTRIBUTE_OFFSET_COLUMN)


def _has_its_offsets(header: BatchHeader) -> bool:
    """Return True if the batch has an offset for each record. It has more if compaction has removed records or a
    gateway has refused some, and for a mirror's gap. A marker has one."""
    if header.attributes & ATTRIBUTE_CONTROL:
        return header.last_offset_delta == 0
    return 0 <= header.record_count <= header.last_offset_delta + 1 and header.last_offset_delta >= 0
