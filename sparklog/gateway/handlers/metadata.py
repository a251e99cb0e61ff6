"""The API METADATA."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from uuid import UUID

from sparklog.errors import InvalidTopicError, SparklogError, UnknownTopicOrPartitionError
from sparklog.gateway.backend.topics import read_metadata, read_topics, read_topics_by_id, topic_uuid
from sparklog.gateway.handlers.authorized_operations import authorized_operations, cluster_operations
from sparklog.gateway.handlers.cluster import node_endpoints
from sparklog.gateway.handlers.coordinators import GROUP, TRANSACTION, ask_coordinator
from sparklog.gateway.session import Session
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.codec import NO_UUID
from sparklog.kafka.wire.errors import Kafka, kafka_code
from sparklog.protocol.topic_messages import (
    AUTO_CREATED_MAX,
    MetadataRequest,
    MetadataResponse,
    PartitionState,
    TopicState,
)
from sparklog.security.acls import ResourceType
from sparklog.types import (
    CONSUMER_OFFSETS_TOPIC,
    INTERNAL_PREFIX,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
    check_topic_name,
)

_COORDINATED = {CONSUMER_OFFSETS_TOPIC: GROUP, TRANSACTION_STATE_TOPIC: TRANSACTION}
"""Type of the coordinator that keeps an internal topic, by the topic's name."""
_ANY_KEY = "kafka-gateway"
UNNAMED_FROM = 12
"""First version of METADATA whose answers can have topics without names."""


async def metadata(session: Session, request: requests.Metadata, version: int) -> responses.Metadata:
    """Answer with the brokers, the topics and, if the client asks for them, its authorized operations."""
    answer = await _metadata(session, request, version)
    if request.get("include_topic_authorized_operations"):
        topics = [t for t in answer["topics"] if not t["error_code"]]
        names = [name for t in topics if (name := t["name"]) is not None]
        operations = await authorized_operations(session, ResourceType.TOPIC, names)
        for topic in topics:
            topic["topic_authorized_operations"] = operations[topic["name"] or ""]
    if request.get("include_cluster_authorized_operations"):
        answer["cluster_authorized_operations"] = await cluster_operations(session, is_requested=True)
    return answer


async def _metadata(session: Session, request: requests.Metadata, version: int) -> responses.Metadata:
    """Answer with the brokers, under the addresses of their gateways, and the topics with their partitions."""
    topics = request["topics"]
    if topics is None or (version == 0 and not topics):
        answer = await _read(session, None, create=False)
        return _response(session, answer, await session.gateway.time_slices.list_of(_topic(t) for t in answer.topics))
    refused: list[responses.MetadataTopic] = []
    names: list[str] = []
    by_id: dict[UUID, str | None] = {}
    for topic in topics:
        name, topic_id = topic.get("name"), topic.get("topic_id")
        if topic_id is not None and topic_id != NO_UUID:  # Java's clients leave the name empty beside an id
            by_id[topic_id] = None
            continue
        try:
            names.append(check_topic_name(name or ""))
        except InvalidTopicError:  # a client takes a missing topic for one that may appear, and waits for it
            refused.append(_refusal(name or "", Kafka.INVALID_TOPIC_EXCEPTION))
    create = version < 4 or request["allow_auto_topic_creation"]
    answer = await _read(session, list(dict.fromkeys(names)), create=create)
    if by_id:
        states = await visible_topics(session, by_id)
        answer.topics += [state for state in states.values() if state.name not in names]
        unnamed = None if version >= UNNAMED_FROM else ""
        refused += [_refusal(unnamed, Kafka.UNKNOWN_TOPIC_ID, topic_id) for topic_id in by_id if topic_id not in states]
    return _response(
        session, answer, await session.gateway.time_slices.list_of(_topic(t) for t in answer.topics) + refused
    )


async def visible_topics(session: Session, topic_ids: Iterable[UUID]) -> dict[UUID, TopicState]:
    """Return the topics with these ids, as far as they exist and the client may describe them."""
    answer = await read_topics_by_id(await session.broker(), list(dict.fromkeys(topic_ids)))
    return {topic_id: state for state in answer.topics if (topic_id := topic_uuid(state)) is not None}


async def _read(session: Session, names: list[str] | None, *, create: bool) -> MetadataResponse:
    broker = await session.broker()
    answer = await read_topics(broker, names)
    missing = [t.name for t in answer.topics if t.error_code and kafka_code(t.error_code) == 3]
    if not create or names is None or not missing:
        return answer
    await _create_internal(session, missing)
    # one request creates a limited number of topics: the others are missing in the answer, and clients ask again
    part = missing[:AUTO_CREATED_MAX]
    with suppress(SparklogError):  # then the answer says that the topics are missing
        created = await read_metadata(
            broker, MetadataRequest(part, paged=True, with_schemas=False, create_missing=True)
        )
        states = {t.name: t for t in created.topics}
        answer.topics = [states.get(t.name, t) for t in answer.topics]
    for topic in answer.topics:
        is_missing = topic.error_code == UnknownTopicOrPartitionError.code
        if is_missing and topic.name.startswith(INTERNAL_PREFIX) and topic.name not in _COORDINATED:
            topic.error_code = InvalidTopicError.code  # the broker creates no such topic for a client
    return answer


async def _create_internal(session: Session, names: list[str]) -> None:
    """Let the broker create missing topics of coordinators, by asking for a coordinator. A client that cannot write to
    such a topic gets an error that ends its attempts only if the topic exists. A client without the permission gets
    the answer that the topic is missing."""
    for name in names:
        if name in _COORDINATED:
            with suppress(SparklogError):
                await ask_coordinator(session, _ANY_KEY, _COORDINATED[name])


def _response(session: Session, answer: MetadataResponse, topics: list[responses.MetadataTopic]) -> responses.Metadata:
    return {
        "throttle_time_ms": answer.throttle_ms,
        "brokers": node_endpoints(session, answer.brokers),
        "cluster_id": answer.cluster_id,
        "controller_id": answer.controller,
        "topics": topics,
    }


def _refusal(name: str | None, code: Kafka, topic_id: UUID | None = None) -> responses.MetadataTopic:
    return {"error_code": code, "name": name, "topic_id": topic_id, "is_internal": False, "partitions": []}


def _topic(state: TopicState) -> responses.MetadataTopic:
    return {
        "error_code": kafka_code(state.error_code),
        "name": state.name,
        "topic_id": topic_uuid(state) if not state.error_code else None,
        "is_internal": state.name in INTERNAL_TOPICS,
        "partitions": [_partition(p) for p in state.partitions],
    }


def _partition(state: PartitionState) -> responses.MetadataTopicPartition:
    code = kafka_code(state.error_code, of_partition=True)
    return {
        "error_code": code if code in (Kafka.NONE, Kafka.LEADER_NOT_AVAILABLE) else Kafka.NONE,
        "partition_index": state.partition,
        "leader_id": state.leader,
        "leader_epoch": state.leader_epoch,
        "replica_nodes": state.replicas,
        "isr_nodes": state.isr,
        "offline_replicas": [],
    }
