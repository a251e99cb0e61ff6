"""The broker's check of a compressed batch at the append. It covers all parts that could mislead a reader, but not all
bytes.

Decompressing a batch costs the broker several times as much as the rest of an append. So the check decompresses only
the necessary parts: the offsets of binary columns, the validity bits, and columns with text, decimals (a type limits
the number of digits) or nested values. It does not decompress the bytes of binary columns and numbers, because any
content is a value. If a frame cannot be decompressed to its stated size, Arrow detects it at the reader, and the reader
gets an error instead of records.

A column in which all rows are null has the same few bytes in every batch with the same number of rows. So the last such
bytes are remembered, and the same bytes in a later batch are not decompressed again.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.errors import CorruptBatchError
from sparklog.format.batch import BatchHeader, decode_batch
from sparklog.format.body_layout import BodyLayout, layout_of_schema
from sparklog.format.flat import RecordBatchMessage
from sparklog.format.identity_cache import kept_by_identity
from sparklog.format.value_check import check_text

_KEY_BYTES_MAX = 4096
ROWS_MIN = 256
"""Smallest number of rows for this check: with fewer rows, Arrow is faster, although it decompresses all columns."""
_I64 = struct.Struct("<q")


def check_compressed(
    data: memoryview, schema: pa.Schema, header: BatchHeader, message: RecordBatchMessage, inflated_bytes_max: int
) -> bool:
    """Check a compressed batch. Returns False, without a check, if the batch is not compressed or has fewer than
    ROWS_MIN rows: then `decode_batch` must check it.

    Raises CorruptBatchError; InflatedSizeError, before any buffer is decompressed.
    """
    if message.compression == "none" or message.rows < ROWS_MIN:
        return False
    try:
        pa.ipc.read_message(pa.py_buffer(data))  # no reader can read a batch whose metadata Arrow refuses
    except pa.ArrowMemoryError:
        raise
    except (pa.ArrowException, OSError, EOFError) as e:
        raise CorruptBatchError(f"Arrow cannot read the batch: {e}") from e
    body = data[header.size_bytes - header.body_length_bytes : header.size_bytes]
    layout = layout_of_schema(schema)
    layout.check(message, body, inflated_bytes_max=inflated_bytes_max)
    frames = _Frames(message, body)
    whole, null = [], []
    for column, (kind, node, first_buffer) in enumerate(layout.columns):
        nulls = int(message.nodes[node, 1])
        try:
            if nulls == message.rows:
                null.append(column)
            elif pa.types.is_primitive(kind):
                frames.check_nulls(first_buffer, nulls)
            elif pa.types.is_binary(kind):
                frames.check_nulls(first_buffer, nulls)
                frames.check_offsets(first_buffer + 1)
            elif pa.types.is_string(kind):
                check_text(frames.text(first_buffer, nulls), pa.binary())
            else:
                whole.append(column)
        except (CorruptBatchError, pa.ArrowInvalid) as e:
            raise CorruptBatchError(f"column {schema.names[column]!r}: {e}") from e
    last_seen = _last_nulls(schema)
    key = frames.key(null, layout) if null else last_seen.key
    if key != last_seen.key:
        whole += null
    if whole:
        decode_batch(data, schema, sorted(whole), header=header, message=message, inflated_bytes_max=inflated_bytes_max)
    if len(key) <= _KEY_BYTES_MAX:
        last_seen.key = key
    return True


class _LastNulls:
    """Bytes of the columns in which all rows were null, in the last sound batch of a schema."""

    key = b""


@kept_by_identity
def _last_nulls(schema: pa.Schema) -> _LastNulls:
    return _LastNulls()


class _Frames:
    """The compressed buffers of a batch, whose places and stated sizes have been checked."""

    def __init__(self, message: RecordBatchMessage, body: memoryview) -> None:
        self._rows = message.rows
        self._nodes = message.nodes.tobytes()
        self._codec = message.compression
        self._places: list[list[int]] = message.buffers.tolist()
        self._body = body

    def key(self, columns: Sequence[int], layout: BodyLayout) -> bytes:
        """Return all bytes on which the check of `columns` depends."""
        places = [self._places[buffer] for buffer in layout.buffers_of(columns)]
        sizes = [size for _, size in places]
        head = repr((columns, self._codec, sizes)).encode()
        return b"".join((head, self._nodes, *(self._body[at : at + size] for at, size in places)))

    def check_nulls(self, number: int, nulls: int) -> None:
        """Check that validity buffer `number` has the number of nulls that the batch states. Raises pa.ArrowInvalid."""
        if nulls:
            bits = self._inflate(number)
            pa.Array.from_buffers(pa.bool_(), self._rows, [bits, bits], nulls).validate(full=True)

    def check_offsets(self, number: int) -> None:
        """Check that a binary column's values are inside its data, one after the other. Raises CorruptBatchError."""
        data_bytes = self._stated_bytes(number + 1)
        offsets = np.frombuffer(self._inflate(number), "<i4", self._rows + 1)
        if offsets[0] < 0 or offsets[-1] > data_bytes or (offsets[1:] < offsets[:-1]).any():
            raise CorruptBatchError(f"its offsets exceed its {data_bytes} bytes, or decrease")

    def text(self, first: int, nulls: int) -> Any:
        """Return the text column whose validity buffer has the number `first`. The text is not validated."""
        validity = self._inflate(first) if nulls else None
        return pa.Array.from_buffers(
            pa.string(), self._rows, [validity, self._inflate(first + 1), self._inflate(first + 2)], nulls
        )

    def _stated_bytes(self, number: int) -> int:
        at, stored = self._places[number]
        if not stored:
            return 0
        (size,) = _I64.unpack_from(self._body, at)
        return stored - _I64.size if size == -1 else int(size)

    def _inflate(self, number: int) -> Any:
        """Decompress one buffer. Raises CorruptBatchError."""
        at, stored = self._places[number]
        frame = pa.py_buffer(self._body[at + _I64.size : at + stored])
        if not stored or _I64.unpack_from(self._body, at)[0] == -1:
            return frame
        size = self._stated_bytes(number)
        try:
            # not the codec's `decompress`, which does not return the length of the content
            with pa.CompressedInputStream(pa.BufferReader(frame), self._codec) as stream:
                content = stream.read_buffer(size + 1)
        except pa.ArrowMemoryError:
            raise  # nothing is wrong with the batch
        except (pa.ArrowException, OSError) as e:
            raise CorruptBatchError(f"it cannot be decompressed: {e}") from e
        if content.size != size:
            raise CorruptBatchError(f"a buffer does not have its declared {size} bytes")
        return content
