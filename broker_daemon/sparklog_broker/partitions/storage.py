"""The data directory, opened: the logs, the metadata store and the way to the object store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from sparklog.environment import Environment
from sparklog.environment.files import FileSystem
from sparklog.errors import StorageError, StorageUnavailableError
from sparklog.log.directories.broker_epoch import member_of_cluster
from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.log.model.inflated_memory import InflatedMemory
from sparklog.log.segments.slices import HandleCache
from sparklog.log.tiering.cache_directory import CACHE_DIRECTORY
from sparklog.log.tiering.object_store import ObjectStore, parse_options
from sparklog.log.tiering.read_cache import ReadCache
from sparklog.log.tiering.remote_segment import RemoteAccess
from sparklog.metadata.producer_ids import BLOCK_IDS, ProducerIds
from sparklog.metadata.sqlite_store import METADATA_FILE, SqliteStore
from sparklog.metadata.store import MetadataStore, Topic, Unfinished
from sparklog_broker import descriptors
from sparklog_broker.config import BrokerConfig
from sparklog_broker.partitions.id_source import IdSource
from sparklog_broker.partitions.topic_files import IsHere, TopicFiles, partition_specs

log = logging.getLogger(__name__)

T = TypeVar("T")


class SharedMetadata(NamedTuple):
    """What a cluster knows in place of a metadata store of the broker's own, and which partitions are this broker's.
    One whose directory is not here is made anew and copied."""

    store: MetadataStore
    is_here: IsHere


class Storage:
    """Made by `open`. What changes topics, and checkpoints, runs one after the other on the admin thread (`run`)."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        environment: Environment,
        logs: LogManager,
        store: MetadataStore,
        remote: RemoteAccess,
    ) -> None:
        self.logs = logs
        self.remote = remote
        self.cluster_id = store.cluster_id()
        self.topic_files = TopicFiles(config, logs, store, has_object_store=remote.store is not None)
        self.producer_ids = ProducerIds(store.take_producer_ids, store.producer_ids_end(), shared=store.is_shared)
        for partition_log in logs.logs.values():
            for producer in partition_log.producers():
                self.producer_ids.found(producer.producer_id)
        if store.is_shared:  # a broker that has just started, too, goes on when the store is away
            try:
                self.producer_ids.take_ahead()
            except StorageUnavailableError as e:  # who needs one asks again
                log.warning("no producer ids yet: %s", e)
        self.remote_reads = environment.executors.pool("remote-read", config.remote_log_reader_threads)
        """Whatever may have to wait for the object store."""
        self._store = self.metadata = store
        self._loop = loop
        self._admin = environment.executors.pool("admin", 1)
        self._ids = environment.executors.pool("ids", 1) if store.is_shared else self._admin
        """Who waits for a store that is away keeps nobody else waiting."""
        self.id_source = IdSource(self.producer_ids, loop, self._ids)

    @classmethod
    def open(
        cls,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        environment: Environment,
        shared: SharedMetadata | None = None,
    ) -> tuple[Storage, Mapping[str, Topic]]:
        """Locks and loads the data directory, with the topics that are in it, or in the cluster's `shared` metadata;
        blocks while damaged logs are recovered.

        Raises DataDirLockedError, StorageError, InvalidConfigError (`remote.log.storage.*`).
        """
        remote = remote_access(config, environment.files)
        logs = LogManager(
            config.data_dir,
            files=environment.files,
            clock=environment.clock,
            log_dirs=config.log_dirs,
            broker_id=config.broker_id,
            expiry_rate=config.log_retention_clock_catch_up_rate,
            handles=HandleCache(descriptors.of_process(config).files),
            inflated=InflatedMemory(config.queued_max_inflated_bytes),
            remote=remote,
        )
        store: MetadataStore | None = None
        try:
            if shared is not None:
                _check_adopted(config, environment.files)
                store = shared.store
            else:
                _check_alone(config, environment.files)
                store = SqliteStore(config.data_dir / METADATA_FILE, environment, create=not logs.was_used)
            topics = store.topics()
            unfinished = store.unfinished_topics()
            specs = [
                spec
                for topic in topics.values()
                for spec in partition_specs(
                    topic,
                    config,
                    made=shared is None and topic.topic_id not in unfinished,
                    is_here=None if shared is None else shared.is_here,
                )
            ]
            if remote.cache is not None:
                remote.cache.clear()
            deleting = [i for i, state in unfinished.items() if state is Unfinished.DELETING]
            logs.load(store.cluster_id(), specs, deleting, puts_aside=shared is not None)
            opened = cls(config, loop, environment, logs, store, remote)
            opened.topic_files.finish(unfinished)
        except BaseException:
            if store is not None:
                store.close()
            logs.close()
            raise
        if not logs.started_clean and topics:
            log.info("the last stop was not a clean one; the logs have been checked")
        return opened, topics

    def run(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Runs `job` on the admin thread, after what was asked for before."""
        return self._loop.run_in_executor(self._admin, job)

    def expiry_ms(self) -> int:
        """The time by which things grow old: the clock's, but for its jumps."""
        return self.logs.expiry_clock.now_ms()

    async def new_producer_id(self) -> int:
        """Raises StorageError, StorageFullError."""
        return await self.id_source.next()

    def fencing_tokens(self) -> IdSource:
        """For the coordinator of fencing tokens: larger than all ids that any broker has given out before, and each
        larger than those before it. A single broker's ids are all that already."""
        if not self._store.is_shared:
            return self.id_source
        return IdSource(self.producer_ids.anew(BLOCK_IDS), self._loop, self._ids)

    def stop_reading(self) -> None:
        """Ends what waits for the object store. Blocks."""
        self.remote_reads.shutdown(cancel_futures=True)
        if self.remote.cache is not None:
            self.remote.cache.close()

    def close(self) -> bool:
        """Seals and closes the logs; nobody uses them any more. Returns whether the stop is a clean one. Blocks."""
        self._admin.shutdown()
        self._ids.shutdown()
        try:
            return self.logs.close()
        finally:
            self._store.close()


def _check_alone(config: BrokerConfig, files: FileSystem) -> None:
    """Raises StorageError for the directory of a cluster's broker: its topics are in ZooKeeper."""
    member = member_of_cluster(files, config.data_dir)
    if member is not None and not files.exists(config.data_dir / METADATA_FILE):
        raise StorageError(
            f"{config.data_dir} is the directory of broker {member.broker_id} of cluster {member.cluster_id}: start it with "
            f"--broker-id {member.broker_id} --zookeeper HOST:PORT,…/PATH, or choose another directory"
        )


def _check_adopted(config: BrokerConfig, files: FileSystem) -> None:
    """Raises StorageError for a directory whose topics the cluster does not have, or not all of them."""
    if files.exists(config.data_dir / METADATA_FILE):
        raise StorageError(
            f"{config.data_dir} is the directory of a broker that was alone: take it into the cluster first, nothing is "
            f"lost by it: sparklog cluster adopt --data-dir {config.data_dir} --broker-id {config.broker_id} --zookeeper "
            f"{config.zookeeper_connect}"
        )


def remote_access(config: BrokerConfig, files: FileSystem) -> RemoteAccess:
    """The way to the object store that the configuration names. Raises InvalidConfigError."""
    if not config.remote_log_storage_url:
        return RemoteAccess()
    store = ObjectStore(config.remote_log_storage_url, parse_options(config.remote_log_storage_options))
    return RemoteAccess(
        store, ReadCache(config.data_dir / CACHE_DIRECTORY, config.remote_log_reader_cache_bytes, files=files)
    )
