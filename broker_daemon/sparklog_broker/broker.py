"""The broker's state: topics, partitions, the threads that work for them, and the requests that wait for them.

Topics and partitions are read and changed on the event loop's thread only. What touches files runs elsewhere: appends
and cold reads on the I/O threads, creating and deleting topics (and checkpoints) one after the other on the admin
thread, fsyncs of rolled segments on the flush thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from sparklog.errors import SparklogError, TopicAlreadyExistsError, UnknownTopicOrPartitionError
from sparklog.log.log_manager import LogManager, PartitionSpec
from sparklog.log.model import LogConfig, LogOwner
from sparklog.metadata.sqlite_store import SqliteStore
from sparklog.metadata.store import MetadataStore, Topic, TopicSpec
from sparklog.types import TopicPartition
from sparklog_broker.config import BrokerConfig
from sparklog_broker.io_threads import IoThreads
from sparklog_broker.partition import Partition
from sparklog_broker.purgatory import Purgatory

log = logging.getLogger(__name__)

METADATA_FILE = "metadata.db"
INLINE_APPEND_BYTES = 64 * 1024
"""Smaller appends are done on the event loop: going to a thread and back costs more than the append itself."""
INLINE_SLOW_S = 0.05
"""An append on the loop that took this long: the disk is busy, so the threads do it for a while."""
INLINE_PAUSE_S = 1.0

T = TypeVar("T")


class Broker:
    """Made by `open`."""

    def __init__(
        self, config: BrokerConfig, loop: asyncio.AbstractEventLoop, logs: LogManager, store: MetadataStore
    ) -> None:
        self.config = config
        self.cluster_id = store.cluster_id()
        self.topics: dict[str, Topic] = {}
        self.fetches = Purgatory(config.fetch_purgatory_max)
        self.produces = Purgatory(config.fetch_purgatory_max)
        self.io = IoThreads(loop, config.num_io_threads)
        self._loop = loop
        self._logs = logs
        self._store = store
        self._partitions: dict[tuple[str, int], Partition] = {}
        self._schema_bytes: dict[str, list[tuple[int, bytes]]] = {}
        self._admin = ThreadPoolExecutor(1, thread_name_prefix="admin")
        self._flush = ThreadPoolExecutor(1, thread_name_prefix="flush")
        self._inline_after = 0.0
        self._maintenance: asyncio.Task[None] | None = None

    @classmethod
    def open(cls, config: BrokerConfig, loop: asyncio.AbstractEventLoop) -> Broker:
        """Locks and loads the data directory; blocks while damaged logs are recovered. `loop` must not serve yet.

        Raises DataDirLockedError, StorageError.
        """
        logs = LogManager(config.data_dir, broker_id=config.broker_id)
        store: MetadataStore | None = None
        try:
            store = SqliteStore(config.data_dir / METADATA_FILE)
            topics = store.topics()
            specs = [spec for topic in topics.values() for spec in partition_specs(topic, config)]
            logs.load(store.cluster_id(), specs)
        except BaseException:
            if store is not None:
                store.close()
            logs.close()
            raise
        broker = cls(config, loop, logs, store)
        for topic in topics.values():
            broker._add(topic)
        if not logs.started_clean and topics:
            log.info("the last stop was not a clean one; the logs have been checked")
        return broker

    # -- what there is

    @property
    def data_dir_id(self) -> str:
        return self._logs.data_dir_id

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

    def may_append_inline(self, partitions: Iterable[Partition], size_bytes: int) -> bool:
        """Whether the event loop may append itself: little, a quick disk, and nothing on the way to the threads."""
        return (
            size_bytes <= INLINE_APPEND_BYTES
            and self._loop.time() >= self._inline_after
            and not any(p.appends_pending for p in partitions)
        )

    def note_inline_append(self, started_at: float) -> None:
        """An append on the loop has ended that began at `started_at` (loop time)."""
        now = self._loop.time()
        if now - started_at > INLINE_SLOW_S:
            self._inline_after = now + INLINE_PAUSE_S

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
        topic = self._store.create_topic(spec)
        try:
            for partition_spec in partition_specs(topic, self.config):
                self._logs.create_partition(partition_spec)
        except BaseException:
            self._store.delete_topic(topic.name)
            self._delete_files(topic)
            raise
        return topic

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
        await self._run_admin(lambda: self._delete_files(topic))
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
        self._schema_bytes[topic.name] = [(i, schema.serialize().to_pybytes()) for i, schema in topic.schemas.items()]
        self.topics[topic.name] = topic

    # -- life

    def start(self) -> None:
        """Begins the background work."""
        self._maintenance = self._loop.create_task(self._maintain(self.config.log_flush_interval_ms / 1000))

    async def _maintain(self, interval_s: float) -> None:
        """Fsyncs rolled segments, writes checkpoints, unlinks what is deleted; a failure is logged and tried again."""
        while True:
            try:
                await self._loop.run_in_executor(self._flush, self._logs.flush)
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

    async def close(self) -> bool:
        """Finishes what runs, seals and closes the logs. Returns whether the stop is a clean one."""
        if self._maintenance is not None:
            self._maintenance.cancel()
            await asyncio.gather(self._maintenance, return_exceptions=True)
        return await self._loop.run_in_executor(None, self._close)

    def _close(self) -> bool:
        self.io.stop()
        self._flush.shutdown()
        self._admin.shutdown()
        try:
            return self._logs.close()
        finally:
            self._store.close()

    def _run_admin(self, job: Callable[[], T]) -> asyncio.Future[T]:
        return self._loop.run_in_executor(self._admin, job)


def partition_specs(topic: Topic, config: BrokerConfig) -> Iterator[PartitionSpec]:
    """What each of the topic's partitions needs to be opened."""
    log_config = LogConfig.from_settings({**config.topic_defaults, **topic.configs})
    for number in range(topic.partitions):
        owner = LogOwner(topic.name, topic.topic_id, number, topic.record_timestamp_column)
        yield PartitionSpec(owner, log_config, topic.schemas.__getitem__)


def _log_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        log.error("deleted files could not be unlinked, the next background run tries again: %s", error)
