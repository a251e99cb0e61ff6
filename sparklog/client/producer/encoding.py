"""From rows and tables to encoded batches: the envelope from Python lists, tables split by partition and size."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.client.net.reused_memory import KEPT_BYTES_MAX, ReusedMemory
from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.partitioner import StickyPartition, partitions_for_columns, partitions_for_keys
from sparklog.client.producer.tabular import binary_array, fit, object_columns, to_table
from sparklog.errors import InvalidPartitionsError, MessageTooLargeError, SchemaMismatchError
from sparklog.format.batch import ATTRIBUTE_LOG_APPEND_TIME, ATTRIBUTE_TRANSACTIONAL, encode_batch
from sparklog.format.envelope_layout import no_keys_and_headers
from sparklog.format.packed_batch import encode_packed_batch
from sparklog.format.schema import ENVELOPE_SCHEMA, HEADER_TYPE, TIMESTAMP_TYPE, fit_column, timestamp_bounds_ms
from sparklog.format.small_batch import SmallRows, encode_small_batch
from sparklog.settings import MIB
from sparklog.types import ProducerIdAndEpoch

ROW_OVERHEAD_BYTES = 24
"""What an envelope row needs at most beside its key and value: three offsets, a timestamp, validity."""
ENVELOPE_FIXED_BYTES_MIN, ENVELOPE_FIXED_BYTES_MAX = 640, 1024
"""What an envelope batch of any size needs beside its rows: at least, and at most."""
HEADER_BYTES = 192
"""What sparklog's header adds to an Arrow message."""
COMBINE_ROWS = 8192
SPREAD_BYTES_MIN, SPREAD_BYTES_MAX = 4 * MIB, 64 * MIB

Headers = Sequence[tuple[str, bytes | None]]

_KEY, _VALUE, _HEADERS, _TIMESTAMP = range(4)


class EncodedBatch(NamedTuple):
    """A batch as it goes over the wire."""

    payload: memoryview
    record_count: int
    min_timestamp_ms: int
    max_timestamp_ms: int
    log_append_time: bool


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def envelope_batch(
    values: list[bytes | None],
    keys: list[bytes | None] | None,
    headers: list[Headers | None] | None,
    timestamps_us: np.ndarray,
) -> pa.RecordBatch:
    """Rows of an envelope topic from Python lists (None: no record has any)."""
    n = len(values)
    # from a buffer: pa.array of a NumPy array imports pandas
    stamps = pa.Array.from_buffers(TIMESTAMP_TYPE, n, [None, pa.py_buffer(timestamps_us)])
    no_keys, no_headers = no_keys_and_headers(n)
    return pa.RecordBatch.from_arrays(
        [
            binary_array(keys) if keys is not None else no_keys,
            binary_array(values),
            _headers_array(headers) if headers is not None else no_headers,
            stamps,
        ],
        schema=ENVELOPE_SCHEMA,
    )


def _headers_array(headers: list[Headers | None]) -> Any:
    flat = [h for row in headers if row for h in row]
    entries = pa.StructArray.from_arrays(
        [pa.array([h[0] for h in flat], pa.string()), pa.array([h[1] for h in flat], pa.binary())],
        fields=list(HEADER_TYPE.value_type),
    )
    n = len(headers)
    offsets = np.zeros(n + 1, np.int32)
    np.cumsum([len(row) if row else 0 for row in headers], out=offsets[1:])
    bitmap = np.packbits(np.diff(offsets) > 0, bitorder="little")
    return pa.Array.from_buffers(HEADER_TYPE, n, [pa.py_buffer(bitmap), pa.py_buffer(offsets)], children=[entries])


class BatchEncoder:
    """Makes rows that have their topic's newest schema into batches as they are stored. Thread-safe.

    `checksum=False`: `assign_producer` follows, which sets it. `memory_bytes`: how much of batches there is at the same
    time; that much is kept for the next ones.
    """

    def __init__(self, compression: str = "none", *, checksum: bool = True, memory_bytes: int = KEPT_BYTES_MAX) -> None:
        self._compression = compression
        self._checksum = checksum
        # a quarter more: sizes are rounded up, and there are those being encoded
        self._memory = ReusedMemory(memory_bytes + memory_bytes // 4)

    @property
    def compresses(self) -> bool:
        return self._compression != "none"

    def encode(self, batch: pa.RecordBatch, topic: TopicInfo) -> EncodedBatch:
        """One batch of any size."""
        return self._encode(batch, topic, self._compression)

    def _encode(self, batch: pa.RecordBatch, topic: TopicInfo, compression: str) -> EncodedBatch:
        attributes = ATTRIBUTE_LOG_APPEND_TIME if topic.log_append_time else 0
        if topic.is_envelope and compression == "none":
            packed = encode_packed_batch(
                batch,
                schema_id=topic.schema_id,
                attributes=attributes,
                checksum=self._checksum,
                allocate=self._memory.take,
            )
            if packed is not None:
                payload, low, high = packed
                return EncodedBatch(payload, batch.num_rows, low, high, topic.log_append_time)
        column = "timestamp" if topic.is_envelope else topic.timestamp_column
        if column is None:
            low = high = now_ms()
        else:
            low, high = timestamp_bounds_ms(batch.column(batch.schema.get_field_index(column)), now_ms())
        payload = encode_batch(
            batch,
            schema_id=topic.schema_id,
            min_timestamp_ms=low,
            max_timestamp_ms=high,
            compression=compression,
            attributes=attributes,
            checksum=self._checksum,
            allocate=self._memory.take,
        )
        return EncodedBatch(payload, batch.num_rows, low, high, topic.log_append_time)

    def encode_small(
        self,
        rows: SmallRows,
        topic: TopicInfo,
        identity: ProducerIdAndEpoch | None,
        base_sequence: int,
        *,
        transactional: bool,
    ) -> EncodedBatch:
        """`encode` of few envelope rows, not compressed, as the producer `identity` sends them."""
        attributes = ATTRIBUTE_LOG_APPEND_TIME if topic.log_append_time else 0
        who = (-1, -1, -1)
        if identity is not None:
            who = (identity.producer_id, identity.producer_epoch, base_sequence)
            attributes |= ATTRIBUTE_TRANSACTIONAL if transactional else 0
        payload = encode_small_batch(rows, topic.schema_id, attributes, *who)
        stamps = rows.timestamps_us
        return EncodedBatch(payload, len(rows.values), min(stamps) // 1000, max(stamps) // 1000, topic.log_append_time)

    def encode_whole(self, batch: pa.RecordBatch, topic: TopicInfo) -> EncodedBatch:
        """`encode` of rows that the topic takes as one batch, not compressed; they stay so if compression makes them
        more than it takes."""
        encoded = self.encode(batch, topic)
        return encoded if len(encoded.payload) <= topic.max_message_bytes else self._encode(batch, topic, "none")

    def encode_within(self, batch: pa.RecordBatch, topic: TopicInfo) -> Iterator[EncodedBatch]:
        """`encode`, in two batches or more should one come out over the topic's limit after all.

        Raises MessageTooLargeError.
        """
        encoded = self.encode(batch, topic)
        if len(encoded.payload) <= topic.max_message_bytes:
            yield encoded
        elif batch.num_rows == 1:
            raise too_large(topic.name, len(encoded.payload), topic.max_message_bytes)
        else:
            half = batch.num_rows // 2
            yield from self.encode_within(batch.slice(0, half), topic)
            yield from self.encode_within(batch.slice(half), topic)


def estimated_bytes(batch: pa.RecordBatch) -> int:
    """The size of the batch encoded without compression, or a few bytes more; 16 a record, where it is packed."""
    return HEADER_BYTES + int(pa.ipc.get_record_batch_size(batch))


def split_by_size(batch: pa.RecordBatch, target_bytes: int, max_bytes: int, topic: str) -> Iterator[pa.RecordBatch]:
    """Slices of at least one row and about `target_bytes`, a quarter more rather than two halves. Raises
    MessageTooLargeError for a row over `max_bytes`."""
    estimated = estimated_bytes(batch)
    if estimated <= min(target_bytes + target_bytes // 4, max_bytes):  # most; `nbytes` costs five times as much to tell
        yield batch
        return
    size = int(batch.nbytes)
    if size <= target_bytes + target_bytes // 4 and estimated <= max_bytes:
        yield batch
        return
    if batch.num_rows == 1:
        if estimated > max_bytes:
            raise too_large(topic, estimated, max_bytes)
        yield batch
        return
    pieces = min(batch.num_rows, max(2, -(-size // target_bytes)))
    rows = -(-batch.num_rows // pieces)
    for start in range(0, batch.num_rows, rows):
        yield from split_by_size(batch.slice(start, rows), target_bytes, max_bytes, topic)


def too_large(topic: str, size_bytes: int, max_bytes: int) -> MessageTooLargeError:
    return MessageTooLargeError(
        f"a record of {size_bytes} bytes; topic {topic!r} takes batches of at most {max_bytes} bytes: make it smaller, "
        "or create the topic with a larger max.message.bytes"
    )


class Rows(NamedTuple):
    """Rows in the topic's layout, and where each goes: one partition, a partition per row (-1: sticky), or None:
    sticky."""

    table: pa.Table
    partition: int | np.ndarray | None


def rows_of(data: Any, topic: TopicInfo, partition: int | None) -> Rows:
    """Fits `data` to the topic and chooses partitions.

    Envelope topics take the columns value, key, headers, timestamp (missing or null: now) and partition. Raises
    SchemaMismatchError, InvalidPartitionsError, TypeError.
    """
    if partition is not None:
        topic.check_partition(partition)
    if topic.is_envelope:
        return _envelope_rows(data, topic, partition)
    table = to_table(data, topic.schema, topic.name)
    table = fit(table, topic.schema, topic.name, object_columns(data, topic.schema))
    require_keys([table.column(c) for c in topic.key_columns], topic)
    if partition is not None or not topic.key_columns or table.num_rows == 0:
        return Rows(table, partition)
    return Rows(table, partitions_for_columns([table.column(c) for c in topic.key_columns], topic.partitions))


def require_keys(columns: Sequence[Any], topic: TopicInfo) -> None:
    """Raises SchemaMismatchError if a compacted topic is sent a row whose key is null (in all key columns)."""
    if not topic.is_compacted or not columns or not all(c.null_count for c in columns):
        return
    missing = np.ones(len(columns[0]), bool)
    for column in columns:
        missing &= np.asarray(column.is_null().to_numpy())
    if missing.any():
        raise without_key(topic.name, int(np.flatnonzero(missing)[0]))


def without_key(topic: str, row: int) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"data do not fit topic {topic!r}: it is compacted, only the last record of each key stays, but row {row} has no "
        f"key: give it one"
    )


_ENVELOPE_INPUT = ENVELOPE_SCHEMA.append(pa.field("partition", pa.int32()))


def _envelope_rows(data: Any, topic: TopicInfo, partition: int | None) -> Rows:
    table = to_table(data, _ENVELOPE_INPUT, topic.name)
    if not topic.is_compacted and _has_values_alone(table):
        return Rows(_values_alone(table.column("value")), partition)
    if "value" not in table.column_names:
        raise SchemaMismatchError(
            f"data do not fit topic {topic.name!r}: an envelope topic needs a column 'value' (and takes key, headers, "
            f"timestamp, partition); found {', '.join(table.column_names) or 'none'}"
        )
    explicit = None
    if "partition" in table.column_names:
        explicit = _partition_numbers(table.column("partition"), topic)
        table = table.drop_columns(["partition"])
    table = _with_timestamps(fit(table, ENVELOPE_SCHEMA, topic.name))
    require_keys([table.column("key")], topic)
    if partition is not None or table.num_rows == 0:
        return Rows(table, partition)
    keys = table.column("key")
    keyed = keys.null_count < len(keys)
    if explicit is None and not keyed:
        return Rows(table, None)
    chosen = partitions_for_keys(keys, topic.partitions) if keyed else np.full(table.num_rows, -1, np.int32)
    if explicit is not None:
        chosen = np.where(explicit >= 0, explicit, chosen)
    return Rows(table, chosen)


def _has_values_alone(table: pa.Table) -> bool:
    names = sorted(table.column_names)
    if names == ["key", "value"]:  # as rows copied from a topic without keys have them
        key = table.column("key")
        if key.null_count < len(key):
            return False
    elif names != ["value"]:
        return False
    return bool(table.column("value").type == pa.binary())


def _values_alone(values: Any) -> pa.Table:
    """What most send, without the steps that only other columns need."""
    n = len(values)
    stamps = pa.py_buffer(np.full(n, time.time_ns() // 1000, np.int64))
    no_keys, no_headers = no_keys_and_headers(n)
    return pa.Table.from_arrays(
        [
            no_keys,
            values,
            no_headers,
            pa.Array.from_buffers(TIMESTAMP_TYPE, n, [None, stamps]),
        ],
        schema=ENVELOPE_SCHEMA,
    )


def _partition_numbers(column: Any, topic: TopicInfo) -> np.ndarray:
    try:
        column = fit_column(column, pa.int32())
    except (pa.ArrowException, OverflowError) as e:
        raise SchemaMismatchError(f"data for topic {topic.name!r}: column 'partition' is {column.type}, not int") from e
    numbers = np.asarray(column.fill_null(-1).to_numpy(), np.int32)
    nulls = np.asarray(column.is_null().to_numpy())
    wrong = np.flatnonzero(((numbers < 0) & ~nulls) | (numbers >= topic.partitions))
    if len(wrong):
        raise InvalidPartitionsError(
            f"topic {topic.name!r} has partitions 0 to {topic.partitions - 1}, row {wrong[0]} names {numbers[wrong[0]]}"
        )
    return numbers


def _with_timestamps(table: pa.Table) -> pa.Table:
    column = table.column("timestamp")
    if not column.null_count:
        return table
    now = pa.scalar(time.time_ns() // 1000, pa.int64()).cast(TIMESTAMP_TYPE)
    return table.set_column(_TIMESTAMP, ENVELOPE_SCHEMA.field(_TIMESTAMP), column.fill_null(now))


def pieces_of(
    rows: Rows,
    topic: TopicInfo,
    sticky: StickyPartition,
    batch_size_bytes: int,
    *,
    spread_bytes: tuple[int, int] = (SPREAD_BYTES_MIN, SPREAD_BYTES_MAX),
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Cuts `rows` into (partition, rows of one stored batch). Rows of a partition keep their order. `spread_bytes`: the
    least and the most bytes of rows that are spread over partitions at a time.

    Raises MessageTooLargeError at once, before the first piece is taken.
    """
    max_bytes = topic.max_message_bytes
    table = rows.table
    chunks = max(c.num_chunks for c in table.columns)
    if chunks > 1 and table.num_rows // chunks < COMBINE_ROWS:
        table = table.combine_chunks()
    batches = [b for b in table.to_batches() if b.num_rows]
    for batch in batches:
        for _ in split_by_size(batch, max_bytes, max_bytes, topic.name):
            pass
    return _pieces(batches, rows.partition, topic, sticky, min(batch_size_bytes, max_bytes), spread_bytes)


def _pieces(
    batches: list[pa.RecordBatch],
    where: int | np.ndarray | None,
    topic: TopicInfo,
    sticky: StickyPartition,
    target_bytes: int,
    spread_bytes: tuple[int, int],
) -> Iterator[tuple[int, pa.RecordBatch]]:
    least_bytes, most_bytes = spread_bytes
    position = 0
    for batch in batches:
        # rows that are spread over partitions are copied, so only a window of them at a time
        window, per_row = batch.num_rows, 0
        if isinstance(where, np.ndarray):
            per_row = max(1, int(batch.nbytes) // batch.num_rows)
            window_bytes = min(max(least_bytes, target_bytes * topic.partitions), most_bytes)
            window = max(1, window_bytes // per_row)
        for start in range(0, batch.num_rows, window):
            part = batch.slice(start, window)
            part_where = where[position : position + part.num_rows] if isinstance(where, np.ndarray) else where
            position += part.num_rows
            if isinstance(part_where, np.ndarray):
                part_where = _without_sticky(part_where, sticky, per_row, target_bytes)
            for partition, its_rows in _by_partition(part, part_where, sticky.partitions):
                for piece in split_by_size(its_rows, target_bytes, topic.max_message_bytes, topic.name):
                    yield (sticky.take(estimated_bytes(piece), target_bytes) if partition < 0 else partition), piece


def _without_sticky(where: np.ndarray, sticky: StickyPartition, row_bytes: int, target_bytes: int) -> np.ndarray:
    """`where` with a partition for the rows that have none, before rows are taken apart: a partition's keyless rows
    stay between its rows with a key."""
    keyless = np.flatnonzero(where < 0)
    if not len(keyless):
        return where
    chosen = where.copy()
    chosen[keyless] = sticky.take_rows(len(keyless), row_bytes, target_bytes)
    return chosen


def _by_partition(
    batch: pa.RecordBatch, where: int | np.ndarray | None, partitions: int
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """(partition, its rows in order); -1 for all rows of a table that names no partition: sticky."""
    if where is None or isinstance(where, int):
        yield (-1 if where is None else where), batch
        return
    first = int(where[0])
    if bool((where == first).all()):
        yield first, batch
        return
    order = np.argsort(where.astype(np.int16), kind="stable")  # int16: NumPy sorts it by radix
    counts = np.bincount(where, minlength=partitions)
    taken = batch.take(pa.array(order))
    start = 0
    for partition, count in enumerate(counts.tolist()):
        if count:
            yield partition, taken.slice(start, count)
            start += count
