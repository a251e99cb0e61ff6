"""A batch in parts: the places of the numbers of its Arrow message, its body's buffers, and the renewal of its
checksum.

This module finds places by walking the flatbuffer of an honest batch (Arrow's Message.fbs has the field numbers); the
mutations overwrite the bytes there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa

from sparklog.format.batch import (
    HEADER_CHARS,
    PREFIX_BYTES,
    BatchHeader,
    ProducerFields,
    decode_header,
    write_producer_fields,
)
from sparklog.format.flat import root_table, table_field

_I64 = struct.Struct("<q")
_U32 = struct.Struct("<I")
ENTRY_BYTES = 16
"""Of a node (length, null_count) and of a buffer (offset, length)."""
CONTENT_BYTES_MAX = 1 << 26
"""More than any honest buffer is: a size that a lie has made."""


class BufferRole(NamedTuple):
    """Role of a buffer. `what`: validity, offsets, data, bits; `column` and `path` name it; `node` is the number of its
    field node."""

    what: str
    column: int
    path: str
    node: int


def buffer_roles(schema: pa.Schema) -> list[BufferRole]:
    """Every buffer of a record batch of `schema`, in the order of the message (Columnar.rst, depth first)."""
    roles: list[BufferRole] = []
    node = -1

    def walk(t: pa.DataType, column: int, path: str) -> None:
        nonlocal node
        node += 1
        at = node
        roles.append(BufferRole("validity", column, path, at))
        if pa.types.is_struct(t):
            for f in t:
                walk(f.type, column, f"{path}.{f.name}")
        elif pa.types.is_map(t):
            roles.append(BufferRole("offsets", column, path, at))
            walk(pa.struct([t.key_field, t.item_field]), column, f"{path}.entries")
        elif pa.types.is_list(t):
            roles.append(BufferRole("offsets", column, path, at))
            walk(t.value_type, column, f"{path}.element")
        elif pa.types.is_string(t) or pa.types.is_binary(t):
            roles.append(BufferRole("offsets", column, path, at))
            roles.append(BufferRole("text" if pa.types.is_string(t) else "data", column, path, at))
        else:
            roles.append(BufferRole("bits" if pa.types.is_boolean(t) else "data", column, path, at))

    for i, f in enumerate(schema):
        walk(f.type, i, f.name)
    return roles


class Message:
    """An honest batch and where its numbers stand; `data` is changed in place."""

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        self.data = bytearray(data)
        self.header: BatchHeader = decode_header(self.data)
        flat = PREFIX_BYTES
        self.message_table = root_table(self.data, flat)
        self.kind_at = table_field(self.data, self.message_table, 1)
        self.body_length_at = table_field(self.data, self.message_table, 3)
        self.batch_table = root_table(self.data, table_field(self.data, self.message_table, 2))
        self.rows_at = table_field(self.data, self.batch_table, 0)
        self.nodes_at, self.nodes = self._vector(1)
        self.buffers_at, self.buffers = self._vector(2)
        compression = table_field(self.data, self.batch_table, 3)
        self.compression_table = root_table(self.data, compression) if compression else 0
        self.body_at = PREFIX_BYTES + self.header.metadata_length_bytes

    def _vector(self, field: int) -> tuple[int, int]:
        """Position of a vector's first element, and how many there are."""
        at = table_field(self.data, self.batch_table, field)
        if not at:
            return 0, 0
        vector = root_table(self.data, at)
        return vector + 4, int(_U32.unpack_from(self.data, vector)[0])

    @property
    def compressed(self) -> bool:
        return self.compression_table != 0

    @property
    def codec(self) -> str:
        if not self.compressed:
            return "none"
        at = table_field(self.data, self.compression_table, 0)
        return ("lz4", "zstd")[self.data[at] if at else 0]

    def entry_at(self, number: int) -> int:
        """Position of buffer `number`'s offset; its length is 8 bytes behind."""
        return self.buffers_at + ENTRY_BYTES * number

    def place(self, number: int) -> tuple[int, int]:
        """Offset and length of a buffer, in the body."""
        at = self.entry_at(number)
        return _I64.unpack_from(self.data, at)[0], _I64.unpack_from(self.data, at + 8)[0]

    def buffer(self, number: int) -> bytes:
        """A buffer as it is stored."""
        at, size = self.place(number)
        return bytes(self.data[self.body_at + at : self.body_at + at + size])

    def content(self, number: int) -> bytes:
        """A buffer's bytes, decompressed."""
        stored = self.buffer(number)
        if not self.compressed or not stored:
            return stored
        (length,) = _I64.unpack_from(stored)
        if length == -1:
            return stored[8:]
        if not 0 <= length <= CONTENT_BYTES_MAX:
            raise ValueError(f"a buffer of {length} bytes")
        return bytes(pa.Codec(self.codec).decompress(stored[8:], length, asbytes=True))

    def stored(self, content: bytes) -> bytes:
        """`content` as a buffer of this batch is stored."""
        if not self.compressed or not content:
            return content
        return _I64.pack(len(content)) + bytes(pa.Codec(self.codec).compress(content, asbytes=True))

    def put_i64(self, at: int, value: int) -> None:
        _I64.pack_into(self.data, at, value)

    def get_i64(self, at: int) -> int:
        return int(_I64.unpack_from(self.data, at)[0])

    def replace_buffer(self, number: int, stored: bytes) -> None:
        """Lays the body out anew with another content of one buffer; all entries and lengths agree again."""
        parts = [stored if i == number else self.buffer(i) for i in range(self.buffers)]
        self.lay_out(parts)

    def lay_out(self, parts: Sequence[bytes]) -> None:
        body = bytearray()
        for i, part in enumerate(parts):
            self.put_i64(self.entry_at(i), len(body))
            self.put_i64(self.entry_at(i) + 8, len(part))
            body += part + bytes(-len(part) % 8)
        self.data[self.body_at :] = body
        self.put_i64(self.body_length_at, len(body))
        self.header = self.header._replace(body_length_bytes=len(body))

    def is_text_of_header(self, at: int) -> bool:
        """Return True if a byte belongs to sparklog's header or the mark before it: without these the bytes are no
        batch."""
        first = self.header.stamp_position - 8
        return first <= at < first + 4 + HEADER_CHARS

    def sealed(self) -> bytes:
        """The bytes with the header written anew and a checksum that is right."""
        h = self.header
        seal = ProducerFields(
            h.attributes, h.schema_id, h.record_count, h.last_offset_delta, h.min_timestamp_ms, h.max_timestamp_ms,
            h.producer_id, h.producer_epoch, h.base_sequence, h.body_length_bytes,
        )  # fmt: skip
        write_producer_fields(memoryview(self.data), h.stamp_position, seal)
        return bytes(self.data)
