"""What making, altering and deleting topics does to the metadata store and the log directories, in an order that a
crash at any point leaves sound."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from sparklog.environment.fault_points import reach
from sparklog.errors import InvalidConfigError, SparklogError, UnknownTopicOrPartitionError
from sparklog.format.schema_evolution import SchemaChange
from sparklog.format.topic_record import TOPIC_FILE, encode_topic
from sparklog.log.directories.log_directory import STRAY_ENDING
from sparklog.log.housekeeping.log_manager import LogManager, PartitionSpec
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.log.model.retention_policy import POLICY_COMPACT
from sparklog.log.model.tiering_policy import TIERING_SETTING
from sparklog.log.partition_log import PartitionLog
from sparklog.metadata.rebuild import topic_record
from sparklog.metadata.store import MetadataStore, Topic, TopicSpec, Unfinished, grown_topic
from sparklog.types import TopicPartition
from sparklog_broker.config import BrokerConfig

log = logging.getLogger(__name__)


class TopicFiles:
    """Admin thread only."""

    def __init__(self, config: BrokerConfig, logs: LogManager, store: MetadataStore, *, has_object_store: bool) -> None:
        self._config = config
        self._logs = logs
        self._store = store
        self._has_object_store = has_object_store

    def create(self, spec: TopicSpec) -> Topic:
        """The topic with its partitions' directories; `finish` follows when it is served."""
        self._check_tier(spec.name, spec.configs)
        topic = self._store.create_topic(spec)
        try:
            self._logs.create_partitions(partition_specs(topic, self._config))
            self.note(topic)
        except BaseException:
            self._store.delete_topic(topic.name)
            self.delete_files(topic)
            raise
        return topic

    def note(self, topic: Topic) -> None:
        """Writes what the store knows of the topic beside its records, for the day the store is lost; a failure is no
        error, the next start writes it."""
        try:
            self._logs.write_topic_record(TopicPartition(topic.name, 0), encode_topic(topic_record(topic)))
        except SparklogError as e:
            log.warning("topic %s: %s stays as it was until the next start: %s", topic.name, TOPIC_FILE, e)

    def alter_schema(self, name: str, change: SchemaChange) -> Topic:
        topic = self._store.alter_schema(name, change)
        self.note(topic)
        return topic

    def alter_configs(self, name: str, configs: Mapping[str, object | None]) -> Topic:
        self._check_tier(name, configs)
        open_logs = self._logs.logs
        in_tier = any(log.has_remote_segments for tp, log in open_logs.items() if tp.topic == name)
        if in_tier and POLICY_COMPACT in str(configs.get("cleanup.policy")).split(","):
            raise InvalidConfigError(
                f"topic {name!r} has segments in the object store, which cannot be compacted: delete them first "
                f"(retention, delete-records), or make a new topic"
            )
        topic = self._store.alter_topic(name, configs)
        self.note(topic)
        for spec in partition_specs(topic, self._config):
            partition_log = open_logs.get(spec.owner.topic_partition)
            if partition_log is not None:
                partition_log.reconfigure(spec.config)
        return topic

    def _check_tier(self, name: str, configs: Mapping[str, object | None]) -> None:
        """Raises InvalidConfigError for a topic that is to be tiered by a broker that has no object store."""
        if str(configs.get(TIERING_SETTING)).lower() == "true" and not self._has_object_store:
            raise InvalidConfigError(
                f"topic {name!r}: {TIERING_SETTING}=true, but this broker has no object store; set remote.log.storage.url "
                f"in its configuration and restart it"
            )

    def add_partitions(self, name: str, total: int) -> tuple[Topic, int]:
        """The topic with its new partitions, and how many it had. Directories first: what the store names is there.
        Those that a crash leaves without the store belong to no partition, and are used when the partitions are added
        again."""
        topic = self._store.topics().get(name)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"there is no topic {name!r}")
        grown = grown_topic(topic, total)
        try:
            self._logs.create_partitions(partition_specs(grown, self._config, first=topic.partitions))
            reach("partitions.made")
            grown = self._store.add_partitions(name, total)
        except BaseException:
            self._delete_partitions(name, range(topic.partitions, total))
            raise
        reach("partitions.stored")
        self.note(grown)
        return grown, topic.partitions

    def delete(self, name: str) -> Topic:
        """The topic that was; `delete_files` follows when it is not served any more."""
        return self._store.delete_topic(name)

    def delete_files(self, topic: Topic) -> None:
        """The topic is no longer in the store: what cannot be moved away now is at the next start."""
        if self._delete_partitions(topic.name, range(topic.partitions)):
            self.finish({topic.topic_id: Unfinished.DELETING})

    def put_aside(self, topic: Topic) -> None:
        """Serve the files of a topic no more, and keep them. Files that cannot be moved now are moved at the next
        start."""
        gone = UnknownTopicOrPartitionError(f"topic {topic.name!r} is not in the cluster's metadata any more")
        for number in range(topic.partitions):
            owner = LogOwner(topic.name, topic.topic_id, number)
            try:
                self._logs.remove_replica(owner, gone, STRAY_ENDING)
            except SparklogError as e:
                log.error("the files of %s are not put aside: %s", owner.topic_partition, e)  # noqa: TRY400

    def _delete_partitions(self, topic: str, numbers: Iterable[int]) -> bool:
        """Whether the files of all of them are out of the way."""
        all_gone = True
        for number in numbers:
            try:
                self._logs.delete_partition(TopicPartition(topic, number))
            except SparklogError as e:
                all_gone = False
                log.error("the files of partition %s-%d cannot be deleted: %s", topic, number, e)  # noqa: TRY400
        return all_gone

    def finish(self, topics: Mapping[str, Unfinished]) -> None:
        """The directories of new topics are there, those of deleted ones gone: unless some of them are in a log
        directory that is not here. A failure is no error: it is done again at the next start."""
        done = [i for i, state in topics.items() if state is Unfinished.MAKING or self._logs.has_all_directories]
        try:
            if done:
                self._store.finish_topics(done)
        except SparklogError as e:
            log.warning("%d topics stay marked as unfinished until the next start: %s", len(done), e)

    def delete_records(self, deletions: Sequence[tuple[PartitionLog, int]]) -> list[int | SparklogError]:
        """Deletes each log's records below an offset (-1: all that can be read) and writes the log starts down.

        Returns per log its log start, or why it was refused.
        """
        done: list[int | SparklogError] = []
        for partition_log, before_offset in deletions:
            try:
                mark = partition_log.high_watermark
                # else a power cut could leave half of a segment that the checkpoint takes for whole
                partition_log.flusher.flush_to(mark if before_offset < 0 else min(before_offset, mark))
                done.append(partition_log.retention.delete_records(before_offset))
            except SparklogError as e:
                done.append(e)
        if all(isinstance(d, SparklogError) for d in done):
            return done
        try:
            self._logs.checkpoint()
        except SparklogError as e:
            failed = type(e)(f"the records are deleted, but a restart may bring them back: {e}")
            return [d if isinstance(d, SparklogError) else failed for d in done]
        return done


IsHere = Callable[[str, int], bool]


def partition_specs(
    topic: Topic, config: BrokerConfig, *, made: bool = False, first: int = 0, is_here: IsHere | None = None
) -> Iterator[PartitionSpec]:
    """What each of the topic's partitions from `first` on needs to be opened; of those only that `is_here` says belong
    to this broker. `made`: their directories were made before."""
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
        yield PartitionSpec(owner, log_config, topic.schemas.__getitem__, topic.schema_id, made)
