"""The partitions at one time as numbers, and their sums by topic.

The scrape's thread reads the rows while the event loop runs, so the numbers of a row can be of slightly different
times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct

from sparklog.replication.cluster_image import ClusterImage
from sparklog_broker.counters.traffic import OTHERS, Traffic
from sparklog_broker.metrics.slices import Slices
from sparklog_broker.partitions.partition import Partition


class PartitionRow(NamedTuple):
    """The numbers of a partition with a replica on this broker."""

    topic: str
    number: int
    replicas: int
    in_sync: int
    offline: bool
    """True if the partition is unusable here. The numbers of its log are then 0."""
    start: int = 0
    end: int = 0
    high_watermark: int = 0
    stable: int = 0
    size_bytes: int = 0
    remote_bytes: int = 0
    segments: int = 0
    producers: int = 0
    leads: bool = True
    """True if this broker leads the partition. Only the leader reports numbers that all replicas have in common, so
    that the pages of brokers can be summed."""
    min_in_sync: int = 1
    """Number of in-sync replicas that an append with acks=all needs."""


class Sums(Struct):
    """Sums over the partitions of one topic, or of all topics shown as `(others)`."""

    held: int = 0
    """Number of partitions with a replica on this broker."""
    partitions: int = 0
    """Number of partitions led by this broker."""
    online: int = 0
    """Number of usable partitions led by this broker."""
    offline: int = 0
    replicas: int = 0
    in_sync: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    at_min_isr: int = 0
    start: int = 0
    """Sum of the log start offsets."""
    high_watermark: int = 0
    """Sum of the high watermarks."""
    undecided: int = 0
    """Number of records that readers of committed records cannot read yet."""
    size_bytes: int = 0
    remote_bytes: int = 0
    segments: int = 0
    producers: int = 0

    def add(self, row: PartitionRow) -> None:
        self.held += 1
        self.offline += row.offline
        self.size_bytes += row.size_bytes
        self.segments += row.segments
        if not row.leads:
            return
        self.partitions += 1
        self.online += not row.offline
        self.replicas += row.replicas
        self.in_sync += row.in_sync
        self.under_replicated += is_under_replicated(row)
        self.under_min_isr += is_under_min_isr(row)
        self.at_min_isr += is_at_min_isr(row)
        self.start += row.start
        self.high_watermark += row.high_watermark
        self.undecided += row.high_watermark - row.stable
        self.remote_bytes += row.remote_bytes
        self.producers += row.producers


def is_under_replicated(row: PartitionRow) -> bool:
    return row.in_sync < row.replicas


def is_under_min_isr(row: PartitionRow) -> bool:
    return row.in_sync < row.min_in_sync


def is_at_min_isr(row: PartitionRow) -> bool:
    """True if the loss of one more replica would stop appends; never for a partition without a spare replica."""
    return row.in_sync == row.min_in_sync < row.replicas


def read_rows(
    partitions: Sequence[Partition], slices: Slices, broker_id: int = -1, image: ClusterImage | None = None
) -> list[PartitionRow]:
    """Return the rows, sorted by topic and number. With `image`, only partitions with a replica on broker
    `broker_id`."""
    here = (p for p in slices.each(partitions) if image is None or broker_id in p.replicas.replicas)
    return sorted(_row(partition, broker_id, image) for partition in here)


def _row(partition: Partition, broker_id: int, image: ClusterImage | None) -> PartitionRow:
    log, replicas = partition.open_log, partition.replicas
    identity = (*partition.key, len(replicas.replicas), len(replicas.isr))
    leads, min_in_sync = True, 1
    if image is not None:
        leads = replicas.leader == broker_id
        topic = image.topics.get(partition.key.topic)
        min_in_sync = 1 if topic is None else image.min_insync(topic, len(replicas.replicas))
    if log is None:
        return PartitionRow(*identity, offline=True, leads=leads, min_in_sync=min_in_sync)
    stable = log.last_stable_offset  # read before the high watermark, which may rise
    return PartitionRow(
        *identity,
        offline=False,
        start=log.log_start_offset,
        end=log.log_end_offset,
        high_watermark=log.high_watermark,
        stable=stable,
        size_bytes=log.size_bytes,
        remote_bytes=log.remote_size_bytes if log.has_remote_segments else 0,
        segments=log.segment_count,
        producers=log.producer_count,
        leads=leads,
        min_in_sync=min_in_sync,
    )


def sums_by_topic(rows: Sequence[PartitionRow], traffic: Traffic, slices: Slices) -> dict[str, Sums]:
    """Return the sums by topic. Topics without separate numbers share one entry."""
    sums: dict[str, Sums] = {}
    for row in slices.each(rows):
        topic = row.topic if traffic.has_own(row.topic) else OTHERS
        sums.setdefault(topic, Sums()).add(row)
    return sums


def total(sums: dict[str, Sums]) -> Sums:
    """Return the sums over all topics."""
    all_of_them = Sums()
    for of_topic in sums.values():
        for name in Sums.__struct_fields__:
            setattr(all_of_them, name, getattr(all_of_them, name) + getattr(of_topic, name))
    return all_of_them
