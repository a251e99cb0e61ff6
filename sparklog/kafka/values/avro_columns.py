"""Avro types as columns, and the values of records as values of columns.

| Avro | column |
|---|---|
| int, long, float, double, boolean, string, bytes | the same |
| enum | text |
| fixed, uuid and duration on fixed | bytes |
| uuid on string | text |
| decimal | decimal; with more than 38 digits refused |
| date | date |
| timestamp-millis, timestamp-micros | timestamp |
| local-timestamp-millis, local-timestamp-micros | timestamp without time zone |
| time-millis, time-micros | int, long: Spark has no type for a time of day |
| union of null and one type | the type |
| record, array, map | struct, list, map |
| another union, a recursive type, a record without fields | refused with its path |

A record is resolved as Avro does it: the writer's schema is that of the record, the reader's schema is the newest one
of the topic's subject. A column belongs to the reader's field of its name, or to a field that has its name as an alias.
It gets the writer's field of the name or an alias of the reader's field, otherwise the reader's default, otherwise
null. A value that its column cannot have exactly is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from sparklog.errors import InvalidTopicError, SchemaMismatchError
from sparklog.format.map_keys import require_distinct_keys
from sparklog.format.schema import canonical_schema, canonical_type, fit_column, null_column
from sparklog.kafka.schemas.avro import AvroField, AvroType
from sparklog.kafka.values.avro_bytes import Space, branch_of, physical_type
from sparklog.kafka.values.rows_at_fault import children_of

DECIMAL_DIGITS_MAX = 38
TYPES_MAX = 10_000
_DECIMAL_BYTES = 16
_DEFAULT_BYTES_MAX = 16 * 1024 * 1024
"""Largest size of the defaults of a schema as rows."""
Convert = Callable[[Any], Any]
"""Function that converts an array in plain layout. Raises pa.ArrowInvalid."""
_TIMES = {
    "date": (1, pa.date32()),
    "timestamp-millis": (1000, pa.timestamp("us", tz="UTC")),
    "timestamp-micros": (1, pa.timestamp("us", tz="UTC")),
    "local-timestamp-millis": (1000, pa.timestamp("us")),
    "local-timestamp-micros": (1, pa.timestamp("us")),
}
"""Factor and column of the logical types that are times."""
_TIMES_OF_DAY = {"time-millis", "time-micros"}
"""Logical types whose columns have the number."""


def columns_of(kind: AvroType) -> pa.Schema:
    """Return the columns of a schema. Raises SchemaMismatchError, with the path, if a type has no column."""
    if kind.kind != "record":
        raise SchemaMismatchError(f"the schema is {kind.short_name}, and no record: a typed topic has columns")
    types = _ColumnTypes()
    fields = [pa.field(f.name, types.column_type(f.type, f.name, (kind,))) for f in kind.fields]
    try:
        return canonical_schema(pa.schema(fields))
    except InvalidTopicError as e:
        raise SchemaMismatchError(str(e)) from None


def fields_of_columns(record: AvroType, columns: Iterable[str]) -> dict[str, AvroField]:
    """Return the field of each column that has one, by the column's name. A renamed field keeps its column: without a
    column of its own name, it has that of an alias."""
    free = set(columns)
    fields = {f.name: f for f in record.fields if f.name in free}
    free -= {f.name for f in record.fields}
    for field in record.fields:
        column = next((alias for alias in field.aliases if alias in free), None)
        if field.name not in fields and column is not None:
            fields[column] = field
            free.remove(column)
    return fields


def places_of_columns(writer: AvroType, read: Mapping[str, AvroField], columns: Iterable[str]) -> dict[str, int]:
    """Return the index of the writer's field of each column that gets one. A field is used once. `read`: the reader's
    fields by their columns."""
    written = {f.name: i for i, f in enumerate(writer.fields)}
    places: dict[str, int] = {}
    for column in sorted(columns, key=lambda one: one not in read):  # a renamed field gets its former name first
        own = read.get(column)
        names = (column,) if own is None else (own.name, *own.aliases)
        place = next((written.pop(name) for name in names if name in written), None)
        if place is not None:
            places[column] = place
    return places


def is_nullable(kind: AvroType) -> bool:
    """Return True if a type has null."""
    return kind.kind == "null" or (kind.kind == "union" and any(one.kind == "null" for one in kind.inner))


class _ColumnTypes:
    """Finds the columns' types, up to TYPES_MAX of them: a type with a name can be used very often."""

    def __init__(self) -> None:
        self._count = 0

    def column_type(self, kind: AvroType, path: str, outer: tuple[AvroType, ...] = ()) -> Any:
        """Return the column's type, which may not be canonical. `outer`: the records around the type. Raises
        SchemaMismatchError."""
        self._count += 1
        if self._count > TYPES_MAX:
            raise SchemaMismatchError(f"field {path[:200]!r}: the schema has more than {TYPES_MAX} fields and types")
        if any(kind is one for one in outer):
            raise SchemaMismatchError(f"field {path!r}: {kind.name} contains itself, and no column can")
        match kind.kind:
            case "record":
                if not kind.fields:
                    raise SchemaMismatchError(f"field {path!r}: the record {kind.name} has no fields")
                fields = [(f.name, self.column_type(f.type, f"{path}.{f.name}", (*outer, kind))) for f in kind.fields]
                return pa.struct([pa.field(name, column) for name, column in fields])
            case "array" | "map":
                column = self.column_type(kind.inner[0], f"{path}[]", outer)
                if not _takes_bytes(kind.inner[0]):
                    raise SchemaMismatchError(
                        f"field {path!r}: its elements take no bytes, so their number is unlimited"
                    )
                return pa.list_(column) if kind.kind == "array" else pa.map_(pa.string(), column)
            case "union":
                if sum(one.kind != "null" for one in kind.inner) > 1:
                    names = ", ".join(one.short_name for one in kind.inner)
                    raise SchemaMismatchError(
                        f"field {path!r}: a union of {names:.200} has no column; use null and one type, or a record "
                        "with a field for each type"
                    )
                return self.column_type(branch_of(kind), path, outer)
        if kind.decimal is not None and kind.decimal[0] > DECIMAL_DIGITS_MAX:
            raise SchemaMismatchError(
                f"field {path!r}: a decimal of {kind.decimal[0]} digits; a column has at most {DECIMAL_DIGITS_MAX}"
            )
        return leaf_type(kind)


def _takes_bytes(kind: AvroType) -> bool:
    """Return True if each value of the type takes at least one byte."""
    if kind.kind == "record":
        return any(_takes_bytes(f.type) for f in kind.fields)
    return kind.kind != "null" and not (kind.kind == "fixed" and not kind.size)


def leaf_type(kind: AvroType) -> Any:
    """Return the column's type of a type without inner values."""
    if kind.decimal is not None:
        return pa.decimal128(*kind.decimal)
    if kind.logical in _TIMES:
        return _TIMES[kind.logical][1]
    return pa.string() if kind.kind == "null" else physical_type(kind)


class Column(Struct, frozen=True):
    """The source of a column in records of one schema."""

    name: str
    type: Any
    field: int
    """Index of the writer's field; -1 for none."""
    convert: Convert
    """Conversion of the field's physical array; without a field, of an array of nulls with the number of rows."""


class Resolution(Struct, frozen=True):
    """The resolution of a writer's schema into columns."""

    columns: tuple[Column, ...]
    dropped: tuple[str, ...]
    """Paths of the writer's fields that the reader's schema does not have any more."""


def resolve(writer: AvroType, reader: AvroType | None, columns: pa.Schema, space: Space) -> Resolution:
    """Return the conversion of records into rows of the columns. `reader`: the newest schema of the topic's subject;
    None if it has none. Raises SchemaMismatchError if a field does not fit its column."""
    columns_of(writer)
    plan = _Plan(space)
    reader = reader if reader is not None and reader.kind == "record" else None
    sources = plan.fields(writer, reader, list(columns), "")
    return Resolution(
        tuple(Column(f.name, f.type, at, convert) for f, (at, convert) in zip(columns, sources, strict=True)),
        tuple(plan.dropped),
    )


def check_record(record: AvroType, columns: pa.Schema) -> None:
    """Raise SchemaMismatchError if records of a schema, and its defaults, cannot be rows of the columns."""
    columns_of(record)
    _Plan(Space(_DEFAULT_BYTES_MAX), checks_defaults=True).fields(record, record, list(columns), "")


def default_column(field: AvroField, path: str) -> Any:
    """Return an array with the default of a field that has one, in the type of the field's column. Raises
    pa.ArrowInvalid, SchemaMismatchError."""
    target = canonical_type(_ColumnTypes().column_type(field.type, path), path)
    convert = _Plan(Space(0)).value(field.type, field.type, target, path)
    return convert(pa.array([physical_default(field.default, field.type)], physical_type(field.type)))


class _Plan:
    """Compiles conversions. `dropped` collects paths."""

    def __init__(self, space: Space, *, checks_defaults: bool = False) -> None:
        self._space = space
        self._checks_defaults = checks_defaults
        self.dropped: list[str] = []

    def fields(
        self, writer: AvroType, reader: AvroType | None, targets: list[pa.Field], path: str
    ) -> Iterator[tuple[int, Convert]]:
        """Return the index and the conversion of the writer's field for each target."""
        names = [target.name for target in targets]
        read = {} if reader is None else fields_of_columns(reader, names)
        places = places_of_columns(writer, read, names)
        sources: list[tuple[int, Convert]] = []
        for target in targets:
            own, at = read.get(target.name), places.get(target.name, -1)
            place = f"{path}.{target.name}" if path else target.name
            if self._checks_defaults and own is not None:
                self._missing(own, canonical_type(target.type, place), place)
            if at >= 0:
                convert = self.value(
                    writer.fields[at].type, None if own is None else own.type, canonical_type(target.type, place), place
                )
            else:
                convert = self._missing(own, target.type, place)
            sources.append((at, convert))
        used = set(places.values())
        self._drop([f.name for i, f in enumerate(writer.fields) if i not in used], writer, reader, path)
        return iter(sources)

    def _drop(self, unused: list[str], writer: AvroType, reader: AvroType | None, path: str) -> None:
        """Note the writer's fields without a column. Raises SchemaMismatchError if the reader's schema has one."""
        lost = [
            name for name in unused if reader is None or reader is writer or name in {f.name for f in reader.fields}
        ]
        place = f"{path}." if path else ""
        if lost:
            raise SchemaMismatchError(
                f"field {place + lost[0]!r} is no column: add a column, or write records without the field"
            )
        self.dropped += [place + name for name in unused]

    def _missing(self, own: AvroField | None, target: Any, path: str) -> Convert:
        """Return the conversion of nulls into the default of the reader's field; nulls for a field without one."""
        space = self._space
        if own is None or not own.has_default or own.default is None:

            def nulls(rows: Any) -> Any:
                space.spend(_null_bytes(target) * len(rows))
                return null_column(len(rows), target)

            return nulls
        _ColumnTypes().column_type(own.type, path)
        convert = self.value(own.type, own.type, target, path)
        try:
            one = convert(pa.array([physical_default(own.default, own.type)], physical_type(own.type)))
        except pa.ArrowInvalid as e:
            raise SchemaMismatchError(f"the default of the field {path!r} does not fit the column: {e}") from None

        def repeat(rows: Any) -> Any:
            space.spend(one.nbytes * len(rows))
            return one.take(pa.array(np.zeros(len(rows), np.int64)))

        return repeat

    def value(self, writer: AvroType, reader: AvroType | None, target: Any, path: str) -> Convert:
        """Return the conversion of a physical array of the writer's type."""
        own = branch_of(writer) if writer.kind == "union" else writer
        other = branch_of(reader) if reader is not None and reader.kind == "union" else reader
        if other is not None and own.logical != other.logical and {own.logical, other.logical} == _TIMES_OF_DAY:
            raise SchemaMismatchError(
                f"field {path!r} is {own.logical}, and {other.logical} in the newest schema: the column has the number, and "
                "consumers would read another time"
            )
        if other is not None and other.kind != own.kind:
            other = None
        if own.kind == "record" and pa.types.is_struct(target):
            return self._struct(own, other, target, path)
        if own.kind == "array" and pa.types.is_list(target):
            return _list_of(
                self.value(own.inner[0], None if other is None else other.inner[0], target.value_type, f"{path}[]"),
                target,
            )
        if own.kind == "map" and pa.types.is_map(target) and pa.types.is_string(target.key_type):
            return _map_of(
                self.value(own.inner[0], None if other is None else other.inner[0], target.item_type, f"{path}[]"),
                target,
            )
        if own.kind == "enum" and other is not None and other.default is None:
            return _symbols_of_reader(own, other, _leaf(own, target, path))
        return _leaf(own, target, path)

    def _struct(self, writer: AvroType, reader: AvroType | None, target: Any, path: str) -> Convert:
        sources = list(self.fields(writer, reader, list(target), path))

        def convert(array: Any) -> Any:
            rows, fields = pa.nulls(len(array)), children_of(array)
            children = [one(fields[at] if at >= 0 else rows) for at, one in sources]
            return pa.Array.from_buffers(target, len(array), [array.buffers()[0]], children=children)

        return convert


def _null_bytes(target: Any) -> int:
    """Return an upper bound of the size of a null in bytes."""
    if pa.types.is_struct(target):
        return 1 + sum(_null_bytes(f.type) for f in target)
    return 5 if pa.types.is_nested(target) else 17


def _list_of(convert: Convert, target: Any) -> Convert:
    def lists(array: Any) -> Any:
        return pa.Array.from_buffers(target, len(array), array.buffers()[:2], children=[convert(array.values)])

    return lists


def _map_of(convert: Convert, target: Any) -> Convert:
    entry = [target.key_field, target.item_field]

    def maps(array: Any) -> Any:
        entries = pa.StructArray.from_arrays([array.keys, convert(array.items)], fields=entry)
        column = pa.Array.from_buffers(target, len(array), array.buffers()[:2], children=[entries])
        require_distinct_keys(column)
        return column

    return maps


def _symbols_of_reader(writer: AvroType, reader: AvroType, convert: Convert) -> Convert:
    """Return a conversion that fails for symbols that a reader's enum without a default does not have: no consumer
    could read the row."""
    unknown = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
    if not unknown:
        return convert
    symbols = pa.array(unknown, pa.string())

    def checked(array: Any) -> Any:
        if pc.any(pc.is_in(array, symbols)).as_py():
            raise pa.ArrowInvalid(f"a symbol that the enum {reader.name} of the newest schema does not have")
        return convert(array)

    return checked


def _leaf(kind: AvroType, target: Any, path: str) -> Convert:
    """Return the conversion of values without inner values. Raises SchemaMismatchError."""
    source = _ColumnTypes().column_type(kind, path)
    logical = _logical(kind)
    is_promoted = kind.decimal is None and {kind.kind} <= {"string", "bytes"} and target in (pa.string(), pa.binary())
    if kind.kind == "null":
        return lambda array: null_column(len(array), target)
    if source == target:
        return logical
    if is_promoted:
        return lambda array: array.cast(target)
    try:
        fit_column(pa.nulls(0, source), target)
    except (pa.ArrowException, OverflowError) as e:
        reason = str(e).splitlines()[0]
        raise SchemaMismatchError(
            f"field {path!r} is {kind.logical or kind.short_name}, the column has {target} ({reason})"
        ) from None
    return lambda array: fit_column(logical(array), target)


def _logical(kind: AvroType) -> Convert:
    if kind.decimal is not None:
        precision, scale = kind.decimal
        return lambda array: _decimals(array, pa.decimal128(precision, scale))
    factor, column = _TIMES.get(kind.logical, (1, None))
    if column is None:
        return lambda array: array
    if factor == 1:
        return lambda array: array.view(column)
    return lambda array: pc.multiply_checked(array, pa.scalar(factor, pa.int64())).view(column)


def _decimals(array: Any, target: Any) -> Any:
    """Return big-endian numbers in two's complement as decimals. Raises pa.ArrowInvalid for a number with too many
    digits."""
    count = len(array)
    offsets = np.frombuffer(array.buffers()[1], np.int32, count + 1, 4 * array.offset).astype(np.int64)
    body = array.buffers()[2]
    data = np.frombuffer(body, np.uint8) if body is not None and body.size else np.zeros(1, np.uint8)
    begins, ends = offsets[:-1], offsets[1:]
    is_set = array.is_valid().to_numpy(zero_copy_only=False)
    sizes = ends - begins
    if (is_set & (sizes == 0)).any():
        raise pa.ArrowInvalid("a decimal without bytes")
    last = len(data) - 1
    first = data[np.minimum(begins, last)]
    sign = np.where(first >= 0x80, np.uint8(0xFF), np.uint8(0))
    number = np.empty((count, _DECIMAL_BYTES), np.uint8)
    for i in range(_DECIMAL_BYTES):
        at = ends - 1 - i
        number[:, i] = np.where(i < sizes, data[np.clip(at, 0, last)], sign)
    for row in np.flatnonzero(is_set & (sizes > _DECIMAL_BYTES)).tolist():
        value = int.from_bytes(array[row].as_py(), "big", signed=True)
        if not -(2**127) <= value < 2**127:
            raise pa.ArrowInvalid(f"a number of more than {target.precision} digits")
        number[row] = np.frombuffer(value.to_bytes(_DECIMAL_BYTES, "little", signed=True), np.uint8)
    mask = pa.array(is_set)
    decimals = pa.Array.from_buffers(target, count, [mask.buffers()[1], pa.py_buffer(number)])
    decimals.validate(full=True)
    return decimals


def physical_default(value: Any, kind: AvroType) -> Any:
    """Return a default of a schema as a value of the physical type."""
    match kind.kind:
        case "union":
            return None if value is None else physical_default(value, branch_of(kind))
        case "bytes" | "fixed":
            return value.encode("latin-1")
        case "float" | "double":
            return float(value.replace("INF", "Infinity") if isinstance(value, str) else value)
        case "array":
            return [physical_default(one, kind.inner[0]) for one in value]
        case "map":
            return [(key, physical_default(one, kind.inner[0])) for key, one in value.items()]
        case "record":
            return {f.name: physical_default(value.get(f.name, f.default), f.type) for f in kind.fields}
        case _:
            return value
