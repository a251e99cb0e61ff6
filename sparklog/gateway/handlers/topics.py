"""Administration of topics: CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS, DELETE_RECORDS."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

from sparklog.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    RequestTimedOutError,
    SparklogError,
)
from sparklog.gateway.backend.topics import topic_uuid
from sparklog.gateway.handlers.configs import config_entries, parse_configs
from sparklog.gateway.handlers.entries import ENTRIES_MAX, check_entry, check_named_once
from sparklog.gateway.handlers.metadata import visible_topics
from sparklog.gateway.handlers.names import is_partition, missing_code
from sparklog.gateway.session import Session
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.codec import NO_UUID
from sparklog.kafka.wire.errors import Kafka, code_of, kafka_code, text_of
from sparklog.protocol.apis import Api
from sparklog.protocol.base import PARTITIONS_PER_TOPIC_MAX
from sparklog.protocol.messages import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsResult,
)
from sparklog.protocol.topic_messages import (
    REPLICAS_MAX,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreateTopicRequest,
    CreateTopicResponse,
    DeleteTopicRequest,
    DeleteTopicResponse,
    TopicState,
)
from sparklog.types import check_topic_name

TIMEOUT_MS_MAX = 86_400_000
DEFAULT_COUNT = -1


def _deadline_s(timeout_ms: int) -> float | None:
    """Return the end of a request's time, on the event loop's clock; None if the request names no time: such clients
    do not wait for the change."""
    if timeout_ms <= 0:
        return None
    return asyncio.get_running_loop().time() + min(timeout_ms, TIMEOUT_MS_MAX) / 1000


@asynccontextmanager
async def _within_time(until_s: float | None, name: str) -> AsyncIterator[None]:
    """Limit the change of a topic by the request's deadline. Raises RequestTimedOutError; the broker may complete the
    change afterwards."""
    try:
        async with asyncio.timeout_at(until_s):
            yield
    except TimeoutError as e:
        raise RequestTimedOutError(
            f"topic {name!r} was not complete within the request's time. The broker may still be working on it, which "
            "takes long for thousands of partitions: describe the topic before you repeat the request"
        ) from e


async def create_topics(session: Session, request: requests.CreateTopics, version: int) -> responses.CreateTopics:
    """Create envelope topics, one after the other, within the request's time."""
    topics: list[responses.CreateTopicsTopic] = []
    until_s = _deadline_s(request["timeout_ms"])
    named = Counter(topic["name"] for topic in request["topics"])
    for i, topic in enumerate(request["topics"]):
        try:
            check_entry(i)
            check_named_once(named[topic["name"]])
            async with _within_time(until_s, topic["name"]):
                state = await _create(session, topic, validate_only=request["validate_only"])
            topics.append(_created(topic["name"], state))
        except SparklogError as e:
            topics.append({"name": topic["name"], "error_code": code_of(e), "error_message": text_of(e)})
    return {"topics": topics}


def _created(name: str, state: TopicState) -> responses.CreateTopicsTopic:
    """Return the result for a topic that is created, or after a request with `validate_only` could be created."""
    return {
        "name": name,
        "topic_id": topic_uuid(state),
        "error_code": Kafka.NONE,
        "num_partitions": state.partition_count,
        "replication_factor": len(state.partitions[0].replicas) if state.partitions else -1,
        "configs": [
            {
                "name": entry["name"],
                "value": entry["value"],
                "read_only": entry["read_only"],
                "config_source": entry["config_source"],
                "is_sensitive": entry["is_sensitive"],
            }
            for entry in config_entries(state)
        ],
    }


async def _create(session: Session, topic: requests.CreateTopicsTopic, *, validate_only: bool) -> TopicState:
    """Create a topic and return its state; with `validate_only`, only check the request. Raises the error of an invalid
    topic, and the broker's errors."""
    name, partitions, factor = topic["name"], topic["num_partitions"], topic["replication_factor"]
    check_topic_name(name)
    assignment = None
    if topic["assignments"]:
        if (partitions, factor) != (DEFAULT_COUNT, DEFAULT_COUNT):
            raise InvalidRequestError("a topic has either an assignment of replicas or their numbers")
        by_index = {a["partition_index"]: _checked_replicas(a["broker_ids"]) for a in topic["assignments"]}
        if sorted(by_index) != list(range(len(by_index))) or len(by_index) != len(topic["assignments"]):
            raise InvalidReplicaAssignmentError("the assignment has to name each partition from 0 on once")
        assignment = [by_index[i] for i in sorted(by_index)]
        partitions = len(assignment)
    elif partitions != DEFAULT_COUNT and not 0 < partitions <= PARTITIONS_PER_TOPIC_MAX:
        raise InvalidPartitionsError(
            f"{partitions} partitions; 1 to {PARTITIONS_PER_TOPIC_MAX} are possible, or -1 for num.partitions"
        )
    without_value = sorted({c["name"] for c in topic["configs"] if c["value"] is None})
    if without_value:
        raise InvalidConfigError(f"{', '.join(without_value)}: null is no value; leave the setting out")
    configs = parse_configs({c["name"]: c["value"] for c in topic["configs"]})
    broker = await session.broker()
    message = CreateTopicRequest(
        name,
        partitions,
        configs=configs,
        replication_factor=factor,
        assignment=assignment,
        validate_only=validate_only,
    )
    return (await broker.ask(Api.CREATE_TOPIC, message, CreateTopicResponse)).topic


def _checked_replicas(broker_ids: list[int]) -> list[int]:
    """Return the ids, if a partition can have replicas on brokers of these ids. Raises
    InvalidReplicaAssignmentError."""
    if not 0 < len(broker_ids) <= REPLICAS_MAX or min(broker_ids) < 0:
        raise InvalidReplicaAssignmentError(
            f"name 1 to {REPLICAS_MAX} brokers for each partition, by their ids, which are 0 or larger"
        )
    return broker_ids


async def delete_topics(session: Session, request: requests.DeleteTopics, version: int) -> responses.DeleteTopics:
    """Delete topics with their data, by name or id."""
    requested: list[tuple[str | None, UUID | None]] = [(name, None) for name in request.get("topic_names", ())]
    requested += [(t["name"], t["topic_id"] if t["topic_id"] != NO_UUID else None) for t in request.get("topics", ())]
    outcomes: list[responses.DeleteTopicsResponse] = []
    ids = [topic_id for name, topic_id in requested[:ENTRIES_MAX] if name is None and topic_id]
    states = await visible_topics(session, ids) if ids else {}
    named = Counter(requested)
    for i, (name, topic_id) in enumerate(requested):
        times, is_ambiguous = named[name, topic_id], (name is None) == (topic_id is None)
        if name is None and topic_id and i < ENTRIES_MAX:
            if topic_id not in states:
                outcomes.append({"name": None, "topic_id": topic_id, "error_code": Kafka.UNKNOWN_TOPIC_ID})
                continue
            name = states[topic_id].name
        outcome: responses.DeleteTopicsResponse = {"name": name, "topic_id": topic_id, "error_code": Kafka.NONE}
        try:
            check_entry(i)
            check_named_once(times)
            if is_ambiguous:
                raise InvalidRequestError("name a topic by its name, or by its id")
            check_topic_name(name or "")
            broker = await session.broker()
            await broker.ask(Api.DELETE_TOPIC, DeleteTopicRequest(name or ""), DeleteTopicResponse)
            session.gateway.topics.forget(name or "")
        except SparklogError as e:
            outcome["error_code"], outcome["error_message"] = code_of(e), text_of(e)
        outcomes.append(outcome)
    return {"responses": outcomes}


async def create_partitions(
    session: Session, request: requests.CreatePartitions, version: int
) -> responses.CreatePartitions:
    """Add partitions to topics."""
    results: list[responses.CreatePartitionsResult] = []
    until_s = _deadline_s(request["timeout_ms"])
    named = Counter(topic["name"] for topic in request["topics"])
    for i, topic in enumerate(request["topics"]):
        outcome: responses.CreatePartitionsResult = {"name": topic["name"], "error_code": Kafka.NONE}
        try:
            check_entry(i)
            check_named_once(named[topic["name"]])
            async with _within_time(until_s, topic["name"]):
                await _add_partitions(session, topic, validate_only=request["validate_only"])
        except SparklogError as e:
            outcome["error_code"], outcome["error_message"] = code_of(e), text_of(e)
        results.append(outcome)
    return {"results": results}


async def _add_partitions(session: Session, topic: requests.CreatePartitionsTopic, *, validate_only: bool) -> None:
    name, count = topic["name"], topic["count"]
    check_topic_name(name)
    if not 0 < count <= PARTITIONS_PER_TOPIC_MAX:
        raise InvalidPartitionsError(f"{count} partitions; 1 to {PARTITIONS_PER_TOPIC_MAX} are possible")
    assignment = None
    if topic["assignments"] is not None:
        assignment = [_checked_replicas(a["broker_ids"]) for a in topic["assignments"]]
    broker = await session.broker()
    message = CreatePartitionsRequest(name, count, validate_only, assignment)
    await broker.ask(Api.CREATE_PARTITIONS, message, CreatePartitionsResponse)
    session.gateway.topics.forget(name)


async def delete_records(session: Session, request: requests.DeleteRecords, version: int) -> responses.DeleteRecords:
    """Delete the records below the requested offsets; -1: below the high watermark."""
    partitions = [
        DeleteRecordsPartition(t["name"], p["partition_index"], p["offset"])
        for t in request["topics"]
        for p in t["partitions"]
        if is_partition(t["name"], p["partition_index"]) and p["offset"] >= -1
    ]
    results: dict[tuple[str, int], DeleteRecordsResult] = {}
    failure: Kafka | None = None
    if partitions:
        message = DeleteRecordsRequest(min(max(request["timeout_ms"], 0), TIMEOUT_MS_MAX), partitions)
        try:
            answer = await (await session.broker()).ask(Api.DELETE_RECORDS, message, DeleteRecordsResponse)
        except SparklogError as e:
            failure = code_of(e, of_partition=True)
        else:
            results = {(r.topic, r.partition): r for r in answer.results}

    def outcome(name: str, p: requests.DeleteRecordsTopicPartition) -> responses.DeleteRecordsTopicPartition:
        result = results.get((name, p["partition_index"]))
        code = (failure or missing_code(name)) if result is None else kafka_code(result.error_code, of_partition=True)
        if result is None and p["offset"] < -1:
            code = Kafka.OFFSET_OUT_OF_RANGE
        low = -1 if result is None else result.low_watermark
        return {"partition_index": p["partition_index"], "low_watermark": low, "error_code": code}

    return {
        "topics": [
            {"name": t["name"], "partitions": [outcome(t["name"], p) for p in t["partitions"]]}
            for t in request["topics"]
        ]
    }
