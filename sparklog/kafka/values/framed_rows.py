"""Rows as records in Confluent's framing, with the newest schema of the topic's subject."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.errors import SchemaMismatchError
from sparklog.kafka.records.varints import Array
from sparklog.kafka.schemas.avro import AvroSchema
from sparklog.kafka.schemas.json_schema import JsonSchema
from sparklog.kafka.schemas.protobuf import ProtobufSchema
from sparklog.kafka.schemas.schema_types import Parsed
from sparklog.kafka.values.avro_bytes import Space
from sparklog.kafka.values.avro_write import write_avro
from sparklog.kafka.values.framed_records import AVRO, JSON_SCHEMA, PROTOBUF, Target
from sparklog.kafka.values.framing import with_frames
from sparklog.kafka.values.json_schema_rows import write_json_schema
from sparklog.kafka.values.protobuf_records import write_protobuf
from sparklog.kafka.values.rows_at_fault import UnwritableRowError
from sparklog.kafka.values.schemas import Schemas


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


def write_payloads(rows: pa.RecordBatch, schema: Parsed, target: Target, space: Space) -> Any:
    """Return the records of rows without their frames, as a binary array. Raises as `write_framed`."""
    if isinstance(schema, AvroSchema) and target.form == AVRO:
        return write_avro(rows, schema.type, space, fills_nulls=target.part == "value")
    if isinstance(schema, ProtobufSchema) and target.form == PROTOBUF:
        return write_protobuf(rows, schema)
    if isinstance(schema, JsonSchema) and target.form == JSON_SCHEMA:
        return write_json_schema(rows, schema)
    raise SchemaMismatchError(f"the schema is of another type than {target.form}")
