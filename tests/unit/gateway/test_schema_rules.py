"""Which schemas read the values of which others, by type and level."""

from __future__ import annotations

import base64
import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from grpc_tools import protoc

from sparklog.kafka.schemas import comparison
from sparklog.kafka.schemas.avro import parse_avro
from sparklog.kafka.schemas.errors import INVALID_SCHEMA, RegistryError
from sparklog.kafka.schemas.schema_types import Level, Parsed, SchemaType, differences, incompatibilities, parse
from tests.support.cases import for_each

AVRO, JSON, PROTOBUF = SchemaType.AVRO, SchemaType.JSON, SchemaType.PROTOBUF


def parsed(kind: SchemaType, source: Any) -> Parsed:
    return parse(kind, source if kind is PROTOBUF else json.dumps(source), {})


def kinds_of(reader: Parsed, writer: Parsed) -> list[str]:
    """The kinds of the differences for which the reader cannot read the writer's values."""
    return [text.partition(" ")[0] for text in differences(reader, writer)]


def record(*fields: Any, name: str = "R", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields), **more}


def field(name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, **more}


def decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def enum(*symbols: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": "E", "symbols": list(symbols), **more}


FIXED = {"type": "fixed", "name": "F", "size": 4}
LINKED = record(field("next", ["null", "R"]))
AVRO_CASES = [
    ("int", "int", []),
    ("long", "int", []),
    ("double", "long", []),
    ("int", "long", ["TYPE_MISMATCH"]),
    ("float", "double", ["TYPE_MISMATCH"]),
    ("bytes", "string", []),
    ("string", "bytes", []),
    ("string", "int", ["TYPE_MISMATCH"]),
    (["null", "int"], "int", []),
    ("int", ["null", "int"], ["MISSING_UNION_BRANCH"]),
    ("long", ["int", "long"], []),
    (["null", "string"], ["null", "int"], ["MISSING_UNION_BRANCH"]),
    ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, []),
    ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}, ["TYPE_MISMATCH"]),
    ({"type": "map", "values": "int"}, {"type": "map", "values": "string"}, ["TYPE_MISMATCH"]),
    (record(field("a", "int"), field("b", "int", default=1)), record(field("a", "int")), []),
    (
        record(field("a", "int"), field("b", ["null", "int"])),
        record(field("a", "int")),
        ["READER_FIELD_MISSING_DEFAULT_VALUE"],
    ),
    (record(field("a", "int")), record(field("a", "int"), field("b", "int")), []),
    (record(field("b", "int", aliases=["a"])), record(field("a", "int")), []),
    (record(field("b", "int")), record(field("a", "int")), ["READER_FIELD_MISSING_DEFAULT_VALUE"]),
    (record(name="Q"), record(name="R"), ["NAME_MISMATCH"]),
    (record(name="x.R"), record(name="y.R"), []),
    (record(name="Q", aliases=["R"]), record(name="R"), []),
    (enum("A", "B"), enum("A"), []),
    (enum("A"), enum("A", "B"), ["MISSING_ENUM_SYMBOLS"]),
    (enum("A", default="A"), enum("A", "B"), []),
    (FIXED, FIXED, []),
    (FIXED | {"size": 8}, FIXED, ["FIXED_SIZE_MISMATCH"]),
    (decimal(9, 2), decimal(9, 3), ["DECIMAL_MISMATCH"]),
    (decimal(9, 2), "bytes", []),
    (LINKED, LINKED, []),
    (record(field("next", ["null", "R"]), field("x", "int")), LINKED, ["READER_FIELD_MISSING_DEFAULT_VALUE"]),
]


@for_each("reader, writer, expected", AVRO_CASES)
def test_avro_readers_resolve_the_writers_schema(reader: Any, writer: Any, expected: list[str]) -> None:
    assert kinds_of(parsed(AVRO, reader), parsed(AVRO, writer)) == expected


INTEGER = {"type": "integer"}
OPEN = {"type": "object", "properties": {"a": INTEGER}}
CLOSED = OPEN | {"additionalProperties": False}
WIDE = {"a": INTEGER, "b": {"type": "string"}}
TREE = {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"next": {"$ref": "#"}}}]}
CHOICE = {"type": "object", "properties": WIDE, "oneOf": [{"required": ["a"]}, {"required": ["b"]}]}
JSON_CASES = [
    (True, OPEN, []),
    (OPEN, True, ["TYPE_NARROWED"]),
    (False, INTEGER, ["SCHEMA_CLOSED"]),
    ({"type": "number"}, INTEGER, []),
    (INTEGER, {"type": "number"}, ["TYPE_NARROWED"]),
    ({"type": ["string", "null"]}, {"type": "string"}, []),
    ({"type": "string"}, {"type": ["string", "null"]}, ["TYPE_NARROWED"]),
    (OPEN | {"properties": WIDE}, OPEN, ["PROPERTY_ADDED_TO_OPEN_CONTENT_MODEL"]),
    (OPEN | {"properties": {"a": INTEGER, "b": {}}}, OPEN, []),
    (OPEN, OPEN | {"properties": WIDE}, []),
    (CLOSED | {"properties": WIDE}, CLOSED, []),
    (CLOSED, CLOSED | {"properties": WIDE}, ["SCHEMA_CLOSED"]),
    (OPEN, CLOSED, []),
    (CLOSED, OPEN, ["SCHEMA_CLOSED"]),
    (OPEN | {"required": ["a"]}, OPEN, ["REQUIRED_ATTRIBUTE_ADDED"]),
    (OPEN, OPEN | {"required": ["a"]}, []),
    ({"type": "object", "properties": {"a": {"default": 1}}, "required": ["a"]}, {"type": "object"}, []),
    (
        {"type": "object", "additionalProperties": {"type": "string"}},
        {"type": "object", "patternProperties": {"^x": INTEGER}, "additionalProperties": {"type": "string"}},
        ["TYPE_NARROWED"],
    ),
    ({"maximum": 5}, {"maximum": 4}, []),
    ({"maximum": 4}, {"maximum": 5}, ["MAXIMUM_CHANGED"]),
    ({"minLength": 1}, {}, ["MIN_LENGTH_CHANGED"]),
    ({"minLength": 0}, {}, []),
    ({"multipleOf": 2}, {"multipleOf": 4}, []),
    ({"multipleOf": 4}, {"multipleOf": 2}, ["MULTIPLE_OF_CHANGED"]),
    ({"pattern": "a"}, {"pattern": "b"}, ["KEYWORD_CHANGED"]),
    ({"enum": [1, 2]}, {"enum": [1]}, []),
    ({"enum": [1]}, {"const": 2}, ["ENUM_ARRAY_NARROWED"]),
    ({"enum": [1]}, INTEGER, ["ENUM_ARRAY_CHANGED"]),
    ({"type": "array", "items": {"type": "number"}}, {"type": "array", "items": INTEGER}, []),
    ({"type": "array", "items": INTEGER}, {"type": "array"}, ["TYPE_NARROWED"]),
    (
        {"type": "array", "items": [INTEGER], "additionalItems": False},
        {"type": "array", "items": [INTEGER]},
        ["SCHEMA_CLOSED"],
    ),
    ({"anyOf": [INTEGER, {"type": "string"}]}, INTEGER, []),
    (INTEGER, {"anyOf": [INTEGER, {"type": "string"}]}, ["COMBINED_TYPE_SUBSCHEMAS_CHANGED"]),
    ({"anyOf": [INTEGER]}, {"type": "string"}, ["COMBINED_TYPE_SUBSCHEMAS_CHANGED"]),
    ({"allOf": [INTEGER, {"maximum": 9}]}, {"type": "integer", "maximum": 5}, []),
    ({"allOf": [INTEGER, {"maximum": 9}]}, INTEGER, ["MAXIMUM_CHANGED"]),
    (INTEGER, {"allOf": [INTEGER, {"maximum": 9}]}, []),
    (CHOICE, CHOICE, []),
    (TREE, TREE, []),
    ({"$ref": "#/$defs/a", "$defs": {"a": OPEN}}, OPEN, []),
    ({"not": INTEGER}, {}, ["KEYWORD_CHANGED"]),
]


@for_each("reader, writer, expected", JSON_CASES)
def test_json_readers_accept_the_writers_documents(reader: Any, writer: Any, expected: list[str]) -> None:
    assert kinds_of(parsed(JSON, reader), parsed(JSON, writer)) == expected


PROTOS = Path(protoc.__file__).with_name("_proto")


@cache
def descriptor(text: str) -> str:
    """The descriptor of a .proto text in base64, compiled in this process."""
    with TemporaryDirectory() as folder:
        Path(folder, "x.proto").write_text(text if "syntax" in text else f'syntax = "proto3"; {text}')
        assert (
            protoc.main(["", f"-I{folder}", f"-I{PROTOS}", f"--descriptor_set_out={folder}/out", f"{folder}/x.proto"])
            == 0
        )
        from google.protobuf.descriptor_pb2 import FileDescriptorSet

        file = FileDescriptorSet.FromString(Path(folder, "out").read_bytes()).file[0]
        return base64.b64encode(file.SerializeToString()).decode()


P2 = 'syntax = "proto2"; '
PROTOBUF_CASES = [
    ("message M {int32 a = 1;}", "message M {int32 b = 1;}", []),
    ("package p; message M {N n = 1;} message N {}", "package q; message M {N n = 1;} message N {}", []),
    ("message M {int64 a = 1;}", "message M {uint32 a = 1;}", []),
    ("message M {sint32 a = 1;}", "message M {int32 a = 1;}", ["FIELD_SCALAR_KIND_CHANGED"]),
    ("message M {bytes a = 1;}", "message M {string a = 1;}", []),
    ("message M {int32 a = 1;}", "message M {string a = 1;}", ["FIELD_SCALAR_KIND_CHANGED"]),
    ("message M {N a = 1;} message N {}", "message M {int32 a = 1;}", ["FIELD_KIND_CHANGED"]),
    (
        "message M {A a = 1;} message A {} message B {}",
        "message M {B a = 1;} message A {} message B {}",
        ["FIELD_NAMED_TYPE_CHANGED"],
    ),
    ("message M {}", "message M {int32 a = 1;}", []),
    ("message M {int32 a = 1;}", "message M {}", []),
    ("message M {}", "message M {} message N {}", ["MESSAGE_REMOVED"]),
    ("message M {} message N {}", "message M {}", []),
    ("message M {}", "message M { message N {} }", ["MESSAGE_REMOVED"]),
    ("message M {repeated int32 a = 1;}", "message M {int32 a = 1;}", ["FIELD_NUMERIC_LABEL_CHANGED"]),
    ("message M {repeated string a = 1;}", "message M {string a = 1;}", []),
    ("message M {map<string, int64> a = 1;}", "message M {map<string, int32> b = 1;}", []),
    ("message M {map<string, string> a = 1;}", "message M {map<string, int32> a = 1;}", ["FIELD_SCALAR_KIND_CHANGED"]),
    ("message M {oneof o {int32 a = 1;}}", "message M {int32 a = 1;}", []),
    (
        "message M {oneof o {int32 a = 1; int32 b = 2;}}",
        "message M {int32 a = 1; int32 b = 2;}",
        ["MULTIPLE_FIELDS_MOVED_TO_ONEOF"],
    ),
    (
        "message M {oneof o {int32 a = 1; int32 b = 2;}}",
        "message M {int32 a = 1; oneof o {int32 b = 2;}}",
        ["FIELD_MOVED_TO_EXISTING_ONEOF"],
    ),
    ("message M {oneof o {int32 a = 1;}}", "message M {oneof o {int32 a = 1; int32 b = 2;}}", ["ONEOF_FIELD_REMOVED"]),
    ("message M {optional int32 a = 1;}", "message M {int32 a = 1;}", []),
    ("enum E {A = 0;}", "enum E {A = 0; B = 1;}", []),
    (P2 + "message M {required int32 a = 1;}", P2 + "message M {}", ["REQUIRED_FIELD_ADDED"]),
    (P2 + "message M {required int32 a = 1;}", P2 + "message M {optional int32 a = 1;}", ["REQUIRED_FIELD_ADDED"]),
    (P2 + "message M {}", P2 + "message M {required int32 a = 1;}", ["REQUIRED_FIELD_REMOVED"]),
]


@for_each("reader, writer, expected", PROTOBUF_CASES)
def test_protobuf_readers_read_the_writers_messages(reader: str, writer: str, expected: list[str]) -> None:
    assert kinds_of(parsed(PROTOBUF, descriptor(reader)), parsed(PROTOBUF, descriptor(writer))) == expected


ONE, WITH_DEFAULT = record(field("a", "int")), record(field("a", "int"), field("b", "int", default=1))
WITHOUT_DEFAULT = record(field("a", "int"), field("b", "int"))
LEVELS = [
    (Level.NONE, "string", [ONE], True),
    (Level.BACKWARD, WITH_DEFAULT, [ONE], True),
    (Level.BACKWARD, WITHOUT_DEFAULT, [ONE], False),
    (Level.FORWARD, WITHOUT_DEFAULT, [ONE], True),
    (Level.FORWARD, ONE, [WITHOUT_DEFAULT], False),
    (Level.FULL, WITH_DEFAULT, [ONE], True),
    (Level.FULL, ONE, [WITH_DEFAULT], True),
    (Level.FULL, ONE, [WITHOUT_DEFAULT], False),
    (Level.FULL, WITHOUT_DEFAULT, [ONE], False),
    (Level.BACKWARD, WITHOUT_DEFAULT, [ONE, WITH_DEFAULT], True),
    (Level.BACKWARD_TRANSITIVE, WITHOUT_DEFAULT, [ONE, WITH_DEFAULT], False),
    (Level.FORWARD, ONE, [WITHOUT_DEFAULT, WITH_DEFAULT], True),
    (Level.FORWARD_TRANSITIVE, ONE, [WITHOUT_DEFAULT, WITH_DEFAULT], False),
    (Level.FULL_TRANSITIVE, ONE, [WITHOUT_DEFAULT, WITH_DEFAULT], False),
    (Level.FULL_TRANSITIVE, WITH_DEFAULT, [ONE], True),
]


@for_each("level, new, earlier, expected", LEVELS)
def test_levels_choose_directions_and_versions(level: Level, new: Any, earlier: list[Any], expected: bool) -> None:
    former = [parsed(AVRO, one) for one in earlier]
    assert (incompatibilities(level, parsed(AVRO, new), former) == []) is expected


def test_schemas_of_two_types_are_never_compatible() -> None:
    assert kinds_of(parsed(AVRO, "int"), parsed(JSON, INTEGER)) == ["SCHEMA_TYPE_CHANGED"]


DEEP: Any = "int"
for _ in range(100):
    DEEP = {"type": "array", "items": DEEP}
FAULTS = [
    (AVRO, "nope", "at /: unknown type 'nope'"),
    (AVRO, {"type": "record", "name": "R"}, "at /: a record needs a list of fields"),
    (AVRO, record(field("a", "int"), field("a", "int")), "at /: the record has the field 'a' twice"),
    (AVRO, record(field("a-b", "int")), "at /fields/0: 'a-b' is no name"),
    (AVRO, record(field("a", "int", default="x")), "at /fields/0: the default 'x' is no value"),
    (AVRO, record(field("a", {"type": "array"})), "at /fields/0/type: array without items"),
    (AVRO, record(field("a", ["int", "int"])), "a type is in the union twice"),
    (AVRO, ["int", ["null"]], "a union directly in a union"),
    (AVRO, enum("A", "A"), "the enum has a symbol twice"),
    (AVRO, enum("A", default="B"), "the default 'B' is none of the enum's symbols"),
    (AVRO, {"type": "fixed", "name": "F", "size": -1}, "the size -1 of a fixed"),
    (AVRO, 5, "5 is no type"),
    (AVRO, DEEP, "nested more than 64 deep"),
    (JSON, [], "a JSON Schema is an object or a boolean"),
    (JSON, {"type": "nope"}, "at /type: 'nope' is not valid"),
    (JSON, {"$ref": "#/x"}, "leads to no part of the schema"),
    (JSON, {"$ref": "#/enum/0", "enum": [{"type": 5}]}, "leads to no part of the schema"),
    (JSON, {"$ref": "http://elsewhere/x.json"}, "is none of the references"),
    (JSON, {"$ref": "#"}, "lead from one to the next"),
    (PROTOBUF, "AAAA", "it is neither a .proto text nor a FileDescriptorProto"),
]


@for_each("kind, source, expected", FAULTS)
def test_a_fault_of_a_schema_has_a_path_and_a_reason(kind: SchemaType, source: Any, expected: str) -> None:
    with pytest.raises(RegistryError) as caught:
        parsed(kind, source)
    assert caught.value.code == INVALID_SCHEMA
    assert expected in str(caught.value)


def test_texts_of_protobuf_are_compiled_apart_and_equal_their_descriptors() -> None:
    text = 'syntax = "proto3"; import "google/protobuf/timestamp.proto"; message M {google.protobuf.Timestamp a_b = 1;}'
    first, second = parsed(PROTOBUF, text), parsed(PROTOBUF, descriptor(text))
    assert first.compiled == second.compiled  # type: ignore[union-attr]
    user = parse(PROTOBUF, 'syntax = "proto3"; import "m.proto"; message U {M m = 1;}', {"m.proto": first})
    assert kinds_of(user, user) == []
    with pytest.raises(RegistryError, match=r"schema.proto:1:.* is not defined"):
        parsed(PROTOBUF, 'syntax = "proto3"; message U {M m = 1;}')
    with pytest.raises(RegistryError, match="is no path of a"):
        parse(PROTOBUF, 'syntax = "proto3";', {"../../m.proto": first})


TEXTS = [
    P2
    + """package a.b; import "google/protobuf/timestamp.proto"; import "google/protobuf/any.proto";
    option java_package = "x\\"\\303\\251"; option optimize_for = CODE_SIZE; option java_multiple_files = true;
    message M {
      option deprecated = true; message Z {} map<string, Z> m = 1; message Y {}
      optional group G = 2 { optional int32 x = 1; repeated group H = 4 { required Z z = 1; } }
      oneof o { int32 p = 5; group Q = 6 { optional string s = 1; } string r = 7 [default = "a\\"\\n"]; }
      optional bytes by = 8 [default = "\\001\\377\\""]; optional double d = 9 [default = inf];
      optional float f = 10 [default = -nan]; optional double g2 = 30 [default = 1e300];
      optional E e = 11 [default = B, deprecated = true]; repeated int32 k = 12 [packed = true, json_name = "odd"];
      enum E { option allow_alias = true; A = 0; B = 1; C = 1 [deprecated = true]; reserved -5 to -2, 9; reserved "D"; }
      extensions 100 to 199; extensions 1000 to max; reserved 50, 60 to 70; reserved "foo", "bar";
      optional google.protobuf.Timestamp t = 20; optional .a.b.N n = 21;
      extend N { optional M mm = 101; optional group EG = 102 { optional int32 q = 1; } }
      message X { optional N N = 1; optional .a.b.N other = 2; }
    }
    message N { extensions 100 to 200; } extend N { repeated string ext = 110; optional group TG = 111 {} }
    message Last {}
    service S {
      option deprecated = true; rpc One(M) returns (stream N);
      rpc Two(stream .a.b.M) returns (google.protobuf.Any) { option idempotency_level = IDEMPOTENT; }
    }""",
    """message A {
      optional int32 a = 1; oneof x { string b = 2; B c = 3; } repeated E e = 4; map<int32, E> f = 5; message E2 {}
      map<string, E2> g = 6; enum I { Z = 0; } I i = 7; repeated uint64 u = 8 [packed = false]; E2 q = 9;
    } message B {} enum E { ZERO = 0; NEG = -1; }""",
    """package a; message a { message a { a a = 1; .a.a.a b = 2; .a.a c = 3; } .a.a.a d = 1; } message b { a x = 1; }""",
]


@for_each("text", TEXTS)
def test_the_text_of_a_descriptor_means_the_same(text: str) -> None:
    own = parsed(PROTOBUF, descriptor(text))
    again = parsed(PROTOBUF, descriptor(own.text))
    assert own.text.startswith("syntax = ")
    assert again.compiled == own.compiled  # type: ignore[union-attr]


def test_a_descriptor_with_an_option_of_its_own_stays_a_descriptor() -> None:
    text = 'import "google/protobuf/descriptor.proto"; extend google.protobuf.FieldOptions { string own = 50001; } '
    base64_text = descriptor(text + 'message M { string a = 1 [(own) = "x"]; }')
    assert parsed(PROTOBUF, base64_text).text == base64_text


def test_a_comparison_of_very_many_pairs_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "STEPS_MAX", 1_000)
    wide = [record(name=f"R{i}") for i in range(40)]
    with pytest.raises(RegistryError, match="too large to compare"):
        differences(parsed(AVRO, wide), parsed(AVRO, [one | {"name": "S" + one["name"]} for one in wide]))


def test_large_enums_and_defaults_are_compared_at_once() -> None:
    symbols = [f"s{i}" for i in range(20_000)]
    large = {"type": "array", "items": enum(*symbols)}
    schema = parsed(AVRO, record(field("a", large, default=["s19999"] * 20_000)))
    assert kinds_of(schema, parsed(AVRO, record(field("a", large)))) == []


def test_a_chain_of_very_many_types_is_refused() -> None:
    links = [record(field("a", f"T{i - 1}" if i else "int"), name=f"T{i}") for i in range(1000)]
    chains = [parse_avro(json.dumps(links)) for _ in range(2)]
    with pytest.raises(RegistryError, match="too deep"):
        differences(*(parse_avro('"T999"', {"chain": chain}) for chain in chains))
