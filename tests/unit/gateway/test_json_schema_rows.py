"""Rows of topics with a JSON Schema as records that are valid for it."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import jsonschema
import pyarrow as pa

from sparklog.kafka.schemas.json_schema import parse_json_schema
from sparklog.kafka.values.json_schema_rows import write_json_schema
from tests.support.cases import for_each

COLUMNS = pa.schema(
    [
        ("id", pa.int64()),
        ("zone", pa.string()),
        ("price", pa.decimal128(10, 2)),
        ("point", pa.struct([("x", pa.int32()), ("y", pa.decimal128(5, 1))])),
        ("stops", pa.list_(pa.struct([("x", pa.int32())]))),
        ("rates", pa.map_(pa.string(), pa.decimal128(5, 1))),
    ]
)
FULL = {
    "id": 1,
    "zone": "a",
    "price": Decimal("1.50"),
    "point": {"x": 1, "y": Decimal("0.5")},
    "stops": [{"x": None}, None, {"x": 2}],
    "rates": {"k": Decimal("2.0")},
}
NUMBER = {"type": "number"}
ALL: dict[str, Any] = {
    "id": {"type": "integer"},
    "zone": {"type": "string"},
    "price": NUMBER,
    "point": {"$ref": "#/definitions/Point"},
    "stops": {"type": "array", "items": {"type": ["null", "object"]}},
    "rates": {"type": "object", "additionalProperties": NUMBER},
}
POINT = {"Point": {"type": "object", "properties": {"x": {"type": "integer"}, "y": NUMBER}}}


def records(root: Any, *rows: dict[str, Any], columns: pa.Schema = COLUMNS) -> list[str]:
    """The records of rows, each of which is valid."""
    schema = parse_json_schema(json.dumps(root), {})
    written = write_json_schema(pa.RecordBatch.from_pylist(list(rows), columns), schema).to_pylist()
    for one in written:
        jsonschema.validate(json.loads(one), root)
    return [one.decode() for one in written]


def test_rows_are_valid_records() -> None:
    root = {"type": "object", "properties": ALL, "definitions": POINT, "additionalProperties": False}
    full, null = records(root, FULL, {"id": 2})
    assert full == (
        '{"id":1,"zone":"a","price":1.50,"point":{"x":1,"y":0.5},"stops":[{},null,{"x":2}],"rates":{"k":2.0}}'
    )
    assert null == '{"id":2}'


NULLABLE: list[Any] = [
    {"type": ["string", "null"]},
    {"anyOf": [{"type": "string"}, {"type": "null"}]},
    {"oneOf": [{"$ref": "#/definitions/Zone"}, {"type": "string"}]},
    {"enum": ["a", None]},
]


@for_each("zone", NULLABLE)
def test_a_null_that_the_schema_names_stays(zone: Any) -> None:
    root = {"properties": {"zone": zone}, "definitions": {"Zone": {"const": None}}}
    assert records(root, {"id": 1}) == ['{"id":1,"zone":null}']


def test_a_required_null_stays_and_undescribed_fields_are_omitted() -> None:
    assert records({"required": ["zone"]}, {"id": 1}) == ['{"id":1,"zone":null}']
    closed = {"properties": {"id": {}}, "additionalProperties": False}
    assert records(closed, FULL, {"zone": "a"}) == ['{"id":1}', "{}"]
    assert records({"additionalProperties": False}, FULL) == ["{}"]


def test_decimals_are_texts_unless_the_schema_has_numbers_alone() -> None:
    columns = pa.schema([("price", pa.decimal128(38, 2))])
    row = {"price": Decimal("123456789012345678901234567890.10")}
    for kind, text in (
        ("number", "%s"),
        (["null", "number"], "%s"),
        (["number", "string"], '"%s"'),
        ("string", '"%s"'),
    ):
        (record,) = records({"properties": {"price": {"type": kind}}}, row, columns=columns)
        assert record == '{"price":' + text % row["price"] + "}"
    assert records(True, row, columns=columns) == ['{"price":"123456789012345678901234567890.10"}']


def test_schemas_of_alternatives_and_circles_take_little_time() -> None:
    circle: Any = {"anyOf": [{"$ref": "#/definitions/C"}] * 30, "allOf": [{"$ref": "#/definitions/C"}] * 30}
    root = {"allOf": [{"$ref": "#/definitions/C"}] * 30, "properties": {"zone": circle}, "definitions": {"C": circle}}
    schema = parse_json_schema(json.dumps(root), {})
    rows = pa.RecordBatch.from_pylist([{"id": 1}], COLUMNS)
    assert write_json_schema(rows, schema).to_pylist() == [b'{"id":1}']


def test_names_that_no_class_can_have_are_fields() -> None:
    columns = pa.schema([('a"b', pa.int32()), ("c", pa.int32())])
    assert records({}, {'a"b': 1}, columns=columns) == ['{"a\\"b":1}']
