"""The broker's side of tiering, without sockets: fetches over both parts, the tierer's rounds, deleted topics."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from sparklog_broker.background import tierer as tierer_module
from sparklog_broker.background.tierer import Tierer
from sparklog_broker.broker import Broker
from sparklog_broker.config import make_config
from sparklog_broker.handlers.fetch import fetch
from sparklog_broker.handlers.locate import locate_segments
from sparklog_broker.handlers.offsets import list_offsets
from sparklog_broker.handlers.produce import produce
from sparklog_broker.handlers.remote import locate_remote
from sparklog_broker.request_context import RequestContext

from sparklog.errors import LocalReadUnavailableError, OffsetOutOfRangeError, RemoteStorageError
from sparklog.format.batch import iterate_batches
from sparklog.log.tiering.remote_segment import RemoteAccess
from sparklog.log.tiering.state import decode_segment
from sparklog.metadata.store import TopicSpec
from sparklog.protocol.messages import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    LocateRemoteRequest,
    LocateRemoteResponse,
    LocateSegmentsRequest,
    LocateSegmentsResponse,
    ProducePartition,
    ProduceRequest,
)
from sparklog.types import TopicPartition
from tests.support.brokers import started
from tests.support.raw_client import envelope_batch
from tests.support.tiering import FailingStore, memory_store, stored_names

BATCH = envelope_batch(10, 20)
CONFIGS = {"remote.storage.enable": True, "local.retention.bytes": 0, "file.delete.delay.ms": 0, "retention.ms": -1}
NOTHING = memoryview(b"")
Scenario = Callable[[Broker, RequestContext, Tierer, FailingStore], Coroutine[Any, Any, None]]


def run(tmp_path: Path, scenario: Scenario) -> None:
    """Runs `scenario` with a broker whose store is in memory, and that has the topic `t` with two partitions. Its own
    tierer sleeps."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        url = memory_store().url
        settings = {"data.dir": str(tmp_path / "data"), "remote.log.storage.url": url}
        broker = await started(make_config(settings | {"remote.log.manager.task.interval.ms": 86_400_000}))
        store = FailingStore(url)
        tierer = Tierer(broker.config, loop, broker.environment, broker.storage.logs, store, lambda _: 0)
        try:
            await broker.topics.create(TopicSpec("t", 2, configs=CONFIGS))
            for log in broker.storage.logs.table.logs.values():
                log.tier.access = RemoteAccess(store, broker.storage.remote.cache)
            context = RequestContext(broker, ("127.0.0.1", 1), "127.0.0.1")
            await asyncio.wait_for(scenario(broker, context, tierer, store), 30)
        finally:
            broker.stop_waiting()
            assert await broker.close()

    asyncio.run(main())


async def fill(broker: Broker, context: RequestContext, number: int, segments: int) -> None:
    """Sealed segments of one batch, and one batch in the active one."""
    log = broker.partitions.get("t", number).log
    for _ in range(segments + 1):
        if log.size_bytes:
            log.appender.roll()
        request = ProduceRequest(-1, 1000, [ProducePartition("t", number, len(BATCH))])
        await produce(request, memoryview(bytearray(BATCH)), context)
    log.flusher.flush()


async def read(context: RequestContext, *parts: tuple[int, int], wait_ms: int = 0, max_bytes: int = 1 << 20) -> Any:
    """(error code, base offsets) per (partition, offset)."""
    wanted = [FetchPartition("t", number, offset, 1 << 20) for number, offset in parts]
    response = await fetch(FetchRequest(wait_ms, 1, max_bytes, 0, wanted), NOTHING, context)
    assert isinstance(response.message, FetchResponse)
    data = b"".join(s.read() for s in response.payload)  # type: ignore[union-attr]
    response.release()
    found, position = [], 0
    for result in response.message.results:
        part = data[position : position + result.length_bytes]
        position += result.length_bytes
        found.append((result.error_code, [h.base_offset for _, h in iterate_batches(part)]))
    assert position == len(data)
    return found


def test_one_fetch_over_both_parts_of_several_partitions(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext, tierer: Tierer, store: FailingStore) -> None:
        await fill(broker, context, 0, 3)
        await fill(broker, context, 1, 0)
        assert tierer.run_once()[TopicPartition("t", 0)].released == 3
        assert await read(context, (0, 0), (1, 0)) == [(0, [0, 10, 20, 30]), (0, [0])]
        assert await read(context, (1, 0), (0, 15)) == [(0, [0]), (0, [10, 20, 30])]
        assert await read(context, (0, 25), (0, 0)) == [(0, [20, 30]), (0, [0, 10, 20, 30])]
        assert await read(context, (0, 0), wait_ms=1000) == [(0, [0, 10, 20, 30])], "does not wait for more"
        assert await read(context, (1, 0), (0, 0), max_bytes=len(BATCH)) == [(0, [0]), (0, [])], "room for one batch"
        assert await read(context, (0, 0), (1, 0), max_bytes=len(BATCH)) == [(0, []), (0, [0])]
        assert await read(context, (0, 0), max_bytes=10) == [(0, [0])], "a batch at least"

    run(tmp_path, scenario)


def test_a_failing_store_fails_only_reads_from_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext, tierer: Tierer, store: FailingStore) -> None:
        await fill(broker, context, 0, 1)
        await fill(broker, context, 1, 0)
        tierer.run_once()
        store.fails = lambda what, key: True
        assert await read(context, (0, 0), (1, 0)) == [(RemoteStorageError.code, []), (0, [0])]
        assert await read(context, (0, 10)) == [(0, [10])]

    run(tmp_path, scenario)


def test_a_failing_round_stops_no_other_and_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(broker: Broker, context: RequestContext, tierer: Tierer, store: FailingStore) -> None:
        await fill(broker, context, 0, 1)
        await fill(broker, context, 1, 1)
        store.fails = lambda what, key: what == "write" and "/0/" in key
        for _ in range(3):
            assert TopicPartition("t", 0) not in tierer.run_once()
        assert broker.partitions.get("t", 1).log.local_log_start_offset == 10
        store.fails = lambda what, key: False
        assert tierer.run_once()[TopicPartition("t", 0)].copied == 1

    with caplog.at_level(logging.INFO, tierer_module.__name__):
        run(tmp_path, scenario)
    told = [r.getMessage() for r in caplog.records if r.name == tierer_module.__name__]
    assert [re.split(",| and will", text)[0] for text in told] == [
        "t-0: tiering failed", "t-0: tiering goes on",
    ]  # fmt: skip


def test_lookups_that_need_the_store(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext, tierer: Tierer, store: FailingStore) -> None:
        await fill(broker, context, 0, 2)
        asked = [-1, -2, -3, -4, -5, 0]

        async def offsets() -> list[int]:
            request = ListOffsetsRequest([ListOffsetsPartition("t", 0, t) for t in asked])
            response = await list_offsets(request, NOTHING, context)
            assert isinstance(response.message, ListOffsetsResponse)
            return [r.offset for r in response.message.results]

        before = await offsets()
        assert before[3:5] == [0, -1]
        tierer.run_once()
        after = await offsets()
        assert after[:3] + after[5:] == before[:3] + before[5:]
        assert after[3:5] == [20, 19]

        located = await locate_segments(LocateSegmentsRequest("t", 0, 5, 30), NOTHING, context)
        assert isinstance(located.message, LocateSegmentsResponse)
        (first,) = located.message.ranges
        with Path(first.path).open("rb") as f:
            f.seek(first.start_position)
            data = f.read(first.end_position - first.start_position)
        assert [h.base_offset for _, h in iterate_batches(data)] == [0]

        remote = await locate_remote(LocateRemoteRequest("t", 0, 10, 30), NOTHING, context)
        assert isinstance(remote.message, LocateRemoteResponse)
        assert [decode_segment(s).base_offset for s in remote.message.segments] == [10]
        broker.partitions.get("t", 0).log.retention.delete_records(15)
        with pytest.raises(OffsetOutOfRangeError):
            await locate_remote(LocateRemoteRequest("t", 0, 10, 30), NOTHING, context)

    run(tmp_path, scenario)


def test_a_deleted_topic_is_deleted_in_the_store_when_that_is_back(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext, tierer: Tierer, store: FailingStore) -> None:
        await fill(broker, context, 0, 2)
        tierer.run_once()
        store.fails = lambda what, key: what == "remove"
        broker.background.tierer._store = None  # only the one here works
        await broker.topics.delete("t")
        tierer.run_once()
        await broker.storage.run(broker.storage.logs.removal.purge)
        assert stored_names(store)
        assert [p.name for p in (tmp_path / "data").glob("t-0.*/*")] == ["remote-log.journal"]
        await broker.topics.create(TopicSpec("t", 1, configs=CONFIGS))
        store.fails = lambda what, key: False
        tierer.run_once()
        await broker.storage.run(broker.storage.logs.removal.purge)
        assert stored_names(store) == []
        assert not list((tmp_path / "data").glob("t-0.*"))

    run(tmp_path, scenario)


def test_no_password_goes_to_readers(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext, tierer: Tierer, store: FailingStore) -> None:
        msgspec.structs.force_setattr(broker.config, "remote_log_storage_url", "ftp://user:secret@host/tier")
        with pytest.raises(LocalReadUnavailableError, match="does not offer") as raised:
            await locate_remote(LocateRemoteRequest("t", 0, 0, 30), NOTHING, context)
        assert "secret" not in str(raised.value)

    run(tmp_path, scenario)


def test_secrets_are_not_in_the_configurations_text() -> None:
    config = make_config({"remote.log.storage.options": '{"secret": "hush"}'})
    assert "hush" in config.remote_log_storage_options
    assert "hush" not in repr(config)
    assert "hush" not in repr(config.__rich_repr__())
