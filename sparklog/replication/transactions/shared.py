"""Transactions of many participants, for Spark. Each version of an application is one transaction, with one decision
for all participants.

Each participant gets its own producer id, which is used once: its batches have epoch 0, its marker epoch 1. The
decision names the committed participants; the records of the other participants are aborted. A *run* is one start of
the application's driver, identified by its run id; fencing tokens order the runs. A newer run fences all older runs
forever, even if an older run draws a new fencing token later.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from msgspec import Struct, field

from sparklog.errors import (
    ConcurrentTransactionsError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
    SparklogError,
    TransactionAbortedError,
)
from sparklog.protocol.transaction_messages import TransactionSummary
from sparklog.replication.transactions import records
from sparklog.replication.transactions.machine import TransactionMachine, is_idle
from sparklog.replication.transactions.model import (
    NO_ID,
    RUN_ID_CHARS_MAX,
    TRANSACTIONAL_ID_CHARS_MAX,
    Abort,
    AddPartitions,
    Effects,
    EndShared,
    IdReserve,
    Join,
    JoinAnswer,
    Renew,
    RenewAnswer,
    Result,
    Safeguards,
    State,
    TransactionLimits,
    check_name,
)
from sparklog.types import PRODUCER_ID_END, SHARED_PREFIX, UNNAMED_APP_PREFIX, ProducerIdAndEpoch, TopicPartition

EPOCH = 0
MARKER_EPOCH = 1
OLDER_RUNS_MAX = 16
"""Number of fenced runs that are remembered by their ids; earlier runs are recognised by their fencing tokens."""
UNNAMED_EXPIRATION_MS = 3_600_000
"""Expiration of applications that write once (`UNNAMED_APP_PREFIX`), in ms. Otherwise every batch write would be
remembered for months."""
NEVER = -1
"""The last committed version of an application that has committed none."""


class _Transaction(Struct):
    """The newest transaction of an application, open or ended."""

    version: int
    run_id: str
    fencing_token: int
    started_ms: int
    timeout_ms: int
    state: State = State.ONGOING
    committed_participants: frozenset[int] = frozenset()
    participants: dict[int, set[TopicPartition]] = field(default_factory=dict)
    input: str = ""
    lease_ms: int = 0
    renewed_ms: int = 0
    """Time of the last renewal. It is not stored: after a restart every lease begins again."""
    timed_from_ms: int | None = None
    """Start of the timeout; None for `started_ms`. Not stored, as `renewed_ms`."""

    def is_of(self, request: Join | EndShared | Renew) -> bool:
        return (self.version, self.run_id) == (request.version, request.run_id)

    @property
    def is_open(self) -> bool:
        return self.state is State.ONGOING

    def is_overdue(self, now_ms: int) -> bool:
        """Return True if the timeout or the lease of the transaction has ended."""
        lease_is_over = self.lease_ms > 0 and now_ms - self.renewed_ms >= self.lease_ms
        from_ms = self.started_ms if self.timed_from_ms is None else self.timed_from_ms
        return lease_is_over or now_ms - from_ms >= self.timeout_ms


class _Application(Struct):
    """The state of one application. `run_id` and `fencing_token` are those of the newest run; `older_runs` are the ids
    of fenced runs."""

    transactional_id: str
    run_id: str = ""
    fencing_token: int = NO_ID
    older_runs: tuple[str, ...] = ()
    last_committed_version: int = NEVER
    updated_ms: int = -1
    transaction: _Transaction | None = None
    last_committed_input: str = ""

    @property
    def state(self) -> State:
        return State.EMPTY if self.transaction is None else self.transaction.state

    @property
    def started_ms(self) -> int:
        return -1 if self.transaction is None else self.transaction.started_ms

    @property
    def participants(self) -> dict[int, set[TopicPartition]]:
        return {} if self.transaction is None else self.transaction.participants

    def move(self, state: State) -> None:
        assert self.transaction is not None
        self.transaction.state = state

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
            self.fencing_token,
            list(self.older_runs),
            self.updated_ms,
            None
            if t is None
            else records.SharedTransactionValue(
                t.version,
                t.run_id,
                t.fencing_token,
                int(t.state),
                t.started_ms,
                t.timeout_ms,
                sorted(t.committed_participants),
                t.input,
                t.lease_ms,
            ),
            self.last_committed_input,
        )
        return self.key, records.encode_value(value)

    def participant_key(self, producer_id: int) -> bytes:
        return records.encode_key(records.PARTICIPANT, self.transactional_id, producer_id)

    def participant_record(self, transaction: _Transaction, producer_id: int) -> tuple[bytes, bytes]:
        packed = records.pack_partitions(transaction.participants[producer_id])
        value = records.ParticipantValue(records.VERSION, transaction.version, transaction.fencing_token, packed)
        return self.participant_key(producer_id), records.encode_value(value)


class SharedTransactions(TransactionMachine[_Application]):
    """All applications of one coordinator. `handle` returns the answer, or None if the request must wait for the end of
    a transaction. If `handle` raises an error, the error is the answer."""

    def __init__(self, ids: IdReserve, limits: TransactionLimits, safeguards: Safeguards) -> None:
        super().__init__(ids, limits, safeguards)
        self._replayed_participants: dict[tuple[str, int], records.ParticipantValue] = {}

    # -- the state topic

    def replay(self, transactional_id: str, value: records.SharedValue | None) -> None:
        """Apply a record of an application."""
        if value is None:
            self._by_id.pop(transactional_id, None)
            return
        t = value.transaction
        self._by_id[transactional_id] = _Application(
            transactional_id,
            value.run_id,
            value.fencing_token if value.fencing_token < PRODUCER_ID_END else NO_ID,  # larger tokens fence all runs
            tuple(value.older_runs),
            value.last_committed_version,
            value.updated_ms,
            None
            if t is None
            else _Transaction(
                t.version,
                t.run_id,
                t.fencing_token,
                t.started_ms,
                t.timeout_ms,
                State(t.state),
                frozenset(t.committed_participants),
                input=t.input,
                lease_ms=t.lease_ms,
            ),
            value.last_committed_input,
        )

    def replay_participant(
        self, transactional_id: str, producer_id: int, value: records.ParticipantValue | None
    ) -> None:
        """Apply a record of a participant."""
        if value is None:
            self._replayed_participants.pop((transactional_id, producer_id), None)
        else:
            self._replayed_participants[transactional_id, producer_id] = value

    def replayed_all(self, now_ms: int) -> None:
        """Add the replayed participants to their transactions, and begin all leases again."""
        for (transactional_id, producer_id), value in self._replayed_participants.items():
            app = self._by_id.get(transactional_id)
            t = None if app is None else app.transaction
            if t is not None and (t.version, t.fencing_token) == (value.version, value.fencing_token):
                t.participants[producer_id] = records.unpack_partitions(value.partitions)
        for app in self._by_id.values():
            if app.transaction is not None:
                app.transaction.renewed_ms = now_ms
        self._replayed_participants.clear()

    def time_again(self, now_ms: int) -> None:
        """Begin the timeouts of all transactions again at `now_ms`."""
        for app in self._by_id.values():
            if app.transaction is not None:
                app.transaction.timed_from_ms = now_ms

    # -- requests

    def handle(
        self, request: Join | EndShared | AddPartitions | Renew | Abort, now_ms: int, effects: Effects
    ) -> Result | None:
        """Handle a request, with the results that the class describes."""
        match request:
            case Join():
                return self._join(request, now_ms, effects)
            case EndShared():
                return self._end(request, now_ms, effects)
            case AddPartitions():
                return self._add(request, effects)
            case Renew():
                return self._renew(request, now_ms)
            case Abort():
                return self._abort(request, now_ms, effects)

    def _join(self, request: Join, now_ms: int, effects: Effects) -> Result | None:
        app = self._application(request)
        is_newer = self._fence(app, request, now_ms, effects)
        self._by_id[app.transactional_id] = app
        t = app.transaction
        if t is not None and t.is_open and is_newer:
            self._abort_open(app, now_ms, effects)
        if request.version <= app.last_committed_version and self._safeguards.committed_version_check:
            return JoinAnswer(None)
        if t is None or t.state is State.EMPTY:
            return self._open(app, request, now_ms, effects)
        if t.state.is_prepared:
            return None
        if request.version < t.version and request.run_id == t.run_id:
            raise ProducerFencedError(f"{_of(app, request)}: the run has gone on to version {t.version}")
        if not t.is_open:
            if t.is_of(request) and t.state.is_abort and request.fencing_token <= t.fencing_token:
                raise _aborted_error(app, request)
            return self._open(app, request, now_ms, effects)
        if request.version > t.version:  # the run has abandoned the earlier version
            self._abort_open(app, now_ms, effects)
            return None
        t.renewed_ms = now_ms
        return self._participate(app, t, effects)

    def _open(self, app: _Application, request: Join, now_ms: int, effects: Effects) -> JoinAnswer:
        producer_id = self._ids.require()
        t = _Transaction(
            request.version,
            request.run_id,
            request.fencing_token,
            now_ms,
            request.timeout_ms,
            lease_ms=request.lease_ms,
            renewed_ms=now_ms,
        )
        t.participants[producer_id] = set()
        app.transaction = t
        self._save(app, now_ms, effects)
        effects.records.append(app.participant_record(t, producer_id))
        return JoinAnswer(ProducerIdAndEpoch(producer_id, EPOCH))

    def _participate(self, app: _Application, t: _Transaction, effects: Effects) -> JoinAnswer:
        if len(t.participants) >= self._limits.participants_max:
            raise InvalidTxnStateError(
                f"version {t.version} of application {app.name!r} has {len(t.participants)} participants, the most "
                "allowed"
            )
        producer_id = self._ids.require()
        t.participants[producer_id] = set()
        effects.records.append(app.participant_record(t, producer_id))
        return JoinAnswer(ProducerIdAndEpoch(producer_id, EPOCH))

    def _end(self, request: EndShared, now_ms: int, effects: Effects) -> Result | None:
        app = self._application(request)
        is_newer = self._fence(app, request, now_ms, effects)
        self._by_id[app.transactional_id] = app
        t = app.transaction
        if t is not None and t.is_of(request) and not t.is_open:
            return self._end_again(app, t, request)
        if t is not None and t.is_open and is_newer:
            self._abort_open(app, now_ms, effects)
            return None
        if t is not None and t.state.is_prepared:
            return None
        if request.version <= app.last_committed_version and self._safeguards.committed_version_check:
            return True
        if t is not None and t.is_open and t.is_of(request):
            if request.commit and not t.participants.keys() >= request.committed_participants:
                unknown = heapq.nsmallest(5, request.committed_participants - t.participants.keys())
                raise InvalidProducerIdMappingError(
                    f"{_of(app, request)}: {unknown} do not take part in it (they belong to an aborted attempt)"
                )
            t.input = request.input
            self._decide(app, request.committed_participants, now_ms, effects, commit=request.commit)
            return None
        if t is not None and request.run_id == t.run_id and request.version < t.version:
            raise ProducerFencedError(f"{_of(app, request)}: the run has gone on to version {t.version}")
        return self._end_absent(app, request, now_ms, effects)

    def _end_again(self, app: _Application, t: _Transaction, request: EndShared) -> Result | None:
        """Answer a repeated end of a decided transaction."""
        if request.commit and t.state.is_abort:
            raise _aborted_error(app, request)
        return None if t.state.is_prepared else t.state.is_commit

    def _end_absent(self, app: _Application, request: EndShared, now_ms: int, effects: Effects) -> Result | None:
        """Decide a version that no participant has opened. The stored decision keeps a late participant from opening
        the version."""
        if request.commit and request.committed_participants:
            raise _aborted_error(app, request)
        t = app.transaction
        if t is not None and t.is_open:  # another version of the same run
            self._abort_open(app, now_ms, effects)
            return None
        app.transaction = _Transaction(
            request.version, request.run_id, request.fencing_token, now_ms, 0, input=request.input
        )
        self._decide(app, frozenset(), now_ms, effects, commit=request.commit)
        return None

    def _add(self, request: AddPartitions, effects: Effects) -> Result:
        app = self._by_id.get(request.transactional_id)
        t = None if app is None else app.transaction
        if app is None or t is None or request.producer_id not in t.participants or request.producer_epoch != EPOCH:
            raise self.stale(request.transactional_id, ProducerIdAndEpoch(request.producer_id, request.producer_epoch))
        if not t.is_open:
            raise InvalidTxnStateError(f"version {t.version} of application {app.name!r} is ending")
        partitions = t.participants[request.producer_id]
        if not partitions.issuperset(request.partitions):
            partitions.update(request.partitions)
            effects.records.append(app.participant_record(t, request.producer_id))
        return True

    def _renew(self, request: Renew, now_ms: int) -> Result:
        app = self._by_id.get(request.transactional_id)
        t = None if app is None else app.transaction
        if t is None or not t.is_of(request):
            return RenewAnswer(known=False, is_open=False)
        t.renewed_ms = now_ms
        return RenewAnswer(known=True, is_open=t.is_open)

    # -- runs

    def _application(self, request: Join | EndShared) -> _Application:
        """Return the application. An unknown application is created here, but stored only if the request is accepted.
        Raises InvalidRequestError for its id, ConcurrentTransactionsError if there are `ids_max` applications."""
        entry = self._by_id.get(request.transactional_id)
        if entry is not None:
            return entry
        check_name(
            "an application id", request.transactional_id.removeprefix(SHARED_PREFIX), TRANSACTIONAL_ID_CHARS_MAX
        )
        if len(self._by_id) >= self._limits.ids_max:
            raise ConcurrentTransactionsError(
                f"{len(self._by_id)} applications are stored in this partition of __transaction_state "
                "(max.transactional.ids.per.partition): try again later"
            )
        return _Application(request.transactional_id)

    def _fence(self, app: _Application, request: Join | EndShared, now_ms: int, effects: Effects) -> bool:
        """Fence all runs that are older than the request's run. Returns True if another run has opened the newest
        transaction. Raises ProducerFencedError if a newer run has fenced the request's run."""
        t = app.transaction
        check_name("a run id", request.run_id, RUN_ID_CHARS_MAX)
        if not self._safeguards.run_fence:
            return False
        if request.run_id == app.run_id:
            if t is not None and t.is_of(request) and request.fencing_token < t.fencing_token:
                raise ProducerFencedError(f"{_of(app, request)}: a newer attempt has taken over")
            app.fencing_token = max(app.fencing_token, request.fencing_token)
        else:
            if request.run_id in app.older_runs or request.fencing_token <= app.fencing_token:
                raise ProducerFencedError(f"{_of(app, request)}: a newer run has taken over ({app.run_id})")
            if app.run_id:
                app.older_runs = (*app.older_runs, app.run_id)[-OLDER_RUNS_MAX:]
            app.run_id, app.fencing_token = request.run_id, request.fencing_token
            self._save(app, now_ms, effects)
        return t is not None and t.run_id != request.run_id

    # -- decisions

    def _decide(
        self, app: _Application, committed_participants: frozenset[int], now_ms: int, effects: Effects, *, commit: bool
    ) -> None:
        t = app.transaction
        assert t is not None
        t.committed_participants = committed_participants if commit else frozenset()
        if not self._safeguards.committed_participants_only and commit:
            t.committed_participants = frozenset(t.participants)
        self._decided(app, now_ms, effects, commit=commit)

    def _abort_open(self, app: _Application, now_ms: int, effects: Effects) -> None:
        self._decide(app, frozenset(), now_ms, effects, commit=False)

    def _marker(self, app: _Application, producer_id: int) -> tuple[int, bool, bool]:
        commits = app.transaction is not None and producer_id in app.transaction.committed_participants
        return MARKER_EPOCH, commits, False

    def _completed(self, app: _Application, effects: Effects) -> None:
        t = app.transaction
        assert t is not None
        if t.state.is_commit and t.version >= app.last_committed_version:
            app.last_committed_version, app.last_committed_input = t.version, t.input
        effects.records += [(app.participant_key(producer_id), None) for producer_id in t.participants]
        t.participants.clear()
        t.committed_participants = frozenset()

    def _is_overdue(self, app: _Application, now_ms: int) -> bool:
        return app.transaction is not None and app.transaction.is_overdue(now_ms)

    def _expiration_ms(self, app: _Application) -> int:
        """Return the time, in ms, after which an unused application is removed; it is short for applications that write
        once (`UNNAMED_APP_PREFIX`)."""
        limit_ms = self._limits.app_expiration_ms
        return min(limit_ms, UNNAMED_EXPIRATION_MS) if app.name.startswith(UNNAMED_APP_PREFIX) else limit_ms

    # -- present state

    def stale(self, transactional_id: str, identity: ProducerIdAndEpoch) -> SparklogError:
        """Return the error for a participant after a partition has refused its batch as too old."""
        app = self._by_id.get(transactional_id)
        if app is None or app.transaction is None:
            return self._unknown(transactional_id)
        return ProducerFencedError(
            f"producer {identity.producer_id} does not take part in the transaction of application {app.name!r}: the "
            "transaction has ended, or a newer run has taken over"
        )

    def summary(self, transactional_id: str) -> TransactionSummary:
        """Return the summary of an application. Raises InvalidProducerIdMappingError for an unknown id."""
        app = self._existing(transactional_id)
        t = app.transaction
        return TransactionSummary(
            transactional_id,
            "shared",
            app.state.text,
            NO_ID,
            NO_ID,
            version=NEVER if t is None else t.version,
            run_id=app.run_id if t is None else t.run_id,
            started_ms=-1 if t is None or is_idle(app) else t.started_ms,
            timeout_ms=-1 if t is None else t.timeout_ms,
        )

    def last_committed(self, transactional_id: str) -> tuple[int, str]:
        """Return the last committed version (-1 for none) and its input. Raises InvalidProducerIdMappingError."""
        app = self._existing(transactional_id)
        return app.last_committed_version, app.last_committed_input

    def numbers(self) -> Iterator[int]:
        """Yield all producer ids and fencing tokens in the records."""
        for app in self._by_id.values():
            yield app.fencing_token
            if app.transaction is not None:
                yield from app.transaction.participants

    def _unknown(self, transactional_id: str, producer_id: int = NO_ID) -> SparklogError:
        name = transactional_id.removeprefix(SHARED_PREFIX)
        return InvalidProducerIdMappingError(f"application {name!r} has no shared transactions")


def _of(app: _Application, request: Join | EndShared) -> str:
    return f"version {request.version} of application {app.name!r}, run {request.run_id}"


def _aborted_error(app: _Application, request: Join | EndShared) -> SparklogError:
    return TransactionAbortedError(
        f"{_of(app, request)} has been aborted (by its timeout, an operator or a newer run): start a new run"
    )
