"""The ends of a read that move with the log, and a task's use of the broker's answer."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark_sparklog.options.options import parse_source_options
from pyspark_sparklog.source import batch_dataframe
from pyspark_sparklog.source.batch_dataframe import FIXED, Edges, Frame, edges_of
from pyspark_sparklog.source.planning import OffsetRange
from pyspark_sparklog.source.reader import to_moving_tasks

from sparklog.types import TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
FRAME = Frame("frame", {"t": 2}, grows=True)


def options(**more: Any) -> Any:
    given = {"sparklog.bootstrap.servers": "h:1", "subscribe": "t"} | more
    return parse_source_options({k.lower(): v for k, v in given.items()}, streaming=False)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Edges(start=True, end=True)),
        ({"startingOffsets": '{"t": {"0": -2, "1": 3}}'}, Edges(start=True, end=True)),
        ({"startingOffsets": '{"t": {"0": 3, "1": 3}}'}, Edges(start=False, end=True)),
        ({"endingOffsets": '{"t": {"0": -1, "1": 3}}'}, Edges(start=True, end=True)),
        ({"endingOffsets": '{"t": {"0": 4, "1": -1}}', "startingTimestamp": "1"}, FIXED),
    ],
)
def test_earliest_and_latest_are_open(given: dict[str, str], expected: Edges) -> None:
    assert edges_of(options(**given), T0) == expected


def test_the_last_task_of_a_partition_ends_with_the_log_and_an_empty_one_has_a_task() -> None:
    ranges = [OffsetRange(T0, 0, 10), OffsetRange(T1, 4, 4)]
    tasks = to_moving_tasks(ranges, options(maxRecordsPerPartition="5"), {"t": "id"}, FRAME)
    assert [(t.partition, t.start, t.end, *t.edges) for t in tasks] == [
        (0, 0, 5, True, False),
        (0, 5, 10, True, True),
        (1, 4, 4, True, True),
    ]
    fixed = options(endingOffsets='{"t": {"0": 10, "1": 4}}')
    assert [t.partition for t in to_moving_tasks(ranges, fixed, {"t": "id"}, FRAME)] == [0]


def test_the_newest_rows_of_a_partition_are_read_by_one_task() -> None:
    """Two tasks would read two versions of an upserted table, between which keys move to later offsets."""
    newest = options(startingOffsets="newest", maxRecordsPerPartition="5", minPartitions="4")
    tasks = to_moving_tasks([OffsetRange(T0, 0, 10)], newest, {"t": "id"}, FRAME)
    assert [(t.start, t.end, t.edges.end) for t in tasks] == [(0, 10, True)]


class Context:
    """Of a task of one action."""

    def __init__(self, execution: str | None, stage: int = 3) -> None:
        self.execution = execution
        self.stage = stage

    def getLocalProperty(self, name: str) -> str | None:
        return {"spark.sql.execution.id": self.execution}.get(name)

    def stageId(self) -> int:
        return self.stage


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Asks as a task that was planned to read offsets 5 to 10; returns its bounds and notes the name it asked under."""
    names: list[str] = []

    def run(context: Context | None, answer: Any, edges: Edges = Edges(start=True, end=True)) -> tuple[int, int]:  # noqa: B008
        def snapshot(cluster: Any, name: str, topics: Any, tp: Any, isolation: int, policy: Any) -> Any:
            names.append(name)
            return answer

        monkeypatch.setattr(batch_dataframe, "snapshot_offsets", snapshot)
        monkeypatch.setattr(batch_dataframe.TaskContext, "get", classmethod(lambda _: context))  # type: ignore[attr-defined]
        return FRAME.bounds(None, T0, (5, 10), edges, 1, 1000)  # type: ignore[arg-type]

    run.names = names  # type: ignore[attr-defined]
    return run


def test_a_task_uses_the_ends_that_its_action_agrees_on(ask: Any) -> None:
    assert ask(Context("7"), (0, 12)) == (5, 12)
    assert ask(Context("7"), (0, 12), Edges(start=True, end=False)) == (5, 10)
    assert ask(Context("8"), (7, 12)) == (7, 12)
    assert ask(Context("8"), (7, 12), Edges(start=False, end=True)) == (5, 12)
    assert ask(Context("9"), (11, 12), Edges(start=True, end=False)) == (11, 11), "all of it is gone"
    assert ask(Context(None), (0, 11)) == (5, 11)
    assert ask.names == ["frame/execution-7"] * 2 + ["frame/execution-8"] * 2 + ["frame/execution-9", "frame/stage-3"]
    assert ask(None, (0, 12)) == (5, 10), "no task of Spark's"


def test_unread_partitions_are_named_once(caplog: pytest.LogCaptureFixture) -> None:
    class Topic:
        partitions = 3

    topic: Any = Topic()
    Topic.partitions = 2
    FRAME.check_partitions(T0, topic)
    assert caplog.messages == []
    Topic.partitions = 3
    for tp in (T1, T0, T0):
        FRAME.check_partitions(tp, topic)
    FRAME._replace(name="assigned", grows=False).check_partitions(T0, topic)
    (line,) = caplog.messages
    assert "has 3 partitions now, the DataFrame was planned for 2" in line
