"""A partition's state of its producers, and the admission of their batches: pure rules, without files and clock.

The state per producer id is its epoch, its last five batches and its open transaction (KIP-98, KIP-360, KIP-890).
`admit` checks batches that a client wants to append and changes nothing. `apply` enters a batch that is in the log,
without a check: after an append, and when the log is replayed after a start or a truncation.

There are at most `limit` producers, unless more have an open transaction. A new producer replaces the longest unused
producer of which only a marker is known; if there is none, the longest unused one without an open transaction. Refused
batches, and batches whose transaction is not verified yet, leave no state.

Sequence numbers: row i of a batch has `base_sequence + i`, and 0 follows 2^31 - 1.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from sparklog.errors import (
    ConcurrentTransactionsError,
    CoordinatorFencedError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
)
from sparklog.format.batch import (
    ATTRIBUTE_COMMIT,
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_OFFSET_COLUMN,
    ATTRIBUTE_TRANSACTIONAL,
    BatchHeader,
)
from sparklog.format.producer_snapshot import BATCHES_MAX, CRC_UNKNOWN, ProducedBatch, ProducerState

SEQUENCE_MAX = 2**31 - 1
ENDED_EXPIRATION_MS = 900_000
"""Time after which a producer is forgotten of which only a marker is known: sinks use a producer id once. The marker
fences late batches, but so does the verification that late batches need."""
EPOCHS_AHEAD_MAX = 1_000
"""Largest accepted difference between the epoch in a batch outside transactions and the producer's epoch known here (0
if unknown). Producers without transactions raise their epoch themselves, by one at a time."""
PRODUCERS_MAX = 10_000
"""Default of `max.producers.per.partition`."""
NONE = -1

Issued = Callable[[int], bool]
"""Returns True if a producer id has been issued."""


def any_id(_: int) -> bool:
    """Accept every id, if no store issues them."""
    return True


@dataclass(frozen=True)
class Safeguards:
    """Switches of the rules. Only tests turn a rule off, to show that they notice its absence."""

    epoch_check: bool = True
    sequence_check: bool = True
    five_batch_memory: bool = True
    verification_guard: bool = True
    marker_epoch_rule: bool = True
    content_check: bool = True
    issued_check: bool = True


ALL_SAFEGUARDS = Safeguards()


class EndedTransaction(NamedTuple):
    """A transaction that a marker has ended; `last_offset` is the offset of the marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    committed: bool


class Guard:
    """A verification in progress. It is valid until a marker of the producer is written at or above `next_offset`, the
    log end when the verification began. `owner`: the object that issued the guard; a truncation replaces that object.
    `started_ms`: time at which the transaction began, by the coordinator's clock; -1: not known."""

    __slots__ = ("next_offset", "owner", "producer_epoch", "producer_id", "started_ms")

    def __init__(self, owner: ProducerStates, producer_id: int, producer_epoch: int, next_offset: int) -> None:
        self.owner = owner
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.next_offset = next_offset
        self.started_ms = NONE


def sequence_after(sequence: int, rows: int = 1) -> int:
    """Return the sequence number `rows` after `sequence`."""
    return (sequence + rows) & SEQUENCE_MAX


def last_sequence_of(header: BatchHeader) -> int:
    """Return the last sequence number of the batch at its append; compaction removes rows, never offsets."""
    return sequence_after(header.base_sequence, header.last_offset_delta)


class ProducerStates:
    """The producers of one partition."""

    def __init__(
        self,
        states: Iterable[ProducerState] = (),
        safeguards: Safeguards = ALL_SAFEGUARDS,
        limit: int = PRODUCERS_MAX,
    ) -> None:
        self.limit = limit
        self._states: dict[int, ProducerState] = {}
        # producer ids in the order of their last use: with an open transaction; with only a marker; the rest
        self._open: OrderedDict[int, None] = OrderedDict()
        self._ended_ids: OrderedDict[int, None] = OrderedDict()
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._forgotten_marker = NONE
        """Offset of the newest marker of all forgotten producers."""
        self._started_ms: dict[int, int] = {}
        """Start times of the open transactions that were verified here, by producer id. Not in the snapshot."""
        self._safeguards = safeguards
        for state in sorted(states, key=lambda s: s.last_time_ms):
            self._enter(None, state)

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[ProducerState]:
        return iter(list(self._states.values()))

    def by_last_use(self) -> list[ProducerState]:
        """Return the producers for a snapshot: those with an open transaction, those with only a marker, the rest. Each
        group begins with the longest unused producer. Do not call this while a batch is entered."""
        return [self._states[i] for order in (self._open, self._ended_ids, self._idle) for i in order]

    def get(self, producer_id: int) -> ProducerState | None:
        return self._states.get(producer_id)

    # --- batches of clients ---

    def admit(
        self,
        headers: Sequence[BatchHeader],
        next_offset: int,
        guard: Guard | None,
        *,
        verified: bool = False,
        issued: Issued = any_id,
    ) -> list[ProducedBatch | None]:
        """Return for every batch the stored batch that it repeats, or None if the batch is new and can be appended. The
        first new batch gets `next_offset`, and further new batches follow it. `verified`: transactions need no guard,
        because the broker itself writes.

        Raises InvalidProducerIdMappingError (the id was never issued), InvalidProducerEpochError,
        OutOfOrderSequenceError, InvalidTxnStateError, ConcurrentTransactionsError; then no batch must be appended.
        """
        seen: dict[int, ProducerState] = {}
        originals: list[ProducedBatch | None] = []
        for header in headers:
            original = None
            if header.producer_id >= 0:
                state = seen.get(header.producer_id) or self._states.get(header.producer_id)
                if not verified and (state is None or header.producer_epoch != state.epoch):
                    self._check_issued(header, state, issued)
                original = self._admit_one(header, state, None if verified else guard, verified=verified)
                if original is None and len(headers) > 1:
                    seen[header.producer_id] = self._with_batch(state, header._replace(base_offset=next_offset))
            originals.append(original)
            if original is None:
                next_offset += header.last_offset_delta + 1
        return originals

    def begin(self, guard: Guard) -> None:
        """Record the start time of a verified transaction, whose first batch is about to be written."""
        self._started_ms[guard.producer_id] = guard.started_ms

    def _check_issued(self, header: BatchHeader, state: ProducerState | None, issued: Issued) -> None:
        """Check that the producer id was issued, and that the producer can have reached the batch's epoch. The epoch of
        a transactional batch is not checked here: the coordinator verifies it."""
        if not self._safeguards.issued_check:
            return
        if state is None and not issued(header.producer_id):
            raise InvalidProducerIdMappingError(
                f"producer id {header.producer_id} was never issued: request one with INIT_PRODUCER_ID"
            )
        epoch = 0 if state is None else state.epoch
        ahead = header.producer_epoch - epoch
        if ahead > EPOCHS_AHEAD_MAX and not header.attributes & ATTRIBUTE_TRANSACTIONAL:
            raise InvalidProducerEpochError(
                f"producer {header.producer_id} has epoch {epoch} in this partition, and epoch "
                f"{header.producer_epoch} is impossible: request a new id with INIT_PRODUCER_ID"
            )

    def _admit_one(
        self, header: BatchHeader, state: ProducerState | None, guard: Guard | None, *, verified: bool
    ) -> ProducedBatch | None:
        if state is not None:
            if self._safeguards.epoch_check and header.producer_epoch < state.epoch:
                raise InvalidProducerEpochError(
                    f"producer {header.producer_id} has the newer epoch {state.epoch}, the batch has "
                    f"{header.producer_epoch}"
                )
            is_same = header.producer_epoch == state.epoch
            due = sequence_after(state.last_sequence) if is_same and state.batches else 0
            if header.base_sequence not in (due, NONE):  # a coordinator's batches have none
                original = self._repeated_batch(header, state) if is_same else None
                if original is not None:
                    return original
                if self._safeguards.sequence_check:
                    raise OutOfOrderSequenceError(
                        f"producer {header.producer_id} epoch {header.producer_epoch}: sequence number "
                        f"{header.base_sequence} where {due} is expected"
                    )
        self._check_transaction(header, state, guard, verified=verified)
        if state is None and len(self._open) >= self.limit and not verified:
            raise ConcurrentTransactionsError(
                f"{len(self._open)} producers have an open transaction in this partition, "
                f"max.producers.per.partition is {self.limit}: try again when some transactions have ended"
            )
        return None

    def _repeated_batch(self, header: BatchHeader, state: ProducerState) -> ProducedBatch | None:
        """Return the stored batch with the sequence numbers of `header`, or None. Raises OutOfOrderSequenceError if the
        stored batch has other content: a batch must not be acknowledged if another one is stored."""
        last = last_sequence_of(header)
        for batch in state.batches:
            if batch.first_sequence == header.base_sequence and batch.last_sequence == last:
                if batch.crc not in (header.crc, CRC_UNKNOWN) and self._safeguards.content_check:
                    raise OutOfOrderSequenceError(
                        f"{_name(header)}: another batch with sequence {header.base_sequence} is stored at offset "
                        f"{batch.base_offset}; another client writes with this producer's id"
                    )
                return batch
        return None

    def _check_transaction(
        self, header: BatchHeader, state: ProducerState | None, guard: Guard | None, *, verified: bool
    ) -> None:
        transactional = bool(header.attributes & ATTRIBUTE_TRANSACTIONAL)
        if state is not None and state.transaction_first_offset >= 0:
            if not transactional:
                raise InvalidTxnStateError(
                    f"{_name(header)} has an open transaction in this partition; this batch does not belong to it"
                )
            if header.producer_epoch != state.epoch and self._safeguards.epoch_check:
                raise InvalidTxnStateError(
                    f"the transaction of {_name(header)} with epoch {state.epoch} has not ended in this partition"
                )
        elif transactional and not verified and self._safeguards.verification_guard:
            self._check_guard(header, state, guard)

    def _check_guard(self, header: BatchHeader, state: ProducerState | None, guard: Guard | None) -> None:
        """Check that the coordinator was asked about the batch's transaction, and that no marker has arrived since."""
        producer = header.producer_id, header.producer_epoch
        if guard is None or guard.owner is not self or (guard.producer_id, guard.producer_epoch) != producer:
            raise InvalidTxnStateError(
                f"it was not verified that the transaction of {_name(header)} includes this partition"
            )
        if state is not None and state.marker_offset >= guard.next_offset:
            raise InvalidTxnStateError(f"the transaction of {_name(header)} has ended")
        if state is None and self._forgotten_marker >= guard.next_offset:
            raise ConcurrentTransactionsError(
                f"the state of the transaction of {_name(header)} is not known: try again"
            )

    def begin_verification(self, producer_id: int, producer_epoch: int, next_offset: int) -> Guard | None:
        """Return the guard that the append of a transaction's first batch needs; take it before you ask the
        coordinator. None: the transaction is open in this partition. `next_offset`: the log end. Raises
        InvalidProducerEpochError."""
        state = self._states.get(producer_id)
        if state is not None:
            if producer_epoch < state.epoch and self._safeguards.epoch_check:
                raise InvalidProducerEpochError(
                    f"producer {producer_id} has the newer epoch {state.epoch}, the batch has {producer_epoch}"
                )
            if state.transaction_first_offset >= 0 and state.epoch == producer_epoch:
                return None
        return Guard(self, producer_id, producer_epoch, next_offset)

    # --- markers of coordinators ---

    def admit_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        *,
        keeps_epoch: bool = False,
        started_ms: int = NONE,
    ) -> ProducerState | None:
        """Return None if the marker is to be written, or the producer's state if the marker was written already.

        `keeps_epoch`: the producer keeps its epoch after the transaction. A repeated marker of this kind is written
        again: its epoch does not show if the marker was written before, and a marker makes the guards of late batches
        void. `started_ms`: start of the transaction; a delayed marker must not end a later transaction of its epoch.

        Raises InvalidProducerEpochError, CoordinatorFencedError.
        """
        state = self._states.get(producer_id)
        if state is None:
            return None
        if coordinator_epoch < state.coordinator_epoch:
            raise CoordinatorFencedError(
                f"producer {producer_id} has a marker of coordinator epoch {state.coordinator_epoch}, newer than "
                f"epoch {coordinator_epoch} of this marker"
            )
        if not self._safeguards.marker_epoch_rule:
            return None
        if keeps_epoch and producer_epoch == state.epoch:
            if NONE < started_ms < self._started_ms.get(producer_id, NONE):
                raise InvalidProducerEpochError(
                    f"the transaction of producer {producer_id} in this partition began after the transaction of the "
                    "marker"
                )
            return None
        is_open = state.transaction_first_offset >= 0
        if producer_epoch < state.epoch or (producer_epoch == state.epoch and is_open):
            raise InvalidProducerEpochError(
                f"producer {producer_id} has epoch {state.epoch}, a marker with epoch {producer_epoch} belongs to an "
                "older transaction"
            )
        return state if producer_epoch == state.epoch else None

    # --- batches in the log ---

    def apply(self, header: BatchHeader) -> EndedTransaction | None:
        """Enter a batch or marker that is in the log; return the transaction that it has ended, if any."""
        producer_id = header.producer_id
        if producer_id < 0:
            return None
        before = self._states.get(producer_id)
        if not header.attributes & ATTRIBUTE_CONTROL:
            self._enter(before, self._with_batch(before, header))
            return None
        self._started_ms.pop(producer_id, None)
        same_epoch = before is not None and before.epoch >= header.producer_epoch
        after = ProducerState(
            producer_id,
            header.append_time_ms,
            header.base_offset,
            NONE,
            max(header.base_sequence, before.coordinator_epoch if before is not None else NONE),
            before.epoch if before is not None and same_epoch else header.producer_epoch,
            before.batches if before is not None and same_epoch else (),
        )
        self._enter(before, after)
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
            CRC_UNKNOWN if header.attributes & ATTRIBUTE_OFFSET_COLUMN else header.crc,  # compaction writes its own
        )
        first = NONE if state is None else state.transaction_first_offset
        if first < 0 and header.attributes & ATTRIBUTE_TRANSACTIONAL and header.record_count:
            first = header.base_offset  # a batch without rows is left by compaction; its transaction has ended
        new = (batch,) if header.base_sequence >= 0 else ()  # batches of a coordinator have no sequence
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

    def _enter(self, before: ProducerState | None, state: ProducerState) -> None:
        """Replace `before` by `state`, as the most recently used producer. If there are too many producers now, forget
        the longest unused without an open transaction."""
        producer_id = state.producer_id
        self._states[producer_id] = state
        order = self._order_of(state)
        if before is not None:
            earlier = self._order_of(before)
            if earlier is order:
                order.move_to_end(producer_id)
                return
            del earlier[producer_id]
        order[producer_id] = None
        while len(self._states) > self.limit and (self._ended_ids or self._idle):
            self._forget(next(iter(self._ended_ids or self._idle)))

    def _order_of(self, state: ProducerState) -> OrderedDict[int, None]:
        if state.transaction_first_offset >= 0:
            return self._open
        return self._idle if state.batches else self._ended_ids

    def _forget(self, producer_id: int) -> None:
        state = self._states.pop(producer_id)
        self._started_ms.pop(producer_id, None)
        del self._order_of(state)[producer_id]
        self._forgotten_marker = max(self._forgotten_marker, state.marker_offset)

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that have written nothing for `expiration_ms` and have no open transaction; return their
        number. If only a marker of a producer is known, ENDED_EXPIRATION_MS counts if it is shorter."""
        before = len(self._states)
        for order, idle_ms in ((self._idle, expiration_ms), (self._ended_ids, min(expiration_ms, ENDED_EXPIRATION_MS))):
            while order and now_ms - self._states[producer_id := next(iter(order))].last_time_ms > idle_ms:
                self._forget(producer_id)
        return before - len(self._states)


def _name(header: BatchHeader) -> str:
    return f"producer {header.producer_id} epoch {header.producer_epoch}"
