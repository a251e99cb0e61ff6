"""The APIs PRODUCE and INIT_PRODUCER_ID."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import NamedTuple

from sparklog.client.net.topic_info import TopicInfo
from sparklog.environment.time_slices import ITEMS_PER_LOOK
from sparklog.errors import (
    CorruptBatchError,
    InvalidRequestError,
    InvalidTopicError,
    MessageTooLargeError,
    SchemaMismatchError,
    SparklogError,
    TransactionAbortedError,
    UnknownSchemaError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from sparklog.gateway.backend.key_schemas import set_key_schema
from sparklog.gateway.handlers.cluster import node_endpoints
from sparklog.gateway.handlers.entries import share_turns
from sparklog.gateway.handlers.names import UNNAMED, is_partition, is_topic_name, is_transactional_id
from sparklog.gateway.handlers.newer_schemas import topics_with_newer_schemas
from sparklog.gateway.handlers.topic_ids import id_text, name_topics
from sparklog.gateway.handlers.transactions import aborted_code, fenced_code
from sparklog.gateway.records.memory import convert_within, produced_bytes
from sparklog.gateway.records.to_broker import broker_batch
from sparklog.gateway.records.typed import is_framed, typed_batch
from sparklog.gateway.session import ConnectionEndError, Session
from sparklog.kafka.records.batch_v2 import BatchV2, iterate_batches
from sparklog.kafka.records.compression import NONE, ZSTD, too_large
from sparklog.kafka.records.errors import (
    InvalidRecordError,
    MalformedBatchError,
    UnsupportedCodecError,
    without_frames,
)
from sparklog.kafka.values.schemas import (
    KeySchemaMissingError,
    Schemas,
    SchemasNotLoadedError,
    key_subject,
)
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.errors import Kafka, code_of, coordinator_code, kafka_code, text_of
from sparklog.log.model.inflated_memory import InflatedMemory
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import ProducePartition, ProduceRequest, ProduceResponse, ProduceResult
from sparklog.protocol.transaction_messages import InitProducerIdRequest, InitProducerIdResponse
from sparklog.types import INTERNAL_TOPICS, check_topic_name

ACKS = (-1, 0, 1)
INLINE_BYTES = 64 * 1024
"""Largest size in bytes of the records of a request, and of a decompressed batch, that are converted on the event
loop."""
INLINE_COMPRESSED_BYTES = 1024
"""Largest size in bytes of a request's compressed batches that are converted on the event loop. The limit is lower than
INLINE_BYTES, because the records can be much larger than the batch."""
ZSTD_FROM = 7
"""First version of PRODUCE that has zstd."""
TIMEOUT_MS_MAX = 86_400_000
LOADS_MAX = 5
"""Largest number of times that a request is converted again after missing schemas were loaded."""


class _RequestedPartition(NamedTuple):
    """One partition of a request. `error`: the reason why the gateway does not send it to the broker; None: it does."""

    topic: str
    partition: int
    error: SparklogError | None


class _Partition(NamedTuple):
    """One partition of a request, before the conversion."""

    topic: TopicInfo
    partition: int
    records: memoryview
    has_zstd: bool
    """True if the request's version of the API has zstd."""
    topic_id: str
    """The topic's id in the request; "": the request has its name."""

    def batches(self) -> Iterator[tuple[BatchV2, memoryview]]:
        """Yield the head and the records of each batch. Raises as `iterate_batches`, and UnsupportedCodecError."""
        for head, data in iterate_batches(self.records):
            if head.codec == ZSTD and not self.has_zstd:
                raise UnsupportedCodecError(f"PRODUCE has zstd from version {ZSTD_FROM} on: use a newer client or lz4")
            yield head, data


_BY_TOPIC = (InvalidRecordError, MessageTooLargeError)
"""Refusals by the gateway that depend on the topic's schema or settings."""
_Converted = list[memoryview] | SparklogError
"""The batches of one partition in the broker's format, or the error that becomes the partition's result."""


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
        requested: list[_RequestedPartition] = []
        described: list[_Partition] = []
        refused = await session.write_permissions.refusals(
            broker, (t["name"] for t in request["topic_data"] if is_topic_name(t["name"]))
        )
        time_slices = session.gateway.time_slices
        for topic in request["topic_data"]:
            for i, partition in enumerate(topic["partition_data"], 1):
                if i % ITEMS_PER_LOOK == 0 and time_slices.due():
                    await time_slices.pause()
                where = topic["name"], partition["index"]
                if where[0] in refused:  # before its records are looked at
                    requested.append(_RequestedPartition(*where, refused[where[0]]))
                    continue
                try:
                    described.append(await _look_up(session, topic, partition, has_zstd=version >= ZSTD_FROM))
                except SparklogError as e:
                    requested.append(_RequestedPartition(*where, without_frames(e)))
        await share_turns(session, len(described))
        converted = await _convert(session, described)
        size = _size(converted)
        try:
            sent, payload = _settle(described, converted, requested)
            converted.clear()
            if acks == 0 and len(sent) < len(requested):
                _note_refusals(session, requested)
                raise ConnectionEndError(str(next(one.error for one in requested if one.error is not None)))
            message = ProduceRequest(
                acks, min(max(request["timeout_ms"], 0), TIMEOUT_MS_MAX), sent, request["transactional_id"]
            )
            answer = None
            if sent and acks == 0:
                broker.send_unanswered(Api.PRODUCE, message, payload)
            elif sent:
                answer = broker.send(Api.PRODUCE, message, ProduceResponse, payload)
            payload.clear()  # the transport has copied the bytes that the broker has not taken
            await broker.drain()
        finally:
            session.gateway.conversions.converted.release(session, size)
    if acks == 0:
        return None
    results: dict[tuple[str, int], ProduceResult] = {}
    response = None
    if answer is not None:
        try:
            response, _ = await answer
        except SparklogError as e:
            without_frames(e)
            requested = [one if one.error is not None else one._replace(error=e) for one in requested]
        else:
            await share_turns(session, len(sent))
            results = {(r.topic, r.partition): r for r in response.results}
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


async def _look_up(
    session: Session,
    topic: requests.ProduceTopicData,
    requested: requests.ProduceTopicDataPartitionData,
    *,
    has_zstd: bool,
) -> _Partition:
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
    return _Partition(info, partition, records, has_zstd, id_text(topic_id))


async def _convert(session: Session, partitions: list[_Partition]) -> list[_Converted]:
    """Convert the records of all partitions. A partition whose topic has changed since the gateway looked is converted
    again before it is refused. The caller releases `_size` of the result in `Conversions.converted`."""
    outcomes = await _convert_loaded(session, partitions)
    refused = [i for i, one in enumerate(outcomes) if isinstance(one, _BY_TOPIC)]
    if not refused:
        return outcomes
    changed = await _changed(session, {partitions[i].topic.name: partitions[i].topic for i in refused})
    schemas_changed = await topics_with_newer_schemas(
        session, {partitions[i].topic.name: partitions[i].topic for i in refused}
    )
    again = [i for i in refused if partitions[i].topic.name in changed or partitions[i].topic.name in schemas_changed]
    for i in again:
        partitions[i] = partitions[i]._replace(topic=changed.get(partitions[i].topic.name, partitions[i].topic))
    if again:
        for i, one in zip(again, await _convert_loaded(session, [partitions[i] for i in again]), strict=True):
            outcomes[i] = one
    return outcomes


async def _convert_loaded(session: Session, partitions: list[_Partition]) -> list[_Converted]:
    """Convert the records of all partitions, and load the schemas that they need. A topic whose key schema is set
    meanwhile replaces that of its partitions."""
    outcomes = await _convert_once(session, partitions)
    for _ in range(LOADS_MAX):
        await _set_key_schemas(session, partitions, outcomes)
        missing = {i: one for i, one in enumerate(outcomes) if isinstance(one, SchemasNotLoadedError)}
        if not missing:
            break
        if any(one.ids or one.subjects or one.guids for one in missing.values()):
            try:
                await session.gateway.schemas.load(await session.broker(), SchemasNotLoadedError.of(missing.values()))
            except SparklogError as e:
                outcomes = [without_frames(e) if i in missing else one for i, one in enumerate(outcomes)]
                break
        converted = await _convert_once(session, [partitions[i] for i in missing])
        for i, one in zip(missing, converted, strict=True):
            outcomes[i] = one
    return outcomes


async def _set_key_schemas(session: Session, partitions: list[_Partition], outcomes: list[_Converted]) -> None:
    """Set the key schemas of topics without one to the newest of their subjects. Their partitions get the topic and an
    outcome by which they are converted again, or the error."""
    results: dict[str, TopicInfo | SparklogError] = {}
    for i, one in enumerate(outcomes):
        if not isinstance(one, KeySchemaMissingError):
            continue
        if one.topic not in results:
            try:
                results[one.topic] = await _with_key_schema(session, partitions[i].topic)
            except SparklogError as e:
                results[one.topic] = without_frames(e)
        result = results[one.topic]
        if isinstance(result, SparklogError):
            outcomes[i] = result
        else:
            partitions[i] = partitions[i]._replace(topic=result)
            outcomes[i] = SchemasNotLoadedError()


async def _with_key_schema(session: Session, topic: TopicInfo) -> TopicInfo:
    """Set the key schema of a topic. Raises InvalidRecordError: The registry has none that fits; and the errors of the
    registry and the broker."""
    broker, schemas, subject = await session.broker(), session.gateway.schemas, key_subject(topic.name)
    await schemas.load(broker, SchemasNotLoadedError(subjects=[subject]))
    newest = schemas.newest(subject)
    if newest is None:
        raise InvalidRecordError({0: f"{KeySchemaMissingError(topic.name)}"})
    try:
        return await set_key_schema(broker, session.gateway.topics, topic, *newest)
    except SchemaMismatchError as e:
        raise InvalidRecordError(
            {0: f"the newest schema of {subject!r} cannot be the topic's key schema: {e}"}
        ) from None


async def _changed(session: Session, topics: Mapping[str, TopicInfo]) -> dict[str, TopicInfo]:
    """Ask the broker for topics, and return those that have changed, in their present state. A topic that cannot be
    looked up counts as unchanged, so that its refusal stands."""
    changed = {}
    for name, topic in topics.items():
        try:
            fresh = await session.gateway.topics.renewed(await session.broker(), name, to_write=True)
        except SparklogError:
            continue
        if not fresh.is_converted_as(topic):
            changed[name] = fresh
    return changed


async def _convert_once(session: Session, partitions: Sequence[_Partition]) -> list[_Converted]:
    """Convert the records of all partitions by the topics that the gateway knows."""
    conversions = session.gateway.conversions
    outcomes = _convert_inline(partitions, session.gateway.schemas)
    if outcomes is not None:
        conversions.converted.take(_size(outcomes))
        return outcomes
    most = session.gateway.limits.request_bytes
    await conversions.converted.acquire(session, most)
    try:
        async with conversions.turn():
            outcomes = await _convert_in_turn(session, partitions)
    except BaseException:
        conversions.converted.release(session, most)
        raise
    conversions.converted.release(session, most - _size(outcomes), is_done=False)
    return outcomes


def _convert_inline(partitions: Sequence[_Partition], schemas: Schemas) -> list[_Converted] | None:
    """Convert a small request on the event loop. Returns None for a request that is not small."""
    if sum(len(one.records) for one in partitions) > INLINE_BYTES or any(is_framed(one.topic) for one in partitions):
        return None
    outcomes: list[_Converted] = []
    compressed = 0
    for one in partitions:
        batches: list[memoryview] = []
        try:
            for head, data in one.batches():
                compressed += len(data) if head.codec else 0
                if compressed > INLINE_COMPRESSED_BYTES:
                    return None
                batches.append(_convert_batch(one, schemas, head, data, INLINE_BYTES))
        except MessageTooLargeError:
            return None
        except SparklogError as e:
            outcomes.append(without_frames(e))
            continue
        outcomes.append(batches)
    return outcomes


async def _convert_in_turn(session: Session, partitions: Sequence[_Partition]) -> list[_Converted]:
    limits, conversions, time_slices = session.gateway.limits, session.gateway.conversions, session.gateway.time_slices
    outcomes: list[_Converted] = []
    schemas = session.gateway.schemas
    remaining = limits.request_bytes
    for one in partitions:
        batches: list[memoryview] = []
        try:
            for head, data in one.batches():
                if head.codec == NONE and len(data) <= INLINE_BYTES and not is_framed(one.topic):
                    await time_slices.begin()
                    batch = _convert_batch(one, schemas, head, data, limits.inflated_bytes)
                else:
                    convert = partial(
                        _convert_batch, one, schemas, head, data, limits.inflated_bytes, conversions.inflated
                    )
                    batch = await conversions.run(convert)
                if len(batch) > remaining:
                    raise MessageTooLargeError(
                        f"the request takes more than {limits.request_bytes} bytes after its conversion: send smaller "
                        "requests"
                    )
                remaining -= len(batch)
                batches.append(batch)
        except SparklogError as e:
            remaining += sum(map(len, batches))
            outcomes.append(without_frames(e))
            continue
        outcomes.append(batches)
    return outcomes


def _convert_batch(
    one: _Partition,
    schemas: Schemas,
    head: BatchV2,
    data: memoryview,
    inflated_bytes_max: int,
    memory: InflatedMemory | None = None,
) -> memoryview:
    """Return the batch in the broker's format. The conversion holds its size in `memory`; None: the batch is small.
    Raises as `broker_batch`, but MalformedBatchError for damaged records: the checksum of the batch is right."""
    topic = one.topic
    limit = min(topic.inflated_bytes_max, inflated_bytes_max)
    if len(data) > limit:
        raise too_large(limit)
    convert: Callable[[], memoryview] = partial(broker_batch, head, data, topic, limit)
    if not topic.is_envelope:
        convert = partial(typed_batch, head, data, topic, limit, one.partition, schemas)
    try:
        if memory is None:
            payload = convert()
        else:
            payload = convert_within(memory, produced_bytes(head, len(data), topic, limit), convert)
    except CorruptBatchError as e:
        raise MalformedBatchError(str(e)) from None
    if min(head.size_bytes, len(payload)) > topic.max_message_bytes:
        raise MessageTooLargeError(
            f"a batch of {head.size_bytes} bytes; max.message.bytes of topic {topic.name!r} is "
            f"{topic.max_message_bytes}: send smaller batches or raise it"
        )
    return payload


def _size(converted: Sequence[_Converted]) -> int:
    """Return the size of all converted batches in bytes."""
    return sum(len(batch) for one in converted if isinstance(one, list) for batch in one)


def _settle(
    partitions: Sequence[_Partition], converted: Sequence[_Converted], requested: list[_RequestedPartition]
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
        sent.append(ProducePartition(*where, sum(map(len, batches)), one.topic.key_rules, one.topic_id))
        payload += batches
    return sent, payload


async def _changed_since(
    session: Session, partitions: Sequence[_Partition], results: dict[tuple[str, int], ProduceResult]
) -> set[str]:
    """Return the names of the topics that have changed since the gateway looked, if the broker has refused the form of
    their batches, such as their type of timestamps."""
    refused = {r.topic for r in results.values() if r.error_code == InvalidRequestError.code}
    if not refused:
        return set()
    return set(await _changed(session, {p.topic.name: p.topic for p in partitions if p.topic.name in refused}))


def _note_refusals(session: Session, requested: Sequence[_RequestedPartition]) -> None:
    """Log and count the partitions whose records are refused: few clients show the reason."""
    for one in requested:
        if one.error is not None and code_of(one.error) is Kafka.INVALID_RECORD:
            client = f"{session.peer_host}, client id {session.client_id!r}"
            session.gateway.refusals.record(client, f"{one.topic}-{one.partition}", str(one.error))


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
