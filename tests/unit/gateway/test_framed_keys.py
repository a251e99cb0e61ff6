"""Keys with schemas: they become key columns, their bytes choose the partition, and consumers get the same bytes."""

from __future__ import annotations

import base64
import io
import json
import re
import subprocess
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from hypothesis import given
from hypothesis import strategies as st

from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.producer.partitioner import partition_for_key
from sparklog.client.producer.row_keys import keys_of_rows, partitions_of_rows
from sparklog.errors import InvalidConfigError, SchemaMismatchError
from sparklog.format.batch import BatchHeader, decode_batch, decode_header
from sparklog.format.ddl import parse_ddl
from sparklog.format.key_format import PinnedSchema, check_same_key_format, with_key_format
from sparklog.gateway.records.small import write_small
from sparklog.gateway.records.typed import TypedRows, typed_batch
from sparklog.kafka.records import batch_v2
from sparklog.kafka.records.errors import InvalidRecordError
from sparklog.kafka.schemas.avro import parse_avro
from sparklog.kafka.schemas.json_schema import parse_json_schema
from sparklog.kafka.schemas.protobuf import parse_protobuf
from sparklog.kafka.schemas.schema_types import Parsed
from sparklog.kafka.values.avro_bytes import Space
from sparklog.kafka.values.framed_keys import check_key_schema, key_columns_of, pinned_schema, read_keys
from sparklog.kafka.values.framed_records import Target
from sparklog.kafka.values.framed_rows import write_payloads
from sparklog.kafka.values.rows_at_fault import UnwritableRowError
from sparklog.kafka.values.schemas import KeySchemaMissingError
from tests.support.cases import for_each
from tests.support.clients import info
from tests.unit.gateway.registry_schemas import FixedSchemas, avro

SCHEMA = pa.schema([("id", pa.int64()), ("zone", pa.string()), ("name", pa.string())])
RECORD = {
    "type": "record",
    "name": "Key",
    "fields": [{"name": "id", "type": "long"}, {"name": "zone", "type": ["null", "string"]}],
}
LONG, TEXT, OTHER = avro("long"), avro("string"), avro({"type": "long", "doc": "another text, another id"})
OBJECT = parse_json_schema('{"type": "object", "properties": {"id": {"type": "integer"}}}', {})
JSON_TEXT = parse_json_schema('{"type": "string"}', {})
JSON_NUMBER = parse_json_schema('{"type": "integer"}', {})
Record = tuple[bytes | None, bytes | None]


def message() -> Parsed:
    file = FileDescriptorProto(name="key.proto", package="k", syntax="proto3")
    fields = file.message_type.add(name="Key").field
    fields.add(name="zone", number=1, type=FieldDescriptorProto.TYPE_STRING, label=1)
    fields.add(name="id", number=2, type=FieldDescriptorProto.TYPE_INT64, label=1)
    return parse_protobuf(base64.b64encode(file.SerializeToString()).decode(), {})


MESSAGE = message()
SCHEMAS = FixedSchemas(
    {1: LONG, 2: TEXT, 3: avro(RECORD), 4: OTHER, 5: MESSAGE, 6: OBJECT, 7: JSON_TEXT, 8: JSON_NUMBER}
)


def topic(schema_id: int, *key_columns: str, partitions: int = 1, form: str = "avro", **configs: Any) -> TopicInfo:
    pinned = pinned_schema(schema_id, SCHEMAS.schemas[schema_id]).text
    return info(SCHEMA, partitions, key_columns, kafka_key_format=form, kafka_key_schema=pinned, **configs)


def key(schema_id: int, payload: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4, "big") + payload


def avro_key(schema_id: int, source: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(source), value)
    return key(schema_id, out.getvalue())


def batch_of(records: list[Record], to: TopicInfo, partition: int = 0) -> memoryview:
    keys, values = zip(*records, strict=True)
    data = write_small(list(keys), list(values), [0] * len(records))
    head = batch_v2.BatchV2(0, 0, 0, 2, 0, 0, len(keys) - 1, 0, 0, -1, -1, -1, len(keys))
    return typed_batch(head, memoryview(data), to, 1 << 24, partition, SCHEMAS).payload


def stored(records: list[Record], to: TopicInfo, partition: int = 0) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = decode_batch(batch_of(records, to, partition), to.schema).to_pylist()
    return rows


def keys_back(records: list[Record], to: TopicInfo) -> list[bytes | None]:
    """The keys that consumers get."""
    data = batch_of(records, to)
    header: BatchHeader = decode_header(data)
    keys: list[bytes | None] = TypedRows(to, SCHEMAS)(decode_batch(data, to.schema), header).column(0).to_pylist()
    return keys


def row(id: int | None = None, zone: str | None = None, name: str | None = None) -> dict[str, Any]:
    return {"id": id, "zone": zone, "name": name}


@for_each(
    "to, sent, rows",
    [
        (topic(1, "id"), [avro_key(1, "long", 5), avro_key(1, "long", -1)], [row(5), row(-1)]),
        (topic(2, "zone"), [avro_key(2, "string", "ü"), avro_key(2, "string", "")], [row(zone="ü"), row(zone="")]),
        (
            topic(3, "zone", "id"),
            [avro_key(3, RECORD, {"id": 1, "zone": "a"}), avro_key(3, RECORD, {"id": 2, "zone": None})],
            [row(1, "a"), row(2)],
        ),
        (
            topic(5, "id", "zone", form="protobuf"),
            [key(5, b"\0\x0a\x01a\x10\x07"), key(5, b"\0\x10\x07")],
            [row(7, "a"), row(7, "")],
        ),
        (topic(6, "id", form="json-schema"), [key(6, b'{"id":5}')], [row(5)]),
        (
            topic(7, "zone", form="json-schema"),
            [key(7, b'"a"'), key(7, '"ü{"'.encode())],
            [row(zone="a"), row(zone="ü{")],
        ),
        (topic(8, "id", form="json-schema"), [key(8, b"-5")], [row(-5)]),
    ],
)
def test_keys_become_key_columns_and_come_back(to: TopicInfo, sent: list[bytes], rows: list[dict[str, Any]]) -> None:
    records: list[Record] = [(one, b"{}") for one in sent]
    assert stored(records, to) == rows
    assert keys_back(records, to) == sent
    tombstones = to.configs | {"cleanup.policy": "compact"}
    assert stored([(sent[0], None)], info(SCHEMA, 1, to.key_columns, **_named(tombstones))) == rows[:1]


def _named(configs: dict[str, Any]) -> dict[str, Any]:
    return {name.replace(".", "_"): value for name, value in configs.items()}


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), st.none() | st.text(max_size=5)), min_size=1, max_size=40))
def test_every_client_chooses_the_partition_of_the_bytes_that_clients_of_kafka_send(ids: list[tuple[int, Any]]) -> None:
    to = topic(3, "zone", "id", partitions=7)
    columns = [pa.array([zone for _, zone in ids], pa.string()), pa.array([i for i, _ in ids], pa.int64())]
    sent = [avro_key(3, RECORD, {"id": i, "zone": zone}) for i, zone in ids]
    assert keys_of_rows(columns, to).to_pylist() == sent
    chosen = partitions_of_rows([pa.chunked_array([one]) for one in columns], to).tolist()
    assert chosen == [partition_for_key(one, 7) for one in sent]
    assert stored([(sent[0], b"{}")], to, chosen[0]) == [row(*ids[0])]


def test_a_record_in_another_partition_is_refused_with_both_and_the_bytes() -> None:
    to = topic(1, "id", partitions=5)
    own = avro_key(1, "long", 5)
    right = partition_for_key(own, 5)
    wrong = (right + 1) % 5
    with pytest.raises(InvalidRecordError) as refused:
        stored([(own, b"{}")], to, wrong)
    text = refused.value.records[0]
    assert f"partition {wrong} of" in text and f"partition {right} of 5" in text
    assert own.hex() in text and "schema 1" in text and "murmur2" in text


def test_a_key_of_another_schema_is_read_and_belongs_to_the_partition_of_the_topics_schema() -> None:
    one = topic(1, "id")
    assert stored([(avro_key(4, "long", 5), b"{}")], one) == [row(5)]
    assert keys_back([(avro_key(4, "long", 5), b"{}")], one) == [avro_key(1, "long", 5)]
    several = topic(1, "id", partitions=50)
    own, other = (partition_for_key(avro_key(i, "long", 5), 50) for i in (1, 4))
    assert own != other
    assert stored([(avro_key(4, "long", 5), b"{}")], several, own) == [row(5)]
    with pytest.raises(InvalidRecordError, match=f"partition {own} of 50"):
        stored([(avro_key(4, "long", 5), b"{}")], several, other)


@for_each(
    "to, sent, value, reason",
    [
        (topic(1, "id"), avro_key(1, "long", 5), b'{"id":6}', '{"id":5} in its key, but {"id":6} in its value'),
        (topic(1, "id"), b'{"id":5}', b"{}", "its key has no schema id"),
        (topic(1, "id"), b"\0\0", b"{}", "its key has no schema id: it has 2 bytes"),
        (topic(1, "id"), key(99, b"\x02"), b"{}", "the registry has no schema of this id"),
        (topic(1, "id"), avro_key(2, "string", "a"), b"{}", "(schema 2): field 'id'"),
        (topic(1, "id"), key(1, b"\x02\x02"), b"{}", "(schema 1)"),
        (topic(1, "id"), avro_key(3, RECORD, {"id": 1, "zone": "a"}), b"{}", "field 'zone' is no column"),
        (topic(1, "id"), key(5, b"\0\x10\x07"), b"{}", "the topic takes avro"),
        (topic(3, "zone", "id"), avro_key(1, "long", 5), b"{}", "the schema is long, and no record"),
        (topic(7, "zone", form="json-schema"), key(7, b'"a","zone":"b"'), b"{}", "its key"),
        (topic(7, "zone", form="json-schema"), key(7, b"5"), b"{}", "column 'zone' is string"),
        (topic(3, "zone", "id"), None, b'{"zone":"a"}', "field 'id' is null"),
        (topic(1, "id", cleanup_policy="compact"), None, b'{"zone":"a"}', "no key"),
    ],
)
def test_a_key_that_does_not_fit_is_refused_by_name(to: TopicInfo, sent: bytes, value: bytes, reason: str) -> None:
    fitting = b'{"id":1,"zone":"z"}'
    with pytest.raises(InvalidRecordError) as refused:
        stored([(None, fitting), (sent, value), (None, fitting)], to)
    assert list(refused.value.records) == [1] and reason in refused.value.records[1], refused.value.records


def test_a_row_without_a_key_is_a_null_key_of_partition_0() -> None:
    to = topic(1, "id", partitions=5)
    assert stored([(None, b'{"name":"x"}')], to) == [row(name="x")]
    assert keys_of_rows([pa.array([None, 5], pa.int64())], to).to_pylist() == [None, avro_key(1, "long", 5)]
    assert partitions_of_rows([pa.array([None, None], pa.int64())], to).tolist() == [0, 0]


def test_equal_numbers_are_one_key() -> None:
    columns = pa.schema([("x", pa.float64()), ("n", pa.int32())])
    pinned = pinned_schema(1, avro("double")).text
    to = info(columns, 9, ("x",), kafka_key_format="avro", kafka_key_schema=pinned)
    zero, minus = keys_of_rows([pa.array([0.0, -0.0])], to).to_pylist()
    assert zero == minus == avro_key(1, "double", 0.0)


def test_a_topic_without_a_key_schema_waits_for_one() -> None:
    to = info(SCHEMA, 3, ("id",), kafka_key_format="avro")
    with pytest.raises(KeySchemaMissingError):
        stored([(avro_key(1, "long", 5), b"{}")], to)
    with pytest.raises(SchemaMismatchError, match="register one for the subject 't-key'"):
        partitions_of_rows([pa.array([5], pa.int64())], to)


@for_each(
    "schema, columns, reason",
    [
        (avro(RECORD), ("id",), "'zone' is in one of them"),
        (LONG, ("zone",), "field 'zone'"),
        (LONG, ("id", "zone"), "no record"),
        (avro({"type": "record", "name": "K", "fields": [{"name": "id", "type": "string"}]}), ("id",), "field 'id'"),
        (MESSAGE, ("zone", "id"), "another type"),
    ],
)
def test_a_key_schema_that_is_not_the_key_columns_is_refused(
    schema: Parsed, columns: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(SchemaMismatchError, match=reason):
        check_key_schema(schema, "avro", pa.schema([SCHEMA.field(name) for name in columns]))


def test_new_topics_have_the_columns_of_their_keys() -> None:
    assert key_columns_of(TEXT) == pa.schema([("key", pa.string())])
    assert key_columns_of(avro(RECORD)).names == ["id", "zone"]
    assert key_columns_of(MESSAGE).names == ["zone", "id"]
    assert key_columns_of(JSON_NUMBER) == pa.schema([("key", pa.int64())])
    with pytest.raises(SchemaMismatchError, match="names no columns"):
        key_columns_of(OBJECT)


def with_references() -> list[tuple[Parsed, str, Any]]:
    """Key schemas that refer to others, one of them twice and through another, with their forms and a key."""
    zone = avro({"type": "enum", "name": "geo.Zone", "symbols": ["N", "S"]})
    inner = {"type": "record", "name": "In", "fields": [{"name": "zone", "type": "geo.Zone"}]}
    place = parse_avro(json.dumps(inner), {"zone": zone})
    fields = [{"name": "id", "type": "In"}, {"name": "zone", "type": "geo.Zone"}]
    outer = parse_avro(json.dumps({"type": "record", "name": "K", "fields": fields}), {"place": place, "zone": zone})
    e = 'syntax = "proto3"; package geo; enum Zone { N = 0; S = 1; }'
    m = 'syntax = "proto3"; import "e.proto"; message In { geo.Zone zone = 1; }'
    k = 'syntax = "proto3"; import "m.proto"; import "e.proto"; message K { In id = 1; geo.Zone zone = 2; }'
    zones = parse_protobuf(e, {})
    messages = parse_protobuf(m, {"e.proto": zones})
    text = parse_json_schema('{"$id": "t", "type": "string"}', {})
    through = parse_json_schema('{"$ref": "t"}', {"t": text})
    return [
        (outer, "avro", {"id": {"zone": "S"}, "zone": "N"}),
        (parse_protobuf(k, {"m.proto": messages, "e.proto": zones}), "protobuf", {"id": {"zone": "S"}, "zone": "N"}),
        (parse_json_schema('{"$ref": "u"}', {"u": through, "t": text}), "json-schema", {"zone": "a"}),
    ]


def test_a_key_schema_with_references_needs_no_registry() -> None:
    for schema, form, key_row in with_references():
        whole = pa.schema([("id", pa.struct([("zone", pa.string())])), ("zone", pa.string()), ("name", pa.string())])
        names = tuple(key_row)
        pinned = pinned_schema(9, schema)
        to = info(whole, 1, names, kafka_key_format=form, kafka_key_schema=pinned.text)
        columns = [pa.array([key_row[name]], whole.field(name).type) for name in names]
        (own,) = keys_of_rows(columns, to).to_pylist()
        assert own is not None and own[:5] == b"\0\0\0\0\x09"
        schemas = FixedSchemas({9: schema})
        read = read_keys(
            pa.array([own], pa.binary()), pa.schema([whole.field(name) for name in names]), to, schemas, 1 << 20
        )
        assert read.to_pylist() == [key_row]
        assert PinnedSchema.read(pinned.text) == pinned and len(pinned.parts) == 2, "each is there once"


def test_a_key_schema_with_too_large_references_is_refused() -> None:
    fields = [{"name": f"field_{i}", "type": "string"} for i in range(2_000)]
    large = avro({"type": "record", "name": "In", "fields": fields})
    outer = parse_avro('{"type": "record", "name": "K", "fields": [{"name": "id", "type": "In"}]}', {"in": large})
    with pytest.raises(SchemaMismatchError, match="this one with the 1 schemas that it uses has"):
        pinned_schema(1, outer)


@for_each(
    "configs, reason",
    [
        ({"kafka.key.format": "json", "kafka.key.schema": '{"id":1}'}, "only keys in avro"),
        ({"kafka.key.format": "avro", "kafka.key.schema": "{}"}, "no schema with its id"),
        ({"kafka.key.format": "avro", "kafka.key.schema": json.dumps({"id": 1, "parts": [{}] * 101})}, "length <= 100"),
        (
            {"kafka.key.format": "avro", "kafka.key.schema": json.dumps({"id": 1, "schema": "x" * 70_000})},
            "at most 65536",
        ),
    ],
)
def test_a_topics_key_schema_is_checked(configs: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidConfigError, match=reason):
        with_key_format("t", SCHEMA, ["id"], configs)


def test_a_topic_keeps_its_key_schema() -> None:
    before = {"kafka.key.format": "avro"}
    after = before | {"kafka.key.schema": pinned_schema(1, LONG).text}
    check_same_key_format("t", before, after)
    check_same_key_format("t", after, after | {"retention.ms": 5})
    for changed in (before, before | {"kafka.key.schema": pinned_schema(4, OTHER).text}):
        with pytest.raises(InvalidConfigError, match="cannot be changed"):
            check_same_key_format("t", after, changed)


@for_each(
    "form, setting",
    [
        ("avro", {"id": 1, "schema": "{"}),
        ("avro", {"id": 1, "schema": "[" * 60_000}),
        ("avro", {"id": 1, "schema": '"long"', "type": "JSON"}),
        ("json-schema", {"id": 1, "schema": "{", "type": "JSON"}),
        ("json-schema", {"id": 1, "schema": "[" * 60_000, "type": "JSON"}),
        ("protobuf", {"id": 1, "type": "PROTOBUF"}),
        ("protobuf", {"id": 1, "type": "PROTOBUF", "compiled": "syntax = 'proto3';"}),
        ("protobuf", {"id": 1, "type": "PROTOBUF", "compiled": "/////w=="}),
        ("avro", {"id": 1, "schema": '"long"', "uses": {"a": 0}}),
        ("avro", {"id": 1, "schema": '"long"', "uses": {"a": -1}, "parts": [{"schema": '"long"'}]}),
        ("avro", {"id": 1, "schema": '"F"', "parts": [{"schema": '"F"', "uses": {"a": 0}}], "uses": {"a": 0}}),
        (
            "protobuf",
            {"id": 1, "type": "PROTOBUF", "compiled": "/////w==", "parts": [{"compiled": "x"}], "uses": {"a": 0}},
        ),
    ],
)
def test_a_key_schema_that_a_hostile_writer_has_set_is_an_error_of_the_topic(
    form: str, setting: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *arguments, **options: pytest.fail("no compiler is needed"))
    to = info(SCHEMA, 3, ("id",), kafka_key_format=form, kafka_key_schema=json.dumps(setting))
    with pytest.raises(SchemaMismatchError):
        partitions_of_rows([pa.array([5], pa.int64())], to)


def test_a_null_in_a_key_field_with_a_default_is_refused() -> None:
    fields = [{"name": "id", "type": "int"}, {"name": "zone", "type": "string", "default": "a"}]
    schema = avro({"type": "record", "name": "K", "fields": fields})
    rows = pa.RecordBatch.from_pylist([{"id": 1, "zone": None}], pa.schema([("id", pa.int32()), ("zone", pa.string())]))
    with pytest.raises(UnwritableRowError, match="field 'zone' is null"):
        write_payloads(rows, schema, Target("t", "avro", rows.schema, "", "key"), Space(1 << 20))


ENUM_KEY = avro({"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "A"})
PLAIN_KEY = parse_protobuf(
    'syntax = "proto3"; message K { string a = 1; optional string b = 2; E e = 3; '
    "enum E { option allow_alias = true; Z = 0; Y = 0; } }",
    {},
)


@for_each(
    "schema, form, row, reason",
    [
        (ENUM_KEY, "avro", {"a": "B"}, ""),
        (ENUM_KEY, "avro", {"a": "C"}, "'C' is no symbol of the enum E"),
        (PLAIN_KEY, "protobuf", {"a": "", "b": None, "e": "Z"}, ""),
        (PLAIN_KEY, "protobuf", {"a": None, "b": "", "e": "Z"}, "field 'a' is null, and the message has no null there"),
        (PLAIN_KEY, "protobuf", {"a": "", "b": "", "e": "Y"}, "field 'e' has the second name of an enum's value"),
    ],
)
def test_distinct_keys_have_distinct_bytes(schema: Parsed, form: str, row: dict[str, Any], reason: str) -> None:
    columns = pa.schema([(name, pa.string()) for name in row])
    to = info(columns, 9, tuple(row), kafka_key_format=form, kafka_key_schema=pinned_schema(1, schema).text)
    arrays = [pa.array([value], pa.string()) for value in row.values()]
    if not reason:
        assert keys_of_rows(arrays, to).null_count == 0
    else:
        with pytest.raises(UnwritableRowError, match=reason):
            keys_of_rows(arrays, to)


@for_each(
    "source, columns, reason",
    [
        ({"type": "integer"}, "k BIGINT", ""),
        ({"type": "string"}, "k DECIMAL(5,2)", ""),
        ({"type": "number"}, "k DECIMAL(5,2)", "field 'k' is integer, number, and the values of its column"),
        ({"type": "string"}, "k BIGINT", "field 'k' is string, and the values of its column (BIGINT) are integer"),
        ({"type": "string"}, "k STRING, l STRING", "the keys of 2 columns are objects"),
        ({"properties": {"k": {"type": "string"}}}, "k STRING, l STRING", ""),
        ({"properties": {"k": {"type": "string"}}}, "k BIGINT, l STRING", "field 'k' is string"),
    ],
)
def test_a_json_schema_accepts_the_keys_of_its_topic(source: Any, columns: str, reason: str) -> None:
    schema = parse_json_schema(json.dumps(source), {})
    if not reason:
        check_key_schema(schema, "json-schema", parse_ddl(columns))
    else:
        with pytest.raises(SchemaMismatchError, match=re.escape(reason)):
            check_key_schema(schema, "json-schema", parse_ddl(columns))
