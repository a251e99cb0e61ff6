"""`spark.read.format("sparklog")`: rows, types, ranges, projections."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import sparklog
from sparklog import TopicPartition
from tests.spark.frames import values

UTC = dt.UTC
EVERY_TYPE = pa.schema(
    [
        ("bool", pa.bool_()),
        ("i8", pa.int8()),
        ("i16", pa.int16()),
        ("i32", pa.int32()),
        ("i64", pa.int64()),
        ("f32", pa.float32()),
        ("f64", pa.float64()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("day", pa.date32()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("lasted", pa.duration("us")),
        ("price", pa.decimal128(20, 4)),
        ("list", pa.list_(pa.int64())),
        ("map", pa.map_(pa.string(), pa.decimal128(5, 2))),
        ("struct", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.struct([("c", pa.string())])))])),
        ("nothing", pa.null()),
    ]
)
ROW: dict[str, Any] = {
    "bool": True,
    "i8": -128,
    "i16": 32767,
    "i32": -(2**31),
    "i64": 2**63 - 1,
    "f32": 1.5,
    "f64": -2.25,
    "text": "Zürich ✈",
    "raw": b"\x00\xff",
    "day": dt.date(1969, 12, 31),
    "at": dt.datetime(2013, 1, 1, 5, 15, 0, 123456, tzinfo=UTC),
    "local": dt.datetime(2013, 1, 1, 5, 15, 0, 123456),
    "lasted": dt.timedelta(days=1, microseconds=7),
    "price": Decimal("1234567890123456.7891"),
    "list": [1, None, 3],
    "map": [("a", Decimal("1.25")), ("b", None)],
    "struct": {"a": 1, "b": [{"c": "x"}, None]},
    "nothing": None,
}
NULLS = dict.fromkeys(EVERY_TYPE.names)


def test_every_type_of_a_typed_topic_arrives_unchanged(reads: Any, topic: Any, producer: sparklog.Producer) -> None:
    name = topic(schema=EVERY_TYPE)
    producer.send_batch(name, pa.Table.from_pylist([ROW, NULLS, ROW], schema=EVERY_TYPE)).result(30)
    frame = reads.batch(name)
    assert dict(frame.dtypes) == {
        "bool": "boolean",
        "i8": "tinyint",
        "i16": "smallint",
        "i32": "int",
        "i64": "bigint",
        "f32": "float",
        "f64": "double",
        "text": "string",
        "raw": "binary",
        "day": "date",
        "at": "timestamp",
        "local": "timestamp_ntz",
        "lasted": "interval day to second",
        "price": "decimal(20,4)",
        "list": "array<bigint>",
        "map": "map<string,decimal(5,2)>",
        "struct": "struct<a:int,b:array<struct<c:string>>>",
        "nothing": "string",
    }
    found = frame.toArrow().to_pylist()
    assert found == [ROW, NULLS, ROW]


@pytest.fixture
def events(topic: Any, producer: sparklog.Producer, send: Any) -> str:
    """Two partitions: values a0…a9 at 1000, 2000, … ms and b0…b4."""
    name = str(topic("events", 2))
    for i in range(10):
        producer.send(name, value=b"a%d" % i, key=b"k", timestamp_ms=1000 * (i + 1), partition=0)
    producer.send(name, value=None, headers=[("h", b"1"), ("h", None)], timestamp_ms=500, partition=1)
    for i in range(1, 5):
        producer.send(name, value=b"b%d" % i, timestamp_ms=500, partition=1)
    producer.flush()
    return name


def test_an_envelope_topic_looks_as_with_sparks_kafka_source(reads: Any, events: str) -> None:
    frame = reads.batch(events)
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
    )
    row = frame.where("partition = 0 and offset = 3").first().asDict()
    assert row.pop("timestamp").replace(tzinfo=None) == dt.datetime(1970, 1, 1, 0, 0, 4)
    assert row == {
        "key": bytearray(b"k"),
        "value": bytearray(b"a3"),
        "topic": events,
        "partition": 0,
        "offset": 3,
        "timestampType": 0,
    }
    assert frame.count() == 15


def test_timestamps(reads: Any, events: str) -> None:
    by_timestamp = json.dumps({events: {"0": 2500, "1": 500}})
    found = reads.batch(events, startingOffsetsByTimestamp=by_timestamp, endingTimestamp="4000")
    assert values(found) == ["", "a2", "b1", "b2", "b3", "b4"]
    later = reads.batch(events, startingTimestamp="9000", startingOffsetsByTimestampStrategy="latest")
    assert values(later) == ["a8", "a9"]
    with pytest.raises(
        Exception, match=rf"No offset matched from request of topic-partition {events}-1 and timestamp 9000"
    ):
        reads.batch(events, startingTimestamp="9000").count()


def test_assigned_partitions(reads: Any, events: str) -> None:
    assert reads.batch(assign=json.dumps({events: [1]})).count() == 5
    with pytest.raises(Exception, match="has partitions 0 to 1, there is no 2"):
        reads.batch(assign=json.dumps({events: [2]}))


def test_subscribe_pattern_and_several_topics(reads: Any, topic: Any, send: Any, events: str) -> None:
    other = topic("pattern-x")
    send(other, "x")
    assert reads.batch(subscribePattern=f"{events}|pattern-x.*").count() == 16
    assert reads.batch(f"{events},{other}").groupBy("topic").count().count() == 2


@pytest.fixture
def typed(topic: Any, producer: sparklog.Producer) -> str:
    schema = pa.schema([("carrier", pa.string()), ("delay", pa.int32()), ("at", pa.timestamp("us", "UTC"))])
    name = str(topic("typed", schema=schema, timestamp_column="at"))
    rows = [{"carrier": c, "delay": d, "at": 1_000_000 * d} for c, d in [("UA", 1), ("AA", 2), ("DL", 3)]]
    producer.send_batch(name, pa.Table.from_pylist(rows, schema=schema)).result(30)
    return name


def test_metadata_of_a_typed_topic(reads: Any, typed: str) -> None:
    frame = reads.batch(typed, includeMetadata="true")
    assert frame.columns == ["carrier", "delay", "at", "_topic", "_partition", "_offset", "_timestamp"]
    row = frame.where("_offset = 2").first()
    assert (row.carrier, row._topic, row._partition, row._timestamp) == ("DL", typed, 0, row.at)


def test_columns_are_pruned(reads: Any, typed: str) -> None:
    assert reads.batch(typed, columns="delay,carrier").collect()[0] == (1, "UA")
    frame = reads.batch(typed, columns="_offset", includeMetadata="true")
    assert [r._offset for r in frame.collect()] == [0, 1, 2]
    with pytest.raises(Exception, match="no column 'delai': did you mean 'delay'"):
        reads.batch(typed, columns="delai")


def test_a_users_schema_is_a_checked_projection(reads: Any, typed: str) -> None:
    frame = reads.batch(typed, schema="delay int, carrier string")
    assert [tuple(r) for r in frame.collect()] == [(1, "UA"), (2, "AA"), (3, "DL")]
    assert reads.batch(typed, schema="delay int not null").agg({"delay": "sum"}).first()[0] == 6
    with pytest.raises(Exception, match="column 'delay' is int, the schema says bigint; no column 'carier'"):
        reads.batch(typed, schema="delay bigint, carier string").collect()
    with pytest.raises(Exception, match="pick different columns"):
        reads.batch(typed, schema="delay int", columns="carrier").collect()


def test_topics_of_different_kinds_are_named(reads: Any, typed: str, events: str) -> None:
    with pytest.raises(Exception, match=f"envelope: {events}; typed: {typed}"):
        reads.batch(f"{typed},{events}")


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_socket_and_files_give_the_same_rows(
    reads: Any, topic: Any, broker: sparklog.LocalBroker, compression: str
) -> None:
    name = topic("same", 2, configs={"segment.bytes": 256 * 1024})
    with sparklog.Producer(broker.bootstrap_servers, compression=compression, batch_size_bytes=64 * 1024) as p:
        for i in range(20):
            rows = {"value": [b"%04d-%06d" % (i, j) + b"x" * 80 for j in range(1000)], "partition": [i % 2] * 1000}
            p.send_batch(name, pa.table(rows))
    by_file, by_socket = (
        reads.batch(name, **{"sparklog.local.read": how})
        .toArrow()
        .sort_by([("partition", "ascending"), ("offset", "ascending")])
        for how in ("auto", "off")
    )
    assert by_file.num_rows == 20_000
    assert by_file.equals(by_socket)
    assert by_file.column("offset").to_pylist() == list(range(10_000)) * 2


def test_a_frame_read_after_its_topic_was_deleted(reads: Any, topic: Any, send: Any, admin: sparklog.Admin) -> None:
    name = topic("gone")
    send(name, "x")
    frame = reads.batch(name)
    admin.delete_topic(name)
    with pytest.raises(Exception, match=f"no topic '{name}'"):
        frame.count()


def test_offsets_are_those_of_the_log(reads: Any, events: str, admin: sparklog.Admin) -> None:
    ends = admin.list_offsets({TopicPartition(events, p): "latest" for p in (0, 1)})
    found = {
        r.partition: r["max(offset)"] + 1 for r in reads.batch(events).groupBy("partition").max("offset").collect()
    }
    assert found == {tp.partition: o.offset for tp, o in ends.items()}
