"""Transactions of many participants, for Spark: one per application and version, with one decision for all of them.

Who takes part gets a producer id of its own, which is used once: epoch 0 writes, the marker has epoch 1. The decision names
the winners; what the others wrote is aborted. A *run* is one life of the application's driver, known by its run id; its
tickets order it among the others. A newer run fences the older ones for good, also if one draws a new ticket later.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct, field

from sparklog.errors import (
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTxnStateError,
    ProducerFencedError,
    SparklogError,
    TransactionAbortedError,
)
from sparklog.protocol.transaction_messages import TransactionSummary
from sparklog.replication.transactions import records
from sparklog.replication.transactions.model import (
    NO_ID,
    Abort,
    AddPartitions,
    Effects,
    EndShared,
    Identity,
    IdReserve,
    Join,
    Joined,
    Limits,
    Marker,
    Result,
    Safeguards,
    State,
    prepared,
)
from sparklog.types import SHARED_PREFIX, UNNAMED_APP_PREFIX, TopicPartition

EPOCH = 0
MARKER_EPOCH = 1
OLDER_RUNS_MAX = 16
"""Runs that are remembered as fenced; others are known by their tickets."""
UNNAMED_EXPIRATION_MS = 3_600_000
"""For applications that write once (`UNNAMED_APP_PREFIX`), or every batch write would be remembered for months."""
NEVER = -1
"""Version that is committed before any has been."""


class _Transaction(Struct):
    """The newest transaction of an application, open or ended."""

    version: int
    run_id: str
    ticket: int
    started_ms: int
    timeout_ms: int
    state: State = State.ONGOING
    winners: frozenset[int] = frozenset()
    participants: dict[int, set[TopicPartition]] = field(default_factory=dict)

    def is_of(self, request: Join | EndShared) -> bool:
        return (self.version, self.run_id) == (request.version, request.run_id)

    @property
    def is_open(self) -> bool:
        return self.state is State.ONGOING


class _Application(Struct):
    """`run_id` and `ticket`: the newest run there was; `older_runs`: those it and its predecessors have fenced."""

    transactional_id: str
    run_id: str = ""
    ticket: int = NO_ID
    older_runs: tuple[str, ...] = ()
    last_committed_version: int = NEVER
    updated_ms: int = -1
    transaction: _Transaction | None = None

    @property
    def name(self) -> str:
        return self.transactional_id.removeprefix(SHARED_PREFIX)

    @property
    def key(self) -> bytes:
        return records.encode_key(records.SHARED, self.transactional_id)

    @property
    def record(self) -> tuple[bytes, bytes]:
        t = self.transaction
        value = records.SharedValue(
            records.VERSION,
            self.last_committed_version,
            self.run_id,
            self.ticket,
            list(self.older_runs),
            self.updated_ms,
            None
            if t is None
            else records.SharedTransactionValue(
                t.version, t.run_id, t.ticket, int(t.state), t.started_ms, t.timeout_ms, sorted(t.winners)
            ),
        )
        return self.key, records.encode_value(value)

    def participant_key(self, producer_id: int) -> bytes:
        return records.encode_key(records.PARTICIPANT, self.transactional_id, producer_id)

    def participant_record(self, transaction: _Transaction, producer_id: int) -> tuple[bytes, bytes]:
        packed = records.pack_partitions(transaction.participants[producer_id])
        value = records.ParticipantValue(records.VERSION, transaction.version, transaction.ticket, packed)
        return self.participant_key(producer_id), records.encode_value(value)


class SharedTransactions:
    """All applications of one coordinator. `handle` gives the answer, None to wait until the transaction under way has
    ended, or raises the error to answer with."""

    def __init__(self, ids: IdReserve, limits: Limits, safeguards: Safeguards) -> None:
        self._ids = ids
        self._limits = limits
        self._safeguards = safeguards
        self._by_id: dict[str, _Application] = {}
        self._replayed: dict[tuple[str, int], records.ParticipantValue] = {}

    # -- the state topic

    def replay(self, transactional_id: str, value: records.SharedValue | None) -> None:
        """A record of an application."""
        if value is None:
            self._by_id.pop(transactional_id, None)
            return
        t = value.transaction
        self._by_id[transactional_id] = _Application(
            transactional_id,
            value.run_id,
            value.ticket,
            tuple(value.older_runs),
            value.last_committed_version,
            value.updated_ms,
            None
            if t is None
            else _Transaction(
                t.version, t.run_id, t.ticket, t.started_ms, t.timeout_ms, State(t.state), frozenset(t.winners)
            ),
        )

    def replay_participant(
        self, transactional_id: str, producer_id: int, value: records.ParticipantValue | None
    ) -> None:
        """A record of a participant."""
        if value is None:
            self._replayed.pop((transactional_id, producer_id), None)
        else:
            self._replayed[transactional_id, producer_id] = value

    def replayed_all(self) -> None:
        """Puts the participants into their transactions."""
        for (transactional_id, producer_id), value in self._replayed.items():
            app = self._by_id.get(transactional_id)
            t = None if app is None else app.transaction
            if t is not None and (t.version, t.ticket) == (value.version, value.ticket):
                t.participants[producer_id] = records.unpack_partitions(value.partitions)
        self._replayed.clear()

    # -- requests

    def handle(self, request: Join | EndShared | AddPartitions | Abort, now_ms: int, effects: Effects) -> Result | None:
        """See the class."""
        match request:
            case Join():
                return self._join(request, now_ms, effects)
            case EndShared():
                return self._end(request, now_ms, effects)
            case AddPartitions():
                return self._add(request, effects)
            case Abort():
                return self._abort(request, now_ms, effects)

    def _join(self, request: Join, now_ms: int, effects: Effects) -> Result | None:
        app = self._application(request)
        is_newer = self._fence(app, request, now_ms, effects)
        t = app.transaction
        if t is not None and t.is_open and is_newer:
            self._decide(app, t, frozenset(), now_ms, effects, commit=False)
        if request.version <= app.last_committed_version and self._safeguards.committed_version_check:
            return Joined(None)
        if t is None or t.state is State.EMPTY:
            return self._open(app, request, now_ms, effects)
        if t.state.is_prepared:
            return None
        if request.version < t.version and request.run_id == t.run_id:
            raise ProducerFencedError(f"{_of(app, request)}: the run has gone on to version {t.version}")
        if not t.is_open:
            if t.is_of(request) and t.state.is_abort and request.ticket <= t.ticket:
                raise _aborted(app, request)
            return self._open(app, request, now_ms, effects)
        if request.version > t.version:  # the run has given up the version before
            self._decide(app, t, frozenset(), now_ms, effects, commit=False)
            return None
        return self._participate(app, t, effects)

    def _open(self, app: _Application, request: Join, now_ms: int, effects: Effects) -> Joined:
        producer_id = self._ids.require()
        t = _Transaction(request.version, request.run_id, request.ticket, now_ms, request.timeout_ms)
        t.participants[producer_id] = set()
        app.transaction = t
        self._save(app, now_ms, effects)
        effects.records.append(app.participant_record(t, producer_id))
        return Joined(Identity(producer_id, EPOCH))

    def _participate(self, app: _Application, t: _Transaction, effects: Effects) -> Joined:
        producer_id = self._ids.require()
        t.participants[producer_id] = set()
        effects.records.append(app.participant_record(t, producer_id))
        return Joined(Identity(producer_id, EPOCH))

    def _end(self, request: EndShared, now_ms: int, effects: Effects) -> Result | None:
        app = self._application(request)
        is_newer = self._fence(app, request, now_ms, effects)
        t = app.transaction
        if t is not None and t.is_of(request) and not t.is_open:
            return self._end_again(app, t, request)
        if t is not None and t.is_open and is_newer:
            self._decide(app, t, frozenset(), now_ms, effects, commit=False)
            return None
        if t is not None and t.state.is_prepared:
            return None
        if request.version <= app.last_committed_version and self._safeguards.committed_version_check:
            return True
        if t is not None and t.is_open and t.is_of(request):
            unknown = sorted(request.winners - t.participants.keys())
            if request.commit and unknown:
                raise InvalidProducerIdMappingError(
                    f"{_of(app, request)}: {unknown[:5]} do not take part in it (they belong to an attempt that was aborted)"
                )
            self._decide(app, t, request.winners, now_ms, effects, commit=request.commit)
            return None
        if t is not None and request.run_id == t.run_id and request.version < t.version:
            raise ProducerFencedError(f"{_of(app, request)}: the run has gone on to version {t.version}")
        return self._end_nothing(app, request, now_ms, effects)

    def _end_again(self, app: _Application, t: _Transaction, request: EndShared) -> Result | None:
        """The transaction has been decided."""
        if request.commit and t.state.is_abort:
            raise _aborted(app, request)
        return None if t.state.is_prepared else t.state.is_commit

    def _end_nothing(self, app: _Application, request: EndShared, now_ms: int, effects: Effects) -> Result | None:
        """Nobody has joined: what is decided is noted, so that who comes late does not open it."""
        if request.commit and request.winners:
            raise _aborted(app, request)
        t = app.transaction
        if t is not None and t.is_open:  # an older version of the same run
            self._decide(app, t, frozenset(), now_ms, effects, commit=False)
            return None
        app.transaction = _Transaction(request.version, request.run_id, request.ticket, now_ms, 0)
        self._decide(app, app.transaction, frozenset(), now_ms, effects, commit=request.commit)
        return None

    def _add(self, request: AddPartitions, effects: Effects) -> Result:
        app = self._by_id.get(request.transactional_id)
        t = None if app is None else app.transaction
        if app is None or t is None or request.producer_id not in t.participants or request.producer_epoch != EPOCH:
            raise self.stale(request.transactional_id, Identity(request.producer_id, request.producer_epoch))
        if not t.is_open:
            raise InvalidTxnStateError(f"version {t.version} of application {app.name!r} is being ended")
        known = t.participants[request.producer_id]
        if not known.issuperset(request.partitions):
            known.update(request.partitions)
            effects.records.append(app.participant_record(t, request.producer_id))
        return True

    def _abort(self, request: Abort, now_ms: int, effects: Effects) -> Result | None:
        if request.aborted is not None:
            return request.aborted
        app = self._by_id.get(request.transactional_id)
        if app is None:
            raise _unknown(request.transactional_id)
        t = app.transaction
        if t is None or not t.is_open:
            raise InvalidTxnStateError(f"application {app.name!r} has no open transaction")
        self._decide(app, t, frozenset(), now_ms, effects, commit=False)
        return None

    # -- runs

    def _application(self, request: Join | EndShared) -> _Application:
        if request.transactional_id == SHARED_PREFIX:
            raise InvalidRequestError("an application id cannot be empty")
        found = self._by_id.get(request.transactional_id)
        if found is None:
            found = self._by_id[request.transactional_id] = _Application(request.transactional_id)
        return found

    def _fence(self, app: _Application, request: Join | EndShared, now_ms: int, effects: Effects) -> bool:
        """Whether the request's run is newer than the one that has opened the newest transaction; from now on older
        ones are refused. Raises ProducerFencedError for an older one."""
        t = app.transaction
        if not self._safeguards.run_fence:
            return False
        if request.run_id == app.run_id:
            if t is not None and t.is_of(request) and request.ticket < t.ticket:
                raise ProducerFencedError(f"{_of(app, request)}: a newer attempt has taken over")
            app.ticket = max(app.ticket, request.ticket)
        else:
            if request.run_id in app.older_runs or request.ticket <= app.ticket:
                raise ProducerFencedError(f"{_of(app, request)}: a newer run has taken over ({app.run_id})")
            if app.run_id:
                app.older_runs = (*app.older_runs, app.run_id)[-OLDER_RUNS_MAX:]
            app.run_id, app.ticket = request.run_id, request.ticket
            self._save(app, now_ms, effects)
        return t is not None and t.run_id != request.run_id

    # -- decisions

    def _decide(
        self,
        app: _Application,
        t: _Transaction,
        winners: frozenset[int],
        now_ms: int,
        effects: Effects,
        *,
        commit: bool,
    ) -> None:
        t.state = prepared(commit=commit)
        t.winners = winners if commit else frozenset()
        if not self._safeguards.winners_list and commit:
            t.winners = frozenset(t.participants)
        if any(t.participants.values()):
            self._save(app, now_ms, effects)
        effects.decided.append(app.transactional_id)

    def markers(self, transactional_id: str) -> list[Marker]:
        """What a prepared transaction has to write."""
        t = self._by_id[transactional_id].transaction
        assert t is not None
        return [
            Marker(tp, producer_id, MARKER_EPOCH, producer_id in t.winners)
            for producer_id, partitions in t.participants.items()
            for tp in sorted(partitions)
        ]

    def complete(self, transactional_id: str, now_ms: int, effects: Effects) -> None:
        """All markers are in."""
        app = self._by_id[transactional_id]
        t = app.transaction
        assert t is not None
        t.state = t.state.completed
        if t.state.is_commit:
            app.last_committed_version = max(app.last_committed_version, t.version)
        effects.records += [(app.participant_key(producer_id), None) for producer_id in t.participants]
        t.participants.clear()
        t.winners = frozenset()
        self._save(app, now_ms, effects)

    def prepared_ids(self) -> list[str]:
        """Decided, but not known to be complete: to be driven on after a restart."""
        return [
            a.transactional_id
            for a in self._by_id.values()
            if a.transaction is not None and a.transaction.state.is_prepared
        ]

    def time_out(self, now_ms: int, effects: Effects) -> None:
        """Aborts what has been open for too long."""
        for app in list(self._by_id.values()):
            t = app.transaction
            if t is not None and t.is_open and now_ms - t.started_ms >= t.timeout_ms:
                self._decide(app, t, frozenset(), now_ms, effects, commit=False)

    def expire(self, now_ms: int, effects: Effects) -> None:
        """Forgets applications that have not been used for long."""
        for app in list(self._by_id.values()):
            t = app.transaction
            idle = t is None or not (t.is_open or t.state.is_prepared)
            expiration_ms = self._limits.app_expiration_ms
            if app.name.startswith(UNNAMED_APP_PREFIX):
                expiration_ms = min(expiration_ms, UNNAMED_EXPIRATION_MS)
            if idle and now_ms - app.updated_ms >= expiration_ms:
                del self._by_id[app.transactional_id]
                effects.records.append((app.key, None))

    # -- what there is

    def stale(self, transactional_id: str, identity: Identity) -> SparklogError:
        """Why a partition has refused a batch of a participant as too old."""
        app = self._by_id.get(transactional_id)
        if app is None or app.transaction is None:
            return _unknown(transactional_id)
        return ProducerFencedError(
            f"producer {identity.producer_id} takes no part in the transaction of application {app.name!r} (any more): "
            f"it has ended, or a newer run has taken over"
        )

    def ids(self) -> list[str]:
        """All ids, in no order."""
        return list(self._by_id)

    def summary(self, transactional_id: str) -> TransactionSummary:
        """Raises InvalidProducerIdMappingError for an unknown id."""
        app = self._by_id.get(transactional_id)
        if app is None:
            raise _unknown(transactional_id)
        t = app.transaction
        is_open = t is not None and (t.is_open or t.state.is_prepared)
        return TransactionSummary(
            transactional_id,
            "shared",
            State.EMPTY.text if t is None else t.state.text,
            NO_ID,
            NO_ID,
            version=NEVER if t is None else t.version,
            run_id=app.run_id if t is None else t.run_id,
            started_ms=t.started_ms if t is not None and is_open else -1,
            timeout_ms=-1 if t is None else t.timeout_ms,
        )

    def last_committed_version(self, transactional_id: str) -> int:
        """-1: none. Raises InvalidProducerIdMappingError for an unknown id."""
        app = self._by_id.get(transactional_id)
        if app is None:
            raise _unknown(transactional_id)
        return app.last_committed_version

    def partitions(self, transactional_id: str) -> list[tuple[int, TopicPartition]]:
        """(producer id, partition) of what is open. Raises InvalidProducerIdMappingError for an unknown id."""
        app = self._by_id.get(transactional_id)
        if app is None:
            raise _unknown(transactional_id)
        if app.transaction is None:
            return []
        return sorted((pid, tp) for pid, tps in app.transaction.participants.items() for tp in tps)

    def producers(self) -> Iterator[tuple[int, str, set[TopicPartition]]]:
        """(producer id, transactional id, partitions of what is open)."""
        for app in self._by_id.values():
            if app.transaction is not None:
                for producer_id, partitions in app.transaction.participants.items():
                    yield producer_id, app.transactional_id, partitions

    def _save(self, app: _Application, now_ms: int, effects: Effects) -> None:
        app.updated_ms = now_ms
        effects.records.append(app.record)


def _of(app: _Application, request: Join | EndShared) -> str:
    return f"version {request.version} of application {app.name!r}, run {request.run_id}"


def _aborted(app: _Application, request: Join | EndShared) -> SparklogError:
    return TransactionAbortedError(
        f"{_of(app, request)} has been aborted (its timeout, an operator, a newer run): run it again as a new run"
    )


def _unknown(transactional_id: str) -> SparklogError:
    name = transactional_id.removeprefix(SHARED_PREFIX)
    return InvalidProducerIdMappingError(f"there is no application {name!r} with transactions")
