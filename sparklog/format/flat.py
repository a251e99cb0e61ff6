"""The part of FlatBuffers with which an Arrow IPC RecordBatch message is checked before Arrow decodes it.

The layout is FlatBuffers' own: a root offset u32, tables that begin with a signed offset to their vtable, vtables that
begin with two u16 sizes followed by u16 field offsets. Source of the field numbers: Apache Arrow's format/Message.fbs
and format/File.fbs. Arrow verifies the same bytes again before it reads them. Arrow and this module read every accepted
message in the same way.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from sparklog.errors import CorruptBatchError

_U16 = struct.Struct("<H")
_I16 = struct.Struct("<h")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")

METADATA_VERSION_V5 = 4
"""Schema.fbs: enum MetadataVersion { V1, ..., V5 }. In V4, custom metadata could make Arrow decompress the body."""
MESSAGE_HEADER_RECORD_BATCH = 3
"""Message.fbs: union MessageHeader { Schema = 1, DictionaryBatch = 2, RecordBatch = 3, ... }."""
CODECS = ("lz4", "zstd")
"""Message.fbs: enum CompressionType { LZ4_FRAME, ZSTD }."""

Bytes = bytes | bytearray | memoryview


class RecordBatchMessage(NamedTuple):
    """The content of an Arrow RecordBatch message."""

    rows: int
    body_length_bytes: int
    compression: str
    """none, lz4 or zstd."""
    nodes: np.ndarray
    """Length and number of nulls of every column and child: int64, of shape (n, 2)."""
    buffers: np.ndarray
    """Position in the body and length of every buffer: int64, of shape (n, 2)."""


def table_field(data: Bytes, table: int, number: int) -> int:
    """Return the position of field `number` of the table at `table`, or 0 if the field is absent. Raises
    struct.error."""
    vtable = table - _I32.unpack_from(data, table)[0]
    if vtable < 0:
        raise struct.error("a vtable lies before the first byte")
    entry = 4 + 2 * number
    if entry >= _U16.unpack_from(data, vtable)[0]:
        return 0
    offset: int = _U16.unpack_from(data, vtable + entry)[0]
    return table + offset if offset else 0


def root_table(data: Bytes, position: int = 0) -> int:
    """Return the position to which the u32 offset at `position` points: the root table of a flatbuffer that starts
    there, or the target of an offset field. Raises struct.error."""
    root: int = _U32.unpack_from(data, position)[0]
    return position + root


def record_batch_message(metadata: Bytes) -> RecordBatchMessage:
    """Read the flatbuffer of a RecordBatch message. `metadata` are the bytes of the message, without prefix and body.

    Raises CorruptBatchError if the bytes are another message or damaged, or have parts that no batch of a topic has
    (dictionaries, views).
    """
    try:
        message = root_table(metadata)
        version, kind, header, body = (table_field(metadata, message, number) for number in range(4))
        if not kind or metadata[kind] != MESSAGE_HEADER_RECORD_BATCH or not header:
            raise CorruptBatchError("not an Arrow RecordBatch message")
        if not version or _I16.unpack_from(metadata, version)[0] != METADATA_VERSION_V5:
            raise CorruptBatchError("the Arrow metadata of the batch have another version than V5")
        batch = root_table(metadata, header)
        length, nodes, buffers, compression, variadic = (table_field(metadata, batch, number) for number in range(5))
        if variadic and _U32.unpack_from(metadata, root_table(metadata, variadic))[0]:
            raise CorruptBatchError("the Arrow metadata of the batch count buffers of views; no topic has such columns")
        return RecordBatchMessage(
            _I64.unpack_from(metadata, length)[0] if length else 0,
            _I64.unpack_from(metadata, body)[0] if body else 0,
            _codec(metadata, root_table(metadata, compression)) if compression else "none",
            _pairs(metadata, nodes),
            _pairs(metadata, buffers),
        )
    except (struct.error, IndexError, ValueError) as e:
        raise CorruptBatchError("the Arrow metadata of the batch is damaged") from e


def _codec(metadata: Bytes, table: int) -> str:
    """Return the codec of the BodyCompression at `table`. Raises CorruptBatchError for a codec that Arrow does not
    know."""
    codec, method = (table_field(metadata, table, number) for number in range(2))
    number = metadata[codec] if codec else 0
    if number >= len(CODECS) or (method and metadata[method]):
        raise CorruptBatchError("the batch is compressed in a way that Arrow does not know")
    return CODECS[number]


def _pairs(metadata: Bytes, field: int) -> np.ndarray:
    """Return the vector of structs of two i64 that the field at position `field` points to; an empty vector for an
    absent field (0)."""
    if not field:
        return np.empty((0, 2), np.int64)
    vector = root_table(metadata, field)
    (count,) = _U32.unpack_from(metadata, vector)
    return np.frombuffer(metadata, "<i8", 2 * count, vector + 4).reshape(-1, 2)


def replace_buffers(metadata: memoryview, buffers: np.ndarray, body_length_bytes: int) -> None:
    """Write other places of the buffers, and another length of the body, into a RecordBatch message that
    `record_batch_message` has accepted. `buffers`: as in `RecordBatchMessage`, of the same shape."""
    message = root_table(metadata)
    header, body = (table_field(metadata, message, number) for number in (2, 3))
    vector = root_table(metadata, table_field(metadata, root_table(metadata, header), 2)) + 4
    metadata[vector : vector + 8 * buffers.size] = np.ascontiguousarray(buffers, "<i8").tobytes()
    metadata[body : body + 8] = _I64.pack(body_length_bytes)
