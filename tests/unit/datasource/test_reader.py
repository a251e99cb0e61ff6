"""A task when the broker is away or part of its range is gone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark_sparklog.options.cluster_address import ClusterAddress
from pyspark_sparklog.options.options import SourceOptions, parse_source_options
from pyspark_sparklog.schemas import TopicShape, full_schema
from pyspark_sparklog.source import catalog, reader
from pyspark_sparklog.source.catalog import BrokerWait, Catalog
from pyspark_sparklog.source.planning import Extent
from pyspark_sparklog.source.reader import RangePartition, RangeRead, SparklogBatchReader

from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.reading.offset_lookup import LocatedOffset
from sparklog.errors import (
    BrokerNotAvailableError,
    CorruptBatchError,
    DataLossError,
    OffsetOutOfRangeError,
    SparklogError,
)
from sparklog.types import TopicPartition

TP = TopicPartition("t", 0)
SCHEMA = full_schema(TopicShape("typed", pa.schema([("n", pa.int64())])), include_headers=False, include_metadata=False)


class Topic:
    topic_id = "id"
    log_append_time = False


class Cluster:
    def topic(self, name: str, *, refresh: bool) -> Topic:
        return Topic()


class Batch:
    decoder = None

    def __init__(self, start: int, end: int) -> None:
        self.data = pa.record_batch({"n": pa.array(np.arange(start, end))})
        self.num_rows = end - start
        self.size_bytes = self.data.nbytes
        self.base_offset = start
        self.next_offset = end

    def offsets(self) -> Any:
        return np.arange(self.base_offset, self.base_offset + self.data.num_rows)


class Script:
    """Stands for `read_range`: each call plays the next step, batches of two rows, then the error if there is one."""

    def __init__(self, *steps: tuple[int, SparklogError | None]) -> None:
        self.steps = list(steps)
        self.starts: list[int] = []

    def __call__(self, cluster: Any, tp: TopicPartition, start: int, end: int, **_: Any) -> Iterator[Batch]:
        self.starts.append(start)
        until, error = self.steps.pop(0)
        for first in range(start, until, 2):
            yield Batch(first, min(first + 2, until))
        if error is not None:
            raise error


def options(**more: str) -> SourceOptions:
    given = {"sparklog.bootstrap.servers": "h:1", "subscribe": "t", "sparklog.broker.wait.ms": "60000"} | more
    return parse_source_options(given, streaming=True)


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(ClusterAddress, "connect", lambda _: Cluster())

    def run(script: Script, topic_id: str = "id", **more: str) -> list[int]:
        monkeypatch.setattr(reader, "read_range", script)
        task = RangePartition("t", 0, 0, 10, topic_id)
        found = list(RangeRead(options(**more), SCHEMA).read(task))
        return [n for batch in found for n in batch.column(0).to_pylist()]

    return run


GONE = BrokerNotAvailableError("no broker")


def test_a_batch_read_is_planned_while_another_broker_takes_over(
    play: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The leader has just died; the broker that described the topics does not know it yet."""
    info = TopicInfo("t", "id", "typed", 1, 1, {1: pa.schema([("n", pa.int64())])}, (), None, {}, 0, ())
    left = [GONE, GONE]

    def look_up(c: Any, questions: Any, attempts: Any, **_: Any) -> dict[TopicPartition, list[LocatedOffset]]:
        while left:
            attempts.pause(left.pop())
        return {tp: [LocatedOffset(n, 0, 0) for n in (3, 9)] for tp in questions}

    monkeypatch.setattr(Catalog, "topics", lambda *_, **__: {"t": info})
    monkeypatch.setattr(catalog, "look_up_offsets", look_up)
    given = {"sparklog.bootstrap.servers": "h:1", "subscribe": "t"}
    with caplog.at_level(logging.WARNING):
        (task,) = SparklogBatchReader(parse_source_options(given, streaming=False), SCHEMA).partitions()
    assert isinstance(task, RangePartition)
    assert (task.start, task.end) == (3, 9)
    assert "no broker; trying again for 60 s" in caplog.text


def test_a_batch_read_fails_at_once_without_an_answer(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Catalog, "_ask", lambda self, what, ask: BrokerWait(what, self.wait_ms).pause(GONE))
    given = {"sparklog.bootstrap.servers": "h:1", "subscribe": "t"}
    with pytest.raises(BrokerNotAvailableError, match=r"no broker$"):
        SparklogBatchReader(parse_source_options(given, streaming=False), SCHEMA).partitions()


def test_reading_goes_on_exactly_where_the_broker_went_away(play: Any, caplog: pytest.LogCaptureFixture) -> None:
    script = Script((4, GONE), (4, GONE), (10, None))
    with caplog.at_level(logging.WARNING):
        assert play(script) == list(range(10))
    assert script.starts == [0, 4, 4]
    assert caplog.text.count("trying again for 60 s") == 1
    assert caplog.text.count("the broker answers again") == 1


def test_a_broker_that_stays_away_fails_the_task(play: Any) -> None:
    with pytest.raises(
        BrokerNotAvailableError, match=r"no broker; gave up after 0\.01 s \(sparklog\.broker\.wait\.ms\)"
    ):
        play(Script(*[(4, GONE)] * 1000), **{"sparklog.broker.wait.ms": "10"})


def test_an_error_that_no_waiting_cures_fails_the_task_at_once(play: Any) -> None:
    with pytest.raises(CorruptBatchError, match="bad"):
        play(Script((4, CorruptBatchError("bad"))))


@pytest.mark.parametrize("error", [DataLossError("the log starts at 8"), OffsetOutOfRangeError("below 8")])
def test_a_gap_fails_the_task_or_is_skipped(
    play: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: SparklogError
) -> None:
    with pytest.raises(DataLossError, match=r"t-0: some unread offsets of 4 to 9 .*failOnDataLoss"):
        play(Script((4, error)))
    monkeypatch.setattr(Catalog, "extents", lambda self, partitions: {TP: Extent(8, 10)})
    script = Script((4, error), (10, None))
    with caplog.at_level(logging.WARNING):
        assert play(script, failOnDataLoss="false") == [0, 1, 2, 3, 8, 9]
    assert script.starts == [0, 8]
    assert "t-0: offsets 4 to 7 are gone" in caplog.text


def test_a_gap_that_the_log_start_does_not_explain_ends_the_task(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Catalog, "extents", lambda self, partitions: {TP: Extent(0, 20)})
    script = Script((4, DataLossError("missing in the log")))
    assert play(script, failOnDataLoss="false") == [0, 1, 2, 3]


def test_a_recreated_topic_is_not_read_as_the_old_one(play: Any) -> None:
    with pytest.raises(DataLossError, match="deleted and created again"):
        play(Script(), topic_id="old")
    assert play(Script(), topic_id="old", failOnDataLoss="false") == []


def test_waiting_can_be_switched_off() -> None:
    with pytest.raises(BrokerNotAvailableError, match=r"^no broker$"):
        BrokerWait("asking", 0).pause(GONE)
