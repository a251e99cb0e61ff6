"""Debezium's events in a DataFrame: the same rows and the same refusals as in a list."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import sparklog
from tests.unit.debezium.envelopes import DATA, PLACEHOLDER, TIME, decimal, event, field, in_base64, key, unscaled

FIELDS = [
    field("id", "int64"),
    decimal("price", 10, 2),
    field("day", "int32", TIME + "Date"),
    field("ms", "int64", TIME + "Timestamp"),
    field("us", "int64", TIME + "MicroTimestamp"),
    field("ns", "int64", TIME + "NanoTimestamp"),
    field("zoned", "string", TIME + "ZonedTimestamp"),
    field("doc", "string", DATA + "Json"),
    field("raw", "bytes"),
    {"field": "tags", "type": "array", "items": {"type": "string"}},
    {"field": "h", "type": "map", "keys": {"type": "string"}, "values": {"type": "string"}},
    field("s", "struct", fields=[field("x y", "int32")]),
]
DDL = (
    "id BIGINT, price DECIMAL(10,2), day DATE, ms TIMESTAMP, us TIMESTAMP_NTZ, ns TIMESTAMP, zoned TIMESTAMP, "
    "doc VARCHAR(100) NOT NULL, raw BINARY, tags ARRAY<STRING>, h MAP<STRING, STRING>, s STRUCT<`x y`: INT>"
)
US = 1_700_000_000_123_456
ROW = {
    "id": 1,
    "price": unscaled(-1234),
    "day": 19_675,
    "ms": US // 1_000,
    "us": US,
    "ns": US * 1_000,
    "zoned": "2023-11-14T22:13:20.123456Z",
    "doc": "{}",
    "raw": in_base64(b"\0\1"),
    "tags": ["a"],
    "h": {"k": "v"},
    "s": {"x y": 5},
}
ABSENT = {"doc": PLACEHOLDER, "raw": in_base64(PLACEHOLDER.encode()), "tags": [PLACEHOLDER]}
INSTANT = datetime(2023, 11, 14, 22, 13, 20, 123_456)


def rows_of(frame: Any) -> list[dict[str, Any]]:
    """Return the rows of a DataFrame as `unwrap_debezium` returns those of a list."""
    found = []
    for row in frame.collect():
        fields = row.asDict(recursive=True)
        for name, value in fields.items():
            if isinstance(value, datetime) and name in ("ms", "ns", "zoned"):
                fields[name] = value.astimezone(UTC)  # Spark's collect has the local time
            elif isinstance(value, bytearray):
                fields[name] = bytes(value)
            elif name == "h" and value is not None:
                fields[name] = list(value.items())
        found.append(fields)
    return found


def test_a_dataframe_has_the_rows_of_a_list(spark: Any) -> None:
    events = [
        event("c", None, ROW, FIELDS),
        event("u", None, {**ROW, "price": unscaled(5), **ABSENT}, FIELDS),
        event("d", None, None, FIELDS),
        None,
        event("c", None, {**ROW, "id": 2}, FIELDS),
    ]
    keys = [key({"id": i}) for i in (1, 1, 1, 1, 2)]
    frame = spark.createDataFrame(list(zip(keys, events, strict=True)), "key BINARY, value BINARY").coalesce(1)
    unwrapped = sparklog.unwrap_debezium(frame, DDL)
    found = rows_of(unwrapped)
    assert found == sparklog.unwrap_debezium(events, DDL, keys=keys)
    assert (found[0]["price"], found[0]["us"], found[0]["ns"]) == (
        Decimal("-12.34"),
        INSTANT,
        INSTANT.replace(tzinfo=UTC),
    )
    assert [(row["id"], row["doc"], row["_op"]) for row in found] == [
        (1, "{}", "c"),
        (1, "{}", "u"),
        (1, None, "d"),
        (2, "{}", "c"),
    ]
    # the newest rows, in another DataFrame, have what the events lack
    latest = unwrapped.where("id = 2").drop("_op")
    later = [event("u", None, {**ROW, "id": i, "doc": "[]", "tags": [PLACEHOLDER]}, FIELDS) for i in (2, 3)]
    frame = spark.createDataFrame([(later[0].decode(),)], ["value"])
    [row] = rows_of(sparklog.unwrap_debezium(frame, DDL, latest=latest, key_columns=["id"]))
    assert (row["id"], row["doc"], row["tags"]) == (2, "[]", ["a"])
    lost = spark.createDataFrame([(later[1].decode(),)], ["value"])
    refused = [
        (lost, {"latest": latest, "key_columns": ["id"]}, "column 'tags' is unavailable"),
        (frame, {}, "column 'tags' is unavailable"),
        (spark.createDataFrame([('{"op": "c", "after": {"ms": 5}}',)], ["value"]), {}, "column 'ms'.*types="),
    ]
    for events_frame, options, reason in refused:
        with pytest.raises(Exception, match=f"DeserializationError: .*{reason}"):
            sparklog.unwrap_debezium(events_frame, DDL, **options).collect()
    for options in ({}, {"schema": DDL, "latest": latest}):
        with pytest.raises(TypeError, match="of a DataFrame needs"):
            sparklog.unwrap_debezium(frame, **options)


def test_a_stream_of_a_topic_is_unwrapped(
    spark: Any,
    admin: sparklog.Admin,
    producer: sparklog.Producer,
    reads: Any,
    topic_name: Callable[[str], str],
    tmp_path: Path,
) -> None:
    topic = topic_name("changes")
    admin.create_topic(topic, 1)
    for i, after in enumerate((ROW, {**ROW, **ABSENT})):
        producer.send(topic, event("cu"[i], None, after, FIELDS), key=key({"id": 1}))
    producer.flush()
    rows = sparklog.unwrap_debezium(reads.stream(topic, startingOffsets="earliest"), DDL)
    writer = rows.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination()
    found = rows_of(spark.read.parquet(str(tmp_path / "out")))
    assert sorted((row["_op"], row["doc"], row["raw"]) for row in found) == [("c", "{}", b"\0\1"), ("u", "{}", b"\0\1")]
