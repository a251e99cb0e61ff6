"""Encoder of an envelope topic's Arrow columns into Kafka's records, a whole batch at a time.

NumPy writes the numbers of all records as columns of varints. Arrow joins these columns with keys and values::

    prefix: the header count of the record before, length, attributes, timestamp delta, offset delta, key size
    key
    middle: value size
    value

The prefix begins with the header count of the preceding record, so that a batch without headers needs no column after
the value. Without keys, the value size is part of the prefix.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.kafka.records.decode import NO_TIMESTAMP_MS
from sparklog.kafka.records.varints import Array, VarintColumns, varint_sizes, zigzag

_SEPARATOR = pa.scalar(b"", pa.binary())
_NULL_SIZE = 1
"""The varint of the size -1, which means null."""


def timestamps_ms(column: Any) -> Array:
    """Return the timestamps of an envelope's rows in ms since 1970; -1 for null."""
    n = len(column)
    stamps = np.frombuffer(column.buffers()[1], np.int64, n, 8 * column.offset) // 1000
    if column.null_count:
        stamps = np.where(column.is_null().to_numpy(zero_copy_only=False), NO_TIMESTAMP_MS, stamps)
    return stamps


def encode_records(rows: pa.RecordBatch, offset_deltas: Array, timestamp_deltas: Array) -> list[memoryview]:
    """Return the encoded records of `rows` (columns key, value, headers, timestamp), as parts to join. `rows`: at least
    one row in the envelope's layout. `offset_deltas`: offset of each row, less the batch's base offset.
    `timestamp_deltas`: timestamp of each row in ms, less the batch's base timestamp."""
    n = rows.num_rows
    keys, values, headers = rows.column(0), rows.column(1), rows.column(2)
    has_keys = keys.null_count < n
    tail = _header_bytes(headers) if headers.null_count < n else None
    value_sizes, value_widths, value_bytes = _sizes(values)
    stamps, offsets = zigzag(timestamp_deltas), zigzag(offset_deltas)
    stamp_widths, offset_widths = varint_sizes(stamps), varint_sizes(offsets)
    length = 1 + stamp_widths + offset_widths + value_widths + value_bytes
    if has_keys:
        key_sizes, key_widths, key_bytes = _sizes(keys)
        length += key_widths + key_bytes
    else:
        length += 1
    length += 1 if tail is None else np.diff(_offsets(tail)).astype(np.int64)
    prefix = VarintColumns(n)
    if tail is None:
        prefix.constant(0)
    prefix.add(zigzag(length))
    prefix.constant(0)
    prefix.add(stamps, stamp_widths)
    prefix.add(offsets, offset_widths)
    if has_keys:
        prefix.add(key_sizes, key_widths)
        middle = VarintColumns(n)
        middle.add(value_sizes, value_widths)
        columns = [_binary(prefix), keys, _binary(middle), values]
    else:
        prefix.constant(_NULL_SIZE)
        prefix.add(value_sizes, value_widths)
        columns = [_binary(prefix), values]
    if tail is not None:
        columns.append(tail)
    joined = pc.binary_join_element_wise(*columns, _SEPARATOR, null_handling="replace", null_replacement="")
    if isinstance(joined, pa.ChunkedArray):
        joined = joined.combine_chunks()
    where = _offsets(joined)
    data = memoryview(joined.buffers()[2]).cast("B")[int(where[0]) : int(where[-1])]
    return [data] if tail is not None else [data[1:], memoryview(b"\0")]


def _offsets(array: Any) -> Array:
    return np.frombuffer(array.buffers()[1], np.int32, len(array) + 1, 4 * array.offset)


def _sizes(array: Any) -> tuple[Array, Array, Array]:
    """Return three arrays: each value's size as the number to write (-1 for null), the bytes of its varint, and the
    size itself (0 for null)."""
    lengths = np.diff(_offsets(array)).astype(np.int64)
    if array.null_count:
        null = array.is_null().to_numpy(zero_copy_only=False)
        lengths = np.where(null, 0, lengths)
        written = zigzag(np.where(null, -1, lengths))
    else:
        written = zigzag(lengths)
    return written, varint_sizes(written), lengths


def _binary(columns: VarintColumns) -> Any:
    offsets = np.zeros(len(columns.sizes) + 1, np.int32)
    np.cumsum(columns.sizes, out=offsets[1:])
    data = np.ascontiguousarray(columns.data())
    return pa.Array.from_buffers(pa.binary(), len(columns.sizes), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _header_bytes(headers: Any) -> Any:
    """Return a binary array of the encoded headers of each record, beginning with their count."""
    lists = _offsets(headers).astype(np.int64)
    counts = np.diff(lists)
    if headers.null_count:
        counts = np.where(headers.is_null().to_numpy(zero_copy_only=False), 0, counts)
    first, total = int(lists[0]), int(lists[-1] - lists[0])
    entries = headers.values.slice(first, total)
    keys, values = entries.field(0).cast(pa.binary()), entries.field(1)
    if entries.offset:
        keys, values = (one if len(one) == total else one.slice(entries.offset, total) for one in (keys, values))
    head = VarintColumns(total)
    head.add(_sizes(keys)[0])
    middle = VarintColumns(total)
    middle.add(_sizes(values)[0])
    joined = pc.binary_join_element_wise(
        _binary(head), keys, _binary(middle), values, _SEPARATOR, null_handling="replace", null_replacement=""
    )
    # the entries of a record are contiguous, so the record's bytes are one span of all entries' bytes
    at = _offsets(joined)
    start, size = at[lists[:-1] - first].astype(np.int64), np.zeros(len(counts), np.int64)
    size = at[lists[:-1] - first + counts] - start
    written = VarintColumns(len(counts))
    written.add(zigzag(counts))
    offsets = np.empty(2 * len(counts), np.int32)
    offsets[0::2], offsets[1::2] = start, start + size
    together = pa.Array.from_buffers(
        pa.binary(), 2 * len(counts) - 1, [None, pa.py_buffer(offsets), joined.buffers()[2]]
    )
    bodies = together.take(pa.array(np.arange(0, 2 * len(counts), 2, dtype=np.int32)))
    return pc.binary_join_element_wise(_binary(written), bodies, _SEPARATOR)
