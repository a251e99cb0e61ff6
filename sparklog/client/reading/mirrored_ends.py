"""The ends of mirrored partitions: the offsets at which a mirror continues, and the header of the last batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from sparklog.client.net.cluster import Cluster
from sparklog.client.net.retry import Retries, RetryPolicy
from sparklog.client.reading.offset_lookup import find_offsets
from sparklog.client.reading.range_reader import read_range
from sparklog.client.reading.single_fetch import fetch_once
from sparklog.errors import OffsetOutOfRangeError
from sparklog.format.batch import BatchHeader, decode_header
from sparklog.format.offset_column import decode_rows
from sparklog.metadata.refused_topics import REFUSED_SCHEMA, refused_topic
from sparklog.mirror.refused import RefusedLog
from sparklog.mirror.rules import NO_EPOCH, NO_SCHEMA
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
    schema_id: int = NO_SCHEMA
    """Id of the last batch's schema; NO_SCHEMA: not known."""

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
        batch = _last_batch(cluster, tp, ends[tp].offset, attempts)
        result[tp] = MirroredEnd(starts[tp].offset, ends[tp].offset, NO_EPOCH, NO_TIMESTAMP_MS)
        if batch is not None:
            header = batch[0]
            epoch = header.base_sequence if header.producer_id < 0 else NO_EPOCH
            result[tp] = result[tp]._replace(
                epoch=epoch, timestamp_ms=header.max_timestamp_ms, schema_id=header.schema_id
            )
    return result


def refused_logs(
    cluster: Cluster, ends: Mapping[TopicPartition, int], timeout_ms: int
) -> dict[TopicPartition, RefusedLog]:
    """Return the states of the refused logs of partitions of typed topics. `ends`: log ends of the partitions. Raises
    errors of the brokers."""
    refused = {tp: TopicPartition(refused_topic(tp.topic), tp.partition) for tp in ends}
    their_ends = mirrored_ends(cluster, refused.values(), timeout_ms)
    logs = {}
    for tp, end in ends.items():
        log = their_ends[refused[tp]]
        ahead: list[int] = []
        if log.end > max(end, log.start):
            for batch in read_range(
                cluster, refused[tp], max(end, log.start), log.end, columns=("number",), retry_timeout_ms=timeout_ms
            ):
                ahead += batch.offsets().tolist()
        count = _last_number(cluster, refused[tp], log, Retries(RetryPolicy.within(timeout_ms)))
        logs[tp] = RefusedLog(log.start, log.end, log.epoch, count, frozenset(ahead))
    return logs


def _last_number(cluster: Cluster, tp: TopicPartition, log: MirroredEnd, attempts: Retries) -> int:
    """Return the number of the last row of a refused log, which can end with gaps; 0 if it has no row."""
    end = log.end
    while end > log.start:
        batch = _last_batch(cluster, tp, end, attempts)
        if batch is None:
            return 0
        header, data = batch
        if header.record_count:
            rows, _ = decode_rows(data[: header.size_bytes], REFUSED_SCHEMA, header)
            return int(rows.column("number")[-1].as_py() or 0)
        end = header.base_offset
    return 0


def _last_batch(
    cluster: Cluster, tp: TopicPartition, end: int, attempts: Retries
) -> tuple[BatchHeader, memoryview] | None:
    """Return the batch before `end`, with its header and more bytes; None if there is none, or retention has removed
    it."""
    if end == 0:
        return None
    try:
        _, payload = fetch_once(cluster, tp, end - 1, 1, READ_UNCOMMITTED, attempts)
    except OffsetOutOfRangeError:
        return None
    return (decode_header(memoryview(payload)), memoryview(payload)) if payload.size else None
