"""The memory of conversions: batches that are much larger after decompression wait for the budget of all clients."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from sparklog.client.net.topic_info import TopicInfo
from sparklog.environment.time_slices import SLICE_S, LoopTimeSlices
from sparklog.errors import CorruptBatchError, InvalidRequestError, InvalidTimestampError, MessageTooLargeError
from sparklog.format.batch import encode_batch
from sparklog.format.json_rows import SLICE_ROWS
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.gateway.backend.read_epochs import ReadEpochs
from sparklog.gateway.gateway import Conversions
from sparklog.gateway.handlers import fetch, produce, produced
from sparklog.gateway.limits import Limits
from sparklog.gateway.memory import GatewayMemory
from sparklog.gateway.records import typed
from sparklog.gateway.records.memory import COPIES, RECORD_BYTES, convert_within
from sparklog.gateway.records.small import write_small
from sparklog.gateway.records.to_broker import broker_batch
from sparklog.gateway.records.to_client import as_they_are, client_batches
from sparklog.gateway.refusals import Refusals
from sparklog.kafka.records import compression, decode
from sparklog.kafka.records.batch_v2 import iterate_batches, write_batch
from sparklog.kafka.records.errors import InvalidRecordError
from sparklog.kafka.values import json_records
from sparklog.kafka.values.json_records import parse_rows
from sparklog.kafka.wire.errors import Kafka
from sparklog.log.model.inflated_memory import InflatedMemory
from sparklog.protocol.apis import Api
from sparklog.protocol.messages import FetchResponse, FetchResult
from sparklog.settings import MIB
from tests.support.waiting import PATIENCE_S
from tests.unit.gateway.registry_schemas import FixedSchemas

TOPIC_BYTES_MAX = 16 * MIB
"""Largest batch of the tests' topic after decompression."""
CONFIGS = {"max.message.bytes": str(MIB), "max.message.inflated.ratio": "16"}


def topic(schema: pa.Schema = ENVELOPE_SCHEMA) -> TopicInfo:
    kind = "envelope" if schema is ENVELOPE_SCHEMA else "typed"
    return TopicInfo("t", "id", kind, 1, 5, {5: schema}, (), None, dict(CONFIGS), 0, ())


def batch_of(records: bytes, codec: int = compression.ZSTD, count: int = 1) -> memoryview:
    """A client's batch."""
    data = pa.Codec(compression.NAMES[codec]).compress(records, asbytes=True) if codec else records
    parts = write_batch(
        [data], base_offset=0, leader_epoch=0, attributes=codec, last_offset_delta=count - 1, base_timestamp_ms=1,
        max_timestamp_ms=1, producer_id=-1, producer_epoch=-1, base_sequence=-1, record_count=count,
    )  # fmt: skip
    return memoryview(b"".join(parts))


LARGE = batch_of(write_small(None, [bytes(range(256)) * 400], [0]), compression.NONE)
"""A batch that is converted on a thread, with a small conversion."""
BOMB = batch_of(write_small(None, [bytes(MIB) + random.Random(1).randbytes(2_000)], [0]))


class Broker:
    """A broker that takes requests when `taking` is set."""

    def __init__(self, answer: Any = None, payload: bytes = b"") -> None:
        self.taking = asyncio.Event()
        self.taking.set()
        self.sent = 0
        self._answer = answer, memoryview(payload)

    def send_unanswered(self, api: Api, message: Any, payload: list[memoryview]) -> None:
        self.sent += 1

    async def request(self, api: Api, message: Any, response: type) -> Any:
        return self._answer

    async def drain(self) -> None:
        await self.taking.wait()

    async def ask(self, *_: Any) -> Any:
        raise AssertionError("the topic is known")


class Topics:
    """The gateway's topics: a single one."""

    def __init__(self, info: TopicInfo) -> None:
        self._info = info

    async def get(self, *_: Any, **__: Any) -> TopicInfo:
        return self._info

    look_up = renewed = get

    def forget(self, name: str) -> None:
        pass


def session_of(conversions: Conversions, broker: Broker, limits: Limits, info: TopicInfo | None = None) -> Any:
    async def connection() -> Broker:
        return broker

    async def refusals(*_: Any) -> dict[str, Any]:
        return {}

    time_slices = LoopTimeSlices(asyncio.get_running_loop(), clock=time.monotonic)
    gateway = SimpleNamespace(
        topics=Topics(info or topic()),
        conversions=conversions,
        limits=limits,
        schemas=FixedSchemas(),
        time_slices=time_slices,
        refusals=Refusals(time.monotonic),
    )
    permissions = SimpleNamespace(refusals=refusals)
    held: list[int] = []

    async def hold_answer(size_bytes: int) -> None:
        held.append(size_bytes)

    return SimpleNamespace(
        read_epochs=ReadEpochs(),
        gateway=gateway,
        peer_host="h",
        client_id="c",
        broker=connection,
        order=asyncio.Lock(),
        held=held,
        hold_answer=hold_answer,
        answer_bytes_max=limits.fetch_bytes,
        write_permissions=permissions,
    )


async def send(session: Any, *batches: memoryview, acks: int = 0) -> Any:
    partitions = [{"index": i, "records": batch} for i, batch in enumerate(batches)]
    request: Any = {"acks": acks, "timeout_ms": 1, "transactional_id": None}
    request["topic_data"] = [{"name": "t", "partition_data": partitions}]
    return await produce.produce(session, request, 8)


def run(body: Callable[[Conversions, Limits], Awaitable[None]], **limits: Any) -> Conversions:
    async def main() -> Conversions:
        given = Limits(**limits)
        conversions = Conversions(GatewayMemory(given))
        try:
            await asyncio.wait_for(body(conversions, given), PATIENCE_S)
        finally:
            conversions.close()
        assert (conversions.converted.used_bytes, conversions.inflated.held_bytes) == (0, 0)
        return conversions

    return asyncio.run(main())


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
def test_refused_batches_keep_no_memory() -> None:
    async def body(conversions: Conversions, limits: Limits) -> None:
        session = session_of(conversions, Broker(), limits)
        before = pa.total_allocated_bytes()
        for records in (bytes(2 * MIB), b"\x7f" * 2 * MIB):
            answer = await send(session, batch_of(records), acks=-1)
            result = answer["responses"][0]["partition_responses"][0]
            assert result["error_code"] is Kafka.INVALID_RECORD
        assert pa.total_allocated_bytes() - before < MIB

    run(body)


@pytest.mark.parametrize("at_once", [1, 2])
def test_batches_wait_for_the_memory_of_their_decompression(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    cost = COPIES * TOPIC_BYTES_MAX + RECORD_BYTES
    running, most, lock, together = 0, 0, threading.Lock(), threading.Barrier(at_once)

    def convert(*_: Any) -> memoryview:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        together.wait(PATIENCE_S)
        with lock:
            running -= 1
        return memoryview(b"x")

    async def body(conversions: Conversions, limits: Limits) -> None:
        await asyncio.gather(*(send(session_of(conversions, Broker(), limits), BOMB) for _ in range(6)))

    monkeypatch.setattr(produced, "broker_batch", convert)
    conversions = run(body, conversion_bytes=(at_once + 1) * cost - 1)
    assert (most, conversions.inflated.peak_bytes) == (at_once, at_once * cost)


def test_converted_batches_hold_memory_until_the_broker_takes_them() -> None:
    async def body(conversions: Conversions, limits: Limits) -> None:
        brokers = [Broker() for _ in range(4)]
        for broker in brokers:
            broker.taking.clear()
        tasks = [asyncio.create_task(send(session_of(conversions, broker, limits), LARGE)) for broker in brokers]
        while sum(broker.sent for broker in brokers) < 2:
            await asyncio.sleep(0.001)
        for _ in range(20):
            await conversions.run(lambda: None)
        assert sum(broker.sent for broker in brokers) == 2, "one has room, one may exceed it, and the others wait"
        for broker in brokers:
            broker.taking.set()
        await asyncio.gather(*tasks)
        assert sum(broker.sent for broker in brokers) == 4

    run(body, request_bytes=2 * len(LARGE), converted_bytes=3 * len(LARGE) + 4_096)


def test_a_request_of_many_batches_is_converted_in_slices() -> None:
    async def body(conversions: Conversions, limits: Limits) -> None:
        session = session_of(conversions, Broker(), limits)
        now_s = itertools.count(step=SLICE_S / 2)  # each look at the clock takes half a slice
        session.gateway.time_slices = LoopTimeSlices(asyncio.get_running_loop(), clock=lambda: next(now_s))
        batch = batch_of(write_small(None, [bytes(1_024)], [0]))
        sent = asyncio.create_task(send(session, *[batch] * 200))
        turns = 0
        while not sent.done():
            await asyncio.sleep(0)
            turns += 1
        await sent
        assert turns > 100, "other requests have turns of the event loop meanwhile"

    run(body)


def test_a_request_with_too_large_results_is_refused_in_part() -> None:
    async def body(conversions: Conversions, limits: Limits) -> None:
        answer = await send(session_of(conversions, Broker(), limits), LARGE, acks=-1)
        result = answer["responses"][0]["partition_responses"][0]
        assert result["error_code"] is Kafka.MESSAGE_TOO_LARGE and "after its conversion" in result["error_message"]

    run(body, request_bytes=len(LARGE) // 2)


def test_a_bomb_of_a_kilobyte_is_not_converted_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[threading.Thread] = []

    def convert(*given: Any) -> memoryview:
        found = broker_batch(*given)
        threads.append(threading.current_thread())
        return found

    async def body(conversions: Conversions, limits: Limits) -> None:
        session = session_of(conversions, Broker(), limits)
        await send(session, batch_of(write_small(None, [bytes(MIB)], [0])))
        await send(session, batch_of(write_small(None, [bytes(1024)], [0])))

    monkeypatch.setattr(produced, "broker_batch", convert)
    run(body)
    assert [one is threading.main_thread() for one in threads] == [False, True]


@pytest.mark.parametrize("codec", [compression.NONE, compression.SNAPPY, compression.LZ4, compression.ZSTD])
def test_a_batch_beyond_the_topics_limit_is_refused(codec: int) -> None:
    async def body(conversions: Conversions, limits: Limits) -> None:
        session = session_of(conversions, Broker(), limits)
        answer = await send(session, batch_of(bytes(TOPIC_BYTES_MAX + 1), codec), acks=-1)
        result = answer["responses"][0]["partition_responses"][0]
        assert result["error_code"] is Kafka.MESSAGE_TOO_LARGE
        assert str(TOPIC_BYTES_MAX) in result["error_message"]

    run(body)


def test_a_cancelled_caller_waits_for_its_running_conversion() -> None:
    async def body(conversions: Conversions, limits: Limits) -> None:
        begun, goes_on, ended = threading.Event(), threading.Event(), threading.Event()

        def convert() -> None:
            begun.set()
            goes_on.wait(PATIENCE_S)
            ended.set()

        task = asyncio.create_task(conversions.run(convert))
        while not begun.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        goes_on.set()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled() and ended.is_set()

    run(body)


def test_a_conversion_of_any_size_holds_at_most_all_memory() -> None:
    """Every stored batch can be read; a large one is converted alone."""
    memory = InflatedMemory(4 * MIB)
    for size in (4 * MIB, 4 * MIB + 1, 4096 * MIB):
        assert convert_within(memory, size, lambda: memory.held_bytes) == 4 * MIB

    def fail() -> None:
        raise InvalidRequestError("a reason")

    with pytest.raises(InvalidRequestError, match="a reason"):
        convert_within(memory, 4 * MIB, fail)
    assert memory.held_bytes == 0


def stored(size: int) -> bytes:
    rows = pa.RecordBatch.from_pylist(
        [{"key": None, "value": bytes(size), "headers": None, "timestamp": None}], schema=ENVELOPE_SCHEMA
    )
    return bytes(encode_batch(rows, schema_id=5, min_timestamp_ms=0, max_timestamp_ms=0, compression="zstd"))


def test_stored_batches_wait_for_memory_before_their_decompression() -> None:
    asked: list[int] = []

    def within(size: int, convert: Callable[[], Any]) -> Any:
        asked.append(size)
        if len(asked) in (1, 3):
            raise MessageTooLargeError("enough")
        return convert()

    data = memoryview(stored(MIB) * 3)
    with pytest.raises(MessageTooLargeError, match="enough"):
        client_batches(data, topic().schema_of, as_they_are, within=within)
    assert client_batches(data, topic().schema_of, as_they_are, within=within)
    assert COPIES * MIB < asked[0] == asked[1] == asked[2] < COPIES * MIB + 10_000


def test_batches_before_a_bad_one_are_answered() -> None:
    good = stored(10)
    damaged = bytearray(good)
    damaged[-1] ^= 1
    alone = b"".join(client_batches(memoryview(good), topic().schema_of, as_they_are))
    for bad in (bytes(damaged), good[: len(good) // 2]):
        parts = client_batches(memoryview(good + bad), topic().schema_of, as_they_are)
        assert b"".join(parts) == alone
        with pytest.raises(CorruptBatchError):
            client_batches(memoryview(bad), topic().schema_of, as_they_are)


def test_a_batch_with_much_json_is_answered_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(typed, "JSON_PIECE_BYTES", 3_000)
    monkeypatch.setattr(typed, "JSON_BYTES_MAX", 7_000)
    texts = pa.schema([("s", pa.string())])
    rows = pa.record_batch([pa.array(["\0" * (1_000 if n % 2 else 10) for n in range(9)])], schema=texts)
    data = memoryview(encode_batch(rows, schema_id=5, min_timestamp_ms=0, max_timestamp_ms=0))
    offset, pieces, values = 0, 0, []
    while offset < rows.num_rows:
        batch = b"".join(
            client_batches(
                data, topic(texts).schema_of, typed.TypedRows(topic(texts), FixedSchemas()), start_offset=offset
            )
        )
        ((head, records),) = iterate_batches(memoryview(batch))
        values += decode.decode_records(records, head.record_count, 0).column(1).to_pylist()
        offset, pieces = head.base_offset + head.last_offset_delta + 1, pieces + 1
        assert len(values) == offset
    assert pieces > 2
    assert [len(json.loads(value)["s"]) for value in values] == [10, 1_000, 10, 1_000, 10, 1_000, 10, 1_000, 10]
    monkeypatch.setattr(typed, "JSON_BYTES_MAX", 5_000)
    with pytest.raises(MessageTooLargeError, match="bytes of JSON, at most 5000 are answered"):
        client_batches(data, topic(texts).schema_of, typed.TypedRows(topic(texts), FixedSchemas()), start_offset=1)


def test_no_further_batch_is_converted_beyond_the_limit_of_an_answer() -> None:
    data = memoryview(stored(1_000) * 3)
    one = sum(map(len, client_batches(data, topic().schema_of, as_they_are, bytes_max=1)))
    two = sum(map(len, client_batches(data, topic().schema_of, as_they_are, bytes_max=one + 1)))
    everything = sum(map(len, client_batches(data, topic().schema_of, as_they_are)))
    assert (two, everything) == (2 * one, 3 * one)


def test_a_large_answer_waits_for_its_memory_before_its_conversion() -> None:
    async def body(conversions: Conversions, limits: Limits) -> None:
        data = stored(MIB) * 3
        result = FetchResult("t", 0, 0, 3, 3, 0, length_bytes=len(data))
        session = session_of(conversions, Broker(FetchResponse([result]), data), limits)
        partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": MIB}
        request: Any = {"max_bytes": MIB, "max_wait_ms": 0, "min_bytes": 0, "isolation_level": 0}
        request["topics"] = [{"topic": "t", "partitions": [partition]}]
        answer = await fetch.fetch(session, request, 11)
        assert answer["responses"][0]["partitions"][0]["records"]
        assert session.held == [session.answer_bytes_max]
        assert conversions.inflated.peak_bytes > COPIES * MIB, "it was small, but not after its decompression"

    run(body)


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_timestamp_is_taken_and_the_next_one_refused(sign: int) -> None:
    body = b"\0\0\0\1\1\0"  # attributes, deltas of time and offset, no key, no value, no headers
    record = bytes([2 * len(body)]) + body
    largest = sign * decode.TIMESTAMP_MS_MAX
    assert decode.decode_records(record, 1, largest).column("timestamp").cast(pa.int64()).to_pylist() == [
        largest * 1000
    ]
    with pytest.raises(InvalidTimestampError, match="are allowed"):
        decode.decode_records(record, 1, largest + sign)


def test_too_many_headers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "HEADERS_MAX", 3)
    record = b"\0\0\0\1\1" + bytes([2 * 4]) + b"\0\0" * 4
    with pytest.raises(MessageTooLargeError, match="4 headers, at most 3"):
        decode.decode_records(bytes([2 * len(record)]) + record, 1, 0)


NUMBERS = pa.schema([("n", pa.int32())])
LISTS = pa.schema([("n", pa.list_(pa.list_(pa.int8())))])


def test_rows_of_several_slices_are_parsed() -> None:
    count = 2 * SLICE_ROWS + 500
    values = pa.array([b'{"n":%d}' % i for i in range(count)], pa.binary())
    assert parse_rows(values, NUMBERS, "t").column(0).to_pylist() == list(range(count))
    places = [3, SLICE_ROWS, count - 1]
    values = pa.array([b"no" if i in places else b"{}" for i in range(count)], pa.binary())
    with pytest.raises(InvalidRecordError, match="record 3 ") as refused:
        parse_rows(values, NUMBERS, "t")
    assert list(refused.value.records) == places
    with pytest.raises(MessageTooLargeError, match="the rows"):
        parse_rows(pa.array([b"{}"] * count, pa.binary()), NUMBERS, "t", 4 * count - 1)


def test_a_record_of_too_many_elements_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_records, "RECORD_BYTES_MAX", 1_000)
    monkeypatch.setattr(json_records, "SLICE_BYTES", 500)
    few, many = b'{"n":[[],[]]}', b'{"n":[[],[],[],[],[],[],[]]}'
    assert parse_rows(pa.array([few] * 3, pa.binary()), LISTS, "t").num_rows == 3
    with pytest.raises(InvalidRecordError, match="record 2 has too many elements"):
        parse_rows(pa.array([few, few, many], pa.binary()), LISTS, "t")
