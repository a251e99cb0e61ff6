"""The API FETCH."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import (
    CorruptBatchError,
    MessageTooLargeError,
    SchemaMismatchError,
    SparklogError,
    UnknownSchemaError,
)
from sparklog.gateway.backend.fetch_sessions import EPOCH_FIRST, EPOCH_NONE, NO_SESSION, session_fault
from sparklog.gateway.handlers.cluster import node_endpoints
from sparklog.gateway.handlers.entries import share_turns
from sparklog.gateway.handlers.names import UNNAMED, is_partition, missing_code
from sparklog.gateway.handlers.newer_schemas import topics_with_newer_schemas
from sparklog.gateway.handlers.topic_ids import id_text, name_topics
from sparklog.gateway.memory import ENTRY_BYTES
from sparklog.gateway.records.memory import convert_within
from sparklog.gateway.records.to_client import Part, Rows, as_they_are, client_batches
from sparklog.gateway.records.typed import TypedRows, is_framed
from sparklog.gateway.session import INLINE_ENTRIES, Session
from sparklog.kafka.records.compression import codec_of_topic
from sparklog.kafka.records.errors import UnsupportedCodecError, without_frames
from sparklog.kafka.values.schemas import Schemas, SchemasNotLoadedError
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.errors import Kafka, code_of, kafka_code
from sparklog.protocol.apis import Api
from sparklog.protocol.base import PARTITIONS_PER_REQUEST_MAX
from sparklog.protocol.messages import FetchPartition, FetchRequest, FetchResponse, FetchResult
from sparklog.protocol.topic_messages import BrokerEndpoint
from sparklog.settings import MIB
from sparklog.types import READ_COMMITTED

WAIT_MS_MAX = 10_000
"""Longest wait for records in ms. It is shorter than CLAIM_SESSION_S, because a waiting fetch delays the requests by
which a gateway keeps its claim."""
LONG_PARTITIONS, LONG_WAIT_MS_MAX = 1_000, 1_000
"""A fetch of more partitions than the first number waits at most for the second in ms, because its lists hold memory
that other fetches wait for."""
INLINE_BYTES = 64 * 1024
"""Largest payload in bytes of an answer that is converted on the event loop; larger ones are converted on a thread."""
INLINE_CONVERSION_BYTES = 4 * MIB
"""Largest memory in bytes for the conversion of an answer's batches on the event loop."""
ZSTD_FROM = 10
"""First version of FETCH whose clients understand zstd."""

LOADS_MAX = 3
"""Largest number of times that an answer is converted again after missing schemas were loaded."""

_Partition = tuple[str, int]


class _Fetched(NamedTuple):
    """The batches of some partitions, for one client."""

    payloads: dict[_Partition, memoryview]
    starts: dict[_Partition, int]
    """Offsets from which the client reads."""
    has_zstd: bool


_Converted = list[Part] | SparklogError
"""The batches of one partition in Kafka's format, or the error that becomes the partition's result."""


async def fetch(session: Session, request: requests.Fetch, version: int) -> responses.Fetch:
    """Answer with whole batches, from the requested offset of each partition on. In a fetch session, the answer has the
    partitions with news, of all partitions of the session."""
    epoch = request.get("session_epoch", EPOCH_NONE)
    if request.get("session_id", NO_SESSION) == NO_SESSION and epoch == EPOCH_NONE:
        return await _fetch(session, request, version)
    sessions = session.gateway.fetch_sessions
    if epoch in (EPOCH_NONE, EPOCH_FIRST):
        sessions.end(session.fetch_session)
        session.fetch_session = sessions.begin(request) if epoch == EPOCH_FIRST else None
        answer = await _fetch(session, request, version)
        if session.fetch_session is not None:
            session.fetch_session.take_news(answer, is_first=True)
        return answer
    fault = session_fault(session.fetch_session, request)
    cached = session.fetch_session
    if cached is None or fault is not None:
        return {"error_code": fault or Kafka.FETCH_SESSION_ID_NOT_FOUND, "responses": []}
    is_short = _entries(request) <= INLINE_ENTRIES
    cached.update(request)
    if not sessions.count(cached):
        session.fetch_session = None
        return {"error_code": Kafka.FETCH_SESSION_ID_NOT_FOUND, "responses": []}
    request["topics"] = cached.topics()
    # a long request already holds memory of this share, and must not wait for it
    size = len(cached) * ENTRY_BYTES if is_short and len(cached) > INLINE_ENTRIES else 0
    async with session.gateway.memory.lists.held(object(), size):
        answer = await _fetch(session, request, version)
        cached.take_news(answer, is_first=False)
    return answer


def _entries(request: requests.Fetch) -> int:
    """Return the number of entries in the lists of a request."""
    topics = [*request["topics"], *request.get("forgotten_topics_data", ())]
    return len(topics) + sum(len(t["partitions"]) for t in topics)


async def _fetch(session: Session, request: requests.Fetch, version: int) -> responses.Fetch:
    """Answer for the partitions of the request."""
    isolation = READ_COMMITTED if request["isolation_level"] == READ_COMMITTED else 0
    try:
        await name_topics(session, request["topics"], "topic")
    except SparklogError as e:
        return _failed(request, code_of(e, of_partition=True))
    partitions = [
        _partition(t, p) for t in request["topics"] for p in t["partitions"] if is_partition(t["topic"], p["partition"])
    ]
    results: dict[tuple[str, int], FetchResult] = {}
    payloads: dict[tuple[str, int], memoryview] = {}
    throttle_ms = 0
    brokers: list[BrokerEndpoint] = []
    if partitions:
        limit = min(max(request["max_bytes"], 0), session.answer_bytes_max)
        wait_ms_max = WAIT_MS_MAX if len(partitions) <= LONG_PARTITIONS else LONG_WAIT_MS_MAX
        message = FetchRequest(
            min(max(request["max_wait_ms"], 0), wait_ms_max),
            min(max(request["min_bytes"], 0), limit),
            max(limit, 1),
            isolation,
            partitions[:PARTITIONS_PER_REQUEST_MAX],
            request.get("rack_id") or "",
        )
        broker = await session.broker()
        try:
            answer, payload = await broker.request(Api.FETCH, message, FetchResponse)
        except SparklogError as e:
            return _failed(request, code_of(e, of_partition=True))
        await share_turns(session, len(partitions))
        throttle_ms, brokers = answer.throttle_ms, answer.brokers
        for result, part in _cut(answer, payload):
            results[result.topic, result.partition] = result
            payloads[result.topic, result.partition] = part
        try:
            await session.read_epochs.refuse_gone(broker, message.partitions, results, payloads)
        except SparklogError as e:
            return _failed(request, code_of(e, of_partition=True))
    starts = {(p.topic, p.partition): p.fetch_offset for p in partitions}
    converted = await _convert(session, payloads, starts, has_zstd=version >= ZSTD_FROM)
    postponed = {(p.topic, p.partition) for p in partitions[PARTITIONS_PER_REQUEST_MAX:]}

    def outcome(topic: requests.FetchTopic, partition: int) -> responses.FetchResponsePartition:
        key = topic["topic"], partition
        if key in postponed:
            return _error(partition, Kafka.INVALID_REQUEST)
        if key not in results:
            return _error(partition, missing_code(topic["topic"], topic.get("topic_id")))
        return _answer(session, partition, results[key], converted.get(key, []), isolation=isolation)

    topics: list[responses.FetchResponse] = []
    for t in request["topics"]:
        outcomes = await session.gateway.time_slices.list_of(outcome(t, p["partition"]) for p in t["partitions"])
        topics.append(_topic(t, outcomes))
    return {
        "throttle_time_ms": throttle_ms,
        "error_code": Kafka.NONE,
        "session_id": NO_SESSION,
        "responses": topics,
        "node_endpoints": node_endpoints(session, brokers) if brokers else [],
    }


def _partition(topic: requests.FetchTopic, requested: requests.FetchTopicPartition) -> FetchPartition:
    return FetchPartition(
        topic["topic"],
        requested["partition"],
        requested["fetch_offset"],
        max(requested["partition_max_bytes"], 0),
        requested.get("current_leader_epoch", -1),
        topic_id=id_text(topic.get("topic_id")),
    )


def _topic(
    requested: requests.FetchTopic, partitions: list[responses.FetchResponsePartition]
) -> responses.FetchResponse:
    name, topic_id = requested.get("topic", UNNAMED), requested.get("topic_id")
    return {"topic": name, "topic_id": topic_id, "partitions": partitions}


def _cut(answer: FetchResponse, payload: memoryview) -> Iterator[tuple[FetchResult, memoryview]]:
    position = 0
    for result in answer.results:
        yield result, payload[position : position + result.length_bytes]
        position += result.length_bytes


def _failed(request: requests.Fetch, code: Kafka) -> responses.Fetch:
    return {
        "error_code": Kafka.NONE,
        "session_id": NO_SESSION,
        "responses": [_topic(t, [_error(p["partition"], code) for p in t["partitions"]]) for t in request["topics"]],
    }


def _error(partition: int, code: Kafka) -> responses.FetchResponsePartition:
    return {
        "partition_index": partition,
        "error_code": code,
        "high_watermark": -1,
        "last_stable_offset": -1,
        "log_start_offset": -1,
        "aborted_transactions": None,
        "records": (),
    }


def _answer(
    session: Session, partition: int, result: FetchResult, converted: _Converted, *, isolation: int
) -> responses.FetchResponsePartition:
    code = kafka_code(result.error_code, of_partition=True)
    outcome = _error(partition, code) | {
        "high_watermark": result.high_watermark,
        "last_stable_offset": result.last_stable_offset,
        "log_start_offset": result.log_start_offset,
        "preferred_read_replica": result.preferred_replica,
    }
    if result.leader_id >= 0 and code:
        outcome["current_leader"] = {"leader_id": result.leader_id, "leader_epoch": result.leader_epoch}
    if isolation == READ_COMMITTED:
        outcome["aborted_transactions"] = [
            {"producer_id": a.producer_id, "first_offset": a.first_offset} for a in result.aborted
        ]
    if isinstance(converted, CorruptBatchError):
        session.gateway.topics.doubt(result.topic)  # it may have been deleted and created with other columns
        return outcome | {"error_code": Kafka.CORRUPT_MESSAGE}
    if isinstance(converted, UnsupportedCodecError):
        return outcome | {"error_code": Kafka.UNSUPPORTED_COMPRESSION_TYPE}
    if isinstance(converted, SparklogError):
        if not converted.retriable:  # the answer has no place for the reason
            client = f"{session.peer_host}, client id {session.client_id!r}"
            session.gateway.refusals.note_fetch(client, f"{result.topic}-{partition}", str(converted))
        return outcome | {"error_code": code_of(converted, of_partition=True)}
    return outcome | {"records": converted} if converted else outcome


async def _convert(
    session: Session, payloads: dict[_Partition, memoryview], starts: dict[_Partition, int], *, has_zstd: bool
) -> dict[_Partition, _Converted]:
    """Convert the batches of all partitions, which the client reads from the offsets `starts` on. Beyond the limit of
    an answer, a partition has no batches: the client fetches them next. The session holds the size of the batches until
    the answer is sent."""
    topics = session.gateway.topics
    remaining = [key for key, payload in payloads.items() if len(payload)]
    converted: dict[_Partition, _Converted] = {}
    if not remaining:
        return converted
    broker = await session.broker()
    for look_up in (topics.get, topics.renewed):
        states: dict[str, TopicInfo | SparklogError] = {}
        described: dict[_Partition, TopicInfo] = {}
        for key in remaining:
            converted.pop(key, None)
            name = key[0]
            if name not in states:
                try:
                    states[name] = await look_up(broker, name)
                except SparklogError as e:
                    states[name] = without_frames(e)
            state = states[name]
            if isinstance(state, SparklogError):
                converted[key] = state
            else:
                described[key] = state
        if described:
            await _convert_loaded(session, described, _Fetched(payloads, starts, has_zstd), converted)
        remaining = [
            key for key in described if isinstance(converted.get(key), UnknownSchemaError)
        ]  # they have newer schemas
        if not remaining:
            break
    return converted


async def _convert_loaded(
    session: Session,
    topics: dict[_Partition, TopicInfo],
    fetched: _Fetched,
    outcomes: dict[_Partition, _Converted],
) -> None:
    """Convert the batches of `topics` into `outcomes`. Batches that the newest schema of their subject does not allow
    are converted again if the subject has a newer one."""
    await _convert_with_schemas(session, topics, fetched, outcomes)
    refused = {key: topics[key] for key, one in outcomes.items() if isinstance(one, SchemaMismatchError)}
    newer = await topics_with_newer_schemas(session, {topic.name: topic for topic in refused.values()})
    again = {key: topic for key, topic in refused.items() if topic.name in newer}
    if again:
        for key in again:
            del outcomes[key]
        await _convert_with_schemas(session, again, fetched, outcomes)


async def _convert_with_schemas(
    session: Session,
    topics: dict[_Partition, TopicInfo],
    fetched: _Fetched,
    outcomes: dict[_Partition, _Converted],
) -> None:
    """Convert the batches of `topics` into `outcomes`, and load the schemas that they need."""
    schemas = session.gateway.schemas.of_request()
    await _convert_described(session, topics, fetched, schemas, outcomes)
    for _ in range(LOADS_MAX):
        missing = {key: one for key, one in outcomes.items() if isinstance(one, SchemasNotLoadedError)}
        if not missing:
            return
        try:
            await schemas.load(await session.broker(), SchemasNotLoadedError.of(missing.values()))
        except SparklogError as e:
            outcomes |= dict.fromkeys(missing, without_frames(e))
            return
        for key in missing:
            del outcomes[key]
        some = {key: topics[key] for key in missing}
        await _convert_described(session, some, fetched, schemas, outcomes)


async def _convert_described(
    session: Session,
    topics: dict[_Partition, TopicInfo],
    fetched: _Fetched,
    schemas: Schemas,
    outcomes: dict[_Partition, _Converted],
) -> None:
    """Convert the batches of `topics` into `outcomes`. Waits for no answer of the broker."""
    conversions = session.gateway.conversions
    payload_bytes = sum(len(fetched.payloads[key]) for key in topics)
    limit = min(max(session.answer_bytes_max, payload_bytes), session.gateway.limits.fetch_bytes)
    room = limit - _size(outcomes)
    if payload_bytes <= INLINE_BYTES and not any(map(is_framed, topics.values())):
        converted = _convert_inline(topics, schemas, fetched)
        if converted is not None:
            outcomes |= converted
            return
    await session.hold_answer(limit)
    async with conversions.turn():
        converted = {}
        for key, topic in topics.items():
            if room <= 0:
                break
            convert = partial(
                client_batches, fetched.payloads[key], topic.schema_of, _rows_of(topic, schemas), bytes_max=room,
                codec=codec_of_topic(topic.compression_type), has_zstd=fetched.has_zstd,
                start_offset=fetched.starts[key], within=partial(convert_within, conversions.inflated),
            )  # fmt: skip
            try:
                parts = await conversions.run(convert)
            except SparklogError as e:
                converted[key] = without_frames(e)
            else:
                converted[key] = parts
                room -= sum(map(len, parts))
        outcomes |= converted


def _convert_inline(
    topics: dict[_Partition, TopicInfo], schemas: Schemas, fetched: _Fetched
) -> dict[_Partition, _Converted] | None:
    """Convert a small answer on the event loop. Returns None for an answer that is large after decompression."""
    outcomes: dict[_Partition, _Converted] = {}
    room = INLINE_CONVERSION_BYTES

    def inline(size_bytes: int, convert: Callable[[], list[Part]]) -> list[Part]:
        nonlocal room
        room -= size_bytes
        if room < 0:
            raise MessageTooLargeError("the answer is not converted on the event loop")
        return convert()

    for key, topic in topics.items():
        try:
            outcomes[key] = client_batches(
                fetched.payloads[key], topic.schema_of, _rows_of(topic, schemas), within=inline,
                codec=codec_of_topic(topic.compression_type), has_zstd=fetched.has_zstd,
                start_offset=fetched.starts[key],
            )  # fmt: skip
        except MessageTooLargeError:
            return None
        except SparklogError as e:
            outcomes[key] = without_frames(e)
    return outcomes


def _size(converted: dict[_Partition, _Converted]) -> int:
    return sum(len(part) for one in converted.values() if isinstance(one, list) for part in one)


def _rows_of(topic: TopicInfo, schemas: Schemas) -> Rows:
    return as_they_are if topic.is_envelope else TypedRows(topic, schemas)
