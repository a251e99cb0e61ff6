"""The APIs PRODUCE and INIT_PRODUCER_ID."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence, Set
from typing import NamedTuple

from sparklog.environment.time_slices import ITEMS_PER_LOOK
from sparklog.errors import (
    InvalidRequestError,
    InvalidTopicError,
    SparklogError,
    TransactionAbortedError,
    UnknownSchemaError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from sparklog.gateway.handlers.cluster import node_endpoints
from sparklog.gateway.handlers.entries import share_turns
from sparklog.gateway.handlers.names import UNNAMED, is_partition, is_topic_name, is_transactional_id
from sparklog.gateway.handlers.produced import (
    ZSTD_FROM,
    Converted,
    ProducedPartition,
    changed_topics,
    convert,
    refused_bytes,
    size_of,
)
from sparklog.gateway.handlers.refused_topics import RefusedPart, refused_parts, store_refused
from sparklog.gateway.handlers.topic_ids import id_text, name_topics
from sparklog.gateway.handlers.transactions import aborted_code, fenced_code
from sparklog.gateway.session import ConnectionEndError, Session
from sparklog.kafka.records.errors import InvalidRecordError, UnsupportedCodecError, without_frames
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.errors import Kafka, code_of, coordinator_code, kafka_code, text_of
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import ProducePartition, ProduceRequest, ProduceResponse, ProduceResult
from sparklog.protocol.transaction_messages import InitProducerIdRequest, InitProducerIdResponse
from sparklog.types import INTERNAL_TOPICS, check_topic_name

ACKS = (-1, 0, 1)
TIMEOUT_MS_MAX = 86_400_000


class _RequestedPartition(NamedTuple):
    """One partition of a request. `error`: the reason why the gateway does not send it to the broker; None: it does."""

    topic: str
    partition: int
    error: SparklogError | None


class _Sent(NamedTuple):
    """The part of a request that the gateway has sent to the broker."""

    answer: asyncio.Future[tuple[ProduceResponse, memoryview]] | None
    """None: nothing was sent, or with acks 0."""
    partitions: int
    refused: list[RefusedPart]
    held_bytes: int
    """Memory of the refused records, which is to be released."""


async def produce(session: Session, request: requests.Produce, version: int) -> responses.Produce | None:
    """Append the records of each partition. Each partition has its own result. With acks 0 there is no answer, and an
    error ends the connection."""
    acks = request["acks"]
    if acks not in ACKS:
        return _response(request, {}, Kafka.INVALID_REQUIRED_ACKS)
    async with session.order:
        broker = await session.broker()
        try:
            await name_topics(session, request["topic_data"])
        except SparklogError as e:
            if acks == 0:
                raise
            return _response(request, {}, code_of(e, of_partition=True))
        requested, described = await _look_up_all(session, request["topic_data"], has_zstd=version >= ZSTD_FROM)
        await share_turns(session, len(described))
        sent = await _send(session, request, described, requested)
    results: dict[tuple[str, int], ProduceResult] = {}
    response = None
    try:
        if sent.answer is not None:
            try:
                response, _ = await sent.answer
            except SparklogError as e:
                without_frames(e)
                requested = [one if one.error is not None else one._replace(error=e) for one in requested]
            else:
                await share_turns(session, sent.partitions)
                results = {(r.topic, r.partition): r for r in response.results}
                results = await store_refused(session, broker, sent.refused, results)
    finally:
        if sent.held_bytes:
            session.gateway.conversions.converted.release(session, sent.held_bytes)
    if acks == 0:
        failed = next((r for r in results.values() if r.error_code), None)
        if failed is not None:
            raise ConnectionEndError(failed.message)
        return None
    changed = await _changed_since(session, described, results)
    each = await session.gateway.time_slices.list_of(
        _outcome(session, one, results, version, changed) for one in requested
    )
    outcomes = {(one.topic, one.partition): outcome for one, outcome in zip(requested, each, strict=True)}
    _note_refusals(session, requested)
    body = _response(request, outcomes)
    if response is not None:
        body["throttle_time_ms"] = response.throttle_ms
        body["node_endpoints"] = node_endpoints(session, response.brokers)
    return body


async def _look_up_all(
    session: Session, topics: Sequence[requests.ProduceTopicData], *, has_zstd: bool
) -> tuple[list[_RequestedPartition], list[ProducedPartition]]:
    """Return the partitions of a request that are refused before their records are looked at, and the others."""
    requested: list[_RequestedPartition] = []
    described: list[ProducedPartition] = []
    refused = await session.write_permissions.refusals(
        await session.broker(), (t["name"] for t in topics if is_topic_name(t["name"]))
    )
    time_slices = session.gateway.time_slices
    for topic in topics:
        for i, partition in enumerate(topic["partition_data"], 1):
            if i % ITEMS_PER_LOOK == 0 and time_slices.due():
                await time_slices.pause()
            where = topic["name"], partition["index"]
            if where[0] in refused:
                requested.append(_RequestedPartition(*where, refused[where[0]]))
                continue
            try:
                described.append(await _look_up(session, topic, partition, has_zstd=has_zstd))
            except SparklogError as e:
                requested.append(_RequestedPartition(*where, without_frames(e)))
    return requested, described


async def _send(
    session: Session,
    request: requests.Produce,
    described: list[ProducedPartition],
    requested: list[_RequestedPartition],
) -> _Sent:
    """Convert the records, and send those of the partitions that are not refused to the broker. Append each partition
    to `requested`. Raises ConnectionEndError with acks 0 if one is refused."""
    acks, broker = request["acks"], await session.broker()
    converted = await convert(session, described)
    size, held = size_of(converted), 0
    try:
        refused = await refused_parts(broker, described, converted) if refused_bytes(converted) else []
        refused_size = sum(one.size_bytes for part in refused for one in part.records)
        sent, payload = _settle(described, converted, requested)
        converted.clear()
        if acks == 0 and len(sent) < len(requested):
            _note_refusals(session, requested)
            raise ConnectionEndError(str(next(one.error for one in requested if one.error is not None)))
        message = ProduceRequest(
            acks if acks or not refused else 1,  # the places of refused records are in the answer
            min(max(request["timeout_ms"], 0), TIMEOUT_MS_MAX),
            sent,
            request["transactional_id"],
        )
        answer = None
        if sent and message.acks == 0:
            broker.send_unanswered(Api.PRODUCE, message, payload)
        elif sent:
            answer = broker.send(Api.PRODUCE, message, ProduceResponse, payload)
        payload.clear()  # the transport has copied the bytes that the broker has not taken
        await broker.drain()
        held = refused_size
        return _Sent(answer, len(sent), refused, held)
    finally:
        session.gateway.conversions.converted.release(session, size - held)


async def _look_up(
    session: Session,
    topic: requests.ProduceTopicData,
    requested: requests.ProduceTopicDataPartitionData,
    *,
    has_zstd: bool,
) -> ProducedPartition:
    """Return one partition with its topic. Raises the error that becomes the partition's result."""
    name, partition, records, topic_id = topic["name"], requested["index"], requested["records"], topic.get("topic_id")
    if not records:
        raise InvalidRequestError(
            "a partition of the request has no records: send at least one batch for each partition"
        )
    if name in INTERNAL_TOPICS:
        raise InvalidTopicError(f"topic {name!r} is internal: it can be read, but not written to")
    if topic_id is not None and name == UNNAMED:
        raise UnknownTopicIdError("no topic has this id: read the metadata again")
    check_topic_name(name)
    if not is_partition(name, partition):
        raise UnknownTopicOrPartitionError(f"topic {name!r} has no partition {partition}")
    topics, broker = session.gateway.topics, await session.broker()
    info = await topics.get(broker, name, to_write=True)
    if topic_id is not None and info.topic_id != id_text(topic_id):
        info = await topics.renewed(broker, name, to_write=True)
    return ProducedPartition(info, partition, records, has_zstd, id_text(topic_id))


def _settle(
    partitions: Sequence[ProducedPartition], converted: Sequence[Converted], requested: list[_RequestedPartition]
) -> tuple[list[ProducePartition], list[memoryview]]:
    """Return the partitions and the payload of the request to the broker. Append each partition to `requested`."""
    sent: list[ProducePartition] = []
    payload: list[memoryview] = []
    for one, batches in zip(partitions, converted, strict=True):
        where = one.topic.name, one.partition
        if isinstance(batches, SparklogError):
            requested.append(_RequestedPartition(*where, batches))
            continue
        requested.append(_RequestedPartition(*where, None))
        sent.append(
            ProducePartition(*where, sum(len(batch.payload) for batch in batches), one.topic.key_rules, one.topic_id)
        )
        payload += [batch.payload for batch in batches]
    return sent, payload


async def _changed_since(
    session: Session, partitions: Sequence[ProducedPartition], results: dict[tuple[str, int], ProduceResult]
) -> set[str]:
    """Return the names of the topics that have changed since the gateway looked, if the broker has refused the form of
    their batches, such as their type of timestamps."""
    refused = {r.topic for r in results.values() if r.error_code == InvalidRequestError.code}
    if not refused:
        return set()
    topics = {p.topic.name: p.topic for p in partitions if p.topic.name in refused}
    return set(await changed_topics(session, topics, topics.keys()))


def _note_refusals(session: Session, requested: Sequence[_RequestedPartition]) -> None:
    """Log and count the partitions whose records are refused: few clients show the reason."""
    for one in requested:
        if one.error is not None and code_of(one.error) is Kafka.INVALID_RECORD:
            client = f"{session.peer_host}, client id {session.client_id!r}"
            session.gateway.refusals.note_batch(client, f"{one.topic}-{one.partition}", str(one.error))


def _outcome(
    session: Session,
    requested: _RequestedPartition,
    results: dict[tuple[str, int], ProduceResult],
    version: int,
    changed: Set[str],
) -> responses.ProduceResponsePartitionResponse:
    """Return the result of one partition. `changed`: topics whose records the client has to send again, because the
    gateway has converted them for a former state of the topic."""
    body: responses.ProduceResponsePartitionResponse
    error = requested.error
    if error is not None:
        body = {
            "index": requested.partition,
            "error_code": fenced_code(code_of(error, of_partition=True), "Produce", version),
            "base_offset": -1,
            "error_message": text_of(error),
        }
        if isinstance(error, UnsupportedCodecError):
            body["error_code"] = Kafka.UNSUPPORTED_COMPRESSION_TYPE
        if isinstance(error, InvalidRecordError):
            body["error_code"] = Kafka.INVALID_RECORD
            body["record_errors"] = [
                {"batch_index": index, "batch_index_error_message": text_of(message)}
                for index, message in error.records.items()
            ]
        return body
    result = results.get((requested.topic, requested.partition))
    if result is None:
        return _refused(requested.partition, Kafka.UNKNOWN_SERVER_ERROR)
    code = fenced_code(kafka_code(result.error_code, of_partition=True), "Produce", version)
    if result.error_code:
        # the topic may have changed since the gateway looked: the client asks for metadata, and tries again
        session.gateway.topics.doubt(requested.topic)
        if result.error_code == UnknownSchemaError.code or requested.topic in changed:
            code = Kafka.NOT_LEADER_OR_FOLLOWER
        elif result.error_code == TransactionAbortedError.code:
            code = aborted_code("Produce", version)
    body = {
        "index": requested.partition,
        "error_code": code,
        "base_offset": result.base_offset,
        "log_start_offset": result.log_start_offset,
        "error_message": text_of(result.message),
    }
    topic = session.gateway.topics.peek(requested.topic)
    if topic is not None and topic.log_append_time:
        body["log_append_time_ms"] = result.append_time_ms
    if topic is not None and result.newest_schema_id > topic.schema_id:
        session.gateway.topics.doubt(requested.topic)
    if result.leader_id >= 0:
        body["current_leader"] = {"leader_id": result.leader_id, "leader_epoch": result.leader_epoch}
    return body


def _response(
    request: requests.Produce,
    outcomes: dict[tuple[str, int], responses.ProduceResponsePartitionResponse],
    code: Kafka | None = None,
) -> responses.Produce:
    return {
        "responses": [
            {
                "name": topic.get("name", UNNAMED),
                "topic_id": topic.get("topic_id"),
                "partition_responses": [
                    outcomes[topic["name"], p["index"]] if code is None else _refused(p["index"], code)
                    for p in topic["partition_data"]
                ],
            }
            for topic in request["topic_data"]
        ]
    }


def _refused(partition: int, code: Kafka) -> responses.ProduceResponsePartitionResponse:
    return {"index": partition, "error_code": code, "base_offset": -1}


async def init_producer_id(
    session: Session, request: requests.InitProducerId, version: int
) -> responses.InitProducerId:
    """Answer with an identity for an idempotent or transactional producer."""
    transactional_id = request["transactional_id"]
    if transactional_id is not None and not is_transactional_id(transactional_id):
        return _no_identity(Kafka.INVALID_REQUEST)
    timeout_ms = request["transaction_timeout_ms"]
    if transactional_id is not None and not 0 < timeout_ms <= TIMEOUT_MS_MAX:
        return _no_identity(Kafka.INVALID_TRANSACTION_TIMEOUT)
    message = InitProducerIdRequest(
        transactional_id,
        min(max(timeout_ms, 1), TIMEOUT_MS_MAX),
        request.get("producer_id", -1),
        request.get("producer_epoch", -1),
    )
    try:
        answer = await (await session.broker()).ask(Api.INIT_PRODUCER_ID, message, InitProducerIdResponse)
    except SparklogError as e:
        return _no_identity(fenced_code(coordinator_code(e), "InitProducerId", version))
    return {
        "throttle_time_ms": answer.throttle_ms,
        "error_code": Kafka.NONE,
        "producer_id": answer.producer_id,
        "producer_epoch": answer.producer_epoch,
    }


def _no_identity(code: Kafka) -> responses.InitProducerId:
    return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
