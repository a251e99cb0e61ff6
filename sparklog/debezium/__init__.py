"""Converts Debezium's change events to rows of a keyed topic.

`forms` knows how the events write values, `values` converts them, `events` reads the records, `changes` makes columns
of them and finds values that the database did not send, and `frame` does the same in Spark's tasks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from sparklog.debezium.changes import (
    OPERATION_COLUMN,
    Changes,
    Layout,
    changes_of,
    earlier_of,
    fill,
    require_available,
    to_dicts,
    to_table,
)
from sparklog.debezium.events import EventReader
from sparklog.debezium.forms import hints_of
from sparklog.errors import InvalidConfigError
from sparklog.format.ddl import parse_ddl

__all__ = ["OPERATION_COLUMN", "unwrap_debezium"]


def unwrap_debezium(
    envelopes: Any,
    schema: str | pa.Schema | None = None,
    *,
    column: str = "value",
    key_column: str | None = "key",
    keys: Iterable[Any] | None = None,
    key_columns: Sequence[str] | None = None,
    latest: Any = None,
    types: Mapping[str, str] | None = None,
    connector: Mapping[str, Any] | None = None,
    truncate: str = "error",
) -> Any:
    """Turn Debezium's change events into rows: the columns of the changed row, and `_op`.

    An event has the fields `before`, `after` and `op`, either at the top or inside a field `payload`. The row is the
    value of `after`; for a deletion ("d") it is the value of `before`, else the columns of the record's key. The
    event's schema part says how a value is written; without one, the types of `schema`, `types` and `connector` do.
    Every value is converted exactly, or the event is refused.

    Where the event has only the placeholder of an unavailable value, the row gets the value from `before`, from an
    earlier event of the key, or from `latest`. Messages, heartbeats, and events of transactions are left out. So are
    tombstones, except one with a key that no deletion precedes: it deletes the key.

    Args:
        envelopes: A Spark DataFrame or a `pyarrow.Table` whose `column` has the events as JSON; the path of a file with
            an event in each line; or an iterable of events, each as JSON text, bytes, a dict, or a record with `key`
            and `value`. The events of a key are in order, in a DataFrame within one partition.
        schema: Columns of the changed row, as DDL text or an Arrow schema. Other columns are left out. None: the
            columns and types of the events. A DataFrame needs it.
        column: Name of the DataFrame's or table's column with the events.
        key_column: Name of the column with the records' keys. A table without it has no keys.
        keys: Keys of the records of an iterable, as JSON. None: those of the records, if they have any.
        key_columns: Columns of the row's key. None: those of the records' keys.
        latest: The newest row of each key before the events, for unavailable values: a `pyarrow.Table` as from
            `read_table(latest=True)`; for a DataFrame a DataFrame as from `sparklog.latest`, with `key_columns`.
        types: Debezium's name of the type by column, such as `io.debezium.time.MicroTimestamp`, for events without a
            schema part; also "base64", "base64-url-safe" or "hex" for binary values, "digits" for decimals in text.
        connector: Settings of the connector: `decimal.handling.mode`, `time.precision.mode`, `binary.handling.mode`
            for events without a schema part, and `unavailable.value.placeholder`. Other settings have no effect.
        truncate: "error" refuses truncations; "skip" leaves them out.

    Returns:
        A DataFrame for a DataFrame, a table for a table, else a list of dicts for `Producer.send_batch`.

    Raises:
        DeserializationError: A record is not an event; a value does not fit its column, or nothing says how it is
            written; a value is unavailable; a deletion has neither a row nor a key; or a table was truncated. In a
            DataFrame the error ends the query.
        InvalidConfigError: `types`, `connector` or `truncate` has a value that is not allowed.
        InvalidTopicError: `schema` is no DDL.
        TypeError: `schema` is missing for a DataFrame, or `key_columns` with `latest`.

    Example:
        ```python
        producer.send_batch("accounts", sparklog.unwrap_debezium(events, "id BIGINT, balance DECIMAL(10,2)"))
        ```
    """
    if truncate not in ("error", "skip"):
        raise InvalidConfigError(f"truncate = {truncate!r}: use error or skip")
    columns = parse_ddl(schema) if isinstance(schema, str) else schema
    if columns is not None and OPERATION_COLUMN in columns.names:
        columns = columns.remove(columns.get_field_index(OPERATION_COLUMN))
    layout = Layout(columns, hints_of(connector, types), None if key_columns is None else tuple(key_columns))
    if hasattr(envelopes, "selectExpr"):
        from sparklog.debezium.frame import unwrap_frame

        if schema is None:
            raise TypeError("unwrap_debezium of a DataFrame needs schema=: the columns of the changed row, as DDL text")
        if latest is not None and not key_columns:
            raise TypeError("latest= of a DataFrame needs key_columns=: the columns by which it is joined")
        return unwrap_frame(envelopes, layout, column, key_column, latest, truncate)
    is_table = isinstance(envelopes, pa.Table | pa.RecordBatch)
    records = _table_records(envelopes, column, key_column) if is_table else _records(envelopes, keys)
    # without names of types numbers stay as JSON has them
    is_exact = columns is not None or is_table
    changes = _changes(records, layout, latest, truncate, is_exact=is_exact)
    return to_table(changes) if is_table else to_dicts(changes)


def _changes(
    records: Iterable[tuple[Any, Any]], layout: Layout, latest: pa.Table | None, truncate: str, *, is_exact: bool
) -> Changes:
    """Return the changes of records, without unavailable values. Raises DeserializationError."""
    changes = changes_of(EventReader(truncate=truncate, is_exact=is_exact).read(records), layout)
    if changes.unavailable:
        changes = fill(changes, None if latest is None else earlier_of(latest, changes))
        require_available(changes)
    return changes


def _table_records(table: Any, column: str, key_column: str | None) -> Iterator[tuple[Any, Any]]:
    values = table.column(column).to_pylist()
    has_keys = key_column is not None and key_column in table.schema.names
    return zip(table.column(key_column).to_pylist() if has_keys else [None] * len(values), values, strict=True)


def _records(envelopes: Any, keys: Iterable[Any] | None) -> Iterator[tuple[Any, Any]]:
    """Return the keys and values of a file or an iterable."""
    if isinstance(envelopes, str | os.PathLike):
        if isinstance(envelopes, str) and envelopes.lstrip().startswith("{"):
            raise TypeError("unwrap_debezium takes a list of events, or the path of a file, not the text of one event")
        envelopes = [line for line in Path(envelopes).read_bytes().split(b"\n") if line.strip()]
    if keys is not None:
        return ((key, _value(event)) for key, event in zip(keys, envelopes, strict=True))
    return ((_key(event), _value(event)) for event in envelopes)


def _key(event: Any) -> Any:
    method = None if isinstance(event, Mapping) else getattr(event, "key", None)
    return method() if callable(method) else method


def _value(event: Any) -> Any:
    if isinstance(event, Mapping) or not hasattr(event, "value"):
        return event
    return event.value() if callable(event.value) else event.value
