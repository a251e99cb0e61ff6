"""Just enough FlatBuffers to check an Arrow IPC RecordBatch message without decoding it.

The broker must know two facts that the Arrow metadata states (rows and body length) to hold them against the batch
header, the reader whether columns are compressed, and the footer writer must follow one reference. The layout is FlatBuffers' own: a root offset u32, tables that
begin with a signed offset to their vtable, vtables that begin with two u16 sizes followed by u16 field offsets.
Source of the field numbers: Apache Arrow's format/Message.fbs and format/File.fbs.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from sparklog.errors import CorruptBatchError

_U16 = struct.Struct("<H")
_I32 = struct.Struct("<i")
_U32 = struct.Struct("<I")
_I64 = struct.Struct("<q")

MESSAGE_HEADER_RECORD_BATCH = 3
"""Message.fbs: union MessageHeader { Schema = 1, DictionaryBatch = 2, RecordBatch = 3, ... }."""

Bytes = bytes | bytearray | memoryview


class RecordBatchFacts(NamedTuple):
    """What an Arrow RecordBatch message says of itself."""

    rows: int
    body_length_bytes: int
    compressed: bool


def table_field(data: Bytes, table: int, number: int) -> int:
    """Position of field `number` of the table at `table`, or 0 if the field is absent."""
    vtable = table - _I32.unpack_from(data, table)[0]
    entry = 4 + 2 * number
    if vtable < 0 or entry >= _U16.unpack_from(data, vtable)[0]:
        return 0
    offset: int = _U16.unpack_from(data, vtable + entry)[0]
    return table + offset if offset else 0


def root_table(data: Bytes, position: int = 0) -> int:
    """Position of the root table of the flatbuffer that starts at `position`."""
    root: int = _U32.unpack_from(data, position)[0]
    return position + root


def compression_of(data: Bytes, position: int) -> str:
    """How the RecordBatch message whose flatbuffer starts at `position` is compressed: none, lz4 or zstd.

    Message.fbs: RecordBatch.compression (field 3) is a BodyCompression, whose codec (field 0) is LZ4_FRAME = 0, ZSTD = 1.
    Raises CorruptBatchError.
    """
    try:
        header = table_field(data, root_table(data, position), 2)
        field = table_field(data, root_table(data, header), 3)
        if not field:
            return "none"
        codec = table_field(data, root_table(data, field), 0)
        return ("lz4", "zstd")[data[codec] if codec else 0]
    except (struct.error, IndexError) as e:
        raise CorruptBatchError("the Arrow metadata of the batch is damaged") from e


def record_batch_facts(data: Bytes, position: int) -> RecordBatchFacts:
    """Rows and body length stated by the RecordBatch message whose flatbuffer starts at `position`.

    Raises CorruptBatchError if it is not a RecordBatch message.
    """
    try:
        message = root_table(data, position)
        kind = table_field(data, message, 1)
        header = table_field(data, message, 2)
        if not kind or data[kind] != MESSAGE_HEADER_RECORD_BATCH or not header:
            raise CorruptBatchError("not an Arrow RecordBatch message")
        body = table_field(data, message, 3)
        record_batch = header + _U32.unpack_from(data, header)[0]
        length = table_field(data, record_batch, 0)
        compressed = table_field(data, record_batch, 3) != 0
        rows: int = _I64.unpack_from(data, length)[0] if length else 0
        body_length: int = _I64.unpack_from(data, body)[0] if body else 0
    except (struct.error, IndexError) as e:
        raise CorruptBatchError("the Arrow metadata of the batch is damaged") from e
    return RecordBatchFacts(rows, body_length, compressed)


def record_batch_buffers(data: Bytes, position: int) -> np.ndarray:
    """Offset and length, in the body, of every buffer of the RecordBatch message whose flatbuffer starts at `position`:
    int64, shape (buffers, 2) (Message.fbs: RecordBatch.buffers, field 2, a vector of structs).

    Raises CorruptBatchError.
    """
    try:
        header = table_field(data, root_table(data, position), 2)
        record_batch = root_table(data, header)
        field = table_field(data, record_batch, 2)
        if not header or not field:
            raise CorruptBatchError("the Arrow metadata of the batch lists no buffers")
        vector = root_table(data, field)
        count = _U32.unpack_from(data, vector)[0]
        return np.frombuffer(data, "<i8", 2 * count, vector + 4).reshape(-1, 2)
    except (struct.error, IndexError, ValueError) as e:
        raise CorruptBatchError("the Arrow metadata of the batch is damaged") from e
