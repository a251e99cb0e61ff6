"""Topic schemas: the canonical (Spark) Arrow layout, the envelope, and the conversion of data to a topic's schema.

Spark compares the Arrow schema of a Python source's first batch exactly with its own, so the log stores exactly
Spark's layout, and readers pass batches on without a cast. Canonical layout:

==============================================  =====================================
given                                           stored
==============================================  =====================================
large_string, string_view                       string
large_binary, binary_view, fixed_size_binary    binary
dictionary, run-end encoded                     as the type of their values
uint8, uint16, uint32                           int16, int32, int64 (uint64 is refused)
timestamp with a zone, any unit                 timestamp[us, UTC]
timestamp without a zone, any unit              timestamp[us]
date64                                          date32
float16                                         float32
duration                                        duration[us]
large_list, fixed_size_list, list_view,         list, element field named "element"
large_list_view
decimal of any width                            decimal128 (precision up to 38, 0 <= scale <= precision)
null                                            string
struct, map, list                               the same with canonical children
anything nullable or not                        nullable (a map's key cannot be)
==============================================  =====================================
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.errors import InvalidTopicError, SchemaMismatchError
from sparklog.format.column_names import shown_names
from sparklog.format.map_keys import require_distinct_keys
from sparklog.format.plain_layout import is_encoded, is_list_view, needs_rewriting, plain_layout
from sparklog.settings import did_you_mean

KIND_ENVELOPE = "envelope"
KIND_TYPED = "typed"

HEADER_TYPE = pa.list_(pa.field("element", pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())])))
TIMESTAMP_TYPE = pa.timestamp("us", tz="UTC")

ENVELOPE_SCHEMA = pa.schema(
    [("key", pa.binary()), ("value", pa.binary()), ("headers", HEADER_TYPE), ("timestamp", TIMESTAMP_TYPE)]
)
"""Schema of an envelope topic, with the columns that Kafka users know. `headers` is null if a record has no headers."""

NO_PYTHON_OBJECT = (ArithmeticError, LookupError, ValueError)
"""Exceptions that Arrow raises for a stored value without a Python object: a date or a timestamp outside the years 1 to
9999 (OverflowError, ValueError), or an unknown time zone (KeyError)."""

RESERVED_COLUMNS = ("_topic", "_partition", "_offset", "_timestamp", "__offset")
COLUMNS_MAX = 10_000
NESTING_MAX = 60
"""Largest number of levels of nesting; a map counts as two. Arrow's IPC reader refuses more than 64."""
SCHEMA_BYTES_MAX = 2 * 1024 * 1024
"""Largest size of a serialised schema. It keeps a batch's metadata within `METADATA_BYTES_MAX`."""


def canonical_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema that a typed topic stores for data of `schema`.

    Raises InvalidTopicError for no or too many columns, duplicate or reserved names, a type without a counterpart in
    Spark, or a schema that is too large or too deep.
    """
    if not 1 <= len(schema) <= COLUMNS_MAX:
        raise InvalidTopicError(f"a typed topic needs 1 to {COLUMNS_MAX} columns, the schema has {len(schema)}")
    try:
        _require_names(schema.names, "column")
        for name in schema.names:
            if name.lower() in RESERVED_COLUMNS:
                raise InvalidTopicError(f"column name {name!r} is reserved for the record's metadata")
        canonical = pa.schema([pa.field(f.name, canonical_type(f.type, f.name)) for f in schema])
    except UnicodeDecodeError as e:
        raise InvalidTopicError(f"a column's name is not UTF-8: {e}") from e
    if (size := canonical.serialize().size) > SCHEMA_BYTES_MAX:
        raise InvalidTopicError(f"the schema takes {size} bytes, at most {SCHEMA_BYTES_MAX} are allowed")
    return canonical


def _require_names(names: list[str], kind: str) -> None:
    seen: set[str] = set()
    for name in names:
        if not name or "\0" in name:  # Arrow's C interface ends a name at the NUL, and SQL has no empty names
            raise InvalidTopicError(f"{kind} {name!r}: a name is not empty, and has no NUL character; rename it")
        if name.lower() in seen:
            raise InvalidTopicError(f"{kind} {name!r} occurs twice (Spark ignores case)")
        seen.add(name.lower())


def canonical_type(t: Any, column: str, depth: int = 0) -> Any:
    """Return the stored type for `t`. `column`: name for the error message; `depth`: levels of nesting above `t`.
    Raises InvalidTopicError for a type without a stored type, and for too deep nesting."""
    if depth > NESTING_MAX:
        raise InvalidTopicError(f"column {column[:80]!r} is nested more than {NESTING_MAX} levels deep")
    if is_encoded(t):
        return canonical_type(t.value_type, column, depth)
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
    if pa.types.is_decimal(t) and t.precision <= 38 and 0 <= t.scale <= t.precision:
        return pa.decimal128(t.precision, t.scale)
    if pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t) or is_list_view(t):
        return pa.list_(pa.field("element", canonical_type(t.value_type, column, depth + 1)))
    if pa.types.is_struct(t):
        _require_names([f.name for f in t], f"column {column!r}: field")
        return pa.struct([pa.field(f.name, canonical_type(f.type, f"{column}.{f.name}", depth + 1)) for f in t])
    if pa.types.is_map(t):
        key = canonical_type(t.key_type, column, depth + 2)
        return pa.map_(key, canonical_type(t.item_type, column, depth + 2))
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


def fit_table(
    table: pa.Table, schema: pa.Schema, topic: str, rounded: Container[str] = (), *, nulls_fit: bool = False
) -> pa.Table:
    """Return `table` with exactly the columns, order and types of the canonical `schema`.

    Columns are matched by name. A missing column becomes null. Casts must be lossless, except that in the columns
    `rounded` a double becomes the nearest float. `topic`: name for the error message. `nulls_fit`: True lets a column
    without values have any type. Raises SchemaMismatchError that names every column that does not fit, with its type
    and the topic's.
    """
    if table.schema.equals(schema):
        _require_distinct_keys(table, topic)
        return table
    problems: list[str] = []
    unknown = [n for n in table.column_names if schema.get_field_index(n) < 0]
    if unknown:
        near = did_you_mean(unknown[0], schema.names) if len(unknown) == 1 else ""
        hint = near if near.startswith(":") else ""  # else all columns are named below
        problems.append(f"unknown column{'s' if len(unknown) > 1 else ''} {', '.join(map(repr, unknown))}{hint}")
    columns = []
    for f in schema:
        indexes = table.schema.get_all_field_indices(f.name)
        if len(indexes) > 1:
            problems.append(f"column {f.name!r} occurs {len(indexes)} times")
        elif not indexes:
            columns.append(null_column(table.num_rows, f.type))
        else:
            column = table.column(indexes[0])
            if nulls_fit and column.null_count == len(column) and column.type != f.type:
                column = null_column(table.num_rows, f.type)
            try:
                fits = column.type == f.type
                columns.append(column if fits else fit_column(column, f.type, rounded=f.name in rounded))
            except (pa.ArrowException, OverflowError) as e:
                reason = str(e).splitlines()[0]
                problems.append(f"column {f.name!r} is {column.type}, the topic has {f.type} ({reason})")
    if len(unknown) == table.num_columns and unknown:
        problems.append(f"the topic's columns are {shown_names(schema.names)}")
    if problems:
        raise SchemaMismatchError(f"data do not fit topic {topic!r}: " + "; ".join(problems))
    fitted = pa.table(columns, schema=schema)
    _require_distinct_keys(fitted, topic)
    return fitted


def _require_distinct_keys(table: pa.Table, topic: str) -> None:
    for field, column in zip(table.schema, table.columns, strict=True):
        try:
            require_distinct_keys(column)
        except pa.ArrowInvalid as e:
            raise SchemaMismatchError(f"data do not fit topic {topic!r}: column {field.name!r}: {e}") from e


def fit_column(column: Any, target: Any, *, rounded: bool = False) -> Any:
    """Return `column` cast to the canonical type `target` without loss. Numbers, text and times are not converted into
    each other: a string with digits is not a number.

    `rounded`: True to convert a double to the nearest float, as a number in JSON. Raises pa.ArrowInvalid or
    pa.ArrowNotImplementedError.
    """
    if needs_rewriting(column.type):
        column = _rewritten(column)
    reason = _refusal(column.type, target)
    if reason:
        raise pa.ArrowInvalid(reason)
    try:
        fitted = _cast(column, target)
    except pa.ArrowInvalid:
        if pa.types.is_nested(column.type):
            column = _rewritten(column)  # without the values that no row has: they do not count
        exact = _with_exact_numbers(column, target)
        if exact is column and not pa.types.is_nested(column.type):
            raise
        column, fitted = exact, _cast(exact, target)
    for before, after in _changed_leaves(column, fitted, _may_round):
        if rounded and _is_double_to_float(before.type, after.type):
            _require_finite(before, after)
        else:
            _require_equal(before, after.cast(before.type, safe=False))
    return fitted


def _with_exact_numbers(column: Any, target: Any) -> Any:
    """Return the column with its whole numbers as numbers of `target` where that has floating-point numbers, and as
    decimals of 20 digits where it has decimals. Arrow judges by the bounds of the types, this function by the values.
    Raises pa.ArrowInvalid for a whole number that the floating-point type does not have."""
    numbers = _exact_type(column.type, target)
    if numbers == column.type:
        return column
    import pyarrow.compute as pc  # late: 10 MB that an idle broker does without

    exact = pc.cast(column, options=pc.CastOptions(numbers, allow_float_truncate=True))
    for integers, floats in _changed_leaves(column, exact, _is_integer_to_floating):
        _require_exact(integers, floats)
    return exact


def _exact_type(source: Any, target: Any) -> Any:
    """Return the type of `_with_exact_numbers`: that of the source, with other types for whole numbers, at any
    depth."""
    if pa.types.is_integer(source):
        if pa.types.is_floating(target):
            return target
        return pa.decimal128(20, 0) if pa.types.is_decimal(target) else source
    if pa.types.is_struct(source):
        return pa.struct([f.with_type(_exact_type(f.type, target.field(f.name).type)) for f in source])
    if pa.types.is_map(source):
        key, item = _exact_type(source.key_type, target.key_type), _exact_type(source.item_type, target.item_type)
        return pa.map_(source.key_field.with_type(key), source.item_field.with_type(item))
    if pa.types.is_nested(source):
        element = source.value_field.with_type(_exact_type(source.value_type, target.value_type))
        if pa.types.is_fixed_size_list(source):
            return pa.list_(element, source.list_size)
        return pa.large_list(element) if pa.types.is_large_list(source) else pa.list_(element)
    return source


def _rewritten(column: Any) -> Any:
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([plain_layout(c) for c in column.chunks or [pa.nulls(0, column.type)]])
    return plain_layout(column)


def _cast(column: Any, target: Any) -> Any:
    """Cast `column` with Arrow's safe cast. Raises pa.ArrowInvalid, whose message names the remedy for times in ns and
    for NaN, and the first number that a decimal cannot hold."""
    source = column.type
    try:
        return column.cast(target, safe=True)
    except pa.ArrowInvalid as e:
        import pyarrow.compute as pc  # late: 10 MB that an idle broker does without

        reason = str(e).splitlines()[0]
        if "[ns" in str(source) and "would lose data" in reason:
            raise pa.ArrowInvalid(
                f'{reason}; the log keeps microseconds: truncate the times, for example with .dt.floor("us")'
            ) from e
        if pa.types.is_floating(source) and pc.any(pc.is_nan(column)).as_py():
            raise pa.ArrowInvalid(
                f"{reason}; NaN is a number, but not a {target}: use null (None) for a missing value"
            ) from e
        if pa.types.is_decimal(source) and pa.types.is_decimal(target):
            raise pa.ArrowInvalid(f"{_first_misfit(column, target)}: {reason}") from e
        raise


def _first_misfit(column: Any, target: Any) -> Any:
    """Return the first value of a column that cannot be cast to `target` as a whole."""
    first, count = 0, len(column)
    while count > 1:
        half = count // 2
        try:
            column.slice(first, half).cast(target, safe=True)
            first, count = first + half, count - half
        except pa.ArrowInvalid:
            count = half
    return column[first]


def null_column(rows: int, t: Any) -> Any:
    """Return `rows` nulls of type `t`. The children of lists and maps have no values and no buffers. `pa.nulls` gives
    these children buffers of zeros, which a batch would store. `pa.array` is not used, because it imports pandas
    (0.3 s)."""
    bitmap = pa.py_buffer(bytes((rows + 7) // 8))
    if pa.types.is_struct(t):
        children = [null_column(rows, f.type) for f in t]
        return pa.Array.from_buffers(t, rows, [bitmap], rows, children=children)
    if pa.types.is_map(t):
        entries = pa.struct([t.key_field, t.item_field])
        offsets = pa.py_buffer(bytes(4 * (rows + 1)))
        return pa.Array.from_buffers(t, rows, [bitmap, offsets], rows, children=[pa.nulls(0, entries)])
    if pa.types.is_list(t):
        offsets = pa.py_buffer(bytes(4 * (rows + 1)))
        return pa.Array.from_buffers(t, rows, [bitmap, offsets], rows, children=[pa.nulls(0, t.value_type)])
    return pa.nulls(rows, t)


_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_RAW = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
_FAMILIES = (
    (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal),
    _RAW + _TEXT,  # text is bytes, so it may go into a binary column; the other way is refused by name
    (pa.types.is_timestamp, pa.types.is_date),
    (pa.types.is_duration,),
    (pa.types.is_boolean,),
    (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
    (pa.types.is_struct,),
    (pa.types.is_map,),
)


def _is(t: Any, family: tuple[Any, ...]) -> bool:
    return any(predicate(t) for predicate in family)


def _refusal(source: Any, target: Any) -> str:
    """Return the reason why a column of type `source` must not be cast to `target`, regardless of its values; "" if a
    cast is allowed. Arrow itself would cast many more types."""
    if source == target or pa.types.is_null(source):
        return ""
    if not any(_is(source, family) and _is(target, family) for family in _FAMILIES):
        return f"no implicit conversion from {source} to {target}"
    if _is(source, _RAW) and pa.types.is_string(target):
        return "bytes are not text: decode them first"
    if bool(getattr(source, "tz", None)) != bool(getattr(target, "tz", None)):
        return "only one of both has a time zone: add a time zone"
    if pa.types.is_struct(target):
        return _struct_refusal(source, target)
    if pa.types.is_map(target):
        return _refusal(source.key_type, target.key_type) or _refusal(source.item_type, target.item_type)
    if pa.types.is_list(target):
        return _refusal(source.value_type, target.value_type)
    return ""


def _struct_refusal(source: Any, target: Any) -> str:
    names = [f.name for f in source]
    for name in names:
        if names.count(name) > 1:
            return f"field {name!r} occurs twice"
        if target.get_field_index(name) < 0:
            return f"unknown field {name!r}"
        reason = _refusal(source.field(name).type, target.field(name).type)
        if reason:
            return f"field {name!r}: {reason}"
    return ""


Change = Callable[[Any, Any], bool]
"""Function of two types that are not nested: True if a cast from the first to the second can change values."""


def _may_round(source: Any, target: Any) -> bool:
    """Return True if Arrow's safe cast from `source` to `target` can drop digits without an error."""
    floating, decimal = pa.types.is_floating, pa.types.is_decimal
    if floating(target):
        return bool(decimal(source) or (floating(source) and source.bit_width > target.bit_width))
    if decimal(target):
        return bool(floating(source))
    return bool(pa.types.is_date(target) and pa.types.is_timestamp(source))


def _is_integer_to_floating(source: Any, target: Any) -> bool:
    return bool(pa.types.is_integer(source) and pa.types.is_floating(target))


def _is_double_to_float(source: Any, target: Any) -> bool:
    return bool(pa.types.is_float64(source) and pa.types.is_float32(target))


def _holds_change(source: Any, target: Any, changes: Change) -> bool:
    """Return True if `changes` is true for the types `source` and `target`, or for types inside of them."""
    if source == target or pa.types.is_null(source):
        return False
    if pa.types.is_struct(target):
        return any(_holds_change(f.type, target.field(f.name).type, changes) for f in source)
    if pa.types.is_map(target):
        pairs = (source.key_type, target.key_type), (source.item_type, target.item_type)
        return any(_holds_change(*pair, changes) for pair in pairs)
    if pa.types.is_nested(target):
        return _holds_change(source.value_type, target.value_type, changes)
    return changes(source, target)


def _changed_leaves(before: Any, after: Any, changes: Change) -> Iterator[tuple[Any, Any]]:
    """Yield the values of `before`, at any depth, that the cast to `after` can have changed, each array with its part
    of `after`. Values that no row has, outside of a slice or under a null, are not among them."""
    if not _holds_change(before.type, after.type, changes):
        return
    if isinstance(before, pa.ChunkedArray) and pa.types.is_nested(before.type):
        pairs = ([chunk for chunk in c.chunks if len(chunk)] for c in (before, after))
        for a, b in zip(*pairs, strict=True):
            yield from _changed_leaves(a, b, changes)
    elif pa.types.is_struct(after.type):
        children = after.flatten()
        for f, child in zip(before.type, before.flatten(), strict=True):
            yield from _changed_leaves(child, children[after.type.get_field_index(f.name)], changes)
    elif pa.types.is_map(after.type):
        before, after = plain_layout(before), plain_layout(after)
        yield from _changed_leaves(before.keys, after.keys, changes)
        yield from _changed_leaves(before.items, after.items, changes)
    elif pa.types.is_nested(after.type):
        yield from _changed_leaves(before.flatten(), after.flatten(), changes)
    else:
        yield before, after


def _require_exact(integers: Any, floats: Any) -> None:
    """Raise pa.ArrowInvalid if a whole number is another one as a floating-point number. The message shows the first
    such number."""
    import pyarrow.compute as pc  # late: 10 MB that an idle broker does without

    # the cast of the first number beyond the integers' range is undefined
    beyond = 2.0 ** (integers.type.bit_width - pa.types.is_signed_integer(integers.type))
    is_inside = pc.less(floats, beyond)
    back = pc.if_else(is_inside, floats, pa.scalar(0, floats.type)).cast(integers.type, safe=False)
    same = pc.and_(is_inside, pc.equal(integers, back))
    if not pc.all(same, min_count=0).as_py():
        first = pc.index(same, pa.scalar(False)).as_py()
        raise pa.ArrowInvalid(f"{integers[first]} would become {int(floats[first].as_py())}, the nearest {floats.type}")


def _require_finite(doubles: Any, floats: Any) -> None:
    """Raise pa.ArrowInvalid if a finite double is infinite as a float. The message shows the first such double."""
    import pyarrow.compute as pc  # late: 10 MB that an idle broker does without

    beyond = pc.and_not(pc.is_inf(floats), pc.is_inf(doubles))
    if pc.any(beyond).as_py():
        raise pa.ArrowInvalid(f"{pc.filter(doubles, beyond)[0]} is beyond the range of float (3.4e38)")


def _require_equal(before: Any, after: Any) -> None:
    """Raise pa.ArrowInvalid if a value differs in `after`, the column after a cast and its reverse; NaN does not
    differ. The message shows the first such value."""
    import pyarrow.compute as pc  # late: 10 MB that an idle broker does without

    same = pc.equal(before, after)
    if pa.types.is_floating(before.type):
        same = pc.or_(same, pc.is_nan(before))
    if not pc.all(same, min_count=0).as_py():
        first = pc.index(same, pa.scalar(False)).as_py()
        was, now = (c.slice(first, 1).cast(pa.string())[0] for c in (before, after))
        raise pa.ArrowInvalid(f"{was} would become {now}: cast it before")


def require_columns(schema: pa.Schema, key_columns: list[str], timestamp_column: str | None) -> None:
    """Check that the key columns exist, differ and are not nested, and that the timestamp column (None: no column) is a
    timestamp. Raises InvalidTopicError."""
    names = shown_names(schema.names)
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
            column_type = schema.field(timestamp_column).type
            raise InvalidTopicError(f"timestamp column {timestamp_column!r} is {column_type}, it must be a timestamp")


def timestamp_bounds_ms(column: Any, default_ms: int) -> tuple[int, int]:
    """Return the smallest and the largest timestamp of a timestamp column, in ms, rounded down. Nulls are ignored.

    If the column is empty or all timestamps are null, both results are `default_ms`.
    """
    if isinstance(column, pa.Array) and column.type.unit == "us" and len(column) and not column.null_count:
        numbers = np.frombuffer(
            column.buffers()[1], np.int64, len(column), column.offset * 8
        )  # to_numpy imports pandas
        return int(numbers.min()) // 1000, int(numbers.max()) // 1000
    import pyarrow.compute as pc  # late: 10 MB that an idle broker does without

    bounds = pc.min_max(column.cast(pa.timestamp("us", tz=column.type.tz), safe=False))
    low, high = bounds["min"].value, bounds["max"].value
    if low is None:
        return default_ms, default_ms
    return low // 1000, high // 1000
