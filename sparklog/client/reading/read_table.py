"""`read_table`: reads the rows that a topic has now into one Arrow table."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.client.net import arguments as arg
from sparklog.client.net.cluster import Cluster, cluster
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.retry import Retries, RetryPolicy, until_answered
from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.reading.consumed import ConsumedBatch, Projection
from sparklog.client.reading.isolation import isolation_of
from sparklog.client.reading.offset_lookup import list_offsets
from sparklog.client.reading.positions import Position, offsets_of, position_of
from sparklog.client.reading.progress_bar import notebook_bar
from sparklog.client.reading.range_reader import Fetching, read_range
from sparklog.client.reading.row_filter import binding_error, columns_of
from sparklog.errors import InvalidRequestError, OffsetOutOfRangeError
from sparklog.format.schema import TIMESTAMP_TYPE
from sparklog.lake.settings import LakeSettings
from sparklog.security.client_security import Security
from sparklog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, OffsetAndTimestamp, TopicPartition

if TYPE_CHECKING:
    from sparklog.client.reading.history_range import HistorySource
    from sparklog.lake.history import HistoryBatch

METADATA_FIELDS = (
    pa.field("_topic", pa.string()),
    pa.field("_partition", pa.int32()),
    pa.field("_offset", pa.int64()),
    pa.field("_timestamp", TIMESTAMP_TYPE),
)

Bound = str | int | datetime | date | Mapping[int, "str | int | datetime | date"]


@arg.servers_may_follow("topic")
@arg.takes(
    topic=arg.behind_servers("read_table(bootstrap_servers, topic)"),
    columns=arg.optional(arg.texts),
    include_metadata=arg.flag,
    limit=arg.optional(arg.whole()),
    batches=arg.flag,
    local=arg.text,
    isolation_level=arg.text,
    request_timeout_ms=arg.timeout,
    history=arg.flag,
    latest=arg.flag,
)
def read_table(
    bootstrap_servers: str | Sequence[str] | None,
    topic: str,
    columns: Sequence[str] | None = None,
    start: Bound = "earliest",
    end: Bound = "latest",
    include_metadata: bool = False,
    *,
    filter: Any = None,
    limit: int | None = None,
    batches: bool = False,
    local: str = "auto",
    isolation_level: str = "read_committed",
    request_timeout_ms: int = 30_000,
    security: Security = None,
    history: bool = False,
    latest: bool = False,
) -> pa.Table | pa.RecordBatchReader:
    """Read a topic's rows up to now, partition after partition, in the layout of the topic's newest schema.

    Args:
        bootstrap_servers: "host:port,…" or a list of addresses. None: the variable SPARKLOG_BOOTSTRAP_SERVERS, else
            127.0.0.1:9292. The argument can be left out, or be given by name after the topic.
        topic: The topic's name.
        columns: Names of the columns to read, in this order. None: all.
        start: The first record (inclusive): "earliest", "latest", an offset for all partitions, a negative number for
            offsets before the end, a datetime or a text for a time ("-1h", "yesterday", "2026-11-27T10:00"; see
            `sparklog.times`), or {partition: one of these}. Partitions that the dict does not name are not read. A time
            stands for the offset of the first record that is not older; later records can be older.
        end: The end of the range (exclusive), in the same forms.
        include_metadata: True appends the columns _topic, _partition, _offset and _timestamp.
        filter: An Arrow expression, as in `pc.field("minutes") > 60`; only rows for which it is true are returned. It
            can use every column of the topic, and _topic, _partition, _offset and _timestamp. None: all rows.
        limit: Largest number of rows. Reading stops at it. None: no limit.
        batches: True returns a reader of record batches, which reads as it is iterated, with a progress bar in
            notebooks. The range is fixed at the call.
        local: "auto" maps the broker's files if they are visible on this host; "off" reads through the socket.
        isolation_level: "read_committed" leaves out records of open and aborted transactions, and ends at the first
            open transaction; "read_uncommitted" reads all.
        request_timeout_ms: The longest wait in ms for a broker that does not answer, counted from the last rows.
        security: Client settings by their dotted names, or the path of a properties file. None: plaintext.
        history: True also reads offsets that the log has deleted and the topic's Delta table still has. All offsets
            that the table has are read from the table, and the others from the log. "earliest" is the table's first
            offset then. Rows that were deleted from the table are not read.
        latest: True reads the newest row of each key, without deleted keys. A row deletes its key if all columns but
            the key and the timestamp column are null, or if its column `_op` is "d" or "delete". Rows that the log has
            deleted and the topic's Delta table still has are included. `filter` and `limit` are applied to the newest
            rows.

    Returns:
        The rows; an empty table with the topic's columns if there are none. With `batches` a `pa.RecordBatchReader`.

    Raises:
        UnknownTopicOrPartitionError: The topic or a named partition does not exist.
        SchemaMismatchError: The topic does not have a column.
        OffsetOutOfRangeError: `start` lies below the beginning of a partition.
        DataLossError: Records were deleted during the read.
        InvalidRequestError: `start`, `end`, `filter` or another argument has a form that is not listed here; `history`
            and `latest` are both True; or with `latest` the topic has no key columns.
        InvalidConfigError: An address, a security setting, `local` or `isolation_level` is wrong; with `history` the
            topic has no Delta table with all rows; or the package deltalake is needed and not installed.
        LakeUnavailableError: With `history` or `latest` the Delta table cannot be read.
        LakePausedError: With `history` or `latest` the Delta table was overwritten and has no offsets.
        BrokerNotAvailableError: No broker could be reached within `request_timeout_ms`.
        RequestTimedOutError: No broker has answered within `request_timeout_ms`.

    Example:
        ```python
        table = sparklog.read_table("trips", columns=["zone", "minutes"], start="yesterday", end="today")
        table = sparklog.read_table("trips", bootstrap_servers="127.0.0.1:9292")
        ```
    """
    isolation = isolation_of(isolation_level)
    shared = cluster(bootstrap_servers, security)
    deadline, attempts = Deadline(request_timeout_ms), Retries(RetryPolicy.within(request_timeout_ms))

    def newest() -> TopicInfo:
        return until_answered(lambda remaining_ms: shared.topic(topic, refresh=True, timeout_ms=remaining_ms), attempts)

    if history and latest:
        raise InvalidRequestError("history and latest are both True: latest includes the history; leave history out")
    source: HistorySource | None = None
    topic_info = newest() if history or latest else None
    if topic_info is not None and (history or LakeSettings.of(topic_info.configs, topic_info.broker_defaults).location):
        from sparklog.client.reading.history_range import HistorySource

        source = HistorySource(topic_info, required=history, newest=latest)
    ranges = _ranges(shared, newest(), start, end, isolation, deadline, source)
    info = newest()  # asked after the ranges' ends: no row of the ranges has a newer schema
    reading: dict[str, Any] = {
        "local": local,
        "isolation": isolation,
        "retry_timeout_ms": request_timeout_ms,
        "fetching": Fetching(request_timeout_ms=request_timeout_ms),
    }
    if source is not None:
        reading["reaches_table_end"] = end == "latest"
    chosen = _chosen(info, columns, filter, include_metadata=include_metadata, latest=latest)
    rows = _Rows(shared, info, ranges, source, reading, chosen, filter=filter, limit=limit)
    if latest:
        table = rows.newest_of_each_key()
        return table.to_reader() if batches else table
    if batches:
        return pa.RecordBatchReader.from_batches(chosen.schema, rows.batches(with_bar=True))
    return pa.Table.from_batches(rows.batches(), chosen.schema)


class _Columns(NamedTuple):
    """The columns of a result, and the columns to read for it."""

    schema: pa.Schema
    """The layout of the result."""
    names: Sequence[str] | None
    """Names of the topic's columns to read, in order; None for all."""
    layout: pa.Schema
    """The topic's columns to read, among them columns that only the filter or the choice of the newest rows needs."""
    whole: pa.Schema
    """The columns of `layout`, and those of metadata."""
    has_metadata: bool
    """True if the result or the filter has columns of metadata."""


def _chosen(
    info: TopicInfo, columns: Sequence[str] | None, expression: Any, *, include_metadata: bool, latest: bool
) -> _Columns:
    """Return the columns for a result with `columns` (None: all) and the filter `expression`. Raises
    InvalidRequestError (`filter`), SchemaMismatchError."""
    schema = Projection(info, columns).schema
    needed = () if expression is None else _filter_columns(expression, info)
    stored, names = set(info.schema.names), None
    if columns is not None and not latest:
        names = [n for n in dict.fromkeys([*schema.names, *needed]) if n in stored]
    layout = Projection(info, names).schema
    has_metadata = include_metadata or not stored.issuperset(needed)
    if include_metadata:
        for field in METADATA_FIELDS:
            schema = schema.append(field)
    return _Columns(schema, names, layout, pa.schema([*layout, *METADATA_FIELDS]), has_metadata)


class _Rows:
    """The rows of ranges of a topic."""

    def __init__(
        self,
        shared: Cluster,
        info: TopicInfo,
        ranges: Mapping[TopicPartition, tuple[int, int]],
        source: HistorySource | None,
        reading: Mapping[str, Any],
        columns: _Columns,
        *,
        filter: Any,
        limit: int | None,
    ) -> None:
        """`reading`: arguments of `read_range`."""
        self._cluster = shared
        self._info = info
        self._ranges = ranges
        self._source = source
        self._reading = reading
        self._columns = columns
        self._filter = filter
        self._limit = limit

    def batches(self, *, with_bar: bool = False) -> Iterator[pa.RecordBatch]:
        """Yield the rows, partition after partition, with a progress bar in notebooks if `with_bar`."""
        total, done, rows = sum(last - first for first, last in self._ranges.values()), 0, 0
        bar = notebook_bar(total) if with_bar else None
        for tp, (first, last) in self._ranges.items():
            if rows == self._limit:
                break
            for batch in self._read(tp, first, last):
                data = _with_metadata(batch, self._columns.whole) if self._columns.has_metadata else batch.data
                table = self._select(pa.Table.from_batches([data]), rows)
                rows += table.num_rows
                if bar is not None:
                    bar(done + min(batch.next_offset, last) - first, rows)
                yield from table.to_batches()
                if rows == self._limit:
                    break
            done += last - first
        if bar is not None:
            bar(total, rows)

    def newest_of_each_key(self) -> pa.Table:
        """Return the newest row of each key."""
        from sparklog.client.reading.latest_rows import LatestRows

        kept = LatestRows(self._info)
        for tp, (first, last) in self._ranges.items():
            for batch in self._read(tp, first, last):
                kept.add(pa.Table.from_batches([_with_metadata(batch, self._columns.whole)]))
            kept.end_partition()
        return self._select(kept.result(self._columns.whole), 0)

    def _read(self, tp: TopicPartition, first: int, last: int) -> Iterable[ConsumedBatch | HistoryBatch]:
        reading = {**self._reading, "layout": self._columns.layout}
        if self._source is None:
            return read_range(self._cluster, tp, first, last, columns=self._columns.names, **reading)
        from sparklog.client.reading.history_range import read_range_with_history

        columns = self._columns.layout.names
        return read_range_with_history(self._cluster, tp, first, last, self._source, columns=columns, **reading)

    def _select(self, table: pa.Table, rows: int) -> pa.Table:
        """Return the rows and columns of `table` that belong to the result, which has `rows` rows already."""
        table = table if self._filter is None else table.filter(self._filter)
        return table.slice(0, None if self._limit is None else self._limit - rows).select(self._columns.schema.names)


def _filter_columns(expression: Any, info: TopicInfo) -> tuple[str, ...]:
    """Return the columns that a filter uses. Raises InvalidRequestError."""
    rows = pa.schema([*info.schema, *METADATA_FIELDS])
    error = binding_error(expression, rows)
    if error is not None:
        raise InvalidRequestError(
            f"filter={expression!s:.200}: an Arrow expression over the columns {', '.join(rows.names)} is needed, as "
            f"in pc.field('_partition') == 0 ({error})"
        ) from error
    return columns_of(expression, rows)


def _ranges(
    shared: Cluster,
    info: TopicInfo,
    start: Bound,
    end: Bound,
    isolation: int,
    deadline: Deadline,
    source: HistorySource | None,
) -> dict[TopicPartition, tuple[int, int]]:
    partitions = list(range(info.partitions))
    for bound in (start, end):
        if isinstance(bound, Mapping):
            for p in bound:
                info.check_partition(p)
            partitions = [p for p in partitions if p in bound]
    tps = [TopicPartition(info.name, p) for p in partitions]
    if not tps:
        return {}
    remaining_ms = deadline.left_ms
    earliest = list_offsets(shared, dict.fromkeys(tps, EARLIEST_TIMESTAMP), timeout_ms=remaining_ms())
    latest = list_offsets(
        shared, dict.fromkeys(tps, LATEST_TIMESTAMP), isolation=isolation, all_at_once=True, timeout_ms=remaining_ms()
    )
    low = {tp: earliest[tp].offset for tp in tps}
    if source is not None:
        low = {tp: source.first_offset(tp.partition, offset) for tp, offset in low.items()}
    high = {tp: latest[tp].offset for tp in tps}

    def ask(specs: Mapping[TopicPartition, str | int]) -> Mapping[TopicPartition, OffsetAndTimestamp]:
        located = dict(list_offsets(shared, specs, isolation=isolation, timeout_ms=remaining_ms()))
        if source is not None:  # perhaps only the table still has the first row that is not older
            for tp, time_ms in specs.items():
                offset = source.first_offset_from(tp.partition, int(time_ms))
                if offset is not None:
                    located[tp] = OffsetAndTimestamp(offset, int(time_ms))
        return located

    now_ms = time.time_ns() // 1_000_000
    firsts, lasts = (
        {
            tp: offset
            for position, chosen in _positions(bound, tps, now_ms, name).items()
            for tp, offset in offsets_of(position, chosen, low, high, ask).items()
        }
        for name, bound in (("start", start), ("end", end))
    )
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    for tp in tps:
        first, last = firsts[tp], min(lasts[tp], high[tp])
        if first < low[tp]:
            raise OffsetOutOfRangeError(
                f"{tp} begins at offset {low[tp]}: offset {first} is gone; use start='earliest'"
            )
        if first < last:
            ranges[tp] = (first, last)
    return ranges


def _positions(
    bound: Bound, tps: Sequence[TopicPartition], now_ms: int, name: str
) -> dict[Position, list[TopicPartition]]:
    """Return, by position, the partitions that `bound` gives it to. Raises InvalidRequestError."""
    by_position: dict[Position, list[TopicPartition]] = {}
    for tp in tps:
        value = bound[tp.partition] if isinstance(bound, Mapping) else bound
        try:
            by_position.setdefault(position_of(value, now_ms), []).append(tp)
        except InvalidRequestError as e:
            raise InvalidRequestError(f"{name}={value!r}: {e}, or a dict of these by partition") from e
    return by_position


def _with_metadata(batch: ConsumedBatch | HistoryBatch, schema: pa.Schema) -> pa.RecordBatch:
    n = batch.num_rows
    added = [
        pa.repeat(pa.scalar(batch.topic), n),
        pa.repeat(pa.scalar(batch.partition, pa.int32()), n),
        pa.array(batch.offsets()),
        pa.array(batch.timestamps_ms() * np.int64(1000)).view(TIMESTAMP_TYPE),
    ]
    return pa.RecordBatch.from_arrays([*batch.data.columns, *added], schema=schema)
