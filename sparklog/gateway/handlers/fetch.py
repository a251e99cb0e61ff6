"""The API FETCH."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial

from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import CorruptBatchError, SparklogError, UnknownSchemaError
from sparklog.gateway.records.compression import LZ4, ZSTD
from sparklog.gateway.records.to_client import Part, Rows, as_they_are, client_batches
from sparklog.gateway.records.typed import TypedRows
from sparklog.gateway.session import Session
from sparklog.gateway.wire.codec import Body
from sparklog.gateway.wire.errors import Kafka, code_of, kafka_code
from sparklog.protocol.base import PARTITIONS_PER_REQUEST_MAX, PARTITIONS_PER_TOPIC_MAX
from sparklog.protocol.messages import Api, FetchPartition, FetchRequest, FetchResponse, FetchResult
from sparklog.types import READ_COMMITTED, TOPIC_NAME_CHARS_MAX

WAIT_MS_MAX = 60_000
NO_SESSION = 0
INLINE_BYTES = 64 * 1024
"""Largest payload in bytes that is converted on the event loop; larger ones are converted on a thread."""
ZSTD_FROM = 10
"""First version of FETCH whose clients understand zstd."""


async def fetch(session: Session, request: Body, version: int) -> Body:
    """Answer with whole batches, from the requested offset of each partition on. The gateway has no fetch sessions, so
    each request names all partitions."""
    if request.get("session_id", NO_SESSION) != NO_SESSION:
        return {"error_code": Kafka.FETCH_SESSION_ID_NOT_FOUND, "responses": []}
    isolation = READ_COMMITTED if request["isolation_level"] == READ_COMMITTED else 0
    asked = [(t["topic"], p) for t in request["topics"] for p in t["partitions"]]
    wanted = [_partition(name, p) for name, p in asked if _is_possible(name, p["partition"])]
    results: dict[tuple[str, int], FetchResult] = {}
    payloads: dict[tuple[str, int], memoryview] = {}
    throttle_ms = 0
    if wanted:
        limit = min(max(request["max_bytes"], 0), session.gateway.limits.fetch_bytes)
        message = FetchRequest(
            min(max(request["max_wait_ms"], 0), WAIT_MS_MAX),
            min(max(request["min_bytes"], 0), limit),
            max(limit, 1),
            isolation,
            wanted[:PARTITIONS_PER_REQUEST_MAX],
            request.get("rack_id") or "",
        )
        broker = await session.broker()
        try:
            answer, payload = await broker.request(Api.FETCH, message, FetchResponse)
        except SparklogError as e:
            return _failed(request, code_of(e, of_partition=True))
        throttle_ms = answer.throttle_ms
        for result, part in _cut(answer, payload):
            results[result.topic, result.partition] = result
            payloads[result.topic, result.partition] = part
    left_out = {(p.topic, p.partition) for p in wanted[PARTITIONS_PER_REQUEST_MAX:]}
    found = []
    for topic in request["topics"]:
        partitions = []
        for p in topic["partitions"]:
            key = topic["topic"], p["partition"]
            if key in left_out:
                partitions.append(_error(p["partition"], Kafka.INVALID_REQUEST))
                continue
            partitions.append(
                await _answer(
                    session, p["partition"], results.get(key), payloads.get(key), isolation=isolation, version=version
                )
            )
        found.append({"topic": topic["topic"], "partitions": partitions})
    return {"throttle_time_ms": throttle_ms, "error_code": Kafka.NONE, "session_id": NO_SESSION, "responses": found}


def _is_possible(name: str, partition: int) -> bool:
    return 0 < len(name) <= TOPIC_NAME_CHARS_MAX and 0 <= partition < PARTITIONS_PER_TOPIC_MAX


def _partition(name: str, asked: Body) -> FetchPartition:
    return FetchPartition(
        name,
        asked["partition"],
        asked["fetch_offset"],
        max(asked["partition_max_bytes"], 0),
        asked.get("current_leader_epoch", -1),
    )


def _cut(answer: FetchResponse, payload: memoryview) -> Iterator[tuple[FetchResult, memoryview]]:
    position = 0
    for result in answer.results:
        yield result, payload[position : position + result.length_bytes]
        position += result.length_bytes


def _failed(request: Body, code: Kafka) -> Body:
    return {
        "error_code": Kafka.NONE,
        "session_id": NO_SESSION,
        "responses": [
            {"topic": t["topic"], "partitions": [_error(p["partition"], code) for p in t["partitions"]]}
            for t in request["topics"]
        ],
    }


def _error(partition: int, code: Kafka) -> Body:
    return {
        "partition_index": partition,
        "error_code": code,
        "high_watermark": -1,
        "last_stable_offset": -1,
        "log_start_offset": -1,
        "aborted_transactions": None,
        "records": (),
    }


async def _answer(
    session: Session,
    partition: int,
    result: FetchResult | None,
    payload: memoryview | None,
    *,
    isolation: int,
    version: int,
) -> Body:
    if result is None or payload is None:
        return _error(partition, Kafka.UNKNOWN_TOPIC_OR_PARTITION)
    code = kafka_code(result.error_code, of_partition=True)
    found = _error(partition, code) | {
        "high_watermark": result.high_watermark,
        "last_stable_offset": result.last_stable_offset,
        "log_start_offset": result.log_start_offset,
        "preferred_read_replica": result.preferred_replica,
    }
    if result.leader_id >= 0 and code:
        found["current_leader"] = {"leader_id": result.leader_id, "leader_epoch": result.leader_epoch}
    if isolation == READ_COMMITTED:
        found["aborted_transactions"] = [
            {"producer_id": a.producer_id, "first_offset": a.first_offset} for a in result.aborted
        ]
    if len(payload):
        try:
            codecs = (LZ4, ZSTD) if version >= ZSTD_FROM else (LZ4,)
            found["records"] = await _records(session, result.topic, payload, codecs)
        except CorruptBatchError:
            session.gateway.topics.forget(result.topic)  # it may have been deleted and created with other columns
            return found | {"error_code": Kafka.CORRUPT_MESSAGE}
        except SparklogError as e:
            return found | {"error_code": code_of(e, of_partition=True)}
    return found


async def _records(session: Session, name: str, payload: memoryview, codecs: tuple[int, ...]) -> list[Part]:
    topics = session.gateway.topics
    broker = await session.broker()
    topic = await topics.get(broker, name)
    try:
        return await _converted(session, topic, payload, codecs)
    except UnknownSchemaError:  # the topic has a newer schema
        return await _converted(session, await topics.look_up(broker, name), payload, codecs)


async def _converted(session: Session, topic: TopicInfo, payload: memoryview, codecs: tuple[int, ...]) -> list[Part]:
    convert = partial(client_batches, payload, topic.schema_of, _rows_of(topic), codecs)
    if len(payload) <= INLINE_BYTES:
        return convert()
    return await asyncio.get_running_loop().run_in_executor(session.gateway.threads, convert)


def _rows_of(topic: TopicInfo) -> Rows:
    return as_they_are if topic.is_envelope else TypedRows(topic)
