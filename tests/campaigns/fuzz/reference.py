"""Another reader of a batch, in plain Python from Arrow's specification, that trusts nothing: its result is the sent
content.

It shares no code with the readers under test but the position of sparklog's header. Values are as `values.py` makes
them from Arrow's arrays: fixed-width ones their bytes, so that nothing is lost in a conversion. Source: Arrow's
Message.fbs, Schema.fbs and Columnar.rst.
"""

from __future__ import annotations

import itertools
import struct
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.errors import CorruptBatchError
from sparklog.format.batch import ATTRIBUTE_CONTROL, ATTRIBUTE_OFFSET_COLUMN, decode_header
from sparklog.format.offset_column import with_offset_column
from tests.campaigns.fuzz.message import buffer_roles

INFLATED_BYTES_MAX = 64 << 20
ROWS_MAX = 1 << 20
"""No case has more honest ones, and each takes a Python object here."""
RECORD_BATCH = 3
_CODECS = {0: "lz4", 1: "zstd"}


class UnreadableError(Exception):
    """The batch contradicts itself, its schema or Arrow's specification: a reader has to refuse it."""


class Reading(NamedTuple):
    """The rows of a batch: one list of values per column, or why that column cannot be read, and the rows' offsets."""

    columns: list[list[Any] | UnreadableError]
    offsets: list[int]

    @property
    def is_whole(self) -> bool:
        return not any(isinstance(c, UnreadableError) for c in self.columns)


class _Flat:
    """Bounded access to a flatbuffer."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def number(self, form: str, at: int) -> int:
        size = struct.calcsize(form)
        if not 0 <= at <= len(self._data) - size:
            raise UnreadableError(f"byte {at} is outside the metadata")
        return int(struct.unpack_from(form, self._data, at)[0])

    def table(self, at: int) -> int:
        return at + self.number("<I", at)

    def field(self, table: int, number: int) -> int:
        """Position of a field, 0 if it is absent."""
        vtable = table - self.number("<i", table)
        if 4 + 2 * number + 2 > self.number("<H", vtable):
            return 0
        offset = self.number("<H", vtable + 4 + 2 * number)
        return table + offset if offset else 0

    def pairs(self, table: int, number: int) -> list[tuple[int, int]]:
        """A vector of structs of two i64."""
        at = self.field(table, number)
        if not at:
            return []
        vector = self.table(at)
        count = self.number("<I", vector)
        if vector + 4 + 16 * count > len(self._data):
            raise UnreadableError("a vector reaches beyond the metadata")
        return [struct.unpack_from("<qq", self._data, vector + 4 + 16 * i) for i in range(count)]


def read_batch(data: bytes, schema: pa.Schema, *, by_count: bool = False) -> Reading:
    """Return the rows of the batch in the topic's `schema`.

    `by_count`: a column whose node states that none of its rows is null has none, regardless of its validity bits, as
    in Arrow's own reader. Raises UnreadableError.
    """
    try:
        header = decode_header(data)
    except CorruptBatchError as e:
        raise UnreadableError(str(e)) from e
    start = 8 + header.metadata_length_bytes
    flat = _Flat(data[8:start])
    message = flat.table(0)
    kind, table, length = (flat.field(message, i) for i in (1, 2, 3))
    if not kind or flat.number("<B", kind) != RECORD_BATCH or not table:
        raise UnreadableError("not a RecordBatch message")
    batch = flat.table(table)
    body_length = flat.number("<q", length) if length else 0
    rows_at = flat.field(batch, 0)
    rows = flat.number("<q", rows_at) if rows_at else 0
    if body_length != header.body_length_bytes or rows != header.record_count:
        raise UnreadableError("Arrow's metadata contradict the header")
    if rows > ROWS_MAX:
        raise UnreadableError(f"{rows} rows")
    if header.attributes & ATTRIBUTE_CONTROL:
        return Reading([[] for _ in schema], [])  # readers give none out, whatever it holds
    compacted = bool(header.attributes & ATTRIBUTE_OFFSET_COLUMN)
    body = _Body(flat, batch, data[start : start + body_length], by_count)
    columns = body.columns(with_offset_column(schema) if compacted else schema, rows)
    offsets = list(range(header.base_offset, header.base_offset + rows))
    if compacted:
        stored = columns.pop()
        if isinstance(stored, UnreadableError):
            raise stored
        offsets = [struct.unpack("<q", o)[0] if o is not None else -1 for o in stored]
        inside = all(header.base_offset <= o <= header.last_offset for o in offsets)
        if not inside or any(a >= b for a, b in itertools.pairwise(offsets)):
            raise UnreadableError("the rows' offsets are not those of the batch")
    return Reading(columns, offsets)


class _Body:
    """The buffers of a batch, taken one after the other as the schema's walk asks for them."""

    def __init__(self, flat: _Flat, batch: int, body: bytes, by_count: bool) -> None:
        self._body = body
        self._all_nodes = flat.pairs(batch, 1)
        self._all_buffers = flat.pairs(batch, 2)
        self._nodes = iter(self._all_nodes)
        self._buffers = iter(self._all_buffers)
        self._by_count = by_count
        self._inflated = 0
        compression = flat.field(batch, 3)
        self._codec = ""
        if compression:
            table = flat.table(compression)
            codec, method = flat.field(table, 0), flat.field(table, 1)
            number = flat.number("<B", codec) if codec else 0
            if number not in _CODECS or (method and flat.number("<B", method)):
                raise UnreadableError("an unknown compression")
            self._codec = _CODECS[number]

    def columns(self, schema: pa.Schema, rows: int) -> list[list[Any] | UnreadableError]:
        """Every column, each by itself. Raises UnreadableError when the message has another number of them."""
        roles = buffer_roles(schema)
        if len(self._all_nodes) != 1 + max(r.node for r in roles) or len(self._all_buffers) != len(roles):
            raise UnreadableError("more or fewer nodes or buffers than the schema has")
        found: list[list[Any] | UnreadableError] = []
        for i, f in enumerate(schema):
            mine = [(number, role) for number, role in enumerate(roles) if role.column == i]
            self._nodes = iter(self._all_nodes[mine[0][1].node :])
            self._buffers = iter(self._all_buffers[mine[0][0] :])
            self._inflated = 0  # who reads one column is not concerned by another
            try:
                found.append(self._column(f.type, rows, nullable=f.nullable))
            except UnreadableError as e:
                found.append(e)
        return found

    def _node(self, rows: int) -> int:
        """Return the number of nulls that the next node states."""
        node = next(self._nodes, None)
        if node is None or node[0] != rows or not 0 <= node[1] <= rows or rows > ROWS_MAX:
            raise UnreadableError(f"a node {node} where {rows} values are due")
        return node[1]

    def _stored(self) -> bytes:
        """The next buffer, as it is stored."""
        place = next(self._buffers, None)
        if place is None or place[0] < 0 or place[1] < 0 or place[0] + place[1] > len(self._body):
            raise UnreadableError(f"a buffer at {place} of a body of {len(self._body)} bytes")
        return self._body[place[0] : place[0] + place[1]]

    def _buffer(self, size: int) -> bytes:
        """The next buffer, of at least `size` bytes."""
        stored = self._stored()
        content = self._inflate(stored) if self._codec and stored else stored
        if len(content) < size:
            raise UnreadableError(f"a buffer of {len(content)} bytes, {size} are due")
        return content

    def _inflate(self, stored: bytes) -> bytes:
        if len(stored) < 8:
            raise UnreadableError("a compressed buffer without its length")
        (length,) = struct.unpack_from("<q", stored)
        if length == -1:
            return stored[8:]
        self._inflated += length
        if not length >= 0 or self._inflated > INFLATED_BYTES_MAX:
            raise UnreadableError(f"a buffer that inflates to {length} bytes")
        try:
            # one byte more than is said, so that a frame that holds more is noticed
            with pa.CompressedInputStream(pa.BufferReader(stored[8:]), self._codec) as stream:
                content: bytes = stream.read(length + 1)
        except (OSError, pa.ArrowException) as e:
            raise UnreadableError(f"a buffer that cannot be decompressed: {e}") from e
        if len(content) != length:
            raise UnreadableError(f"a buffer of {len(content)} bytes that says {length}")
        return content

    def _validity(self, nulls: int, rows: int) -> list[bool]:
        if not nulls and self._by_count:
            self._stored()  # Arrow does not decompress the bits of a column without nulls
            return [True] * rows
        bits = self._buffer((rows + 7) // 8 if nulls else 0)
        if not nulls and not bits:
            return [True] * rows
        if len(bits) * 8 < rows:
            raise UnreadableError("too few validity bits")
        valid = [bool(bits[i >> 3] >> (i & 7) & 1) for i in range(rows)]
        if valid.count(False) != nulls:
            raise UnreadableError(f"{valid.count(False)} values are null, the node says {nulls}")
        return valid

    def _offsets(self, rows: int) -> tuple[int, ...]:
        content = self._buffer(4 * (rows + 1) if rows else 0)
        if not rows:
            return (0,)
        offsets = struct.unpack_from(f"<{rows + 1}i", content)
        if offsets[0] < 0 or any(a > b for a, b in itertools.pairwise(offsets)):
            raise UnreadableError("offsets that go backwards")
        return offsets

    def _column(self, t: pa.DataType, rows: int, *, nullable: bool = True) -> list[Any]:
        nulls = self._node(rows)
        valid = self._validity(nulls, rows)
        if not nullable and not all(valid):
            raise UnreadableError("null where nothing may be null")
        found: list[Any]
        if pa.types.is_struct(t):
            children = [self._column(f.type, rows, nullable=f.nullable) for f in t]
            found = list(zip(*children, strict=True)) if children else [()] * rows
        elif pa.types.is_map(t):
            offsets = self._offsets(rows)
            entries = self._column(
                pa.struct([t.key_field.with_nullable(False), t.item_field]), self._child_rows(), nullable=False
            )
            found = self._cut(entries, offsets)
        elif pa.types.is_list(t):
            offsets = self._offsets(rows)
            found = self._cut(self._column(t.value_type, self._child_rows()), offsets)
        elif pa.types.is_string(t) or pa.types.is_binary(t):
            offsets = self._offsets(rows)
            found = self._cut(self._buffer(offsets[-1]), offsets)
            if pa.types.is_string(t):
                self._check_text(found, valid)
        elif pa.types.is_boolean(t):
            bits = self._buffer((rows + 7) // 8)
            found = [bool(bits[i >> 3] >> (i & 7) & 1) for i in range(rows)]
        else:
            width = t.bit_width // 8
            content = self._buffer(width * rows)
            found = [content[i * width : (i + 1) * width] for i in range(rows)]
        return [v if ok else None for v, ok in zip(found, valid, strict=True)]

    def _child_rows(self) -> int:
        """Return the length that the next node states; it is not consumed."""
        node = next(self._nodes, None)
        if node is None or not 0 <= node[0] <= ROWS_MAX:
            raise UnreadableError(f"a child node {node}")
        self._nodes = iter([node, *self._nodes])
        return node[0]

    @staticmethod
    def _cut(content: Any, offsets: tuple[int, ...]) -> list[Any]:
        if offsets[-1] > len(content):
            raise UnreadableError(f"offsets up to {offsets[-1]} in {len(content)}")
        return [content[a:b] for a, b in itertools.pairwise(offsets)]

    @staticmethod
    def _check_text(found: list[bytes], valid: list[bool]) -> None:
        for value, ok in zip(found, valid, strict=True):
            if ok:
                try:
                    value.decode()
                except UnicodeDecodeError as e:
                    raise UnreadableError("text that is not UTF-8") from e
