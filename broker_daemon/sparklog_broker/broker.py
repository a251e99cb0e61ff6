"""The broker's state: topics, partitions, the threads that work for them, and the requests that wait for them.

Topics and partitions are read and changed on the event loop's thread only. What touches files runs elsewhere: appends
and cold reads on the I/O threads, creating and deleting topics (and checkpoints) one after the other on the admin
thread, fsyncs of rolled segments on the flush thread.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from sparklog.errors import InvalidConfigError, SparklogError, TopicAlreadyExistsError, UnknownTopicOrPartitionError
from sparklog.format.schema_evolution import SchemaChange
from sparklog.log.log_manager import LogManager, PartitionSpec
from sparklog.log.model import LogConfig, LogOwner
from sparklog.log.retention import POLICY_COMPACT
from sparklog.log.retention_run import remove_dropped
from sparklog.log.slices import HandleCache
from sparklog.log.tiering.object_store import ObjectStore, parse_options
from sparklog.log.tiering.policy import TIERING_SETTING
from sparklog.log.tiering.read_cache import CACHE_DIRECTORY, ReadCache
from sparklog.log.tiering.remote_segment import RemoteAccess
from sparklog.metadata.producer_ids import ProducerIds
from sparklog.metadata.sqlite_store import SqliteStore
from sparklog.metadata.store import MetadataStore, Topic, TopicSpec
from sparklog.types import TopicPartition
from sparklog_broker.cleaner import Cleaner
from sparklog_broker.config import BrokerConfig
from sparklog_broker.directory_watch import DirectoryWatch
from sparklog_broker.groups import Groups
from sparklog_broker.io_threads import IoThreads
from sparklog_broker.partition import Partition
from sparklog_broker.purgatory import Purgatory
from sparklog_broker.retention import Retention, delete_records
from sparklog_broker.tierer import Tierer
from sparklog_broker.transactions import TransactionCoordinator

log = logging.getLogger(__name__)

METADATA_FILE = "metadata.db"
INLINE_APPEND_BYTES = 256 * 1024
"""A smaller append is done on the event loop: going to a thread and back costs more than the append itself."""
INLINE_SEVERAL = 4
"""Of several appends together that part of it: what each costs whatever its size keeps the loop longer than the bytes."""
INLINE_SLOW_S = 0.05
"""An append on the loop that took this long: the disk is busy, so the threads do it for a while."""
INLINE_PAUSE_S = 1.0
FLUSH_TICK_S = 2.0
"""How often rolled segments, and topics with `flush.ms`, are looked for."""
FLUSH_TICK_S_MIN = 0.01

T = TypeVar("T")


class Broker:
    """Made by `open`."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        logs: LogManager,
        store: MetadataStore,
        remote: RemoteAccess,
    ) -> None:
        self.config = config
        self.cluster_id = store.cluster_id()
        self.topics: dict[str, Topic] = {}
        self.local_socket = ""
        """What clients on this host are offered beside TCP; "": nothing."""
        self.fetches = Purgatory(config.fetch_purgatory_max)
        self.produces = Purgatory(config.fetch_purgatory_max)
        self.io = IoThreads(loop, config.num_io_threads)
        self.producer_ids = ProducerIds(store.take_producer_ids)
        self.transactions = TransactionCoordinator(self, self.new_producer_id)
        self._loop = loop
        self._logs = logs
        self._store = store
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._schema_bytes: dict[str, list[tuple[int, bytes]]] = {}
        self._admin = ThreadPoolExecutor(1, thread_name_prefix="admin")
        self._flush = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._inline_after = 0.0
        self._maintenance: asyncio.Task[None] | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._retention = Retention(
            logs,
            loop,
            flush_thread=self._flush,
            interval_s=config.log_retention_check_interval_ms / 1000,
            partition_of=self._partitions.get,
        )
        self._cleaner = Cleaner(
            logs,
            threads=config.log_cleaner_threads,
            dedupe_buffer_bytes=config.log_cleaner_dedupe_buffer_bytes,
            io_max_bytes_per_second=config.log_cleaner_io_max_bytes_per_second,
            backoff_ms=config.log_cleaner_backoff_ms,
        )
        self._remote = remote
        self._tierer = Tierer(logs, remote.store, interval_s=config.remote_log_manager_task_interval_ms / 1000)
        self.remote_reads = ThreadPoolExecutor(config.remote_log_reader_threads, thread_name_prefix="remote-read")
        """Whatever may have to wait for the object store."""
        self._watch: DirectoryWatch | None = None
        self.groups = Groups(self)
        self.transactions.on_offsets_marker.append(self.groups.on_offsets_marker)

    @classmethod
    def open(cls, config: BrokerConfig, loop: asyncio.AbstractEventLoop) -> Broker:
        """Locks and loads the data directory; blocks while damaged logs are recovered. `loop` must not serve yet.

        Raises DataDirLockedError, StorageError, InvalidConfigError (`remote.log.storage.*`).
        """
        remote = remote_access(config)
        logs = LogManager(
            config.data_dir,
            log_dirs=config.log_dirs,
            broker_id=config.broker_id,
            handles=HandleCache(open_files_limit(config.log_open_files_max)),
            remote=remote,
        )
        store: MetadataStore | None = None
        try:
            store = SqliteStore(config.data_dir / METADATA_FILE)
            topics = store.topics()
            specs = [spec for topic in topics.values() for spec in partition_specs(topic, config)]
            if remote.cache is not None:
                remote.cache.clear()
            logs.load(store.cluster_id(), specs)
        except BaseException:
            if store is not None:
                store.close()
            logs.close()
            raise
        broker = cls(config, loop, logs, store, remote)
        for topic in topics.values():
            broker._add(topic)
        if not logs.started_clean and topics:
            log.info("the last stop was not a clean one; the logs have been checked")
        return broker

    # -- what there is

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Whose thread everything here belongs to."""
        return self._loop

    def location_of(self, tp: TopicPartition) -> tuple[Path, str]:
        """The log directory of a partition, and its id. Raises UnknownTopicOrPartitionError."""
        return self._logs.location_of(tp)

    def partition(self, topic: str, number: int) -> Partition:
        """Raises UnknownTopicOrPartitionError."""
        found = self._partitions.get((topic, number))
        if found is not None:
            return found
        known = self.topics.get(topic)
        if known is None:
            raise UnknownTopicOrPartitionError(f"there is no topic {topic!r}; create it first")
        raise UnknownTopicOrPartitionError(f"topic {topic!r} has partitions 0 to {known.partitions - 1}, not {number}")

    def schema_bytes(self, topic: Topic) -> list[tuple[int, bytes]]:
        """The topic's schemas by id as Arrow IPC schema messages, the newest last."""
        return self._schema_bytes[topic.name]

    def may_append_inline(self, partitions: Iterable[Partition], size_bytes: int, *, alone: bool) -> bool:
        """Whether the event loop may append itself: little, a quick disk, and nothing on the way to the threads. `alone`: the
        request appends to no other partition."""
        return (
            size_bytes <= INLINE_APPEND_BYTES // (1 if alone else INLINE_SEVERAL)
            and self._loop.time() >= self._inline_after
            and not any(p.appends_pending or p.waits_for_disk for p in partitions)
        )

    def note_inline_append(self, started_at: float) -> None:
        """An append on the loop has ended that began at `started_at` (loop time)."""
        now = self._loop.time()
        if now - started_at > INLINE_SLOW_S:
            self._inline_after = now + INLINE_PAUSE_S

    async def new_producer_id(self) -> int:
        """Raises StorageError, StorageFullError."""
        if self.producer_ids.left:
            return self.producer_ids.next()
        return await self._run_admin(self.producer_ids.next)

    # -- topics

    async def create_topic(self, spec: TopicSpec) -> Topic:
        """Raises TopicAlreadyExistsError, Invalid…Error, StorageError; then there is nothing of the topic."""
        if spec.name in self.topics:
            raise TopicAlreadyExistsError(f"topic {spec.name!r} exists already; delete it or choose another name")
        # Shielded: if the client goes away, the topic still has to appear here once it is in the store.
        return await asyncio.shield(self._loop.create_task(self._create_topic(spec)))

    async def _create_topic(self, spec: TopicSpec) -> Topic:
        topic = await self._run_admin(lambda: self._create_files(spec))
        self._add(topic)
        log.info("created topic %s: %s, %d partitions", topic.name, topic.kind, topic.partitions)
        return topic

    def _create_files(self, spec: TopicSpec) -> Topic:
        """Admin thread."""
        self._check_tier(spec.name, spec.configs)
        topic = self._store.create_topic(spec)
        try:
            self._logs.create_partitions(partition_specs(topic, self.config))
        except BaseException:
            self._store.delete_topic(topic.name)
            self._delete_files(topic)
            raise
        return topic

    async def alter_schema(self, name: str, change: SchemaChange) -> Topic:
        """The topic with its newest schema, which every partition takes from now on.

        Raises UnknownTopicOrPartitionError, InvalidTopicError, StorageError; then nothing has changed.
        """
        return await asyncio.shield(self._loop.create_task(self._alter_schema(name, change)))

    async def _alter_schema(self, name: str, change: SchemaChange) -> Topic:
        topic = await self._run_admin(lambda: self._store.alter_schema(name, change))
        known = self.topics.get(name)
        if known is None or known.topic_id != topic.topic_id:
            raise UnknownTopicOrPartitionError(f"topic {name!r} was deleted meanwhile")
        if topic.schema_id > known.schema_id:
            # a batch with the new schema must find it, so the logs know it before any client does
            for number in range(topic.partitions):
                self._partitions[(name, number)].use_schemas(topic.schemas.__getitem__, topic.schema_id)
            self.topics[name] = replace(known, schemas=topic.schemas)
            self._schema_bytes[name] = schema_messages(topic)
            log.info("topic %s has schema %d now", name, topic.schema_id)
        return self.topics[name]

    async def alter_topic(self, name: str, configs: Mapping[str, object | None]) -> Topic:
        """The topic with changed settings (None: the default again), which are in effect at once.

        Raises UnknownTopicOrPartitionError, InvalidConfigError, StorageError.
        """
        return await asyncio.shield(self._loop.create_task(self._alter_topic(name, configs)))

    async def _alter_topic(self, name: str, configs: Mapping[str, object | None]) -> Topic:
        topic = await self._run_admin(lambda: self._alter_configs(name, configs))
        known = self.topics.get(name)
        if known is None or known.topic_id != topic.topic_id:
            raise UnknownTopicOrPartitionError(f"topic {name!r} was deleted meanwhile")
        self.topics[name] = replace(known, configs=topic.configs)
        log.info("topic %s altered: %s", name, ", ".join(f"{k}={v}" for k, v in configs.items()))
        self._retention.run_soon()
        self._cleaner.run_soon()
        self._tierer.run_soon()
        return self.topics[name]

    def _alter_configs(self, name: str, configs: Mapping[str, object | None]) -> Topic:
        """Admin thread."""
        self._check_tier(name, configs)
        open_logs = self._logs.logs
        in_tier = any(log.has_remote_segments for tp, log in open_logs.items() if tp.topic == name)
        if in_tier and POLICY_COMPACT in str(configs.get("cleanup.policy")).split(","):
            raise InvalidConfigError(
                f"topic {name!r} has segments in the object store, which cannot be compacted: delete them first "
                f"(retention, delete-records), or make a new topic"
            )
        topic = self._store.alter_topic(name, configs)
        for spec in partition_specs(topic, self.config):
            partition_log = open_logs.get(spec.owner.topic_partition)
            if partition_log is not None:
                partition_log.reconfigure(spec.config)
        return topic

    def _check_tier(self, name: str, configs: Mapping[str, object | None]) -> None:
        """Raises InvalidConfigError for a topic that is to be tiered by a broker that has no object store."""
        if str(configs.get(TIERING_SETTING)).lower() == "true" and self._remote.store is None:
            raise InvalidConfigError(
                f"topic {name!r}: {TIERING_SETTING}=true, but this broker has no object store; set remote.log.storage.url "
                f"in its configuration and restart it"
            )

    async def delete_records(self, deletions: Sequence[tuple[Partition, int]]) -> list[int | SparklogError]:
        """Deletes each partition's records below an offset (-1: all); its log start, now on the disk, or the error."""
        logs = [(partition.log, before_offset) for partition, before_offset in deletions]
        done = await asyncio.shield(self._run_admin(lambda: delete_records(self._logs, logs)))
        for partition, _ in deletions:
            partition.on_log_start_raised()
        self._retention.run_soon()
        return done

    async def delete_topic(self, name: str) -> Topic:
        """The topic that was; who waits for its data is told. Raises UnknownTopicOrPartitionError, StorageError."""
        return await asyncio.shield(self._loop.create_task(self._delete_topic(name)))

    async def _delete_topic(self, name: str) -> Topic:
        topic = await self._run_admin(lambda: self._store.delete_topic(name))
        # Gone for clients from here on; another of this name can be created once the admin thread has moved the files.
        self.topics.pop(name, None)
        self._schema_bytes.pop(name, None)
        for number in range(topic.partitions):
            partition = self._partitions.pop((name, number), None)
            if partition is not None:
                partition.on_deleted()
        self.groups.on_topics_changed()
        await self._run_admin(lambda: self._delete_files(topic))
        self._tierer.run_soon()
        log.info("deleted topic %s", name)
        self._loop.create_task(self._purge()).add_done_callback(_log_failure)
        return topic

    def _delete_files(self, topic: Topic) -> None:
        """Admin thread. The topic is no longer in the store: what cannot be moved away now belongs to nobody."""
        for number in range(topic.partitions):
            try:
                self._logs.delete_partition(TopicPartition(topic.name, number))
            except SparklogError as e:
                log.error("the files of partition %s-%d cannot be deleted: %s", topic.name, number, e)  # noqa: TRY400

    async def _purge(self) -> None:
        await self._run_admin(self._logs.purge_deleted)

    def _add(self, topic: Topic) -> None:
        open_logs, offline = self._logs.logs, self._logs.offline
        for number in range(topic.partitions):
            key = TopicPartition(topic.name, number)
            self._partitions[key] = Partition(
                key,
                topic.topic_id,
                broker_id=self.config.broker_id,
                thread=self.io.index_of(topic.name, number),
                fetches=self.fetches,
                produces=self.produces,
                log=open_logs.get(key),
                error=offline.get(key),
            )
        self._schema_bytes[topic.name] = schema_messages(topic)
        self.topics[topic.name] = topic
        self.groups.on_topics_changed()

    # -- life

    def start(self, on_all_disks_failed: Callable[[str], None] = lambda _: None) -> None:
        """Begins the background work. `on_all_disks_failed` is told why when no log directory can be used any more."""
        self._watch = DirectoryWatch(
            self._logs,
            self._loop,
            settle=lambda: self._run_admin(self._logs.settle_failures),
            partition_of=self._partitions.get,
            on_all_failed=on_all_disks_failed,
        )
        self._watch.start()
        self._maintenance = self._loop.create_task(self._maintain(self.config.log_flush_interval_ms / 1000))
        self._flushing = self._loop.create_task(self._flush_due())
        self._retention.start()
        self.groups.start()
        self._cleaner.start()
        self.transactions.start()
        self._tierer.start()

    async def _flush_due(self) -> None:
        """Between the intervals: fsyncs rolled segments and what `flush.ms` is over for. A start after a crash then has
        little to scan."""
        while True:
            await asyncio.sleep(self._flush_tick_s())
            try:
                if await self._loop.run_in_executor(self._flush, self._logs.flush_due):
                    await self._run_admin(self._logs.checkpoint)
            except SparklogError as e:
                log.error("background fsync failed, next attempt in %.1f s: %s", self._flush_tick_s(), e)  # noqa: TRY400
            except Exception:
                log.exception("background fsync failed")

    def _flush_tick_s(self) -> float:
        """A topic's `flush.ms` is kept to within half of it, but not below FLUSH_TICK_S_MIN."""
        waits_ms = [
            int(str(ms)) for t in self.topics.values() if (ms := t.configs.get("flush.ms", -1)) not in (-1, "-1")
        ]
        default_ms = self.config.topic_defaults.get("flush.ms", -1)
        if default_ms not in (-1, "-1"):
            waits_ms.append(int(str(default_ms)))
        return max(FLUSH_TICK_S_MIN, min([FLUSH_TICK_S, *(ms / 2000 for ms in waits_ms)]))

    async def _maintain(self, interval_s: float) -> None:
        """Fsyncs what was appended, writes checkpoints, unlinks what is deleted; a failure is logged and tried again."""
        while True:
            try:
                await self._loop.run_in_executor(self._flush, self._logs.flush)
                await self._loop.run_in_executor(self._flush, lambda: remove_dropped(self._logs.logs))
                expiration_ms = self.config.producer_id_expiration_ms
                await self._loop.run_in_executor(self._flush, self._logs.expire_producers, expiration_ms)
                await self._run_admin(self._logs.checkpoint)
                await self._purge()
            except SparklogError as e:
                log.error("background work failed, next attempt in %.0f s: %s", interval_s, e)  # noqa: TRY400
            except Exception:
                log.exception("background work failed, next attempt in %.0f s", interval_s)
            await asyncio.sleep(interval_s)

    def stop_waiting(self) -> None:
        """Ends all waiting requests: they are answered with what there is."""
        self.fetches.stop()
        self.produces.stop()
        self.transactions.stop_waiting()

    async def close(self) -> bool:
        """Finishes what runs, seals and closes the logs. Returns whether the stop is a clean one."""
        await self.transactions.stop()
        await self.groups.stop()
        if self._watch is not None:
            await self._watch.stop()
        await self._retention.stop()
        await self._loop.run_in_executor(None, self._cleaner.stop)
        await self._loop.run_in_executor(None, self._tierer.stop)
        if self._maintenance is not None:
            self._maintenance.cancel()
            await asyncio.gather(self._maintenance, return_exceptions=True)
        if self._flushing is not None:
            self._flushing.cancel()
            await asyncio.gather(self._flushing, return_exceptions=True)
        return await self._loop.run_in_executor(None, self._close)

    def _close(self) -> bool:
        self.io.stop()
        self.remote_reads.shutdown(cancel_futures=True)
        if self._remote.cache is not None:
            self._remote.cache.close()
        self._flush.shutdown()
        self._admin.shutdown()
        try:
            return self._logs.close()
        finally:
            self._store.close()

    def _run_admin(self, job: Callable[[], T]) -> asyncio.Future[T]:
        return self._loop.run_in_executor(self._admin, job)


def remote_access(config: BrokerConfig) -> RemoteAccess:
    """The way to the object store that the configuration names. Raises InvalidConfigError."""
    if not config.remote_log_storage_url:
        return RemoteAccess()
    store = ObjectStore(config.remote_log_storage_url, parse_options(config.remote_log_storage_options))
    return RemoteAccess(store, ReadCache(config.data_dir / CACHE_DIRECTORY, config.remote_log_reader_cache_bytes))


def open_files_limit(wanted: int) -> int:
    """How many segment files may be open: half of the process's descriptors are for connections and everything else."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, soft // 2)


def schema_messages(topic: Topic) -> list[tuple[int, bytes]]:
    """The topic's schemas by id, the newest last, as Arrow IPC schema messages."""
    return [(i, schema.serialize().to_pybytes()) for i, schema in sorted(topic.schemas.items())]


def partition_specs(topic: Topic, config: BrokerConfig) -> Iterator[PartitionSpec]:
    """What each of the topic's partitions needs to be opened."""
    log_config = LogConfig.from_settings({**config.topic_defaults, **topic.configs})
    for number in range(topic.partitions):
        owner = LogOwner(
            topic.name,
            topic.topic_id,
            number,
            topic.record_timestamp_column,
            topic.record_key_columns,
            topic.record_value_columns,
        )
        yield PartitionSpec(owner, log_config, topic.schemas.__getitem__, topic.schema_id)


def _log_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error("deleted files could not be unlinked, the next background run tries again: %s", error)
