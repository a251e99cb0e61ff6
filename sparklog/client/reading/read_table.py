"""`read_table`: the current rows of a topic as one Arrow table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

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
from sparklog.client.reading.range_reader import Fetching, read_range
from sparklog.errors import InvalidRequestError, OffsetOutOfRangeError
from sparklog.format.schema import TIMESTAMP_TYPE
from sparklog.lake.settings import LakeSettings
from sparklog.security.client_security import Security
from sparklog.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, TopicPartition

if TYPE_CHECKING:
    from sparklog.client.reading.history_range import HistorySource
    from sparklog.client.reading.latest_rows import LatestRows
    from sparklog.lake.history import HistoryBatch

METADATA_FIELDS = (
    pa.field("_topic", pa.string()),
    pa.field("_partition", pa.int32()),
    pa.field("_offset", pa.int64()),
    pa.field("_timestamp", TIMESTAMP_TYPE),
)

Bound = str | int | Mapping[int, int]


@arg.takes(
    topic=arg.text,
    columns=arg.optional(arg.texts),
    include_metadata=arg.flag,
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
    local: str = "auto",
    isolation_level: str = "read_committed",
    request_timeout_ms: int = 30_000,
    security: Security = None,
    history: bool = False,
    latest: bool = False,
) -> pa.Table:
    """Read a topic's rows up to now, partition after partition, in the layout of the topic's newest schema.

    Args:
        bootstrap_servers: "host:port,…" or a list of addresses. None: the variable SPARKLOG_BOOTSTRAP_SERVERS, else
            127.0.0.1:9292.
        topic: The topic's name.
        columns: Names of the columns to read, in this order. None: all.
        start: The first offset (inclusive): "earliest", "latest", an offset for all partitions, or {partition: offset}.
            Partitions that the dict does not name are not read.
        end: The end of the range (exclusive), in the same forms.
        include_metadata: True appends the columns _topic, _partition, _offset and _timestamp.
        local: "auto" maps the broker's files if they are visible on this host; "off" reads through the socket.
        isolation_level: "read_committed" leaves out records of open and aborted transactions, and ends at the first
            open transaction; "read_uncommitted" reads all.
        request_timeout_ms: The longest wait in ms for a broker that does not answer, counted from the last rows.
        security: Client settings by their dotted names, or the path of a properties file. None: plaintext.
        history: True reads the offsets that the topic's Delta table has from the table, also those that the log has
            deleted, and the others from the log. "earliest" is the table's first offset then. Rows that were deleted
            from the table are not read.
        latest: True reads the newest row of each key, without deleted keys. A row deletes its key if all columns behind
            the key are null, or if its column `_op` is "d" or "delete". Rows that only the topic's Delta table has
            count, too.

    Returns:
        The rows; an empty table with the topic's columns if there are none.

    Raises:
        UnknownTopicOrPartitionError: The topic or a named partition does not exist.
        SchemaMismatchError: The topic does not have a column.
        OffsetOutOfRangeError: `start` lies below the beginning of a partition.
        DataLossError: Records were deleted during the read.
        InvalidRequestError: `start`, `end` or another argument has a form that is not listed here.
        InvalidConfigError: An address, a security setting, `local` or `isolation_level` is wrong, or with `history`
            the topic has no Delta table, or the package deltalake is not installed.
        LakeUnavailableError: With `history` the table cannot be read.

    Example:
        ```python
        table = sparklog.read_table(None, "trips", columns=["zone", "minutes"], start={0: 1_000})
        ```
    """
    isolation = isolation_of(isolation_level)
    shared = cluster(bootstrap_servers, security)
    deadline, attempts = Deadline(request_timeout_ms), Retries(RetryPolicy.within(request_timeout_ms))

    def newest() -> TopicInfo:
        return until_answered(lambda left_ms: shared.topic(topic, refresh=True, timeout_ms=left_ms), attempts)

    if history and latest:
        raise InvalidRequestError("history and latest are both True: latest includes the history, leave history out")
    source: HistorySource | None = None
    if history or (latest and LakeSettings.of(newest().configs).location):
        from sparklog.client.reading.history_range import HistorySource, read_range_with_history

        source = HistorySource(newest(), required=history, newest=latest)
    ranges = _ranges(shared, newest(), start, end, isolation, deadline, source)
    info = newest()  # asked after the ranges' ends: no row of the ranges has a newer schema
    layout = schema = Projection(info, columns).schema
    kept: LatestRows | None = None
    if latest:
        from sparklog.client.reading.latest_rows import LatestRows

        kept, layout = LatestRows(info), info.schema
    if include_metadata:
        for field in METADATA_FIELDS:
            schema = schema.append(field)
    batches: list[pa.RecordBatch] = []
    reading: dict[str, Any] = {
        "local": local,
        "isolation": isolation,
        "retry_timeout_ms": request_timeout_ms,
        "fetching": Fetching(request_timeout_ms=request_timeout_ms),
    }
    for tp, (first, last) in ranges.items():
        found: Iterable[ConsumedBatch | HistoryBatch]
        if source is None:
            asked = columns if kept is None else None
            found = read_range(shared, tp, first, last, columns=asked, layout=layout, **reading)
        else:
            found = read_range_with_history(
                shared, tp, first, last, source, columns=layout.names, layout=layout, **reading
            )
        for batch in found:
            if kept is not None:
                whole = pa.schema([*layout, *METADATA_FIELDS])
                kept.add(pa.Table.from_batches([_with_metadata(batch, whole)]))
                continue
            batches.append(_with_metadata(batch, schema) if include_metadata else batch.data)
        if kept is not None:
            kept.end_partition()
    if kept is not None:
        return kept.result(schema)
    return pa.Table.from_batches(batches, schema)


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
    left_ms = deadline.left_ms
    earliest = list_offsets(shared, dict.fromkeys(tps, EARLIEST_TIMESTAMP), timeout_ms=left_ms())
    latest = list_offsets(
        shared, dict.fromkeys(tps, LATEST_TIMESTAMP), isolation=isolation, all_at_once=True, timeout_ms=left_ms()
    )
    ranges: dict[TopicPartition, tuple[int, int]] = {}
    for tp in tps:
        low, high = earliest[tp].offset, latest[tp].offset
        if source is not None:
            low = source.first_offset(tp.partition, low)
        first = _resolve(start, tp, low, high, "start")
        last = min(_resolve(end, tp, low, high, "end"), high)
        if first < low:
            raise OffsetOutOfRangeError(f"{tp} begins at offset {low}: offset {first} is gone; use start='earliest'")
        if first < last:
            ranges[tp] = (first, last)
    return ranges


def _resolve(bound: Bound, tp: TopicPartition, low: int, high: int, what: str) -> int:
    value = bound[tp.partition] if isinstance(bound, Mapping) else bound
    if value == "earliest":
        return low
    if value == "latest":
        return high
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InvalidRequestError(
            f"{what}={value!r}: use earliest, latest, an offset, or a dict of offsets by partition"
        )
    return value


def _with_metadata(batch: ConsumedBatch | HistoryBatch, schema: pa.Schema) -> pa.RecordBatch:
    n = batch.num_rows
    added = [
        pa.repeat(pa.scalar(batch.topic), n),
        pa.repeat(pa.scalar(batch.partition, pa.int32()), n),
        pa.array(batch.offsets()),
        pa.array(batch.timestamps_ms() * np.int64(1000)).view(TIMESTAMP_TYPE),
    ]
    return pa.RecordBatch.from_arrays([*batch.data.columns, *added], schema=schema)
