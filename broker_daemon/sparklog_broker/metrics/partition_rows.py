"""The partitions at one moment, as plain numbers, and their sums by topic.

The rows are read on the scrape's thread, beside the event loop: each number is one that was true a moment ago.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from sparklog_broker.counters.traffic import OTHERS, Traffic
from sparklog_broker.metrics.slices import Slices
from sparklog_broker.partitions.partition import Partition


class PartitionRow(NamedTuple):
    """`offline`: nobody can use it; then the numbers of its log are 0."""

    topic: str
    number: int
    replicas: int
    in_sync: int
    offline: bool
    start: int = 0
    end: int = 0
    high_watermark: int = 0
    stable: int = 0
    size_bytes: int = 0
    remote_bytes: int = 0
    segments: int = 0
    producers: int = 0


class Sums(Struct):
    """Of the partitions of one topic, or of those that are shown as `(others)`. `start`, `high_watermark`: of the
    offsets; `undecided`: records that readers of committed ones cannot see yet."""

    partitions: int = 0
    offline: int = 0
    replicas: int = 0
    in_sync: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0
    start: int = 0
    high_watermark: int = 0
    undecided: int = 0
    size_bytes: int = 0
    remote_bytes: int = 0
    segments: int = 0
    producers: int = 0

    def add(self, row: PartitionRow) -> None:
        self.partitions += 1
        self.offline += row.offline
        self.replicas += row.replicas
        self.in_sync += row.in_sync
        self.under_replicated += is_under_replicated(row)
        self.under_min_isr += row.in_sync < 1
        self.at_min_isr += row.in_sync == 1 < row.replicas
        self.start += row.start
        self.high_watermark += row.high_watermark
        self.undecided += row.high_watermark - row.stable
        self.size_bytes += row.size_bytes
        self.remote_bytes += row.remote_bytes
        self.segments += row.segments
        self.producers += row.producers


def is_under_replicated(row: PartitionRow) -> bool:
    return row.in_sync < row.replicas


def read_rows(partitions: Sequence[Partition], slices: Slices) -> list[PartitionRow]:
    """In the order of topics and numbers."""
    return sorted(_row(partition) for partition in slices.each(partitions))


def _row(partition: Partition) -> PartitionRow:
    log, replicas = partition.open_log, partition.replicas
    who = (*partition.key, len(replicas.replicas), len(replicas.isr))
    if log is None:
        return PartitionRow(*who, offline=True)
    stable = log.last_stable_offset  # before the high watermark, which may rise
    return PartitionRow(
        *who,
        offline=False,
        start=log.log_start_offset,
        end=log.log_end_offset,
        high_watermark=log.high_watermark,
        stable=stable,
        size_bytes=log.size_bytes,
        remote_bytes=log.remote_size_bytes if log.has_remote_segments else 0,
        segments=log.segment_count,
        producers=log.producer_count,
    )


def sums_by_topic(rows: Sequence[PartitionRow], traffic: Traffic, slices: Slices) -> dict[str, Sums]:
    """By topic; those without numbers of their own as one."""
    sums: dict[str, Sums] = {}
    for row in slices.each(rows):
        topic = row.topic if traffic.has_own(row.topic) else OTHERS
        sums.setdefault(topic, Sums()).add(row)
    return sums


def total(sums: dict[str, Sums]) -> Sums:
    """Of all topics."""
    all_of_them = Sums()
    for of_topic in sums.values():
        for name in Sums.__struct_fields__:
            setattr(all_of_them, name, getattr(all_of_them, name) + getattr(of_topic, name))
    return all_of_them
