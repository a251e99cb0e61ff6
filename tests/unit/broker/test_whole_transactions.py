"""Ends of several partitions in one request, around transactions that an open one holds back in part."""

from __future__ import annotations

import time
from pathlib import Path
from unittest import mock

import pytest
from sparklog_broker.broker import Broker
from sparklog_broker.handlers import snapshots
from sparklog_broker.handlers.offsets import list_offsets
from sparklog_broker.handlers.snapshots import snapshot_offsets
from sparklog_broker.request_context import RequestContext

from sparklog.errors import LogCorruptError, UnknownTopicOrPartitionError
from sparklog.log.parts.log_reader import LogReader
from sparklog.protocol.messages import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    SnapshotOffsetsRequest,
    SnapshotOffsetsResponse,
)
from sparklog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_COMMITTED, READ_UNCOMMITTED
from tests.support.brokers import run
from tests.support.logs import ManualClock
from tests.support.producers import produced

NOTHING = memoryview(b"")


class Transaction:
    """A transaction of one producer, and its start in ms."""

    def __init__(self, broker: Broker, producer_id: int) -> None:
        self.broker = broker
        self.producer_id = producer_id
        self.started_ms = time.time_ns() // 1_000_000
        self.rows: dict[int, int] = {}

    def write(self, partition: int, rows: int = 1) -> None:
        found = self.broker.partitions.get("t", partition)
        guard = found.log.appender.begin_verification(self.producer_id, 1)
        sequence = self.rows.get(partition, 0)
        batch = produced(self.producer_id, sequence, epoch=1, rows=rows, transactional=True)
        self.rows[partition] = sequence + rows
        found.on_appended(found.log.appender.append(batch, guard=guard))

    def end(self, *, commit: bool = True) -> None:
        for partition in self.rows:
            found = self.broker.partitions.get("t", partition)
            append = found.log.appender.append_marker
            found.on_appended(append(self.producer_id, 2, 0, commit=commit, started_ms=self.started_ms))


async def ends(context: RequestContext, isolation: int = READ_COMMITTED) -> list[int]:
    """The ends of both partitions: with one request for both, and as the tasks of a DataFrame agree on them."""
    asked = [ListOffsetsPartition("t", p, at) for at in (LATEST_TIMESTAMP, EARLIEST_TIMESTAMP) for p in range(2)]
    answer = (await list_offsets(ListOffsetsRequest(asked, isolation, True), NOTHING, context)).message
    assert isinstance(answer, ListOffsetsResponse)
    found = [r.offset for r in answer.results]
    assert found[2:] == [0, 0]
    name = f"action {len(context.broker.offset_snapshots._by_owner.get(context.principal, ()))}"
    for p in range(2):
        request = SnapshotOffsetsRequest(name, ["t"], "t", p, isolation)
        extent = (await snapshot_offsets(request, NOTHING, context)).message
        assert isinstance(extent, SnapshotOffsetsResponse)
        assert (extent.start, extent.end) == (0, found[p])
    return found[:2]


def test_the_ends_of_one_request_lie_inside_no_transaction(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        plain = Transaction(broker, 7)
        plain.write(0, 2)
        plain.write(1, 3)
        plain.end()
        assert await ends(context) == [3, 4]
        holding = Transaction(broker, 8)
        holding.write(0)
        behind, overlapping = Transaction(broker, 9), Transaction(broker, 10)
        overlapping.write(1)
        behind.write(1, 2)
        behind.write(0)
        behind.end()
        assert await ends(context) == [3, 4], "(1) is behind the open one in partition 0, so it is behind in 1"
        overlapping.end()
        assert await ends(context) == [3, 5], "what is whole is visible"
        assert await ends(context, READ_UNCOMMITTED) == [6, 9]
        holding.end(commit=False)
        assert await ends(context) == [7, 9]

    run(tmp_path, scenario)


def test_a_transaction_on_both_sides_in_one_partition_is_whole_too(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        early, holding = Transaction(broker, 7), Transaction(broker, 8)
        early.write(0)
        early.write(1)
        holding.write(0)
        early.write(0)
        early.end()
        assert await ends(context) == [0, 0]
        holding.end()
        assert await ends(context) == [5, 2]

    run(tmp_path, scenario)


def test_one_cut_leads_to_another_that_began_earlier(tmp_path: Path) -> None:
    """The transaction behind the open one overlaps in partition 1 with one that began before, which is cut then."""

    async def scenario(broker: Broker, context: RequestContext) -> None:
        clock = ManualClock(time.time_ns() // 1_000_000)
        for p in range(2):
            broker.partitions.get("t", p).log._state.clock = clock
        oldest, behind, holding = (Transaction(broker, 7 + i) for i in range(3))
        oldest.write(0)
        clock.time_ms += 10 * snapshots.CLOCKS_APART_MS
        behind.started_ms = clock.time_ms
        behind.write(1)
        oldest.write(1)
        oldest.end()
        holding.write(0)
        behind.write(0)
        behind.end()
        with mock.patch.object(LogReader, "commits", autospec=True, side_effect=LogReader.commits) as read:
            assert await ends(context) == [0, 0]
        since = list(dict.fromkeys(call.args[2] for call in read.call_args_list))
        assert since == sorted(since, reverse=True) and len(since) == 3, "by and by, from the newest commits backwards"

    run(tmp_path, scenario)


def test_headers_are_read_only_behind_an_open_transaction(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        with mock.patch.object(LogReader, "commits", autospec=True, side_effect=LogReader.commits) as read:
            done, opened = Transaction(broker, 7), Transaction(broker, 8)
            done.write(0)
            done.end()
            await ends(context)
            opened.write(0)
            opened.write(1)
            await ends(context)
            aborted = Transaction(broker, 9)
            aborted.write(0)
            aborted.end(commit=False)
            await ends(context)
            assert not read.called, "nothing is committed behind the open transaction"
            behind = Transaction(broker, 10)
            behind.write(0)
            behind.end()
            await ends(context, READ_UNCOMMITTED)
            assert not read.called
            await ends(context)
            assert read.called

    run(tmp_path, scenario)


def test_a_partition_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        broker.partitions.get("t", 1).take_offline(LogCorruptError("t-1 is damaged"))
        asked = [ListOffsetsPartition("t", p, LATEST_TIMESTAMP) for p in range(3)]
        answer = (await list_offsets(ListOffsetsRequest(asked, READ_COMMITTED, True), NOTHING, context)).message
        assert isinstance(answer, ListOffsetsResponse)
        assert [(r.error_code, r.message) for r in answer.results[:2]] == [(0, ""), (21, "t-1 is damaged")]
        assert answer.results[2].error_code == UnknownTopicOrPartitionError.code

    run(tmp_path, scenario)


def test_too_many_commits_to_compare_leave_the_last_stable_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        holding = Transaction(broker, 7)
        holding.write(0)
        for number in range(3):
            behind = Transaction(broker, 8 + number)
            behind.write(1)
            behind.write(0)
            behind.end()
        monkeypatch.setattr(snapshots, "COMMITS_MAX", 5)
        assert await ends(context) == [0, 6]
        assert "6 transactions were committed behind an open transaction; at most 5 can be compared" in caplog.text
        monkeypatch.setattr(snapshots, "COMMITS_MAX", 6)
        assert await ends(context) == [0, 0]

    run(tmp_path, scenario)
