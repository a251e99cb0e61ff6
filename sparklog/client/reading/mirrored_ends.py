"""The ends of mirrored partitions: the offsets at which a mirror continues, and the header of the last batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sparklog.client.net.cluster import Cluster
from sparklog.client.net.retry import Retries, RetryPolicy
from sparklog.client.reading.offset_lookup import find_offsets
from sparklog.client.reading.single_fetch import fetch_once
from sparklog.errors import OffsetOutOfRangeError
from sparklog.format.batch import decode_header
from sparklog.mirror.rules import NO_EPOCH
from sparklog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, READ_UNCOMMITTED, TopicPartition

NO_TIMESTAMP_MS = -1


class MirroredEnd(NamedTuple):
    """The end of a mirrored partition here."""

    start: int
    """Log start offset."""
    end: int
    """High watermark: the mirror continues here."""
    epoch: int
    """The source's leader epoch of the last batch; NO_EPOCH: not known."""
    timestamp_ms: int
    """Largest timestamp of the last batch; NO_TIMESTAMP_MS: it has none."""

    @property
    def is_empty(self) -> bool:
        """True if the partition never had a record."""
        return self.end == 0


def mirrored_ends(
    cluster: Cluster, partitions: Iterable[TopicPartition], timeout_ms: int
) -> dict[TopicPartition, MirroredEnd]:
    """Return the ends of partitions. Raises errors of the brokers."""
    attempts = Retries(RetryPolicy.within(timeout_ms))
    tps = list(partitions)
    starts = find_offsets(cluster, dict.fromkeys(tps, EARLIEST_TIMESTAMP), attempts)
    ends = find_offsets(cluster, dict.fromkeys(tps, LATEST_TIMESTAMP), attempts)
    result = {}
    for tp in tps:
        epoch, timestamp_ms = _last_batch(cluster, tp, ends[tp].offset, attempts)
        result[tp] = MirroredEnd(starts[tp].offset, ends[tp].offset, epoch, timestamp_ms)
    return result


def _last_batch(cluster: Cluster, tp: TopicPartition, end: int, attempts: Retries) -> tuple[int, int]:
    """Return the source's leader epoch and the largest timestamp of the batch before `end`."""
    if end == 0:
        return NO_EPOCH, NO_TIMESTAMP_MS
    try:
        _, payload = fetch_once(cluster, tp, end - 1, 1, READ_UNCOMMITTED, attempts)
    except OffsetOutOfRangeError:
        return NO_EPOCH, NO_TIMESTAMP_MS  # retention has removed all records
    if not payload.size:
        return NO_EPOCH, NO_TIMESTAMP_MS
    header = decode_header(memoryview(payload))
    return (header.base_sequence if header.producer_id < 0 else NO_EPOCH), header.max_timestamp_ms
