"""One partition of an internal topic at work: the coordinator whose state it holds, and the appends of what that
decides.

A request changes the coordinator at once. What has to be remembered goes into a queue, and what follows from it
(answers, other actions) happens when it, and all that was queued before, is below the high watermark. One append at a
time is under way; what comes meanwhile goes together into the next one. If an append fails, nobody knows what the log
holds: the coordinator is thrown away and made anew from the log, and until then requests are told to come back
(COORDINATOR_LOADING).
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar

from sparklog.errors import BrokerShuttingDownError, CoordinatorLoadingError, NotCoordinatorError, SparklogError
from sparklog_broker.coordinators.internal_topics import InternalTopic, Producer, Record, Replayed

log = logging.getLogger(__name__)

RECORDS_PER_APPEND_MAX = 10_000
RELOAD_S, RELOAD_S_MAX = 0.1, 5.0


class Change(Protocol):
    """What the coordinator has decided in one call: records of one producer (None: of no transaction)."""

    @property
    def records(self) -> Sequence[Record]: ...
    @property
    def producer(self) -> Producer | None: ...


C = TypeVar("C")
E = TypeVar("E", bound=Change)


class Shard(ABC, Generic[C, E]):
    """See the module. A kind of coordinator fills in what is abstract. Event-loop thread only."""

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop, topic: InternalTopic) -> None:
        self.number = number
        self.coordinator: C | None = None
        """None while its records are read."""
        self._loop = loop
        self._topic = topic
        self._queue: deque[E] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        """What works for the coordinator of this moment, and ends with it, in the order it began."""
        self._stopped = False
        self._has_loaded = asyncio.Event()

    @abstractmethod
    def _new(self) -> C:
        """A coordinator without any state."""

    @abstractmethod
    def _replay(self, coordinator: C, record: Replayed) -> None:
        """Gives it the next record."""

    @abstractmethod
    def _loaded(self, coordinator: C) -> None:
        """It has all records, and answers requests from now on."""

    @abstractmethod
    async def _append(self, changes: Sequence[E]) -> None:
        """Appends their records (`_append_records`); returns when they are safe."""

    @abstractmethod
    def _done(self, changes: Sequence[E]) -> None:
        """Their records are safe."""

    @abstractmethod
    def _lost(self, failed: Sequence[E], waiting: Sequence[E], error: Exception) -> None:
        """Their records are not, and never will be: of `failed` because of `error`, of `waiting` because they came
        after."""

    def ready(self) -> C:
        """Raises CoordinatorLoadingError, BrokerShuttingDownError."""
        if self._stopped:
            raise BrokerShuttingDownError("the broker is stopping")
        if self.coordinator is None:
            raise CoordinatorLoadingError(f"{self} is being read: try again")
        return self.coordinator

    def __str__(self) -> str:
        return f"partition {self.number} of {self._topic.name}"

    # -- loading

    async def loaded(self) -> None:
        """Returns when the partition's records have been read for the first time."""
        await self._has_loaded.wait()

    def load(self) -> asyncio.Task[None]:
        """Reads the partition's records; tries again until it can."""
        return self._begin(self._load())

    async def _load(self) -> None:
        backoff_s = RELOAD_S
        while True:
            try:
                coordinator = await self._read()
                self.coordinator = coordinator
                self._loaded(coordinator)
            except Exception as e:
                self.coordinator = None
                unexpected = None if isinstance(e, SparklogError | OSError) else e
                log.error("%s cannot be read, next attempt in %.1f s: %s", self, backoff_s, e, exc_info=unexpected)  # noqa: TRY400
            else:
                self._has_loaded.set()
                return
            await asyncio.sleep(backoff_s)
            backoff_s = min(2 * backoff_s, RELOAD_S_MAX)

    async def _read(self) -> C:
        if self._topic.exists:
            partition_log = self._topic.partition_of(self.number).log
            while partition_log.log_end_offset > partition_log.high_watermark:
                await asyncio.sleep(RELOAD_S)  # what is not replicated yet may still count
        coordinator = self._new()
        async for piece in self._topic.replay(self.number):
            for record in piece:
                self._replay(coordinator, record)
        return coordinator

    # -- appending

    def _enqueue(self, change: E) -> None:
        self._queue.append(change)
        if self._writer is None:
            self._writer = self._begin(self._write_queued())

    async def _write_queued(self) -> None:
        changes: list[E] = []
        try:
            while self._queue:
                changes = self._take()
                await self._append(changes)
                self._done(changes)
                changes = []
        except Exception as e:
            unexpected = None if isinstance(e, SparklogError) else e
            log.error("%s: %s; its state is read again", self, e, exc_info=unexpected)  # noqa: TRY400
            self._abandon(changes, e)
            if not self._stopped:
                self.load()
        finally:
            if self._writer is asyncio.current_task():
                self._writer = None

    def _take(self) -> list[E]:
        """What can be one batch: of one producer, in the order it came."""
        taken = [self._queue.popleft()]
        count = len(taken[0].records)
        while self._queue and self._queue[0].producer == taken[0].producer:
            count += len(self._queue[0].records)
            if count > RECORDS_PER_APPEND_MAX:
                break
            taken.append(self._queue.popleft())
        return taken

    async def _append_records(self, changes: Sequence[E]) -> None:
        records = [record for change in changes for record in change.records]
        if records:
            await self._topic.append(self.number, records, producer=changes[0].producer)

    # -- ending

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("%s: work for its coordinator failed", self, exc_info=task.exception())

    def _abandon(self, failed: Sequence[E], error: Exception) -> None:
        """Forgets the coordinator and everything that works for it."""
        self.coordinator = None
        waiting, self._queue = self._queue, deque()
        current = asyncio.current_task()
        for task in list(self._tasks):
            if task is not current:
                task.cancel()
        self._writer = None
        self._lost(failed, list(waiting), error)

    def park(self) -> None:
        """Another broker works for this partition now; `load` begins anew."""
        self._abandon((), NotCoordinatorError(f"{self} is another broker's now"))

    def stop(self) -> list[asyncio.Task[None]]:
        """Nothing is begun any more; who waits is told so. What is still ending."""
        self._stopped = True
        self._abandon((), BrokerShuttingDownError("the broker is stopping"))
        return list(self._tasks)
