"""Planning, as pure functions: a micro-batch's share of the backlog, the tasks that read it, and the losses.

The arithmetic is that of Spark's Kafka source, so that the same options give the same batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from pyspark_sparklog.offsets import Positions
from sparklog.types import TopicPartition


class OffsetRange(NamedTuple):
    """Offsets [start, end) of one partition, read by one task."""

    partition: TopicPartition
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Extent(NamedTuple):
    """The readable offsets [start, end) of a partition at one moment."""

    start: int
    end: int


class Loss(NamedTuple):
    """Unread offsets of a partition that are gone. `end` is None if the end of the loss is unknown."""

    partition: TopicPartition
    start: int
    end: int | None
    reason: str

    def describe(self) -> str:
        upto = f" up to {self.end - 1}" if self.end is not None else " on"
        return f"{self.partition.topic} partition {self.partition.partition}, offsets from {self.start}{upto}: {self.reason}"


def backlog(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> int:
    """Return the number of records between `start` and `end`; a partition that is not in `start` counts as 0."""
    return sum(max(0, e - start.get(tp, e)) for tp, e in end.items())


def limit_end(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], limit: int) -> Positions:
    """Return the end of a micro-batch of about `limit` records, to which every partition gives in proportion to its
    backlog.

    A share is rounded down, but a partition with a backlog gives at least one record, so that it does not starve. So
    the batch can have up to one record per partition more than `limit`. `start` must have all partitions of `end`.
    """
    total = backlog(start, end)
    if total <= limit:
        return dict(end)
    result: Positions = {}
    for tp, last in end.items():
        size = last - start[tp]
        result[tp] = min(last, start[tp] + max(1, limit * size // total)) if size > 0 else last
    return result


def split_ranges(
    ranges: Iterable[OffsetRange], min_partitions: int | None = None, max_records: int | None = None
) -> list[OffsetRange]:
    """Return the tasks for `ranges`: at least about `min_partitions` tasks of at most `max_records` records, none of
    them empty."""
    result = [r for r in ranges if r.size > 0]
    if max_records is not None:
        result = [piece for r in result for piece in _divide(r, -(-r.size // max_records))]
    if min_partitions is None or len(result) >= min_partitions:
        return result
    total = sum(r.size for r in result)
    # ranges too small to be split take one task each and no part in the proportion of the others
    small = {r for r in result if _parts(r.size, total, min_partitions) == 1}
    rest_total = total - sum(r.size for r in small)
    rest_parts = max(min_partitions - len(small), 1)
    return [piece for r in result for piece in _divide(r, 1 if r in small else _parts(r.size, rest_total, rest_parts))]


def _parts(size: int, total: int, target: int) -> int:
    return max(1, (2 * size * target + total) // (2 * total))


def _divide(whole: OffsetRange, parts: int) -> list[OffsetRange]:
    edges = [whole.start + whole.size * i // parts for i in range(parts + 1)]
    return [OffsetRange(whole.partition, a, b) for a, b in itertools.pairwise(edges) if b > a]


class Plan(NamedTuple):
    """The readable ranges, and the losses."""

    ranges: list[OffsetRange]
    losses: list[Loss]


def readable_ranges(
    start: Positions,
    start_ids: Mapping[str, str],
    end: Positions,
    end_ids: Mapping[str, str],
    extents: Mapping[TopicPartition, Extent],
    ids: Mapping[str, str],
) -> Plan:
    """Return the readable part of the micro-batch [start, end), for the current `extents` of the partitions and `ids`
    of the topics. `start_ids`, `end_ids`: topic ids to which `start` and `end` belong.

    A partition is read from its first offset if `start` lacks it, or has it of an earlier incarnation of its topic.
    """
    ranges, losses = [], []
    for tp in sorted(end):
        stop = end[tp]
        same_start = tp in start and _may_be_one(start_ids.get(tp.topic), end_ids.get(tp.topic))
        if tp in start and not same_start:
            losses.append(Loss(tp, start[tp], None, _RECREATED))
        begin = start[tp] if same_start else 0
        if tp not in extents:
            if stop > begin:
                losses.append(Loss(tp, begin, stop, _DELETED))
            continue
        if not _may_be_one(end_ids.get(tp.topic), ids.get(tp.topic)):
            if stop > begin:
                losses.append(Loss(tp, begin, stop, _RECREATED))
            continue
        first, last = extents[tp]
        if begin < first:
            if same_start and stop > begin:
                losses.append(Loss(tp, begin, min(first, stop), f"the log begins at {first} now"))
            begin = first
        if stop > last:
            losses.append(Loss(tp, max(begin, last), stop, f"the log ends at {last} now"))
            stop = last
        ranges.append(OffsetRange(tp, begin, max(begin, stop)))
    return Plan(ranges, losses)


def next_end(
    start: Positions,
    start_ids: Mapping[str, str],
    extents: Mapping[TopicPartition, Extent],
    ids: Mapping[str, str],
    subscribed: Callable[[str], bool] = lambda _: True,
) -> tuple[Positions, Positions, list[Loss]]:
    """Return (the start of the next micro-batch, its largest possible end, the losses) for a query at `start`.

    The returned start is `start` behind the losses; a new partition starts at its first offset. Both positions cover
    exactly the existing partitions (`extents`). Partitions that only `start` has are lost, because the topic was
    deleted, or because the query does not subscribe to the topic any more (`subscribed`).
    """
    begin: Positions = {}
    losses = []
    for tp, (first, last) in extents.items():
        begin[tp] = first
        if tp not in start:
            continue
        if not _may_be_one(start_ids.get(tp.topic), ids.get(tp.topic)):
            losses.append(Loss(tp, start[tp], None, _RECREATED))
        elif start[tp] < first:
            losses.append(Loss(tp, start[tp], first, f"the log begins at {first} now"))
        elif start[tp] > last:
            losses.append(Loss(tp, last, start[tp], f"the log ends at {last} now"))
            begin[tp] = last
        else:
            begin[tp] = start[tp]
    gone = [tp for tp in sorted(start) if tp not in extents]
    losses += [Loss(tp, start[tp], None, _DELETED if subscribed(tp.topic) else UNSUBSCRIBED) for tp in gone]
    return begin, {tp: e.end for tp, e in extents.items()}, losses


def _may_be_one(before: str | None, now: str | None) -> bool:
    """True if two topic ids can belong to the same topic: they are equal, or one is None (offsets written by hand have
    no ids)."""
    return before is None or now is None or before == now


_RECREATED = "the topic was deleted and created again"
_DELETED = "the topic was deleted"
UNSUBSCRIBED = "the query no longer subscribes to this topic of its checkpoint"
