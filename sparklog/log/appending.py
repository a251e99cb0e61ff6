"""Appending to one log: what producers, the broker and the transaction coordinator write.

What the batches hold is checked first (`append_check.py`). The rest of an append runs under the log's write lock: who may
write what is decided (`producers.py`), the batches are stamped and written, and entered everywhere, before the log end
moves and anybody sees them.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from sparklog.format.batch import BatchHeader, decode_header, encode_marker
from sparklog.log.append_check import check_payload, stamp_payload, with_repeated, without_repeated
from sparklog.log.log_view import LogView
from sparklog.log.model import AppendInfo, LogConfig
from sparklog.log.opening import LogParts
from sparklog.log.producer_files import LogBounds, ProducerFiles
from sparklog.log.producers import Guard, Issued, any_id
from sparklog.log.segment import PlacedBatch
from sparklog.log.stored_schema import SchemaOf
from sparklog.testing.faults import reach

PRODUCER_EXPIRATION_MS = 86_400_000
"""Default of `producer.id.expiration.ms`."""


class AppendableLog(LogView):
    """See the module."""

    def __init__(self, parts: LogParts) -> None:
        super().__init__(parts)
        self._clock = parts.clock
        self._expiry_clock = parts.expiry_clock
        self._newest_schema_id = parts.newest_schema_id
        self._producer_files = ProducerFiles(parts.files, parts.directory)
        self._append_time_ms = max((s.append_time_ms for s in self.segments), default=0)
        self._write_lock = threading.Lock()
        self._dirty = parts.writer.dirty
        self._load_producers()

    def raise_high_watermark(self, offset: int) -> None:
        """Moves the high watermark up to `offset`, at most to the log end; it never goes back."""
        self._offsets.raise_high_watermark(offset)
        self._producers.open.on_high_watermark(self._offsets.high_watermark)

    def reconfigure(self, config: LogConfig) -> None:
        """Settings for what is appended, rolled and deleted from now on."""
        with self._write_lock:
            self.config = config.for_partition(self.owner)
            self._producers.states.limit = self.config.producers_max

    def use_schemas(self, schema_of: SchemaOf, newest_id: int | None = None) -> None:
        """The topic's schemas from now on: those there were, and newer ones."""
        self._schema_of = self._writer.schema_of = schema_of
        if newest_id is not None:
            self._newest_schema_id = newest_id

    # --- appending ---

    def append(
        self,
        payload: bytearray | memoryview,
        *,
        leader_epoch: int = 0,
        guard: Guard | None = None,
        issued: Issued = any_id,
    ) -> AppendInfo:
        """Appends the batches in the writable `payload`, which are stamped in place, and nothing if any is wrong. What a
        producer has sent before is not written again, but answered with its offsets.

        `guard`: of `begin_verification`, for the first batch of a transaction. `issued`: asked for producer ids that are
        not known here. Raises CorruptBatchError, MessageTooLargeError, UnknownSchemaError, InvalidRequestError,
        InvalidProducerIdMappingError, InvalidProducerEpochError, OutOfOrderSequenceError, InvalidTxnStateError,
        ConcurrentTransactionsError (nothing was tried), StorageFullError, StorageError (what was written has been cut off
        again).
        """
        view = memoryview(payload).cast("B")
        self._health.check()
        found = check_payload(view, self.config, self._schema_of, self._clock.now_ms())
        with self._write_lock:
            self._health.check()
            return self._append_new(view, found, leader_epoch, guard, issued=issued)

    def append_internal(self, payload: bytearray | memoryview, *, leader_epoch: int = 0) -> AppendInfo:
        """`append` for what the broker itself writes: of any size, its transactions need no verification, its producers
        no sequence numbers (-1)."""
        view = memoryview(payload).cast("B")
        self._health.check()
        found = check_payload(view, self.config, self._schema_of, self._clock.now_ms(), internal=True)
        with self._write_lock:
            self._health.check()
            return self._append_new(view, found, leader_epoch, None, verified=True)

    def append_marker(
        self, producer_id: int, producer_epoch: int, coordinator_epoch: int, *, commit: bool, leader_epoch: int = 0
    ) -> AppendInfo:
        """Ends a producer's transaction. One that has been written already is answered with its offset.

        Raises InvalidProducerEpochError, CoordinatorFencedError (nothing was tried), StorageFullError, StorageError.
        """
        with self._write_lock:
            self._health.check()
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
        self._health.check()
        return self._producers.states.begin_verification(producer_id, producer_epoch, self.log_end_offset)

    def _append_new(
        self,
        view: memoryview,
        found: list[tuple[int, BatchHeader]],
        leader_epoch: int,
        guard: Guard | None,
        *,
        verified: bool = False,
        issued: Issued = any_id,
    ) -> AppendInfo:
        """Appends what is not in the log yet, if its producers may write it."""
        if all(header.producer_id < 0 for _, header in found):
            return self._append_checked(view, found, leader_epoch)[0]
        headers = [header for _, header in found]
        states = self._producers.states
        originals = states.admit(headers, self.log_end_offset, guard, verified=verified, issued=issued)
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
            if self._writer.failure is not None:
                self._health.fail(self._writer.failure)
            self._offsets.take_back()
            raise
        self._append_time_ms = now_ms
        self._producers.apply((b.header for b in batches), self.high_watermark)  # before anybody can read them
        self._offsets.wrote()
        if self._dirty.since_ms is None:
            self._dirty.since_ms = now_ms
        if self._writer.has_rolled:
            self._save_producers()
        elif self._writer.has_begun:
            self._writer.has_begun = False
            # Nothing else says so soon that the log has records: a lost file would not be missed. No reason for an fsync.
            self._producer_files.save(self._producers, self._segments.bases, self.log_end_offset, fsync=False)
        reach("log.after-append")
        records = sum(b.header.record_count for b in batches)
        return AppendInfo(first.base_offset, last.last_offset, now_ms, len(batches), records), batches

    def _finish_take_back(self) -> None:
        """What a failed append has left must go before anything else happens. Raises StorageUnavailableError,
        StorageError."""
        try:
            self._writer.finish_take_back()
        finally:
            if self._writer.failure is not None:
                self._health.fail(self._writer.failure)

    def roll(self) -> None:
        """Seals the active segment; the next append begins a new one. Without batches it does nothing."""
        with self._write_lock:
            self._health.check()
            last = self._segments.last
            if last is not None and last.data_bytes:
                if not last.is_sealed:
                    self._writer.seal(last)
                self._writer.roll_next = True

    def begin_segment(self) -> None:
        """Seals the last segment and begins an empty one, so that all that was written so far can be compacted."""
        with self._write_lock:
            self._health.check()
            last = self._segments.last
            if last is not None and last.data_bytes:
                self._writer.begin(self.log_end_offset, last.info.schema_id)
                self._save_producers()

    # --- producers ---

    def expire_producers(self, now_ms: int, expiration_ms: int = PRODUCER_EXPIRATION_MS) -> int:
        """Forgets producers that have written nothing for so long and have no transaction open; returns how many."""
        with self._write_lock:
            return self._producers.states.expire(now_ms, expiration_ms)

    def _load_producers(self) -> None:
        bounds = LogBounds(self.log_start_offset, self.local_log_start_offset, self.log_end_offset)
        self._producers = self._producer_files.load(
            self.local_segments,
            bounds,
            self.high_watermark,
            self._producers.safeguards,
            self.tier.before_local(self.local_segments),
            self.config.producers_max,
        )

    def _save_producers(self) -> None:
        """A snapshot of the producers at the log end."""
        self._writer.has_rolled = False
        self._producer_files.save(self._producers, self._segments.bases, self.log_end_offset)
