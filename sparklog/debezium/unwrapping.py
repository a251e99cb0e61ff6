"""Unwrapping of a topic's events, batch by batch: the columns that the events have, and the changes of a partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from sparklog.debezium.changes import Changes, EarlierRows, Layout, changes_of, earlier_of, fill, own_forms
from sparklog.debezium.events import EventReader, RowEvent
from sparklog.debezium.forms import Form, default_type
from sparklog.format.schema_evolution import can_widen


class Unwrapping:
    """Unwrapping of one partition's records, in their order."""

    def __init__(self, reader: EventReader) -> None:
        self._reader = reader
        self._earlier = EarlierRows()

    def read(self, records: Iterable[tuple[Any, Any]], numbers: Iterable[int]) -> list[RowEvent]:
        """Return the events of the next records, which are keys and values; `numbers` are the records' numbers. Raises
        DeserializationError."""
        return self._reader.read(records, numbers=numbers)

    def changes(
        self, events: Sequence[RowEvent], layout: Layout, newest: Callable[[Changes], pa.Table] | None = None
    ) -> Changes:
        """Return the changes of the events that `read` has returned last. Unavailable values are taken from earlier
        changes, then from `newest`: the newest rows of the changes' keys. Raises DeserializationError."""
        changes = changes_of(events, layout)
        changes = fill(changes, self._earlier.rows() if changes.unavailable else None)
        if changes.unavailable and newest is not None:
            changes = fill(changes, earlier_of(newest(changes), changes))
        if self._reader.truncations:
            self._earlier.clear()
        self._earlier.add(changes)
        return changes

    def forget(self) -> None:
        """Forget the earlier changes, whose columns have other types than the next ones."""
        self._earlier.clear()


class EventColumns(NamedTuple):
    """The columns of events."""

    schema: pa.Schema
    """The columns whose types a schema part names, those of the key first."""
    key_columns: tuple[str, ...]
    """Columns of the records' keys; empty if no record has one."""
    untyped: Mapping[str, int]
    """Names of the columns in events without a schema part, with the number of the first such event."""


def columns_of(events: Iterable[RowEvent]) -> EventColumns:
    """Return the columns of the events. Of two types for a column the wider one counts."""
    types: dict[str, Any] = {}
    untyped: dict[str, int] = {}
    key_columns: tuple[str, ...] = ()
    seen: set[tuple[int, int]] = set()
    for event in events:
        key_columns = key_columns or tuple(event.key or ())
        if own_forms(event) is None:
            untyped.update((name, event.number) for name in event.row if name not in untyped)
        if (id(event.key_forms), id(event.forms)) in seen:
            continue
        seen.add((id(event.key_forms), id(event.forms)))
        for name, t in _types({**(event.key_forms or {}), **(event.forms or {})}):
            if name not in types or can_widen(types[name], t):
                types[name] = t
    ordered = [name for name in key_columns if name in types]
    ordered += [name for name in types if name not in ordered]
    schema = pa.schema([(name, types[name]) for name in ordered])
    return EventColumns(schema, key_columns, {name: n for name, n in untyped.items() if name not in types})


def _types(forms: Mapping[str, Form]) -> Iterator[tuple[str, Any]]:
    return ((name, default_type(form)) for name, form in forms.items())
