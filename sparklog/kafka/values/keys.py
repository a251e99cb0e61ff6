"""The keys of records as the key columns of their rows.

| record | row |
|---|---|
| the key has the key columns, the value lacks them | the key columns are those of the key |
| the value has a key column with another value than the key | refused |
| no value, but a key | all columns outside the key are null: the row deletes its key |
| no key | the key columns are those of the value |
| a row without a key in a compacted topic | refused |

A topic without `kafka.key.format` is older than the rule: a key that begins with `{` is a JSON object, any other key is
the text of the only key column, or is ignored if that is no text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.format.canonical_json import canonical_keys, key_slices
from sparklog.format.key_equality import canonical_key
from sparklog.format.key_format import JSON, SCHEMA_FORMATS, TEXT, default_key_format
from sparklog.kafka.records.errors import RECORDS_NAMED_MAX, InvalidRecordError, keyless, places
from sparklog.kafka.values.schemas import key_subject

SHOWN_BYTES_MAX = 200
"""Largest number of bytes of a key that an error shows."""
Parse = Callable[[Any, pa.Schema, str], pa.RecordBatch]
"""Function that parses values into rows of a schema; the text is the topic's name. Raises InvalidRecordError."""


class RowForm(Protocol):
    """The properties of a typed topic that decide the row of a record."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> pa.Schema: ...

    @property
    def key_columns(self) -> tuple[str, ...]: ...

    @property
    def key_format(self) -> str: ...

    @property
    def key_schema(self) -> str: ...

    @property
    def is_compacted(self) -> bool: ...


def values_to_parse(keys: Any, values: Any, topic: RowForm) -> Any:
    """Return the values with an empty object for each tombstone: a null value with a key. Raises InvalidRecordError:
    The topic has key columns only, so that no row deletes a key."""
    if not values.null_count or not topic.key_columns:
        return values
    tombstones = pc.and_(values.is_null(), keys.is_valid())
    if len(topic.key_columns) == len(topic.schema):
        refused = places(tombstones)
        if refused:
            raise InvalidRecordError(
                {
                    i: f"record {i} has no value: topic {topic.name!r} has key columns only, and no row deletes a key"
                    for i in refused
                }
            )
    return pc.if_else(tombstones, pa.scalar(b"{}", pa.binary()), values)  # a scalar imports pandas


def with_keys(rows: pa.RecordBatch, keys: Any, topic: RowForm, parse: Parse) -> pa.RecordBatch:
    """Return the rows with the key columns of the records' keys. `parse`: function that parses keys that are JSON
    objects, or have schemas. Raises InvalidRecordError: A key does not fit the topic or contradicts its value, or a
    compacted topic gets a row without a key."""
    if not topic.key_columns:
        return rows
    if topic.key_format == JSON and keys.null_count < len(keys):
        keys = _to_parse(keys, [rows.column(name) for name in topic.key_columns], topic)
    if keys.null_count < len(keys):
        rows = _filled(rows, keys, topic, parse)
    columns = [rows.column(name) for name in topic.key_columns]
    if topic.is_compacted and all(column.null_count for column in columns):
        nulls = [np.asarray(column.is_null().to_numpy(zero_copy_only=False)) for column in columns]
        missing = np.logical_and.reduce(nulls)
        if missing.any():
            raise keyless(topic.name, np.flatnonzero(missing)[:RECORDS_NAMED_MAX].tolist())
    return rows


def _to_parse(keys: Any, columns: list[Any], topic: RowForm) -> Any:
    """Return the keys without those that are the canonical keys of their values: these need not be parsed, which takes
    as long as the values."""
    masks = []
    at = 0
    for own in key_slices(columns, topic.key_columns):
        masks.append(pc.equal(own.cast(pa.binary()), keys.slice(at, len(own))))
        at += len(own)
    return pc.if_else(pc.fill_null(pa.concat_arrays(masks), False), pa.scalar(None, pa.binary()), keys)


def _filled(rows: pa.RecordBatch, keys: Any, topic: RowForm, parse: Parse) -> pa.RecordBatch:
    """Return the rows with the columns of their keys. Raises InvalidRecordError."""
    refused: dict[int, str] = {}
    for indices, columns in _key_columns(keys, topic, parse):
        for name, of_keys in zip(topic.key_columns, columns, strict=True):
            at = rows.schema.get_field_index(name)
            of_values = rows.column(at)
            own = of_values if len(indices) == len(of_values) else of_values.take(indices)
            if own.null_count < len(own):
                refused = {**_contradictions(name, of_keys, own, indices, topic), **refused}
            if own.null_count:
                whole = of_keys if len(indices) == len(of_values) else _spread(of_keys, indices, len(of_values))
                rows = rows.set_column(at, rows.schema.field(at), pc.coalesce(of_values, whole))
    if refused:
        raise InvalidRecordError({i: refused[i] for i in sorted(refused)[:RECORDS_NAMED_MAX]})
    return rows


def _contradictions(name: str, of_keys: Any, of_values: Any, indices: Any, topic: RowForm) -> dict[int, str]:
    """Return the errors of the records whose value has another content in a key column than their key."""
    same = pc.fill_null(pc.equal(*map(_comparable, (of_values, of_keys))), False)
    refused = {}
    for i in places(pc.and_not(of_values.is_valid(), same)):
        record = indices[i].as_py()
        key, value = (
            shown_key(canonical_keys([column.slice(i, 1)], [name])[0].as_py()) for column in (of_keys, of_values)
        )
        refused[record] = f"record {record} has {key} in its key, but {value} in its value; {_form_of(topic)}"
    return refused


def _comparable(column: Any) -> Any:
    """Return the column in a form in which equal keys are equal: numbers by their bits, because NaN is one key."""
    if not pa.types.is_floating(column.type):
        return column
    return canonical_key(column).view(pa.int64() if column.type.bit_width == 64 else pa.int32())


def _spread(column: Any, indices: Any, rows: int) -> Any:
    """Return the values at the `indices` of that many rows; the others are null."""
    at = np.full(rows, -1, np.int64)
    at[indices.to_numpy()] = np.arange(len(indices))
    taken = pa.Array.from_buffers(pa.int64(), rows, [None, pa.py_buffer(at)])
    return column.take(pc.if_else(pc.less(taken, 0), pa.scalar(None, pa.int64()), taken))


def _key_columns(keys: Any, topic: RowForm, parse: Parse) -> Iterator[tuple[Any, list[Any]]]:
    """Yield the indices of records whose key has columns, with the columns. Raises InvalidRecordError."""
    if topic.key_format:
        is_object = keys.is_valid() if topic.key_format in (JSON, *SCHEMA_FORMATS) else None
        is_text = keys.is_valid() if topic.key_format == TEXT else None
    else:
        is_object = pc.fill_null(pc.match_substring_regex(keys, r"^\s*\{"), False)
        has_texts = default_key_format(topic.schema, topic.key_columns) == TEXT
        is_text = pc.and_not(keys.is_valid(), is_object) if has_texts else None
    for mask, columns_of in ((is_object, partial(_columns_of_objects, parse)), (is_text, _columns_of_texts)):
        indices = pa.array([], pa.uint64()) if mask is None else pc.indices_nonzero(mask)
        if len(indices):
            yield indices, columns_of(keys if len(indices) == len(keys) else keys.take(indices), indices, topic)


def _columns_of_texts(keys: Any, indices: Any, topic: RowForm) -> list[Any]:
    try:
        return [keys.cast(pa.string())]
    except pa.ArrowInvalid:
        refused = {}
        for i, key in zip(indices.to_pylist(), keys.to_pylist(), strict=True):
            try:
                key.decode()
            except UnicodeDecodeError as e:
                refused[i] = f"record {i} has a key that is no text in UTF-8: {e}; {_form_of(topic)}"
                if len(refused) == RECORDS_NAMED_MAX:
                    break
        raise InvalidRecordError(refused) from None


def _columns_of_objects(parse: Parse, keys: Any, indices: Any, topic: RowForm) -> list[Any]:
    try:
        rows = parse(keys, _schema_of_keys(topic.schema, topic.key_columns), topic.name)
    except InvalidRecordError as e:
        refused = {}
        for i, message in e.records.items():
            record = indices[i].as_py()
            reason = message.removeprefix(f"record {i}").lstrip(": ").removeprefix("its key ")
            refused[record] = f"record {record}: its key {reason}; {_form_of(topic)}"
        raise InvalidRecordError(refused) from None
    return [rows.column(name) for name in topic.key_columns]


@lru_cache(maxsize=1_000)
def _schema_of_keys(schema: pa.Schema, key_columns: tuple[str, ...]) -> pa.Schema:
    return pa.schema([schema.field(column) for column in key_columns])


def shown_key(key: bytes | None) -> str:
    """Return a key for an error message."""
    if key is None:
        return "null"
    text = key[:SHOWN_BYTES_MAX].decode(errors="replace")
    return text + "…" if len(key) > SHOWN_BYTES_MAX else text


def _form_of(topic: RowForm) -> str:
    if topic.key_format == TEXT:
        return f"kafka.key.format=text: the key is the text of the column {topic.key_columns[0]!r}"
    if topic.key_format in SCHEMA_FORMATS:
        return f"kafka.key.format={topic.key_format}: the key has a schema of the subject {key_subject(topic.name)!r}"
    example = ",".join(f'"{name}":…' for name in topic.key_columns)
    return f"the key is a JSON object in canonical form, {{{example:.{SHOWN_BYTES_MAX}}}}"
