"""Content of the schema pages: names, texts, and differences."""

from __future__ import annotations

import json
import time
from typing import Any

from sparklog.client.net.registry_subjects import SubjectVersion
from sparklog.console.views.schemas import (
    DiffLine,
    FieldChange,
    changes_of,
    field_changes,
    line_differences,
    schema_text,
    subject_row,
    subjects_matching,
)
from tests.support.cases import for_each


def version(schema: object, kind: str = "AVRO") -> SubjectVersion:
    return SubjectVersion("s", 1, 1, schema if isinstance(schema, str) else json.dumps(schema), kind)


def record(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": list(fields)}


def test_subjects_belong_to_topics_that_exist() -> None:
    topics = {"rides", "a-value"}
    rows = [subject_row(name, topics) for name in ("rides-value", "rides-key", "a-value", "lost-value", "x\u202e")]
    assert [(row.topic, row.part) for row in rows] == [
        ("rides", "value"), ("rides", "key"), ("", "value"), ("", "value"), ("", "")
    ]  # fmt: skip
    assert rows[-1].shown == "x\\u202e"
    assert subjects_matching(["b-rides", "rides", "x"], "RIDES") == ["rides", "b-rides"]


AVRO_BEFORE = record(
    {"name": "id", "type": "int"},
    {"name": "old", "type": "string"},
    {"name": "place", "type": record({"name": "zone", "type": "string"})},
)
AVRO_AFTER = record(
    {"name": "id", "type": "long"},
    {"name": "fare", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "place", "type": record({"name": "zone", "type": ["null", "string"], "default": None})},
    {"name": "tags", "type": {"type": "array", "items": record({"name": "k", "type": "string"})}},
)
JSON_BEFORE = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}}
JSON_AFTER = {
    "type": "object",
    "properties": {"a": {"type": ["integer", "null"]}, "c": {"type": "array", "items": JSON_BEFORE}},
    "required": ["a"],
}


def test_fields_that_differ_are_named_by_path() -> None:
    assert field_changes(version(AVRO_BEFORE), version(AVRO_AFTER)) == [
        FieldChange("added", "fare", "decimal(9,2)"),
        FieldChange("added", "tags", "array of R"),
        FieldChange("added", "tags.k", "string"),
        FieldChange("removed", "old", "string"),
        FieldChange("changed", "id", "int → long"),
        FieldChange("changed", "place.zone", "string → null | string = null"),
    ]
    assert field_changes(version(JSON_BEFORE, "JSON"), version(JSON_AFTER, "JSON")) == [
        FieldChange("added", "c", "array"),
        FieldChange("added", "c[].a", "integer"),
        FieldChange("added", "c[].b", "string"),
        FieldChange("removed", "b", "string"),
        FieldChange("changed", "a", "integer → integer | null, required"),
    ]
    assert field_changes(version('"int"'), version(JSON_AFTER, "JSON")) == [], "schemas of two types"


def test_a_list_of_versions_has_the_changes_of_each() -> None:
    rows = [(4, version(AVRO_AFTER)), (2, version(AVRO_BEFORE)), (1, None)]
    assert changes_of(rows) == {4: field_changes(version(AVRO_BEFORE), version(AVRO_AFTER))[:5]}


ODD: list[str] = [
    "",
    "{",
    "not JSON",
    "[" * 100_000,
    '{"type":"record","fields":5}',
    '{"type":"record","fields":[1,{"name":7},{"type":[[[]]]}]}',
    '{"properties":[1],"items":{"items":{"items":7}}}',
    '{"type":{"type":{"type":null}},"properties":{"a":null,"b":{"type":{}}},"required":5}',
    '{"fields":[{"name":"\\u202e","type":{"logicalType":"\\u0007","precision":[1e999]}}]}',
    "null",
    json.dumps({"type": "map", "values": 5}),
    "\x00\x1b[31m\u202e",
]


@for_each("text", ODD)
def test_odd_texts_are_shown_as_they_are(text: str) -> None:
    for kind in ("AVRO", "JSON", "PROTOBUF", "<other>"):
        one = version(text, kind)
        assert not any(c in schema_text(one).text for c in "\x00\x1b\u202e")
        for other in (version("{}", kind), one):
            field_changes(one, other)
            line_differences(one, other)


def test_lines_that_differ_stand_among_equal_ones() -> None:
    before = "\n".join(f"line {i}" for i in range(100_000))
    after = before.replace("line 50000\n", "line 50000\nnew\n")
    lines = line_differences(version(before, "PROTOBUF"), version(after, "PROTOBUF"))
    assert lines == [
        *(DiffLine(" ", f"line {i}") for i in (49_998, 49_999, 50_000)),
        DiffLine("+", "new"),
        *(DiffLine(" ", f"line {i}") for i in (50_001, 50_002, 50_003)),
    ]
    assert line_differences(version(before), version(before)) == []


def test_texts_that_differ_everywhere_are_not_compared_for_long() -> None:
    begun_s = time.process_time()
    assert line_differences(version("a\n" * 100_000, "PROTOBUF"), version("b\n" * 100_000, "PROTOBUF")) is None
    same = "\n".join("x" if i % 2 else str(i) for i in range(1_400))
    line_differences(version(same, "PROTOBUF"), version("z\n" + same[::-1] + "\nz", "PROTOBUF"))
    assert time.process_time() - begun_s < 10
    text = schema_text(version("x" * 1_000_000, "PROTOBUF"))
    assert text.is_cut and len(text.text) == 65_536
