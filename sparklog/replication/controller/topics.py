"""Creation, growth, change and deletion of topics."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from msgspec.structs import replace

from sparklog.errors import (
    BrokerNotAvailableError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    TopicAlreadyExistsError,
    UnknownTopicOrPartitionError,
)
from sparklog.format.schema import KIND_ENVELOPE
from sparklog.replication.cluster_image import (
    CORDONED_SETTING,
    INTERNAL_MIN_INSYNC,
    INTERNAL_REPLICAS,
    MIN_INSYNC_SETTING,
    NO_LEADER,
    PartitionImage,
    TopicImage,
    cordoned_brokers,
)
from sparklog.replication.controller.draft import Draft
from sparklog.replication.controller.election import with_isr
from sparklog.replication.controller.model import AddPartitions, AlterConfig, AlterSchema, CreateTopic, DeleteTopic
from sparklog.replication.controller.placement import check_assignment, place
from sparklog.settings import PARTITIONS_ADDED
from sparklog.types import INTERNAL_TOPICS


def create_topic(draft: Draft, request: CreateTopic) -> TopicImage:
    """Create a topic. Raises TopicAlreadyExistsError, InvalidReplicationFactorError, InvalidReplicaAssignmentError,
    InvalidPartitionsError, BrokerNotAvailableError.
    """
    name = request.topic.name
    if draft.has_topic(name):
        raise TopicAlreadyExistsError(f"topic {name!r} already exists")
    count = len(request.assignment) if request.assignment is not None else request.partitions
    if count < 1:
        raise InvalidPartitionsError(f"topic {name!r}: {count} partitions; use 1 or more")
    assigned = _assignments(draft, request, count, request.replication_factor, 0)
    epoch = draft.first_leader_epoch
    partitions = tuple(_new_partition(draft, replicas, epoch) for replicas in assigned)
    topic = replace(request.topic, partitions=partitions, first_leader_epoch=epoch)
    draft.set_topic(topic)
    guard_internal_topics(draft)
    return draft.topic(name)


def delete_topic(draft: Draft, request: DeleteTopic) -> TopicImage:
    """Delete a topic. Raises UnknownTopicOrPartitionError if no topic has the name, the topic has another id, or it
    lacks the required settings."""
    name = request.topic
    topic = draft.topic(name)
    if request.topic_id not in ("", topic.topic_id):
        raise UnknownTopicOrPartitionError(
            f"topic {name!r} does not exist with the id {request.topic_id}: another one has the name"
        )
    if any(topic.configs.get(setting) != value for setting, value in request.required_configs.items()):
        raise UnknownTopicOrPartitionError(f"topic {name!r} has not {dict(request.required_configs)}, or not any more")
    draft.delete_topic(name)
    return topic


def guard_internal_topics(draft: Draft) -> None:
    """Set min.insync.replicas of the internal topics that do not have the setting, to INTERNAL_MIN_INSYNC. A topic that
    was created when there were fewer brokers must wait until all its partitions have INTERNAL_REPLICAS replicas: before
    that, the setting could block all writes."""
    for name in sorted(INTERNAL_TOPICS):
        if not draft.has_topic(name):
            continue
        topic = draft.topic(name)
        if MIN_INSYNC_SETTING in topic.configs:
            continue
        partitions = [draft.partition_at(name, number) for number in range(len(topic.partitions))]
        if all(len(p.replicas) >= INTERNAL_REPLICAS and not p.is_reassigned for p in partitions):
            configs = MappingProxyType({**topic.configs, MIN_INSYNC_SETTING: INTERNAL_MIN_INSYNC})
            draft.set_topic(replace(topic, configs=configs))


def add_partitions(draft: Draft, request: AddPartitions) -> TopicImage:
    """Increase the number of partitions. Raises UnknownTopicOrPartitionError, InvalidPartitionsError (the number is not
    above the present one, or the topic has an upserted Delta table), and the errors of `create_topic`.
    """
    topic = draft.topic(request.topic)
    present = len(topic.partitions)
    if request.partitions <= present:
        raise InvalidPartitionsError(
            f"topic {topic.name!r} has {present} partitions; the number can only grow, not become {request.partitions}"
        )
    if topic.configs.get("lake.location") and topic.configs.get("lake.mode") == "upsert":
        raise InvalidPartitionsError(
            f"topic {topic.name!r} has a Delta table with the newest row per key (lake.mode = upsert): keys would move "
            "to other partitions, and their older rows would stay in the table; use 'sparklog lake disable "
            f"{topic.name}' before, or a new topic with more partitions"
        )
    factor = len(topic.partitions[0].target)
    assigned = _assignments(draft, request, request.partitions - present, factor, present)
    if any(len(replicas) != factor for replicas in assigned):
        raise InvalidReplicaAssignmentError(f"topic {topic.name!r}: the replication factor is {factor}")
    added = tuple(_new_partition(draft, replicas, topic.first_leader_epoch) for replicas in assigned)
    current = tuple(draft.partition_at(topic.name, number) for number in range(present))
    configs = topic.configs
    if topic.key_columns or topic.kind == KIND_ENVELOPE:
        configs = MappingProxyType({**configs, PARTITIONS_ADDED: True})
    grown = replace(topic, partitions=(*current, *added), configs=configs)
    draft.set_topic(grown)
    return grown


def alter_config(draft: Draft, request: AlterConfig) -> None:
    """Change settings of a topic or of the cluster. A lower min.insync.replicas ends the eligibility of replicas
    outside the ISR, because the leader now commits without them. Raises UnknownTopicOrPartitionError."""
    if request.topic is None:
        for name, value in request.changes.items():
            draft.set_config(name, value)
    else:
        topic = draft.topic(request.topic)
        kept = {name: value for name, value in topic.configs.items() if name not in request.changes}
        values = {name: value for name, value in request.changes.items() if value is not None}
        draft.set_topic(replace(topic, configs=MappingProxyType({**kept, **values})))
    for tp, partition in draft.partitions_that(lambda p: bool(p.elr)):
        if request.topic in (None, tp.topic):
            draft.change(tp, with_isr(partition, partition.isr, draft.rules(tp, partition).min_insync))


def alter_schema(draft: Draft, request: AlterSchema) -> TopicImage:
    """Add a schema to a topic. Raises UnknownTopicOrPartitionError."""
    topic = draft.topic(request.topic)
    grown = replace(topic, schemas=MappingProxyType({**topic.schemas, request.schema_id: request.schema}))
    draft.set_topic(grown)
    return grown


def _assignments(
    draft: Draft, request: CreateTopic | AddPartitions, count: int, factor: int, first: int
) -> Sequence[tuple[int, ...]]:
    brokers = {i: b.rack for i, b in draft.live_brokers().items() if not b.is_stopping}
    if request.assignment is None:
        cordoned = cordoned_brokers(draft.config(CORDONED_SETTING, ""))
        open_ones = {i: rack for i, rack in brokers.items() if i not in cordoned}
        if isinstance(request, CreateTopic) and request.or_fewer:
            factor = max(1, min(factor, len(open_ones)))
        if factor > len(open_ones) and len(open_ones) < len(brokers):
            raise InvalidReplicationFactorError(
                f"replication factor {factor} with {len(open_ones)} brokers that accept new replicas: "
                f"{sorted(set(brokers) & cordoned)} are cordoned"
            )
        return place(open_ones, count, factor, start=request.start, shift=request.shift, first_partition=first)
    if len(request.assignment) != count:
        raise InvalidReplicaAssignmentError(f"{len(request.assignment)} assigned partitions for {count} new partitions")
    check_assignment(request.assignment, draft.live_brokers())
    if not all(any(r in brokers for r in replicas) for replicas in request.assignment):
        raise BrokerNotAvailableError("a new partition has no replica on a running broker; try again")
    return [tuple(replicas) for replicas in request.assignment]


def _new_partition(draft: Draft, replicas: tuple[int, ...], leader_epoch: int) -> PartitionImage:
    """Return a new partition. A new partition is empty, so all its replicas are in sync, except those on stopping or
    stopped brokers."""
    live = tuple(r for r in replicas if (b := draft.broker(r)) is not None and not b.is_stopping)
    return PartitionImage(replicas, live[0] if live else NO_LEADER, leader_epoch, 0, live)
