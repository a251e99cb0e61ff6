"""Uncompressed envelope batches of many records, in which buffers with repeated content are packed.

An envelope record has 20 bytes beside key and value: three offsets i32 and a timestamp. In most batches no record has a
key or headers, and the timestamps are those of a few calls; then 16 of these bytes carry no information. Such a batch
is stored by Arrow's own means: its message's BodyCompression is LZ4_FRAME with the method BUFFER. So each buffer that
is not empty begins with an i64, the length of the rest after decompression, or -1 for an uncompressed rest. Every Arrow
reader reads such a batch, and slices the bytes after a -1 out of the message without a copy::

    column     buffers
    key        if no record has a key:   n zero bits, packed; n + 1 zero offsets, packed; no bytes
               if all records have one:  no bits; n + 1 offsets i32 after -1; bytes after -1
    value      no bits; n + 1 offsets i32 after -1; bytes after -1
    headers    n zero bits, packed; n + 1 zero offsets, packed; of its empty children one offset each, after -1
    timestamp  no bits; i64, µs: packed if they seldom change, else after -1

A packed buffer is its length and an LZ4 frame. The producer writes a batch in this form under four conditions: the
batch has at least PACKED_ROWS_MIN records; no compression was requested; all records have a value and a timestamp, and
no record has headers; either all records have a key or no record has one. Keys and values are not compressed, so
`compression_of_batch` calls the batch uncompressed. Compaction writes the remaining rows of a packed batch with
`encode_batch`, because a batch with an offset column does not have the envelope's columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from sparklog.errors import CorruptBatchError
from sparklog.format.batch import (
    PREFIX_BYTES,
    BatchHeader,
    ProducerFields,
    decode_header,
    message_of,
    write_producer_fields,
)
from sparklog.format.envelope_layout import (
    BUFFERS,
    BUFFERS_STRUCT,
    I64,
    NODES,
    NODES_STRUCT,
    is_envelope,
    no_keys_and_headers,
    template,
)
from sparklog.format.flat import Bytes
from sparklog.format.schema import ENVELOPE_SCHEMA, TIMESTAMP_TYPE

PACKED_ROWS_MIN = 256
"""Smallest number of rows for which packing saves more time than it costs."""
REPEATS_MIN = 8
"""Smallest mean number of successive records with the same timestamp for which timestamps are packed."""

_KEY, _VALUE, _HEADERS, _TIMESTAMP = range(4)
_KEY_DATA, _VALUE_OFFSETS, _VALUE_DATA, _STAMPS = 2, 4, 5, 16
"""Numbers of buffers in the message."""
_CODEC = pa.Codec("lz4")
_AS_IT_IS = I64.pack(-1)
_ONE_OFFSET = _AS_IT_IS + bytes(4)
_CHILDREN_SIZES = (0, 0, len(_ONE_OFFSET), 0, 0, len(_ONE_OFFSET), 0)
_CHILDREN = 2 * (_ONE_OFFSET + bytes(4))


class PackedBatch(NamedTuple):
    """The bytes of a batch as `encode_batch` returns them, and the bounds of the timestamps in its header."""

    payload: memoryview
    min_timestamp_ms: int
    max_timestamp_ms: int


class _Nulls(NamedTuple):
    """The packed buffers of a column of variable length in which all rows are null."""

    validity: bytes
    offsets: bytes
    both: bytes
    """The two buffers with their padding, as the body contains them."""


class _Column(NamedTuple):
    """A binary column without nulls."""

    offsets: np.ndarray
    """The column's n + 1 offsets. The first offset need not be 0."""
    data: np.ndarray
    """The bytes of the values, from the first offset to the last."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Sizes of the column's three buffers in the body, without padding."""
        return 0, 8 + self.offsets.nbytes, 8 + self.data.nbytes if self.data.nbytes else 0


class _Timestamps(NamedTuple):
    """The buffer of the timestamps, as the body contains it."""

    before: bytes
    """The i64 at the start of the buffer: -1, or the length of the unpacked timestamps."""
    data: Any
    """The rest of the buffer."""
    low: int
    """The smallest timestamp, in µs."""
    high: int
    """The largest timestamp, in µs."""


def encode_packed_batch(
    batch: pa.RecordBatch,
    *,
    schema_id: int,
    attributes: int = 0,
    checksum: bool = True,
    allocate: Callable[[int], Any] = pa.allocate_buffer,
) -> PackedBatch | None:
    """Encode rows of an envelope topic in the packed form, with the bounds of their timestamps. Returns None if the
    rows do not meet the conditions for this form. The arguments are those of `encode_batch`.

    The packed form is always smaller than that of `encode_batch`: the headers column alone saves more than the lengths
    before the buffers add.
    """
    n = batch.num_rows
    if n < PACKED_ROWS_MIN:
        return None
    keys, values, headers, stamps = batch.columns
    no_keys = keys.null_count
    if no_keys not in (0, n) or values.null_count or headers.null_count < n or stamps.null_count:
        return None
    nulls = _nulls(n)
    null_sizes = len(nulls.validity), len(nulls.offsets)
    key, value, time = None if no_keys else _column(keys), _column(values), _timestamps(stamps)
    key_sizes = (*null_sizes, 0) if key is None else key.sizes
    sizes = (*key_sizes, *value.sizes, *null_sizes, *_CHILDREN_SIZES, 0, len(time.before) + len(time.data))
    buffers = _place_buffers(sizes)
    end = _end(buffers)
    form = template("lz4")
    start = len(form.head)
    message = memoryview(allocate(start + end)).cast("B")
    message[:start] = form.head
    form.write_numbers(message, n, no_keys, buffers, end)
    body = message[start:]
    if key is None:
        _put_size(body, 0, nulls.both)
    else:
        _put_column(body, buffers[2:6], key)
    _put_column(body, buffers[8:12], value)
    _put_size(body, buffers[12], nulls.both, _CHILDREN)
    _put_size(body, buffers[32], time.before, time.data)
    low, high = time.low // 1000, time.high // 1000
    fields = ProducerFields(attributes, schema_id, n, n - 1, low, high, -1, -1, -1, end)
    write_producer_fields(message, form.stamp_position, fields, checksum=checksum)
    return PackedBatch(message, low, high)


@lru_cache(maxsize=16)  # batches of one size follow one another
def _nulls(rows: int) -> _Nulls:
    validity, offsets = (
        I64.pack(n) + _CODEC.compress(bytes(n), asbytes=True) for n in ((rows + 7) // 8, 4 * (rows + 1))
    )
    return _Nulls(validity, offsets, b"".join(part + bytes(-len(part) % 8) for part in (validity, offsets)))


def _column(array: Any) -> _Column:
    _, offsets, data = array.buffers()
    where = np.frombuffer(offsets, np.int32, len(array) + 1, 4 * array.offset)
    first, size = int(where[0]), int(where[-1] - where[0])
    return _Column(where, np.frombuffer(data, np.uint8, size, first) if size else np.empty(0, np.uint8))


def _timestamps(array: Any) -> _Timestamps:
    n = len(array)
    stamps = np.frombuffer(array.buffers()[1], np.int64, n, 8 * array.offset)
    low, high = int(stamps.min()), int(stamps.max())
    if np.count_nonzero(stamps[1:] != stamps[:-1]) * REPEATS_MIN <= n:
        frame = _CODEC.compress(stamps, asbytes=True)
        if len(frame) < stamps.nbytes:
            return _Timestamps(I64.pack(stamps.nbytes), frame, low, high)
    return _Timestamps(_AS_IT_IS, stamps.data.cast("B"), low, high)


def _put_column(body: memoryview, places: Sequence[int], column: _Column) -> None:
    """Write the offsets and the bytes of a column. `places`: position and length of the offsets, then of the bytes. The
    first offset in the body is 0."""
    at, size, data_at, data_size = places
    I64.pack_into(body, at + (size - 1 & ~7), 0)  # the padding
    I64.pack_into(body, at, -1)
    np.subtract(column.offsets, column.offsets[0], out=np.frombuffer(body, np.int32, len(column.offsets), at + 8))
    if data_size:
        I64.pack_into(body, data_at + (data_size - 1 & ~7), 0)
        I64.pack_into(body, data_at, -1)
        np.copyto(np.frombuffer(body, np.uint8, data_size - 8, data_at + 8), column.data)


def _put_size(body: memoryview, at: int, *parts: Any) -> None:
    for part in parts:
        body[at : at + len(part)] = part
        at += len(part)
    if at % 8:
        body[at : at + 8 - at % 8] = bytes(8 - at % 8)


def decode_packed_batch(
    data: Any, schema: pa.Schema, header: BatchHeader, columns: Sequence[int] | None = None
) -> pa.RecordBatch | None:
    """Decode a packed batch like `decode_batch`, without copies of the buffers that are not packed. Returns None for
    any batch that `encode_packed_batch` would not write in this form: then Arrow reads the batch, or reports the fault.

    Raises CorruptBatchError.
    """
    form = template("lz4")
    start, n = len(form.head), header.record_count
    if header.metadata_length_bytes != start - PREFIX_BYTES or not n:
        return None
    buffer = pa.py_buffer(data)
    head = bytes(memoryview(buffer)[:start])
    if not form.fits(head) or buffer.size < header.size_bytes or not is_envelope(schema):
        return None
    (rows,), (body_length,) = (I64.unpack_from(head, at) for at in (form.layout.rows, form.layout.body_length))
    nodes = NODES_STRUCT.unpack_from(head, form.layout.nodes)
    if (rows, body_length, *nodes) != (n, header.body_length_bytes, n, nodes[1], n, 0, n, n, 0, 0, 0, 0, 0, 0, n, 0):
        return None
    buffers = BUFFERS_STRUCT.unpack_from(head, form.layout.buffers)
    has_keys = nodes[1] == 0
    if nodes[1] not in (0, n) or not _are_in_place(buffers, n, body_length, has_keys=has_keys):
        return None
    try:
        return _Body(buffer.slice(start, body_length), buffers, n).decode(columns, has_keys=has_keys)
    except (pa.ArrowException, OSError) as e:
        raise CorruptBatchError(f"Arrow cannot read the batch: {e}") from e


def _are_in_place(buffers: Sequence[int], rows: int, body_bytes: int, *, has_keys: bool) -> bool:
    """Return True if all buffers, also those that are not decoded, are at the places where `encode_packed_batch` puts
    them: one after the other, with the sizes that this number of rows needs. The bytes of keys and values, and the
    timestamps, can have any size."""
    if buffers[2 * _VALUE_OFFSETS + 1] != 8 + 4 * (rows + 1) or 4 * rows > body_bytes:
        return False  # afterwards, the number of rows is bounded by the size of the body
    free = [buffers[2 * number + 1] for number in (_KEY_DATA, _VALUE_DATA, _STAMPS)]
    return min(free) >= 0 and tuple(buffers) == _places(rows, *free, has_keys=has_keys) and _end(buffers) == body_bytes


@lru_cache(maxsize=64)  # batches of one size follow one another
def _places(rows: int, key_bytes: int, value_bytes: int, stamp_bytes: int, *, has_keys: bool) -> tuple[int, ...]:
    """Return the position and length of each buffer, all in one tuple."""
    nulls, offsets = _nulls(rows), 8 + 4 * (rows + 1)
    null_sizes = len(nulls.validity), len(nulls.offsets)
    of_keys = (0, offsets, key_bytes) if has_keys else (*null_sizes, 0)
    return tuple(_place_buffers((*of_keys, 0, offsets, value_bytes, *null_sizes, *_CHILDREN_SIZES, 0, stamp_bytes)))


def _place_buffers(sizes: Sequence[int]) -> list[int]:
    """Return the position and length of each buffer, all in one list, for buffers of these sizes one after the
    other."""
    buffers: list[int] = []
    end = 0
    for size in sizes:
        buffers += (end, size)
        end += size + 7 & ~7
    return buffers


def _end(buffers: Sequence[int]) -> int:
    """Return the end of the body, which the last buffer determines."""
    return buffers[-2] + (buffers[-1] + 7 & ~7)


class _Body:
    """Reader of the columns of a packed batch of `rows`, whose `buffers` are in place. Its methods return None for
    bytes in another form than this module's, and raise pa.ArrowInvalid for offsets outside the data."""

    def __init__(self, body: pa.Buffer, buffers: Sequence[int], rows: int) -> None:
        self._body = body
        self._buffers = buffers
        self._rows = rows

    def decode(self, columns: Sequence[int] | None, *, has_keys: bool) -> pa.RecordBatch | None:
        if columns is not None and not columns:  # only `select` keeps how many rows there are
            one = self.decode([_HEADERS], has_keys=has_keys)
            return None if one is None else one.select([])
        arrays = []
        for column in range(len(ENVELOPE_SCHEMA)) if columns is None else columns:
            if column == _TIMESTAMP:
                array = self._timestamps()
            elif column == _VALUE or (column == _KEY and has_keys):
                array = self._binary(3 * column)
            else:
                array = self._nulls(3 * column)
            if array is None:
                return None
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=_schema_of(None if columns is None else tuple(columns)))

    def _stored_buffer(self, number: int) -> pa.Buffer:
        """Return a buffer as the body contains it, with its length or -1 in front."""
        return self._body.slice(*self._buffers[2 * number : 2 * number + 2])

    def _raw(self, number: int, size_min: int) -> pa.Buffer | None:
        """Return the content of a buffer that is not packed. Returns None if the buffer is packed or has fewer than
        `size_min` bytes."""
        stored = self._stored_buffer(number)
        if stored.size < 8 + size_min or I64.unpack_from(stored)[0] != -1:
            return None
        return stored.slice(8)

    def _binary(self, first: int) -> Any:
        offsets = self._raw(first + 1, 4 * (self._rows + 1))
        data = self._raw(first + 2, 0) if self._buffers[2 * first + 5] else self._stored_buffer(first + 2)
        if offsets is None or data is None:
            return None
        array = pa.Array.from_buffers(pa.binary(), self._rows, [None, offsets, data], 0)
        array.validate(full=True)  # the offsets may be anything
        return array

    def _nulls(self, first: int) -> Any:
        nulls, at = _nulls(self._rows), self._buffers[2 * first]
        expected = nulls.both if first == 3 * _KEY else nulls.both + _CHILDREN
        if self._body.slice(at, len(expected)).to_pybytes() != expected:
            return None
        return no_keys_and_headers(self._rows)[first == 3 * _HEADERS]

    def _timestamps(self) -> Any:
        size = 8 * self._rows
        stored = self._stored_buffer(_STAMPS)
        if stored.size < 8:
            return None
        (length,) = I64.unpack_from(stored)
        if length == -1 and stored.size >= 8 + size:
            stamps = stored.slice(8)
        elif length == size:
            stamps = _unpack(stored.slice(8), size)
        else:
            return None
        return pa.Array.from_buffers(TIMESTAMP_TYPE, self._rows, [None, stamps], 0) if stamps.size >= size else None


def _unpack(frame: pa.Buffer, size: int) -> pa.Buffer:
    """Return the frame's content; an empty buffer if the content does not have exactly `size` bytes. At most `size` + 1
    bytes are decompressed, regardless of the size that the frame states. Raises OSError."""
    # not the codec's `decompress`, which does not return the length of the content
    with pa.CompressedInputStream(pa.BufferReader(frame), "lz4") as stream:
        content = stream.read_buffer(size + 1)
    return content if content.size == size else content.slice(0, 0)


@cache
def _schema_of(columns: tuple[int, ...] | None) -> pa.Schema:
    return ENVELOPE_SCHEMA if columns is None else pa.schema([ENVELOPE_SCHEMA.field(i) for i in columns])


def compression_of_batch(data: Bytes) -> str:
    """Return the compression with which the one batch in `data` must be written again: none (also for a packed batch),
    lz4 or zstd.

    A packed batch states lz4 as well. It is recognised by the -1 before the values' offsets: a writer that compresses
    the batch also compresses this buffer. Raises CorruptBatchError.
    """
    header = decode_header(data)
    message = message_of(data, 0, header)
    if message.compression != "lz4" or (len(message.nodes), len(message.buffers)) != (NODES, BUFFERS):
        return message.compression
    at, size = message.buffers[_VALUE_OFFSETS].tolist()
    body = memoryview(data)[header.size_bytes - header.body_length_bytes : header.size_bytes]
    is_packed = 0 <= at <= len(body) - 8 and size >= 8 and I64.unpack_from(body, at)[0] == -1
    return "none" if is_packed else message.compression
