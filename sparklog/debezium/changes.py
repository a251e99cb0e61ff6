"""Changes of rows as columns, and the values that the database did not send.

PostgreSQL and Oracle leave large values out of an event if a change does not touch them. Debezium then writes a
placeholder. The old value is, in this order,

1. the value in `before`, unless it is null: a row that the event describes only by its key has nulls there,
2. the value in the newest earlier change of the same key, among the changes and the earlier rows; a deletion or a
   truncation in between ends the search,
3. else the event is refused, or the column is marked for the caller.
"""

from __future__ import annotations

import base64
import binascii
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from sparklog.debezium.events import RowEvent
from sparklog.debezium.forms import ANY, Form, Hints, default_type
from sparklog.debezium.values import to_column
from sparklog.errors import DeserializationError
from sparklog.format.key_equality import canonical_key
from sparklog.lake.newest_rows import newest_per_key

OPERATION_COLUMN = "_op"
Column = Any
"""An Arrow array; or a NumPy array of objects as JSON has them, in events without a schema part and without a named
type. There UNSET stands for a field that the row lacks."""
EARLIER_BYTES_MAX = 256 * 1024 * 1024
FOLD_ROWS = 100_000
"""Half the number of collected rows at which older rows of the same keys are dropped."""
_MARK = "\0"
"""First character of the columns that hold marks; alone the name of the mark of deletions."""
_GEOMETRIES = (
    "0101000020E6100000000000FC83D797C1000000FC83D797C1",
    "0101000020E61000000C21E7FDFF7F66401842CEFBFF7F5640",
)
"""Debezium's placeholders of PostGIS' geometry and geography, as well-known binary."""


class Placeholder:
    """The forms of the placeholder for an unavailable value."""

    def __init__(self, value: bytes) -> None:
        """Create the forms of `unavailable.value.placeholder`."""
        text = value.decode("utf-8", "replace")
        encoded = (base64.b64encode(value), base64.urlsafe_b64encode(value), binascii.hexlify(value))
        self._scalars = frozenset(
            [value, text, msgspec.json.encode({text: text}).decode(), *(e.decode() for e in encoded)]
        )
        self._elements = self._scalars | {str(uuid.UUID(bytes=_name_uuid(value)))}
        signed = list(np.frombuffer(value, np.int8).tolist())
        self._numbers = signed
        points = [binascii.unhexlify(g) for g in _GEOMETRIES]
        self._geometries = frozenset([*points, *(base64.b64encode(p).decode() for p in points)])

    def rows(self, values: Sequence[Any]) -> list[int]:
        """Return the indexes of the values that are a placeholder."""
        kinds = set(map(type, values))
        if kinds.isdisjoint((str, bytes, list, dict)):
            return []
        if kinds.isdisjoint((list, dict)) and self._scalars.isdisjoint(values):
            return []
        return [i for i, value in enumerate(values) if self._is_placeholder(value)]

    def _is_placeholder(self, value: Any) -> bool:
        if isinstance(value, str | bytes):
            return value in self._scalars
        if isinstance(value, list):
            if value == self._numbers and value:
                return True
            return any(isinstance(v, str | bytes) and v in self._elements for v in value)
        if isinstance(value, dict):
            if any(v in self._scalars for k, v in value.items() if isinstance(v, str) and k in self._scalars):
                return True
            return "wkb" in value and isinstance(value["wkb"], str | bytes) and value["wkb"] in self._geometries
        return False


def _name_uuid(value: bytes) -> bytes:
    """Return Java's `UUID.nameUUIDFromBytes`."""
    import hashlib

    digest = bytearray(hashlib.md5(value, usedforsecurity=False).digest())
    digest[6] = digest[6] & 0x0F | 0x30
    digest[8] = digest[8] & 0x3F | 0x80
    return bytes(digest)


class Layout(NamedTuple):
    """The columns of the changed rows."""

    schema: pa.Schema | None
    """Names and types of the columns, without `_op`. None: those of the events."""
    hints: Hints
    """The forms of values without a schema part."""
    key_columns: tuple[str, ...] | None = None
    """Columns of the key. None: those of the records' keys."""


class Changes(NamedTuple):
    """Changes of rows, in the order of their events."""

    columns: Mapping[str, Column]
    """The columns of the rows."""
    operations: Sequence[str]
    """The operation of each change."""
    events: np.ndarray
    """The event's number of each change."""
    epochs: np.ndarray
    """Number of truncations before each change."""
    unavailable: Mapping[str, np.ndarray]
    """Masks of values that neither the event nor earlier rows have, by column. The columns are null there."""
    key_columns: tuple[str, ...]
    """Columns of the key; empty if neither the caller nor a record names them."""

    @property
    def is_deletion(self) -> np.ndarray:
        return np.array([op == "d" for op in self.operations], bool)


def changes_of(events: Sequence[RowEvent], layout: Layout) -> Changes:
    """Return the changes of events, with the values of `before` where a value is unavailable. Raises
    DeserializationError: A value does not fit its column. The message names the event and the column."""
    groups: dict[int, list[int]] = {}
    forms_of: dict[int, Mapping[str, Form] | None] = {}
    for at, event in enumerate(events):
        forms = own_forms(event)
        groups.setdefault(id(forms), []).append(at)
        forms_of[id(forms)] = forms
    names = _column_names(events, layout)
    unavailable: dict[str, np.ndarray] = {}
    parts = [_group(events, rows, forms_of[key], names, layout, unavailable) for key, rows in groups.items()]
    order = np.argsort(
        np.concatenate([np.array(rows, np.int64) for rows in groups.values()] or [np.zeros(0, np.int64)])
    )
    columns = {name: take(_joined([part[name] for part in parts], name), order) for name in names} if parts else {}
    if not parts and layout.schema is not None:
        columns = {f.name: pa.nulls(0, f.type) for f in layout.schema}
    return Changes(
        columns,
        [event.operation for event in events],
        np.array([event.number for event in events], np.int64),
        np.array([event.epoch for event in events], np.int64),
        {name: mask for name, mask in unavailable.items() if mask.any()},
        _key_columns(events, layout, columns),
    )


def own_forms(event: RowEvent) -> Mapping[str, Form] | None:
    """Return the forms of the event's row, which is the record's key in a deletion without `before`."""
    return event.key_forms if event.row is event.key else event.forms


def _column_names(events: Sequence[RowEvent], layout: Layout) -> list[str]:
    if layout.schema is not None:
        return list(layout.schema.names)
    names: dict[str, None] = {}
    for event in events:
        names.update(dict.fromkeys(own_forms(event) or event.row))
    if OPERATION_COLUMN in names:
        raise DeserializationError(f"the rows have a column {OPERATION_COLUMN!r}, the name of the operation's column")
    return list(names)


def _key_columns(events: Sequence[RowEvent], layout: Layout, columns: Mapping[str, Column]) -> tuple[str, ...]:
    names = layout.key_columns
    if names is None:
        names = next((tuple(event.key) for event in events if event.key), ())
    return names if all(name in columns for name in names) else ()


def _group(
    events: Sequence[RowEvent],
    rows: Sequence[int],
    forms: Mapping[str, Form] | None,
    names: Sequence[str],
    layout: Layout,
    unavailable: dict[str, np.ndarray],
) -> dict[str, Column]:
    """Return the columns of the events at the places `rows`, which have the same forms."""
    placeholder = Placeholder(layout.hints.placeholder)
    objects = [events[at].row for at in rows]
    numbers = [events[at].number for at in rows]
    if layout.schema is not None:
        _check_names(names, objects[0] if forms is None else forms, numbers[0])
    group = {}
    for name in names:
        values = [row.get(name, msgspec.UNSET) for row in objects]
        for i in placeholder.rows(values):
            event = events[rows[i]]
            old = event.before.get(name) if isinstance(event.before, Mapping) else None
            values[i] = None if placeholder.rows([old]) else old
            if values[i] is None and event.operation != "d":
                unavailable.setdefault(name, np.zeros(len(events), bool))[rows[i]] = True
        target = None if layout.schema is None else layout.schema.field(name).type
        form = (forms.get(name) if forms is not None else None) or layout.hints.types.get(name) or ANY
        if form.kind == "any" and target is None:
            group[name] = _objects(values)
            continue
        plain = [None if value is msgspec.UNSET else value for value in values]
        group[name] = to_column(plain, form, target or default_type(form), layout.hints, name, numbers)
    return group


def _check_names(names: Sequence[str], columns: Iterable[str], number: int) -> None:
    """Raise DeserializationError if the columns of `schema` cannot be meant for the row: a name differs by its case
    alone, or the row has none of them. Other columns that a row lacks are null, as in events from before the column was
    added."""
    by_lower = {name.lower(): name for name in columns}
    has_one = not by_lower
    for name in names:
        other = by_lower.get(name.lower(), name)
        if other != name and name not in by_lower.values():
            raise DeserializationError(
                f"Debezium event {number}: the row has no column {name!r}, but {other!r}", offset=number
            )
        has_one = has_one or name in by_lower.values()
    if not has_one:
        raise DeserializationError(
            f"Debezium event {number}: the row has none of the columns of schema= ({', '.join(names)}), but "
            f"{', '.join(by_lower.values())}",
            offset=number,
        )


def _objects(values: Sequence[Any]) -> np.ndarray:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _joined(parts: Sequence[Column], name: str) -> Column:
    """Return the columns of all groups as one. Raises DeserializationError if their types differ too much."""
    if len(parts) == 1:
        return parts[0]
    arrays = [part for part in parts if isinstance(part, pa.Array)]
    if len(arrays) < len(parts):  # groups without this column, or events without a schema part
        if arrays and all(isinstance(part, pa.Array) or _is_absent(part) for part in parts):
            parts = [p if isinstance(p, pa.Array) else pa.nulls(len(p), arrays[0].type) for p in parts]
            return _joined(parts, name)
        return np.concatenate([_objects(p.to_pylist()) if isinstance(p, pa.Array) else p for p in parts])
    fields = [pa.schema([(name, array.type)]) for array in arrays]
    try:
        unified = pa.unify_schemas(fields, promote_options="permissive").field(name).type
        return pa.concat_arrays([array.cast(unified) for array in arrays])
    except pa.ArrowException as e:
        raise DeserializationError(
            f"column {name!r} has the types {' and '.join(dict.fromkeys(str(a.type) for a in arrays))} in different "
            f"events: name its type with schema= ({e})"
        ) from e


def _is_absent(column: np.ndarray) -> bool:
    return all(value is msgspec.UNSET or value is None for value in column)


def take(column: Column, indexes: np.ndarray) -> Column:
    """Return the rows of a column at `indexes`; null for -1."""
    if isinstance(column, np.ndarray):
        taken = column[indexes]
        taken[indexes < 0] = None
        return taken
    return column.take(pa.array(indexes, pa.int64(), mask=indexes < 0))


class Earlier(NamedTuple):
    """Rows from before some changes. Of rows with the same key the last one counts."""

    rows: pa.Table
    """The rows, with the columns of the changes."""
    is_gone: np.ndarray
    """Mask of the rows that are deletions."""
    unavailable: Mapping[str, np.ndarray]
    """Masks of values that the rows lack, by column."""


def earlier_of(rows: pa.Table, changes: Changes) -> Earlier:
    """Return existing rows, such as those of `read_table(latest=True)`. Raises DeserializationError."""
    lacking = [name for name in changes.columns if name not in rows.column_names]
    if lacking:
        raise DeserializationError(f"the rows of latest= lack the columns {', '.join(lacking)} of the changes")
    return Earlier(rows, np.zeros(rows.num_rows, bool), {})


def fill(changes: Changes, earlier: Earlier | None = None) -> Changes:
    """Return the changes with unavailable values taken from earlier changes of the same key, and from `earlier`."""
    if not changes.unavailable or not changes.key_columns:
        return changes
    before = 0 if earlier is None else earlier.rows.num_rows
    keys = _group_numbers(changes, earlier)
    count = len(keys)
    # groups one after the other, each in the order of its changes
    order = np.argsort(keys, kind="stable")
    starts = np.r_[True, keys[order][1:] != keys[order][:-1]]
    none = np.zeros(before, bool)
    ends_search = np.r_[none if earlier is None else earlier.is_gone, changes.is_deletion]
    columns, unavailable = dict(changes.columns), {}
    for name, mask in changes.unavailable.items():
        lacks = np.r_[none if earlier is None else earlier.unavailable.get(name, none), mask]
        has_value = ~lacks & ~ends_search
        marks = has_value | ends_search
        last = np.maximum.accumulate(np.where(marks[order] | starts, np.arange(count), 0))
        source = np.empty(count, np.int64)
        source[order] = np.where(has_value[order][last], order[last], -1)
        source = np.where(lacks, source, np.arange(count))
        columns[name] = take(_after(earlier, name, columns[name]), source[before:])
        unfilled = mask & (source[before:] < 0)
        if unfilled.any():
            unavailable[name] = unfilled
    return changes._replace(columns=columns, unavailable=unavailable)


def _group_numbers(changes: Changes, earlier: Earlier | None) -> np.ndarray:
    """Return a number for each row, earlier rows first, that is equal for equal keys with no truncation in between. A
    row without a key has a number of its own."""
    before = 0 if earlier is None else earlier.rows.num_rows
    numbers = np.r_[np.zeros(before, np.int64), changes.epochs]
    has_key = np.zeros(len(numbers), bool)
    for name in changes.key_columns:
        column = _after(earlier, name, changes.columns[name])
        array = _inferred(name, column.tolist()) if isinstance(column, np.ndarray) else column
        codes = canonical_key(array).dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
        has_key |= codes >= 0
        _, numbers = np.unique(numbers * (int(codes.max(initial=0)) + 2) + codes + 1, return_inverse=True)
    return np.where(has_key, numbers, -1 - np.arange(len(numbers)))


def _after(earlier: Earlier | None, name: str, column: Column) -> Column:
    """Return a column of the earlier rows and of the changes."""
    if earlier is None:
        return column
    earlier_column = earlier.rows.column(name).combine_chunks()
    first = pa.concat_arrays(earlier_column.chunks) if isinstance(earlier_column, pa.ChunkedArray) else earlier_column
    if isinstance(column, np.ndarray):
        return np.concatenate([_objects(first.to_pylist()), column])
    return pa.concat_arrays([first.cast(column.type), column])


class EarlierRows:
    """The newest row of each key in the changes so far, for a reader that takes them batch by batch."""

    def __init__(self, bytes_max: int = EARLIER_BYTES_MAX) -> None:
        """Create the collection. With more than `bytes_max` the keys that changed longest ago are dropped."""
        self._bytes_max = bytes_max
        self._tables: list[pa.Table] = []
        self._folded_rows = 0

    def add(self, changes: Changes) -> None:
        """Add the changes of a batch. A truncation removes the rows from before."""
        if not changes.key_columns or not len(changes.events):
            return
        last = int(changes.epochs[-1])
        if last:
            self._tables = []
        marks = {_MARK + name: pa.array(mask) for name, mask in changes.unavailable.items()}
        table = pa.table({**changes.columns, **marks, _MARK: pa.array(changes.is_deletion)})
        self._tables.append(table.filter(pa.array(changes.epochs == last)) if last else table)
        if sum(t.num_rows for t in self._tables) >= 2 * max(self._folded_rows, FOLD_ROWS):
            self._fold(changes.key_columns)

    def clear(self) -> None:
        """Drop all rows, after a truncation."""
        self._tables = []

    def rows(self) -> Earlier | None:
        """Return the rows; None if there is none."""
        if not self._tables:
            return None
        table = pa.concat_tables(self._tables, promote_options="default")
        names = [name for name in table.column_names if name.startswith(_MARK)]
        masks = {name[1:]: table.column(name).fill_null(False).to_numpy() for name in names}
        return Earlier(table.drop_columns(names), masks.pop(""), masks)

    def _fold(self, key_columns: Sequence[str]) -> None:
        table = newest_per_key(pa.concat_tables(self._tables, promote_options="default").combine_chunks(), key_columns)
        if table.nbytes > self._bytes_max:
            table = table.slice(table.num_rows // 2)
        self._tables, self._folded_rows = [table], table.num_rows


def require_available(changes: Changes) -> None:
    """Raise DeserializationError for the first change whose value is unavailable."""
    for name, mask in changes.unavailable.items():
        at = int(np.flatnonzero(mask)[0])
        key = {k: changes.columns[k][at] for k in changes.key_columns}
        shown = {k: v.as_py() if isinstance(v, pa.Scalar) else v for k, v in key.items()}
        raise DeserializationError(
            f"Debezium event {changes.events[at]}: the value of column {name!r} is unavailable, the event has only Debezium's "
            f"placeholder, and no earlier change of the row has it (key {shown or 'not known'}). Set REPLICA IDENTITY "
            "FULL for the table in the database; or pass the keys of the records with keys=, and the newest rows with "
            "latest=",
            offset=int(changes.events[at]),
        )


def to_table(changes: Changes) -> pa.Table:
    """Return the changes as a table, with the column `_op`. Raises DeserializationError."""
    arrays = {}
    for name, column in changes.columns.items():
        arrays[name] = _inferred(name, column.tolist()) if isinstance(column, np.ndarray) else column
    arrays[OPERATION_COLUMN] = pa.array(changes.operations, pa.string())
    return pa.table(arrays)


def _inferred(name: str, values: Iterable[Any]) -> Any:
    plain = [None if value is msgspec.UNSET else value for value in values]
    kinds = set(map(type, plain)) - {type(None)}
    try:
        if len(kinds) > 1 or dict in kinds:
            raise TypeError(f"JSON has {', '.join(sorted(k.__name__ for k in kinds))}")
        return pa.array(plain)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as e:
        raise DeserializationError(
            f"column {name!r} has no type: the events have no schema part, and {e}; name the types with schema="
        ) from e


def to_dicts(changes: Changes) -> list[dict[str, Any]]:
    """Return the changes as dicts, with the field `_op`. Fields that an event without a schema part lacks are left
    out."""
    names = [*changes.columns, OPERATION_COLUMN]
    columns = [c.tolist() if isinstance(c, np.ndarray) else c.to_pylist() for c in changes.columns.values()]
    rows = zip(*columns, changes.operations, strict=True)
    return [{n: v for n, v in zip(names, row, strict=True) if v is not msgspec.UNSET} for row in rows]
