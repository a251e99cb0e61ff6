"""Envelope batches of few records, written, checked and read without Arrow's library.

For a record that is sent alone, Arrow's writer and reader take much of the client's time. In a thread that has slept,
and whose caches are cold, they take four times as much as in a loop. This module writes the same bytes as
`encode_batch` for the same records: it copies the metadata that `encode_batch` writes, and changes the numbers. The
body consists of the columns' buffers one after the other, each padded to a multiple of 8::

    column     buffers
    key        validity (n zero bits; absent if all records have a key), n + 1 offsets i32, bytes
    value      n + 1 offsets i32, bytes
    headers    validity (n zero bits), n + 1 offsets i32, and of its empty children one offset each
    timestamp  i64, µs

The module writes records only if all records have a value, no record has headers, and either all records have a key or
no record has one. (Arrow's Message.fbs and Columnar.rst have the layout.)
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from sparklog.format.batch import PREFIX_BYTES, BatchHeader, ProducerFields, write_producer_fields
from sparklog.format.envelope_layout import BUFFERS_STRUCT, I64, NODES_STRUCT, template

ROWS_MAX = 255
"""Largest number of rows: with more rows Arrow is faster, and the packed form (`packed_batch`) is smaller."""
_ZEROS = bytes(8 * ROWS_MAX)
"""Zeros for the null bits and offsets of a column without values, and of the headers with their children."""
_NO_ENTRIES = (b"", b"", bytes(4), b"", b"", bytes(4), b"")
"""The buffers of the headers' children, of which there are none."""


class SmallRows(NamedTuple):
    """The records of a batch as columns. `keys` is None if no record has a key; `timestamps_us` are µs since 1970."""

    values: Sequence[bytes]
    keys: Sequence[bytes] | None
    timestamps_us: Sequence[int]


def encode_small_batch(
    rows: SmallRows,
    schema_id: int,
    attributes: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> memoryview:
    """Encode 1 to ROWS_MAX records like `encode_batch` and `assign_producer` together: with the CRC, but without the
    leader's stamp. Returns a writable view of the bytes."""
    values, keys, stamps = rows
    n = len(values)
    form = template("none")
    no_bits, no_offsets = bytes((n + 7) // 8), bytes(4 * (n + 1))
    of_keys = (no_bits, no_offsets, b"") if keys is None else (b"", _offsets(keys), b"".join(keys))
    of_values = (b"", _offsets(values), b"".join(values))
    buffers: list[int] = []
    parts = [form.head]
    size = 0
    for part in (*of_keys, *of_values, no_bits, no_offsets, *_NO_ENTRIES, b"", struct.pack(f"<{n}q", *stamps)):
        length = len(part)
        buffers += (size, length)
        parts.append(part)
        if padding := -length % 8:
            parts.append(bytes(padding))
        size += length + padding
    message = bytearray().join(parts)
    no_keys = 0 if keys is not None else n
    form.write_numbers(message, n, no_keys, buffers, size)
    view = memoryview(message)
    write_producer_fields(
        view,
        form.stamp_position,
        ProducerFields(
            attributes, schema_id, n, n - 1, min(stamps) // 1000, max(stamps) // 1000,
            producer_id, producer_epoch, base_sequence, size,
        ),
    )  # fmt: skip
    return view


def decode_small_batch(data: memoryview, position: int, header: BatchHeader) -> SmallRows | None:
    """Decode the batch at `position` of `data`. Returns None unless `is_small_batch`: then Arrow reads the batch, or
    reports the fault."""
    if not is_small_batch(data, position, header):
        return None
    form, n = template("none"), header.record_count
    no_keys = NODES_STRUCT.unpack_from(data, position + form.layout.nodes)[1]
    buffers = BUFFERS_STRUCT.unpack_from(data, position + form.layout.buffers)
    body = data[position + len(form.head) : position + header.size_bytes]
    stamps = struct.unpack_from(f"<{n}q", body, buffers[32])
    keys = None if no_keys else _cut(body, n, buffers[2], *buffers[4:6])
    return SmallRows(_cut(body, n, buffers[8], *buffers[10:12]), keys, stamps)


def is_small_batch(data: memoryview, position: int, header: BatchHeader) -> bool:
    """Return True if `encode_small_batch` can have written the batch at `position`. All bytes beside keys, values and
    timestamps are compared, so such a batch is sound. With False, the batch can be sound or not."""
    form = template("none")
    start, n = position + len(form.head), header.record_count
    if header.metadata_length_bytes != len(form.head) - PREFIX_BYTES or not 0 < n <= ROWS_MAX:
        return False
    head = bytes(data[position:start])
    if not form.fits(head):
        return False
    layout = form.layout
    rows = I64.unpack_from(head, layout.rows)[0]
    body_bytes = I64.unpack_from(head, layout.body_length)[0]
    nodes = NODES_STRUCT.unpack_from(head, layout.nodes)
    buffers = BUFFERS_STRUCT.unpack_from(head, layout.buffers)
    no_keys = nodes[1]
    if (rows, body_bytes, *nodes) != (n, header.body_length_bytes, n, no_keys, n, 0, n, n, 0, 0, 0, 0, 0, 0, n, 0):
        return False
    if no_keys not in (0, n) or not 0 <= buffers[5] <= body_bytes or not 0 <= buffers[11] <= body_bytes:
        return False
    if buffers != _places(n, None if no_keys else buffers[5], buffers[11]) or body_bytes != buffers[32] + 8 * n:
        return False
    body = data[start : start + body_bytes]
    if no_keys and body[: buffers[8]] != _ZEROS[: buffers[8]]:
        return False
    if not no_keys and not _is_ascending(body, n, buffers[2], buffers[5]):
        return False
    nulls = body[buffers[12] : buffers[32]]
    return _is_ascending(body, n, buffers[8], buffers[11]) and nulls == _ZEROS[: len(nulls)]


@lru_cache(maxsize=256)  # records of one size follow one another
def _places(n: int, key_bytes: int | None, value_bytes: int) -> tuple[int, ...]:
    """Return the position and length of each buffer, all in one tuple. `key_bytes`: size of the keys; None without
    keys."""
    bits, offsets = (n + 7) // 8, 4 * (n + 1)
    of_keys = (bits, offsets, 0) if key_bytes is None else (0, offsets, key_bytes)
    places: list[int] = []
    end = 0
    for size in (*of_keys, 0, offsets, value_bytes, bits, offsets, *map(len, _NO_ENTRIES), 0, 8 * n):
        places += (end, size)
        end += size + 7 & ~7
    return tuple(places)


def _is_ascending(body: memoryview, n: int, offsets_at: int, size: int) -> bool:
    """Return True if the offsets of n values ascend from 0 to `size`."""
    offsets = struct.unpack_from(f"<{n + 1}i", body, offsets_at)
    return offsets[0] == 0 and offsets[-1] == size and list(offsets) == sorted(offsets)


def _offsets(values: Sequence[bytes]) -> bytes:
    return struct.pack(f"<{len(values) + 1}i", 0, *accumulate(map(len, values)))


def _cut(body: memoryview, n: int, offsets_at: int, data_at: int, size: int) -> list[bytes]:
    offsets = struct.unpack_from(f"<{n + 1}i", body, offsets_at)
    data = bytes(body[data_at : data_at + size])
    return [data[a:b] for a, b in pairwise(offsets)]
