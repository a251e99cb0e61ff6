"""Types of the transaction coordinator: states, requests and effects.

A handler changes the state in memory at once and returns Effects. The shell appends their `records` to the state topic,
and carries out the `actions` once these and all earlier records are durable. So every change is in the log before the
request is answered, and every decision before a partition gets a marker. If an append fails, the shell discards the
coordinator and loads it again from the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from msgspec import Struct, field

from sparklog.errors import ConcurrentTransactionsError, InvalidRequestError, SparklogError
from sparklog.protocol.transaction_messages import PARTICIPANTS_MAX
from sparklog.types import SHARED_PREFIX, ProducerIdAndEpoch, TopicPartition

CLIENT_EPOCH_MAX = 32_765
"""Largest epoch of a producer. Its marker has the next epoch, and 32,767 is never used (KIP-890)."""
NO_ID = -1
TRANSACTIONAL_ID_CHARS_MAX = 1_024
RUN_ID_CHARS_MAX = 256


class State(IntEnum):
    """State of a transaction. The numbers are stored."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5

    @property
    def text(self) -> str:
        """The state in Kafka's notation, for example `PrepareCommit`."""
        return "".join(word.capitalize() for word in self.name.split("_"))

    @property
    def is_prepared(self) -> bool:
        """True if the transaction is decided, and its markers are not all written yet."""
        return self in (State.PREPARE_COMMIT, State.PREPARE_ABORT)

    @property
    def is_commit(self) -> bool:
        return self in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)

    @property
    def is_abort(self) -> bool:
        return self in (State.PREPARE_ABORT, State.COMPLETE_ABORT)

    @property
    def completed(self) -> State:
        """The state after this prepared state, when all markers are written."""
        return State.COMPLETE_COMMIT if self.is_commit else State.COMPLETE_ABORT


def prepared(*, commit: bool) -> State:
    return State.PREPARE_COMMIT if commit else State.PREPARE_ABORT


@dataclass(frozen=True)
class Safeguards:
    """Switches of the rules. Only tests turn a rule off, to prove that they detect its loss."""

    epoch_check: bool = True
    """A request with an epoch that is no longer the producer's is refused."""
    committed_participants_only: bool = True
    """In a shared transaction, only records of the committed participants are committed."""
    run_fence: bool = True
    """A newer run of an application aborts the open transaction of an older run. From then on the older run is
    refused."""
    committed_version_check: bool = True
    """A version that was committed is not opened again."""
    markers_before_completion: bool = True
    """A transaction is complete only when all its markers are written."""


class TransactionLimits(Struct, frozen=True):
    """Settings of the broker. `ids_max` is the limit for the plain ids in one partition of the state topic, and
    separately for the shared ids."""

    timeout_max_ms: int = 900_000
    id_expiration_ms: int = 7 * 86_400_000
    app_expiration_ms: int = 90 * 86_400_000
    ids_max: int = 20_000
    participants_max: int = PARTICIPANTS_MAX


class IdReserve:
    """Producer ids drawn in advance, for requests that cannot wait for a new id. `taken` is called with each id that
    leaves the reserve."""

    def __init__(self, taken: Callable[[int], None] = lambda _: None) -> None:
        self._on_taken = taken
        self._ids: deque[int] = deque()

    def __len__(self) -> int:
        return len(self._ids)

    def add(self, producer_id: int) -> None:
        self._ids.append(producer_id)

    def take(self) -> int | None:
        """Remove an id and return it; None if the reserve is empty."""
        if not self._ids:
            return None
        self._on_taken(self._ids[0])
        return self._ids.popleft()

    def require(self) -> int:
        """Remove an id and return it. Raises ConcurrentTransactionsError if the reserve is empty: clients retry."""
        taken = self.take()
        if taken is None:
            raise ConcurrentTransactionsError("no producer id is available; try again")
        return taken


# -- requests


class InitProducer(NamedTuple):
    """A producer with a transactional id requests an identity. With `producer_id` the request comes from the producer
    that has this identity; it gets a higher epoch (KIP-360)."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_ID
    producer_epoch: int = NO_ID


class AddPartitions(NamedTuple):
    """A producer will write to these partitions in its transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]


class End(NamedTuple):
    """End the transaction of a transactional id. `keeps_epoch`: True if the producer keeps its epoch after the end, as
    older Kafka clients do."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    keeps_epoch: bool = False


class Join(NamedTuple):
    """Join a shared transaction, or open the transaction. `lease_ms` 0: the transaction has no lease."""

    transactional_id: str
    version: int
    run_id: str
    fencing_token: int
    timeout_ms: int
    lease_ms: int = 0


class EndShared(NamedTuple):
    """End a shared transaction."""

    transactional_id: str
    version: int
    run_id: str
    fencing_token: int
    commit: bool
    committed_participants: frozenset[int] = frozenset()
    input: str = ""


class Renew(NamedTuple):
    """Begin the lease of a shared transaction again."""

    transactional_id: str
    version: int
    run_id: str


class Abort(NamedTuple):
    """Abort an open transaction for an operator. `aborted`: the number of the transaction's markers, which the
    coordinator sets when it has decided; None before."""

    transactional_id: str
    aborted: int | None = None


Request = InitProducer | AddPartitions | End | Join | EndShared | Renew | Abort


# -- answers and effects


class JoinAnswer(NamedTuple):
    """The identity of a participant. It is None if the version is committed already; then the participant must write
    nothing."""

    identity: ProducerIdAndEpoch | None


class RenewAnswer(NamedTuple):
    """The state of a shared transaction at the renewal of its lease."""

    known: bool
    """True if the application's newest transaction has the version and the run of the request."""
    is_open: bool
    """True if the transaction is known and not decided yet."""


class Marker(NamedTuple):
    """The end of one producer's transaction in one partition. `producer_epoch` is above the epoch of the producer's
    batches, or equal if the producer keeps its epoch."""

    partition: TopicPartition
    producer_id: int
    producer_epoch: int
    commit: bool
    keeps_epoch: bool = False


Result = ProducerIdAndEpoch | JoinAnswer | RenewAnswer | bool | int


class Answer(NamedTuple):
    """The result of a request: ProducerIdAndEpoch (InitProducer, End), JoinAnswer (Join), RenewAnswer (Renew), True
    (AddPartitions), the number of markers (Abort); for EndShared True for a commit and False for an abort."""

    token: Hashable
    result: Result


class Refuse(NamedTuple):
    """Answer the request with `error`."""

    token: Hashable
    error: SparklogError


class WriteMarkers(NamedTuple):
    """Write the markers of a decided transaction, in any order. The shell repeats each marker until the marker is
    written or its partition is deleted, and then reports it with `Coordinator.markers_written`."""

    transactional_id: str
    markers: tuple[Marker, ...]
    started_ms: int = -1
    """Time at which the transaction began, -1 if unknown. It is the same in all markers of the transaction, so that
    readers can relate them."""


Action = Answer | Refuse | WriteMarkers


class Effects(Struct):
    """The effects of one call."""

    records: list[tuple[bytes, bytes | None]] = field(default_factory=list)
    """Keys and values to append to the state topic."""
    actions: list[Action] = field(default_factory=list)
    """Actions to carry out when the records are durable."""
    decided: list[str] = field(default_factory=list)
    """Ids of decided transactions for which `actions` has no WriteMarkers yet; empty when the call returns."""
    completed: list[str] = field(default_factory=list)
    """Ids of transactions whose markers are all written."""

    @property
    def decides(self) -> bool:
        """True if the records contain the decision of a transaction."""
        return bool(self.completed) or any(isinstance(a, WriteMarkers) for a in self.actions)


def check_name(kind: str, name: str, chars_max: int) -> None:
    """Raise InvalidRequestError for a name that is empty or longer than `chars_max`."""
    if not 0 < len(name) <= chars_max:
        raise InvalidRequestError(f"{kind} {name[:40]!r} has {len(name)} characters: 1 to {chars_max} are allowed")


def is_shared(transactional_id: str) -> bool:
    """Return True if the id belongs to an application's shared transactions."""
    return transactional_id.startswith(SHARED_PREFIX)
