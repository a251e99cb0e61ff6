"""Files of topics in the log directories: the topic's record, and the deletion of topics and of records."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence

from sparklog.environment.files import read_whole
from sparklog.errors import SparklogError, UnknownTopicOrPartitionError
from sparklog.format.topic_record import TOPIC_FILE, encode_topic
from sparklog.log.directories.log_directory import STRAY_ENDING
from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.log.housekeeping.log_opener import PartitionSpec
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.log.partition_log import PartitionLog
from sparklog.metadata.rebuild import topic_record
from sparklog.metadata.store import Topic
from sparklog.replication.cluster_image import ClusterImage
from sparklog.types import TopicPartition
from sparklog_broker.config import BrokerConfig

log = logging.getLogger(__name__)


class TopicDirectories:
    """Changes files of topics. Admin thread only."""

    def __init__(self, logs: LogManager) -> None:
        self._logs = logs

    def note(self, topic: Topic) -> None:
        """Write the topic's definition beside its records, from which the store can be rebuilt. A failure is logged;
        the next start writes again.
        """
        try:
            self._write_record(topic)
        except SparklogError as e:
            log.warning(
                "topic %s: %s could not be written and stays unchanged until the next start: %s",
                topic.name,
                TOPIC_FILE,
                e,
            )

    def _write_record(self, topic: Topic) -> None:
        """Write topic.json (`format/topic_record.py`) beside the segments of partition 0, unless the file has that
        content already. Does nothing if the partition is not open here. Raises StorageFullError, StorageError."""
        first = self._logs.table.find(TopicPartition(topic.name, 0))
        if first is None:
            return
        content = encode_topic(topic_record(topic))
        path = first.directory / TOPIC_FILE
        if read_whole(first.files, path) != content:
            first.files.write_atomic(path, content)

    def delete_files(self, topic: Topic, first: int = 0) -> None:
        """Delete the files of the partitions from number `first` on, which the metadata store does not have (any more).
        Files that cannot be moved now are moved at the next start.
        """
        for number in range(first, topic.partitions):
            try:
                self._logs.removal.delete_partition(TopicPartition(topic.name, number))
            except SparklogError as e:
                log.error("the files of partition %s-%d cannot be deleted: %s", topic.name, number, e)  # noqa: TRY400

    def put_aside(self, topic: Topic) -> None:
        """Stop serving a topic, and put its files aside. Files that cannot be moved now are moved at the next start."""
        gone = UnknownTopicOrPartitionError(f"topic {topic.name!r} is no longer in the cluster's metadata")
        for number in range(topic.partitions):
            owner = LogOwner(topic.name, topic.topic_id, number)
            try:
                self._logs.removal.remove_replica(owner, gone, STRAY_ENDING)
            except SparklogError as e:
                log.error("the files of %s could not be put aside: %s", owner.topic_partition, e)  # noqa: TRY400

    def delete_records(self, deletions: Sequence[tuple[PartitionLog, int]]) -> list[int | SparklogError]:
        """Delete each log's records below an offset (-1: the high watermark), and store the log starts. Returns each
        log's new log start, or the error.
        """
        done: list[int | SparklogError] = []
        for partition_log, before_offset in deletions:
            try:
                mark = partition_log.high_watermark
                # otherwise a power cut could leave half of a segment that the checkpoint counts as whole
                partition_log.flusher.flush_to(mark if before_offset < 0 else min(before_offset, mark))
                done.append(partition_log.retention.delete_records(before_offset))
            except SparklogError as e:
                done.append(e)
        if all(isinstance(d, SparklogError) for d in done):
            return done
        try:
            self._logs.checkpoints.write()
        except SparklogError as e:
            failed = type(e)(f"the records are deleted, but a restart may bring them back: {e}")
            return [d if isinstance(d, SparklogError) else failed for d in done]
        return done


IsHere = Callable[[str, int], bool]
WasCreated = Callable[[str, int], bool | None]


def is_here(image: ClusterImage, broker_id: int) -> IsHere:
    """Return a function of (topic, partition) that is True if the broker has a replica."""

    def has_replica(topic: str, number: int) -> bool:
        partition = image.partition(TopicPartition(topic, number))
        return partition is not None and broker_id in partition.replicas

    return has_replica


def was_created(image: ClusterImage, created: Mapping[str, int]) -> WasCreated:
    """Return a function of (topic, partition) for a sole broker: True if the directory was certainly created, None if
    that is unknown. A leader epoch above the topic's first one shows that the broker was started after the creation.

    Args:
        image: The stored image.
        created: By topic id: number of partitions whose directories were created before this start.
    """

    def exists(topic: str, number: int) -> bool | None:
        partition = image.partition(TopicPartition(topic, number))
        if partition is None:
            return None
        stored = image.topics[topic]
        is_later_life = partition.leader_epoch > stored.first_leader_epoch
        return is_later_life or number < created.get(stored.topic_id, 0) or None

    return exists


def partition_specs(
    topic: Topic,
    config: BrokerConfig,
    *,
    first: int = 0,
    is_here: IsHere | None = None,
    was_created: WasCreated | None = None,
) -> Iterator[PartitionSpec]:
    """Yield the specifications of a topic's partitions from number `first` on. `is_here` selects the partitions with a
    replica on this broker; None for all. `was_created` returns `PartitionSpec.was_created`; with None, no directory is
    expected to exist.
    """
    log_config = LogConfig.from_settings({**config.topic_defaults, **topic.configs})
    for number in range(first, topic.partitions):
        if is_here is not None and not is_here(topic.name, number):
            continue
        owner = LogOwner(
            topic.name,
            topic.topic_id,
            number,
            topic.record_timestamp_column,
            topic.record_key_columns,
            topic.record_value_columns,
        )
        created = was_created(topic.name, number) if was_created is not None else False
        yield PartitionSpec(owner, log_config, topic.schemas.__getitem__, topic.schema_id, created)
