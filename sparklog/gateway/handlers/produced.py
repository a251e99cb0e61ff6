"""The conversion of a PRODUCE request's records into batches of the broker's format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import NamedTuple

from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import CorruptBatchError, MessageTooLargeError, SchemaMismatchError, SparklogError
from sparklog.gateway.backend.key_schemas import set_key_schema
from sparklog.gateway.handlers.newer_schemas import topics_with_newer_schemas
from sparklog.gateway.records.memory import convert_within, produced_bytes
from sparklog.gateway.records.refused import ConvertedBatch
from sparklog.gateway.records.to_broker import broker_batch
from sparklog.gateway.records.typed import is_framed, typed_batch
from sparklog.gateway.schemas.loaded_schemas import RequestSchemas
from sparklog.gateway.session import Session
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
from sparklog.log.model.inflated_memory import InflatedMemory

INLINE_BYTES = 64 * 1024
"""Largest size in bytes of the records of a request, and of a decompressed batch, that are converted on the event
loop."""
INLINE_COMPRESSED_BYTES = 1024
"""Largest size in bytes of a request's compressed batches that are converted on the event loop. The limit is lower than
INLINE_BYTES, because the records can be much larger than the batch."""
ZSTD_FROM = 7
"""First version of PRODUCE that has zstd."""
LOADS_MAX = 8
"""Largest number of times that a request is converted again after missing schemas were loaded."""


class ProducedPartition(NamedTuple):
    """One partition of a request, before the conversion."""

    topic: TopicInfo
    partition: int
    records: memoryview
    has_zstd: bool
    """True if the request's version of the API has zstd."""
    topic_id: str
    """The topic's id in the request; "": the request has its name."""
    fault: str = ""
    """Reason why no record fits the topic; "": none is known."""

    def batches(self) -> Iterator[tuple[BatchV2, memoryview]]:
        """Yield the head and the records of each batch. Raises as `iterate_batches`, and UnsupportedCodecError."""
        for head, data in iterate_batches(self.records):
            if head.codec == ZSTD and not self.has_zstd:
                raise UnsupportedCodecError(f"PRODUCE has zstd from version {ZSTD_FROM} on: use a newer client or lz4")
            yield head, data


_BY_TOPIC = (InvalidRecordError, MessageTooLargeError)
"""Refusals by the gateway that depend on the topic's schema or settings."""
Converted = list[ConvertedBatch] | SparklogError
"""The batches of one partition in the broker's format, or the error that becomes the partition's result."""


async def convert(session: Session, partitions: list[ProducedPartition]) -> list[Converted]:
    """Convert the records of all partitions. A partition whose topic has changed since the gateway looked is converted
    again before a record is refused. The caller releases `size_of` of the result in `Conversions.converted`."""
    schemas = session.gateway.schemas.of_request()
    outcomes = await _convert_loaded(session, partitions, schemas)
    refused = [i for i, one in enumerate(outcomes) if isinstance(one, _BY_TOPIC) or refused_bytes([one])]
    if not refused:
        return outcomes
    topics = {partitions[i].topic.name: partitions[i].topic for i in refused}
    failed = {partitions[i].topic.name for i in refused if isinstance(outcomes[i], SparklogError)}
    changed = await changed_topics(session, topics, failed)
    schemas_changed = await topics_with_newer_schemas(session, topics)
    again = [i for i in refused if partitions[i].topic.name in changed or partitions[i].topic.name in schemas_changed]
    for i in again:
        session.gateway.conversions.converted.release(session, size_of([outcomes[i]]), is_done=False)
        partitions[i] = partitions[i]._replace(
            topic=changed.get(partitions[i].topic.name, partitions[i].topic), fault=""
        )
    if again:
        schemas = session.gateway.schemas.of_request()
        converted = await _convert_loaded(session, [partitions[i] for i in again], schemas)
        for i, one in zip(again, converted, strict=True):
            outcomes[i] = one
    return outcomes


async def _convert_loaded(
    session: Session, partitions: list[ProducedPartition], schemas: RequestSchemas
) -> list[Converted]:
    """Convert the records of all partitions, and load the schemas that they need. A topic whose key schema is set
    meanwhile replaces that of its partitions."""
    outcomes = await _convert_once(session, partitions, schemas)
    for _ in range(LOADS_MAX):
        await _set_key_schemas(session, partitions, outcomes)
        missing = {i: one for i, one in enumerate(outcomes) if isinstance(one, SchemasNotLoadedError)}
        if not missing:
            break
        if any(one.ids or one.subjects or one.guids for one in missing.values()):
            try:
                await schemas.load(await session.broker(), SchemasNotLoadedError.of(missing.values()))
            except SparklogError as e:
                outcomes = [without_frames(e) if i in missing else one for i, one in enumerate(outcomes)]
                break
        converted = await _convert_once(session, [partitions[i] for i in missing], schemas)
        for i, one in zip(missing, converted, strict=True):
            outcomes[i] = one
    return outcomes


async def _set_key_schemas(session: Session, partitions: list[ProducedPartition], outcomes: list[Converted]) -> None:
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
        if isinstance(result, InvalidRecordError) and partitions[i].topic.has_refused_topic:
            partitions[i] = partitions[i]._replace(fault=str(result))
            outcomes[i] = SchemasNotLoadedError()
        elif isinstance(result, SparklogError):
            outcomes[i] = result
        else:
            partitions[i] = partitions[i]._replace(topic=result)
            outcomes[i] = SchemasNotLoadedError()


async def _with_key_schema(session: Session, topic: TopicInfo) -> TopicInfo:
    """Set the key schema of a topic. Raises InvalidRecordError: The registry has none that fits; and the errors of the
    registry and the broker."""
    broker, schemas, subject = await session.broker(), session.gateway.schemas, key_subject(topic.name)
    await schemas.load(broker, SchemasNotLoadedError(subjects=[subject]))
    try:
        newest = schemas.newest(subject)
        if newest is None:
            raise InvalidRecordError({0: f"{KeySchemaMissingError(topic.name)}"})
        return await set_key_schema(broker, session.gateway.topics, topic, *newest)
    except InvalidRecordError:
        raise
    except SchemaMismatchError as e:
        raise InvalidRecordError(
            {0: f"the newest schema of {subject!r} cannot be the topic's key schema: {e}"}
        ) from None


async def changed_topics(session: Session, topics: Mapping[str, TopicInfo], failed: Set[str]) -> dict[str, TopicInfo]:
    """Ask the broker for topics, and return those that have changed, in their present state. A topic that cannot be
    looked up counts as unchanged, so that its refusal stands. `failed`: topics with batches that are refused; their
    look-ups have a limited rate. Records for refused topics cause more requests than the look-up."""
    changed = {}
    for name, topic in topics.items():
        try:
            broker = await session.broker()
            fresh = await session.gateway.topics.renewed(broker, name, to_write=True, waits=name in failed)
        except SparklogError:
            continue
        if not fresh.is_converted_as(topic):
            changed[name] = fresh
    return changed


async def _convert_once(session: Session, partitions: Sequence[ProducedPartition], schemas: Schemas) -> list[Converted]:
    """Convert the records of all partitions by the topics that the gateway knows."""
    conversions = session.gateway.conversions
    outcomes = _convert_inline(partitions, schemas)
    if outcomes is not None:
        conversions.converted.take(size_of(outcomes))
        return outcomes
    most = session.gateway.limits.request_bytes
    await conversions.converted.acquire(session, most)
    try:
        async with conversions.turn():
            outcomes = await _convert_in_turn(session, partitions, schemas)
    except BaseException:
        conversions.converted.release(session, most)
        raise
    conversions.converted.release(session, most - size_of(outcomes), is_done=False)
    return outcomes


def _convert_inline(partitions: Sequence[ProducedPartition], schemas: Schemas) -> list[Converted] | None:
    """Convert a small request on the event loop. Returns None for a request that is not small, or whose records can
    be refused one by one: a record is not refused because it is too large for the event loop."""
    topics = [one.topic for one in partitions]
    if any(is_framed(topic) or topic.has_refused_topic for topic in topics):
        return None
    if sum(len(one.records) for one in partitions) > INLINE_BYTES:
        return None
    outcomes: list[Converted] = []
    compressed = 0
    for one in partitions:
        batches: list[ConvertedBatch] = []
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


async def _convert_in_turn(
    session: Session, partitions: Sequence[ProducedPartition], schemas: Schemas
) -> list[Converted]:
    limits, conversions, time_slices = session.gateway.limits, session.gateway.conversions, session.gateway.time_slices
    outcomes: list[Converted] = []
    remaining = limits.request_bytes
    for one in partitions:
        batches: list[ConvertedBatch] = []
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
                if batch.size_bytes > remaining:
                    raise MessageTooLargeError(
                        f"the request takes more than {limits.request_bytes} bytes after its conversion: send smaller "
                        "requests"
                    )
                remaining -= batch.size_bytes
                batches.append(batch)
        except SparklogError as e:
            remaining += size_of([batches])
            outcomes.append(without_frames(e))
            continue
        outcomes.append(batches)
    return outcomes


def _convert_batch(
    one: ProducedPartition,
    schemas: Schemas,
    head: BatchV2,
    data: memoryview,
    inflated_bytes_max: int,
    memory: InflatedMemory | None = None,
) -> ConvertedBatch:
    """Return the batch in the broker's format. The conversion holds its size in `memory`; None: the batch is small.
    Raises as `broker_batch`, but MalformedBatchError for damaged records: the checksum of the batch is right."""
    topic = one.topic
    limit = min(topic.inflated_bytes_max, inflated_bytes_max)
    if len(data) > limit:
        raise too_large(limit)
    convert: Callable[[], ConvertedBatch] = partial(_envelope_batch, head, data, topic, limit)
    if not topic.is_envelope:
        convert = partial(typed_batch, head, data, topic, limit, one.partition, schemas, fault=one.fault)
    try:
        if memory is None:
            batch = convert()
        else:
            batch = convert_within(memory, produced_bytes(head, len(data), topic, limit), convert)
    except CorruptBatchError as e:
        raise MalformedBatchError(str(e)) from None
    size = head.size_bytes if batch.refused is not None else min(head.size_bytes, len(batch.payload))
    if size > topic.max_message_bytes:
        raise MessageTooLargeError(
            f"a batch of {head.size_bytes} bytes; max.message.bytes of topic {topic.name!r} is "
            f"{topic.max_message_bytes}: send smaller batches or raise it"
        )
    return batch


def _envelope_batch(head: BatchV2, data: memoryview, topic: TopicInfo, limit: int) -> ConvertedBatch:
    return ConvertedBatch(broker_batch(head, data, topic, limit), head.record_count)


def size_of(converted: Sequence[Converted]) -> int:
    """Return the size of all converted batches and refused records in bytes."""
    return sum(batch.size_bytes for one in converted if isinstance(one, list) for batch in one)


def refused_bytes(converted: Sequence[Converted]) -> int:
    """Return the size of the refused records in bytes; 0: there are none."""
    refused = (batch.refused for one in converted if isinstance(one, list) for batch in one)
    return sum(one.size_bytes for one in refused if one is not None)
