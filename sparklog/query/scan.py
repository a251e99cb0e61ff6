"""Scans of a topic for DuckDB: read the offsets whose rows can pass DuckDB's filter, as record batches."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.client.net.cluster import Cluster
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.retry import Retries, RetryPolicy, until_answered
from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.reading.consumed import ConsumedBatch, data_together
from sparklog.client.reading.history_range import HistorySource
from sparklog.client.reading.offset_lookup import list_offsets
from sparklog.client.reading.range_reader import Fetching, read_range
from sparklog.errors import InvalidConfigError, LakePausedError, LakeUnavailableError, QueryCancelledError
from sparklog.format.batch import ATTRIBUTE_DELETE_HORIZON, ATTRIBUTE_LOG_APPEND_TIME, BatchHeader
from sparklog.lake.history import HistoryBatch, with_dictionaries
from sparklog.lake.settings import LakeSettings
from sparklog.query.ranges import (
    METADATA_SCHEMA,
    OFFSET,
    PARTITION,
    TIME_MS_MAX,
    TIMESTAMP,
    Filter,
    Interval,
    OffsetRange,
    plan,
)
from sparklog.settings import MIB
from sparklog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

_log = logging.getLogger(__name__)

ROWS_TOGETHER_FIRST, ROWS_TOGETHER_MAX = 2_048, 131_072
"""Number of rows that are decoded together: few at first, for statements that need only a few rows, then more."""
BYTES_TOGETHER_MAX = 16 * MIB
ROWS_IN_A_PIECE_MIN = 8_192
"""Smaller record batches are copied into one, because DuckDB's work per batch would cost more than the copy."""


class ReadOptions(NamedTuple):
    """The options of reading topics."""

    isolation: int
    """Isolation level: READ_UNCOMMITTED or READ_COMMITTED."""
    local: str
    """"auto" or "off", as in `read_table`."""
    request_timeout_ms: int
    """Time limit of requests in ms."""
    lateness_ms: int | None
    """Largest difference in ms by which a record's timestamp can be below that of an earlier record. None: any
    difference, so that a scan with a latest time goes on up to the end, and skips batches by their headers."""


@dataclass
class ScanStatistics:
    """Counters of a statement's reading so far."""

    batches_read: int = 0
    """Number of batches read."""
    batches_passed: int = 0
    """Number of batches skipped by their header."""
    bytes_read: int = 0
    """Size in bytes of the batches read: whole in mapped files, as received through the socket."""
    rows_read: int = 0
    """Number of rows read."""
    offsets_done: int = 0
    """Number of offsets that the scans have read or skipped."""
    offsets_total: int = 0
    """Number of offsets of all scans so far. It grows when a further scan begins."""


@dataclass
class Control:
    """The state that the scans of a statement share."""

    statistics: ScanStatistics = field(default_factory=ScanStatistics)
    """Counters of the statement."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set when the statement is cancelled."""
    failure: BaseException | None = None
    """The first error of a scan; None without an error. DuckDB's own error has only the text of this error."""


class TopicSnapshot(NamedTuple):
    """The state of a topic at the beginning of a statement, without later appends."""

    info: TopicInfo
    """The topic's metadata."""
    logs: Sequence[OffsetRange]
    """The offsets of each partition."""
    history: HistorySource | None = None
    """The topic's Delta table. Offsets that the table has are read from the table, all others from the log. None: all
    offsets are read from the log."""
    reaches_back: bool = False
    """True if the Delta table has offsets that the log has deleted."""


def table_schema(info: TopicInfo) -> pa.Schema:
    """Return the columns of a topic's SQL table: `_partition`, `_offset`, `_timestamp`, then the topic's columns."""
    return pa.schema([*METADATA_SCHEMA, *info.schema])


def newest_info(cluster: Cluster, topic: str, timeout_ms: int) -> TopicInfo:
    """Request the topic's metadata, with retries up to `timeout_ms`. Raises UnknownTopicOrPartitionError and the errors
    of requests."""
    attempts = Retries(RetryPolicy.within(timeout_ms))
    return until_answered(lambda remaining_ms: cluster.topic(topic, refresh=True, timeout_ms=remaining_ms), attempts)


def take_snapshot(cluster: Cluster, topic: str, options: ReadOptions, *, newest: bool = False) -> TopicSnapshot:
    """Return the current state of a topic. `newest` True: the statement needs only the newest row of each key, so an
    upserted Delta table is used, too. Raises UnknownTopicOrPartitionError and the errors of requests."""
    deadline = Deadline(options.request_timeout_ms)
    info = newest_info(cluster, topic, deadline.left_ms())
    tps = [TopicPartition(topic, p) for p in range(info.partitions)]
    isolation = options.isolation
    history = _history(info, newest=newest)  # before the ends, so that the table has no offset beyond them
    earliest = list_offsets(cluster, dict.fromkeys(tps, EARLIEST_TIMESTAMP), timeout_ms=deadline.left_ms())
    latest = list_offsets(
        cluster,
        dict.fromkeys(tps, LATEST_TIMESTAMP),
        isolation=isolation,
        all_at_once=True,
        timeout_ms=deadline.left_ms(),
    )
    # requested after the ends, so that no row before the ends has a newer schema
    info = newest_info(cluster, topic, deadline.left_ms())
    starts = {tp: earliest[tp].offset for tp in tps}
    if history is not None:
        starts = {tp: history.first_offset(tp.partition, start) for tp, start in starts.items()}
    reaches_back = any(starts[tp] < earliest[tp].offset for tp in tps)
    ends = {tp: latest[tp].offset for tp in tps}
    if history is not None and history.is_upserted:  # rows behind the ends replace rows before them
        ends = {tp: max(end, history.next_offset(tp.partition)) for tp, end in ends.items()}
    logs = [_whole_range(tp.partition, starts[tp], ends[tp]) for tp in tps]
    return TopicSnapshot(info, logs, history, reaches_back)


def _history(info: TopicInfo, *, newest: bool) -> HistorySource | None:
    """Return the topic's Delta table. None: the topic has no table, the table cannot be reached, or it is an upserted
    one, which has only the newest row of each key, and not `newest`.
    """
    settings = LakeSettings.of(info.configs, info.broker_defaults)
    if not settings.location or (settings.is_upsert and not newest):
        return None
    try:
        source = HistorySource(info, required=False, newest=newest)
    except (LakeUnavailableError, LakePausedError, InvalidConfigError) as e:
        # the rows that the log still has are better than an error
        _log.warning("reading topic %s from its log alone: %s", info.name, e)
        return None
    return None if source.history is None else source


class TopicScan:
    """One scan of a topic. Not thread-safe."""

    def __init__(
        self,
        cluster: Cluster,
        snapshot: TopicSnapshot,
        schema: pa.Schema,
        columns: Sequence[str] | None,
        row_filter: Filter,
        options: ReadOptions,
        control: Control,
    ) -> None:
        """Create a scan. `columns`: columns of the batches, in this order; None: all columns."""
        self._cluster = cluster
        self._topic = snapshot.info.name
        self._logs = snapshot.logs
        self._history = snapshot.history
        self._filter = row_filter
        self._options = options
        self._control = control
        self._columns = list(schema.names if columns is None else columns)
        names = {*self._columns, *row_filter.columns}
        self._read_schema = pa.schema([f for f in schema if f.name in names])
        self._layout = pa.schema([f for f in self._read_schema if METADATA_SCHEMA.get_field_index(f.name) < 0])
        table = None if self._history is None else self._history.history
        self._dictionaries: set[str] = set() if table is None else table.dictionary_columns(self._read_schema)
        self.schema = with_dictionaries(pa.schema([schema.field(name) for name in self._columns]), self._dictionaries)
        self._times = row_filter.times_ms()
        self._rows_together = ROWS_TOGETHER_FIRST

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows that pass the filter: first those of the Delta table, in any order, then those of the log by
        partition and offset."""
        try:
            planned = plan(self._filter, self._logs)
            ranges = self._ranges(planned if self._history is None else self._log_parts(planned, self._history))
            self._control.statistics.offsets_total += sum(r.end - r.start for r in ranges)
            if self._history is not None and self._times:
                try:
                    yield from self._from_table(planned, self._history)
                except (OSError, LakeUnavailableError) as e:  # rows of this version can have been returned already
                    raise LakeUnavailableError(
                        f"{e}. If VACUUM has removed the file during the statement, run the statement again: it then "
                        "reads the newest version of the table"
                    ) from e
            for offsets in ranges:
                for group in self._groups(offsets):
                    yield from self._rows(group, offsets.partition)
        except GeneratorExit:  # DuckDB needs no more rows
            raise
        except BaseException as e:
            self._control.failure = self._control.failure or e
            raise

    @staticmethod
    def _log_parts(ranges: Sequence[OffsetRange], source: HistorySource) -> list[OffsetRange]:
        """Return the parts of `ranges` that the Delta table lacks."""
        parts = [r.between(source.next_offset(r.partition), r.end) for r in ranges]
        return [r for r in parts if r.start < r.end]

    def _from_table(self, ranges: Sequence[OffsetRange], source: HistorySource) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the parts of `ranges` that the Delta table has."""
        history = source.history
        assert history is not None
        parts = [r._replace(end=min(r.end, source.next_offset(r.partition))) for r in ranges]
        parts = [r for r in parts if r.start < r.end]
        self._control.statistics.offsets_total += sum(r.end - r.start for r in parts)
        spans = {r.partition: (r.start, r.end) for r in parts}
        scanner = (
            history.scanner(spans, self._read_schema, self._filter.expression, self._dictionaries)
            if len(spans) == len(parts)
            else None
        )
        if scanner is not None:
            for batch in scanner.to_batches():
                self._check_cancelled()
                self._control.statistics.rows_read += batch.num_rows
                if batch.num_rows:
                    yield batch.select(self._columns)
        else:
            for r in parts:
                for table in history.read(r.partition, r.start, r.end, self._layout.names, self._layout):
                    self._check_cancelled()
                    self._control.statistics.rows_read += table.num_rows
                    yield from self._rows([table], r.partition)
        self._control.statistics.offsets_done += sum(r.end - r.start for r in parts)

    def _ranges(self, ranges: list[OffsetRange]) -> list[OffsetRange]:
        if not self._times:
            return []
        first, last = self._times[0].first, self._times[-1].last
        if first >= 0 and ranges:
            offsets = self._offsets_from(ranges, first)
            # keeps the last batch of the range, because the found row can be in it
            ranges = [r.begun_at(min(offsets[r.partition], r.end - 1)) for r in ranges if r.partition in offsets]
        lateness_ms = self._options.lateness_ms
        if lateness_ms is not None and 0 <= last + lateness_ms < TIME_MS_MAX and ranges:
            offsets = self._offsets_from(ranges, last + lateness_ms + 1)
            ranges = [r._replace(end=min(r.end, offsets.get(r.partition, r.end))) for r in ranges]
        return [r for r in ranges if r.start < r.end]

    def _offsets_from(self, ranges: Sequence[OffsetRange], time_ms: int) -> dict[int, int]:
        """Return the first offset with at least this timestamp, by partition. Partitions without one are left out."""
        times_ms = {TopicPartition(self._topic, r.partition): time_ms for r in ranges}
        return offsets_from(self._cluster, times_ms, self._options)

    def _groups(self, offsets: OffsetRange) -> Iterator[list[ConsumedBatch]]:
        """Yield the batches of a range in groups to decode together."""
        statistics = self._control.statistics
        group: list[ConsumedBatch] = []
        rows = size_bytes = 0
        done = offsets.start
        for batch in self._read(offsets):
            self._check_cancelled()
            statistics.batches_read += 1
            statistics.rows_read += batch.num_rows
            statistics.bytes_read += len(batch.message)
            statistics.offsets_done += batch.next_offset - done
            done = batch.next_offset
            group.append(batch)
            rows += batch.num_rows
            size_bytes += batch.size_bytes
            if rows >= self._rows_together or size_bytes >= BYTES_TOGETHER_MAX:
                yield group
                group, rows, size_bytes = [], 0, 0
                self._rows_together = min(4 * self._rows_together, ROWS_TOGETHER_MAX)
        statistics.offsets_done += offsets.end - done
        if group:
            yield group

    def _read(self, offsets: OffsetRange) -> Iterator[ConsumedBatch]:
        options = self._options
        return read_range(
            self._cluster,
            TopicPartition(self._topic, offsets.partition),
            offsets.start,
            offsets.end,
            columns=self._layout.names,
            layout=self._layout,
            local=options.local,
            isolation=options.isolation,
            retry_timeout_ms=options.request_timeout_ms,
            fetching=Fetching(request_timeout_ms=options.request_timeout_ms),
            is_needed=self._is_needed,
            floor=offsets.floor,
        )

    def _is_needed(self, header: BatchHeader) -> bool:
        self._check_cancelled()
        if may_have_time(header, self._times):
            return True
        self._control.statistics.batches_passed += 1
        return False

    def _check_cancelled(self) -> None:
        if self._control.cancelled.is_set():
            raise QueryCancelledError("cancelled")

    def _rows(self, group: Sequence[ConsumedBatch | HistoryBatch], partition: int) -> Iterator[pa.RecordBatch]:
        table = self._table(group, partition)
        if self._filter.expression is not None:
            table = table.filter(self._filter.expression)
        table = table.select(self._columns)
        for name in self._dictionaries.intersection(self._columns):
            at = self._columns.index(name)
            table = table.set_column(at, name, table.column(at).dictionary_encode())
        if len(table) < ROWS_IN_A_PIECE_MIN * max(column.num_chunks for column in table.columns):
            table = table.combine_chunks()
        for batch in table.to_batches():
            if batch.num_rows:
                yield batch

    def _table(self, group: Sequence[ConsumedBatch | HistoryBatch], partition: int) -> pa.Table:
        makers: dict[str, Callable[[], Any]] = {
            PARTITION: lambda: pa.repeat(pa.scalar(partition, pa.int32()), sum(b.num_rows for b in group)),
            OFFSET: lambda: pa.array(np.concatenate([b.offsets() for b in group])),
            TIMESTAMP: lambda: _timestamps(group),
        }
        names = self._layout.names
        if any(b.decoder is not None for b in group) and names:
            data = data_together(group, names)
        else:
            data = pa.Table.from_batches([b.data for b in group], self._layout)
        columns = [makers[f.name]() if f.name in makers else data.column(f.name) for f in self._read_schema]
        return pa.Table.from_arrays(columns, schema=self._read_schema)


def offsets_from(cluster: Cluster, times_ms: Mapping[TopicPartition, int], options: ReadOptions) -> dict[int, int]:
    """Return the first offset with at least the timestamp in `times_ms`, which is 0 or more, by partition.

    Partitions without such an offset are left out.
    """
    offsets = list_offsets(cluster, times_ms, isolation=options.isolation, timeout_ms=options.request_timeout_ms)
    return {tp.partition: at.offset for tp, at in offsets.items() if at.offset >= 0}


def may_have_time(header: BatchHeader, times: Sequence[Interval]) -> bool:
    """True if the timestamp of a row of the batch can be in one of the intervals, which are in ms."""
    if header.attributes & ATTRIBUTE_LOG_APPEND_TIME:
        first = last = header.append_time_ms
    else:
        # a compacted batch can have a delete horizon in place of its smallest timestamp
        has_minimum = not header.attributes & ATTRIBUTE_DELETE_HORIZON
        first, last = header.min_timestamp_ms if has_minimum else -TIME_MS_MAX, header.max_timestamp_ms
    first, last = (max(-TIME_MS_MAX, min(t, TIME_MS_MAX)) for t in (first, last))  # as in the column `_timestamp`
    return any(t.first <= last and first <= t.last for t in times)


def _whole_range(partition: int, start: int, end: int) -> OffsetRange:
    return OffsetRange(partition, start, end, start)


def _timestamps(group: Sequence[ConsumedBatch | HistoryBatch]) -> Any:
    times_ms = np.concatenate([b.timestamps_ms() for b in group])
    return pa.array(times_ms * np.int64(1000)).view(METADATA_SCHEMA.field(TIMESTAMP).type)
