"""The broker: creates its parts, connects them, starts and stops them. The rules are in the parts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial

from sparklog.environment import Environment, real_environment
from sparklog.environment.memory_budget import MemoryBudget
from sparklog.environment.time_slices import LoopTimeSlices
from sparklog.errors import InvalidProducerIdMappingError
from sparklog.replication.cluster_image import ClusterImage
from sparklog.replication.dynamic_settings import TOPIC_PREFIX
from sparklog.replication.group_settings import stored_groups
from sparklog.security.owned_ids import is_owned
from sparklog.security.principals import Principal
from sparklog.security.records import RecordChanges, RecordKind
from sparklog.types import CONSUMER_OFFSETS_TOPIC, SCHEMAS_TOPIC, TRANSACTION_STATE_TOPIC, TopicPartition
from sparklog_broker.background.background import Background
from sparklog_broker.cluster.cluster_member import ClusterMember
from sparklog_broker.cluster.cluster_store import ClusterStore, LocalStore
from sparklog_broker.cluster.peer_connection import Connect, PlainConnect
from sparklog_broker.config import BrokerConfig
from sparklog_broker.coordinators.groups import Groups
from sparklog_broker.coordinators.internal_topics import InternalTopic
from sparklog_broker.coordinators.other_brokers import OtherBrokers
from sparklog_broker.coordinators.refused_topics import RefusedTopics
from sparklog_broker.coordinators.schema_log import SchemaLog
from sparklog_broker.coordinators.transaction_access import TransactionAccess
from sparklog_broker.coordinators.transaction_markers import MarkerWriter
from sparklog_broker.coordinators.transactions import TransactionCoordinator
from sparklog_broker.coordinators.verification import Verification
from sparklog_broker.counters.requests import RequestCounters
from sparklog_broker.dynamic_config import DynamicConfig
from sparklog_broker.network.large_responses import LargeResponses
from sparklog_broker.network.long_requests import LongRequests
from sparklog_broker.partitions.appender import Appender
from sparklog_broker.partitions.column_pruner import ColumnPruner
from sparklog_broker.partitions.io_threads import IoThreads
from sparklog_broker.partitions.lakes import Lakes
from sparklog_broker.partitions.mirrors import Mirrors
from sparklog_broker.partitions.offset_snapshots import OffsetSnapshots
from sparklog_broker.partitions.partitions import Partitions
from sparklog_broker.partitions.storage import Storage, check_alone, open_logs
from sparklog_broker.partitions.topic_owners import TopicOwners
from sparklog_broker.security.access import Access
from sparklog_broker.security.audit_log import AuditLog
from sparklog_broker.security.producer_owners import OwnedIds, ProducerOwners
from sparklog_broker.security.records import SecurityRecords
from sparklog_broker.security.throttling import CONNECTION_LIMIT_SETTINGS, Throttling
from sparklog_broker.security.users import SECRET_BYTES, Users


class Broker:
    """A broker, created by `open`. Its parts belong to the event loop's thread."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        environment: Environment,
        storage: Storage,
        store: ClusterStore,
        dynamic: DynamicConfig,
        connect: Connect,
    ) -> None:
        """`dynamic`: the dynamic settings, with the first image already applied to `config`."""
        clock = environment.clock
        self.dynamic = dynamic
        """Settings that can change while the broker runs."""
        self.config = config
        self.environment = environment
        self.registries: tuple[str, ...] = ()
        """Addresses of the schema registry in this broker's gateway, as in METADATA; empty before `join`."""
        self.requests = RequestCounters(config.slow_request_threshold_ms / 1000)
        self.memory = MemoryBudget(config.queued_max_request_bytes)
        self.time_slices = LoopTimeSlices(loop, clock=clock.monotonic_s)
        self.large_responses = LargeResponses(self.memory, self.time_slices, config.response_max_bytes)
        self.long_requests = LongRequests(config.queued_max_request_bytes // 4)

        self.storage = storage
        self.io = IoThreads(loop, environment.executors, config.num_io_threads)
        self.partitions = Partitions(config, storage, self.io)
        self.column_pruner = ColumnPruner()
        self.appender = Appender(loop, self.io, storage.logs.directories, self.partitions.produces)
        self.background = Background(config, loop, environment, storage, self.partitions)
        self.security_records = SecurityRecords(storage.metadata.security, self._change_security)
        self.users = Users(environment.randomness.token_bytes(SECRET_BYTES), config.security.initial_users)
        self.security_records.watch(RecordKind.SECRETS, self.users.follow_secrets)
        self.security_records.watch(RecordKind.USERS, self.users.follow)
        self.access = Access.from_config(config, self.security_records)
        """The authorizer; None if every principal has all permissions."""
        self.owned_ids = OwnedIds(self.security_records, environment.randomness.token_bytes)
        self.producer_owners = None if self.access is None else ProducerOwners(self.owned_ids)
        self.throttling = Throttling(config, self.security_records, clock.monotonic_s)
        self.cluster = cluster = ClusterMember(
            config,
            loop,
            environment,
            store,
            storage,
            self.io,
            self.partitions,
            self.background,
            TopicOwners(self.partitions, lambda: self.throttling.connections.quotas),
            self.time_slices,
            self,
            connect,
        )
        self.topics = cluster.topics
        self.audit = AuditLog.from_config(config, environment, loop)
        self.offset_snapshots = OffsetSnapshots()
        self.lakes = Lakes(self.partitions, clock.now_ms)
        self.mirrors = Mirrors(self.partitions, clock.now_ms)

        offsets = InternalTopic(CONSUMER_OFFSETS_TOPIC, config, clock, self.topics, self.appender, self.io)
        self.groups = Groups(config, loop, clock, storage, self.partitions, offsets)
        self.other_brokers = other_brokers = OtherBrokers(cluster.peers, config.broker_id, cluster.registered)
        """Client for requests about other brokers' partitions."""
        schemas = InternalTopic(SCHEMAS_TOPIC, config, clock, self.topics, self.appender, self.io)
        self.schema_log = SchemaLog(schemas, other_brokers)
        self.refused_topics = RefusedTopics(config, self.partitions, self.appender, other_brokers)
        self.markers = MarkerWriter(self.partitions, self.appender, self.groups.on_offsets_marker, other_brokers)
        states = InternalTopic(TRANSACTION_STATE_TOPIC, config, clock, self.topics, self.appender, self.io)
        self.transactions = TransactionCoordinator(config, loop, clock, storage, self.partitions, states, self.markers)
        self.transaction_access = TransactionAccess(self.transactions, states, other_brokers)
        self.verification = Verification(self.partitions, self.transaction_access)
        self._loop = loop
        self._watch_settings()

    def _watch_settings(self) -> None:
        """Register the parts that derive a value from a dynamic setting."""
        config, watch = self.config, self.dynamic.watch
        watch(("log.level",), lambda: logging.getLogger().setLevel(config.log_level))
        slow = self.requests
        watch(("slow.request.threshold.ms",), lambda: slow.set_slow(config.slow_request_threshold_ms / 1000))
        watch(CONNECTION_LIMIT_SETTINGS, lambda: self.throttling.set_limits(config))
        watch(("log.cleaner.io.max.bytes.per.second",), lambda: self.background.cleaner.set_rate(config))
        watch(("log.cleaner.backoff.ms",), self.background.cleaner.run_soon)
        watch(("log.retention.check.interval.ms",), self.background.retention.run_soon)
        watch(("log.flush.interval.ms",), self.background.flushing.run_soon)
        watch((TOPIC_PREFIX,), self.topics.on_defaults_changed)

    async def _change_security(self, changes: RecordChanges) -> None:
        await self.cluster.change_security(changes)

    def on_image(self, image: ClusterImage) -> None:
        """Apply the security records and settings of an image."""
        self.security_records.follow(image.security)
        self.dynamic.follow(image.configs)
        self.groups.set_settings(stored_groups(image.configs))

    def on_leadership(self, key: TopicPartition, leads: bool) -> None:
        """Load or unload the coordinators of an internal topic's partition."""
        if key.topic == CONSUMER_OFFSETS_TOPIC:
            self.groups.follow(key.partition, leads=leads)
        elif key.topic == TRANSACTION_STATE_TOPIC:
            self.transactions.follow(key.partition, leads=leads)

    @classmethod
    def open(
        cls,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        environment: Environment | None = None,
        store: ClusterStore | None = None,
        connect: Connect | None = None,
    ) -> Broker:
        """Lock and load the data directory. Blocks during the recovery of damaged logs. `loop` must not run yet. With
        `store` None the broker is a sole broker, whose store is in the data directory. `connect` opens connections to
        other brokers; None: in plain text.

        Raises DataDirLockedError, StorageError, StorageFullError, InvalidConfigError (`remote.log.storage.*`).
        """
        environment = environment if environment is not None else real_environment(int(config.data_file_mode, 8))
        logs = open_logs(config, environment)
        try:
            if store is None:
                check_alone(config, environment.files)
                store = LocalStore.open(config, environment, create=not logs.was_used)
            dynamic = DynamicConfig(config)
            dynamic.follow(store.image.configs)
            storage = Storage.open(config, loop, environment, logs, store.metadata)
            store.take_epochs(logs)
        except BaseException:
            if store is not None:
                store.close()
            logs.close()
            raise
        broker = cls(config, loop, environment, storage, store, dynamic, connect or PlainConnect())
        for topic in storage.metadata.topics.values():
            broker.partitions.add(topic, broker.partitions.opened(topic, broker.cluster.replicas.role_of))
        return broker

    def start(self, on_all_disks_failed: Callable[[str], None] = lambda _: None) -> None:
        """Begin the background work. `on_all_disks_failed` is called with the reason when the last usable log directory
        has failed."""
        for topic in self.partitions.topics.values():
            self.storage.run(partial(self.storage.topic_directories.note, topic))
        self.background.start(on_all_disks_failed, self.cluster.on_offline)
        self.groups.start()
        self.transactions.start()

    async def join(
        self,
        endpoints: Sequence[str],
        on_lost: Callable[[str], None] = lambda _: None,
        registries: Sequence[str] = (),
    ) -> None:
        """Register the broker in its cluster, after `start`; see `ClusterMember.join`. `registries`: addresses of the
        schema registry in the broker's gateway."""
        self.registries = tuple(registries)
        await self.cluster.join(endpoints, on_lost)
        self.transactions.joined(is_sole=not self.other_brokers.ids())

    def is_issued(self, producer_id: int, principal: Principal) -> bool:
        """True if this id was issued and, if it is an owned id, issued to the principal. An id that another broker of
        the cluster may have issued counts as issued. Callable on any thread.
        """
        may_come = not self.storage.metadata.is_sole  # issued by another broker
        if is_owned(producer_id) and not self.owned_ids.is_of(producer_id, principal, if_unknown=may_come):
            return False
        return self.storage.is_issued(producer_id)

    def check_drawn(self, fencing_token: int, principal: Principal) -> None:
        """Raise InvalidProducerIdMappingError for an owned token that was not issued to the principal: an invented
        token could fence all later runs.
        """
        if is_owned(fencing_token) and not self.is_issued(fencing_token, principal):
            raise InvalidProducerIdMappingError(
                f"fencing token {fencing_token} was never issued to {principal}: request one with INIT_PRODUCER_ID"
            )

    def stop_waiting(self) -> None:
        """End the waits of requests, because the broker stops. Fetches are answered with the records that exist.
        Produce requests that wait for replicas get RequestTimedOutError. Requests about transactions get a moment more
        to end, then BrokerShuttingDownError.
        """
        self.partitions.stop_waiting()
        self.transactions.stop_waiting()

    async def close(self) -> bool:
        """Complete the present work, then seal and close the logs. Returns True if the stop was clean."""
        await self.cluster.stop()
        await self.transactions.stop()
        await self.groups.stop()
        await self.background.stop()
        return await self._loop.run_in_executor(None, self._close)

    def _close(self) -> bool:
        if self.audit is not None:
            self.audit.close()
        self.io.stop()
        self.storage.stop_reading()
        self.background.close()
        clean = self.storage.close()
        self.cluster.close()
        return clean
