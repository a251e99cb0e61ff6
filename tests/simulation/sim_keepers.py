"""Clients of topics whose records are removed by key, by size, or on request, and checks of the rest."""

from __future__ import annotations

import asyncio

from sparklog.errors import SparklogError, error_from_code
from sparklog.format.batch import assign_producer
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
)
from sparklog.testing._sim_client import SimClient
from tests.campaigns.checker import generate
from tests.simulation.notes import Notes
from tests.simulation.plans import AGED, KEYED
from tests.simulation.sim_final import audit, log_start, read_committed
from tests.simulation.sim_producer import PRODUCE_TIMEOUT_MS, encode_values
from tests.simulation.sim_roles import ClientContext, Role, ends

KEYS = 5


async def _append(context: ClientContext, topic: str, values: list[int], key: bytes) -> int:
    """Append a batch; return its base offset. Raises SparklogError."""
    encoded = encode_values(values, context.now_ms(), [key] * len(values))
    assign_producer(memoryview(encoded), producer_id=-1, producer_epoch=-1, base_sequence=-1)  # with the checksum
    payload = bytes(encoded)
    request = ProduceRequest(-1, PRODUCE_TIMEOUT_MS, [ProducePartition(topic, 0, len(payload))])
    answer, _ = await context.client.ask(Api.PRODUCE, request, ProduceResponse, payload)
    (result,) = answer.results
    if result.error_code:
        raise error_from_code(result.error_code, result.message)
    return result.base_offset


async def keyed(context: ClientContext) -> None:
    """Write a few keys repeatedly."""
    values = generate.unique_values(context.number)
    while context.wanted():
        await asyncio.sleep(context.rng.random() * 0.03)
        value = next(values)
        key = b"key-%d" % context.rng.randrange(KEYS)
        try:
            offset = await _append(context, KEYED, [value], key)
        except SparklogError as e:
            if not e.retriable:
                raise
            await asyncio.sleep(0.1)
        else:
            context.notes.keyed(key, value, offset)


async def aged(context: ClientContext) -> None:
    """Write more than the topic's retention keeps."""
    values = generate.unique_values(context.number)
    while context.wanted():
        await asyncio.sleep(context.rng.random() * 0.03)
        mine = [next(values) for _ in range(20)]
        try:
            offset = await _append(context, AGED, mine, b"aged")
        except SparklogError as e:
            if not e.retriable:
                raise
            await asyncio.sleep(0.1)
        else:
            context.notes.on_stored(offset, mine)


async def deleter(context: ClientContext) -> None:
    """Delete the oldest records now and then, and read the log start."""
    name = f"{AGED}-0"
    while context.wanted():
        await asyncio.sleep(context.rng.random() * 0.5)
        try:
            end = (await ends(context.client, [name]))[name]
            start = await log_start(context.client, name)
            context.notes.check_log_start(start)
            before_offset = start + (end - start) // 8
            context.notes.on_deletion_request(before_offset)
            request = DeleteRecordsRequest(PRODUCE_TIMEOUT_MS, [DeleteRecordsPartition(AGED, 0, before_offset)])
            answer, _ = await context.client.ask(Api.DELETE_RECORDS, request, DeleteRecordsResponse)
            (result,) = answer.results
            if not result.error_code:
                context.notes.on_deletion(result.low_watermark)
        except SparklogError as e:
            if not e.retriable:
                raise
            await asyncio.sleep(0.1)


async def check_aged(client: SimClient, notes: Notes, kept_bytes: int) -> None:
    """Check that deleted records are gone, by request or by size, and that all others exist."""
    name = f"{AGED}-0"
    headers = await audit(client, name)
    rows = (await read_committed(client, [name]))[0][name]
    start = await log_start(client, name)
    size_bytes = sum(h.size_bytes for h in headers)
    notes.check_aged(start, size_bytes, kept_bytes, {r.offset: int(r.value or b"") for r in rows})


ROLES: dict[str, Role] = {"keyed": keyed, "aged": aged, "deleter": deleter}
