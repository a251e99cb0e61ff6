"""Debezium's events in Avro have the rows of the same events in JSON."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from sparklog.debezium.avro_events import FramedRecords, RegisteredSchema
from sparklog.debezium.changes import Layout, changes_of, to_table
from sparklog.debezium.events import EventReader
from sparklog.debezium.forms import hints_of
from sparklog.debezium.unwrapping import columns_of
from sparklog.errors import DeserializationError
from sparklog.format.schema_evolution import growth
from tests.unit.debezium.avro_records import framed, row, schema_of
from tests.unit.debezium.envelopes import PLACEHOLDER, event, field, key


def test_rows_of_avro_are_exact() -> None:
    records = [
        (framed(2, {"id": 1}), framed(1, {"before": None, "after": row(1), "op": "c"})),
        (framed(2, {"id": 1}), framed(1, {"before": row(1), "after": row(1, doc=PLACEHOLDER), "op": "u"})),
        (framed(2, {"id": 2}), framed(1, {"before": None, "after": None, "op": "d"})),
        (framed(2, {"id": 2}), None),
    ]
    events = EventReader(schema_of=schema_of).read(records)
    found = columns_of(events)
    assert found.key_columns == ("id",)
    assert found.untyped == {}
    table = to_table(changes_of(events, Layout(found.schema, hints_of(None, None))))
    assert table.schema.field("small").type == pa.int16()
    assert table.schema.field("balance").type == pa.decimal128(10, 2)
    assert table.schema.field("day").type == pa.date32()
    assert table.column("balance").to_pylist() == [Decimal("-2.00")] * 2 + [None]
    assert table.column("at").cast(pa.int64()).to_pylist()[:1] == [1_700_000_000_123_456]
    assert table.column("zoned").cast(pa.int64()).to_pylist()[:1] == [1_706_688_000_000_000]
    assert table.column("bits").to_pylist()[0] == b"\x05"
    assert table.column("tags").to_pylist()[0] == ["a", None]
    assert table.column("pairs").to_pylist()[0] == [("x", "1"), ("y", None)]
    assert table.column("doc").to_pylist() == ["text", "text", None]
    assert table.column("odd").to_pylist()[0] == "0.256"
    assert table.column("_op").to_pylist() == ["c", "u", "d"]


def test_json_behind_the_id_of_a_json_schema() -> None:
    records = [(b"\0\0\0\0\x03" + key({"id": 1}), b"\0\0\0\0\x03" + event("c", None, {"id": 1, "n": 2}))]
    events = EventReader(schema_of=lambda _: RegisteredSchema("JSON", "{}")).read(records)
    assert [(e.row, e.key) for e in events] == [({"id": 1, "n": 2}, {"id": 1})]
    assert columns_of(events).untyped == {"id": 0, "n": 0}


def record(*fields: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": f"f{i}", "type": t} for i, t in enumerate(fields)]}


def growing(levels: int) -> Any:
    """A schema in which each level uses the one below twice."""
    schema: Any = {"type": "record", "name": "L0", "fields": [{"name": "a", "type": "int"}]}
    for level in range(1, levels):
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": f"L{level - 1}"}]
        schema = {"type": "record", "name": f"L{level}", "fields": fields}
    return schema


def nested(levels: int) -> Any:
    schema: Any = "int"
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return record(schema)


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        (record(["null", "R"]), "does not contain itself"),
        (record(["null", "int", "string"]), "a union is that of null and one type"),
        (record(["int", "string"]), "a union is that of null and one type"),
        (record({"type": "array", "items": "null"}), "has a name of Avro"),
        (growing(40), "more than 20000 fields"),
        (nested(400), "more than 64 deep"),
        (nested(40), "at most 32 levels deep"),
        ({"type": "record", "name": "R"}, "a list of fields"),
        (7, "a name, an object or a list"),
    ],
)
def test_schemas_that_are_refused(schema: Any, reason: str) -> None:
    records = FramedRecords(lambda _: RegisteredSchema("AVRO", json.dumps(schema)))
    with pytest.raises(DeserializationError, match=reason):
        records.payload(b"\0\0\0\0\x01", is_key=True)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\0\0\0", "ends within the schema's id"),
        (b"\0\0\0\0\x02", "does not fit the Avro schema 2"),
        (b"\0\0\0\0\x02" + b"\xff" * 20, "does not fit the Avro schema 2"),
        (b"\0\0\0\0\x02\x02\x02", "bytes follow its last field"),
    ],
)
def test_bytes_that_do_not_fit_the_schema(data: bytes, reason: str) -> None:
    reader = EventReader(schema_of=schema_of)
    with pytest.raises(DeserializationError, match=reason) as e:
        reader.read([(data, event("d", None, None))])
    assert e.value.offset == 0


def test_very_many_elements_without_bytes_are_refused() -> None:
    text = json.dumps(record({"type": "array", "items": {"type": "record", "name": "E", "fields": []}}))
    records = FramedRecords(lambda _: RegisteredSchema("AVRO", text))
    with pytest.raises(DeserializationError, match="more elements than the record has bytes"):
        records.payload(b"\0\0\0\0\x01" + b"\xfe\xff\xff\xff\x7f", is_key=True)


def test_other_types_of_schemas_and_a_missing_registry_are_refused() -> None:
    records = [(None, b"\0\0\0\0\x01\x00")]
    with pytest.raises(DeserializationError, match="has the type PROTOBUF"):
        EventReader(schema_of=lambda _: RegisteredSchema("PROTOBUF", "")).read(records)
    with pytest.raises(DeserializationError, match="name the registry"):
        EventReader().read(records)


def test_columns_that_events_add_or_widen() -> None:
    one, two = ([field("id", "int64"), field("n", width)] for width in ("int16", "int32"))
    events = EventReader().read(
        [
            (None, event("c", None, {"id": 1, "n": 1}, one)),
            (None, event("c", None, {"id": 1, "n": 1}, [*two, field("new", "string")])),
            (None, event("c", None, {"id": 1, "n": 1}, one)),
            (None, event("c", None, {"id": 1, "x": 1})),
        ]
    )
    found = columns_of(events)
    assert found.schema == pa.schema([("id", pa.int64()), ("n", pa.int32()), ("new", pa.string())])
    assert found.untyped == {"x": 3}
    stored = pa.schema([("id", pa.int64()), ("n", pa.int16()), ("other", pa.string())])
    change = growth(stored, found.schema)
    assert change.add is not None
    assert (change.add.names, change.widen) == (["new"], pa.schema([("n", pa.int32())]))
