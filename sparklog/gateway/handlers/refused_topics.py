"""The refused records of a PRODUCE request, stored in the refused topics of their topics (`kafka.refused.records`).

A refused topic is created before the first batch is sent to the broker, so that a topic that cannot have one refuses
the client's batch as a whole. Refused records are stored after their batch, which decides their offsets, and before
the client's answer. If this fails, the client gets a retriable error. It sends the batch again, which the broker
recognises by its sequence numbers, and the refused records are stored then, possibly for the second time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from msgspec import structs

from sparklog.errors import LeaderNotAvailableError, SparklogError
from sparklog.gateway.backend.connection import BrokerConnection
from sparklog.gateway.handlers.produced import Converted, ProducedPartition, refused_bytes
from sparklog.gateway.records.refused import RefusedPlace, RefusedRecords, refused_topic_batches
from sparklog.gateway.session import Session
from sparklog.kafka.records.errors import InvalidRecordError, without_frames
from sparklog.metadata.refused_topics import refused_topic
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import ProduceResult
from sparklog.protocol.refused_messages import StoreRefusedRequest, StoreRefusedResponse

STORED_AT_ONCE = 16
"""Largest number of partitions of a request whose refused records are stored at once."""


class RefusedPart(NamedTuple):
    """The refused records of one partition of a request."""

    topic: str
    partition: int
    form: StoreRefusedResponse
    """Form of the refused topic's batches."""
    batches: list[tuple[int, RefusedRecords | None]]
    """For each of the partition's batches, the number of its offsets and its refused records."""

    @property
    def records(self) -> list[RefusedRecords]:
        return [refused for _, refused in self.batches if refused is not None]


async def refused_parts(
    broker: BrokerConnection, partitions: Sequence[ProducedPartition], converted: list[Converted]
) -> list[RefusedPart]:
    """Return the partitions with refused records, after their refused topics were created if necessary. If one cannot
    be created, the error becomes the partition's outcome in `converted`."""
    forms: dict[str, StoreRefusedResponse | SparklogError] = {}
    parts = []
    for i, (one, batches) in enumerate(zip(partitions, converted, strict=True)):
        if isinstance(batches, SparklogError) or not refused_bytes([batches]):
            continue
        name = one.topic.name
        if name not in forms:
            try:
                request = StoreRefusedRequest(name, one.partition)
                forms[name] = await broker.ask(Api.STORE_REFUSED, request, StoreRefusedResponse)
            except SparklogError as e:
                forms[name] = without_frames(e)
        form = forms[name]
        if isinstance(form, SparklogError):
            records = [b.refused for b in batches if b.refused is not None]
            converted[i] = form if form.retriable else _refusal(name, records, form)
        else:
            parts.append(RefusedPart(name, one.partition, form, [(b.offsets, b.refused) for b in batches]))
    return parts


def _refusal(topic: str, records: Sequence[RefusedRecords], error: SparklogError) -> InvalidRecordError:
    """Return the error of records that a topic refuses, and that cannot go to its refused topic."""
    count = sum(len(one.reasons) for one in records)
    reason = records[0].reasons[0]
    return InvalidRecordError(
        {0: f"{reason} ({count} records do not fit); they cannot go to {refused_topic(topic)!r}: {error}"}
    )


async def store_refused(
    session: Session,
    broker: BrokerConnection,
    parts: Sequence[RefusedPart],
    results: Mapping[tuple[str, int], ProduceResult],
) -> dict[tuple[str, int], ProduceResult]:
    """Store the refused records of the partitions whose batches are stored, several partitions at once. Returns
    `results`, with the errors of partitions whose refused records could not be stored."""
    outcomes = dict(results)
    turns = asyncio.Semaphore(STORED_AT_ONCE)

    async def store(part: RefusedPart, result: ProduceResult) -> None:
        try:
            async with turns:
                await _store(session, broker, part, result)
            _note(session, part)
        except SparklogError as e:
            error = e if e.retriable else LeaderNotAvailableError(f"{refused_topic(part.topic)!r}: {e}")
            outcomes[part.topic, part.partition] = structs.replace(
                result, error_code=error.code, base_offset=-1, message=f"{without_frames(error)}"
            )

    async with asyncio.TaskGroup() as group:
        for part in parts:
            result = results.get((part.topic, part.partition))
            if result is not None and not result.error_code:
                group.create_task(store(part, result))
    return outcomes


async def _store(session: Session, broker: BrokerConnection, part: RefusedPart, result: ProduceResult) -> None:
    """Store the refused records of one partition. Raises the errors of STORE_REFUSED."""
    base = result.base_offset
    for i, (offsets, refused) in enumerate(part.batches):
        if result.base_offsets:
            base = result.base_offsets[i]
        if refused is not None:
            place = RefusedPlace(
                part.partition,
                base,
                session.client_id,
                part.form.schema_id,
                part.form.has_append_time,
                time.time_ns() // 1_000_000,
            )
            for batch in refused_topic_batches(refused, place):
                request = StoreRefusedRequest(part.topic, part.partition, batch)
                await broker.ask(Api.STORE_REFUSED, request, StoreRefusedResponse)
        base += offsets


def _note(session: Session, part: RefusedPart) -> None:
    """Log and count the refused records of a partition."""
    session.gateway.refusals.note_records(
        f"{session.peer_host}, client id {session.client_id!r}",
        f"{part.topic}-{part.partition}",
        sum(len(one.reasons) for one in part.records),
        part.records[0].reasons[0],
    )
