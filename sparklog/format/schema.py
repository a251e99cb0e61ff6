"""Topic schemas: the canonical (Spark) Arrow layout, the envelope, and fitting data to them.

Spark compares the Arrow schema of a Python source's first batch exactly with its own, so the log stores exactly what
Spark calls for and readers hand batches through without a cast. Canonical layout:

==============================================  =====================================
given                                           stored
==============================================  =====================================
large_string, string_view, dictionary<string>   string
large_binary, binary_view, fixed_size_binary    binary
uint8, uint16, uint32                           int16, int32, int64 (uint64 is refused)
timestamp with a zone, any unit                 timestamp[us, UTC]
timestamp without a zone, any unit              timestamp[us]
date64                                          date32
float16                                         float32
duration                                        duration[us]
large_list, fixed_size_list                     list, element field named "element"
decimal32/64, decimal128                        decimal128
null                                            string
struct, map, list                               the same with canonical children
anything nullable or not                        nullable (a map's key cannot be)
==============================================  =====================================
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from sparklog.errors import InvalidTopicError, SchemaMismatchError

KIND_ENVELOPE = "envelope"
KIND_TYPED = "typed"

HEADER_TYPE = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")

ENVELOPE_SCHEMA = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("headers", HEADER_TYPE), ("timestamp", TIMESTAMP_TYPE)]
)
"""Schema of an envelope topic: what Kafka users know. `headers` null means none."""

RESERVED_PREFIX = "_"
RESERVED_COLUMNS = ("_topic", "_partition", "_offset", "_timestamp", "__offset")
COLUMNS_MAX = 10_000


def canonical_schema(schema: pa.Schema) -> pa.Schema:
    """The schema a typed topic stores for data of `schema`.

    Raises InvalidTopicError for no columns, duplicate names, reserved names or a type that Spark has no layout for.
    """
    if not 1 <= len(schema) <= COLUMNS_MAX:
        raise InvalidTopicError(f"a typed topic needs 1 to {COLUMNS_MAX} columns, the schema has {len(schema)}")
    seen: set[str] = set()
    for name in schema.names:
        if name.lower() in seen:
            raise InvalidTopicError(f"column {name!r} is there twice (Spark does not tell upper from lower case)")
        seen.add(name.lower())
        if name in RESERVED_COLUMNS:
            raise InvalidTopicError(f"column name {name!r} is reserved for the record's metadata")
    return pa.schema([pa.field(f.name, canonical_type(f.type, f.name)) for f in schema])


def canonical_type(t: Any, column: str) -> Any:
    """The stored type for `t`; `column` is named in the InvalidTopicError raised when there is none."""
    if pa.types.is_dictionary(t):
        return canonical_type(t.value_type, column)
    if pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t) or pa.types.is_null(t):
        return pa.string()
    if (
        pa.types.is_binary(t)
        or pa.types.is_large_binary(t)
        or pa.types.is_binary_view(t)
        or pa.types.is_fixed_size_binary(t)
    ):
        return pa.binary()
    if pa.types.is_timestamp(t):
        return TIMESTAMP_TYPE if t.tz else pa.timestamp("us")
    if t in _SIMPLE:
        return _SIMPLE[t]
    if pa.types.is_duration(t):
        return pa.duration("us")
    if pa.types.is_decimal(t) and t.precision <= 38 and t.scale >= 0:
        return pa.decimal128(t.precision, t.scale)
    if pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t):
        return pa.list_(pa.field("element", canonical_type(t.value_type, column)))
    if pa.types.is_struct(t):
        return pa.struct([pa.field(f.name, canonical_type(f.type, f"{column}.{f.name}")) for f in t])
    if pa.types.is_map(t):
        return pa.map_(canonical_type(t.key_type, column), canonical_type(t.item_type, column))
    raise InvalidTopicError(f"column {column!r}: type {t} has no counterpart in Spark; cast it before")


_SIMPLE = {
    pa.bool_(): pa.bool_(),
    pa.int8(): pa.int8(),
    pa.int16(): pa.int16(),
    pa.int32(): pa.int32(),
    pa.int64(): pa.int64(),
    pa.uint8(): pa.int16(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.float16(): pa.float32(),
    pa.float32(): pa.float32(),
    pa.float64(): pa.float64(),
    pa.date32(): pa.date32(),
    pa.date64(): pa.date32(),
}


def fit_table(table: pa.Table, schema: pa.Schema, topic: str) -> pa.Table:
    """`table` with exactly the columns, order and types of the canonical `schema`.

    Columns are matched by name; a missing column becomes null; casts must be lossless. Raises SchemaMismatchError that
    names every column that does not fit, with both types.
    """
    if table.schema.equals(schema):
        return table
    problems: list[str] = []
    unknown = [n for n in table.column_names if schema.get_field_index(n) < 0]
    if unknown:
        problems.append(f"unknown column{'s' if len(unknown) > 1 else ''} {', '.join(map(repr, unknown))}")
    columns = []
    for f in schema:
        indexes = table.schema.get_all_field_indices(f.name)
        if len(indexes) > 1:
            problems.append(f"column {f.name!r} is there {len(indexes)} times")
        elif not indexes:
            columns.append(pa.nulls(table.num_rows, f.type))
        else:
            column = table.column(indexes[0])
            try:
                columns.append(column if column.type == f.type else fit_column(column, f.type))
            except (pa.ArrowException, OverflowError) as e:
                reason = str(e).splitlines()[0]
                problems.append(f"column {f.name!r} is {column.type}, the topic has {f.type} ({reason})")
    if len(unknown) == table.num_columns and unknown:
        problems.append(f"the topic's columns are {', '.join(schema.names)}")
    if problems:
        raise SchemaMismatchError(f"data do not fit topic {topic!r}: " + "; ".join(problems))
    return pa.table(columns, schema=schema)


_NUMERIC_FAMILY = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)


def fit_column(column: Any, target: Any) -> Any:
    """Casts `column` to `target` without loss; refuses casts between families (a string is not a number).

    Raises pa.ArrowInvalid or pa.ArrowNotImplementedError.
    """
    source = column.type
    if pa.types.is_dictionary(source):
        column = column.cast(source.value_type)
        source = column.type
    text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    raw = (
        pa.types.is_binary,
        pa.types.is_large_binary,
        pa.types.is_binary_view,
        pa.types.is_fixed_size_binary,
    )
    families = (
        _NUMERIC_FAMILY,
        text,
        raw + text,  # text is bytes, so it may go into a binary column
        (pa.types.is_temporal,),
        (pa.types.is_boolean,),
        (pa.types.is_nested,),
    )
    if pa.types.is_null(source) or any(
        any(p(source) for p in family) and any(p(target) for p in family) for family in families
    ):
        if pa.types.is_string(target) and any(p(source) for p in raw):
            raise pa.ArrowInvalid("bytes are not text: decode them first")
        if pa.types.is_timestamp(source) and pa.types.is_timestamp(target) and bool(source.tz) != bool(target.tz):
            raise pa.ArrowInvalid("one has a time zone, the other has not")
        return column.cast(target, safe=True)
    raise pa.ArrowInvalid("no implicit conversion")


def require_columns(schema: pa.Schema, key_columns: list[str], timestamp_column: str | None) -> None:
    """Checks that the topic's key and timestamp columns exist and have usable types. Raises InvalidTopicError."""
    names = ", ".join(schema.names)
    for name in key_columns:
        if schema.get_field_index(name) < 0:
            raise InvalidTopicError(f"key column {name!r} is not in the schema (columns: {names})")
        if pa.types.is_nested(schema.field(name).type):
            raise InvalidTopicError(f"key column {name!r} is {schema.field(name).type}: a key must be a plain value")
    if len(set(key_columns)) != len(key_columns):
        raise InvalidTopicError("a key column is named twice")
    if timestamp_column is not None:
        if schema.get_field_index(timestamp_column) < 0:
            raise InvalidTopicError(f"timestamp column {timestamp_column!r} is not in the schema (columns: {names})")
        if not pa.types.is_timestamp(schema.field(timestamp_column).type):
            found = schema.field(timestamp_column).type
            raise InvalidTopicError(f"timestamp column {timestamp_column!r} is {found}, it must be a timestamp")


def timestamp_bounds_ms(column: Any, default_ms: int) -> tuple[int, int]:
    """Smallest and largest timestamp of a timestamp column in ms (floor); `default_ms` twice when all are null."""
    import pyarrow.compute as pc  # late: 10 MB that an idle broker does without

    bounds = pc.min_max(column.cast(pa.timestamp("us", tz=column.type.tz), safe=False))
    low, high = bounds["min"].value, bounds["max"].value
    if low is None:
        return default_ms, default_ms
    return low // 1000, high // 1000
