"""Batches with a right checksum and false statements: about the places or types of their columns, or about their
content."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from sparklog.format.batch import ProducerFields as _ProducerFields
from sparklog.format.batch import decode_header, encode_batch, message_of, write_producer_fields
from sparklog.format.flat import root_table, table_field
from sparklog.format.schema import ENVELOPE_SCHEMA, HEADER_TYPE, TIMESTAMP_TYPE

I64_MAX = 2**63 - 1
ROWS = 300
"""More than a batch has that is read without Arrow."""
ENVELOPE_VALUES = 5
"""Number of the values' data buffer in an envelope; before it their offsets, after it the headers' validity."""


def encoded(rows: pa.RecordBatch, compression: str = "none", schema_id: int = 1) -> bytearray:
    return bytearray(
        encode_batch(rows, schema_id=schema_id, min_timestamp_ms=0, max_timestamp_ms=0, compression=compression)
    )


def envelope(rows: int = ROWS, *, headers: bool = False, key: bytes | None = b"k") -> pa.RecordBatch:
    of_headers = [[("name", b"1")] if headers else None] * rows
    return pa.record_batch(
        [
            pa.array([key] * rows, pa.binary()),
            pa.array([b"value-%05d" % i for i in range(rows)], pa.binary()),
            pa.array([None if h is None else [{"key": k, "value": v} for k, v in h] for h in of_headers], HEADER_TYPE),
            pa.array(range(rows), TIMESTAMP_TYPE),
        ],
        schema=ENVELOPE_SCHEMA,
    )


def resealed(data: bytearray, **changed: int) -> bytearray:
    """The batch with a right checksum, and other numbers in its header."""
    header = decode_header(data)
    fields = {name: getattr(header, name) for name in _ProducerFields._fields} | changed
    write_producer_fields(memoryview(data), header.stamp_position, _ProducerFields(**fields))
    return data


def vector_position(data: bytearray, field: int) -> int:
    """Return the position of the first entry of the nodes (field 1) or buffers (field 2)."""
    batch = root_table(data, table_field(data, root_table(data, 8), 2))
    return root_table(data, table_field(data, batch, field)) + 4


def body_position(data: bytearray) -> int:
    return len(data) - decode_header(data).body_length_bytes


def buffer_place(data: bytearray, number: int) -> tuple[int, int]:
    """Position in `data`, and length, of a buffer."""
    at, size = message_of(data, 0, decode_header(data)).buffers[number].tolist()
    return body_position(data) + at, size


def with_number(data: bytearray, field: int, number: int, value: int) -> bytearray:
    """With another i64 at `number` of the nodes (field 1: length, nulls, length, ...) or buffers (2: position,
    length)."""
    changed = bytearray(data)
    struct.pack_into("<q", changed, vector_position(changed, field) + 8 * number, value)
    return resealed(changed)


def with_offset(data: bytearray, buffer: int, row: int, value: int, before: int = 0) -> bytearray:
    """Replace an i32 offset of a variable-width column. `before`: the bytes before the offsets in the buffer."""
    changed = bytearray(data)
    struct.pack_into("<i", changed, buffer_place(changed, buffer)[0] + before + 4 * row, value)
    return resealed(changed)


def with_rows(data: bytearray, rows: int, *, nodes: Callable[[int], bool] = lambda _: True) -> bytearray:
    """With another number of rows in header and metadata, and in the lengths of those `nodes`."""
    changed = bytearray(data)
    batch = root_table(changed, table_field(changed, root_table(changed, 8), 2))
    struct.pack_into("<q", changed, table_field(changed, batch, 0), rows)
    for number in range(len(message_of(data, 0, decode_header(data)).nodes)):
        if nodes(number):
            struct.pack_into("<q", changed, vector_position(changed, 1) + 16 * number, rows)
    return resealed(changed, record_count=rows, last_offset_delta=rows - 1)


def all_lies(rows: int = ROWS) -> dict[str, bytearray]:
    """Return batches that a faulty client may send to an envelope topic, each with a right checksum."""
    good = encoded(envelope(rows))
    data_bytes = buffer_place(good, ENVELOPE_VALUES)[1]
    last_at = body_position(good)
    body_bytes = len(good) - last_at
    lies = {
        "offsets far outside": with_offset(good, 4, rows, 2**31 - 1),
        "offsets just outside": with_offset(good, 4, rows, data_bytes + 1),
        "an offset in the middle far outside": with_offset(good, 4, rows // 2, 2**31 - 1),
        "negative offsets": with_offset(good, 4, 0, -1),
        "falling offsets": with_offset(good, 4, rows // 2, 0),
        "a key's offset outside": with_offset(good, 1, rows, 2**30),
        "a buffer beyond the body": with_number(good, 2, 2 * ENVELOPE_VALUES, body_bytes + 8),
        "a buffer just beyond the body": with_number(good, 2, 2 * 16, body_bytes - 8),
        "a buffer before the body": with_number(good, 2, 2 * ENVELOPE_VALUES, -8),
        "a buffer that is too long": with_number(good, 2, 2 * ENVELOPE_VALUES + 1, I64_MAX),
        "a buffer of a negative length": with_number(good, 2, 2 * ENVELOPE_VALUES + 1, -1),
        "a buffer that is too short": with_number(good, 2, 2 * 16 + 1, 8 * rows - 8),
        "a buffer at an odd place": with_number(good, 2, 2 * 16, message_of(good, 0, decode_header(good)).buffers[16, 0] - 4),
        "no offsets": with_number(good, 2, 2 * 4 + 1, 0),
        "a column of more rows": with_number(good, 1, 2, rows + 1),
        "a column of fewer rows": with_number(good, 1, 2, rows - 1),
        "a column of negative rows": with_number(good, 1, 2, -1),
        "more nulls than rows": with_number(good, 1, 3, rows + 1),
        "nulls without a bitmap": with_number(good, 1, 3, 1),
        "another number of nulls": with_number(good, 1, 5, rows - 1),
        "more children than there are": with_number(good, 1, 6, 2**31 - 1),
        "more rows than there are": with_rows(good, 2**31 - 1),
        "fewer columns": encoded(envelope(rows).select([0, 1, 3])),
        "more columns": encoded(envelope(rows).append_column("more", pa.array(range(rows)))),
        "swapped columns": encoded(envelope(rows).select([0, 1, 3, 2])),
        "an i32 instead of the timestamp": encoded(envelope(rows).set_column(3, "timestamp", pa.array(range(rows), pa.int32()))),
        "a header's name that is no UTF-8": bad_text(rows),
    }  # fmt: skip
    for codec in ("lz4", "zstd"):
        lies |= {f"{name}, {codec}": data for name, data in compressed_lies(codec, rows).items()}
    return lies


def bad_text(rows: int) -> bytearray:
    data = encoded(envelope(rows, headers=True))
    return resealed(data.replace(b"namename", b"nam\xffname", 1))


def compressed_lies(codec: str, rows: int) -> dict[str, bytearray]:
    good = encoded(envelope(rows), codec)
    stated = {n: buffer_place(good, n)[0] for n in (4, ENVELOPE_VALUES, 16)}
    lies = {}
    for name, buffer, value in (
        ("a size that is too large", ENVELOPE_VALUES, 11 * rows + 1),
        ("a size that is too small", ENVELOPE_VALUES, 11 * rows - 1),
        ("a size that is negative", ENVELOPE_VALUES, -2),
        ("a size that is too small for the rows", 16, 8 * rows - 8),
        ("no size of offsets", 4, 0),
    ):
        data = bytearray(good)
        struct.pack_into("<q", data, stated[buffer], value)
        lies[name] = resealed(data)
    broken = bytearray(good)
    at, size = buffer_place(broken, ENVELOPE_VALUES)
    broken[at + 8 : at + size] = bytes(size - 8)
    lies["a frame that is none"] = resealed(broken)
    lies["a buffer shorter than its size"] = with_number(good, 2, 2 * ENVELOPE_VALUES + 1, 4)
    lies["offsets far outside"] = encoded(_lying_offsets(rows), codec)
    return lies


def _lying_offsets(rows: int) -> pa.RecordBatch:
    """Values with an offset outside, as Arrow's own writer would compress them."""
    good = envelope(rows)
    offsets = bytearray(good.column(1).buffers()[1].to_pybytes())
    struct.pack_into("<i", offsets, 4 * (rows // 2), 2**31 - 1)
    lying = pa.Array.from_buffers(pa.binary(), rows, [None, pa.py_buffer(bytes(offsets)), good.column(1).buffers()[2]])
    return good.set_column(1, ENVELOPE_SCHEMA.field(1), lying)


def bomb(inflated_bytes: int, codec: str = "zstd") -> bytearray:
    """One record of so many zeros, compressed."""
    rows = pa.record_batch(
        [
            pa.nulls(1, pa.binary()),
            pa.array([bytes(inflated_bytes)], pa.binary()),
            pa.nulls(1, HEADER_TYPE),
            pa.array([0], TIMESTAMP_TYPE),
        ],
        schema=ENVELOPE_SCHEMA,
    )
    return encoded(rows, codec)


def decoded_or_none(decode: Callable[[], Any], error: type[Exception]) -> Any:
    try:
        return decode()
    except error:
        return None
