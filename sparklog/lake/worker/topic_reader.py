"""Reads of a lake worker's round from the log: the offsets of a topic, and the rows of its partitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from sparklog.client.net.cluster import Cluster
from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.reading.consumed import ConsumedBatch, data_together
from sparklog.client.reading.offset_lookup import list_offsets
from sparklog.client.reading.range_reader import Fetching, read_range
from sparklog.errors import LakeUnavailableError
from sparklog.format.batch import ATTRIBUTE_TRANSACTIONAL, BatchHeader
from sparklog.format.schema import TIMESTAMP_TYPE
from sparklog.lake.rules import PartitionEnds, Span
from sparklog.settings import MIB
from sparklog.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    READ_COMMITTED,
    TopicPartition,
)

WRITE_ROWS = 131_072
WRITE_BYTES = 16 * MIB
FETCH_BYTES = 8 * MIB


class TopicReader:
    """Reads topics for the rounds of a worker, through the native client."""

    def __init__(self, cluster: Cluster, timeout_ms: int) -> None:
        """Create a reader. `timeout_ms`: time limit of each request, and of the wait for a broker that does not
        answer."""
        self._cluster = cluster
        self._timeout_ms = timeout_ms

    def ends_and_topic(self, info: TopicInfo) -> tuple[dict[int, PartitionEnds], TopicInfo]:
        """Return the offsets of all partitions, then the topic as it is afterwards: no row below the ends has a newer
        schema. Raises LakeUnavailableError: The topic was created again."""
        ends = self.ends(info)
        newest = self._cluster.topic(info.name, refresh=True, timeout_ms=self._timeout_ms)
        if newest.topic_id != info.topic_id or newest.partitions < info.partitions:
            raise LakeUnavailableError(f"topic {info.name!r} was created again during the round: the next one follows")
        return ends, newest

    def ends(self, info: TopicInfo) -> dict[int, PartitionEnds]:
        """Return the offsets of all partitions of a topic.

        The `stable` ends of all partitions come from one request, so that of each transaction all records are below
        them or none. The high watermarks are requested afterwards, so that they are not below these ends."""
        cluster, timeout_ms = self._cluster, self._timeout_ms
        tps = [TopicPartition(info.name, p) for p in range(info.partitions)]
        latest = dict.fromkeys(tps, LATEST_TIMESTAMP)
        stable = list_offsets(cluster, latest, isolation=READ_COMMITTED, all_at_once=True, timeout_ms=timeout_ms)
        high = list_offsets(cluster, latest, timeout_ms=timeout_ms)
        start = list_offsets(cluster, dict.fromkeys(tps, EARLIEST_TIMESTAMP), timeout_ms=timeout_ms)
        return {tp.partition: PartitionEnds(start[tp].offset, stable[tp].offset, high[tp].offset) for tp in tps}

    def read(
        self,
        info: TopicInfo,
        partition: int,
        span: Span,
        columns: Sequence[str],
        schema: pa.Schema,
        write: Callable[[pa.Table], object],
    ) -> bool:
        """Read the committed rows of a span. `info`: the topic, requested after the end of the span was known, so that
        it has the schemas of all rows. `schema`: columns of the rows: `columns`, then `_partition`, `_offset` and
        `_timestamp`. `write`: called with tables of rows in offset order; reading ends when it returns True. Returns
        True if a batch that was read belongs to a transaction."""
        has_transactions = False

        def note_transaction(header: BatchHeader) -> bool:
            nonlocal has_transactions
            has_transactions = has_transactions or bool(header.attributes & ATTRIBUTE_TRANSACTIONAL)
            return True

        waiting: list[ConsumedBatch] = []
        rows = size = 0
        for batch in read_range(
            self._cluster,
            TopicPartition(info.name, partition),
            span.start,
            span.end,
            columns=columns,
            layout=pa.schema([schema.field(c) for c in columns]),
            isolation=READ_COMMITTED,
            is_needed=note_transaction,
            retry_timeout_ms=self._timeout_ms,
            fetching=Fetching(max_bytes=FETCH_BYTES, request_timeout_ms=self._timeout_ms),
        ):
            waiting.append(batch)
            rows += batch.num_rows
            size += batch.size_bytes
            if rows >= WRITE_ROWS or size >= WRITE_BYTES:
                if write(_with_position(waiting, partition, columns, schema)) is True:
                    return has_transactions
                waiting, rows, size = [], 0, 0
        if waiting:
            write(_with_position(waiting, partition, columns, schema))
        return has_transactions


def _with_position(
    batches: Sequence[ConsumedBatch], partition: int, columns: Sequence[str], schema: pa.Schema
) -> pa.Table:
    data = data_together(batches, columns)
    n = data.num_rows
    times_us = np.concatenate([b.timestamps_ms() for b in batches]) * np.int64(1000)
    offsets = np.concatenate([b.offsets() for b in batches])
    position = [
        pa.array(np.full(n, partition, np.int32)),
        pa.array(offsets.astype(np.int64, copy=False)),
        pa.array(times_us).view(TIMESTAMP_TYPE),
    ]
    return pa.table([*data.columns, *position], schema=schema)
