"""The API METADATA."""

from __future__ import annotations

from collections.abc import Container, Iterable
from uuid import UUID

from sparklog.errors import InvalidTopicError, SparklogError
from sparklog.gateway.backend.topics import read_metadata, read_topics, topic_uuid
from sparklog.gateway.session import Session
from sparklog.gateway.wire.codec import Body
from sparklog.gateway.wire.errors import Kafka, kafka_code
from sparklog.protocol.topic_messages import (
    AUTO_CREATED_MAX,
    MetadataRequest,
    MetadataResponse,
    PartitionState,
    TopicState,
)
from sparklog.types import INTERNAL_TOPICS, check_topic_name

UNNAMED_FROM = 12
"""First version of METADATA whose answers can have topics without names."""


async def metadata(session: Session, request: Body, version: int) -> Body:
    """Answer with the brokers, under the addresses of their gateways, and the topics with their partitions."""
    asked = request["topics"]
    if asked is None or (version == 0 and not asked):
        answer = await _read(session, None, create=False)
        return _response(session, answer, [_topic(session, t) for t in answer.topics])
    refused: list[Body] = []
    names: list[str] = []
    by_id: dict[UUID, str | None] = {}
    for topic in asked:
        name, topic_id = topic.get("name"), topic.get("topic_id")
        if name is None and topic_id:
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
    return _response(session, answer, [_topic(session, t) for t in answer.topics] + refused)


async def visible_topics(session: Session, topic_ids: Iterable[UUID]) -> dict[UUID, TopicState]:
    """Return the topics with these ids, as far as they exist and the client may describe them. A name that the gateway
    remembers for an id is no reason: the broker decides."""
    ids = set(topic_ids)
    names = {session.gateway.topics.name_of(topic_id) for topic_id in ids}
    found: dict[UUID, TopicState] = {}
    if None not in names:
        found = _with_ids(session, await _read(session, [n for n in names if n is not None], create=False), ids)
    if len(found) < len(ids):  # one look at all topics finds the ids that are new
        found = _with_ids(session, await _read(session, None, create=False), ids)
    return found


def _with_ids(session: Session, answer: MetadataResponse, topic_ids: Container[UUID]) -> dict[UUID, TopicState]:
    found = {}
    for state in answer.topics:
        topic_id = _note(session, state)
        if topic_id is not None and topic_id in topic_ids:
            found[topic_id] = state
    return found


async def _read(session: Session, names: list[str] | None, *, create: bool) -> MetadataResponse:
    broker = await session.broker()
    answer = await read_topics(broker, names)
    missing = [t.name for t in answer.topics if t.error_code and kafka_code(t.error_code) == 3]
    if not create or names is None or not missing:
        return answer
    for start in range(0, len(missing), AUTO_CREATED_MAX):
        part = missing[start : start + AUTO_CREATED_MAX]
        try:
            made = await read_metadata(
                broker, MetadataRequest(part, paged=True, with_schemas=False, create_missing=True)
            )
        except SparklogError:
            break  # the answer says that the rest is missing
        found = {t.name: t for t in made.topics}
        answer.topics = [found.get(t.name, t) for t in answer.topics]
    return answer


def _note(session: Session, state: TopicState) -> UUID | None:
    topic_id = topic_uuid(state) if not state.error_code else None
    if topic_id is not None:
        session.gateway.topics.note_id(topic_id, state.name)
    return topic_id


def _response(session: Session, answer: MetadataResponse, topics: list[Body]) -> Body:
    addresses = session.gateway.addresses(answer.brokers, session.listener, session.local)
    return {
        "throttle_time_ms": answer.throttle_ms,
        "brokers": [
            {"node_id": a.node_id, "host": a.host, "port": a.port, "rack": a.rack} for _, a in sorted(addresses.items())
        ],
        "cluster_id": answer.cluster_id,
        "controller_id": answer.controller,
        "topics": topics,
    }


def _refusal(name: str | None, code: Kafka, topic_id: UUID | None = None) -> Body:
    return {"error_code": code, "name": name, "topic_id": topic_id, "is_internal": False, "partitions": []}


def _topic(session: Session, state: TopicState) -> Body:
    return {
        "error_code": kafka_code(state.error_code),
        "name": state.name,
        "topic_id": _note(session, state),
        "is_internal": state.name in INTERNAL_TOPICS,
        "partitions": [_partition(p) for p in state.partitions],
    }


def _partition(state: PartitionState) -> Body:
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
