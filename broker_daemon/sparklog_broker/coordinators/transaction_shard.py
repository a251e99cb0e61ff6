"""The shard of one partition of `__transaction_state`, which carries out the decisions of its coordinator's rules.

Joins of many tasks share one append. If a topic of a transaction acknowledges appends only after an fsync, the decision
is fsynced before its markers: after a power cut there must be no marker without its decision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, NamedTuple

from sparklog.environment.clock import Clock
from sparklog.environment.fault_points import reach
from sparklog.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    SparklogError,
    UnknownServerError,
)
from sparklog.replication.transactions import (
    Answer,
    Coordinator,
    Effects,
    IdReserve,
    InitProducer,
    Join,
    Marker,
    Refuse,
    Request,
    TransactionLimits,
    WriteMarkers,
)
from sparklog.types import FENCING_TOKENS_ID
from sparklog_broker.coordinators.internal_topics import InternalTopic, Producer, Record, ReplayedRecord
from sparklog_broker.coordinators.shard import Shard
from sparklog_broker.coordinators.transaction_markers import MarkerWriter
from sparklog_broker.partitions.id_source import IdSource
from sparklog_broker.partitions.storage import Storage

WAIT_S_MAX = 20.0
IDS_MIN = 4


class _Change(NamedTuple):
    effects: Effects
    producer: Producer | None = None

    @property
    def records(self) -> Sequence[Record]:
        return self.effects.records


async def _at_once() -> None:
    """Return at once, because there are no holds."""


class TransactionShard(Shard[Coordinator, _Change]):
    """The shard of one partition. Event-loop thread only."""

    def __init__(
        self,
        number: int,
        loop: asyncio.AbstractEventLoop,
        topic: InternalTopic,
        markers: MarkerWriter,
        storage: Storage,
        limits: TransactionLimits,
        clock: Clock,
    ) -> None:
        super().__init__(number, loop, topic)
        self._marker_writer = markers
        self._limits = limits
        self._clock = clock
        self._storage = storage
        self._ids = IdReserve(storage.producer_ids.hand_out)
        self._tokens: IdSource | None = None
        self._waiting: dict[object, asyncio.Future[Any]] = {}
        self._unfinished: set[Marker] = set()
        self._recovered = asyncio.Event()
        self.wait_s_max = WAIT_S_MAX
        """Longest wait of a request for the end of a transaction, in s. The client then repeats the request."""
        self.may_go_on: Callable[[], Awaitable[None]] = _at_once
        """Returns when no hold (`TransactionHolds`) is in effect."""

    # -- the coordinator's life

    async def recovered(self) -> None:
        """Wait until the records are loaded, and all earlier decisions have their markers."""
        await self._recovered.wait()

    def _new(self) -> Coordinator:
        return Coordinator(self._ids, self._limits)

    def _replay(self, coordinator: Coordinator, record: ReplayedRecord) -> None:
        if record.key is not None:
            coordinator.replay(record.key, record.value)

    def _loaded(self, coordinator: Coordinator) -> None:
        effects = coordinator.loaded(self._clock.now_ms(), from_elsewhere=not self._storage.metadata.is_sole)
        for number in coordinator.numbers():
            self._storage.producer_ids.note_used(number)
        self._tokens = self._storage.fencing_tokens()  # another broker may have issued larger tokens
        if self._topic.partition_for(FENCING_TOKENS_ID) == self.number:
            self._tokens.take_ahead()
        self._unfinished = {m for a in effects.actions if isinstance(a, WriteMarkers) for m in a.markers}
        self._apply(effects)
        self._finished(set())

    async def draw_fencing_token(self) -> int:
        """Return a token that is larger than all earlier tokens. Raises CoordinatorLoadingError,
        BrokerShuttingDownError, StorageError."""
        coordinator, tokens = self.ready(), self._tokens
        assert tokens is not None
        token = await tokens.next()
        if self.ready() is not coordinator:  # another broker may have issued larger ones meanwhile
            raise CoordinatorLoadingError(f"{self} is being reloaded: try again")
        return token

    async def quiet(self) -> None:
        """Wait until all decisions have their markers. Raises CoordinatorLoadingError."""
        while self._tasks:
            await asyncio.wait(list(self._tasks))
        self.ready()

    # -- requests

    async def request(self, request: Request) -> Any:
        """Return the reply to a request. Raises the coordinator's error, CoordinatorLoadingError,
        BrokerShuttingDownError, StorageError, and ConcurrentTransactionsError if the previous transaction does not end
        within `wait_s_max`.
        """
        self._reserve_at_hand()
        if isinstance(request, InitProducer | Join):
            await self._reserve_one()
        await self.may_go_on()
        coordinator = self.ready()
        token = object()
        loop = asyncio.get_running_loop()
        future = self._waiting[token] = loop.create_future()
        timer = loop.call_later(self.wait_s_max, self._expire, token)
        try:
            self._apply(coordinator.handle(request, token, self._clock.now_ms()))
            return await future
        except (asyncio.CancelledError, ConcurrentTransactionsError):
            coordinator.give_up(token)
            raise
        finally:
            timer.cancel()
            del self._waiting[token]

    async def tick(self, expiry_ms: int | None = None) -> None:
        """Pass the present time to the coordinator. `expiry_ms` is as for `Coordinator.tick`."""
        if self.coordinator is None or self.coordinator.is_empty:
            return
        self._reserve_at_hand()
        if not self._stopped:
            self._apply(self.coordinator.tick(self._clock.now_ms(), expiry_ms))

    def _reserve_at_hand(self) -> None:
        """Reserve ids in advance, so that requests do not wait for the metadata store."""
        while len(self._ids) < IDS_MIN and (taken := self._storage.id_source.reserve_at_hand()) is not None:
            self._ids.add(taken)

    async def _reserve_one(self) -> None:
        while not len(self._ids) and not self._stopped:
            self._ids.add(await self._storage.id_source.reserve())

    def _expire(self, token: object) -> None:
        future = self._waiting[token]
        if not future.done():
            future.set_exception(
                ConcurrentTransactionsError("the end of the transaction is still being written; try again")
            )

    # -- effects

    def _apply(self, effects: Effects) -> None:
        if not effects.records and not self._queue and self._writer is None:
            self._act(effects)
        elif effects.records or effects.actions:
            self._enqueue(_Change(effects))

    async def _append(self, changes: Sequence[_Change]) -> None:
        decides = any(change.effects.decides for change in changes)
        completes = any(change.effects.completed for change in changes)
        if decides and not completes:
            reach("txn.before-decision")
        if completes:
            reach("txn.before-completion")
        await self._append_records(changes)
        written = [a.markers for change in changes for a in change.effects.actions if isinstance(a, WriteMarkers)]
        if any(self._marker_writer.wait_for_disk(markers) for markers in written):
            await self._topic.make_durable(self.number)
        if decides and not completes:
            reach("txn.after-decision")
        if completes:
            reach("txn.after-completion")

    def _done(self, changes: Iterable[_Change]) -> None:
        for change in changes:
            self._act(change.effects)

    def _act(self, effects: Effects) -> None:
        for action in effects.actions:
            match action:
                case Answer(token, result):
                    future = self._waiting.get(token)
                    if future is not None and not future.done():
                        future.set_result(result)
                case Refuse(token, error):
                    future = self._waiting.get(token)
                    if future is not None and not future.done():
                        future.set_exception(error)
                case WriteMarkers():
                    self._begin(self._drive(action))

    async def _drive(self, action: WriteMarkers) -> None:
        coordinator = self.coordinator
        assert coordinator is not None
        epoch = self._topic.partition_of(self.number).replicas.leader_epoch

        def done(markers: set[Marker]) -> None:
            if self.coordinator is coordinator:
                self._finished(markers)
                self._apply(coordinator.markers_written(action.transactional_id, markers, self._clock.now_ms()))

        await self._marker_writer.write_all(action.markers, epoch, done, action.started_ms)

    def _finished(self, markers: set[Marker]) -> None:
        self._unfinished -= markers
        if not self._unfinished:
            self._recovered.set()

    def _lost(self, failed: Sequence[_Change], waiting: Sequence[_Change], error: Exception) -> None:
        if not isinstance(error, SparklogError):
            error = UnknownServerError("the state of transactions could not be written; see the broker's log")
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(type(error)(str(error)))
