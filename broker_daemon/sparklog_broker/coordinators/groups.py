"""The group coordinator's shell: a shard for each partition of `__consumer_offsets`, their ticks, and the routing of
requests. Event-loop thread only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from sparklog.environment.clock import Clock
from sparklog.errors import CoordinatorLoadingError, NotCoordinatorError, SparklogError, StorageError
from sparklog.protocol import group_messages as m
from sparklog.replication.group_membership import GroupConfig, Topics
from sparklog.replication.group_records import Record
from sparklog.replication.group_settings import GroupSettings
from sparklog.replication.groups import GroupCoordinator, Matching, Step
from sparklog.types import TopicPartition
from sparklog_broker.background.periodic import Periodic
from sparklog_broker.config import BrokerConfig
from sparklog_broker.coordinators.internal_topics import InternalTopic, Producer, ReplayedRecord
from sparklog_broker.coordinators.led_shards import BEGIN_S, LedShards
from sparklog_broker.coordinators.shard import Shard
from sparklog_broker.coordinators.topic_matches import TopicMatches
from sparklog_broker.partitions.partitions import Partitions
from sparklog_broker.partitions.storage import Storage

log = logging.getLogger(__name__)

TICKS_PER_HEARTBEAT = 20
TICK_S_MIN, TICK_S_MAX = 0.02, 0.25
STALL_S = 1.0
"""Pause of the event loop, in s, after which members' sessions are extended: the broker could not read heartbeats."""

A = TypeVar("A")


class _Change(NamedTuple):
    """The records of one request. Without records, the request waits only for earlier changes."""

    records: list[Record]
    producer: Producer | None
    done: asyncio.Future[None]


def group_config(config: BrokerConfig) -> GroupConfig:
    return GroupConfig(
        session_timeout_ms=config.group_consumer_session_timeout_ms,
        heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
        group_size_max=config.group_max_size,
        offsets_retention_ms=config.offsets_retention_minutes * 60_000,
        groups_max=config.max_groups_per_partition,
        offsets_max=config.max_offsets_per_partition,
    )


class GroupPartition(Shard[GroupCoordinator, _Change]):
    """The shard of one partition of `__consumer_offsets`."""

    def __init__(self, groups: Groups, number: int) -> None:
        super().__init__(number, groups.loop, groups.topic)
        self._groups = groups
        self._markers: list[tuple[int, bool]] = []

    # -- requests

    async def change(self, make: Callable[[GroupCoordinator], Step[A]], producer: Producer | None = None) -> A:
        """Run `make`, and return its reply when its records are below the high watermark. Raises the error of `make`,
        CoordinatorLoadingError, BrokerShuttingDownError, and the errors of `InternalTopic.append`.
        """
        answer, records = make(self.ready())
        await self._write(records, producer)
        return answer

    async def safe(self, coordinator: GroupCoordinator) -> None:
        """Wait until the records of all earlier changes of `coordinator` are below the high watermark. Raises
        CoordinatorLoadingError if they were lost."""
        await self._write([])
        if self.ready() is not coordinator:
            raise CoordinatorLoadingError(f"the groups of partition {self.number} were reloaded: try again")

    async def _write(self, records: list[Record], producer: Producer | None = None) -> None:
        if records or self._writer is not None:
            # shielded: the records are part of the state even if the request is cancelled
            await asyncio.shield(self._enqueued(records, producer))

    def _enqueued(self, records: list[Record], producer: Producer | None = None) -> asyncio.Future[None]:
        done = self._loop.create_future()
        done.add_done_callback(_retrieved)
        self._enqueue(_Change(records, producer, done))
        return done

    # -- events

    def do(self, change: Callable[[GroupCoordinator], list[Record]]) -> None:
        """Apply a change without waiting for its records. Ignored while the state is loading."""
        if self.coordinator is not None:
            records = change(self.coordinator)
            if records:
                self._enqueued(records)

    def on_marker(self, producer_id: int, *, committed: bool) -> None:
        """Apply the marker of a transaction in the partition; during loading, apply it afterwards."""
        if self.coordinator is None:
            self._markers.append((producer_id, committed))
        else:
            self.coordinator.end_transaction(producer_id, committed=committed)

    # -- the coordinator's life

    def _new(self) -> GroupCoordinator:
        self._markers = []
        coordinator = GroupCoordinator(self._groups.config, self._groups.topics())
        coordinator.set_group_settings(self._groups.settings)
        return coordinator

    def _replay(self, coordinator: GroupCoordinator, record: ReplayedRecord) -> None:
        if record.is_marker:
            coordinator.end_transaction(record.header.producer_id, committed=record.is_commit)
        elif record.key is not None:
            producer_id = record.header.producer_id if record.is_transactional else -1
            coordinator.replay(record.key, record.value, producer_id)

    def _loaded(self, coordinator: GroupCoordinator) -> None:
        for producer_id, committed in self._markers:  # arrived during the loading
            coordinator.end_transaction(producer_id, committed=committed)
        self.do(lambda c: c.loaded(self._groups.now_ms(), self._groups.wall_ms()))
        self.do(
            lambda c: c.set_topics(self._groups.topics(), self._groups.wall_ms(), self._groups.first_epochs())
        )  # topics may have changed

    async def _append(self, changes: Sequence[_Change]) -> None:
        await self._append_records(changes)

    def _done(self, changes: Iterable[_Change]) -> None:
        for change in changes:
            change.done.set_result(None)

    def _lost(self, failed: Iterable[_Change], waiting: Iterable[_Change], error: Exception) -> None:
        for change in failed:
            if not change.done.done():
                change.done.set_exception(_for_client(error))
        for change in waiting:
            change.done.set_exception(CoordinatorLoadingError("an earlier append has failed: try again"))


class Groups:
    """All groups that this broker coordinates."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        storage: Storage,
        served: Partitions,
        topic: InternalTopic,
    ) -> None:
        self.loop = loop
        self.config = group_config(config)
        self.topic = topic
        self._clock = clock
        self._expiry_ms = storage.expiry_ms
        self._check_s = config.offsets_retention_check_interval_ms / 1000
        self._served = served
        served.on_topics_changed = self.on_topics_changed
        self._shards = LedShards(lambda number: GroupPartition(self, number))
        self._tick_s = min(
            max(config.group_consumer_heartbeat_interval_ms / 1000 / TICKS_PER_HEARTBEAT, TICK_S_MIN), TICK_S_MAX
        )
        self._ticker = Periodic("looking after groups", loop, self._tick, lambda: self._tick_s)
        self._ticked_at = 0.0
        self._check_at = 0.0
        self._topics_changed = False
        self.settings: GroupSettings = {}
        """The settings of single groups."""
        self.topic_matches = TopicMatches(loop, lambda: served.topics)

    @property
    def partitions(self) -> list[GroupPartition]:
        """All partitions of `__consumer_offsets`, including those that other brokers lead."""
        return self._shards.all

    def now_ms(self) -> int:
        return int(self.loop.time() * 1000)

    def wall_ms(self) -> int:
        return self._clock.now_ms()

    def topics(self) -> Topics:
        """Return the topics that members can be assigned, by name: topic id and number of partitions."""
        return {t.name: (t.topic_id, t.partitions) for t in self._served.topics.values()}

    def first_epochs(self) -> dict[str, int]:
        """Return the first leader epochs by topic, without topics that begin with 0."""
        return {t.name: t.first_leader_epoch for t in self._served.topics.values() if t.first_leader_epoch}

    # -- life

    def start(self) -> None:
        """Begin to load the partitions that this broker leads. Members' sessions begin after the load."""
        self._shards.start(self.topic.partitions)
        for partition in self._shards.led:
            partition.load()
        self._ticked_at = self.loop.time()
        self._check_at = self._ticked_at + self._check_s
        self._ticker.start(self._tick_s)

    async def begin(self) -> None:
        """Create the internal topic, and wait for at most BEGIN_S until the partitions that this broker leads are
        loaded. Raises the errors of `InternalTopic.ensure`.
        """
        await self.topic.ensure()
        await self._shards.until_loaded(BEGIN_S)

    def follow(self, number: int, *, leads: bool) -> None:
        """Note that this broker now leads a partition of `__consumer_offsets`, or no longer does."""
        self._shards.follow(number, leads=leads)

    async def stop(self) -> None:
        """Stop the shards and the ticks. The broker's threads complete appends in progress."""
        await self._ticker.stop()
        ending = [task for partition in self.partitions for task in partition.stop()]
        await asyncio.gather(*ending, return_exceptions=True)

    def on_topics_changed(self) -> None:
        """Schedule an update of the coordinators' topics. Changes before the update share it."""
        if not self._topics_changed and self.partitions:
            self._topics_changed = True
            self.loop.call_soon(self._set_topics)

    def _set_topics(self) -> None:
        self._topics_changed = False
        topics, first_epochs = self.topics(), self.first_epochs()
        self.topic_matches.forget()
        self._each(lambda c: c.set_topics(topics, self.wall_ms(), first_epochs))

    def set_settings(self, settings: GroupSettings) -> None:
        """Apply the settings of single groups."""
        if settings != self.settings:
            self.settings = settings
            self._each(lambda c: c.set_group_settings(settings))

    def on_offsets_marker(self, partition: int, producer_id: int, committed: bool) -> None:
        """Apply the marker of a transaction in a partition of `__consumer_offsets`."""
        if partition < len(self.partitions):
            self.partitions[partition].on_marker(producer_id, committed=committed)

    async def pass_time(self, seconds: float) -> None:
        """End the sessions that are over after `seconds` by which a test has moved the clock. A broker that has stalled
        prolongs them instead."""
        self._ticked_at += seconds
        await self._tick()

    async def _tick(self) -> None:
        now = self.loop.time()
        stalled_s, self._ticked_at = now - self._ticked_at - self._tick_s, now
        if stalled_s > STALL_S:
            self._each(lambda c: c.prolong(int(stalled_s * 1000)))
        self._each(lambda c: c.tick(self.now_ms(), self.wall_ms()))
        if now >= self._check_at:
            self._check_at = now + self._check_s
            self._each(lambda c: c.expire_offsets(self._expiry_ms()))

    def _each(self, change: Callable[[GroupCoordinator], list[Record]]) -> None:
        """Apply a change to each loaded partition. A failure in one partition does not affect other partitions."""
        for partition in self.partitions:
            try:
                partition.do(change)
            except Exception:
                log.exception("partition %d of %s: the timers of its groups failed", partition.number, self.topic.name)

    # -- requests

    def partition_of(self, group_id: str) -> GroupPartition:
        """Return the shard that coordinates the group. Raises CoordinatorLoadingError, NotCoordinatorError."""
        if not self.partitions:
            raise CoordinatorLoadingError("the broker is starting: try again")
        number = self.topic.partition_for(group_id)
        if not self._shards.leads(number):
            raise NotCoordinatorError(
                f"group {group_id!r} has its coordinator on another broker: look the coordinator up again"
            )
        return self.partitions[number]

    async def heartbeat(
        self, request: m.GroupHeartbeatRequest, host: str, may_describe: Callable[[str], bool]
    ) -> m.GroupHeartbeatResponse:
        """Handle a heartbeat. `may_describe`: returns True for a topic that the member may describe. Raises
        InvalidRegularExpressionError, and the errors of `partition_of` and `GroupPartition.change`."""
        partition = self.partition_of(request.group_id)
        coordinator, matching = partition.ready(), None
        regex = coordinator.regex_to_resolve(request, self.now_ms())
        if regex:
            version = coordinator.topics_version
            names = [name for name in await self.topic_matches.names(regex) if may_describe(name)]
            matching = Matching(names, version)
        return await partition.change(lambda c: c.heartbeat(request, host, self.now_ms(), self.wall_ms(), matching))

    async def commit(
        self, request: m.OffsetCommitRequest | m.TxnOffsetCommitRequest, producer: Producer | None = None
    ) -> list[m.OffsetResult]:
        """Commit offsets. With `producer`, the offsets belong to its transaction, which must already contain the
        group's partition. Raises the errors of `partition_of` and `GroupPartition.change`."""
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

    def loaded(self) -> list[GroupCoordinator]:
        """Return the loaded coordinators. Callable on any thread."""
        return [c for partition in self.partitions if (c := partition.coordinator) is not None]

    def coordinators(self) -> dict[GroupPartition, GroupCoordinator]:
        """Return the coordinators of all partitions that this broker leads, by partition. Raises
        CoordinatorLoadingError, BrokerShuttingDownError.
        """
        if not self.partitions:
            raise CoordinatorLoadingError("the broker is starting: try again")
        return {p: p.ready() for p in self._shards.led}

    async def delete(self, group_id: str) -> int:
        return await self.partition_of(group_id).change(lambda c: c.delete(group_id))

    async def delete_offsets(self, group_id: str, partitions: list[TopicPartition]) -> tuple[int, list[str]]:
        return await self.partition_of(group_id).change(lambda c: c.delete_offsets(group_id, partitions))


def _for_client(error: Exception) -> Exception:
    """Return the error for a client. A failed disk becomes CoordinatorLoadingError, so that members retry as during a
    restart of the broker.
    """
    if isinstance(error, SparklogError) and not isinstance(error, StorageError):
        return error
    return CoordinatorLoadingError(f"the group's state cannot be written now: {error}")


def _retrieved(done: asyncio.Future[None]) -> None:
    """Retrieve the error of a change, because its request may have been cancelled."""
    if not done.cancelled():
        done.exception()
