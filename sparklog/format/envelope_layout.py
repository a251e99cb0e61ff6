"""Positions of the numbers in an envelope batch's RecordBatch message, for code that writes and reads the message
without Arrow's library.

The metadata of all envelope batches are equal except for some numbers: rows, body length, nulls per column, position
and length of each buffer. So the metadata are copied from a message that Arrow has written, and the numbers are
changed. The columns have 7 nodes (the headers have three children: the entry, its name, its value) and 17 buffers with
these numbers::

    column     buffers
    key        0 validity, 1 offsets, 2 bytes
    value      3 validity, 4 offsets, 5 bytes
    headers    6 validity, 7 offsets, and of the children 8 validity, 9 to 11, 12 to 14 as for key
    timestamp  15 validity, 16 µs

Arrow's Message.fbs and Columnar.rst have the layout.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.format.batch import PREFIX_BYTES, PRODUCER_FIELDS_CHARS, STAMP_CHARS, decode_header, encode_batch
from sparklog.format.flat import Bytes, root_table, table_field
from sparklog.format.identity_cache import kept_by_identity
from sparklog.format.schema import ENVELOPE_SCHEMA, HEADER_TYPE, TIMESTAMP_TYPE, null_column

NODES = 7
BUFFERS = 17
NODES_STRUCT = struct.Struct(f"<{2 * NODES}q")
"""Rows and number of nulls of each node."""
BUFFERS_STRUCT = struct.Struct(f"<{2 * BUFFERS}q")
"""Of each buffer: position in the body, and length without the padding to a multiple of 8."""
I64 = struct.Struct("<q")

_NULLS_KEPT_ROWS_MAX = 65_536
_U32 = struct.Struct("<I")


class Layout(NamedTuple):
    """Positions in the bytes of a message."""

    body_length: int
    rows: int
    nodes: int
    """Position of the first node's numbers."""
    buffers: int
    """Position of the first buffer's numbers."""


class Template(NamedTuple):
    """Prefix and metadata of a message, with the positions of the numbers that differ between messages."""

    head: bytes
    """The bytes of prefix and metadata."""
    layout: Layout
    stamp_position: int
    mask: int
    """Little-endian integer of the size of `head`: FF for each byte that is equal in all messages, 00 for the bytes of
    the header and the numbers."""
    fixed: int
    """The bytes of `head` under `mask`."""

    def write_numbers(
        self, message: Any, rows: int, rows_without_key: int, buffers: Sequence[int], body_bytes: int
    ) -> None:
        """Write the numbers of a batch into `message`, which begins with the bytes of `head`. `buffers`: position and
        length of each buffer, all in one list."""
        n, layout = rows, self.layout
        I64.pack_into(message, layout.body_length, body_bytes)
        I64.pack_into(message, layout.rows, n)
        NODES_STRUCT.pack_into(message, layout.nodes, n, rows_without_key, n, 0, n, n, 0, 0, 0, 0, 0, 0, n, 0)
        BUFFERS_STRUCT.pack_into(message, layout.buffers, *buffers)

    def fits(self, head: bytes) -> bool:
        """Return True if a message with this head differs from the template in its numbers only."""
        return len(head) == len(self.head) and int.from_bytes(head, "little") & self.mask == self.fixed


def layout_of(data: Bytes, position: int) -> Layout | None:
    """Return the layout of the message at `position`, in positions of `data`. Returns None if the message has another
    number of nodes or buffers than an envelope batch. Raises struct.error and IndexError for damage."""
    message = root_table(data, position + PREFIX_BYTES)
    record_batch = root_table(data, table_field(data, message, 2))
    nodes, buffers = (root_table(data, table_field(data, record_batch, field)) for field in (1, 2))
    if (_U32.unpack_from(data, nodes)[0], _U32.unpack_from(data, buffers)[0]) != (NODES, BUFFERS):
        return None
    return Layout(
        table_field(data, message, 3),
        table_field(data, record_batch, 0),
        nodes + 4,
        buffers + 4,
    )


@cache
def template(compression: str) -> Template:
    """Return the template for a compression, from Arrow's message for one record. FlatBuffers omits fields whose value
    is 0, so the record is chosen so that rows and body length are above 0."""
    zeros = pa.py_buffer(bytes(8))  # `pa.array` imports pandas
    empty = pa.Array.from_buffers(pa.binary(), 1, [None, zeros, zeros])
    headers = null_column(1, HEADER_TYPE)
    timestamp = pa.Array.from_buffers(TIMESTAMP_TYPE, 1, [None, zeros])
    sample = pa.RecordBatch.from_arrays([empty, empty, headers, timestamp], schema=ENVELOPE_SCHEMA)
    message = encode_batch(sample, schema_id=0, min_timestamp_ms=0, max_timestamp_ms=0, compression=compression)
    header = decode_header(message)
    layout = layout_of(message, 0)
    assert layout is not None and layout.body_length and layout.rows
    head = bytes(message[: header.size_bytes - header.body_length_bytes])
    mask = bytearray(b"\xff" * len(head))
    for at, size in (
        (header.stamp_position, STAMP_CHARS + PRODUCER_FIELDS_CHARS),
        (layout.body_length, 8),
        (layout.rows, 8),
        (layout.nodes, NODES_STRUCT.size),
        (layout.buffers, BUFFERS_STRUCT.size),
    ):
        mask[at : at + size] = bytes(size)
    fixed_bits = int.from_bytes(mask, "little")
    fixed = int.from_bytes(head, "little") & fixed_bits
    return Template(head, layout, header.stamp_position, fixed_bits, fixed)


@kept_by_identity
def is_envelope(schema: pa.Schema) -> bool:
    """Return True if `schema` is the schema of envelope topics."""
    return bool(schema.equals(ENVELOPE_SCHEMA, check_metadata=True))


def no_keys_and_headers(rows: int) -> tuple[Any, Any]:
    """Return the columns `key` and `headers` of a batch in which no record has a key or headers."""
    return _kept_nulls(rows) if rows <= _NULLS_KEPT_ROWS_MAX else _kept_nulls.__wrapped__(rows)


@lru_cache(maxsize=4)  # batches of one size follow one another
def _kept_nulls(rows: int) -> tuple[Any, Any]:
    return null_column(rows, pa.binary()), null_column(rows, HEADER_TYPE)
