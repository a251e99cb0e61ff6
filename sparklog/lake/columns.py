"""Columns of a topic's Delta table: the topic's, then `_partition`, `_offset` and `_timestamp`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from sparklog.errors import InvalidConfigError, LakePausedError
from sparklog.format.schema import TIMESTAMP_TYPE
from sparklog.metadata.lake_settings import column_problems

POSITION_FIELDS = (
    pa.field("_partition", pa.int32()),
    pa.field("_offset", pa.int64()),
    pa.field("_timestamp", TIMESTAMP_TYPE),
)
"""Columns with the position of a row in the log, and its timestamp."""
POSITION_COLUMNS = tuple(f.name for f in POSITION_FIELDS)
ENVELOPE_COLUMNS = ("key", "value", "headers")
"""Columns of an envelope topic's table, without the position; the topic's `timestamp` is in `_timestamp`."""


def topic_columns(schema: pa.Schema, *, is_envelope: bool) -> list[str]:
    """Return the names of the topic's own columns in its table, in order."""
    return list(ENVELOPE_COLUMNS) if is_envelope else list(schema.names)


def table_schema(schema: pa.Schema, *, is_envelope: bool) -> pa.Schema:
    """Return the columns of a topic's table: the topic's own columns, then POSITION_FIELDS."""
    own = [schema.field(name) for name in topic_columns(schema, is_envelope=is_envelope)]
    return pa.schema([*own, *POSITION_FIELDS])


def check_columns(schema: pa.Schema) -> None:
    """Check that a Delta table can have these columns. Raises InvalidConfigError: Delta does not support the type or
    the name of a column; the message lists all of them."""
    problems = column_problems(schema)
    if problems:
        raise InvalidConfigError(
            "the topic cannot have a Delta table: "
            + "; ".join(problems)
            + "; write such values as another type or under another name, to a new topic"
        )


def check_partition_by(columns: Sequence[str], schema: pa.Schema) -> None:
    """Check the columns that partition a table. Raises InvalidConfigError: A column does not exist, or its type has no
    exact form in a directory's name; a column occurs twice; or the columns are all columns of the table."""
    for name in columns:
        at = schema.get_field_index(name)
        if at < 0:
            raise InvalidConfigError(
                f"lake.partition.by names column {name!r}: the table's columns are {', '.join(schema.names)}"
            )
        t = schema.field(at).type
        if not (pa.types.is_integer(t) or pa.types.is_string(t) or pa.types.is_date32(t) or pa.types.is_boolean(t)):
            raise InvalidConfigError(
                f"lake.partition.by names column {name!r} of type {t}: use a whole number, a text, a date or a boolean"
            )
    if len(set(columns)) < len(columns):
        raise InvalidConfigError(f"lake.partition.by = {','.join(columns)!r}: a column occurs twice")
    if columns and len(columns) >= len(schema):
        raise InvalidConfigError("lake.partition.by names all columns: leave one out")


def check_key_partitions(columns: Sequence[str], key_columns: Sequence[str], schema: pa.Schema) -> None:
    """Check the columns that partition an upserted table. A key must come back from the table as it is, but an empty
    text and a date outside of the years 1 to 9999 become null in a partition column. Raises InvalidConfigError: A text
    or date column of the key partitions the table."""
    for name in columns:
        t = schema.field(name).type
        if name in key_columns and (pa.types.is_string(t) or pa.types.is_date32(t)):
            raise InvalidConfigError(
                f"lake.partition.by names key column {name!r} of type {t}, whose values can become null in a partition: "
                "an upserted table needs its keys; use another column, or a key column of whole numbers"
            )


def missing_columns(topic: pa.Schema, table: pa.Schema) -> list[pa.Field]:
    """Return the columns to add to a table before it can contain rows of a topic, in order. `topic`: columns that the
    table should have, from the topic's newest schema. Raises LakePausedError: A column of the table has another type,
    or a name in other case; or a column that the topic lacks is NOT NULL."""
    by_lower = {f.name.lower(): f for f in table}
    missing, problems, narrow = [], [], []
    for f in topic:
        own = by_lower.get(f.name.lower())
        if own is None:
            missing.append(f)
        elif own.name != f.name:
            problems.append(f"column {f.name!r} has the name {own.name!r} in the table")
        elif own.type in _WIDER.get(f.type, ()):
            narrow.append(f"column {f.name!r} is {own.type} in the table and {f.type} in the topic")
        elif not same_type(own.type, f.type):
            problems.append(f"column {f.name!r} is {f.type} in the topic and {own.type} in the table")
    names = {f.name.lower() for f in topic}
    problems += [
        f"column {f.name!r} of the table is NOT NULL, and the topic lacks it"
        for f in table
        if not f.nullable and f.name.lower() not in names
    ]
    if narrow and not problems:
        raise LakePausedError(
            f"the table is wider than the topic: {'; '.join(narrow)}; make the topic's columns wider, too ('sparklog topic "
            "alter --widen'), then use 'sparklog lake resume'"
        )
    unfit = column_problems(pa.schema(missing))
    if unfit:
        raise LakePausedError(
            f"the topic has columns that its table cannot have: {'; '.join(unfit)}; use 'sparklog lake disable', and write "
            "such values as another type or under another name, to a new topic"
        )
    problems += narrow
    if problems:
        raise LakePausedError(
            f"the table does not fit the topic: {'; '.join(problems)}; 'sparklog lake rebuild --keep-rows' makes columns "
            "wider and keeps the rows that the log has deleted, 'sparklog lake rebuild' writes the table again from the "
            "log; or change the table and use 'sparklog lake resume'"
        )
    return missing


_WIDER = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(),),
    pa.float32(): (pa.float64(),),
}
"""Types to which a column of a topic, and of a Delta table, can become wider."""


def wider_columns(topic: pa.Schema, table: pa.Schema) -> dict[str, tuple[Any, Any]]:
    """Return the columns that are wider in a topic than in its table: types in the table and in the topic, by name."""
    types = {f.name: f.type for f in table}
    return {
        f.name: (types[f.name], f.type) for f in topic if f.name in types and f.type in _WIDER.get(types[f.name], ())
    }


def same_type(a: Any, b: Any) -> bool:
    """Return True if both types have the same values. Differences of nullability, of the names of list and map entries,
    and between plain, large and view layouts are ignored.
    """
    if pa.types.is_list(a) or pa.types.is_large_list(a):
        return (pa.types.is_list(b) or pa.types.is_large_list(b)) and same_type(a.value_type, b.value_type)
    if pa.types.is_map(a):
        return pa.types.is_map(b) and same_type(a.key_type, b.key_type) and same_type(a.item_type, b.item_type)
    if pa.types.is_struct(a):
        return (
            pa.types.is_struct(b)
            and [f.name for f in a] == [f.name for f in b]
            and all(same_type(x.type, y.type) for x, y in zip(a, b, strict=True))
        )
    if pa.types.is_string(a) or pa.types.is_large_string(a) or pa.types.is_string_view(a):
        return bool(pa.types.is_string(b) or pa.types.is_large_string(b) or pa.types.is_string_view(b))
    if pa.types.is_binary(a) or pa.types.is_large_binary(a) or pa.types.is_binary_view(a):
        return bool(pa.types.is_binary(b) or pa.types.is_large_binary(b) or pa.types.is_binary_view(b))
    return bool(a == b)
