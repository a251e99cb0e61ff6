"""Rows as records in Confluent's framing, with the newest schema of the topic's subject."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.errors import SchemaMismatchError
from sparklog.kafka.records.errors import RECORDS_NAMED_MAX, InvalidRecordError
from sparklog.kafka.records.varints import Array
from sparklog.kafka.schemas.avro import AvroSchema, AvroType
from sparklog.kafka.schemas.json_schema import JsonSchema
from sparklog.kafka.schemas.protobuf import ProtobufSchema
from sparklog.kafka.schemas.schema_types import Parsed
from sparklog.kafka.values.avro_bytes import Space
from sparklog.kafka.values.avro_write import write_avro
from sparklog.kafka.values.carrying import check_carries
from sparklog.kafka.values.framed_records import AVRO, JSON_SCHEMA, PROTOBUF, Target
from sparklog.kafka.values.framing import ids_of_frames, with_frames
from sparklog.kafka.values.json_schema_rows import write_json_schema
from sparklog.kafka.values.protobuf_records import write_protobuf
from sparklog.kafka.values.rows_at_fault import UnwritableRowError, rows_at_fault
from sparklog.kafka.values.schemas import Schemas

_PAIRS_KEPT_MAX = 256
"""Largest number of pairs of schemas whose comparison is kept."""


def write_framed(rows: pa.RecordBatch, is_empty: Array, target: Target, schemas: Schemas, bytes_max: int) -> Any:
    """Return the records of rows as a binary array; null for each row that is empty. `bytes_max`: largest size of
    fields that have no column. Raises UnwritableRowError: The schema does not allow a row; SchemaMismatchError: The
    schema allows no row; SchemasNotLoadedError; MessageTooLargeError."""
    newest = schemas.newest(target.subject)
    if newest is None:
        raise SchemaMismatchError(
            f"topic {target.topic!r} is read as {target.form}, but the subject {target.subject!r} has no schema: "
            "register one"
        )
    schema_id, schema = newest
    chosen = np.flatnonzero(~is_empty)
    some = rows if len(chosen) == rows.num_rows else rows.take(pa.array(chosen))
    place = f"topic {target.topic!r} and the schema {schema_id} of {target.subject!r}"
    try:
        payloads = write_payloads(some, schema, target, Space(bytes_max))
    except UnwritableRowError as e:
        raise UnwritableRowError(int(chosen[e.row]), f"a row does not fit {place}: {e}") from None
    except SchemaMismatchError as e:
        raise SchemaMismatchError(f"{place} do not fit: {e}") from None
    values = with_frames(payloads, schema_id)
    if some is rows:
        return values
    order = np.zeros(rows.num_rows, np.int64)
    order[chosen] = np.arange(len(chosen))
    return values.take(pa.array(order, mask=is_empty))


def _carries(newest: Parsed, writer: Parsed | None, columns: pa.Schema) -> bool:
    """Return True if each row of the writer's records has a form in the newest schema."""
    if isinstance(newest, AvroSchema) and isinstance(writer, AvroSchema):
        return _carries_avro(newest.type, writer.type, columns)
    if isinstance(newest, ProtobufSchema) and isinstance(writer, ProtobufSchema):
        return _carries_protobuf(newest, writer, columns)
    return True  # such records are refused


@lru_cache(maxsize=_PAIRS_KEPT_MAX)
def _carries_avro(newest: AvroType, writer: AvroType, columns: pa.Schema) -> bool:
    return _is_carried(AvroSchema(newest, "", "", {}), AvroSchema(writer, "", "", {}), columns)


@lru_cache(maxsize=_PAIRS_KEPT_MAX)
def _carries_protobuf(newest: ProtobufSchema, writer: ProtobufSchema, columns: pa.Schema) -> bool:
    return _is_carried(newest, writer, columns)


def _is_carried(newest: Parsed, writer: Parsed, columns: pa.Schema) -> bool:
    try:
        check_carries(newest, [("", writer)], columns)
    except SchemaMismatchError:
        return False
    return True


def check_forms(rows: pa.RecordBatch, values: Any, target: Target, schemas: Schemas, bytes_max: int) -> None:
    """Raise InvalidRecordError for the rows of records that have no form in the newest schema of the subject: no
    consumer could read them. `rows`: with the columns of their keys. `values`: the records, which `read_framed` has
    decoded. Records of the newest schema always have a form, and so have those of each schema that it carries. Raises
    SchemasNotLoadedError; MessageTooLargeError."""
    ids = ids_of_frames(values)
    newest = schemas.newest(target.subject) if (ids >= 0).any() else None  # tombstones need no schema
    if newest is None or isinstance(newest[1], JsonSchema):
        return
    schema_id, schema = newest
    unsure = [
        one
        for one in np.unique(ids[ids >= 0]).tolist()
        if one != schema_id and not _carries(schema, schemas.schema_of(one), target.columns)
    ]
    chosen = np.flatnonzero(np.isin(ids, unsure))
    if not len(chosen):
        return
    faults = rows_at_fault(
        rows.take(pa.array(chosen)),
        lambda part: write_payloads(part, schema, target, Space(bytes_max)),
        SchemaMismatchError,
        RECORDS_NAMED_MAX,
    )
    if faults:
        raise InvalidRecordError(
            {
                int(
                    chosen[i]
                ): f"record {chosen[i]} does not fit the topic {target.topic!r}: consumers could not read it in "
                f"the schema {schema_id}, the newest one of {target.subject!r}: {reason}"
                for i, reason in faults.items()
            }
        )


def write_payloads(rows: pa.RecordBatch, schema: Parsed, target: Target, space: Space) -> Any:
    """Return the records of rows without their frames, as a binary array. Raises as `write_framed`."""
    if isinstance(schema, AvroSchema) and target.form == AVRO:
        return write_avro(rows, schema.type, space, fills_nulls=target.part == "value")
    if isinstance(schema, ProtobufSchema) and target.form == PROTOBUF:
        return write_protobuf(rows, schema, fills_nulls=target.part == "value")
    if isinstance(schema, JsonSchema) and target.form == JSON_SCHEMA:
        return write_json_schema(rows, schema)
    raise SchemaMismatchError(f"the schema is of another type than {target.form}")
