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

NO_PRODUCER = ProducerIdAndEpoch(NO_ID, NO_ID)
IDLE_LOOK_MAX = 100
"""Number of the least recently used ids among which an id without a transaction is searched for."""


class _Plain(Struct):
    """The state of one transactional id."""

    transactional_id: str
    identity: ProducerIdAndEpoch
    timeout_ms: int
    state: State = State.EMPTY
    previous: ProducerIdAndEpoch = NO_PRODUCER
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
    def from_value(cls, transactional_id: str, value: records.PlainValue) -> _Plain:
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
            self._by_id[transactional_id] = _Plain.from_value(transactional_id, value)
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
        entry = self._by_id.get(request.transactional_id)
        if entry is None:
            if expected.producer_id != NO_ID:
                raise self._unknown(request.transactional_id, expected.producer_id)
            check_name("a transactional id", request.transactional_id, TRANSACTIONAL_ID_CHARS_MAX)
            entry = _Plain(request.transactional_id, ProducerIdAndEpoch(self._ids.require(), 0), request.timeout_ms)
            self._make_room(effects)
            self._by_id[request.transactional_id] = entry
            return self._begin(entry, request, entry.identity, NO_PRODUCER, now_ms, effects)
        if expected.producer_id != NO_ID and expected not in (entry.identity, entry.previous):
            raise self._fenced_error(entry, expected)
        if entry.state.is_prepared:
            return None
        if entry.state is State.ONGOING:
            self._decide(entry, now_ms, effects, commit=False)
            return None
        if entry.state is State.EMPTY and expected.producer_id != NO_ID and expected == entry.previous:
            return entry.identity  # a repetition: the first reply was lost
        exhausted = entry.identity.producer_epoch >= CLIENT_EPOCH_MAX
        identity = (
            ProducerIdAndEpoch(self._ids.require(), 0)
            if exhausted
            else entry.identity._replace(producer_epoch=entry.identity.producer_epoch + 1)
        )
        return self._begin(entry, request, identity, expected, now_ms, effects)

    def _make_room(self, effects: Effects) -> None:
        """If the coordinator has `ids_max` ids, remove the least recently used id without a transaction. Raises
        ConcurrentTransactionsError if each of the IDLE_LOOK_MAX least recently used ids has a transaction.
        """
        if len(self._by_id) < self._limits.ids_max:
            return
        for entry in islice(self._by_id.values(), IDLE_LOOK_MAX):
            if is_idle(entry):
                self._forget(entry, effects)
                return
        raise ConcurrentTransactionsError(
            f"{len(self._by_id)} transactional ids are in use in this partition of __transaction_state "
            "(max.transactional.ids.per.partition): try again later"
        )

    def _begin(
        self,
        entry: _Plain,
        request: InitProducer,
        identity: ProducerIdAndEpoch,
        before: ProducerIdAndEpoch,
        now_ms: int,
        effects: Effects,
    ) -> ProducerIdAndEpoch:
        entry.identity, entry.previous = identity, before
        entry.state, entry.timeout_ms = State.EMPTY, request.timeout_ms
        entry.started_ms = -1
        entry.partitions.clear()
        self._save(entry, now_ms, effects)
        return identity

    def _add(self, request: AddPartitions, now_ms: int, effects: Effects) -> Result:
        entry = self._current(request.transactional_id, ProducerIdAndEpoch(request.producer_id, request.producer_epoch))
        if entry.state.is_prepared:
            raise ConcurrentTransactionsError(f"transaction {entry.transactional_id!r} is ending; try again")
        if entry.state is not State.ONGOING:
            entry.state, entry.started_ms, entry.timed_from_ms = State.ONGOING, now_ms, None
            entry.partitions.clear()
        elif entry.partitions.issuperset(request.partitions):
            return True
        entry.partitions.update(request.partitions)
        self._save(entry, now_ms, effects)
        return True

    def _end(self, request: End, now_ms: int, effects: Effects) -> Result | None:
        sender = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
        entry = self._by_id.get(request.transactional_id)
        if entry is not None and self._is_repeated_end(entry, sender, request):
            return self._end_again(entry, request)
        entry = self._current(request.transactional_id, sender)
        if entry.state is State.ONGOING:
            self._decide(entry, now_ms, effects, commit=request.commit, keeps_epoch=request.keeps_epoch)
            return None
        if entry.state.is_prepared:
            raise self._fenced_error(entry, sender)  # no producer has this identity before the end is complete
        return self._end_unopened(entry, request, now_ms, effects)

    def _is_repeated_end(self, entry: _Plain, sender: ProducerIdAndEpoch, request: End) -> bool:
        """Return True if `request` can be the repetition of the last END_TXN. A producer that takes a new epoch at each
        end repeats only with the identity before the end."""
        if not entry.state.is_commit and not entry.state.is_abort:
            return False
        if not self._safeguards.epoch_check:
            return True
        return sender == entry.previous and (request.keeps_epoch or not entry.keeps_epoch)

    def _end_again(self, entry: _Plain, request: End) -> Result | None:
        """Answer a repeated end of a decided transaction."""
        if request.commit and entry.state.is_abort:
            raise self._unopened_error(entry, request) if entry.keeps_epoch else self._aborted_error(entry)
        if not request.commit and entry.state.is_commit:
            raise InvalidTxnStateError(
                f"transaction {entry.transactional_id!r} has been committed, it cannot be aborted"
            )
        return None if entry.state.is_prepared else entry.identity

    def _end_unopened(self, entry: _Plain, request: End, now_ms: int, effects: Effects) -> Result | None:
        """Answer an end without an open transaction. A commit is refused: the producer would take records for committed
        that no transaction has. An abort raises the epoch, because late batches must not begin a transaction. A
        producer that keeps its epoch can only repeat an abort."""
        if request.commit or (request.keeps_epoch and not entry.state.is_abort):
            raise self._unopened_error(entry, request)
        if request.keeps_epoch:
            return entry.identity
        self._decide(entry, now_ms, effects, commit=False)
        return None

    # -- decisions

    def _decide(self, entry: _Plain, now_ms: int, effects: Effects, *, commit: bool, keeps_epoch: bool = False) -> None:
        if entry.state is not State.ONGOING:
            entry.partitions.clear()
        entry.next_producer_id = NO_ID
        if keeps_epoch:
            entry.previous = entry.identity
            self._decided(entry, now_ms, effects, commit=commit)
            return
        marker = entry.identity._replace(producer_epoch=entry.identity.producer_epoch + 1)
        if marker.producer_epoch > CLIENT_EPOCH_MAX:
            entry.next_producer_id = self._ids.require()
        entry.previous, entry.identity = entry.identity, marker
        self._decided(entry, now_ms, effects, commit=commit)

    def _abort_open(self, entry: _Plain, now_ms: int, effects: Effects) -> None:
        self._decide(entry, now_ms, effects, commit=False)

    def _marker(self, entry: _Plain, producer_id: int) -> tuple[int, bool, bool]:
        return entry.identity.producer_epoch, entry.state.is_commit, entry.keeps_epoch

    def _completed(self, entry: _Plain, effects: Effects) -> None:
        entry.partitions.clear()
        entry.started_ms = -1
        if entry.next_producer_id != NO_ID:
            entry.identity, entry.next_producer_id = ProducerIdAndEpoch(entry.next_producer_id, 0), NO_ID

    def _is_overdue(self, entry: _Plain, now_ms: int) -> bool:
        """Return True if the transaction has exceeded its timeout. If the producer's epochs are used up, an abort needs
        a new producer id: while the reserve is empty, the result is False, and a later tick aborts."""
        can_end = entry.identity.producer_epoch < CLIENT_EPOCH_MAX or len(self._ids) > 0
        from_ms = entry.started_ms if entry.timed_from_ms is None else entry.timed_from_ms
        return can_end and now_ms - from_ms >= entry.timeout_ms

    def time_again(self, now_ms: int) -> None:
        """Begin the timeouts of all open transactions again at `now_ms`."""
        for entry in self._by_id.values():
            if entry.state is State.ONGOING:
                entry.timed_from_ms = now_ms

    def _expiration_ms(self, entry: _Plain) -> int:
        return self._limits.id_expiration_ms

    # -- present state

    def stale(self, transactional_id: str, identity: ProducerIdAndEpoch) -> SparklogError:
        """Return the error for the producer with `identity`, whose batch a partition has refused for its old epoch."""
        entry = self._by_id.get(transactional_id)
        if entry is None:
            return self._unknown(transactional_id, identity.producer_id)
        if identity == entry.previous and entry.state.is_abort:
            return self._aborted_error(entry)
        return self._fenced_error(entry, identity)

    def summary(self, transactional_id: str) -> TransactionSummary:
        """Return the summary of an id. Raises InvalidProducerIdMappingError for an unknown id."""
        entry = self._existing(transactional_id)
        return TransactionSummary(
            transactional_id,
            "plain",
            entry.state.text,
            *entry.identity,
            started_ms=-1 if is_idle(entry) else entry.started_ms,
            timeout_ms=entry.timeout_ms,
        )

    def numbers(self) -> Iterator[int]:
        """Yield all producer ids in the records."""
        for entry in self._by_id.values():
            yield from (entry.identity.producer_id, entry.previous.producer_id, entry.next_producer_id)

    # -- checks

    def _current(self, transactional_id: str, sender: ProducerIdAndEpoch) -> _Plain:
        entry = self._by_id.get(transactional_id)
        if entry is None or (
            sender.producer_id not in (entry.identity.producer_id, entry.previous.producer_id)
            and self._safeguards.epoch_check
        ):
            raise self._unknown(transactional_id, sender.producer_id)
        if sender != entry.identity and self._safeguards.epoch_check:
            raise self.stale(transactional_id, sender)
        return entry

    def _unknown(self, transactional_id: str, producer_id: int = NO_ID) -> SparklogError:
        of = "" if producer_id == NO_ID else f" with producer id {producer_id}"
        return InvalidProducerIdMappingError(f"unknown transactional id {transactional_id!r}{of}: initialise it first")

    @staticmethod
    def _fenced_error(entry: _Plain, sender: ProducerIdAndEpoch) -> SparklogError:
        if sender.producer_id == entry.identity.producer_id and sender.producer_epoch > entry.identity.producer_epoch:
            return InvalidProducerEpochError(
                f"producer {sender.producer_id} has epoch {entry.identity.producer_epoch}, the request says "
                f"{sender.producer_epoch}"
            )
        return ProducerFencedError(f"another producer has taken over transactional id {entry.transactional_id!r}")

    @staticmethod
    def _unopened_error(entry: _Plain, request: End) -> SparklogError:
        verb = "committed" if request.commit else "aborted"
        return InvalidTxnStateError(
            f"transaction {entry.transactional_id!r} is {entry.state.text}, not open: it cannot be {verb}; write its "
            "records in a new transaction"
        )

    @staticmethod
    def _aborted_error(entry: _Plain) -> SparklogError:
        return TransactionAbortedError(
            f"the transaction of {entry.transactional_id!r} has been aborted (after its timeout of "
            f"{entry.timeout_ms} ms, or by an operator): call abort_transaction, then begin a new transaction"
        )
