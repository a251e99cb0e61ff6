"""The rule by which a new version of a schema can carry the rows of a topic: consumers get each row in the newest
version, so each value that a row can have needs a form in it.

1. Records of another version have stored values. The new version needs a form for all values of that version's field,
   as far as the column can have them. It needs null, or a default, if the other version has null or lacks the field.
2. Clients without schemas, such as Spark, store values in columns. The first version can have fewer values than a
   column: `timestamp-millis` makes a column of microseconds, and an int can be in a column of 64 bits. Other values
   are those clients' own affair. But one needs to contain the other: a long and a column of doubles do not fit.

`value_sets` has the sets of values, and `json_schema_rows` the rule for types of JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import pyarrow as pa

from sparklog.errors import SchemaMismatchError
from sparklog.format.ddl import ddl_type
from sparklog.format.schema import fit_column
from sparklog.kafka.schemas.avro import AvroField, AvroSchema, AvroType
from sparklog.kafka.schemas.protobuf import ProtobufSchema
from sparklog.kafka.schemas.schema_types import Parsed
from sparklog.kafka.values.avro_bytes import branch_of
from sparklog.kafka.values.avro_columns import fields_of_columns, is_nullable, leaf_type, places_of_columns
from sparklog.kafka.values.json_schema_rows import check_types
from sparklog.kafka.values.protobuf_columns import MessageField
from sparklog.kafka.values.protobuf_records import check_renamed, fields_of_versions, type_of_rows
from sparklog.kafka.values.value_sets import (
    ANY_BYTES,
    BOOLEAN,
    DATE,
    DURATION,
    EMPTY_SET,
    TEXT,
    Values,
    bytes_of,
    contains,
    decimals,
    floating,
    of_column,
    symbols,
    times,
    whole,
)

STEPS_MAX = 400_000
"""Largest number of fields of other versions that one check compares: a type can be used very often."""
T = TypeVar("T")
Others = Sequence[tuple[str, T]]
"""A part of the other versions of a schema that have it, each with the name of its version for errors."""


def check_carries(
    schema: Parsed, others: Others[Parsed], columns: pa.Schema, present: Collection[str] | None = None
) -> None:
    """Raise SchemaMismatchError, with the path, if a new version of a schema has no form for a value that rows can
    have. Columns without a field, and fields without a column, do not count. `others`: the other versions. `present`:
    names of the columns that the topic has before the new version; None: all."""
    targets, steps = list(columns), _Steps()
    if isinstance(schema, AvroSchema):
        if schema.type.kind == "record":
            records = [(source, one.type) for source, one in others if isinstance(one, AvroSchema)]
            _check_avro(schema.type, [one for one in records if one[1].kind == "record"], targets, "", steps)
    elif isinstance(schema, ProtobufSchema):
        messages: list[tuple[str, tuple[MessageField, ...]]] = []
        for source, one in others:
            if not isinstance(one, ProtobufSchema):
                continue
            versions = fields_of_versions(schema, one, columns.names, columns.names if present is None else present)
            if versions is not None:
                check_renamed(*versions, columns, source)
                messages.append((source, versions[1]))
        _check_protobuf(type_of_rows(schema, columns.names).fields, messages, targets, "", steps)
    else:
        check_types(schema, columns)


class _Steps:
    """Counter of compared fields."""

    def __init__(self) -> None:
        self._count = 0

    def take(self, number: int) -> None:
        """Count fields. Raises SchemaMismatchError beyond STEPS_MAX."""
        self._count += number
        if self._count > STEPS_MAX:
            raise SchemaMismatchError(
                "its subject has too many fields in all versions to compare them: delete old versions permanently"
            )


class _Leaf(NamedTuple):
    """A field without inner values."""

    name: str
    """Name of its type, for errors."""
    column: Any
    """Type of the column that it makes."""
    values: Values | None
    """None: it has inner values nevertheless."""


@lru_cache(maxsize=4_096)
def _can_be(source: Any, goal: Any, casts_bytes: bool) -> bool:
    """Return True if values of a column's type can be in a column of another one."""
    if {source, goal} == {pa.string(), pa.binary()}:
        return casts_bytes
    try:
        fit_column(pa.nulls(0, source), goal)
    except (pa.ArrowException, OverflowError):
        return False
    return True


def _check_leaf(path: str, new: _Leaf, others: Others[_Leaf], target: Any, *, casts_bytes: bool) -> None:
    """Compare the values of fields. `casts_bytes`: True if bytes become text and text bytes, as far as they are."""
    column, values = of_column(target), new.values
    is_enum_in_bytes = values is not None and values.texts is not None and target == pa.binary()
    if column is None or values is None or is_enum_in_bytes or not _can_be(target, new.column, casts_bytes):
        raise _misfit(path, new.name, f"its column ({ddl_type(target)})")
    stored = [
        (source, one.name, one.values)
        for source, one in others
        if one.values and _can_be(one.column, target, casts_bytes)
    ]
    if not stored and not (new.column == target or contains(values, column) or contains(column, values)):
        raise _misfit(path, new.name, f"its column ({ddl_type(target)})")
    for source, other, former in stored:
        if values.unit and former.unit and values.unit != former.unit:
            raise SchemaMismatchError(
                f"field {path!r} is {new.name}, and rows have numbers of {other} ({source}): consumers would read other "
                "times; keep the type, or use a new field"
            )
        if not (contains(values, former) or contains(values, column)):
            lacking = sorted((former.texts or frozenset()) - values.texts) if values.texts is not None else []
            without = f" without {', '.join(map(repr, lacking)):.100}" if lacking else ""
            raise _misfit(path, new.name + without, f"{other} ({source})")


def _misfit(path: str, new: str, former: str) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"field {path!r} is {new}, which has no form for all values of {former}: consumers could not read such rows; "
        "keep the type, or use a new field"
    )


# -- Avro


def _check_avro(new: AvroType, others: Others[AvroType], targets: list[pa.Field], path: str, steps: _Steps) -> None:
    """Compare records."""
    names = [target.name for target in targets]
    fields = fields_of_columns(new, names)
    written = [places_of_columns(one, fields, names) for _, one in others]
    stored = [fields_of_columns(one, names) for _, one in others]
    for target in targets:
        field = fields.get(target.name)
        if field is None:
            continue
        place = f"{path}.{field.name}" if path else field.name
        own: list[tuple[str, AvroType]] = []
        for (source, one), places, by_column in zip(others, written, stored, strict=True):
            at = places.get(target.name)
            formers = [None if at is None else one.fields[at]]
            if len(by_column) == len(one.fields):  # rows were stored while this version was the newest one
                former = by_column.get(target.name)
                formers += [former] if former is not formers[0] else []
            if None in formers:
                _check_missing(field, place, source)
            own += [(source, former.type) for former in formers if former is not None]
        steps.take(1 + len(own))
        _check_avro_type(field.type, own, target.type, place, steps, fills_null=field.has_default)


def _check_missing(field: AvroField, path: str, source: str) -> None:
    if not field.has_default and not is_nullable(field.type):
        raise SchemaMismatchError(
            f"field {path!r} has no default, and no null: rows of {source}, which lacks the field, have no value of it, and "
            "consumers could not read them; give the field a default, or a union with null"
        )


def _check_avro_type(
    new: AvroType, others: Others[AvroType], target: Any, path: str, steps: _Steps, *, fills_null: bool = False
) -> None:
    """Compare types. `fills_null`: True if null becomes a default."""
    if not fills_null and not is_nullable(new):
        for source, one in others:
            if is_nullable(one):
                raise SchemaMismatchError(
                    f"field {path!r} has no null, which rows can have ({source}): consumers could not read them; keep the "
                    "union with null"
                )
    own = _without_null(new)
    rest = [(source, _without_null(one)) for source, one in others]
    if not pa.types.is_nested(target):
        leaves = [(source, _leaf(one)) for source, one in rest]
        _check_leaf(path, _leaf(own), leaves, target, casts_bytes=True)
        return
    kind = "record" if pa.types.is_struct(target) else "map" if pa.types.is_map(target) else "array"
    if own.kind != kind or (kind == "map" and not pa.types.is_string(target.key_type)):
        raise _misfit(path, _shown(own), f"its column ({ddl_type(target)})")
    rest = [(source, one) for source, one in rest if one.kind == kind]  # other values are not in the column
    if kind == "record":
        _check_avro(own, rest, list(target), path, steps)
    else:
        element = target.item_type if kind == "map" else target.value_type
        _check_avro_type(own.inner[0], [(source, one.inner[0]) for source, one in rest], element, f"{path}[]", steps)


_NESTED = ("record", "map", "array")


def _without_null(kind: AvroType) -> AvroType:
    return branch_of(kind) if kind.kind == "union" else kind


def _leaf(kind: AvroType) -> _Leaf:
    if kind.kind in _NESTED:
        return _Leaf(_shown(kind), None, None)
    return _Leaf(_shown(kind), leaf_type(kind), _values(kind))


def _shown(kind: AvroType) -> str:
    if kind.decimal is not None:
        return "decimal({},{})".format(*kind.decimal)
    if kind.logical:
        return kind.logical
    if kind.kind == "fixed":
        return f"fixed of {kind.size} bytes"
    return f"{kind.kind} {kind.short_name}" if kind.name else kind.kind


def _values(kind: AvroType) -> Values:
    """Return the values of a type without inner values."""
    if kind.decimal is not None:
        return decimals(*kind.decimal)
    if kind.logical in _OF_LOGICAL:
        return _OF_LOGICAL[kind.logical]
    if kind.kind in ("int", "long"):
        return whole(32 if kind.kind == "int" else 64, unit=kind.logical)
    if kind.kind == "enum":
        return symbols(kind.symbols, has_default=kind.default is not None)
    return bytes_of(kind.size) if kind.kind == "fixed" else _OF_KIND[kind.kind]


_OF_LOGICAL = {
    "date": DATE,
    "timestamp-millis": times("instant", 1_000),
    "timestamp-micros": times("instant", 1_000_000),
    "local-timestamp-millis": times("local", 1_000),
    "local-timestamp-micros": times("local", 1_000_000),
}
_OF_KIND = {
    "null": EMPTY_SET,
    "boolean": BOOLEAN,
    "float": floating(32),
    "double": floating(64),
    "string": TEXT,
    "bytes": ANY_BYTES,
}


# -- Protobuf


def _check_protobuf(
    new: Sequence[MessageField],
    others: Others[tuple[MessageField, ...]],
    targets: list[pa.Field],
    path: str,
    steps: _Steps,
) -> None:
    """Compare messages. A null is a field that is not set."""
    columns = {target.name: target.type for target in targets}
    fields = [field for field in new if field.name in columns]
    tables = [(source, _Formers(one)) for source, one in others]
    for source, table in tables:
        _check_oneofs(fields, table, path, source)
    for field in fields:
        own = [(source, former) for source, table in tables for former in table.of(field)]
        steps.take(1 + len(own))
        _check_field(field, own, columns[field.name], path + field.name, steps)


class _Formers:
    """The fields of another version of a message."""

    def __init__(self, fields: tuple[MessageField, ...]) -> None:
        self._of_numbers = {one.number: one for one in fields}
        self._of_names = {one.name: one for one in fields}

    def of(self, field: MessageField) -> list[MessageField]:
        """Return the fields that fill a field's column: that of its number, and that of its name, which did so while
        the other version was the newest one."""
        first, second = self._of_numbers.get(field.number), self._of_names.get(field.name)
        return [one for one in (first, second if second is not first else None) if one is not None]


def _check_oneofs(new: list[MessageField], other: _Formers, path: str, source: str) -> None:
    """Raise SchemaMismatchError if two fields of a oneof can both be set in another version's records."""
    for oneof in {field.oneof for field in new if field.oneof >= 0}:
        members = [field for field in new if field.oneof == oneof]
        formers = [(field, former) for field in members for former in other.of(field)]
        for field, former in formers[1:]:
            first, before = formers[0]
            if field is not first and former is not before and (former.oneof < 0 or former.oneof != before.oneof):
                raise SchemaMismatchError(
                    f"fields {path + first.name!r} and {path + field.name!r} are in one oneof, and rows can have both "
                    f"({source}): consumers would get one of them; leave them outside of it"
                )


def _check_field(new: MessageField, others: Others[MessageField], target: Any, path: str, steps: _Steps) -> None:
    shape = new.is_list, new.is_map
    if shape != (pa.types.is_list(target), pa.types.is_map(target)):
        raise _misfit(path, ddl_type(new.column), f"its column ({ddl_type(target)})")
    own = [(source, one) for source, one in others if (one.is_list, one.is_map) == shape]
    if new.is_map:
        for i, inner in enumerate((target.key_type, target.item_type)):
            _check_one(new.fields[i], [(source, one.fields[i]) for source, one in own], inner, f"{path}[]", steps)
    else:
        _check_one(new, own, target.value_type if new.is_list else target, f"{path}[]" if new.is_list else path, steps)


def _check_one(new: MessageField, others: Others[MessageField], target: Any, path: str, steps: _Steps) -> None:
    """Compare fields without regard to lists."""
    if new.kind == "message" and pa.types.is_struct(target):
        inner = [(source, one.fields) for source, one in others if one.kind == "message"]
        _check_protobuf(new.fields, inner, list(target), f"{path}.", steps)
    else:
        leaves = [(source, _leaf_of_field(one)) for source, one in others]
        _check_leaf(path, _leaf_of_field(new), leaves, target, casts_bytes=False)


def _leaf_of_field(field: MessageField) -> _Leaf:
    kind = field.fields[0].kind if field.kind == "wrapper" else field.kind
    values = symbols([name for _, name in field.names]) if kind == "enum" else _OF_PROTOBUF.get(kind)
    return _Leaf(field.kind, field.column.value_type if field.is_list else field.column, values)


_OF_PROTOBUF = {
    "double": floating(64),
    "float": floating(32),
    "bool": BOOLEAN,
    "string": TEXT,
    "bytes": ANY_BYTES,
    "timestamp": times("instant", 1_000_000),
    "duration": DURATION,
    **dict.fromkeys(("int32", "sint32", "sfixed32"), whole(32)),
    **dict.fromkeys(("uint32", "fixed32"), whole(32, signed=False)),
    **dict.fromkeys(("int64", "sint64", "sfixed64"), whole(64)),
    **dict.fromkeys(("uint64", "fixed64"), whole(64, signed=False)),
}
