"""Decoder of Kafka's records into Arrow columns (the envelope), a whole batch at a time.

A loop over the records only finds their ends. Everything else is vectorized: NumPy reads the same field of all records
at once, and `take` copies keys and values out of one array, whose elements are spans of the batch's bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.errors import CorruptBatchError, InvalidTimestampError, MessageTooLargeError
from sparklog.format.envelope_layout import no_keys_and_headers
from sparklog.format.schema import ENVELOPE_SCHEMA, HEADER_TYPE, TIMESTAMP_TYPE
from sparklog.kafka.records.errors import RECORDS_NAMED_MAX, InvalidRecordError
from sparklog.kafka.records.varints import VARLONG_BYTES_MAX, Array, read_varints

NO_TIMESTAMP_MS = -1
TIMESTAMP_MS_MAX = (2**63 - 1) // 1000
ROUNDS_MAX = 64
"""Largest number of headers of a record that is read with NumPy. If a record of the batch has more, a loop reads all
headers of the batch one by one."""
HEADERS_MAX = 1_000_000
"""Largest number of headers in a batch. A header can have two bytes, but takes more than a hundred during the
conversion."""
_ENTRY_TYPE = HEADER_TYPE.value_type


def decode_records(data: Any, record_count: int, base_timestamp_ms: int) -> pa.RecordBatch:
    """Return the records in `data` (a buffer of decompressed records) as rows of an envelope topic.

    Raises CorruptBatchError, also for offsets that are not dense; InvalidTimestampError; MessageTooLargeError for more
    than HEADERS_MAX headers.
    """
    rows, offsets = decode_placed_records(data, record_count, base_timestamp_ms)
    if not np.array_equal(offsets, np.arange(record_count)):
        raise CorruptBatchError("the offsets of a batch's records are not dense")
    return rows


def decode_placed_records(data: Any, record_count: int, base_timestamp_ms: int) -> tuple[pa.RecordBatch, Array]:
    """Return the records in `data` as rows of an envelope topic, and their offsets in the batch, which need not be
    dense: compaction removes records. Raises CorruptBatchError, InvalidTimestampError, MessageTooLargeError."""
    buffer = pa.py_buffer(data)
    raw = memoryview(buffer).cast("B")
    ends = np.array(record_ends(raw, record_count), np.int64)
    octets = np.frombuffer(raw, np.uint8)
    _, starts = read_varints(octets, np.concatenate(([0], ends[:-1])))
    deltas, position = read_varints(octets, starts + 1, VARLONG_BYTES_MAX)
    offsets, position = read_varints(octets, position)
    key_sizes, key_at = read_varints(octets, position)
    value_sizes, value_at = read_varints(octets, key_at + np.maximum(key_sizes, 0))
    counts, position = read_varints(octets, value_at + np.maximum(value_sizes, 0))
    if counts.min() < 0 or (counts > ends - position).any():
        raise CorruptBatchError("a record with an impossible number of headers")
    has_headers = bool(counts.any())
    if (position > ends).any() or (not has_headers and (position != ends).any()):
        raise CorruptBatchError("a record of a batch does not end where it says")
    no_keys, no_headers = no_keys_and_headers(record_count)
    keys = no_keys if (key_sizes < 0).all() else spans(buffer, key_at, key_sizes)
    values = spans(buffer, value_at, value_sizes)
    headers = _headers(buffer, octets, position, counts, ends) if has_headers else no_headers
    stamps = _timestamps(deltas, base_timestamp_ms)
    return pa.RecordBatch.from_arrays([keys, values, headers, stamps], schema=ENVELOPE_SCHEMA), offsets


def record_ends(raw: memoryview, record_count: int) -> list[int]:
    """Return the end position of each record. Raises CorruptBatchError."""
    data = bytes(raw)
    ends: list[int] = []
    append = ends.append
    position, end = 0, len(data)
    try:
        for _ in range(record_count):
            size = data[position]
            position += 1
            if size >= 0x80:
                byte = data[position]
                position += 1
                size += (byte << 7) - 0x80  # most records have a length of two bytes
                if byte >= 0x80:
                    size -= 0x80 << 7
                    shift = 14
                    while byte >= 0x80:
                        byte = data[position]
                        position += 1
                        size |= (byte & 0x7F) << shift
                        shift += 7
            position += size >> 1
            if size & 1 or position > end:
                raise CorruptBatchError("a record of a batch has an impossible length")
            append(position)
    except IndexError as e:
        raise CorruptBatchError("the records of a batch are cut off") from e
    if position != end:
        raise CorruptBatchError(f"{end - position} bytes behind the last record of a batch")
    return ends


def spans(buffer: pa.Buffer, starts: Array, sizes: Array) -> Any:
    """Return a binary array of the spans of `buffer` at `starts`, which must ascend. A size below 0 is a null."""
    n = len(starts)
    offsets = np.empty(2 * n, np.int32)
    offsets[0::2] = starts
    offsets[1::2] = starts + np.maximum(sizes, 0)
    together = pa.Array.from_buffers(pa.binary(), 2 * n - 1, [None, pa.py_buffer(offsets), buffer])
    indices = np.arange(0, 2 * n, 2, dtype=np.int32)
    null = sizes < 0
    return together.take(pa.array(indices, mask=null) if null.any() else pa.array(indices))


def _timestamps(deltas: Array, base_timestamp_ms: int) -> Any:
    low, high = base_timestamp_ms + int(deltas.min()), base_timestamp_ms + int(deltas.max())
    if low < -TIMESTAMP_MS_MAX or high > TIMESTAMP_MS_MAX:
        raise InvalidTimestampError(f"timestamps from {low} to {high} ms; at most {TIMESTAMP_MS_MAX} are allowed")
    stamps_ms = deltas + base_timestamp_ms
    unknown = stamps_ms == NO_TIMESTAMP_MS
    if unknown.any():
        return pa.array(stamps_ms * 1000, pa.int64(), mask=unknown).cast(TIMESTAMP_TYPE)
    return pa.Array.from_buffers(TIMESTAMP_TYPE, len(stamps_ms), [None, pa.py_buffer(stamps_ms * 1000)])


def _headers(buffer: pa.Buffer, octets: Array, position: Array, counts: Array, ends: Array) -> Any:
    """Return the column of headers; null for a record without headers. Raises CorruptBatchError,
    MessageTooLargeError."""
    total = int(counts.sum())
    if total > HEADERS_MAX:
        raise MessageTooLargeError(
            f"the batch has {total} headers, at most {HEADERS_MAX} are allowed: send smaller batches"
        )
    first = np.concatenate(([0], np.cumsum(counts)))
    key_at, key_sizes, value_at, value_sizes = (np.empty(total, np.int64) for _ in range(4))
    if int(counts.max()) <= ROUNDS_MAX:
        rows = np.flatnonzero(counts)
        at = position[rows]
        for number in range(int(counts.max())):
            place = first[rows] + number
            key_sizes[place], key_at[place] = read_varints(octets, at)
            value_sizes[place], value_at[place] = read_varints(octets, key_at[place] + np.maximum(key_sizes[place], 0))
            at = value_at[place] + np.maximum(value_sizes[place], 0)
            more = counts[rows] > number + 1
            _check_ends(at[~more], ends[rows][~more])
            rows, at = rows[more], at[more]
    else:
        _read_one_by_one(octets.tobytes(), position, counts, ends, (key_at, key_sizes, value_at, value_sizes))
    if key_sizes.min() < 0:
        raise CorruptBatchError("a header without a key")
    # spans has to ascend: a corrupt size would have been found at its record's end
    keys = spans(buffer, key_at, key_sizes)
    entries = pa.StructArray.from_arrays(
        [_as_text(keys, first), spans(buffer, value_at, value_sizes)],
        fields=[_ENTRY_TYPE.field(0), _ENTRY_TYPE.field(1)],
    )
    offsets = pa.array(first.astype(np.int32), mask=np.append(counts == 0, False))
    return pa.ListArray.from_arrays(offsets, entries, type=HEADER_TYPE)


def _check_ends(at: Array, ends: Array) -> None:
    if (at != ends).any():
        raise CorruptBatchError("the headers of a record do not end where it says")


def _read_one_by_one(
    data: bytes, position: Array, counts: Array, ends: Array, columns: tuple[Array, Array, Array, Array]
) -> None:
    place = 0
    try:
        for at, count, end in zip(position.tolist(), counts.tolist(), ends.tolist(), strict=True):
            for _ in range(count):
                for sizes, places in ((columns[1], columns[0]), (columns[3], columns[2])):
                    size, shift, byte = 0, 0, 0x80
                    while byte >= 0x80:
                        byte = data[at]
                        at += 1
                        size |= (byte & 0x7F) << shift
                        shift += 7
                    number = (size >> 1) ^ -(size & 1)
                    if number > end - at:
                        raise CorruptBatchError("the headers of a record do not end where it says")
                    sizes[place], places[place] = number, at
                    at += max(number, 0)
                place += 1
            if at != end:
                raise CorruptBatchError("the headers of a record do not end where it says")
    except IndexError as e:
        raise CorruptBatchError("the records of a batch are cut off") from e


def _as_text(keys: Any, first: Array) -> Any:
    """Return the keys of headers as text. `first`: index of each record's first header. Raises InvalidRecordError,
    because Kafka's consumers read header keys as text."""
    try:
        return keys.cast(pa.string())
    except pa.ArrowInvalid as e:
        invalid = [i for i, key in enumerate(keys.to_pylist()) if not _is_text(key)]
        records = np.unique(np.searchsorted(first, invalid, side="right") - 1)[:RECORDS_NAMED_MAX].tolist()
        raise InvalidRecordError({i: f"record {i} has a header whose key is not UTF-8" for i in records}) from e


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True
