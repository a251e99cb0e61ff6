"""Rows of Python lists and tables, fitted to the columns of their topic, with the partition of each row."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.partitioner import partitions_for_keys
from sparklog.client.producer.row_keys import partitions_of_rows
from sparklog.client.producer.tabular import binary_array, fit, object_columns, to_table
from sparklog.errors import InvalidPartitionsError, SchemaMismatchError
from sparklog.format.column_names import shown_names
from sparklog.format.envelope_layout import no_keys_and_headers
from sparklog.format.schema import ENVELOPE_SCHEMA, HEADER_TYPE, TIMESTAMP_TYPE, fit_column

Headers = Sequence[tuple[str, bytes | None]]
_TIMESTAMP = ENVELOPE_SCHEMA.get_field_index("timestamp")
_ENVELOPE_INPUT = ENVELOPE_SCHEMA.append(pa.field("partition", pa.int32()))


class Rows(NamedTuple):
    """Rows in the topic's layout, with their partitions."""

    table: pa.Table
    partition: int | np.ndarray | None
    """Partition of all rows, or an array with the partition of each row (-1: sticky). None: all rows are sticky."""


def envelope_batch(
    values: list[bytes | None],
    keys: list[bytes | None] | None,
    headers: list[Headers | None] | None,
    timestamps_us: np.ndarray,
) -> pa.RecordBatch:
    """Return rows of an envelope topic from Python lists. `keys` or `headers` is None if no record has any."""
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


def rows_of(data: Any, topic: TopicInfo, partition: int | None) -> Rows:
    """Fit `data` to the topic and choose partitions.

    Envelope topics take the columns value, key, headers, timestamp (missing or null: now) and partition. Raises
    SchemaMismatchError, InvalidPartitionsError, TypeError.
    """
    if partition is not None:
        partition = topic.check_partition(partition)
    if topic.is_envelope:
        return _envelope_rows(data, topic, partition)
    table = to_table(data, topic.schema, topic.name)
    table = fit(table, topic.schema, topic.name, object_columns(data, topic.schema))
    require_keys([table.column(c) for c in topic.key_columns], topic)
    if partition is not None or not topic.key_columns or table.num_rows == 0:
        return Rows(table, partition)
    return Rows(table, partitions_of_rows([table.column(c) for c in topic.key_columns], topic))


def require_keys(columns: Sequence[Any], topic: TopicInfo) -> None:
    """Raise SchemaMismatchError if the topic is compacted and a row is null in all key columns."""
    if not topic.is_compacted or not columns or not all(c.null_count for c in columns):
        return
    missing = np.ones(len(columns[0]), bool)
    for column in columns:
        missing &= np.asarray(column.is_null().to_numpy())
    if missing.any():
        raise without_key(topic.name, int(np.flatnonzero(missing)[0]))


def without_key(topic: str, row: int) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"data do not fit topic {topic!r}: it is compacted, only the last record of each key stays, but row {row} "
        "has no key: add a key"
    )


def _envelope_rows(data: Any, topic: TopicInfo, partition: int | None) -> Rows:
    table = to_table(data, _ENVELOPE_INPUT, topic.name)
    if not topic.is_compacted and _has_values_alone(table):
        return Rows(_values_alone(table.column("value")), partition)
    if "value" not in table.column_names:
        raise SchemaMismatchError(
            f"data do not fit topic {topic.name!r}: an envelope topic needs a column 'value' (and takes key, headers, "
            f"timestamp, partition); found {shown_names(table.column_names) or 'none'}"
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
    """Return rows without keys and headers from a column of values. Such rows are the most frequent, so the steps for
    other columns are skipped."""
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
