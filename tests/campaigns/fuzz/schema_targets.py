"""The child's side of the fuzz of schemas: records of one schema as rows, and the parsing of texts.

Both run in the gateway's process with bytes of clients, and the first on each produced record.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa

from sparklog.errors import MessageTooLargeError, SchemaMismatchError
from sparklog.kafka.records.errors import InvalidRecordError
from sparklog.kafka.schemas.errors import RegistryError
from sparklog.kafka.schemas.schema_types import Parsed, SchemaType, differences, parse, text_of
from sparklog.kafka.values.framed_records import Target, columns_of_schema, read_framed
from sparklog.kafka.values.framed_rows import write_framed
from tests.unit.gateway.registry_schemas import FixedSchemas

ROOM = 64 << 20
"""Memory in bytes for the rows of a batch, as in a gateway."""
WORK_S_MAX = 20.0
"""Largest processor time in s of one case."""
FORMS = {SchemaType.AVRO: "avro", SchemaType.PROTOBUF: "protobuf", SchemaType.JSON: "json-schema"}
JSON_COLUMNS = pa.schema(
    [("a", pa.int64()), ("b", pa.string()), ("c", pa.list_(pa.float64())), ("d", pa.map_(pa.string(), pa.int32()))]
)


class SlowCaseError(Exception):
    """A case that took more processor time than a client may cause."""


def records(kind: str, text: str, values: list[bytes]) -> tuple[str, Any]:
    """Decode records, and write the rows again. Returns "rows" with their text, or "refused" with the indexes."""
    begun = time.process_time()
    schema = _parsed(kind, text)
    columns = JSON_COLUMNS if kind == SchemaType.JSON else columns_of_schema(schema)
    schemas = FixedSchemas({1: schema})
    target = Target("t", FORMS[SchemaType(kind)], columns, "t-value")
    try:
        batch = read_framed(pa.array(values, pa.binary()), np.zeros(len(values), bool), target, schemas, ROOM).batch
    except InvalidRecordError as e:
        return "refused", sorted(e.records)
    except MessageTooLargeError:
        return "too large", None
    finally:
        _check_time(begun)
    batch.validate(full=True)
    write_framed(batch, np.zeros(len(values), bool), target, schemas, ROOM)
    _check_time(begun)
    plain = batch.cast(pa.schema([f.with_type(_without_times(f.type)) for f in batch.schema]))
    return "rows", [repr(row) for row in plain.to_pylist()]


def _without_times(kind: Any) -> Any:
    """Return a type with numbers instead of times, because Python has no dates beyond the year 9999."""
    if pa.types.is_struct(kind):
        return pa.struct([f.with_type(_without_times(f.type)) for f in kind])
    if pa.types.is_list(kind):
        return pa.list_(_without_times(kind.value_type))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _without_times(kind.item_type))
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def texts(kind: str, hostile: str, honest: str) -> tuple[str, Any]:
    """Parse a hostile text, compare it with an honest one, and look for its columns."""
    begun = time.process_time()
    try:
        schema = parse(SchemaType(kind), hostile, {})
        text_of(schema, normalize=True)
        parse(SchemaType(kind), text_of(schema), {}, b"")
        other = _parsed(kind, honest)
        differences(schema, other)
        differences(other, schema)
        columns = columns_of_schema(schema) if kind != SchemaType.JSON else JSON_COLUMNS
    except (RegistryError, SchemaMismatchError) as e:
        return "refused", str(e)[:200]
    finally:
        _check_time(begun)
    return "columns", len(columns)


def _check_time(begun: float) -> None:
    taken = time.process_time() - begun
    if taken > WORK_S_MAX:
        raise SlowCaseError(f"{taken:.0f} s for one case")


_KEPT: dict[tuple[str, str], Parsed] = {}


def _parsed(kind: str, text: str) -> Parsed:
    if (kind, text) not in _KEPT:
        _KEPT[kind, text] = parse(SchemaType(kind), text, {})
    return _KEPT[kind, text]
