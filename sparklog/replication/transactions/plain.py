"""Transactions of one producer each, under its transactional id (KIP-98, KIP-360, KIP-890 second form).

Every end raises the epoch. A late request or batch of the previous transaction therefore has an older epoch, and is
refused. `previous` is the identity before the end: a repeated END_TXN with this identity gets the same answer.

Older Kafka clients keep their epoch at an end that they request (KIP-98); `previous` then equals the identity. An end
that the coordinator decides raises the epoch, so that late batches of an aborted transaction cannot begin another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from msgspec import Struct, field

from sparklog.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    ProducerFencedError,
    SparklogError,
    TransactionAbortedError,
)
from sparklog.protocol.transaction_messages import TransactionSummary
from sparklog.replication.transactions import records
from sparklog.replication.transactions.machine import TransactionMachine, is_idle
from sparklog.replication.transactions.model import (
    CLIENT_EPOCH_MAX,
    NO_ID,
    TRANSACTIONAL_ID_CHARS_MAX,
    Abort,
    AddPartitions,
    Effects,
    End,
    InitProducer,
    Result,
    State,
    check_name,
)
from sparklog.types import ProducerIdAndEpoch, TopicPartition

NOBODY = ProducerIdAndEpoch(NO_ID, NO_ID)
IDLE_LOOK_MAX = 100
"""Number of the least recently used ids among which an id without a transaction is searched for."""


class _Plain(Struct):
    """The state of one transactional id."""

    transactional_id: str
    identity: ProducerIdAndEpoch
    timeout_ms: int
    state: State = State.EMPTY
    previous: ProducerIdAndEpoch = NOBODY
    """The identity before the last end, or the identity in the last InitProducer; equal to `identity` if the producer
    kept its epoch at the end."""
    next_producer_id: int = NO_ID
    """The producer id that replaces the present id when the transaction is complete, because the present id has used up
    its epochs; NO_ID otherwise."""
    started_ms: int = -1
    updated_ms: int = -1
    partitions: set[TopicPartition] = field(default_factory=set)
    timed_from_ms: int | None = None
    """Start of the timeout; None for `started_ms`. It is not stored. If another broker, whose clock can differ, wrote
    `started_ms`, a new coordinator begins the timeout again."""

    @property
    def participants(self) -> dict[int, set[TopicPartition]]:
        return {self.identity.producer_id: self.partitions}

    @property
    def keeps_epoch(self) -> bool:
        """True if the producer kept its epoch at the last end."""
        return self.previous == self.identity

    def move(self, state: State) -> None:
        self.state = state

    @property
    def record(self) -> tuple[bytes, bytes]:
        value = records.PlainValue(
            records.VERSION,
            int(self.state),
            *self.identity,
            *self.previous,
            self.next_producer_id,
            self.timeout_ms,
            self.started_ms,
            self.updated_ms,
            records.pack_partitions(self.partitions),
        )
        return records.encode_key(records.PLAIN, self.transactional_id), records.encode_value(value)

    @classmethod
    def of(cls, transactional_id: str, value: records.PlainValue) -> _Plain:
        return cls(
            transactional_id,
            ProducerIdAndEpoch(value.producer_id, value.producer_epoch),
            value.timeout_ms,
            State(value.state),
            ProducerIdAndEpoch(value.previous_producer_id, value.previous_epoch),
            value.next_producer_id,
            value.started_ms,
            value.updated_ms,
            records.unpack_partitions(value.partitions),
        )


class PlainTransactions(TransactionMachine[_Plain]):
    """The plain transactional ids of one coordinator. `handle` returns the answer, or None if the request must wait for
    the end of a transaction. If `handle` raises an error, the error is the answer."""

    def replay(self, transactional_id: str, value: records.PlainValue | None) -> None:
        """Apply a record of the state topic."""
        if value is None:
            self._by_id.pop(transactional_id, None)
        else:
            self._by_id[transactional_id] = _Plain.of(transactional_id, value)
            self._by_id.move_to_end(transactional_id)

    def handle(
        self, request: InitProducer | AddPartitions | End | Abort, now_ms: int, effects: Effects
    ) -> Result | None:
        """Handle a request, with the results that the class describes."""
        match request:
            case InitProducer():
                return self._init(request, now_ms, effects)
            case AddPartitions():
                return self._add(request, now_ms, effects)
            case End():
                return self._end(request, now_ms, effects)
            case Abort():
                return self._abort(request, now_ms, effects)

    # -- requests

    def _init(self, request: InitProducer, now_ms: int, effects: Effects) -> Result | None:
        if request.timeout_ms > self._limits.timeout_max_ms:
            raise InvalidTransactionTimeoutError(
                f"transaction timeout {request.timeout_ms} ms: the broker allows at most {self._limits.timeout_max_ms} "
                f"(transaction.max.timeout.ms)"
            )
        expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        found = self._by_id.get(request.transactional_id)
        if found is None:
            if expected.producer_id != NO_ID:
                raise self._unknown(request.transactional_id, expected.producer_id)
            check_name("a transactional id", request.transactional_id, TRANSACTIONAL_ID_CHARS_MAX)
            found = _Plain(request.transactional_id, ProducerIdAndEpoch(self._ids.require(), 0), request.timeout_ms)
            self._make_room(effects)
            self._by_id[request.transactional_id] = found
            return self._begin(found, request, found.identity, NOBODY, now_ms, effects)
        if expected.producer_id != NO_ID and expected not in (found.identity, found.previous):
            raise self._fenced_error(found, expected)
        if found.state.is_prepared:
            return None
        if found.state is State.ONGOING:
            self._decide(found, now_ms, effects, commit=False)
            return None
        if found.state is State.EMPTY and expected.producer_id != NO_ID and expected == found.previous:
            return found.identity  # a repetition: the first reply was lost
        exhausted = found.identity.producer_epoch >= CLIENT_EPOCH_MAX
        identity = (
            ProducerIdAndEpoch(self._ids.require(), 0)
            if exhausted
            else found.identity._replace(producer_epoch=found.identity.producer_epoch + 1)
        )
        return self._begin(found, request, identity, expected, now_ms, effects)

    def _make_room(self, effects: Effects) -> None:
        """If the coordinator has `ids_max` ids, remove the least recently used id without a transaction. Raises
        ConcurrentTransactionsError if each of the IDLE_LOOK_MAX least recently used ids has a transaction.
        """
        if len(self._by_id) < self._limits.ids_max:
            return
        for found in islice(self._by_id.values(), IDLE_LOOK_MAX):
            if is_idle(found):
                self._forget(found, effects)
                return
        raise ConcurrentTransactionsError(
            f"{len(self._by_id)} transactional ids are in use in this partition of __transaction_state "
            "(max.transactional.ids.per.partition): try again later"
        )

    def _begin(
        self,
        found: _Plain,
        request: InitProducer,
        identity: ProducerIdAndEpoch,
        before: ProducerIdAndEpoch,
        now_ms: int,
        effects: Effects,
    ) -> ProducerIdAndEpoch:
        found.identity, found.previous = identity, before
        found.state, found.timeout_ms = State.EMPTY, request.timeout_ms
        found.started_ms = -1
        found.partitions.clear()
        self._save(found, now_ms, effects)
        return identity

    def _add(self, request: AddPartitions, now_ms: int, effects: Effects) -> Result:
        found = self._current(request.transactional_id, ProducerIdAndEpoch(request.producer_id, request.producer_epoch))
        if found.state.is_prepared:
            raise ConcurrentTransactionsError(f"transaction {found.transactional_id!r} is ending; try again")
        if found.state is not State.ONGOING:
            found.state, found.started_ms, found.timed_from_ms = State.ONGOING, now_ms, None
            found.partitions.clear()
        elif found.partitions.issuperset(request.partitions):
            return True
        found.partitions.update(request.partitions)
        self._save(found, now_ms, effects)
        return True

    def _end(self, request: End, now_ms: int, effects: Effects) -> Result | None:
        sender = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        found = self._by_id.get(request.transactional_id)
        if found is not None and self._is_repeated_end(found, sender, request):
            return self._end_again(found, request)
        found = self._current(request.transactional_id, sender)
        if found.state is State.ONGOING:
            self._decide(found, now_ms, effects, commit=request.commit, keeps_epoch=request.keeps_epoch)
            return None
        if found.state.is_prepared:
            raise self._fenced_error(found, sender)  # no producer has this identity before the end is complete
        return self._end_unopened(found, request, now_ms, effects)

    def _is_repeated_end(self, found: _Plain, sender: ProducerIdAndEpoch, request: End) -> bool:
        """Return True if `request` can be the repetition of the last END_TXN. A producer that takes a new epoch at each
        end repeats only with the identity before the end."""
        if not found.state.is_commit and not found.state.is_abort:
            return False
        if not self._safeguards.epoch_check:
            return True
        return sender == found.previous and (request.keeps_epoch or not found.keeps_epoch)

    def _end_again(self, found: _Plain, request: End) -> Result | None:
        """Answer a repeated end of a decided transaction."""
        if request.commit and found.state.is_abort:
            raise self._unopened_error(found, request) if found.keeps_epoch else self._aborted_error(found)
        if not request.commit and found.state.is_commit:
            raise InvalidTxnStateError(
                f"transaction {found.transactional_id!r} has been committed, it cannot be aborted"
            )
        return None if found.state.is_prepared else found.identity

    def _end_unopened(self, found: _Plain, request: End, now_ms: int, effects: Effects) -> Result | None:
        """Answer an end without an open transaction. A commit is refused: the producer would take records for committed
        that no transaction has. An abort raises the epoch, because late batches must not begin a transaction. A
        producer that keeps its epoch can only repeat an abort."""
        if request.commit or (request.keeps_epoch and not found.state.is_abort):
            raise self._unopened_error(found, request)
        if request.keeps_epoch:
            return found.identity
        self._decide(found, now_ms, effects, commit=False)
        return None

    # -- decisions

    def _decide(self, found: _Plain, now_ms: int, effects: Effects, *, commit: bool, keeps_epoch: bool = False) -> None:
        if found.state is not State.ONGOING:
            found.partitions.clear()
        found.next_producer_id = NO_ID
        if keeps_epoch:
            found.previous = found.identity
            self._decided(found, now_ms, effects, commit=commit)
            return
        marker = found.identity._replace(producer_epoch=found.identity.producer_epoch + 1)
        if marker.producer_epoch > CLIENT_EPOCH_MAX:
            found.next_producer_id = self._ids.require()
        found.previous, found.identity = found.identity, marker
        self._decided(found, now_ms, effects, commit=commit)

    def _abort_open(self, found: _Plain, now_ms: int, effects: Effects) -> None:
        self._decide(found, now_ms, effects, commit=False)

    def _marker(self, found: _Plain, producer_id: int) -> tuple[int, bool, bool]:
        return found.identity.producer_epoch, found.state.is_commit, found.keeps_epoch

    def _completed(self, found: _Plain, effects: Effects) -> None:
        found.partitions.clear()
        found.started_ms = -1
        if found.next_producer_id != NO_ID:
            found.identity, found.next_producer_id = ProducerIdAndEpoch(found.next_producer_id, 0), NO_ID

    def _is_overdue(self, found: _Plain, now_ms: int) -> bool:
        """Return True if the transaction has exceeded its timeout. If the producer's epochs are used up, an abort needs
        a new producer id: while the reserve is empty, the result is False, and a later tick aborts."""
        can_end = found.identity.producer_epoch < CLIENT_EPOCH_MAX or len(self._ids) > 0
        from_ms = found.started_ms if found.timed_from_ms is None else found.timed_from_ms
        return can_end and now_ms - from_ms >= found.timeout_ms

    def time_again(self, now_ms: int) -> None:
        """Begin the timeouts of all open transactions again at `now_ms`."""
        for found in self._by_id.values():
            if found.state is State.ONGOING:
                found.timed_from_ms = now_ms

    def _expiration_ms(self, found: _Plain) -> int:
        return self._limits.id_expiration_ms

    # -- present state

    def stale(self, transactional_id: str, identity: ProducerIdAndEpoch) -> SparklogError:
        """Return the error for the producer with `identity`, whose batch a partition has refused for its old epoch."""
        found = self._by_id.get(transactional_id)
        if found is None:
            return self._unknown(transactional_id, identity.producer_id)
        if identity == found.previous and found.state.is_abort:
            return self._aborted_error(found)
        return self._fenced_error(found, identity)

    def summary(self, transactional_id: str) -> TransactionSummary:
        """Return the summary of an id. Raises InvalidProducerIdMappingError for an unknown id."""
        found = self._existing(transactional_id)
        return TransactionSummary(
            transactional_id,
            "plain",
            found.state.text,
            *found.identity,
            started_ms=-1 if is_idle(found) else found.started_ms,
            timeout_ms=found.timeout_ms,
        )

    def numbers(self) -> Iterator[int]:
        """Yield all producer ids in the records."""
        for found in self._by_id.values():
            yield from (found.identity.producer_id, found.previous.producer_id, found.next_producer_id)

    # -- checks

    def _current(self, transactional_id: str, sender: ProducerIdAndEpoch) -> _Plain:
        found = self._by_id.get(transactional_id)
        if found is None or (
            sender.producer_id not in (found.identity.producer_id, found.previous.producer_id)
            and self._safeguards.epoch_check
        ):
            raise self._unknown(transactional_id, sender.producer_id)
        if sender != found.identity and self._safeguards.epoch_check:
            raise self.stale(transactional_id, sender)
        return found

    def _unknown(self, transactional_id: str, producer_id: int = NO_ID) -> SparklogError:
        of = "" if producer_id == NO_ID else f" with producer id {producer_id}"
        return InvalidProducerIdMappingError(f"unknown transactional id {transactional_id!r}{of}: initialise it first")

    @staticmethod
    def _fenced_error(found: _Plain, sender: ProducerIdAndEpoch) -> SparklogError:
        if sender.producer_id == found.identity.producer_id and sender.producer_epoch > found.identity.producer_epoch:
            return InvalidProducerEpochError(
                f"producer {sender.producer_id} has epoch {found.identity.producer_epoch}, the request says "
                f"{sender.producer_epoch}"
            )
        return ProducerFencedError(f"another producer has taken over transactional id {found.transactional_id!r}")

    @staticmethod
    def _unopened_error(found: _Plain, request: End) -> SparklogError:
        verb = "committed" if request.commit else "aborted"
        return InvalidTxnStateError(
            f"transaction {found.transactional_id!r} is {found.state.text}, not open: it cannot be {verb}; write its "
            "records in a new transaction"
        )

    @staticmethod
    def _aborted_error(found: _Plain) -> SparklogError:
        return TransactionAbortedError(
            f"the transaction of {found.transactional_id!r} has been aborted (after its timeout of "
            f"{found.timeout_ms} ms, or by an operator): call abort_transaction, then begin a new transaction"
        )
