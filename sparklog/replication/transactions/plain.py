"""Transactions of one producer each, under its transactional id (KIP-98, KIP-360, KIP-890 second form).

Every end raises the epoch, so that whatever comes late from the transaction before (a batch, an END_TXN) has an older one
and is refused. `previous` is the identity before: an END_TXN that is repeated with it gets the same answer.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field

from sparklog.errors import (
    ConcurrentTransactionsError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    ProducerFencedError,
    SparklogError,
    TransactionAbortedError,
)
from sparklog.protocol.transaction_messages import TransactionSummary
from sparklog.replication.transactions import records
from sparklog.replication.transactions.model import (
    CLIENT_EPOCH_MAX,
    NO_ID,
    Abort,
    AddPartitions,
    Effects,
    End,
    Identity,
    IdReserve,
    InitProducer,
    Limits,
    Marker,
    Result,
    Safeguards,
    State,
    prepared,
)
from sparklog.types import TopicPartition

NOBODY = Identity(NO_ID, NO_ID)


class _Plain(Struct):
    """One transactional id. `next_producer_id`: the id that follows this one, whose epochs are used up."""

    transactional_id: str
    identity: Identity
    timeout_ms: int
    state: State = State.EMPTY
    previous: Identity = NOBODY
    next_producer_id: int = NO_ID
    started_ms: int = -1
    updated_ms: int = -1
    partitions: set[TopicPartition] = field(default_factory=set)

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
            Identity(value.producer_id, value.producer_epoch),
            value.timeout_ms,
            State(value.state),
            Identity(value.previous_producer_id, value.previous_epoch),
            value.next_producer_id,
            value.started_ms,
            value.updated_ms,
            records.unpack_partitions(value.partitions),
        )


class PlainTransactions:
    """All transactional ids of one coordinator. `handle` gives the answer, None to wait until the transaction has ended,
    or raises the error to answer with."""

    def __init__(self, ids: IdReserve, limits: Limits, safeguards: Safeguards) -> None:
        self._ids = ids
        self._limits = limits
        self._safeguards = safeguards
        self._by_id: dict[str, _Plain] = {}

    def replay(self, transactional_id: str, value: records.PlainValue | None) -> None:
        """A record of the state topic."""
        if value is None:
            self._by_id.pop(transactional_id, None)
        else:
            self._by_id[transactional_id] = _Plain.of(transactional_id, value)

    def handle(
        self, request: InitProducer | AddPartitions | End | Abort, now_ms: int, effects: Effects
    ) -> Result | None:
        """See the class."""
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
        if not request.transactional_id:
            raise InvalidRequestError("a transactional id cannot be empty")
        if request.timeout_ms > self._limits.timeout_max_ms:
            raise InvalidTransactionTimeoutError(
                f"transaction timeout {request.timeout_ms} ms: the broker allows {self._limits.timeout_max_ms} "
                f"(transaction.max.timeout.ms)"
            )
        expected = Identity(request.producer_id, request.producer_epoch)
        found = self._by_id.get(request.transactional_id)
        if found is None:
            if expected.producer_id != NO_ID:
                raise self._unknown(request.transactional_id, expected.producer_id)
            found = _Plain(request.transactional_id, Identity(self._ids.require(), 0), request.timeout_ms)
            self._by_id[request.transactional_id] = found
            return self._begin(found, request, found.identity, NOBODY, now_ms, effects)
        if expected.producer_id != NO_ID and expected not in (found.identity, found.previous):
            raise self._fenced(found, expected)
        if found.state.is_prepared:
            return None
        if found.state is State.ONGOING:
            self._decide(found, now_ms, effects, commit=False)
            return None
        if found.state is State.EMPTY and expected.producer_id != NO_ID and expected == found.previous:
            return found.identity  # the answer before was lost
        exhausted = found.identity.producer_epoch >= CLIENT_EPOCH_MAX
        identity = (
            Identity(self._ids.require(), 0)
            if exhausted
            else found.identity._replace(producer_epoch=found.identity.producer_epoch + 1)
        )
        return self._begin(found, request, identity, expected, now_ms, effects)

    def _begin(
        self, found: _Plain, request: InitProducer, identity: Identity, before: Identity, now_ms: int, effects: Effects
    ) -> Identity:
        found.identity, found.previous = identity, before
        found.state, found.timeout_ms = State.EMPTY, request.timeout_ms
        found.started_ms = -1
        found.partitions.clear()
        self._save(found, now_ms, effects)
        return identity

    def _add(self, request: AddPartitions, now_ms: int, effects: Effects) -> Result:
        found = self._current(request.transactional_id, Identity(request.producer_id, request.producer_epoch))
        if found.state.is_prepared:
            raise ConcurrentTransactionsError(f"transaction {found.transactional_id!r} is being ended; try again")
        if found.state is not State.ONGOING:
            found.state, found.started_ms = State.ONGOING, now_ms
            found.partitions.clear()
        elif found.partitions.issuperset(request.partitions):
            return True
        found.partitions.update(request.partitions)
        self._save(found, now_ms, effects)
        return True

    def _end(self, request: End, now_ms: int, effects: Effects) -> Result | None:
        sender = Identity(request.producer_id, request.producer_epoch)
        found = self._by_id.get(request.transactional_id)
        repeated = found is not None and (sender == found.previous or not self._safeguards.epoch_check)
        if found is not None and repeated and (found.state.is_commit or found.state.is_abort):
            return self._end_again(found, request)
        found = self._current(request.transactional_id, sender)
        if found.state.is_prepared:
            return None
        # What is not open is ended too: batches that are still under way must not begin something.
        self._decide(found, now_ms, effects, commit=request.commit)
        return None

    def _end_again(self, found: _Plain, request: End) -> Result | None:
        """The transaction of the identity before has been decided."""
        if request.commit and found.state.is_abort:
            raise self._aborted(found)
        if not request.commit and found.state.is_commit:
            raise InvalidTxnStateError(
                f"transaction {found.transactional_id!r} has been committed, it cannot be aborted"
            )
        return None if found.state.is_prepared else found.identity

    def _abort(self, request: Abort, now_ms: int, effects: Effects) -> Result | None:
        if request.aborted is not None:
            return request.aborted
        found = self._by_id.get(request.transactional_id)
        if found is None:
            raise self._unknown(request.transactional_id, NO_ID)
        if found.state is not State.ONGOING:
            raise InvalidTxnStateError(f"transaction {found.transactional_id!r} is {found.state.text}, nothing is open")
        self._decide(found, now_ms, effects, commit=False)
        return None

    # -- decisions

    def _decide(self, found: _Plain, now_ms: int, effects: Effects, *, commit: bool) -> None:
        if found.state is not State.ONGOING:
            found.partitions.clear()
        marker = found.identity._replace(producer_epoch=found.identity.producer_epoch + 1)
        found.next_producer_id = NO_ID
        if marker.producer_epoch > CLIENT_EPOCH_MAX:
            found.next_producer_id = self._ids.require()
        found.previous, found.identity = found.identity, marker
        found.state = prepared(commit=commit)
        if found.partitions:
            self._save(found, now_ms, effects)
        effects.decided.append(found.transactional_id)

    def markers(self, transactional_id: str) -> list[Marker]:
        """What a prepared transaction has to write."""
        found = self._by_id[transactional_id]
        commit = found.state.is_commit
        return [Marker(tp, *found.identity, commit) for tp in sorted(found.partitions)]

    def complete(self, transactional_id: str, now_ms: int, effects: Effects) -> None:
        """All markers are in."""
        found = self._by_id[transactional_id]
        found.state = found.state.completed
        found.partitions.clear()
        found.started_ms = -1
        if found.next_producer_id != NO_ID:
            found.identity, found.next_producer_id = Identity(found.next_producer_id, 0), NO_ID
        self._save(found, now_ms, effects)

    def prepared_ids(self) -> list[str]:
        """Decided, but not known to be complete: to be driven on after a restart."""
        return [t.transactional_id for t in self._by_id.values() if t.state.is_prepared]

    def time_out(self, now_ms: int, effects: Effects) -> None:
        """Aborts what has been open for too long."""
        for found in list(self._by_id.values()):
            if found.state is not State.ONGOING or now_ms - found.started_ms < found.timeout_ms:
                continue
            if found.identity.producer_epoch >= CLIENT_EPOCH_MAX and not len(self._ids):
                continue  # the next tick has a producer id
            self._decide(found, now_ms, effects, commit=False)

    def expire(self, now_ms: int, effects: Effects) -> None:
        """Forgets ids that have not been used for long."""
        for found in list(self._by_id.values()):
            idle = found.state is not State.ONGOING and not found.state.is_prepared
            if idle and now_ms - found.updated_ms >= self._limits.id_expiration_ms:
                del self._by_id[found.transactional_id]
                effects.records.append((found.record[0], None))

    # -- what there is

    def stale(self, transactional_id: str, identity: Identity) -> SparklogError:
        """Why a partition has refused a batch of `identity` as too old."""
        found = self._by_id.get(transactional_id)
        if found is None:
            return self._unknown(transactional_id, identity.producer_id)
        if identity == found.previous and found.state.is_abort:
            return self._aborted(found)
        return self._fenced(found, identity)

    def ids(self) -> list[str]:
        """All ids, in no order."""
        return list(self._by_id)

    def summary(self, transactional_id: str) -> TransactionSummary:
        """Raises InvalidProducerIdMappingError for an unknown id."""
        found = self._by_id.get(transactional_id)
        if found is None:
            raise self._unknown(transactional_id, NO_ID)
        is_open = found.state is State.ONGOING or found.state.is_prepared
        return TransactionSummary(
            transactional_id,
            "plain",
            found.state.text,
            *found.identity,
            started_ms=found.started_ms if is_open else -1,
            timeout_ms=found.timeout_ms,
        )

    def partitions(self, transactional_id: str) -> list[tuple[int, TopicPartition]]:
        """(producer id, partition) of what is open. Raises InvalidProducerIdMappingError for an unknown id."""
        found = self._by_id.get(transactional_id)
        if found is None:
            raise self._unknown(transactional_id, NO_ID)
        return [(found.identity.producer_id, tp) for tp in sorted(found.partitions)]

    def producers(self) -> Iterator[tuple[int, str, set[TopicPartition]]]:
        """(producer id, transactional id, partitions of what is open)."""
        for found in self._by_id.values():
            yield found.identity.producer_id, found.transactional_id, found.partitions

    # -- checks

    def _current(self, transactional_id: str, sender: Identity) -> _Plain:
        found = self._by_id.get(transactional_id)
        if found is None or (
            sender.producer_id not in (found.identity.producer_id, found.previous.producer_id)
            and self._safeguards.epoch_check
        ):
            raise self._unknown(transactional_id, sender.producer_id)
        if sender != found.identity and self._safeguards.epoch_check:
            raise self.stale(transactional_id, sender)
        return found

    def _save(self, found: _Plain, now_ms: int, effects: Effects) -> None:
        found.updated_ms = now_ms
        effects.records.append(found.record)

    @staticmethod
    def _unknown(transactional_id: str, producer_id: int) -> SparklogError:
        of = "" if producer_id == NO_ID else f" with producer id {producer_id}"
        return InvalidProducerIdMappingError(f"there is no transactional id {transactional_id!r}{of}: initialise first")

    @staticmethod
    def _fenced(found: _Plain, sender: Identity) -> SparklogError:
        if sender.producer_id == found.identity.producer_id and sender.producer_epoch > found.identity.producer_epoch:
            return InvalidProducerEpochError(
                f"producer {sender.producer_id} has epoch {found.identity.producer_epoch}, the request says {sender.producer_epoch}"
            )
        return ProducerFencedError(f"another producer has taken over transactional id {found.transactional_id!r}")

    @staticmethod
    def _aborted(found: _Plain) -> SparklogError:
        return TransactionAbortedError(
            f"the transaction of {found.transactional_id!r} has been aborted (its timeout of {found.timeout_ms} ms was over, "
            "or an operator did it): abort it here too, then begin again"
        )
