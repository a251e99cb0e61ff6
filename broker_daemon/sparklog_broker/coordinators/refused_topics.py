"""The refused topics of typed topics with `kafka.refused.records = topic`, whose rows the gateways send.

The client has the right to write to the typed topic. It needs none for the refused topic: the broker writes to it.
"""

from __future__ import annotations

from sparklog.errors import (
    InvalidConfigError,
    InvalidRequestError,
    LeaderNotAvailableError,
    NotLeaderError,
    UnknownTopicOrPartitionError,
)
from sparklog.format.batch import iterate_batches
from sparklog.format.key_format import REFUSED_SETTING, REFUSED_TO_TOPIC
from sparklog.format.schema import KIND_ENVELOPE
from sparklog.log.model.log_config import AppendInfo
from sparklog.log.partition_log import PartitionLog
from sparklog.metadata.mirror_settings import check_writable
from sparklog.metadata.refused_topics import REFUSED_SCHEMA, refused_topic
from sparklog.metadata.store import Topic
from sparklog.protocol.refused_messages import StoreRefusedRequest
from sparklog.types import TopicPartition
from sparklog_broker.config import BrokerConfig
from sparklog_broker.coordinators.other_brokers import OtherBrokers
from sparklog_broker.partitions.appender import Appender, Write
from sparklog_broker.partitions.partitions import Partitions

APPEND_TIMEOUT_MS = 30_000
NO_PRODUCER = -1


class RefusedTopics:
    """The refused topics of one broker. Event-loop thread only."""

    def __init__(
        self, config: BrokerConfig, partitions: Partitions, appender: Appender, other_brokers: OtherBrokers
    ) -> None:
        self._config = config
        self._partitions = partitions
        self._appender = appender
        self._other_brokers = other_brokers

    def typed_topic(self, name: str) -> Topic:
        """Return a topic that has a refused topic by its settings. Raises UnknownTopicOrPartitionError,
        InvalidRequestError."""
        topic = self._partitions.topics.get(name)
        if topic is None:
            raise UnknownTopicOrPartitionError(f"topic {name!r} does not exist")
        if topic.kind == KIND_ENVELOPE or self.setting(topic, REFUSED_SETTING) != REFUSED_TO_TOPIC:
            raise InvalidRequestError(f"topic {name!r} has no columns, or not {REFUSED_SETTING}={REFUSED_TO_TOPIC}")
        return topic

    def setting(self, topic: Topic, name: str) -> object:
        """Return a setting of a topic, by itself or by the broker; None for its default."""
        return topic.configs.get(name, self._config.topic_defaults.get(name))

    def find(self, name: str) -> Topic | None:
        """Return the refused topic of a topic; None if it does not exist. Raises InvalidConfigError for a topic with
        other columns; PolicyViolationError for one that a mirror fills."""
        topic = self._partitions.topics.get(refused_topic(name))
        if topic is None:
            return None
        if topic.schemas[topic.schema_id] != REFUSED_SCHEMA:
            raise InvalidConfigError(
                f"topic {topic.name!r} has not the columns of refused records; delete it, or {REFUSED_SETTING}=refuse"
            )
        check_writable(topic.name, topic.configs, by_mirror=False)
        return topic

    async def append(self, topic: Topic, request: StoreRefusedRequest) -> None:
        """Append the rows at the leader of their partition, and return when they are below the high watermark. `topic`:
        the refused topic. Raises NotLeaderError, LeaderNotAvailableError, and the errors of an append."""
        for _, header in iterate_batches(memoryview(request.batch), verify=False):
            if header.producer_id != NO_PRODUCER:
                raise InvalidRequestError(f"refused records have no producer, but producer id {header.producer_id}")
        number = request.partition % topic.partitions
        partition = self._partitions.find(TopicPartition(topic.name, number))
        leader = -1 if partition is None else partition.replicas.leader
        if leader < 0:
            raise LeaderNotAvailableError(f"partition {number} of {topic.name!r} has no leader now: try again")
        if leader != self._other_brokers.broker_id and not request.is_forwarded:
            forwarded = StoreRefusedRequest(request.topic, request.partition, request.batch, is_forwarded=True)
            await self._other_brokers.store_refused(leader, forwarded)
            return
        if leader != self._other_brokers.broker_id:
            raise NotLeaderError(f"another broker leads partition {number} of {topic.name!r} now: try again")
        await self._append_here(topic, number, bytearray(request.batch))

    async def _append_here(self, topic: Topic, number: int, batch: bytearray) -> None:
        where = self._partitions.get(topic.name, number)
        where.replicas.check_in_sync()
        leader_epoch = where.replicas.leader_epoch

        def run(log: PartitionLog) -> AppendInfo:
            return log.appender.append(batch, leader_epoch=leader_epoch, converted=True)

        write = Write(where, where.log, run, len(batch), leader_epoch)
        (outcome,) = await self._appender.append_each([write], replicated_within_ms=APPEND_TIMEOUT_MS)
        if not isinstance(outcome, AppendInfo):
            raise outcome
