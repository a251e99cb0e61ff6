"""The columns of the source, and their content."""

from __future__ import annotations

import datetime
from typing import Any

from tests.spark.kafka_parity.checks import Checks
from tests.spark.kafka_parity.jobs import Jobs, values
from tests.spark.kafka_parity.systems import System, unused_name

HEADERS = [("a", b"b"), ("c", b"d")]
COLUMNS = (
    "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int>"
)


def test_schema(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    batch = jobs.batch(topic)
    check("batch", batch.schema.simpleString(), COLUMNS)
    check("stream", jobs.stream(topic).schema.simpleString(), COLUMNS)
    check("nullable", {f.name for f in batch.schema if not f.nullable}, set())
    more = jobs.batch(topic, includeHeaders="true").schema
    check("headers", more["headers"].dataType.simpleString(), "array<struct<key:string,value:binary>>")
    check("headers are last", more.names[-1], "headers")
    check("isStreaming", (batch.isStreaming, jobs.stream(topic).isStreaming), (False, True))


def test_column_types(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    system.send(topic, "1", headers=HEADERS, timestamp_ms=1_700_000_000_123)
    row = jobs.batch(topic, includeHeaders="true").first()
    check("key", row.key, None)
    check("value", bytes(row.value), b"1")
    check("topic", row.topic == topic, True)
    check("partition", row.partition, 0)
    check("offset", row.offset, 0)
    check("timestamp", row.timestamp.timestamp(), 1_700_000_000.123)
    check("timestampType", row.timestampType, 0)
    check("headers", [(h.key, bytes(h.value)) for h in row.headers], HEADERS)
    stream = jobs.stream(topic, includeHeaders="true", startingOffsets="earliest")
    check("the same in a stream", jobs.run(stream).rows == [row], True)


def test_log_append_time(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic, message_timestamp_type="LogAppendTime")
    before = datetime.datetime.now().timestamp()
    system.send(topic, "1", timestamp_ms=1_000)
    row = jobs.batch(topic).first()
    check("timestampType", row.timestampType, 1)
    check("timestamp of the append", row.timestamp.timestamp() >= before - 1, True)


def test_headers(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic, 3)
    system.send(topic, "1", partition=0)
    system.send(topic, "2", partition=1, headers=HEADERS)
    system.send(topic, "3", partition=2, headers=[("e", b"f"), ("e", b"g")])
    found: dict[str, Any] = {
        bytes(r.value).decode(): None if r.headers is None else [(h.key, bytes(h.value)) for h in r.headers]
        for r in jobs.batch(topic, includeHeaders="true").collect()
    }
    check("none", found["1"], None)
    check("two", found["2"], HEADERS)
    check("one name twice", found["3"], [("e", b"f"), ("e", b"g")])
    check("not asked for", "headers" in jobs.batch(topic).columns, False)


def test_null_keys_and_values(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    system.send(topic, None)
    system.send(topic, None, key="k")
    system.send(topic, "v")
    system.send(topic, "", key="")
    expected = [(None, None), (b"k", None), (None, b"v"), (b"", b"")]

    def pairs(rows: list[Any]) -> list[Any]:
        def plain(cell: Any) -> Any:
            return None if cell is None else bytes(cell)

        return [(plain(r.key), plain(r.value)) for r in sorted(rows, key=lambda r: r.offset)]

    check("batch", pairs(jobs.batch(topic).collect()), expected)
    check("stream", pairs(jobs.run(jobs.stream(topic, startingOffsets="earliest")).rows), expected)


def test_order_and_columns_alone(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    system.send(topic, *(str(n) for n in range(50)))
    frame = jobs.batch(topic)
    check("order of a partition", [int(bytes(r.value)) for r in frame.collect()], list(range(50)))
    check("count", frame.count(), 50)
    check("a column alone", [r.offset for r in frame.select("offset").collect()], list(range(50)))
    check("filter", values(frame.where("offset between 3 and 5")), ["3", "4", "5"])
    check("limit", len(frame.limit(7).collect()), 7)
    check("take", [bytes(r.value) for r in frame.take(2)], [b"0", b"1"])


def test_a_timestamp_that_spark_cannot_hold(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    nanoseconds = 1_712_345_678_123_456_789
    try:
        system.send(topic, "a", timestamp_ms=nanoseconds)
        found = jobs.batch_error("overflow", topic=topic)
    except Exception as e:  # noqa: BLE001
        found = f"send(): {'timestamp' if 'timestamp' in str(e) else e}"
    check("nanoseconds", found, "send(): timestamp")


def test_large_records(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    system.send(topic, "x" * 900_000, "y")
    check("lengths", [len(r.value) for r in jobs.batch(topic).collect()], [900_000, 1])
