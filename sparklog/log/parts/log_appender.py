"""Appends to one log, for producers, the broker and the transaction coordinator.

The content of the batches is checked first (`check.py`). The rest of an append runs under the log's write lock: the
producers' state admits the batches (`producers/states.py`), they are stamped and written to the segment, and the
producers' state takes them in. Only then does the log end move, and readers see the batches.
"""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.environment.fault_points import reach
from sparklog.errors import OffsetOutOfRangeError
from sparklog.format.batch import BatchHeader, decode_header, encode_marker
from sparklog.log.model.log_config import AppendInfo
from sparklog.log.producers.states import Guard, Issued, any_id
from sparklog.log.segments.segment import PlacedBatch
from sparklog.log.state.check import check_payload, check_placed, stamp_payload, with_repeated, without_repeated
from sparklog.log.state.log_state import LogState

PRODUCER_EXPIRATION_MS = 86_400_000
"""Default of `producer.id.expiration.ms`."""


class LogAppender:
    """Appends batches to the log. Every method acquires the log's write lock, so one thread appends at a time."""

    def __init__(self, state: LogState) -> None:
        self._state = state

    def append(
        self,
        payload: bytearray | memoryview,
        *,
        leader_epoch: int = 0,
        guard: Guard | None = None,
        issued: Issued = any_id,
        converted: bool = False,
    ) -> AppendInfo:
        """Append the batches in the writable `payload`, which are stamped in place; nothing if any batch is wrong. A
        batch that its producer has sent before is not written again; the result has the offsets of its first append.

        `guard`: result of `begin_verification`, for the first batch of a transaction. `issued`: called with producer
        ids that are unknown here; returns True if the id was issued. `converted`: as for `check_payload`.

        Raises CorruptBatchError, MessageTooLargeError,
        UnknownSchemaError, InvalidTimestampError, InvalidRequestError, InvalidProducerIdMappingError,
        InvalidProducerEpochError, OutOfOrderSequenceError, InvalidTxnStateError, ConcurrentTransactionsError,
        FencedLeaderEpochError (all before the first write), StorageFullError, StorageError (written bytes are cut off
        again, at once or before the next write).
        """
        view = memoryview(payload).cast("B")
        self._state.health.check()
        state = self._state
        batches = check_payload(
            view, state.config, state.schema_of, state.clock.now_ms(), state.inflated, converted=converted
        )
        with self._state.write_lock:
            self._state.health.check()
            return self._append_new(view, batches, leader_epoch, guard, issued=issued)

    def append_at(self, payload: bytearray | memoryview, expected_offset: int, *, leader_epoch: int = 0) -> AppendInfo:
        """Append batches at their own offsets, which begin at `expected_offset`, only if the log ends there. Each batch
        has the column of offsets, and spans the offsets without records before, between and behind its rows; or it has
        neither the column nor such offsets. A batch without rows is a gap. The batches get the stamps of this log,
        except their offsets, and append times that are the timestamps of their records.

        Raises OffsetOutOfRangeError if the log ends elsewhere; CorruptBatchError, MessageTooLargeError,
        UnknownSchemaError, InvalidRequestError, FencedLeaderEpochError (all before the first write), StorageFullError,
        StorageError (written bytes are cut off again, at once or before the next write).
        """
        view = memoryview(payload).cast("B")
        state = self._state
        state.health.check()
        batches = check_placed(view, state.config, state.schema_of, state.inflated, expected_offset)
        with state.write_lock:
            state.health.check()
            end = state.offsets.written
            if end != expected_offset:
                raise OffsetOutOfRangeError(
                    f"{state.owner.topic_partition} ends at {end}, the batches begin at {expected_offset}: read the "
                    "log's end, and send the records after it"
                )
            return self._append_checked(view, batches, leader_epoch, keeps_times=True)[0]

    def append_internal(self, payload: bytearray | memoryview, *, leader_epoch: int = 0) -> AppendInfo:
        """Append batches of the broker itself. They can have any size, their transactions need no verification, and
        their producers can leave out sequence numbers (-1). Raises the same errors as `append`."""
        view = memoryview(payload).cast("B")
        self._state.health.check()
        batches = check_payload(
            view,
            self._state.config,
            self._state.schema_of,
            self._state.clock.now_ms(),
            self._state.inflated,
            internal=True,
        )
        with self._state.write_lock:
            self._state.health.check()
            return self._append_new(view, batches, leader_epoch, None, verified=True)

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        *,
        commit: bool,
        leader_epoch: int = 0,
        started_ms: int = -1,
        keeps_epoch: bool = False,
    ) -> AppendInfo:
        """End a producer's transaction. A repeated marker is not written again; the result has its offset.

        `keeps_epoch`: the producer keeps `producer_epoch`, the epoch of its batches, after the transaction.

        `started_ms`: time at which the transaction began, the same in the markers of all its participants; -1: not
        known.

        Raises InvalidProducerEpochError, CoordinatorFencedError, FencedLeaderEpochError (all before the first write),
        StorageFullError, StorageError.
        """
        with self._state.write_lock:
            self._state.health.check()
            state = self._state.producers.states.admit_marker(
                producer_id, producer_epoch, coordinator_epoch, keeps_epoch=keeps_epoch, started_ms=started_ms
            )
            if state is not None:
                offset = max(state.marker_offset, 0)
                return AppendInfo(offset, offset, state.last_time_ms, 0, 0, duplicate=True)
            last = self._state.segments.last
            schema_id = self._state.newest_schema_id if last is None else last.info.schema_id
            view = encode_marker(
                self._state.schema_of(schema_id),
                schema_id=schema_id,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                coordinator_epoch=coordinator_epoch,
                commit=commit,
                timestamp_ms=max(self._state.clock.now_ms(), self._state.append_time_ms),
                started_ms=started_ms,
            )
            return self._append_checked(view, [(0, decode_header(view))], leader_epoch)[0]

    def begin_verification(self, producer_id: int, producer_epoch: int) -> Guard | None:
        """Return the guard that `append` needs for the first batch of a transaction. Take the guard before you ask the
        coordinator: a marker that is written after this moment makes the guard void. Returns None if the transaction is
        open here, so the coordinator need not be asked.

        Raises InvalidProducerEpochError.
        """
        self._state.health.check()
        return self._state.producers.states.begin_verification(producer_id, producer_epoch, self._state.offsets.written)

    def _append_new(
        self,
        view: memoryview,
        batches: list[tuple[int, BatchHeader]],
        leader_epoch: int,
        guard: Guard | None,
        *,
        verified: bool = False,
        issued: Issued = any_id,
    ) -> AppendInfo:
        """Append the batches that are not in the log yet, after a check of their producers' state."""
        if all(header.producer_id < 0 for _, header in batches):
            return self._append_checked(view, batches, leader_epoch)[0]
        headers = [header for _, header in batches]
        states = self._state.producers.states
        originals = states.admit(headers, self._state.offsets.written, guard, verified=verified, issued=issued)
        if guard is not None and not all(originals):
            states.begin(guard)
        if not any(originals):
            return self._append_checked(view, batches, leader_epoch)[0]
        view, batches = without_repeated(view, batches, originals)
        if not batches:
            return with_repeated(None, [], originals)
        return with_repeated(*self._append_checked(view, batches, leader_epoch), originals)

    def _append_checked(
        self,
        view: memoryview,
        placed: Sequence[tuple[int, BatchHeader]],
        leader_epoch: int,
        *,
        keeps_times: bool = False,
    ) -> tuple[AppendInfo, list[PlacedBatch]]:
        """Stamp and write the batches `found`, which fill `view`. Returns the result, and the batches with stamps."""
        reach("log.before-append")
        now_ms = max(self._state.clock.now_ms(), self._state.append_time_ms)
        self._state.epochs.begin(leader_epoch, self._state.offsets.written)
        end = self._state.offsets.written
        batches = stamp_payload(view, placed, end, leader_epoch, now_ms, keeps_times=keeps_times)
        first, last = batches[0].header, batches[-1].header
        self._state.offsets.reserve(last.next_offset)
        self._state.enter(view, batches, now_ms)
        records = sum(b.header.record_count for b in batches)
        return AppendInfo(
            first.base_offset, last.last_offset, now_ms, len(batches), records, size_bytes=len(view)
        ), batches

    def roll(self) -> None:
        """Seal the active segment; the next append begins a new segment. Does nothing if the segment has no batch."""
        with self._state.write_lock:
            self._state.health.check()
            last = self._state.segments.active
            if last is not None and last.data_bytes:
                if not last.is_sealed:
                    self._state.writer.seal(last)
                self._state.writer.roll_next = True

    def begin_segment(self) -> None:
        """Seal the last segment and begin an empty one, so that all records written so far can be compacted."""
        with self._state.write_lock:
            self._state.health.check()
            last = self._state.segments.last
            if last is not None and last.data_bytes:
                self._state.writer.begin(self._state.offsets.written, last.info.schema_id)
                self._state.save_producers()

    # --- producers ---

    def expire_producers(self, now_ms: int, expiration_ms: int = PRODUCER_EXPIRATION_MS) -> int:
        """Forget producers that have written nothing for `expiration_ms` and have no open transaction; return their
        number."""
        with self._state.write_lock:
            return self._state.producers.states.expire(now_ms, expiration_ms)
