"""Records in Confluent's framing as rows of a schema.

1. `framing` takes the ids of the schemas off.
2. The records of each id are decoded at once: one `take` brings them together, and one brings the rows back in order.
3. The schema of the id is the writer's; the newest one of the topic's subject is the reader's.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.errors import SchemaMismatchError
from sparklog.format.schema import null_column
from sparklog.kafka.records.errors import RECORDS_NAMED_MAX, InvalidRecordError
from sparklog.kafka.records.varints import Array
from sparklog.kafka.schemas.avro import AvroSchema
from sparklog.kafka.schemas.json_schema import JsonSchema
from sparklog.kafka.schemas.protobuf import ProtobufSchema
from sparklog.kafka.schemas.schema_types import Parsed
from sparklog.kafka.values.avro_bytes import Space
from sparklog.kafka.values.avro_columns import check_record, columns_of, fields_of_columns, resolve
from sparklog.kafka.values.avro_records import read_avro
from sparklog.kafka.values.framing import split_frames
from sparklog.kafka.values.json_records import parse_rows
from sparklog.kafka.values.keys import RowForm, values_to_parse
from sparklog.kafka.values.protobuf_records import (
    check_message,
    read_protobuf,
    type_of_rows,
)
from sparklog.kafka.values.schemas import Schemas, SchemasNotLoadedError, value_subject

SCHEMAS_PER_BATCH_MAX = 100
AVRO, PROTOBUF, JSON_SCHEMA = "avro", "protobuf", "json-schema"
FRAMED_FORMATS = (AVRO, PROTOBUF, JSON_SCHEMA)
Loaded = Parsed | SchemaMismatchError | None
"""A schema; the error of one that sparklog cannot read; None if the registry has none."""


class Rows(NamedTuple):
    """Decoded rows."""

    batch: pa.RecordBatch
    dropped: Mapping[str, int]
    """Number of records with a field that the newest schema does not have, by the field's path."""


class Target(NamedTuple):
    """The rows into which records are decoded."""

    topic: str
    """Name of the topic, for errors."""
    form: str
    """One of FRAMED_FORMATS."""
    columns: pa.Schema
    subject: str
    """Subject of the reader's schema."""
    part: str = "value"
    """The part of the records that is decoded: value or key."""


def columns_of_schema(schema: Parsed, present: Collection[str] = ()) -> pa.Schema:
    """Return the columns of an Avro schema's records, or of a message of a Protobuf schema. `present`: names of the
    topic's columns, which a renamed field of Avro keeps, and which choose the message. Raises SchemaMismatchError, with
    the path, if there are none."""
    if isinstance(schema, AvroSchema):
        columns = columns_of(schema.type)
        names = {field.name: name for name, field in fields_of_columns(schema.type, present).items()}
        return pa.schema([column.with_name(names.get(column.name, column.name)) for column in columns])
    if isinstance(schema, ProtobufSchema):
        return type_of_rows(schema, present).columns
    raise SchemaMismatchError("a JSON Schema has no columns: create the topic with columns")


def check_columns(schema: Parsed, columns: pa.Schema) -> None:
    """Raise SchemaMismatchError, with the path, if records of a schema cannot be rows of the columns."""
    if isinstance(schema, AvroSchema):
        check_record(schema.type, columns)
    elif isinstance(schema, ProtobufSchema):
        check_message(schema, columns)


def read_framed(values: Any, is_empty: Array, target: Target, schemas: Schemas, rows_bytes_max: int) -> Rows:
    """Decode values. `values`: array of binary. `is_empty`: True for each record without a value whose row has nulls.
    Raises InvalidRecordError; MessageTooLargeError; SchemasNotLoadedError."""
    frames = split_frames(values, target.part)
    refused = {i: f"record {i}: {reason}" for i, reason in frames.refused.items()}
    for i in np.flatnonzero((frames.ids < 0) & ~is_empty)[:RECORDS_NAMED_MAX].tolist():
        refused.setdefault(i, f"record {i} has no {target.part}: topic {target.topic!r} takes {target.form}")
    ids = np.unique(frames.ids[frames.ids >= 0]).tolist()
    if len(ids) > SCHEMAS_PER_BATCH_MAX:
        reason = f"the batch has more than {SCHEMAS_PER_BATCH_MAX} schema ids: send smaller batches"
        raise InvalidRecordError({i: f"record {i}: {reason}" for i in _beyond_first_ids(frames.ids)})
    writers, reader = _load(ids, target.subject, schemas)
    groups: list[tuple[Array, list[Any]]] = []
    dropped: dict[str, int] = {}
    space = Space(rows_bytes_max)
    for schema_id, writer in writers.items():
        places = np.flatnonzero(frames.ids == schema_id)
        payloads = frames.payloads if len(places) == len(values) else frames.payloads.take(pa.array(places))
        try:
            columns, faults, lost = _decode(payloads, schema_id, writer, reader, target, space)
        except SchemaMismatchError as e:
            columns, faults, lost = [], dict.fromkeys(range(min(len(places), RECORDS_NAMED_MAX)), str(e)), ()
        dropped.update({path: dropped.get(path, 0) + len(places) for path in lost})
        groups.append((places, columns))
        for row, reason in faults.items():
            place = int(places[row])
            refused[place] = f"record {place} does not fit the topic {target.topic!r} (schema {schema_id}): {reason}"
    if refused:
        raise InvalidRecordError(dict(islice(sorted(refused.items()), RECORDS_NAMED_MAX)))
    return Rows(_in_order(groups, len(values), target.columns), dropped)


def _beyond_first_ids(ids: Array) -> list[int]:
    """Return the indices of the first records whose ids are not among the first SCHEMAS_PER_BATCH_MAX of a batch."""
    unique, first = np.unique(np.where(ids >= 0, ids, -1), return_index=True)
    in_order = unique[np.argsort(first)]
    taken = in_order[in_order >= 0][:SCHEMAS_PER_BATCH_MAX]
    beyond: list[int] = np.flatnonzero((ids >= 0) & ~np.isin(ids, taken))[:RECORDS_NAMED_MAX].tolist()
    return beyond


def rows_of_framed(
    keys: Any, values: Any, topic: RowForm, form: str, schemas: Schemas, rows_bytes_max: int
) -> pa.RecordBatch:
    """Return the rows of the values of records, before their keys fill columns. `form`: one of FRAMED_FORMATS. Raises
    as `read_framed`."""
    is_tombstone = np.asarray(pc.and_(values.is_null(), values_to_parse(keys, values, topic).is_valid()))
    target = Target(topic.name, form, topic.schema, value_subject(topic.name))
    rows = read_framed(values, is_tombstone, target, schemas, rows_bytes_max)
    if rows.dropped:
        schemas.note_dropped(topic.name, rows.dropped)
    return rows.batch


def _load(ids: list[int], subject: str, schemas: Schemas) -> tuple[dict[int, Loaded], Loaded]:
    """Return the schemas of the ids, and the reader's. Raises SchemasNotLoadedError with all that are missing."""
    writers: dict[int, Loaded] = {}
    missing: set[int] = set()
    for schema_id in ids:
        try:
            writers[schema_id] = schemas.schema_of(schema_id)
        except SchemasNotLoadedError as e:
            missing |= e.ids
        except SchemaMismatchError as e:
            writers[schema_id] = e
    try:
        newest = schemas.newest(subject)
        reader: Loaded = None if newest is None else newest[1]
    except SchemasNotLoadedError as e:
        raise SchemasNotLoadedError(missing | e.ids, e.subjects) from None
    except SchemaMismatchError as e:
        reader = e
    if missing:
        raise SchemasNotLoadedError(missing)
    return writers, reader


def _decode(
    payloads: Any, schema_id: int, writer: Loaded, reader: Loaded, target: Target, space: Space
) -> tuple[list[Any], dict[int, str], tuple[str, ...]]:
    """Return columns, reasons by index, and the paths of dropped fields. Raises SchemaMismatchError if no record of the
    writer's schema fits; MessageTooLargeError."""
    if writer is None:
        raise SchemaMismatchError("the registry has no schema of this id: register it, or correct the id")
    for one in (writer, reader):
        if isinstance(one, SchemaMismatchError):
            raise SchemaMismatchError(str(one))
    if isinstance(writer, AvroSchema) and target.form == AVRO:
        newest = reader.type if isinstance(reader, AvroSchema) else None
        plan = resolve(writer.type, newest, target.columns, space)
        columns, faults = read_avro(payloads, writer.type, plan, space)
        return columns, faults, plan.dropped
    if isinstance(writer, ProtobufSchema) and target.form == PROTOBUF:
        newest_file = reader if isinstance(reader, ProtobufSchema) else None
        return read_protobuf(payloads, writer, newest_file, target.columns, space)
    if isinstance(writer, JsonSchema) and target.form == JSON_SCHEMA:
        return *_read_json(payloads, target, space), ()
    raise SchemaMismatchError(f"the schema is of another type: the topic takes {target.form}")


def _read_json(payloads: Any, target: Target, space: Space) -> tuple[list[Any], dict[int, str]]:
    """Return columns, and reasons by index."""
    try:
        rows = parse_rows(payloads, target.columns, target.topic, space.free_bytes)
    except InvalidRecordError as e:
        prefix = f" does not fit the topic {target.topic!r}: "
        faults = {i: text.removeprefix(f"record {i}").removeprefix(prefix) for i, text in e.records.items()}
        return [null_column(len(payloads), f.type) for f in target.columns], faults
    space.spend(rows.nbytes)
    return rows.columns, {}


def _in_order(groups: list[tuple[Array, list[Any]]], count: int, columns: pa.Schema) -> pa.RecordBatch:
    """Return the rows of all groups in the order of their records; other records have nulls."""
    if len(groups) == 1 and len(groups[0][0]) == count:
        return pa.RecordBatch.from_arrays(groups[0][1], schema=columns)
    if not groups:
        return pa.RecordBatch.from_arrays([null_column(count, f.type) for f in columns], schema=columns)
    place = np.full(count, -1, np.int64)
    place[np.concatenate([places for places, _ in groups])] = np.arange(sum(len(places) for places, _ in groups))
    order = pa.array(place, mask=place < 0)
    arrays = [pa.concat_arrays(parts).take(order) for parts in zip(*(group[1] for group in groups), strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=columns)
