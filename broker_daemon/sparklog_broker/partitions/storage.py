"""The broker's storage: its logs, its producer ids, and the access to the object store."""

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
from sparklog_broker.partitions.topic_directories import IsHere, TopicDirectories, WasCreated, partition_specs

log = logging.getLogger(__name__)

T = TypeVar("T")


class ClusterMetadata(NamedTuple):
    """The parts of the cluster's metadata that are needed to open the data directory at the broker's start."""

    cluster_id: str
    topics: Mapping[str, Topic]
    security: Mapping[RecordId, bytes]
    ids: IdBlocks
    is_here: IsHere
    """Returns True if this broker has a replica of the partition."""
    is_sole: bool = False
    """True if the store belongs to this broker alone. It then knows all issued ids, and its clock is the only one."""
    was_created: WasCreated | None = None
    """As for `partition_specs`. With None, a missing directory is created again, and the replica copied."""


class Storage:
    """The open storage, created by `open`. Changes of topics and checkpoints run one after the other on the admin
    thread (`run`).
    """

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
        for partition_log in logs.table.logs.values():
            for producer in partition_log.producers():
                self.producer_ids.note_used(producer.producer_id)
        try:  # the broker must also start while the store is unavailable
            self.producer_ids.take_ahead()
        except StorageUnavailableError as e:  # requests for an id retry
            log.warning("cannot reserve producer ids yet: %s", e)
        self.remote_reads = environment.executors.pool("remote-read", config.remote_log_reader_threads)
        """Threads for work that can wait for the object store."""
        self._loop = loop
        self._admin = environment.executors.pool("admin", 1)
        self._ids = environment.executors.pool("ids", 1)
        """A separate thread, so that waiting for ids of an unavailable store delays no other work."""
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
        """Load the logs of this broker's partitions. Blocks during recovery. Raises StorageError."""
        specs = [
            spec
            for topic in metadata.topics.values()
            for spec in partition_specs(topic, config, is_here=metadata.is_here, was_created=metadata.was_created)
        ]
        cache = logs.remote.cache
        if cache is not None:
            cache.clear()
        logs.load(metadata.cluster_id, specs, puts_aside=True)
        opened = cls(config, loop, environment, logs, metadata)
        if not logs.started_clean and metadata.topics:
            log.info("the last shutdown was not clean; the logs have been checked")
        return opened

    def run(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run `job` on the admin thread, after earlier jobs."""
        return self._loop.run_in_executor(self._admin, job)

    def expiry_ms(self) -> int:
        """Return the present time in ms, on a clock without jumps, for expirations."""
        return self.logs.expiry_clock.now_ms()

    def is_issued(self, producer_id: int) -> bool:
        """Return False if certainly no broker has issued this producer id. Callable on any thread."""
        return not self.metadata.is_sole or self.producer_ids.is_issued(producer_id)

    async def new_producer_id(self) -> int:
        """Return a new producer id. Raises StorageError, StorageFullError."""
        return await self.id_source.next()

    def fencing_tokens(self) -> IdSource:
        """Return a source of fencing tokens. Each token is larger than the token before it, and than all ids that
        brokers have issued so far.
        """
        return IdSource(self.producer_ids.successor(SMALL_BLOCK_IDS), self._loop, self._ids)

    def stop_reading(self) -> None:
        """Stop the threads that wait for the object store. Blocks until they have ended."""
        self.remote_reads.shutdown(cancel_futures=True)
        if self.remote.cache is not None:
            self.remote.cache.close()

    def close(self) -> bool:
        """Seal and close the logs after their last use. Returns True if the stop was clean. Blocks."""
        self._admin.shutdown()
        self._ids.shutdown()
        return self.logs.close()


def open_logs(config: BrokerConfig, environment: Environment) -> LogManager:
    """Lock the log directories, and return their log manager. Raises DataDirLockedError, StorageError,
    InvalidConfigError (`remote.log.storage.*`)."""
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
    """Raise StorageError if the directory belongs to a broker whose metadata are in ZooKeeper."""
    member = member_of_cluster(files, config.data_dir)
    if member is not None and not files.exists(config.data_dir / METADATA_FILE):
        raise StorageError(
            f"{config.data_dir} is the directory of broker {member.broker_id} of cluster {member.cluster_id}: start it "
            f"with --broker-id {member.broker_id} --zookeeper HOST:PORT,…/PATH, or choose another directory"
        )


def remote_access(config: BrokerConfig, files: FileSystem) -> RemoteAccess:
    """Return the access to the configured object store. Raises InvalidConfigError."""
    if not config.remote_log_storage_url:
        return RemoteAccess()
    store = ObjectStore(config.remote_log_storage_url, parse_options(config.remote_log_storage_options))
    return RemoteAccess(
        store, ReadCache(config.data_dir / CACHE_DIRECTORY, config.remote_log_reader_cache_bytes, files=files)
    )
