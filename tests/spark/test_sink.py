"""Writing: batches and streams, envelope and typed topics, and refusals before a row is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark_sparklog.compatibility import STREAMS_CAN_BE_WRITTEN

import sparklog
from tests.support.cases import in_gate


def options(broker: sparklog.LocalBroker, **more: Any) -> dict[str, Any]:
    return {"sparklog.bootstrap.servers": broker.bootstrap_servers} | more


def append(frame: Any, broker: sparklog.LocalBroker, **more: Any) -> None:
    frame.write.format("sparklog").mode("append").options(**options(broker, **more)).save()


def stored(broker: sparklog.LocalBroker, topic: str) -> list[dict[str, Any]]:
    return list(sparklog.read_table(broker.bootstrap_servers, topic, include_metadata=True).to_pylist())


def test_an_envelope_topic_takes_keys_values_headers_and_partitions(
    spark: Any, topic: Any, broker: sparklog.LocalBroker
) -> None:
    name = topic(partitions=3)
    frame = spark.sql(
        "select 'k' as key, cast(id as string) as value, int(id % 3) as partition, "
        "case when id = 4 then array(named_struct('key', 'h', 'value', cast('v' as binary))) end as headers from range(6)"
    )
    append(frame, broker, topic=name)
    rows = stored(broker, name)
    assert {(r["_partition"], r["value"]) for r in rows} == {(i % 3, str(i).encode()) for i in range(6)}
    assert {r["key"] for r in rows} == {b"k"}
    assert [r["headers"] for r in rows if r["value"] == b"4"] == [[{"key": "h", "value": b"v"}]]


def test_a_topic_that_was_deleted_and_created_again_is_written(
    spark: Any, admin: sparklog.Admin, topic: Any, broker: sparklog.LocalBroker
) -> None:
    name = topic(schema="id BIGINT")
    append(spark.range(3).coalesce(1), broker, topic=name)  # the Python worker now knows the topic
    admin.delete_topic(name)
    admin.create_topic(name, schema="id BIGINT")
    append(spark.range(10, 12).coalesce(1), broker, topic=name)
    assert [r["id"] for r in stored(broker, name)] == [10, 11]


FLIGHTS = pa.schema([("carrier", pa.string()), ("delay", pa.int32()), ("at", pa.timestamp("us", "UTC"))])


def test_a_typed_topic_takes_columns_by_name(spark: Any, topic: Any, broker: sparklog.LocalBroker) -> None:
    name = topic(partitions=2, schema=FLIGHTS, key_columns=["carrier"], timestamp_column="at")
    frame = spark.sql(
        "select id as delay, if(id % 2 = 0, 'UA', 'AA') as carrier, timestamp_millis(id) as at from range(100)"
    )
    append(frame, broker, topic=name, **{"sparklog.compression": "lz4"})
    rows = stored(broker, name)
    assert sorted(r["delay"] for r in rows) == list(range(100))
    assert len({(r["carrier"], r["_partition"]) for r in rows}) == 2, "a key has one partition"
    assert all(r["_timestamp"] == r["at"] for r in rows)
    append(frame.select("carrier"), broker, topic=name)
    assert len([r for r in stored(broker, name) if r["delay"] is None]) == 100


def test_a_topic_that_does_not_exist_is_created(spark: Any, broker: sparklog.LocalBroker) -> None:
    """As Kafka's brokers do it, whether the option names it or a column."""
    append(spark.sql("select 'x' as value"), broker, topic="made-by-the-option")
    append(spark.sql("select 'made-by-the-column' as topic, 'x' as value"), broker)
    for name in ("made-by-the-option", "made-by-the-column"):
        assert [row["value"] for row in stored(broker, name)] == [b"x"]


BAD_WRITES: list[tuple[Any, ...]] = [
    ("select 'x' as value", {}, "topic option required when no 'topic' attribute is present"),
    ("select 'x' as value", {"topic": "__never-made"}, "no topic '__never-made'"),
    ("select 'x' as val", {"topic": "envelope"}, "Required attribute 'value' not found"),
    ("select 1 as value", {"topic": "envelope"}, "value must be a.n. string or binary"),
    (
        "select 'x' as value, 0L as _offset",
        {"topic": "envelope", "sparklog.strict.columns": "true"},
        "'_offset' comes from reading",
    ),
    ("select 'x' as delay", {"topic": "typed"}, "column 'delay' is string, the topic has int32"),
    ("select 1 as dealy", {"topic": "typed"}, "unknown column 'dealy'"),
    ("select 'x' as value", {"topic": "envelope", "sparklog.acks": "1"}, "always writes with acks=all"),
    ("select 'x' as value", {"topik": "envelope"}, "did you mean 'topic'"),
    (
        "select 'x' as value",
        {"topic": "envelope", "kafka.key.serializer": "x"},
        "keys are serialized as byte arrays",
    ),
]


@pytest.mark.parametrize(("query", "more", "message"), in_gate(BAD_WRITES, BAD_WRITES[1], BAD_WRITES[5]))
def test_a_bad_write_is_refused_before_a_row_is_written(
    spark: Any, topic: Any, broker: sparklog.LocalBroker, query: str, more: dict[str, str], message: str
) -> None:
    made = {"envelope": topic(), "typed": topic(schema=FLIGHTS)}
    given = {k: made.get(v, v) for k, v in more.items()}
    with pytest.raises(Exception, match=message):
        append(spark.sql(query), broker, **given)
    assert stored(broker, made["envelope"]) == stored(broker, made["typed"]) == []


def test_further_columns_may_have_any_type_that_spark_hands_over(
    spark: Any, topic: Any, broker: sparklog.LocalBroker
) -> None:
    name = topic()
    further = (
        "array(1) a, map('k', 1) m, struct(1 x) s, date'2024-01-01' d, timestamp_ntz'2024-01-01' n, null z, 1.5bd p, "
        "interval '1' day i, map('k', array(struct(1 x))) nested, parse_json('[1]') v, 'x' offset, 1.5 timestampType, true _partition"
    )
    append(spark.sql(f"select 'v' value, {further}"), broker, topic=name)
    assert [r["value"] for r in stored(broker, name)] == [b"v"]
    for wrong, said in (
        ("interval '1' year i", "column 'i' of type interval year cannot be written: drop or cast it"),
        ("'2024-01-01' timestamp", "timestamp attribute unsupported type string"),
        ("1L timestamp", "timestamp attribute unsupported type int64"),
    ):
        with pytest.raises(Exception, match=said):
            append(spark.sql(f"select 'w' value, {wrong}"), broker, topic=name)
    assert len(stored(broker, name)) == 1


def test_overwriting_is_refused(spark: Any, topic: Any, broker: sparklog.LocalBroker) -> None:
    writer = spark.sql("select 'x' as value").write.format("sparklog").options(**options(broker, topic=topic()))
    with pytest.raises(Exception, match="a topic cannot be overwritten"):
        writer.mode("overwrite").save()


def test_a_stream_is_written_and_goes_on_after_a_restart(
    spark: Any, reads: Any, topic: Any, send: Any, broker: sparklog.LocalBroker, tmp_path: Path
) -> None:
    source, target = topic(partitions=2), topic("out")

    def run() -> None:
        query = (
            reads.stream(source, startingOffsets="earliest")
            .selectExpr("key", "upper(cast(value as string)) as value")
            .writeStream.format("sparklog")
            .options(**options(broker, topic=target, checkpointLocation=str(tmp_path)))
            .queryName("copy")
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(90)

    send(source, "a", "b")
    send(source, "c", partition=1)
    run()
    send(source, "d", partition=1)
    run()
    assert sorted(r["value"] for r in stored(broker, target)) == [b"A", b"B", b"C", b"D"]


def test_messages_of_the_tasks_to_the_driver(
    topic: Any, broker: sparklog.LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.sql.types import StringType, StructField, StructType
    from pyspark_sparklog.sink import publication, writer

    class Context:
        def getLocalProperty(self, name: str) -> str | None:
            properties = {"sql.streaming.queryId": "q", "spark.jobGroup.id": "r", "streaming.sql.batchId": "7"}
            return properties.get(name)

        def partitionId(self) -> int:
            return 2

        def attemptNumber(self) -> int:
            return 1

    monkeypatch.setattr(publication.TaskContext, "get", classmethod(lambda _: Context()))  # type: ignore[attr-defined]
    name = topic(partitions=2)
    schema = StructType([StructField("value", StringType())])
    made = writer.stream_writer(options(broker, topic=name), schema, overwrite=False)
    batches = [pa.record_batch({"value": ["a", "b", "c"]}), pa.record_batch({"value": ["d"]})]
    message = made.write(iter(batches))
    assert isinstance(message, publication.SinkCommitMessage)
    assert (message.place[:5], message.rows) == (("q", "r", 7, 2, 1), 4)
    assert message.transaction is not None
    assert message.transaction[:3] == ("q", 7, "r")
    assert sum(last - first + 1 for first, last in message.offsets.values()) == 4


def test_a_failed_write_fails_the_task_and_drops_its_producer(
    topic: Any, admin: sparklog.Admin, broker: sparklog.LocalBroker
) -> None:
    from pyspark.sql.types import StringType, StructField, StructType
    from pyspark_sparklog.sink import writer
    from pyspark_sparklog.sink.producers import producers
    from pyspark_sparklog.sink.publication import SinkCommitMessage

    name = topic(configs={"max.message.bytes": 16_384})
    schema = StructType([StructField("value", StringType())])
    made = writer.batch_writer(options(broker, topic=name), schema, overwrite=False)
    with pytest.raises(sparklog.SparklogError, match=r"max\.message\.bytes"):
        made.write(iter([pa.record_batch({"value": ["x" * 50_000]})]))
    assert not producers._open
    good = made.write(iter([pa.record_batch({"value": ["x"]})]))
    assert isinstance(good, SinkCommitMessage)
    assert good.rows == 1


@pytest.mark.parametrize(("named", "batch_id", "warned"), [(False, 3, True), (True, 3, False), (False, -1, False)])
def test_a_write_in_foreachbatch_that_may_be_repeated_is_warned_of(
    topic: Any, broker: sparklog.LocalBroker, caplog: pytest.LogCaptureFixture, named: bool, batch_id: int, warned: bool
) -> None:
    from pyspark.sql.types import StringType, StructField, StructType
    from pyspark_sparklog.sink import writer
    from pyspark_sparklog.sink.publication import SinkCommitMessage

    given = {"txnAppId": f"app-{topic()}", "txnVersion": "1"} if named else {}
    schema = StructType([StructField("value", StringType())])
    made = writer.batch_writer(options(broker, topic=topic(), **given), schema, overwrite=False)
    message = made.write(iter([pa.record_batch({"value": ["x"]})]))
    assert isinstance(message, SinkCommitMessage)
    message.place = message.place._replace(batch_id=batch_id)  # as a task sees it
    made.commit([message])
    assert ("written in foreachBatch, of batch 3, without" in caplog.text) is warned


@pytest.mark.skipif(STREAMS_CAN_BE_WRITTEN, reason="this Spark lets Python sinks write streams")
def test_a_spark_that_cannot_write_streams_says_so(
    spark: Any, reads: Any, topic: Any, broker: sparklog.LocalBroker, tmp_path: Path
) -> None:
    writer = reads.stream(topic()).select("value").writeStream.format("sparklog").trigger(availableNow=True)
    writer = writer.options(**options(broker, topic=topic(), checkpointLocation=str(tmp_path)))
    with pytest.raises(Exception, match=r"needs PySpark 4\.1 or newer; with 4\.0 write each batch in \.foreachBatch"):
        writer.start().awaitTermination(90)
