"""The coordinator of one partition of an internal topic, and the appends of its decisions.

A request changes the coordinator at once, and its records go into a queue. Its effects (replies, other actions) happen
when these and all earlier records are below the high watermark. One append is in progress at a time; records that are
queued during it share the next one. If an append fails, the content of the log is unknown. The coordinator is then
discarded and loaded again from the log; until then requests get COORDINATOR_LOADING.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar

from sparklog.errors import BrokerShuttingDownError, CoordinatorLoadingError, NotCoordinatorError, SparklogError
from sparklog_broker.coordinators.internal_topics import InternalTopic, Producer, Record, ReplayedRecord

log = logging.getLogger(__name__)

RECORDS_PER_APPEND_MAX = 10_000
RELOAD_S, RELOAD_S_MAX = 0.1, 5.0


class Change(Protocol):
    """The records of one coordinator decision; `producer` is None outside of a transaction."""

    @property
    def records(self) -> Sequence[Record]: ...
    @property
    def producer(self) -> Producer | None: ...


C = TypeVar("C")
E = TypeVar("E", bound=Change)


class Shard(ABC, Generic[C, E]):
    """Base of the shards of one kind of coordinator, which implement the abstract methods. Event-loop thread only."""

    def __init__(self, number: int, loop: asyncio.AbstractEventLoop, topic: InternalTopic) -> None:
        self.number = number
        self.coordinator: C | None = None
        """The coordinator; None while its records are being loaded."""
        self._loop = loop
        self._topic = topic
        self._queue: deque[E] = deque()
        self._writer: asyncio.Task[None] | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        """Tasks of the present coordinator, in the order of their start. They are cancelled with it."""
        self._stopped = False
        self._has_loaded = asyncio.Event()

    @abstractmethod
    def _new(self) -> C:
        """Return a coordinator without state."""

    @abstractmethod
    def _replay(self, coordinator: C, record: ReplayedRecord) -> None:
        """Apply the next record to the coordinator."""

    @abstractmethod
    def _loaded(self, coordinator: C) -> None:
        """Prepare the coordinator for requests, after the last record."""

    @abstractmethod
    async def _append(self, changes: Sequence[E]) -> None:
        """Append the records of `changes` with `_append_records`, which returns when the records are below the high
        watermark."""

    @abstractmethod
    def _done(self, changes: Sequence[E]) -> None:
        """Carry out the effects of changes whose records are below the high watermark."""

    @abstractmethod
    def _lost(self, failed: Sequence[E], waiting: Sequence[E], error: Exception) -> None:
        """Fail changes whose records are lost: `failed` with `error`, and those in `waiting`, which were queued after
        them."""

    def ready(self) -> C:
        """Return the coordinator. Raises CoordinatorLoadingError, BrokerShuttingDownError."""
        if self._stopped:
            raise BrokerShuttingDownError("the broker is stopping")
        if self.coordinator is None:
            raise CoordinatorLoadingError(f"{self} is being loaded: try again")
        return self.coordinator

    def __str__(self) -> str:
        return f"partition {self.number} of {self._topic.name}"

    # -- loading

    async def loaded(self) -> None:
        """Wait until the partition's records have been loaded once."""
        await self._has_loaded.wait()

    def load(self) -> asyncio.Task[None]:
        """Load the partition's records in a task, and return the task. Failed attempts are repeated."""
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
                await asyncio.sleep(RELOAD_S)  # wait: records that are not replicated yet may become committed
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
            log.error("%s: %s; reloading its state", self, e, exc_info=unexpected)  # noqa: TRY400
            self._abandon(changes, e)
            if not self._stopped:
                self.load()
        finally:
            if self._writer is asyncio.current_task():
                self._writer = None

    def _take(self) -> list[E]:
        """Remove the changes of the next batch from the queue, and return them in order. They have the same
        producer."""
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
            log.error("%s: a task of its coordinator failed", self, exc_info=task.exception())

    def _abandon(self, failed: Sequence[E], error: Exception) -> None:
        """Discard the coordinator, cancel all its tasks, and fail the changes in `failed` and in the queue."""
        self.coordinator = None
        waiting, self._queue = self._queue, deque()
        current = asyncio.current_task()
        for task in list(self._tasks):
            if task is not current:
                task.cancel()
        self._writer = None
        self._lost(failed, list(waiting), error)

    def park(self) -> None:
        """Stop the shard, because another broker leads the partition now. `load` starts it again."""
        self._abandon((), NotCoordinatorError(f"{self} has moved to another broker"))

    def stop(self) -> list[asyncio.Task[None]]:
        """Stop the shard, and fail the waiting requests. Returns the tasks that have not ended yet."""
        self._stopped = True
        self._abandon((), BrokerShuttingDownError("the broker is stopping"))
        return list(self._tasks)
