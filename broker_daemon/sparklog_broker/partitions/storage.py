"""The data directory, opened: the logs and the way to the object store."""

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
from sparklog.metadata.image_store import IdBlocks
from sparklog.metadata.local_coordination import METADATA_FILE
from sparklog.metadata.producer_ids import BLOCK_IDS, SMALL_BLOCK_IDS, ProducerIds
from sparklog.metadata.store import Topic
from sparklog.security.records import RecordId
from sparklog_broker import descriptors
from sparklog_broker.config import BrokerConfig
from sparklog_broker.partitions.id_source import IdSource
from sparklog_broker.partitions.topic_directories import IsHere, TopicDirectories, WasMade, partition_specs

log = logging.getLogger(__name__)

T = TypeVar("T")


class ClusterMetadata(NamedTuple):
    """The parts of the cluster's metadata, as of the broker's start, that its data directory is opened with."""

    cluster_id: str
    topics: Mapping[str, Topic]
    security: Mapping[RecordId, bytes]
    ids: IdBlocks
    is_here: IsHere
    """True for the partitions of which this broker has a replica."""
    is_sole: bool = False
    """True if the store is this broker's own: it knows which ids have been given out, and its clock is the only one."""
    was_made: WasMade | None = None
    """As for `partition_specs`. None: a replica whose directory is not here is made again, and copied."""


class Storage:
    """Made by `open`. What changes topics, and checkpoints, runs one after the other on the admin thread (`run`)."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        environment: Environment,
        logs: LogManager,
        metadata: ClusterMetadata,
    ) -> None:
        self.logs = logs
        self.remote = logs.remote
        self.metadata = metadata
        self.cluster_id = metadata.cluster_id
        self.topic_directories = TopicDirectories(logs)
        ids = metadata.ids
        self.producer_ids = ProducerIds(
            ids.take_producer_ids,
            ids.producer_ids_end(),
            block_ids=SMALL_BLOCK_IDS if metadata.is_sole else BLOCK_IDS,
        )
        for partition_log in logs.logs.values():
            for producer in partition_log.producers():
                self.producer_ids.found(producer.producer_id)
        try:  # a broker that has just started, too, goes on when the store is away
            self.producer_ids.take_ahead()
        except StorageUnavailableError as e:  # who needs one asks again
            log.warning("no producer ids yet: %s", e)
        self.remote_reads = environment.executors.pool("remote-read", config.remote_log_reader_threads)
        """Whatever may have to wait for the object store."""
        self._loop = loop
        self._admin = environment.executors.pool("admin", 1)
        self._ids = environment.executors.pool("ids", 1)
        """Who waits for a store that is away keeps nobody else waiting."""
        self.id_source = IdSource(self.producer_ids, loop, self._ids)

    @classmethod
    def open(
        cls,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        environment: Environment,
        logs: LogManager,
        metadata: ClusterMetadata,
    ) -> Storage:
        """Loads the logs of the partitions that are here; blocks while damaged ones are recovered. Raises
        StorageError."""
        specs = [
            spec
            for topic in metadata.topics.values()
            for spec in partition_specs(topic, config, is_here=metadata.is_here, was_made=metadata.was_made)
        ]
        cache = logs.remote.cache
        if cache is not None:
            cache.clear()
        logs.load(metadata.cluster_id, specs, puts_aside=True)
        opened = cls(config, loop, environment, logs, metadata)
        if not logs.started_clean and metadata.topics:
            log.info("the last stop was not a clean one; the logs have been checked")
        return opened

    def run(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Runs `job` on the admin thread, after what was asked for before."""
        return self._loop.run_in_executor(self._admin, job)

    def expiry_ms(self) -> int:
        """The time by which things grow old: the clock's, but for its jumps."""
        return self.logs.expiry_clock.now_ms()

    def is_issued(self, producer_id: int) -> bool:
        """False if no broker can have given out this id of a producer. Any thread."""
        return not self.metadata.is_sole or self.producer_ids.is_issued(producer_id)

    async def new_producer_id(self) -> int:
        """Raises StorageError, StorageFullError."""
        return await self.id_source.next()

    def fencing_tokens(self) -> IdSource:
        """For the coordinator of fencing tokens: larger than all ids that any broker has given out before, and each
        larger than those before it."""
        return IdSource(self.producer_ids.anew(SMALL_BLOCK_IDS), self._loop, self._ids)

    def stop_reading(self) -> None:
        """Ends what waits for the object store. Blocks."""
        self.remote_reads.shutdown(cancel_futures=True)
        if self.remote.cache is not None:
            self.remote.cache.close()

    def close(self) -> bool:
        """Seals and closes the logs; nobody uses them any more. Returns whether the stop is a clean one. Blocks."""
        self._admin.shutdown()
        self._ids.shutdown()
        return self.logs.close()


def open_logs(config: BrokerConfig, environment: Environment) -> LogManager:
    """Locks the log directories. Raises DataDirLockedError, StorageError, InvalidConfigError
    (`remote.log.storage.*`)."""
    return LogManager(
        config.data_dir,
        files=environment.files,
        clock=environment.clock,
        log_dirs=config.log_dirs,
        broker_id=config.broker_id,
        expiry_rate=config.log_retention_clock_catch_up_rate,
        handles=HandleCache(descriptors.of_process(config).files),
        inflated=InflatedMemory(config.queued_max_inflated_bytes),
        remote=remote_access(config, environment.files),
    )


def check_alone(config: BrokerConfig, files: FileSystem) -> None:
    """Raises StorageError for the directory of a broker whose topics are in ZooKeeper."""
    member = member_of_cluster(files, config.data_dir)
    if member is not None and not files.exists(config.data_dir / METADATA_FILE):
        raise StorageError(
            f"{config.data_dir} is the directory of broker {member.broker_id} of cluster {member.cluster_id}: start it with "
            f"--broker-id {member.broker_id} --zookeeper HOST:PORT,…/PATH, or choose another directory"
        )


def remote_access(config: BrokerConfig, files: FileSystem) -> RemoteAccess:
    """The way to the object store that the configuration names. Raises InvalidConfigError."""
    if not config.remote_log_storage_url:
        return RemoteAccess()
    store = ObjectStore(config.remote_log_storage_url, parse_options(config.remote_log_storage_options))
    return RemoteAccess(
        store, ReadCache(config.data_dir / CACHE_DIRECTORY, config.remote_log_reader_cache_bytes, files=files)
    )
