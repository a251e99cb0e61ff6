"""Handlers of requests: appends, fetches, creation of topics, shards of internal topics."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from sparklog_broker.broker import Broker
from sparklog_broker.coordinators.led_shards import LedShards
from sparklog_broker.handlers.fetch import fetch
from sparklog_broker.handlers.locate import is_same_host
from sparklog_broker.handlers.produce import produce
from sparklog_broker.handlers.topics import create_topic
from sparklog_broker.network.reply import Response
from sparklog_broker.partitions import appender, column_pruner
from sparklog_broker.partitions.column_pruner import ColumnPruner, Part, PrunedSlices
from sparklog_broker.partitions.partition import Partition
from sparklog_broker.request_context import RequestContext

from sparklog.errors import ERRORS, RequestTimedOutError, StorageError, StorageFullError, UnknownServerError
from sparklog.log.parts.log_appender import LogAppender
from sparklog.log.segments.slices import FileSlice
from sparklog.metadata.store import TopicSpec
from sparklog.protocol.messages import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ProducePartition,
    ProduceRequest,
    ProduceResponse,
    ProduceResult,
)
from sparklog.protocol.topic_messages import CreateTopicRequest
from sparklog.types import READ_COMMITTED, READ_UNCOMMITTED
from tests.support.brokers import run
from tests.support.raw_client import envelope_batch
from tests.support.replicas import PartitionReplicas

BATCH = envelope_batch(10, 20)
LARGE_BATCH = envelope_batch(10, 40_000)
"""More than the event loop appends itself."""


def with_a_follower(broker: Broker) -> Partition:
    """Partition t-0, as if broker 1 were an in-sync replica."""
    partition = broker.partitions.get("t", 0)
    partition.replicas = PartitionReplicas(leader=0, replicas=(0, 1), isr=(0, 1))
    return partition


async def append(
    context: RequestContext, acks: int = -1, timeout_ms: int = 10_000, *numbers: int, batch: bytes = BATCH
) -> list[ProduceResult]:
    parts = [ProducePartition("t", n, len(batch)) for n in numbers or (0,)]
    payload = memoryview(bytearray(batch * len(parts)))
    response = await produce(ProduceRequest(acks, timeout_ms, parts), payload, context)
    assert isinstance(response.message, ProduceResponse)
    return response.message.results


async def read(context: RequestContext, wait_ms: int = 0, isolation: int = READ_UNCOMMITTED) -> Response:
    request = FetchRequest(wait_ms, 1, 1 << 20, isolation, [FetchPartition("t", 0, 0, 1 << 20)])
    return await fetch(request, memoryview(b""), context)


def test_acks_all_waits_for_the_in_sync_replicas(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        partition = with_a_follower(broker)
        waiting = asyncio.ensure_future(append(context))
        while broker.partitions.produces.waiting_count == 0:
            await asyncio.sleep(0)
        assert (partition.log.log_end_offset, partition.log.high_watermark) == (10, 0)
        assert not (await read(context)).payload, "what is not replicated is not visible"
        partition.on_follower_fetch(1, 10)
        assert [r.base_offset for r in await waiting] == [0]

    run(tmp_path, scenario)


def test_acks_1_does_not_wait(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        with_a_follower(broker)
        assert [(r.error_code, r.base_offset) for r in await append(context, acks=1)] == [(0, 0)]

    run(tmp_path, scenario)


def test_a_follower_that_does_not_follow_times_the_request_out(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        with_a_follower(broker)
        results = await append(context, -1, 20, 0, 1)
        assert ERRORS[results[0].error_code] is RequestTimedOutError
        assert results[1].error_code == 0, "the other partition has one replica only"
        assert broker.partitions.produces.waiting_count == 0

    run(tmp_path, scenario)


@pytest.mark.parametrize("batch", [BATCH, LARGE_BATCH], ids=["small", "large"])
def test_appends_keep_their_order(tmp_path: Path, batch: bytes) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        results = await asyncio.gather(*(append(context, -1, 10_000, 0, 1, 0, batch=batch) for _ in range(20)))
        assert [r[0].base_offset for r in results] == list(range(0, 400, 20))
        assert [r[2].base_offset for r in results] == list(range(10, 400, 20))
        assert [r[1].base_offset for r in results] == list(range(0, 200, 10))
        assert broker.partitions.get("t", 0).appends_pending == 0

    run(tmp_path, scenario)


def test_small_appends_do_not_overtake_large_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a partition's thread has something of it, the event loop must not append to it."""
    gate, appended_by = threading.Event(), []
    original = LogAppender.append

    def slow(self: LogAppender, payload: memoryview, **more: Any) -> Any:
        appended_by.append(threading.current_thread().name)
        if len(appended_by) == 1:
            gate.wait(30)
        return original(self, payload, **more)

    monkeypatch.setattr(LogAppender, "append", slow)

    async def scenario(broker: Broker, context: RequestContext) -> None:
        first = asyncio.ensure_future(append(context, batch=LARGE_BATCH))
        await asyncio.sleep(0)
        second = asyncio.ensure_future(append(context))
        await asyncio.sleep(0)
        gate.set()
        assert [(await first)[0].base_offset, (await second)[0].base_offset] == [0, 10]
        assert appended_by[0] == appended_by[1] != "MainThread"
        assert (await append(context))[0].base_offset == 20
        assert appended_by[2] == "MainThread"

    run(tmp_path, scenario)


def test_an_append_counts_even_if_its_request_is_cancelled(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        waiting = asyncio.ensure_future(read(context, wait_ms=60_000))
        request = asyncio.ensure_future(append(context, batch=LARGE_BATCH))
        while broker.partitions.get("t", 0).appends_pending == 0:
            await asyncio.sleep(0)
        request.cancel()
        response = await waiting
        assert response.payload_bytes == len(LARGE_BATCH), "the fetch that waits for it is woken"
        response.release()
        assert broker.partitions.get("t", 0).appends_pending == 0

    run(tmp_path, scenario)


def test_a_cancelled_fetch_frees_all_resources(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        waiting = asyncio.ensure_future(read(context, wait_ms=60_000))
        while broker.partitions.fetches.waiting_count == 0:
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert broker.partitions.fetches.waiting_count == 0

    run(tmp_path, scenario)


@pytest.mark.parametrize("isolation", [READ_UNCOMMITTED, READ_COMMITTED])
def test_records_appended_during_a_fetchs_wait_are_warm_unless_a_transaction_hid_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: int
) -> None:
    warmed: list[Any] = []

    async def warm(slices: list[Any], _: Any) -> dict[Any, Any]:
        warmed.extend(slices)
        return {}

    monkeypatch.setattr("sparklog_broker.partitions.page_cache.warm", warm)

    async def scenario(broker: Broker, context: RequestContext) -> None:
        waiting = asyncio.ensure_future(read(context, wait_ms=60_000, isolation=isolation))
        while broker.partitions.fetches.waiting_count == 0:
            await asyncio.sleep(0)
        await append(context)
        (await waiting).release()
        assert bool(warmed) == (isolation == READ_COMMITTED)

    run(tmp_path, scenario)


def test_slices_are_released_when_warming_is_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    async def endless(slices: list[Any], _: Any) -> None:
        seen.extend(slices)
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr("sparklog_broker.partitions.page_cache.warm", endless)

    async def scenario(broker: Broker, context: RequestContext) -> None:
        await append(context)
        reading = asyncio.ensure_future(read(context))
        while not seen:
            await asyncio.sleep(0)
        assert seen[0].fileno() >= 0
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        with pytest.raises(ValueError, match="released"):
            seen[0].fileno()

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("raised", "told"), [(StorageFullError("full"), StorageFullError), (RuntimeError("a defect"), UnknownServerError)]
)
def test_a_failing_append_is_its_partitions_own_matter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: Exception, told: type[Exception], caplog: Any
) -> None:
    original = LogAppender.append

    def failing(self: LogAppender, payload: memoryview, **more: Any) -> Any:
        if self._state.owner.partition == 0:
            raise raised
        return original(self, payload, **more)

    monkeypatch.setattr(LogAppender, "append", failing)

    async def scenario(broker: Broker, context: RequestContext) -> None:
        for _ in range(3):
            results = await append(context, -1, 1000, 0, 1)
            assert [ERRORS.get(r.error_code) for r in results] == [told, None]

    run(tmp_path, scenario)
    if told is StorageFullError:
        assert caplog.text.count("full") == 1, "a full disk is logged once"


def test_a_slow_disk_sends_small_appends_to_the_threads(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        loop = asyncio.get_running_loop()
        partition = broker.partitions.get("t", 0)
        assert broker.appender.may_append_inline([partition], 100, alone=True)
        assert not broker.appender.may_append_inline([partition], appender.INLINE_APPEND_BYTES + 1, alone=True)
        assert not broker.appender.may_append_inline([partition], appender.INLINE_APPEND_BYTES // 2, alone=False)
        broker.appender.note_inline_append(loop.time())
        assert broker.appender.may_append_inline([partition], 100, alone=True)
        broker.appender.note_inline_append(loop.time() - 2 * appender.INLINE_SLOW_S)
        assert not broker.appender.may_append_inline([partition], 100, alone=True)

    run(tmp_path, scenario)


def test_a_topic_whose_files_cannot_be_created_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        from sparklog.log.housekeeping.partition_creation import PartitionCreation

        original = PartitionCreation._create_in

        def failing(self: PartitionCreation, directory: Any, spec: Any) -> Any:
            if spec.owner.partition == 3:
                raise StorageFullError("full")
            return original(self, directory, spec)

        with monkeypatch.context() as patch:
            patch.setattr(PartitionCreation, "_create_in", failing)
            with pytest.raises(StorageFullError):
                await broker.topics.create(TopicSpec("u", 5))
        assert "u" not in broker.partitions.topics
        await broker.topics.create(TopicSpec("u", 5))
        assert broker.partitions.get("u", 4).log.log_end_offset == 0

    run(tmp_path, scenario)


def test_of_two_that_create_the_same_topic_one_wins(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        done = await asyncio.gather(
            *(broker.topics.create(TopicSpec("u", 3)) for _ in range(5)), return_exceptions=True
        )
        assert sum(not isinstance(d, Exception) for d in done) == 1
        gone = await asyncio.gather(*(broker.topics.delete("u") for _ in range(3)), return_exceptions=True)
        assert sum(not isinstance(d, Exception) for d in gone) == 1
        made = await broker.topics.create(TopicSpec("u", 1))
        assert await broker.topics.delete("u") == made.topic_id

    run(tmp_path, scenario)


def test_the_response_of_a_fetch_names_every_partition_in_order(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        wanted = [FetchPartition("t", 1, 0, 10), FetchPartition("u", 0, 0, 10), FetchPartition("t", 0, 5, 10)]
        response = await fetch(FetchRequest(60_000, 1, 1000, 0, wanted), memoryview(b""), context)
        assert isinstance(response.message, FetchResponse)
        assert [(r.topic, r.partition, r.error_code) for r in response.message.results] == [
            ("t", 1, 0),
            ("u", 0, 3),
            ("t", 0, 1),
        ]

    run(tmp_path, scenario)


async def read_columns(context: RequestContext, columns: list[str], max_bytes: int) -> Response:
    """Both partitions of the topic."""
    parts = [FetchPartition("t", number, 0, max_bytes, columns=columns) for number in (0, 1)]
    return await fetch(FetchRequest(0, 1, max_bytes, READ_UNCOMMITTED, parts), memoryview(b""), context)


@pytest.mark.parametrize(("columns", "batches"), [(["value"], 2), (["key"], 8)])
def test_an_answer_with_some_columns_fits_its_limit_and_is_counted_as_sent(
    tmp_path: Path, columns: list[str], batches: int
) -> None:
    """Batches of 400 KB, which hold hardly anything but values."""

    async def scenario(broker: Broker, context: RequestContext) -> None:
        for _ in range(4):
            await append(context, -1, 10_000, 0, 1, batch=LARGE_BATCH)
        response = await read_columns(context, columns, 1 << 20)
        assert response.payload_bytes <= 1 << 20
        assert isinstance(response.message, FetchResponse)
        assert response.payload_bytes == sum(r.length_bytes for r in response.message.results)
        traffic = broker.partitions.get("t", 0).traffic
        assert (traffic.records_out, traffic.bytes_out) == (10 * batches, response.payload_bytes)
        response.release()

    run(tmp_path, scenario)


@pytest.mark.parametrize(("columns", "when"), [(None, "warmed"), (["key"], "warmed"), (["key"], "cut")])
def test_unreadable_records_are_an_error_of_their_partition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, columns: list[str] | None, when: str
) -> None:
    prune = ColumnPruner.prune

    async def warm(slices: list[Any], _: Any) -> dict[Any, Any]:
        return {slices[0]: StorageError("a bad sector")}

    def cut(self: ColumnPruner, log: Any, *args: Any) -> PrunedSlices:
        if log[2] == 0:
            raise StorageError("a bad sector")
        return prune(self, log, *args)

    if when == "warmed":
        monkeypatch.setattr("sparklog_broker.partitions.page_cache.warm", warm)
    else:
        monkeypatch.setattr(ColumnPruner, "prune", cut)

    async def scenario(broker: Broker, context: RequestContext) -> None:
        await append(context, -1, 10_000, 0, 1)
        parts = [FetchPartition("t", number, 0, 1 << 20, columns=columns) for number in (0, 1)]
        response = await fetch(FetchRequest(0, 1, 1 << 20, READ_UNCOMMITTED, parts), memoryview(b""), context)
        assert isinstance(response.message, FetchResponse)
        bad, good = response.message.results
        assert (bad.error_code, bad.length_bytes, good.error_code) == (StorageError.code, 0, 0)
        assert response.payload_bytes == good.length_bytes > 0
        response.release()

    run(tmp_path, scenario)


def test_a_fetch_that_is_cancelled_while_columns_are_cut_out_frees_its_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, goes_on = threading.Event(), threading.Event()
    cut: list[PrunedSlices] = []
    prune = ColumnPruner.prune

    def slow(self: ColumnPruner, *args: Any) -> PrunedSlices:
        began.set()
        goes_on.wait(60)
        monkeypatch.setattr(column_pruner, "READ_BYTES_MAX", 0)
        cut.append(prune(self, *args))
        return cut[0]

    monkeypatch.setattr(ColumnPruner, "prune", slow)

    async def scenario(broker: Broker, context: RequestContext) -> None:
        await append(context, batch=LARGE_BATCH)
        reading = asyncio.ensure_future(read_columns(context, ["value"], 1 << 20))
        await asyncio.to_thread(began.wait, 60)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        goes_on.set()
        while not cut or any(is_open(part) for part in cut[0].parts):
            await asyncio.sleep(0.001)

    run(tmp_path, scenario)


def is_open(part: Part) -> bool:
    assert isinstance(part, FileSlice)
    try:
        return part.fileno() >= 0
    except ValueError:
        return False


# The topic that a request asks for


class Asked(Exception):  # noqa: N818 - ends the handler, is no error
    def __init__(self, spec: TopicSpec) -> None:
        self.spec = spec


class Topics:
    async def create(self, spec: TopicSpec, *, validate_only: bool = False) -> Any:
        raise Asked(spec)


def spec_of(request: CreateTopicRequest, num_partitions: int) -> TopicSpec:
    config = SimpleNamespace(num_partitions=num_partitions, broker_id=1)
    broker = SimpleNamespace(cluster=object(), config=config, topics=Topics())
    context: Any = SimpleNamespace(broker=broker, principal=SimpleNamespace(name="ada"), request_id="1")
    with pytest.raises(Asked) as asked:
        asyncio.run(create_topic(request, memoryview(b""), context))
    return asked.value.spec


def test_an_assignment_counts_the_partitions_with_any_default() -> None:
    assigned = [[1, 2], [2, 1], [1, 2]]
    for default in (1, 3, 5):
        for named in (-1, 3):
            spec = spec_of(CreateTopicRequest("t", named, assignment=assigned), default)
            assert (spec.partitions, spec.assignment) == (3, assigned)
        assert spec_of(CreateTopicRequest("t"), default).partitions == default
        assert spec_of(CreateTopicRequest("t", 7), default).partitions == 7


# Detection of peers on the same host


@pytest.mark.parametrize(
    ("peer", "local", "same"),
    [
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.7", "127.0.0.1", True),
        ("::1", "::1", True),
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", True),
        ("::ffff:127.0.0.2", "::ffff:127.0.0.1", True),
        ("10.0.0.5", "10.0.0.5", True),
        ("10.0.0.6", "10.0.0.5", False),
        ("fe80::1%eth0", "fe80::2%eth0", False),
        ("", "", False),
        ("not an address", "127.0.0.1", False),
    ],
)
def test_is_same_host(peer: str, local: str, same: bool) -> None:
    assert is_same_host(peer, local) is same


# Which shards of an internal topic work on a broker


class _Shard:
    """A shard that records its calls."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.told: list[str] = []

    def load(self) -> None:
        self.told.append("load")

    def park(self) -> None:
        self.told.append("park")


def shards() -> LedShards[Any]:
    return LedShards(lambda number: cast(Any, _Shard(number)))


def numbers(found: list[Any]) -> list[int]:
    return [shard.number for shard in found]


def test_of_several_brokers_each_leads_its_assigned_shards() -> None:
    made = shards()
    made.start(3)
    assert made.led == []
    made.follow(1, leads=True)
    made.follow(1, leads=True)  # nothing new
    assert numbers(made.led) == [1]
    made.follow(1, leads=False)
    assert not made.leads(1)
    assert [shard.told for shard in made.all] == [[], ["load", "park"], []]


def test_shards_led_before_the_start_are_loaded_beyond_the_configured_number() -> None:
    made = shards()
    made.follow(4, leads=True)
    assert made.all == []
    made.start(2)
    assert numbers(made.all) == [0, 1, 2, 3, 4]
    assert numbers(made.led) == [4]
    assert made.led[0].told == []  # who starts them loads them


def test_a_partition_beyond_the_configured_number_that_comes_later_has_a_shard() -> None:
    made = shards()
    made.start(1)
    made.follow(2, leads=True)
    assert numbers(made.all) == [0, 1, 2]
    assert [shard.told for shard in made.all] == [[], [], ["load"]]
