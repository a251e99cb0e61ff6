"""JSON objects, the values of a source's or client's records, as rows of a schema.

`sparklog.format.json_exact` has the rules for values, which are those of all doors for text; bytes are base64. A field
that is no column, or a value that does not fit its column, is an error of the record.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.errors import MessageTooLargeError
from sparklog.format.body_layout import INFLATED_BYTES_MAX
from sparklog.format.json_exact import base64_as_bytes
from sparklog.format.json_rows import SLICE_ROWS, JsonRows, JsonRowsError
from sparklog.format.json_values import base64_text, json_values, row_objects
from sparklog.kafka.records.errors import RECORDS_NAMED_MAX, InvalidRecordError
from sparklog.settings import MIB

_ENCODER = msgspec.json.Encoder(decimal_format="string")
_CONTAINER_BYTES, _VALUE_BYTES = 160, 120
SLICE_BYTES = 32 * MIB
"""Memory for the Python objects from which a slice of rows is ended, in bytes."""
RECORD_BYTES_MAX = 256 * MIB
"""Largest memory for the Python objects of one record, in bytes."""


def parse_rows(values: Any, schema: pa.Schema, topic: str, rows_bytes_max: int = INFLATED_BYTES_MAX) -> pa.RecordBatch:
    """Parse JSON objects into rows of the schema. `values`: array of binary. `topic`: name of the topic, for errors.
    Raises InvalidRecordError: Records do not fit the topic. The messages name the records and fields;
    MessageTooLargeError: The rows take more than `rows_bytes_max`. A short object can be a long row."""
    parts: list[pa.RecordBatch] = []
    refused: dict[int, str] = {}
    size = 0
    for first, rows in _slices(values, schema):
        try:
            parts.append(_parse_slice(rows, first, schema, topic))
        except InvalidRecordError as e:
            refused |= e.records
            if len(refused) >= RECORDS_NAMED_MAX:
                break
            continue
        size += parts[-1].nbytes
        if size > rows_bytes_max:
            raise MessageTooLargeError(
                f"the rows of the batch take more than {rows_bytes_max} bytes: send smaller batches"
            )
    if refused:
        raise InvalidRecordError(dict(islice(refused.items(), RECORDS_NAMED_MAX)))
    if len(parts) == 1:
        return parts[0]
    return pa.Table.from_batches(parts, schema).combine_chunks().to_batches()[0]


def write_rows(rows: pa.RecordBatch) -> Any:
    """Return rows as JSON objects, a binary array."""
    columns = [json_values(column, base64_text) for column in rows.columns]
    return pa.array(list(map(_ENCODER.encode, row_objects(rows.schema.names, columns))), pa.binary())


def _slices(values: Any, schema: pa.Schema) -> Iterator[tuple[int, list[bytes | None]]]:
    """Yield slices of the values with the index of their first record. Raises InvalidRecordError."""
    per_container, per_value = _object_bytes(schema)
    first = 0
    for start in range(0, len(values), SLICE_ROWS):
        part = values.slice(start, SLICE_ROWS)
        if (pc.sum(pc.binary_length(part)).as_py() or 0) * max(per_container, 1) <= SLICE_BYTES:  # even if all are "["
            yield start, part.to_pylist()
            first = start + len(part)
            continue
        rows: list[bytes | None] = []
        size = 0
        for scalar in part:
            value = scalar.as_py()
            size += len(value or b"")
            if value is not None and per_value:
                weight = per_container * (value.count(b"[") + value.count(b"{")) + per_value * value.count(b",")
                if weight > RECORD_BYTES_MAX:
                    index = first + len(rows)
                    raise InvalidRecordError({index: f"record {index} has too many elements: send smaller records"})
                size += weight
            rows.append(value)
            if size > SLICE_BYTES:
                yield first, rows
                first, rows, size = first + len(rows), [], 0
        if rows:
            yield first, rows
            first += len(rows)


def _object_bytes(schema: pa.Schema) -> tuple[int, int]:
    """Return the memory for the Python objects of an array or object inside a record, and of a value inside it; 0 for
    a schema without nested columns, whose records have one value for each column."""
    nested = [f.type for f in schema if pa.types.is_nested(f.type)]
    return (_CONTAINER_BYTES + _VALUE_BYTES * max(map(_fields_inside, nested)), _VALUE_BYTES) if nested else (0, 0)


def _fields_inside(t: Any) -> int:
    if not pa.types.is_nested(t):
        return 0
    own = t.num_fields if pa.types.is_struct(t) else 0
    return max(own, *(_fields_inside(t.field(i).type) for i in range(t.num_fields)), 0)


def _parse_slice(values: list[bytes | None], first: int, schema: pa.Schema, topic: str) -> pa.RecordBatch:
    """Parse some records; `first` is the index of the first one. Raises InvalidRecordError."""
    refused = {
        index: f"record {index} has no value: topic {topic!r} takes JSON objects"
        for index, value in enumerate(values, first)
        if value is None
    }
    try:
        rows = JsonRows(schema, base64_as_bytes).read([b"{}" if value is None else value for value in values])
    except JsonRowsError as e:
        for index, reason in e.rows.items():
            place = first + index
            refused.setdefault(place, f"record {place} does not fit the topic {topic!r}: {reason}")
    if refused:
        raise InvalidRecordError(dict(sorted(refused.items())[:RECORDS_NAMED_MAX]))
    return rows
