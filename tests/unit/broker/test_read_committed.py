"""FETCH, LIST_OFFSETS and LOCATE_SEGMENTS with read_committed, against a real log with transactions."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest
from sparklog_broker.broker import Broker
from sparklog_broker.handlers.fetch import fetch
from sparklog_broker.handlers.locate import locate_segments
from sparklog_broker.handlers.offsets import list_offsets
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext

from sparklog.format.batch import ATTRIBUTE_CONTROL, ATTRIBUTE_TRANSACTIONAL, iterate_batches
from sparklog.log.model.log_config import AppendInfo
from sparklog.log.partition_log import PartitionLog
from sparklog.log.parts.log_appender import LogAppender
from sparklog.metadata.store import TopicSpec
from sparklog.protocol.messages import (
    AbortedRange,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchResult,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    LocateSegmentsRequest,
    LocateSegmentsResponse,
)
from sparklog.replication.transactions import Marker
from sparklog.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    MAX_TIMESTAMP,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    TopicPartition,
)
from tests.support.brokers import run
from tests.support.producers import produced

NOTHING = memoryview(b"")
ABORTED = AbortedRange(7, 10, 20)


def write(broker: Broker, producer_id: int, rows: int) -> None:
    """A batch of a transaction in t-0, as the PRODUCE handler appends it."""
    partition = broker.partitions.get("t", 0)
    guard = partition.log.appender.begin_verification(producer_id, 0)
    batch = produced(producer_id, 0, rows=rows, transactional=True)
    partition.on_appended(partition.log.appender.append(batch, guard=guard))


def end(broker: Broker, producer_id: int, *, commit: bool) -> AppendInfo:
    partition = broker.partitions.get("t", 0)
    info = partition.log.appender.append_marker(producer_id, 1, 0, commit=commit)
    partition.on_appended(info)
    return info


def fill(broker: Broker) -> PartitionLog:
    """0-9 plain, 10-19 aborted with its marker at 20, 21-30 committed with its marker at 31, 32-41 open."""
    partition = broker.partitions.get("t", 0)
    partition.on_appended(partition.log.appender.append(produced(-1, -1, rows=10, epoch=-1)))
    write(broker, 7, 10)
    end(broker, 7, commit=False)
    write(broker, 8, 10)
    end(broker, 8, commit=True)
    write(broker, 9, 10)
    return partition.log


async def read(
    context: RequestContext,
    offset: int = 0,
    isolation: int = READ_COMMITTED,
    *,
    wait_ms: int = 0,
    max_bytes: int = 1 << 20,
) -> FetchResult:
    request = FetchRequest(wait_ms, 1, max_bytes, isolation, [FetchPartition("t", 0, offset, 1 << 20)])
    response: Response = await fetch(request, NOTHING, context)
    response.release()
    assert isinstance(response.message, FetchResponse)
    return response.message.results[0]


def test_a_fetch_ends_at_the_last_stable_offset_and_names_aborted_ranges(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        log = fill(broker)
        everything = await read(context, 0, READ_UNCOMMITTED)
        assert (everything.length_bytes, everything.aborted) == (log.size_bytes, [])
        committed = await read(context)
        assert (committed.high_watermark, committed.last_stable_offset, committed.aborted) == (42, 32, [ABORTED])
        open_bytes = (await read(context, 32, READ_UNCOMMITTED)).length_bytes
        assert committed.length_bytes == log.size_bytes - open_bytes
        assert (await read(context, 15)).aborted == [ABORTED], "a batch is served whole"
        assert (await read(context, 21)).aborted == []
        assert (await read(context, 32)).length_bytes == 0
        beyond = await read(context, 40)
        assert (beyond.error_code, beyond.length_bytes) == (0, 0), "it is there, but undecided"
        assert (await read(context, 43)).error_code == 1

    run(tmp_path, scenario)


@pytest.mark.parametrize("max_bytes", [0, 1 << 20])
def test_a_waiting_fetch_ends_with_the_marker_not_with_the_data(tmp_path: Path, max_bytes: int) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        fill(broker)
        waiting = asyncio.ensure_future(read(context, 32, wait_ms=10_000, max_bytes=max_bytes))
        while broker.partitions.fetches.waiting_count == 0:
            await asyncio.sleep(0)
        write(broker, 10, 5)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        end(broker, 10, commit=True)
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done(), "the older transaction is open still"
        end(broker, 9, commit=False)
        found = await waiting
        assert (found.last_stable_offset, bool(found.length_bytes)) == (49, max_bytes > 0)
        assert found.aborted == ([AbortedRange(9, 32, 48)] if max_bytes else [])

    run(tmp_path, scenario)


def test_an_offset_has_the_leader_epoch_of_its_record_and_the_end_that_of_the_last_record(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        log = broker.partitions.get("t", 0).log
        for epoch in (2, 5):
            broker.partitions.get("t", 0).on_appended(
                log.appender.append(produced(-1, -1, rows=10, epoch=-1), leader_epoch=epoch)
            )
        lookups = (0, MAX_TIMESTAMP, 5_000, LATEST_TIMESTAMP, EARLIEST_TIMESTAMP)
        request = ListOffsetsRequest([ListOffsetsPartition("t", 0, timestamp_ms) for timestamp_ms in lookups])
        message = (await list_offsets(request, NOTHING, context)).message
        assert isinstance(message, ListOffsetsResponse)
        results = [(result.offset, result.leader_epoch) for result in message.results]
        assert results == [(0, 2), (0, 2), (-1, -1), (20, 5), (0, -1)]

    run(tmp_path, scenario)


def test_the_latest_offset_is_the_last_stable_one(tmp_path: Path) -> None:
    async def ask(context: RequestContext, timestamp_ms: int, isolation: int) -> int:
        request = ListOffsetsRequest([ListOffsetsPartition("t", 0, timestamp_ms)], isolation)
        message = (await list_offsets(request, NOTHING, context)).message
        assert isinstance(message, ListOffsetsResponse)
        return message.results[0].offset

    async def scenario(broker: Broker, context: RequestContext) -> None:
        assert await ask(context, LATEST_TIMESTAMP, READ_COMMITTED) == 0
        write(broker, 9, 10)
        assert await ask(context, LATEST_TIMESTAMP, READ_UNCOMMITTED) == 10
        assert await ask(context, LATEST_TIMESTAMP, READ_COMMITTED) == 0
        for asked in (0, MAX_TIMESTAMP):
            assert await ask(context, asked, READ_UNCOMMITTED) == 0
            assert await ask(context, asked, READ_COMMITTED) == -1, "nothing is found that may not be read"
        end(broker, 9, commit=True)
        assert await ask(context, LATEST_TIMESTAMP, READ_COMMITTED) == 11
        assert await ask(context, 0, READ_COMMITTED) == 0

    run(tmp_path, scenario)


def test_files_are_mapped_up_to_the_last_stable_offset(tmp_path: Path) -> None:
    async def ask(context: RequestContext, start: int, isolation: int) -> LocateSegmentsResponse:
        request = LocateSegmentsRequest("t", 0, start, 100, isolation)
        message = (await locate_segments(request, NOTHING, context)).message
        assert isinstance(message, LocateSegmentsResponse)
        return message

    async def scenario(broker: Broker, context: RequestContext) -> None:
        fill(broker)
        everything, committed = await ask(context, 0, READ_UNCOMMITTED), await ask(context, 0, READ_COMMITTED)
        assert (committed.high_watermark, committed.last_stable_offset) == (42, 32)
        assert (everything.aborted, committed.aborted) == ([], [ABORTED])
        assert committed.ranges[-1].end_position < everything.ranges[-1].end_position
        assert (await ask(context, 15, READ_COMMITTED)).aborted == [ABORTED], "its first batch begins at 10"
        assert (await ask(context, 35, READ_COMMITTED)).ranges == []

    run(tmp_path, scenario)


def test_an_answer_ends_behind_so_many_aborted_transactions(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        write(broker, 20, 1)  # ends last: it is in every answer
        for producer_id in range(30, 38):
            write(broker, producer_id, 2)
            end(broker, producer_id, commit=False)
        end(broker, 20, commit=False)
        write(broker, 9, 1)
        end(broker, 9, commit=True)
        log = broker.partitions.get("t", 0).log
        start, found, answers = 0, set(), 0
        while True:
            request = LocateSegmentsRequest("t", 0, start, 100, READ_COMMITTED)
            message = (await locate_segments(request, NOTHING, context, aborted_ranges_max=3)).message
            assert isinstance(message, LocateSegmentsResponse)
            if not message.ranges:
                break
            assert len(message.aborted) <= 4
            found |= {(a.producer_id, a.first_offset, a.last_offset) for a in message.aborted}
            parts = (Path(r.path).read_bytes()[r.start_position : r.end_position] for r in message.ranges)
            headers = [h for part in parts for _, h in iterate_batches(part)]
            assert headers[0].base_offset == start
            for header in headers:
                if header.attributes & ATTRIBUTE_TRANSACTIONAL and not header.attributes & ATTRIBUTE_CONTROL:
                    known = any(
                        a.producer_id == header.producer_id and a.first_offset <= header.base_offset <= a.last_offset
                        for a in message.aborted
                    )
                    assert known == (header.producer_id != 9)
            start, answers = headers[-1].next_offset, answers + 1
        assert start == log.log_end_offset
        assert (answers, len(found)) == (4, 9)

    run(tmp_path, scenario)


def test_a_transaction_of_several_partitions_is_seen_in_all_of_them_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One partition's marker takes long to be written; another producer's records push the high watermarks on
    meanwhile. The event loop does not write that marker itself: it would have to wait for the fsync."""
    tps = [TopicPartition("t", 0), TopicPartition("fsynced", 0)]
    gate, entered = threading.Event(), threading.Event()
    original = LogAppender.append_marker

    def slow(self: LogAppender, *args: Any, **named: Any) -> AppendInfo:
        if self._state.owner.topic == "fsynced":
            entered.set()
            assert gate.wait(30)
        return original(self, *args, **named)

    monkeypatch.setattr(LogAppender, "append_marker", slow)

    async def ends(context: RequestContext) -> list[int]:
        request = ListOffsetsRequest([ListOffsetsPartition(*tp, LATEST_TIMESTAMP) for tp in tps], READ_COMMITTED)
        message = (await list_offsets(request, NOTHING, context)).message
        assert isinstance(message, ListOffsetsResponse)
        return [r.offset for r in message.results]

    async def scenario(broker: Broker, context: RequestContext) -> None:
        await broker.topics.create(TopicSpec("fsynced", 1, configs={"flush.mode": "group"}))
        for tp in tps:
            partition = broker.partitions.get(*tp)
            guard = partition.log.appender.begin_verification(7, 0)
            partition.on_appended(
                partition.log.appender.append(produced(7, 0, rows=10, transactional=True), guard=guard)
            )
        waiting = asyncio.ensure_future(read(context, 0, wait_ms=10_000))
        writing = asyncio.ensure_future(broker.markers.write([Marker(tp, 7, 1, True) for tp in tps], 0))
        while not entered.is_set() or broker.partitions.get(*tps[0]).log.log_end_offset < 11:
            await asyncio.sleep(0.001)
        first = broker.partitions.get(*tps[0])
        first.on_appended(first.log.appender.append(produced(-1, -1, rows=5, epoch=-1)))
        assert first.log.last_stable_offset == 16, "the log knows it, and it is not served yet"
        assert await ends(context) == [0, 0]
        assert (await read(context)).length_bytes == 0
        assert not waiting.done()
        gate.set()
        assert len(await writing) == 2
        assert await ends(context) == [16, 11]
        assert (await waiting).last_stable_offset == 16

    run(tmp_path, scenario)
