"""Ids of schemas in headers: GUIDs and numbers, of values and keys, beside other headers."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from sparklog.client.net.topic_info import TopicInfo
from sparklog.format.schema import ENVELOPE_SCHEMA, HEADER_TYPE, TIMESTAMP_TYPE
from sparklog.kafka.records.errors import InvalidRecordError
from sparklog.kafka.values.fitting import fitting_rows, rows_reader
from sparklog.kafka.values.framed_keys import pinned_schema
from sparklog.kafka.values.header_ids import IDS_PER_BATCH_MAX, framed_parts
from sparklog.kafka.values.schemas import SchemasNotLoadedError
from sparklog.mirror.readers import header_reader, value_reader
from tests.support.cases import for_each
from tests.support.clients import info
from tests.unit.gateway.registry_schemas import FixedSchemas, avro

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
FIRST, SECOND, MISSING = (UUID(int=i << 64) for i in (1, 2, 3))
SCHEMAS = FixedSchemas({1: avro("long"), 2: avro("string")})
SCHEMAS.guids = {FIRST: 1, SECOND: 2}
PLAIN = info(SCHEMA, 1, (), kafka_value_format="avro")
KEYED = info(SCHEMA, 1, ("id",), kafka_key_format="avro", kafka_key_schema=pinned_schema(1, avro("long")).text)
KEY, VALUE = "__key_schema_id", "__value_schema_id"
Headers = list[tuple[str, bytes | None]] | None


def of(guid: UUID, index: bytes = b"") -> bytes:
    return b"\1" + guid.bytes + index


def parts(
    headers: list[Headers], topic: TopicInfo = PLAIN, value_format: str = "avro"
) -> tuple[list[Any], list[Any], list[bool]]:
    count = len(headers)
    entries = [None if one is None else [{"key": k, "value": v} for k, v in one] for one in headers]
    keys = pa.array([b"k%d" % i for i in range(count)], pa.binary())
    values = pa.array([None if i == 5 else b"v%d" % i for i in range(count)], pa.binary())
    framed = framed_parts(keys, values, pa.array(entries, HEADER_TYPE), topic, value_format, SCHEMAS)
    return framed.keys.to_pylist(), framed.values.to_pylist(), framed.has_headers.tolist()


def test_ids_of_headers_stand_before_the_values() -> None:
    number = b"\0\0\0\0\x07"
    headers: list[Headers] = [
        [(VALUE, of(FIRST))],
        None,
        [("trace", b"x"), (VALUE, number)],
        [],
        [(VALUE, of(SECOND, b"\x02\x04")), (KEY, of(FIRST))],
        [(VALUE, of(FIRST))],
    ]
    keys, values, has_headers = parts(headers)
    one, two = b"\0\0\0\0\1", b"\0\0\0\0\2"
    assert values == [one + b"v0", b"v1", number + b"v2", b"v3", two + b"\x02\x04v4", None]
    assert keys == [b"k%d" % i for i in range(6)], "the topic stores no keys"
    assert has_headers == [False, False, True, False, False, False]


def test_keys_have_ids_of_their_own() -> None:
    headers: list[Headers] = [[(KEY, of(FIRST)), (VALUE, of(SECOND))], [(VALUE, of(SECOND))]]
    keys, values, has_headers = parts(headers, KEYED)
    assert keys == [b"\0\0\0\0\1k0", b"k1"] and not any(has_headers)
    keys, values, has_headers = parts(headers, KEYED, "json")
    assert keys == [b"\0\0\0\0\1k0", b"k1"] and values == [b"v0", b"v1"] and has_headers == [True, True]


@for_each(
    "content, reason",
    [
        (b"", "has 0 bytes"),
        (None, "has 0 bytes"),
        (b"\1short", "has 6 bytes"),
        (b"\2" + FIRST.bytes, "a byte 1 and a GUID"),
        (of(FIRST, bytes(65)), "has 82 bytes"),
        (of(MISSING), "no schema of this GUID"),
    ],
)
def test_a_header_without_a_schema_is_refused_by_record(content: bytes | None, reason: str) -> None:
    with pytest.raises(InvalidRecordError) as refused:
        parts([[(VALUE, of(FIRST))], [(VALUE, content)], None])
    assert list(refused.value.records) == [1] and reason in refused.value.records[1]


def test_many_ids_are_refused_without_the_registry() -> None:
    class Unloaded(FixedSchemas):
        def id_of(self, guid: UUID) -> int | None:
            raise SchemasNotLoadedError(guids=[guid])

    def read(count: int) -> None:
        entries = [[{"key": VALUE, "value": of(UUID(int=i))}] for i in range(count)]
        column = pa.array([b"v"] * count, pa.binary())
        framed_parts(column, column, pa.array(entries, HEADER_TYPE), PLAIN, "avro", Unloaded())

    with pytest.raises(SchemasNotLoadedError) as missing:
        read(IDS_PER_BATCH_MAX)
    assert len(missing.value.guids) == IDS_PER_BATCH_MAX
    with pytest.raises(InvalidRecordError, match="more than 100 headers"):
        read(IDS_PER_BATCH_MAX + 1)


@for_each("drops_headers", [False, True])
def test_a_mirror_reads_ids_in_headers_and_refuses_the_others_one_by_one(drops_headers: bool) -> None:
    source = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
    schemas = FixedSchemas({1: avro(source)})
    schemas.guids = {FIRST: 1}
    headers: list[Headers] = [
        [(VALUE, of(FIRST))],
        [(VALUE, of(MISSING))],
        [("trace", b"x"), (VALUE, of(FIRST))],
        None,
        [(VALUE, of(FIRST)), (KEY, of(FIRST))],
    ]
    entries = [None if one is None else [{"key": k, "value": v} for k, v in one] for one in headers]
    values = [b"\x02", b"\x04", b"\x06", b"\0\0\0\0\1\x08", b"\x0a"]
    records = pa.RecordBatch.from_arrays(
        [pa.nulls(5, pa.binary()), pa.array(values), pa.array(entries, HEADER_TYPE), pa.nulls(5, TIMESTAMP_TYPE)],
        schema=ENVELOPE_SCHEMA,
    )
    read, read_headers = value_reader("avro", schemas, 1 << 24), header_reader("avro", schemas)
    topic = info(pa.schema([("id", pa.int64())]), 1, (), kafka_value_format="avro")
    fitting = fitting_rows(
        records,
        topic,
        rows_reader(read, topic),
        bytes_max=1 << 24,
        drops_headers=drops_headers,
        read_headers=read_headers,
    )
    refused = {1: "no schema of this GUID"} if drops_headers else {1: "no schema of this GUID", 2: "has headers"}
    assert fitting.refused.keys() == refused.keys()
    assert all(reason in fitting.refused[i] for i, reason in refused.items())
    assert fitting.rows["id"].to_pylist() == ([1, 3, 4, 5] if drops_headers else [1, 4, 5])
    assert fitting.places.tolist() == ([0, 2, 3, 4] if drops_headers else [0, 3, 4])
