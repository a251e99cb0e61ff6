"""What a partition knows of its producers, and which of their batches it takes: pure rules, no files, no clock.

Per producer id: epoch, the last five batches, the open transaction (KIP-98, KIP-360, KIP-890). `admit` looks at batches
that a client wants to append and changes nothing; `apply` enters a batch that is in the log, without asking whether it
should be: batches that were appended once are replayed with it after a start or a truncation.

Sequence numbers: row i of a batch has `base_sequence + i`, and 0 follows 2^31 - 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparklog.errors import (
    CoordinatorFencedError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
)
from sparklog.format.batch import ATTRIBUTE_COMMIT, ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL, BatchHeader
from sparklog.format.producer_snapshot import BATCHES_MAX, ProducedBatch, ProducerState

SEQUENCE_MAX = 2**31 - 1
ENDED_EXPIRATION_MS = 900_000
"""A producer of which nothing is known but its last marker is forgotten after this: sinks use producer ids once. The
marker fences late batches, but so does the verification that these need."""
NONE = -1


@dataclass(frozen=True)
class Safeguards:
    """Which rules hold. Only tests switch one off, to see that something breaks without it."""

    epoch_check: bool = True
    sequence_check: bool = True
    five_batch_memory: bool = True
    verification_guard: bool = True
    marker_epoch_rule: bool = True


ALL_SAFEGUARDS = Safeguards()


class EndedTransaction(NamedTuple):
    """A transaction that a marker has ended: `last_offset` is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    committed: bool


class Guard:
    """A verification under way: the object itself is the proof, so that a marker in between can make it void."""

    __slots__ = ("created_ms", "producer_epoch", "producer_id")

    def __init__(self, producer_id: int, producer_epoch: int, created_ms: int) -> None:
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.created_ms = created_ms


def sequence_after(sequence: int, rows: int = 1) -> int:
    """The sequence number `rows` behind `sequence`."""
    return (sequence + rows) & SEQUENCE_MAX


def last_sequence_of(header: BatchHeader) -> int:
    """Of the rows the batch had when it was appended; compaction takes rows away, never offsets."""
    return sequence_after(header.base_sequence, header.last_offset_delta)


class ProducerStates:
    """The producers of one partition."""

    def __init__(self, states: Iterable[ProducerState] = (), safeguards: Safeguards = ALL_SAFEGUARDS) -> None:
        self._states = {s.producer_id: s for s in states}
        self._guards: dict[int, Guard] = {}
        self._safeguards = safeguards

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[ProducerState]:
        return iter(list(self._states.values()))

    def get(self, producer_id: int) -> ProducerState | None:
        return self._states.get(producer_id)

    # --- what a client sends ---

    def admit(
        self, headers: Sequence[BatchHeader], next_offset: int, guard: Guard | None, *, verified: bool = False
    ) -> list[ProducedBatch | None]:
        """For every batch the one it repeats, or None if it is new, to be appended. The first new one gets `next_offset`,
        the others follow. `verified`: transactions need no guard (the coordinator itself writes).

        Raises InvalidProducerEpochError, OutOfOrderSequenceError, InvalidTxnStateError; then none may be appended.
        """
        seen: dict[int, ProducerState] = {}
        found: list[ProducedBatch | None] = []
        for header in headers:
            original = None
            if header.producer_id >= 0:
                state = seen.get(header.producer_id) or self._states.get(header.producer_id)
                original = self._admit_one(header, state, None if verified else guard, verified=verified)
                if original is None and len(headers) > 1:
                    seen[header.producer_id] = self._with_batch(state, header._replace(base_offset=next_offset))
            found.append(original)
            if original is None:
                next_offset += header.last_offset_delta + 1
        return found

    def _admit_one(
        self, header: BatchHeader, state: ProducerState | None, guard: Guard | None, *, verified: bool
    ) -> ProducedBatch | None:
        if state is not None:
            if self._safeguards.epoch_check and header.producer_epoch < state.epoch:
                raise InvalidProducerEpochError(
                    f"producer {header.producer_id} has epoch {state.epoch} by now, the batch has {header.producer_epoch}"
                )
            is_same = header.producer_epoch == state.epoch
            due = sequence_after(state.last_sequence) if is_same and state.batches else 0
            if header.base_sequence not in (due, NONE):  # what a coordinator writes has none
                original = _repeated(header, state) if is_same else None
                if original is not None:
                    return original
                if self._safeguards.sequence_check:
                    raise OutOfOrderSequenceError(
                        f"producer {header.producer_id} epoch {header.producer_epoch}: sequence "
                        f"{header.base_sequence} where {due} is due"
                    )
        self._check_transaction(header, state, guard, verified=verified)
        return None

    def _check_transaction(
        self, header: BatchHeader, state: ProducerState | None, guard: Guard | None, *, verified: bool
    ) -> None:
        transactional = bool(header.attributes & ATTRIBUTE_TRANSACTIONAL)
        if state is not None and state.transaction_first_offset >= 0:
            if not transactional:
                raise InvalidTxnStateError(
                    f"{_name(header)} has a transaction open here; this batch does not belong to it"
                )
            if header.producer_epoch != state.epoch and self._safeguards.epoch_check:
                raise InvalidTxnStateError(
                    f"the transaction of {_name(header)} with epoch {state.epoch} has not ended here"
                )
        elif transactional and not verified and self._safeguards.verification_guard:
            current = self._guards.get(header.producer_id)
            if guard is None or guard is not current or guard.producer_epoch != header.producer_epoch:
                raise InvalidTxnStateError(
                    f"nobody has verified that the transaction of {_name(header)} includes this partition, or it has ended since"
                )

    def begin_verification(self, producer_id: int, producer_epoch: int, now_ms: int) -> Guard | None:
        """A guard to append the first batch of a transaction with, once the coordinator has been asked; None: the
        transaction is open here. Raises InvalidProducerEpochError."""
        state = self._states.get(producer_id)
        if state is not None:
            if producer_epoch < state.epoch and self._safeguards.epoch_check:
                raise InvalidProducerEpochError(
                    f"producer {producer_id} has epoch {state.epoch} by now, the batch has {producer_epoch}"
                )
            if state.transaction_first_offset >= 0 and state.epoch == producer_epoch:
                return None
        guard = Guard(producer_id, producer_epoch, now_ms)
        known = self._guards.setdefault(producer_id, guard)
        if known.producer_epoch == producer_epoch:
            return known
        if known.producer_epoch < producer_epoch:
            self._guards[producer_id] = guard
        return guard

    # --- what a coordinator sends ---

    def admit_marker(self, producer_id: int, producer_epoch: int, coordinator_epoch: int) -> ProducerState | None:
        """None: the marker is to be written. The producer's state: it has been written already.

        Raises InvalidProducerEpochError, CoordinatorFencedError.
        """
        state = self._states.get(producer_id)
        if state is None:
            return None
        if coordinator_epoch < state.coordinator_epoch:
            raise CoordinatorFencedError(
                f"producer {producer_id} has a marker of coordinator epoch {state.coordinator_epoch}, "
                f"this one is of {coordinator_epoch}"
            )
        if not self._safeguards.marker_epoch_rule:
            return None
        is_open = state.transaction_first_offset >= 0
        if producer_epoch < state.epoch or (producer_epoch == state.epoch and is_open):
            raise InvalidProducerEpochError(
                f"producer {producer_id} has epoch {state.epoch}, a marker with {producer_epoch} is of an older transaction"
            )
        return state if producer_epoch == state.epoch else None

    # --- what is in the log ---

    def apply(self, header: BatchHeader) -> EndedTransaction | None:
        """Enters a batch or marker that is in the log; the transaction that it has ended, if any."""
        producer_id = header.producer_id
        if producer_id < 0:
            return None
        before = self._states.get(producer_id)
        if not header.attributes & ATTRIBUTE_CONTROL:
            self._states[producer_id] = self._with_batch(before, header)
            if header.attributes & ATTRIBUTE_TRANSACTIONAL:
                self._guards.pop(producer_id, None)
            return None
        self._guards.pop(producer_id, None)
        same_epoch = before is not None and before.epoch >= header.producer_epoch
        self._states[producer_id] = ProducerState(
            producer_id,
            header.append_time_ms,
            header.base_offset,
            NONE,
            max(header.base_sequence, before.coordinator_epoch if before is not None else NONE),
            before.epoch if before is not None and same_epoch else header.producer_epoch,
            before.batches if before is not None and same_epoch else (),
        )
        if before is None or before.transaction_first_offset < 0:
            return None
        committed = bool(header.attributes & ATTRIBUTE_COMMIT)
        return EndedTransaction(producer_id, before.transaction_first_offset, header.last_offset, committed)

    def _with_batch(self, state: ProducerState | None, header: BatchHeader) -> ProducerState:
        batch = ProducedBatch(
            header.base_offset,
            header.last_offset,
            header.append_time_ms,
            header.base_sequence,
            last_sequence_of(header),
        )
        first = NONE if state is None else state.transaction_first_offset
        if first < 0 and header.attributes & ATTRIBUTE_TRANSACTIONAL and header.record_count:
            first = header.base_offset  # a batch without rows is what compaction has left of an ended one
        new = (batch,) if header.base_sequence >= 0 else ()  # a coordinator's have no sequence
        if state is None:
            return ProducerState(
                header.producer_id, header.append_time_ms, NONE, first, NONE, header.producer_epoch, new
            )
        earlier = state.batches if header.producer_epoch == state.epoch else ()
        remembered = BATCHES_MAX if self._safeguards.five_batch_memory else 1
        return state._replace(
            epoch=header.producer_epoch,
            batches=(*earlier, *new)[-remembered:],
            last_time_ms=header.append_time_ms,
            transaction_first_offset=first,
        )

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forgets producers that have written nothing for so long and have no transaction open; returns how many."""
        ended_ms = min(expiration_ms, ENDED_EXPIRATION_MS)
        gone = [
            s.producer_id
            for s in self._states.values()
            if s.transaction_first_offset < 0 and now_ms - s.last_time_ms > (expiration_ms if s.batches else ended_ms)
        ]
        for producer_id in gone:
            del self._states[producer_id]
        for guard in list(self._guards.values()):
            if now_ms - guard.created_ms > expiration_ms:
                self._guards.pop(guard.producer_id, None)
        return len(gone)


def _name(header: BatchHeader) -> str:
    return f"producer {header.producer_id} epoch {header.producer_epoch}"


def _repeated(header: BatchHeader, state: ProducerState) -> ProducedBatch | None:
    last = last_sequence_of(header)
    for batch in state.batches:
        if batch.first_sequence == header.base_sequence and batch.last_sequence == last:
            return batch
    return None
