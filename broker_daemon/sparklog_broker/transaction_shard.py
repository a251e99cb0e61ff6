"""One partition of `__transaction_state` at work: carries out what its coordinator's rules say.

Records are appended in the order of the calls that gave them, as many as have gathered with one append (joins of many
tasks share one); the actions of a call follow when its records are in, and a decision is on the disk before the markers if any
topic of the transaction acknowledges only what is there: a power cut must not leave a part of the markers without it. When an append fails nobody knows what the log
holds: the coordinator is made anew from it, and whoever waited is told to try again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from sparklog.errors import (
    BrokerShuttingDownError,
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    SparklogError,
    UnknownServerError,
)
from sparklog.log.clock import Clock
from sparklog.replication.transactions import (
    Answer,
    Coordinator,
    Effects,
    IdReserve,
    Limits,
    Marker,
    Refuse,
    Request,
    WriteMarkers,
)
from sparklog.testing.faults import reach
from sparklog_broker.internal_topics import InternalTopic
from sparklog_broker.transaction_markers import MarkerWriter

log = logging.getLogger(__name__)

RECORDS_PER_APPEND_MAX = 10_000
WAIT_S_MAX = 20.0
"""How long a request waits for a transaction's end before its client has to ask again."""
RELOAD_S, RELOAD_S_MAX = 0.5, 30.0
IDS_MIN = 4


class TransactionShard:
    """See the module. Event-loop thread only."""

    def __init__(
        self,
        partition: int,
        topic: InternalTopic,
        markers: MarkerWriter,
        draw_producer_id: Callable[[], Awaitable[int]],
        limits: Limits,
        clock: Clock,
    ) -> None:
        self.partition = partition
        self.coordinator: Coordinator | None = None
        """None while its records are read."""
        self._topic = topic
        self._markers = markers
        self._draw_producer_id = draw_producer_id
        self._limits = limits
        self._clock = clock
        self._ids = IdReserve()
        self._queue: deque[Effects] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._waiting: dict[object, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        """What works for the coordinator of this moment, and ends with it."""
        self._stopped = False
        self._unfinished: set[Marker] = set()
        self._recovered = asyncio.Event()

    # -- life

    async def recovered(self) -> None:
        """Returns when the records are read, and what was decided before the start has all its markers."""
        await self._recovered.wait()

    async def load(self) -> None:
        """Reads the partition's records; tries again until it can."""
        backoff_s = RELOAD_S
        while not self._stopped:
            try:
                self.coordinator = await self._replayed()
                effects = self.coordinator.loaded(self._clock.now_ms())
                self._unfinished = {m for a in effects.actions if isinstance(a, WriteMarkers) for m in a.markers}
                self._apply(effects)
                self._finished(set())
            except (SparklogError, OSError) as e:
                log.error("transaction state %d, next attempt in %.1f s: %s", self.partition, backoff_s, e)  # noqa: TRY400
            except Exception:
                log.exception("transaction state %d cannot be read, next attempt in %.1f s", self.partition, backoff_s)
            else:
                return
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, RELOAD_S_MAX)

    async def _replayed(self) -> Coordinator:
        coordinator = Coordinator(self._ids, self._limits)
        if self._topic.exists:
            where = self._topic.partition_of(self.partition)
            if where.replicas.high_watermark < where.log.log_end_offset:
                raise CoordinatorLoadingError("its end is not on all in-sync replicas yet")
            async for piece in self._topic.replay(self.partition):
                for record in piece:
                    if record.key is not None:
                        coordinator.replay(record.key, record.value)
        return coordinator

    def stop(self) -> list[asyncio.Task[None]]:
        """Nothing is begun any more; who waits is told so. What is still ending."""
        self._stopped = True
        self._abandon(BrokerShuttingDownError("the broker is stopping"))
        return list(self._tasks)

    # -- requests

    async def request(self, request: Request) -> Any:
        """The answer to a request. Raises its error, CoordinatorLoadingError, and ConcurrentTransactionsError when the end
        of the transaction before takes too long."""
        while len(self._ids) < IDS_MIN:
            self._ids.add(await self._draw_producer_id())
        coordinator = self.loaded()
        token = object()
        loop = asyncio.get_running_loop()
        future = self._waiting[token] = loop.create_future()
        timer = loop.call_later(WAIT_S_MAX, self._expire, token)
        try:
            self._apply(coordinator.handle(request, token, self._clock.now_ms()))
            return await future
        except (asyncio.CancelledError, ConcurrentTransactionsError):
            coordinator.give_up(token)
            raise
        finally:
            timer.cancel()
            del self._waiting[token]

    def loaded(self) -> Coordinator:
        """Raises CoordinatorLoadingError, BrokerShuttingDownError."""
        if self._stopped:
            raise BrokerShuttingDownError("the broker is stopping")
        if self.coordinator is None:
            raise CoordinatorLoadingError("the state of transactions is still being read; try again")
        return self.coordinator

    async def tick(self) -> None:
        """Time has passed."""
        if self.coordinator is None or self.coordinator.is_empty:
            return
        if not self._stopped:
            while len(self._ids) < IDS_MIN:
                self._ids.add(await self._draw_producer_id())
        if self.coordinator is not None and not self._stopped:
            self._apply(self.coordinator.tick(self._clock.now_ms()))

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
            self._queue.append(effects)
            if self._writer is None:
                self._writer = self._begin(self._write())

    async def _write(self) -> None:
        """Appends what is queued until nothing is."""
        try:
            while self._queue:
                group = self._take()
                records = [record for effects in group for record in effects.records]
                decides = any(effects.decides for effects in group)
                completes = any(effects.completed for effects in group)
                if decides and not completes:
                    reach("txn.before-decision")
                if completes:
                    reach("txn.before-completion")
                if records:
                    await self._topic.append(self.partition, records)
                if any(
                    isinstance(a, WriteMarkers) and self._markers.wait_for_disk(a.markers)
                    for e in group
                    for a in e.actions
                ):
                    await self._topic.make_durable(self.partition)
                if decides and not completes:
                    reach("txn.after-decision")
                if completes:
                    reach("txn.after-completion")
                for effects in group:
                    self._act(effects)
        except asyncio.CancelledError:
            raise
        except Exception as e:  # noqa: BLE001 - whatever it is, what the log holds is not known
            self._fail(e)
        finally:
            if self._writer is asyncio.current_task():
                self._writer = None

    def _take(self) -> list[Effects]:
        group, count = [self._queue.popleft()], 0
        while self._queue and count < RECORDS_PER_APPEND_MAX:
            group.append(self._queue.popleft())
            count += len(group[-1].records)
        return group

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
        epoch = self._topic.partition_of(self.partition).replicas.leader_epoch

        def done(markers: set[Marker]) -> None:
            if self.coordinator is coordinator:
                self._finished(markers)
                self._apply(coordinator.markers_written(action.transactional_id, markers, self._clock.now_ms()))

        await self._markers.write_all(action.markers, epoch, done)

    def _finished(self, markers: set[Marker]) -> None:
        self._unfinished -= markers
        if not self._unfinished:
            self._recovered.set()

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("transactions: work for partition %d failed", self.partition, exc_info=task.exception())

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, SparklogError):
            log.error("transaction state %d: an append failed", self.partition, exc_info=error)
            error = UnknownServerError("the state of transactions could not be written; see the broker's log")
        self._abandon(error)
        if not self._stopped:
            self._begin(self.load())

    def _abandon(self, error: SparklogError) -> None:
        """Forgets the coordinator and everything that works for it."""
        self.coordinator = None
        self._queue.clear()
        current = asyncio.current_task()
        for task in list(self._tasks):
            if task is not current:
                task.cancel()
        self._writer = None
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(type(error)(str(error)))
