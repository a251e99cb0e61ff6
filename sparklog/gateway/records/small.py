"""Conversion of small batches in a Python loop: for few records, the calls of NumPy and Arrow take longer than the
loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sparklog.errors import CorruptBatchError

SMALL_RECORDS_MAX = 16


class SmallRecords(NamedTuple):
    """Records as columns. `timestamps_ms`: ms since 1970."""

    keys: list[bytes | None]
    values: list[bytes | None]
    timestamps_ms: list[int]


def read_small(data: bytes, record_count: int, base_timestamp_ms: int) -> SmallRecords | None:
    """Decode the records of a batch; return None if one of them has headers. Raises CorruptBatchError."""
    keys: list[bytes | None] = []
    values: list[bytes | None] = []
    stamps: list[int] = []
    end = position = 0
    try:
        for i in range(record_count):
            size, position = _varint(data, position)
            end = position + size
            delta, position = _varint(data, position + 1)
            offset, position = _varint(data, position)
            if offset != i:
                raise CorruptBatchError(f"record {i} of a batch has the offset {offset}: offsets have to be dense")
            key, position = _value(data, position, end)
            value, position = _value(data, position, end)
            headers, position = _varint(data, position)
            if headers > 0:
                return None
            if position != end or headers < 0:
                raise CorruptBatchError(f"record {i} of a batch does not end where it says")
            keys.append(key)
            values.append(value)
            stamps.append(base_timestamp_ms + delta)
    except IndexError as e:
        raise CorruptBatchError("the records of a batch are cut off") from e
    if position != len(data):
        raise CorruptBatchError(f"{len(data) - position} bytes behind the last record of a batch")
    return SmallRecords(keys, values, stamps)


def write_small(
    keys: Sequence[bytes | None] | None, values: Sequence[bytes | None], deltas_ms: Sequence[int], first_delta: int = 0
) -> bytes:
    """Encode records without headers. `keys`: key of each record; None if no record has a key. `deltas_ms`: timestamp
    of each record, less the batch's base timestamp. `first_delta`: offset of the first record, less the batch's base
    offset. The following offsets are consecutive."""
    written = bytearray()
    for i, value in enumerate(values):
        key = None if keys is None else keys[i]
        record = bytearray(b"\0")
        _write(record, deltas_ms[i])
        _write(record, first_delta + i)
        for part in (key, value):
            if part is None:
                record.append(1)
            else:
                _write(record, len(part))
                record += part
        record.append(0)
        _write(written, len(record))
        written += record
    return bytes(written)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    byte = data[position]
    position += 1
    value, shift = byte & 0x7F, 7
    while byte >= 0x80:
        if shift > 63:
            raise CorruptBatchError("a number of more than 10 bytes in a record")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
    return (value >> 1) ^ -(value & 1), position


def _value(data: bytes, position: int, end: int) -> tuple[bytes | None, int]:
    size, position = _varint(data, position)
    if size < 0:
        return None, position
    if position + size > end:
        raise CorruptBatchError(f"a key or value of {size} bytes in a record with {end - position}")
    return data[position : position + size], position + size


def _write(written: bytearray, value: int) -> None:
    rest = (value << 1) ^ (value >> 63)
    while rest > 0x7F:
        written.append(rest & 0x7F | 0x80)
        rest >>= 7
    written.append(rest)
