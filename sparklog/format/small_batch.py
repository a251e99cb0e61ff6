"""Envelope batches of few records, written and read without Arrow's library.

For a record that is sent alone, Arrow's writer and reader take much of a sender's and a receiver's time: four times as much
as in a loop, when the thread has slept before (its caches are cold). What is written here is byte for byte what
`encode_batch` makes of the same records: its metadata are taken over from there, with the numbers changed, and the body is
the columns' buffers one after the other, each filled up to a multiple of 8::

    column     buffers
    key        validity (n bits, absent if all have one), n + 1 offsets i32, bytes
    value      offsets i32, bytes
    headers    validity (n bits, none has any), n + 1 offsets i32, and of its empty children one offset each
    timestamp  i64, µs

Only records that all have a value, have no headers, and either all have a key or none has, are written so (Arrow's Message.fbs
and Columnar.rst have the layout).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from sparklog.errors import CorruptBatchError
from sparklog.format.batch import BatchHeader, Seal, seal_batch
from sparklog.format.envelope_layout import BUFFERS_STRUCT, NODES_STRUCT, layout_of, template
from sparklog.format.flat import Bytes

ROWS_MAX = 255
"""Of more rows Arrow is cheaper, and there is something to pack."""
_NO_ENTRIES = (b"", b"", bytes(4), b"", b"", bytes(4), b"")
"""The buffers of the headers' children, of which there are none."""


class SmallRows(NamedTuple):
    """A batch's records as columns; `keys` None: no record has one. `timestamps_us`: µs since 1970."""

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
    """What `encode_batch` and `assign_producer` make of these records, CRC set, not stamped. Returns a writable view."""
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
    seal_batch(
        view,
        form.stamp_position,
        Seal(
            attributes, schema_id, n, n - 1, min(stamps) // 1000, max(stamps) // 1000,
            producer_id, producer_epoch, base_sequence, size,
        ),
    )  # fmt: skip
    return view


def decode_small_batch(data: Bytes, position: int, header: BatchHeader) -> SmallRows | None:
    """The records of the batch at `position` of `data`; None if it is none of those, compressed, or not as Arrow would write
    it: Arrow reads it, or says what is wrong.

    Raises CorruptBatchError.
    """
    try:
        layout = layout_of(data, position)
        if layout is None or layout.compression:
            return None
        nodes = NODES_STRUCT.unpack_from(data, layout.nodes)
        n = header.record_count
        no_keys = nodes[1]
        if nodes[::2] != (n, n, n, 0, 0, 0, n) or no_keys not in (0, n) or nodes[3::2] != (0, n, 0, 0, 0, 0):
            return None
        buffers = BUFFERS_STRUCT.unpack_from(data, layout.buffers)
        places = zip(buffers[::2], buffers[1::2], strict=True)
        if any(at % 8 or at < 0 or not 0 <= size <= header.body_length_bytes - at for at, size in places):
            return None
        if buffers[9] < 4 * (n + 1) or (not no_keys and buffers[3] < 4 * (n + 1)) or buffers[33] < 8 * n:
            return None
        body = memoryview(data)[position + header.size_bytes - header.body_length_bytes : position + header.size_bytes]
        stamps = struct.unpack_from(f"<{n}q", body, buffers[32])
        keys = None if no_keys else _cut(body, n, buffers[2], *buffers[4:6])
        return SmallRows(_cut(body, n, buffers[8], *buffers[10:12]), keys, stamps)
    except (struct.error, IndexError) as e:
        raise CorruptBatchError("the Arrow metadata of the batch is damaged") from e


def _offsets(values: Sequence[bytes]) -> bytes:
    return struct.pack(f"<{len(values) + 1}i", 0, *accumulate(map(len, values)))


def _cut(body: memoryview, n: int, offsets_at: int, data_at: int, size: int) -> list[bytes]:
    offsets = struct.unpack_from(f"<{n + 1}i", body, offsets_at)
    if offsets[0] < 0 or offsets[-1] > size or any(a > b for a, b in pairwise(offsets)):
        raise CorruptBatchError("the offsets of a column are damaged")
    data = bytes(body[data_at : data_at + size])
    return [data[a:b] for a, b in pairwise(offsets)]
