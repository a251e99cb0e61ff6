"""DESCRIBE_TOPIC_PARTITIONS (KIP-966): topics with their partitions, page by page."""

from __future__ import annotations

from collections.abc import AsyncIterator

from sparklog.gateway.backend.topics import read_topics, topic_uuid
from sparklog.gateway.handlers.authorized_operations import authorized_operations
from sparklog.gateway.handlers.names import is_topic_name
from sparklog.gateway.session import Session
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.errors import Kafka, kafka_code
from sparklog.protocol.apis import Api
from sparklog.protocol.topic_messages import MetadataRequest, MetadataResponse, PartitionState, TopicState
from sparklog.security.acls import ResourceType
from sparklog.types import INTERNAL_TOPICS

PARTITIONS_MAX = 2_000
"""Largest number of partitions in an answer, the default of Kafka's `max.request.partition.size.limit`."""
_Topic = responses.DescribeTopicPartitionsTopic


async def describe_topic_partitions(
    session: Session, request: requests.DescribeTopicPartitions, version: int
) -> responses.DescribeTopicPartitions:
    """Answer with the named topics, or with all that the client may describe, in the order of their names from the
    cursor on. The answer ends with a cursor if topics or partitions remain."""
    cursor = request["cursor"]
    first, start = ("", 0) if cursor is None else (cursor["topic_name"], cursor["partition_index"])
    names = [topic["name"] for topic in request["topics"]]
    if start < 0:
        return {"topics": [_error(name, Kafka.INVALID_REQUEST) for name in names]}
    room = min(max(request["response_partition_limit"], 1), PARTITIONS_MAX)
    states = _named(session, names, first, room) if names else _all(session, first)
    topics: list[_Topic] = []
    following: responses.DescribeTopicPartitionsNextCursor | None = None
    async for name, state in states:
        if state is None or state.error_code:
            code = Kafka.INVALID_TOPIC_EXCEPTION if state is None else kafka_code(state.error_code)
            topics.append(_error(name, code))
            continue
        begin = start if name == first else 0
        if room:
            topics.append(_topic(state, begin, begin + room))
        shown = max(min(len(state.partitions) - begin, room), 0)
        room -= shown
        if begin + shown < len(state.partitions):
            following = {"topic_name": name, "partition_index": begin + shown}
            break
    described = [topic for topic in topics if not topic["error_code"]]
    operations = await authorized_operations(session, ResourceType.TOPIC, [t["name"] or "" for t in described])
    for topic in described:
        topic["topic_authorized_operations"] = operations[topic["name"] or ""]
    return {"topics": topics, "next_cursor": following}


async def _named(
    session: Session, names: list[str], first: str, room: int
) -> AsyncIterator[tuple[str, TopicState | None]]:
    """Yield the named topics from `first` on; None for a name that no topic can have. Each topic has a partition, so
    `room` + 1 of them are sufficient."""
    part = sorted({name for name in names if name >= first})[: room + 1]
    answer = await read_topics(await session.broker(), [name for name in part if is_topic_name(name)])
    states = {state.name: state for state in answer.topics}
    for name in part:
        yield name, states.get(name)


async def _all(session: Session, first: str) -> AsyncIterator[tuple[str, TopicState]]:
    """Yield the topics that the client may describe from `first` on, without those that cannot be described."""
    broker = await session.broker()
    after = ""
    if is_topic_name(first):
        after = first
        for state in (await read_topics(broker, [first])).topics:
            if not state.error_code:
                yield state.name, state
    is_complete = False
    while not is_complete:
        request = MetadataRequest(paged=True, after=after, with_schemas=False)
        answer = await broker.ask(Api.METADATA, request, MetadataResponse)
        for state in answer.topics:
            if not state.error_code:
                yield state.name, state
        is_complete = not answer.more or not answer.topics
        after = answer.topics[-1].name if answer.topics else after


def _error(name: str, code: Kafka) -> _Topic:
    return {"error_code": code, "name": name, "topic_id": None, "partitions": []}


def _topic(state: TopicState, begin: int, end: int) -> _Topic:
    return {
        "error_code": Kafka.NONE,
        "name": state.name,
        "topic_id": topic_uuid(state),
        "is_internal": state.name in INTERNAL_TOPICS,
        "partitions": [_partition(p) for p in state.partitions[begin:end]],
    }


def _partition(state: PartitionState) -> responses.DescribeTopicPartitionsTopicPartition:
    code = kafka_code(state.error_code, of_partition=True)
    return {
        "error_code": code if code is Kafka.LEADER_NOT_AVAILABLE else Kafka.NONE,
        "partition_index": state.partition,
        "leader_id": state.leader,
        "leader_epoch": state.leader_epoch,
        "replica_nodes": state.replicas,
        "isr_nodes": state.isr,
        "eligible_leader_replicas": list(state.elr),
        "last_known_elr": [],
        "offline_replicas": [],
    }
