"""Encoder of rows into Avro records of one schema, a field of all rows at a time.

Each value becomes an entry of a binary array; a record is the join of its fields' entries. The entries of a list stand
one after another in memory, so that a list is a slice of them between two numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import structs

from sparklog.errors import SchemaMismatchError
from sparklog.format.plain_layout import plain_layout
from sparklog.format.schema import fit_column
from sparklog.kafka.records.varints import Array, VarintColumns, zigzag
from sparklog.kafka.schemas.avro import AvroField, AvroType
from sparklog.kafka.values.avro_bytes import Space, branch_of, physical_type
from sparklog.kafka.values.avro_columns import columns_of, default_column, fields_of_columns, is_nullable
from sparklog.kafka.values.rows_at_fault import UnwritableRowError, first_fault

_NOTHING = pa.scalar(b"", pa.binary())
_NATURAL = {
    "timestamp-millis": pa.timestamp("ms", tz="UTC"),
    "timestamp-micros": pa.timestamp("us", tz="UTC"),
    "local-timestamp-millis": pa.timestamp("ms"),
    "local-timestamp-micros": pa.timestamp("us"),
    "date": pa.date32(),
}


def write_avro(rows: pa.RecordBatch, schema: AvroType, space: Space, *, fills_nulls: bool = True) -> Any:
    """Return the records of rows as a binary array. A field without a column gets its default, or null. `fills_nulls`:
    True to write the default for a null in a field without null, and an enum's default for other symbols; False for
    keys, of which two would become one. Raises UnwritableRowError; SchemaMismatchError if no row can be written;
    MessageTooLargeError."""
    columns_of(schema)
    writer = _Writer(space, fills_nulls)
    try:
        return _records(rows, schema, writer)
    except (_UnwritableError, pa.ArrowInvalid):
        first = first_fault(rows, lambda part: _records(part, schema, writer), (_UnwritableError, pa.ArrowInvalid))
    try:
        _records(rows.slice(first, 1), schema, writer)
    except (_UnwritableError, pa.ArrowInvalid) as e:
        raise UnwritableRowError(first, str(e).splitlines()[0]) from None
    raise AssertionError("a row can be written alone only")


def _records(rows: pa.RecordBatch, schema: AvroType, writer: _Writer) -> Any:
    columns = [plain_layout(column) for column in rows.columns]
    return writer.record(columns, rows.schema.names, schema, rows.num_rows)


class _UnwritableError(ValueError):
    """A value does not fit its field."""


class _Writer:
    def __init__(self, space: Space, fills_nulls: bool) -> None:
        self._space = space
        self._fills_nulls = fills_nulls

    def record(self, columns: list[Any], names: list[str], kind: AvroType, count: int, path: str = "") -> Any:
        """Return entries of a record. `columns`: arrays of the names, in plain layout."""
        by_name = dict(zip(names, columns, strict=True))
        of_fields = {field.name: by_name[name] for name, field in fields_of_columns(kind, names).items()}
        parts = []
        for field in kind.fields:
            place = f"{path}.{field.name}" if path else field.name
            column = of_fields.get(field.name)
            if column is None:
                parts.append(self._constant(field, count, place))
            elif column.null_count and self._fills_nulls and field.has_default and not is_nullable(field.type):
                parts.append(self._filled(column, field, place))
            else:
                parts.append(self.value(column, field.type, place))
        return _joined(parts)

    def _filled(self, column: Any, field: AvroField, path: str) -> Any:
        """Return entries of values, the default for null: a row that is older than the field can have a null."""
        is_set = column.is_valid()
        default = self._constant(field, 1, path)
        self._space.spend(len(default[0].as_py()) * column.null_count)
        values = self.value(column.filter(is_set), field.type, path)
        return _spread(values, default, np.asarray(is_set))

    def _constant(self, field: AvroField, count: int, path: str) -> Any:
        """Return entries of a field that has no column."""
        if field.has_default:
            default = plain_layout(default_column(field, path))
        elif is_nullable(field.type):
            default = pa.nulls(1, physical_type(field.type))
        else:
            raise SchemaMismatchError(f"field {path!r} has neither a column nor a default")
        one = self.value(default, field.type, path)
        self._space.spend(len(one[0].as_py()) * count)
        return one.take(pa.array(np.zeros(count, np.int64)))

    def value(self, array: Any, kind: AvroType, path: str) -> Any:
        """Return entries of values."""
        if kind.kind == "union":
            return self._union(array, kind, path)
        if kind.kind == "null":
            if array.null_count < len(array):
                raise _UnwritableError(f"field {path!r} is null in the schema, and has a value")
            return _repeated(b"", len(array))
        if array.null_count:
            raise _UnwritableError(f"field {path!r} is null, and the schema has no null there")
        try:
            match kind.kind:
                case "record" if pa.types.is_struct(array.type):
                    names = [f.name for f in array.type]
                    children = [array.field(i) for i in range(array.type.num_fields)]
                    return self.record(children, names, kind, len(array), path)
                case "array" if pa.types.is_list(array.type):
                    return _lists(array.offsets, self.value(array.values, kind.inner[0], f"{path}[]"))
                case "map" if pa.types.is_map(array.type) and pa.types.is_string(array.type.key_type):
                    entries = [
                        _sized(array.keys.cast(pa.binary())),
                        self.value(array.items, kind.inner[0], f"{path}[]"),
                    ]
                    return _lists(array.offsets, _joined(entries))
                case "record" | "array" | "map":
                    raise SchemaMismatchError(f"field {path!r} is {kind.short_name}, the column has {array.type}")
            if kind.default is not None and not self._fills_nulls:
                kind = structs.replace(kind, default=None)
            return _LEAVES[kind.kind](_natural(array, kind, path), kind)
        except (pa.ArrowException, OverflowError) as e:
            raise _UnwritableError(f"field {path!r}: {str(e).splitlines()[0]}") from None

    def _union(self, array: Any, kind: AvroType, path: str) -> Any:
        inner = branch_of(kind)
        marks = [_number(i) for i in range(len(kind.inner))]
        kinds = [one.kind for one in kind.inner]
        if array.null_count and "null" not in kinds:
            raise _UnwritableError(f"field {path!r} is null, and the schema has no null there")
        if array.null_count == len(array) and "null" in kinds:
            return _repeated(marks[kinds.index("null")], len(array))
        is_set = array.is_valid()
        values = self.value(array.filter(is_set) if array.null_count else array, inner, path)
        entries = _joined([pa.scalar(marks[kind.inner.index(inner)], pa.binary()), values])
        if not array.null_count:
            return entries
        return _spread(entries, pa.array([marks[kinds.index("null")]], pa.binary()), np.asarray(is_set))


def _spread(entries: Any, other: Any, is_set: Any) -> Any:
    """Return the entries where `is_set` is true, and the only entry of `other` elsewhere."""
    place = np.where(is_set, np.cumsum(is_set) - 1, len(entries))
    return pa.concat_arrays([entries, other]).take(pa.array(place))


def _natural(array: Any, kind: AvroType, path: str) -> Any:
    """Return the values in the Arrow type that stands for the type of Avro. Raises pa.ArrowInvalid."""
    if kind.decimal is not None:
        target = pa.decimal128(*kind.decimal)
    else:
        target = _NATURAL.get(kind.logical, physical_type(kind))
    if array.type == target:
        return array
    if {array.type, target} == {pa.string(), pa.binary()} and kind.kind != "enum":
        return array.cast(target)
    try:
        fit_column(pa.nulls(0, array.type), target)
    except (pa.ArrowException, OverflowError):
        raise SchemaMismatchError(f"field {path!r} is {kind.short_name}, the column has {array.type}") from None
    return fit_column(array, target)


# -- entries


def _offsets(entries: Any) -> Array:
    return np.frombuffer(entries.buffers()[1], np.int32, len(entries) + 1, 4 * entries.offset)


def _joined(parts: list[Any]) -> Any:
    """Return the join of the parts of each entry."""
    if len(parts) == 1:
        return parts[0]
    joined = pc.binary_join_element_wise(*parts, _NOTHING)
    return joined.combine_chunks() if isinstance(joined, pa.ChunkedArray) else joined


def _repeated(entry: bytes, count: int) -> Any:
    return _fixed(np.frombuffer(entry * count, np.uint8), count)


def _fixed(data: Array, count: int) -> Any:
    """Return entries of one size."""
    width = len(data) // count if count else 0
    offsets = np.arange(count + 1, dtype=np.int64) * width
    return pa.Array.from_buffers(
        pa.binary(), count, [None, pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))]
    )


def _numbers(values: Array) -> Any:
    """Return entries of whole numbers."""
    columns = VarintColumns(len(values))
    columns.add(zigzag(values))
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(columns.sizes, out=offsets[1:])
    data = np.ascontiguousarray(columns.data())
    return pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _number(value: int) -> bytes:
    entry: bytes = _numbers(np.array([value], np.int64))[0].as_py()
    return entry


def _sized(values: Any) -> Any:
    """Return entries of bytes: their size, and the bytes."""
    return _joined([_numbers(np.diff(_offsets(values)).astype(np.int64)), values])


def _lists(offsets: Any, elements: Any) -> Any:
    """Return entries of lists: one block, and an empty one."""
    at = np.asarray(offsets)
    counts = np.diff(at).astype(np.int64)
    bounds = np.ascontiguousarray(_offsets(elements)[at])
    bodies = pa.Array.from_buffers(pa.binary(), len(counts), [None, pa.py_buffer(bounds), elements.buffers()[2]])
    zero = pa.scalar(b"\0", pa.binary())
    whole = _joined([_numbers(counts), bodies, zero])
    if counts.all():
        return whole
    return pc.if_else(pa.array(counts > 0), whole, zero)


def _integers(array: Any, kind: AvroType) -> Any:
    width = np.int32 if kind.kind == "int" else np.int64
    return _numbers(
        np.frombuffer(array.buffers()[1], width, len(array), width().itemsize * array.offset).astype(np.int64)
    )


def _floats(array: Any, kind: AvroType) -> Any:
    width = np.float32 if kind.kind == "float" else np.float64
    values = np.frombuffer(array.buffers()[1], width, len(array), width().itemsize * array.offset)
    return _fixed(values.view(np.uint8), len(array))


def _booleans(array: Any, kind: AvroType) -> Any:
    return _fixed(np.asarray(array.cast(pa.uint8())), len(array))


def _enums(array: Any, kind: AvroType) -> Any:
    symbols = list(kind.symbols)
    index = pc.index_in(array, pa.array(symbols, pa.string()))
    if index.null_count:
        unknown = array.filter(index.is_null())[0].as_py()
        if kind.default is None:
            raise pa.ArrowInvalid(f"{unknown!r:.60} is no symbol of the enum {kind.name}")
        index = index.fill_null(symbols.index(kind.default))
    return _numbers(np.asarray(index).astype(np.int64))


def _bytes(array: Any, kind: AvroType) -> Any:
    return _sized(_twos_complement(array, None) if kind.decimal is not None else array.cast(pa.binary()))


def _fixed_bytes(array: Any, kind: AvroType) -> Any:
    if kind.decimal is not None:
        return _twos_complement(array, kind.size)
    if len(array) and (np.diff(_offsets(array)) != kind.size).any():
        raise pa.ArrowInvalid(f"the schema has {kind.size} bytes there")
    return array


def _twos_complement(array: Any, size: int | None) -> Any:
    """Return decimals as big-endian numbers in `size` bytes; None: in as few bytes as possible."""
    count = len(array)
    numbers = np.frombuffer(array.buffers()[1], np.uint8, 16 * count, 16 * array.offset).reshape(count, 16)[:, ::-1]
    if size is not None:
        if size >= 16:
            sign = np.where(numbers[:, :1] >= 0x80, np.uint8(0xFF), np.uint8(0))
            return _fixed(np.concatenate([np.repeat(sign, size - 16, axis=1), numbers], axis=1).reshape(-1), count)
        return _fixed(np.ascontiguousarray(numbers[:, 16 - size :]).reshape(-1), count)
    needed = np.ones(count, np.int64)
    sign = np.where(numbers[:, 0] >= 0x80, np.uint8(0xFF), np.uint8(0))
    for i in range(15):
        is_needed = (numbers[:, i] != sign) | ((numbers[:, i + 1] >= 0x80) != (sign == 0xFF))
        needed = np.where(is_needed & (needed == 1), 16 - i, needed)
    data = np.ascontiguousarray(numbers).reshape(-1)
    bounds = np.empty(2 * count, np.int32)
    bounds[1::2] = 16 * np.arange(1, count + 1)
    bounds[0::2] = bounds[1::2] - needed
    whole = pa.Array.from_buffers(
        pa.binary(), max(len(bounds) - 1, 0), [None, pa.py_buffer(bounds if count else bytes(4)), pa.py_buffer(data)]
    )
    return whole.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int64)))


_LEAVES: dict[str, Callable[[Any, AvroType], Any]] = {
    "int": _integers,
    "long": _integers,
    "float": _floats,
    "double": _floats,
    "boolean": _booleans,
    "string": lambda array, kind: _sized(array.cast(pa.binary())),
    "bytes": _bytes,
    "fixed": _fixed_bytes,
    "enum": _enums,
}
