"""A broker in this process, and a transactional producer that speaks to its handlers without sockets."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pyarrow as pa
from sparklog_broker.broker import Broker
from sparklog_broker.config import make_config
from sparklog_broker.handlers.produce import produce
from sparklog_broker.request_context import RequestContext

from sparklog.environment import Environment
from sparklog.errors import SparklogError, TopicAlreadyExistsError, error_from_code
from sparklog.format.batch import (
    ATTRIBUTE_CONTROL,
    ATTRIBUTE_TRANSACTIONAL,
    assign_producer,
    decode_header,
    encode_batch,
    iterate_batches,
)
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.log.partition_log import PartitionLog
from sparklog.metadata.store import TopicSpec
from sparklog.protocol.messages import ProducePartition, ProduceRequest, ProduceResponse
from sparklog.types import TopicPartition
from tests.support.brokers import coordinating, started

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
FENCING_TOKENS = 12
Scenario = Callable[[Broker], Coroutine[Any, Any, None]]


def run(tmp_path: Path, *scenarios: Scenario, environment: Environment | None = None, **settings: Any) -> None:
    """Runs each scenario with a broker of its own on the same directory, where there is the topic `t` with two
    partitions, and the fencing tokens below FENCING_TOKENS are drawn."""

    async def one(scenario: Scenario) -> None:
        dotted = {name.replace("_", "."): value for name, value in settings.items()}
        config = make_config({"data.dir": str(tmp_path / "data"), **dotted})
        broker = await started(config, environment)
        try:
            await coordinating(broker)
            with contextlib.suppress(TopicAlreadyExistsError):
                await broker.topics.create(TopicSpec("t", 2))
                for _ in range(FENCING_TOKENS):
                    await broker.storage.new_producer_id()
            await asyncio.wait_for(scenario(broker), 30)
        finally:
            broker.stop_waiting()
            await broker.close()

    for scenario in scenarios:
        asyncio.run(one(scenario))


def rows(value: bytes, producer: tuple[int, int] = (-1, -1), sequence: int = -1, count: int = 1) -> bytes:
    """A batch of `count` rows, transactional if there is a producer."""
    now_ms = 1_700_000_000_000
    columns = [
        pa.nulls(count, pa.binary()),
        pa.array([value] * count, pa.binary()),
        pa.nulls(count, ENVELOPE_SCHEMA.field("headers").type),
        pa.array([now_ms * 1000] * count, ENVELOPE_SCHEMA.field("timestamp").type),
    ]
    return bytes(
        encode_batch(
            pa.record_batch(columns, schema=ENVELOPE_SCHEMA),
            schema_id=1,
            min_timestamp_ms=now_ms,
            max_timestamp_ms=now_ms,
            attributes=ATTRIBUTE_TRANSACTIONAL if producer[0] >= 0 else 0,
            producer_id=producer[0],
            producer_epoch=producer[1],
            base_sequence=sequence,
        )
    )


def plain(batch: bytes) -> bytes:
    """The same batch, idempotent and in no transaction."""
    data = bytearray(batch)
    header = decode_header(memoryview(batch))
    assign_producer(
        memoryview(data),
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
    return bytes(data)


async def send(
    broker: Broker,
    transactional_id: str,
    identity: tuple[int, int],
    sequence: int,
    value: bytes,
    *where: TopicPartition,
) -> list[int]:
    """Writes one row to each partition; its offsets. Raises the first partition's error."""
    data = rows(value, identity, sequence)
    parts = [ProducePartition(*tp, len(data)) for tp in where]
    request = ProduceRequest(-1, 10_000, parts, transactional_id)
    context = RequestContext(broker, ("", 0), "")
    response = await produce(request, memoryview(bytearray(data * len(parts))), context)
    assert isinstance(response.message, ProduceResponse)
    for result in response.message.results:
        if result.error_code:
            raise error_from_code(result.error_code, result.message)
    return [r.base_offset for r in response.message.results]


def log_of(broker: Broker, tp: TopicPartition) -> PartitionLog:
    return broker.partitions.get(*tp).log


def visible(broker: Broker, tp: TopicPartition) -> list[bytes]:
    """The values that a reader of committed records is given."""
    log = log_of(broker, tp)
    end = log.last_stable_offset
    aborted = log.reader.aborted_transactions(log.log_start_offset, end)
    found: list[bytes] = []
    offset = log.log_start_offset
    while offset < end:
        piece = log.reader.read(offset, 1 << 20, end=end)
        assert piece is not None
        data = piece.read()
        offset = piece.next_offset
        piece.release()
        for position, header in iterate_batches(data):
            if header.attributes & ATTRIBUTE_CONTROL or header.base_offset >= end:
                continue
            if header.attributes & ATTRIBUTE_TRANSACTIONAL and any(
                a.producer_id == header.producer_id and a.first_offset <= header.base_offset <= a.last_offset
                for a in aborted
            ):
                continue
            batch = pa.ipc.read_record_batch(
                pa.py_buffer(data[position : position + header.size_bytes]), ENVELOPE_SCHEMA
            )
            found += batch.column(1).to_pylist()
    return found


async def refused(work: Coroutine[Any, Any, Any]) -> type[SparklogError]:
    """The kind of error that `work` raises."""
    try:
        await work
    except SparklogError as e:
        return type(e)
    raise AssertionError("nothing was raised")
