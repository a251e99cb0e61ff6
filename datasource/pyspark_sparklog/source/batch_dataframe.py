"""New records for a batch DataFrame at each action.

Spark plans a batch read of a Python source once for a DataFrame. It runs the planned tasks again for each action on the
DataFrame, for a temporary view, and for each micro-batch that is joined with it. So the offsets of "earliest" and
"latest" are not in the plan: each task asks the broker for the offsets that all tasks of its action agree on. Each
partition's first task begins, and its last one ends, at those offsets. The ranges between stay as planned, so no record
is read twice or left out, regardless of the broker's answer.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import NamedTuple

from pyspark import TaskContext

from pyspark_sparklog.options.options import EARLIEST_OFFSET, LATEST_OFFSET, Position, SourceOptions
from sparklog.client.admin.offset_snapshot import snapshot_offsets
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.retry import RetryPolicy
from sparklog.client.net.topic_info import TopicInfo
from sparklog.types import TopicPartition

log = logging.getLogger("pyspark_sparklog")

FRAMES_REMEMBERED_MAX = 1_000


class Edges(NamedTuple):
    """The ends of a task's range that move with the log. `start`: True if the range starts at the log's start offset;
    `end`: True if it ends at the log's end."""

    start: bool
    end: bool


def edges_of(options: SourceOptions, tp: TopicPartition) -> Edges:
    """Return the edges of the whole range that a read with `options` covers in a partition."""
    return Edges(
        _is_open(options.starting, "earliest", EARLIEST_OFFSET, tp),
        _is_open(options.ending, "latest", LATEST_OFFSET, tp),
    )


def _is_open(position: Position, kind: str, offset: int, tp: TopicPartition) -> bool:
    if position.kind == kind:
        return True
    return position.kind == "offsets" and position.per_partition.get(tp.topic, {}).get(tp.partition) == offset


FIXED = Edges(start=False, end=False)


class Frame(NamedTuple):
    """A DataFrame's read: a unique name, and the number of partitions of each topic when the read was planned. `grows`:
    True if a new plan would also read partitions that were added since."""

    name: str
    partitions: dict[str, int]
    grows: bool

    def bounds(
        self, cluster: Cluster, tp: TopicPartition, planned: tuple[int, int], edges: Edges, isolation: int, wait_ms: int
    ) -> tuple[int, int]:
        """Return the start and end offset that the running task reads in this action. `planned`: its planned range, of
        which only the ends that `edges` names change."""
        action = _action()
        start, end = planned
        if action:
            first, last = snapshot_offsets(
                cluster, f"{self.name}/{action}", sorted(self.partitions), tp, isolation, RetryPolicy(wait_ms)
            )
            start = max(start, first) if edges.start else start
            end = last if edges.end else end
        return start, max(start, end)

    def check_partitions(self, tp: TopicPartition, info: TopicInfo) -> None:
        """Log a warning if the topic has partitions that were added after the planning, which no task reads."""
        planned = self.partitions[tp.topic]
        if self.grows and tp.partition == 0 and info.partitions > planned:
            _warnings.warn_once(
                f"{self.name}/{tp.topic}/{info.partitions}",
                f"topic {tp.topic!r} has {info.partitions} partitions now, the DataFrame was planned for {planned}: "
                "load it again to read the new partitions",
            )


def _action() -> str:
    """Return the id of the running task's action; "" outside of a task. An action without an id (`DataFrame.rdd`) gets
    the id of its stage."""
    context = TaskContext.get()
    if context is None:
        return ""
    execution = context.getLocalProperty("spark.sql.execution.id")
    return f"stage-{context.stageId()}" if execution is None else f"execution-{execution}"


class _Warnings:
    """The newest warnings of this process."""

    def __init__(self) -> None:
        self._logged: OrderedDict[str, None] = OrderedDict()

    def warn_once(self, name: str, text: str) -> None:
        """Log the text, unless the warning `name` was logged before."""
        if name not in self._logged:
            self._logged[name] = None
            log.warning("%s", text)
        while len(self._logged) > FRAMES_REMEMBERED_MAX:
            self._logged.popitem(last=False)


_warnings = _Warnings()
