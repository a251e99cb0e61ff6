"""The steps of a transaction that do not depend on its participants. A transaction is open, then decided, and complete
when all its markers are written.

Two policies define the participants, their identities, and the right to decide: `plain` (one producer under its
transactional id) and `shared` (many producers for one version of an application).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Generic, Protocol, TypeVar

from sparklog.errors import InvalidTxnStateError, SparklogError
from sparklog.replication.transactions.model import (
    NO_ID,
    Abort,
    Effects,
    IdReserve,
    Marker,
    Result,
    Safeguards,
    State,
    TransactionLimits,
    prepared,
)
from sparklog.types import TopicPartition


class Entry(Protocol):
    """A transactional id, and its newest transaction."""

    transactional_id: str
    updated_ms: int

    @property
    def started_ms(self) -> int:
        """Time at which the id's transaction began; -1 if it has none."""

    @property
    def state(self) -> State: ...
    @property
    def participants(self) -> Mapping[int, set[TopicPartition]]:
        """By producer id: the partitions of the incomplete transaction."""

    @property
    def record(self) -> tuple[bytes, bytes]: ...
    def move(self, state: State) -> None:
        """Put the transaction into another state."""


E = TypeVar("E", bound=Entry)


class TransactionMachine(ABC, Generic[E]):
    """The ids of one policy in one coordinator, with the rules that both policies share."""

    def __init__(self, ids: IdReserve, limits: TransactionLimits, safeguards: Safeguards) -> None:
        self._ids = ids
        self._limits = limits
        self._safeguards = safeguards
        self._by_id: OrderedDict[str, E] = OrderedDict()
        """The entries by id, the least recently used first."""

    # -- the policy

    @abstractmethod
    def _unknown(self, transactional_id: str, producer_id: int = NO_ID) -> SparklogError:
        """Return the error for an unknown id."""

    @abstractmethod
    def _abort_open(self, entry: E, now_ms: int, effects: Effects) -> None:
        """Decide to abort the id's open transaction."""

    @abstractmethod
    def _is_overdue(self, entry: E, now_ms: int) -> bool:
        """Return True if the open transaction has exceeded its timeout."""

    @abstractmethod
    def _marker(self, entry: E, producer_id: int) -> tuple[int, bool, bool]:
        """Return the fields of a participant's markers: epoch; True for a commit; True if the participant keeps its
        epoch.
        """

    @abstractmethod
    def _completed(self, entry: E, effects: Effects) -> None:
        """Change the identities at the end of the transaction, after all markers are written."""

    @abstractmethod
    def _expiration_ms(self, entry: E) -> int:
        """Return the time, in ms, after which an unused id is removed."""

    # -- decisions

    def _decided(self, entry: E, now_ms: int, effects: Effects, *, commit: bool) -> None:
        entry.move(prepared(commit=commit))
        if any(entry.participants.values()):
            self._save(entry, now_ms, effects)
        effects.decided.append(entry.transactional_id)

    def _abort(self, request: Abort, now_ms: int, effects: Effects) -> Result | None:
        if request.aborted is not None:
            return request.aborted
        entry = self._existing(request.transactional_id)
        if entry.state is not State.ONGOING:
            raise InvalidTxnStateError(f"transaction {entry.transactional_id!r} is {entry.state.text}, not open")
        self._abort_open(entry, now_ms, effects)
        return None

    def markers(self, transactional_id: str) -> list[Marker]:
        """Return the markers of a decided transaction."""
        entry = self._by_id[transactional_id]
        return [
            Marker(tp, producer_id, *self._marker(entry, producer_id))
            for producer_id, partitions in entry.participants.items()
            for tp in sorted(partitions)
        ]

    def started_ms(self, transactional_id: str) -> int:
        """Return the time at which the id's transaction began."""
        return self._by_id[transactional_id].started_ms

    def complete(self, transactional_id: str, now_ms: int, effects: Effects) -> None:
        """Complete the transaction, after all its markers are written."""
        entry = self._by_id[transactional_id]
        entry.move(entry.state.completed)
        self._completed(entry, effects)
        self._save(entry, now_ms, effects)

    def prepared_ids(self) -> list[str]:
        """Return the ids of transactions that are decided but not complete. They are continued after a restart."""
        return [entry.transactional_id for entry in self._by_id.values() if entry.state.is_prepared]

    def time_out(self, now_ms: int, effects: Effects) -> None:
        """Abort open transactions that have exceeded their timeout."""
        for entry in list(self._by_id.values()):
            if entry.state is State.ONGOING and self._is_overdue(entry, now_ms):
                self._abort_open(entry, now_ms, effects)

    def expire(self, now_ms: int, effects: Effects) -> None:
        """Remove ids without an open or decided transaction that were not used for their expiration time."""
        for entry in list(self._by_id.values()):
            if is_idle(entry) and now_ms - entry.updated_ms >= self._expiration_ms(entry):
                self._forget(entry, effects)

    def _forget(self, entry: E, effects: Effects) -> None:
        del self._by_id[entry.transactional_id]
        effects.records.append((entry.record[0], None))

    def _save(self, entry: E, now_ms: int, effects: Effects) -> None:
        entry.updated_ms = now_ms
        self._by_id[entry.transactional_id] = entry
        self._by_id.move_to_end(entry.transactional_id)
        effects.records.append(entry.record)

    # -- present state

    def _existing(self, transactional_id: str) -> E:
        """Return the entry of an id. Raises InvalidProducerIdMappingError for an unknown id."""
        entry = self._by_id.get(transactional_id)
        if entry is None:
            raise self._unknown(transactional_id)
        return entry

    def ids(self) -> list[str]:
        """Return all ids, unsorted."""
        return list(self._by_id)

    def partitions(self, transactional_id: str) -> list[tuple[int, TopicPartition]]:
        """Return (producer id, partition) for each partition of the open transaction, sorted. Raises
        InvalidProducerIdMappingError for an unknown id."""
        participants = self._existing(transactional_id).participants
        return sorted((producer_id, tp) for producer_id, partitions in participants.items() for tp in partitions)

    def producers(self) -> Iterator[tuple[int, str, set[TopicPartition]]]:
        """Yield (producer id, transactional id, partitions) for each participant of an incomplete transaction."""
        for entry in self._by_id.values():
            for producer_id, partitions in entry.participants.items():
                yield producer_id, entry.transactional_id, partitions


def is_idle(entry: Entry) -> bool:
    """Return True if the id has neither an open nor a decided transaction."""
    return entry.state is not State.ONGOING and not entry.state.is_prepared
