"""The group coordinator's shell: its partitions' state machines, their appends, their clock.

Each partition of `__consumer_offsets` has a `GroupCoordinator`. A request changes it at once; what has to be remembered goes
into the partition's queue, and the answer is given when that, and all that was queued before, is below the high watermark.
One append at a time is under way; what comes meanwhile goes together into the next one. If an append fails, the state is
ahead of the log: it is thrown away and read again, and until then requests are told to come back (COORDINATOR_LOADING).
Event-loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from sparklog.errors import CoordinatorLoadingError, SparklogError, StorageError
from sparklog.log.clock import Clock, SystemClock
from sparklog.protocol import group_messages as m
from sparklog.replication.group_membership import GroupConfig, Topics
from sparklog.replication.group_records import Record
from sparklog.replication.groups import GroupCoordinator, Step
from sparklog.types import CONSUMER_OFFSETS_TOPIC
from sparklog_broker.config import BrokerConfig
from sparklog_broker.internal_topics import InternalTopic, Producer

if TYPE_CHECKING:
    from sparklog_broker.broker import Broker

log = logging.getLogger(__name__)

RECORDS_PER_APPEND_MAX = 10_000
RETRY_S, RETRY_S_MAX = 0.1, 5.0
TICKS_PER_HEARTBEAT = 20
TICK_S_MIN, TICK_S_MAX = 0.02, 0.25
STALL_S = 1.0
"""If the broker itself did not run for longer, its members' heartbeats could not be read either: their time is prolonged."""

A = TypeVar("A")


class _Queued(NamedTuple):
    """Records of one request (none: it only waits for those before it)."""

    records: list[Record]
    producer: Producer | None
    done: asyncio.Future[None]


def group_config(config: BrokerConfig) -> GroupConfig:
    return GroupConfig(
        session_timeout_ms=config.group_consumer_session_timeout_ms,
        heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        group_size_max=config.group_max_size,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
    )


class GroupPartition:
    """One partition of `__consumer_offsets` and its coordinator (None while it is read)."""

    def __init__(self, groups: Groups, number: int) -> None:
        self.number = number
        self._groups = groups
        self._coordinator: GroupCoordinator | None = None
        self._queue: deque[_Queued] = deque()
        self._markers: list[tuple[int, bool]] = []
        self._worker: asyncio.Task[None] | None = None
        self._loader: asyncio.Task[None] | None = None

    # -- requests

    async def change(self, make: Callable[[GroupCoordinator], Step[A]], producer: Producer | None = None) -> A:
        """Runs `make` and answers when its records are safe. Raises what it raises, CoordinatorLoadingError and what an
        append raises."""
        answer, records = make(self._ready())
        await self._write(records, producer)
        return answer

    async def read(self, ask: Callable[[GroupCoordinator], A]) -> A:
        """What `ask` gives, when all that it is made of is safe."""
        answer = ask(self._ready())
        await self._write([])
        return answer

    def _ready(self) -> GroupCoordinator:
        if self._coordinator is None:
            raise CoordinatorLoadingError(
                f"partition {self.number} of {CONSUMER_OFFSETS_TOPIC} is being read: try again"
            )
        return self._coordinator

    # -- events

    def do(self, change: Callable[[GroupCoordinator], list[Record]]) -> None:
        """A change that nobody waits for; nothing while the state is read."""
        if self._coordinator is not None:
            records = change(self._coordinator)
            if records:
                self._enqueue(records, None)

    def on_marker(self, producer_id: int, *, committed: bool) -> None:
        """A transaction's marker is in the partition."""
        if self._coordinator is None:
            self._markers.append((producer_id, committed))
        else:
            self._coordinator.end_transaction(producer_id, committed=committed)

    # -- appending

    def _enqueue(self, records: list[Record], producer: Producer | None) -> asyncio.Future[None]:
        done = self._groups.loop.create_future()
        done.add_done_callback(_retrieved)
        self._queue.append(_Queued(records, producer, done))
        if self._worker is None:
            self._worker = self._groups.loop.create_task(self._append_queued())
        return done

    async def _write(self, records: list[Record], producer: Producer | None = None) -> None:
        if records or self._worker is not None:
            # not cancelled with the request: the records are part of the state
            await asyncio.shield(self._enqueue(records, producer))

    async def _append_queued(self) -> None:
        taken: list[_Queued] = []
        try:
            while self._queue:
                taken = self._take()
                records = [record for item in taken for record in item.records]
                if records:
                    await self._groups.topic.append(self.number, records, producer=taken[0].producer)
                for item in taken:
                    item.done.set_result(None)
                taken = []
        except Exception as e:
            if not isinstance(e, SparklogError):
                log.exception("partition %d of %s: an append failed", self.number, CONSUMER_OFFSETS_TOPIC)
            self._lose_state(taken, e)
        finally:
            self._worker = None

    def _take(self) -> list[_Queued]:
        """What can be one batch: of one producer, in the order it came."""
        taken = [self._queue.popleft()]
        count = len(taken[0].records)
        while self._queue and self._queue[0].producer == taken[0].producer:
            count += len(self._queue[0].records)
            if count > RECORDS_PER_APPEND_MAX:
                break
            taken.append(self._queue.popleft())
        return taken

    def _lose_state(self, failed: Iterable[_Queued], error: Exception) -> None:
        log.error("partition %d of %s: %s; its state is read again", self.number, CONSUMER_OFFSETS_TOPIC, error)
        waiting, self._queue = list(self._queue), deque()
        for item in failed:
            if not item.done.done():
                item.done.set_exception(_for_client(error))
        for item in waiting:
            item.done.set_exception(CoordinatorLoadingError("an append before this one has failed: try again"))
        self.load()

    # -- loading

    def load(self) -> None:
        """Reads the state; requests have to wait."""
        self._coordinator = None
        self._loader = self._groups.loop.create_task(self._load())

    async def _load(self) -> None:
        pause_s = RETRY_S
        while True:
            try:
                coordinator = await self._read_log()
                break
            except Exception as e:
                if not isinstance(e, SparklogError):
                    log.exception("partition %d of %s cannot be read", self.number, CONSUMER_OFFSETS_TOPIC)
                log.error(  # noqa: TRY400
                    "partition %d of %s cannot be read, next attempt in %.1f s: %s",
                    self.number,
                    CONSUMER_OFFSETS_TOPIC,
                    pause_s,
                    e,
                )
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, RETRY_S_MAX)
        records = coordinator.loaded(self._groups.now_ms(), self._groups.wall_ms())
        self._coordinator = coordinator
        if records:
            self._enqueue(records, None)

    async def _read_log(self) -> GroupCoordinator:
        topic = self._groups.topic
        self._markers = []
        if topic.exists:
            partition_log = topic.partition_of(self.number).log
            while partition_log.log_end_offset > partition_log.high_watermark:
                await asyncio.sleep(RETRY_S)  # what is not replicated yet may still count
        coordinator = GroupCoordinator(self._groups.config, self._groups.topics())
        async for piece in topic.replay(self.number):
            for record in piece:
                if record.is_marker:
                    coordinator.end_transaction(record.header.producer_id, committed=record.is_commit)
                elif record.key is not None:
                    producer_id = record.header.producer_id if record.is_transactional else -1
                    coordinator.replay(record.key, record.value, producer_id)
        for producer_id, committed in self._markers:  # came while it was read
            coordinator.end_transaction(producer_id, committed=committed)
        return coordinator

    async def stop(self) -> None:
        for task in (self._loader, self._worker):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)


class Groups:
    """All groups of the broker."""

    def __init__(self, broker: Broker, *, clock: Clock | None = None) -> None:
        self._broker = broker
        self._clock = clock if clock is not None else SystemClock()
        self.loop = broker.loop
        self.config = group_config(broker.config)
        self.topic = InternalTopic(broker, CONSUMER_OFFSETS_TOPIC)
        self.partitions: list[GroupPartition] = []
        self._ticker: asyncio.Task[None] | None = None
        self._topics_changed = False

    def now_ms(self) -> int:
        return int(self.loop.time() * 1000)

    def wall_ms(self) -> int:
        return self._clock.now_ms()

    def topics(self) -> Topics:
        """What members can be given."""
        return {t.name: (t.topic_id, t.partitions) for t in self._broker.topics.values()}

    # -- life

    def start(self) -> None:
        """Begins to read the state; members' sessions begin when it has been read."""
        self.partitions = [GroupPartition(self, number) for number in range(self.topic.partitions)]
        for partition in self.partitions:
            partition.load()
        self._ticker = self.loop.create_task(self._tick())

    async def stop(self) -> None:
        """Appends that are under way are finished by the broker's threads."""
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)
        for partition in self.partitions:
            await partition.stop()

    def on_topics_changed(self) -> None:
        """Topics were made, deleted, or have other partitions. Several changes at once are one."""
        if not self._topics_changed and self.partitions:
            self._topics_changed = True
            self.loop.call_soon(self._set_topics)

    def _set_topics(self) -> None:
        self._topics_changed = False
        topics = self.topics()
        self._each(lambda c: c.set_topics(topics, self.wall_ms()))

    def on_offsets_marker(self, partition: int, producer_id: int, committed: bool) -> None:
        """The marker of a transaction is in this partition of `__consumer_offsets`."""
        if partition < len(self.partitions):
            self.partitions[partition].on_marker(producer_id, committed=committed)

    async def _tick(self) -> None:
        tick_s = min(max(self.config.heartbeat_interval_ms / 1000 / TICKS_PER_HEARTBEAT, TICK_S_MIN), TICK_S_MAX)
        check_s = self._broker.config.offsets_retention_check_interval_ms / 1000
        before = self.loop.time()
        check_at = before + check_s
        while True:
            await asyncio.sleep(tick_s)
            now = self.loop.time()
            stalled_s, before = now - before - tick_s, now
            self._each(lambda c: c.prolong(int(stalled_s * 1000)) if stalled_s > STALL_S else [])  # noqa: B023 - run at once
            self._each(lambda c: c.tick(self.now_ms(), self.wall_ms()))
            if now >= check_at:
                check_at = now + check_s
                self._each(lambda c: c.expire_offsets(self.wall_ms()))

    def _each(self, change: Callable[[GroupCoordinator], list[Record]]) -> None:
        """One partition's failure is no other's."""
        for partition in self.partitions:
            try:
                partition.do(change)
            except Exception:
                log.exception("partition %d of %s: looking after its groups failed", partition.number, self.topic.name)

    # -- requests

    def partition_of(self, group_id: str) -> GroupPartition:
        """Who coordinates the group."""
        if not self.partitions:
            raise CoordinatorLoadingError("the broker is starting: try again")
        return self.partitions[self.topic.partition_for(group_id)]

    async def heartbeat(self, request: m.GroupHeartbeatRequest, host: str) -> m.GroupHeartbeatResponse:
        partition = self.partition_of(request.group_id)
        return await partition.change(lambda c: c.heartbeat(request, host, self.now_ms(), self.wall_ms()))

    async def commit(
        self, request: m.OffsetCommitRequest | m.TxnOffsetCommitRequest, producer: Producer | None = None
    ) -> list[m.OffsetResult]:
        """With `producer` in its transaction, which must have the partition already."""
        sequence = request.sequence if isinstance(request, m.OffsetCommitRequest) else -1
        return await self.partition_of(request.group_id).change(
            lambda c: c.commit(
                request.group_id,
                request.offsets,
                request.member_id,
                request.member_epoch,
                self.wall_ms(),
                sequence=sequence,
                producer_id=-1 if producer is None else producer.producer_id,
            ),
            producer,
        )

    async def fetch_offsets(self, request: m.OffsetFetchRequest) -> m.OffsetFetchResponse:
        return await self.partition_of(request.group_id).read(lambda c: c.fetch_offsets(request))

    async def list_groups(self, states: list[str]) -> list[m.GroupSummary]:
        if not self.partitions:
            raise CoordinatorLoadingError("the broker is starting: try again")
        found = [g for p in self.partitions for g in await p.read(lambda c: c.list_groups(states))]
        return sorted(found, key=lambda g: g.group_id)

    async def describe(self, group_id: str) -> m.GroupDetails:
        return await self.partition_of(group_id).read(lambda c: c.describe(group_id))

    async def delete(self, group_id: str) -> int:
        return await self.partition_of(group_id).change(lambda c: c.delete(group_id))


def _for_client(error: Exception) -> Exception:
    """A broken disk is no fault of the group's members: they keep trying, as they do while the broker is away."""
    if isinstance(error, SparklogError) and not isinstance(error, StorageError):
        return error
    return CoordinatorLoadingError(f"the group's state cannot be written at the moment: {error}")


def _retrieved(done: asyncio.Future[None]) -> None:
    """Whoever waited may be gone: then nobody asks for the error."""
    if not done.cancelled():
        done.exception()
