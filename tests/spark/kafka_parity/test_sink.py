"""Writing: columns, topics, partitions, modes."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark_sparklog.compatibility import STREAMS_CAN_BE_WRITTEN
from pyspark_sparklog.delta import once

from tests.spark.kafka_parity.checks import Checks, Differs
from tests.spark.kafka_parity.jobs import NO_ERROR, Jobs, texts, values
from tests.spark.kafka_parity.systems import System, unused_name

pytestmark = pytest.mark.nightly

streams = pytest.mark.skipif(not STREAMS_CAN_BE_WRITTEN, reason="this Spark lets no Python sink write streams in Arrow")

NO_TOPIC = "topic option required when no 'topic' attribute is present"
NO_VALUE = "Required attribute 'value' not found"
PYTHON_SINKS = "Spark allows sinks in Python no more than append, and complete as its replacement"


@pytest.fixture
def topic(system: System) -> str:
    name = unused_name()
    system.create_topic(name)
    return name


@pytest.fixture
def source(system: System, jobs: Jobs) -> Any:
    """A stream with the values 1 to 5, as text."""
    name = unused_name("source")
    system.create_topic(name)
    system.send(name, *texts(range(1, 6)))
    return jobs.stream(name, startingOffsets="earliest").selectExpr("cast(value as string) value")


@streams
def test_a_stream_with_a_column_topic(source: Any, topic: str, jobs: Jobs, check: Checks) -> None:
    jobs.finish(jobs.writing(source.selectExpr(f"'{topic}' topic", "value")))
    check("rows", values(jobs.batch(topic)), texts(range(1, 6)))


@streams
def test_a_stream_with_the_option_topic(source: Any, topic: str, jobs: Jobs, check: Checks) -> None:
    query = jobs.finish(jobs.writing(source, topic))
    check("rows", values(jobs.batch(topic)), texts(range(1, 6)))
    check("numOutputRows", sum(p.sink.numOutputRows for p in query.recentProgress), 5)


@streams
def test_the_option_topic_goes_before_the_column(source: Any, topic: str, jobs: Jobs, check: Checks) -> None:
    jobs.finish(jobs.writing(source.selectExpr("'foo' topic", "value"), topic))
    check("rows", values(jobs.batch(topic)), texts(range(1, 6)))


WRONG: dict[str, tuple[list[str], bool, str]] = {
    "no topic": (["value key", "value"], False, NO_TOPIC),
    "no value": (["value key"], True, NO_VALUE),
    "topic of another type": (["cast(1 as int) topic", "value"], False, "topic must be a(n) string"),
    "value of another type": (["cast(value as int) value"], True, "value must be a(n) string or binary"),
    "key of another type": (["cast(value as int) key", "value"], True, "key must be a(n) string or binary"),
    "partition of another type": (["value", "value partition"], True, "partition must be a(n) int"),
    "headers of another type": (["value", "value headers"], True, "headers must be a(n) array<struct<key:string,value:binary>>"),
}  # fmt: skip


@streams
@pytest.mark.parametrize("given", WRONG)
def test_columns_that_do_not_fit(given: str, source: Any, topic: str, jobs: Jobs, check: Checks) -> None:
    columns, named, words = WRONG[given]
    batch = jobs.spark.range(3).selectExpr("cast(id as string) value").selectExpr(*columns)
    option = topic if named else None
    check("batch", jobs.write_error(batch, words, topic=option), f"save(): {words}")
    found = jobs.writing_error(source.selectExpr(*columns), words, topic=option)
    check("stream", found, f"run: {words}")


@pytest.mark.parametrize("setting", ["key.serializer", "value.serializer"])
def test_serializers(setting: str, topic: str, jobs: Jobs, check: Checks) -> None:
    words = f"Kafka option '{setting}' is not supported"
    rows = jobs.spark.range(1).selectExpr("cast(id as string) value")
    check("batch", jobs.write_error(rows, words, topic=topic, **{f"kafka.{setting}": "foo"}), f"save(): {words}")


def test_rows_with_all_columns(topic: str, jobs: Jobs, check: Checks) -> None:
    rows = jobs.spark.sql(
        f"select '{topic}' topic, '1' value, array(named_struct('key', 'a', 'value', cast('b' as binary))) headers"
        f" union all select '{topic}', '2', array(named_struct('key', 'c', 'value', cast('d' as binary)),"
        " named_struct('key', 'c', 'value', cast('e' as binary)))"
        f" union all select '{topic}', '3', null"
    )
    jobs.write(rows, topic)
    found = {
        bytes(r.value).decode(): None if r.headers is None else [(h.key, bytes(h.value)) for h in r.headers]
        for r in jobs.batch(topic, includeHeaders="true").collect()
    }
    check("headers", found, {"1": [("a", b"b")], "2": [("c", b"d"), ("c", b"e")], "3": None})


def test_partitions(system: System, jobs: Jobs, check: Checks) -> None:
    def partitions(*columns: str) -> list[int]:
        name = unused_name()
        system.create_topic(name, 4)
        rows = jobs.spark.range(5).selectExpr("cast(id as string) key", "cast(id as string) value", *columns)
        jobs.write(rows, name)
        return [r.partition for r in jobs.batch(name).orderBy("key").collect()]

    by_key = partitions()
    check("by the hash of the key", by_key, [0, 3, 0, 3, 1])
    check("by the column", partitions("2 partition"), [2] * 5)
    check("a null in the column", partitions("cast(null as int) partition") == by_key, True)


def test_a_key_finds_the_partition_of_the_systems_own_producer(system: System, jobs: Jobs, check: Checks) -> None:
    name = unused_name()
    system.create_topic(name, 7)
    keys = ["k", "key-1", "", "Zürich", "x" * 40]
    sent = {key: system.partition_of(name, key) for key in keys}
    rows = jobs.spark.createDataFrame([(k, "v") for k in keys], "key string, value string")
    jobs.write(rows, name)
    written = {
        bytes(r.key).decode(): r.partition for r in jobs.batch(name).where("cast(value as string) = 'v'").collect()
    }
    check("the same", written == sent, True)
    check("which", list(sent.values()), [1, 5, 2, 2, 0])


def test_an_unknown_partition(topic: str, jobs: Jobs, check: Checks) -> None:
    rows = jobs.spark.sql("select 'v' value, 7 partition")
    reason = "the error names the row, and the partitions that there are"
    found = jobs.write_error(rows, "partition 7", "names 7", topic=topic, **{"kafka.max.block.ms": "3000"})
    check("7 of 1", found, "save(): partition 7", Differs("save(): names 7", reason))
    rows = jobs.spark.sql("select 'v' value, -1 partition")
    words = "Invalid partition: -1"
    found = jobs.write_error(rows, words, "names -1", topic=topic)
    check("-1", found, f"save(): {words}", Differs("save(): names -1", reason))


def test_a_null_topic(jobs: Jobs, check: Checks) -> None:
    rows = jobs.spark.sql("select cast(null as string) topic, '1' value")
    words = "contains a null topic"
    check("batch", jobs.write_error(rows, words), f"save(): {words}")


def test_modes_of_a_batch_write(topic: str, jobs: Jobs, check: Checks) -> None:
    rows = jobs.spark.sql("select 'v' value")
    refusal = "UNSUPPORTED_DATA_SOURCE_SAVE_MODE"
    theirs = "not allowed for Kafka"
    reason = "Spark refuses this mode for every sink in Python; its words are others"
    found = jobs.write_error(rows, theirs, refusal, topic=topic, mode="ignore")
    check("ignore", found, f"save(): {theirs}", Differs(f"save(): {refusal}", reason))
    ours = "a topic cannot be overwritten"
    found = jobs.write_error(rows, theirs, ours, topic=topic, mode="overwrite")
    check("overwrite", found, f"save(): {theirs}", Differs(f"save(): {ours}", "the same, with the next step"))
    check("append", jobs.write_error(rows, topic=topic, mode="append"), NO_ERROR)
    reason = 'Spark refuses the default mode for every sink in Python: add .mode("append")'
    for name, mode in (("error", "error"), ("no mode", None)):
        found = jobs.write_error(rows, refusal, topic=topic, mode=mode)
        check(name, found, NO_ERROR, Differs(f"save(): {refusal}", reason))


def test_a_missing_topic_is_created(system: System, jobs: Jobs, check: Checks) -> None:
    name = unused_name("made")
    jobs.write(jobs.spark.range(3).selectExpr("cast(id as string) value"), name)
    check("rows", values(jobs.batch(name)), texts(range(3)))


def test_a_name_that_no_topic_can_have(jobs: Jobs, check: Checks) -> None:
    rows = jobs.spark.sql("select 'v' value")
    found = jobs.write_error(rows, "InvalidTopic", topic="not a topic!", **{"kafka.max.block.ms": "5000"})
    check("error", found, "save(): InvalidTopic")


def test_further_columns(topic: str, jobs: Jobs, check: Checks) -> None:
    rows = jobs.spark.sql("select 'k' key, 'v' value, 1 amount, 'x' offset, array(1, 2) list")
    jobs.write(rows, topic)
    check("left out", [(bytes(r.key), bytes(r.value)) for r in jobs.batch(topic).collect()], [(b"k", b"v")])


def test_a_column_timestamp(topic: str, jobs: Jobs, check: Checks) -> None:
    jobs.write(jobs.spark.sql("select 'v' value, timestamp'2020-01-01 00:00:00' timestamp"), topic)
    reason = "copied records keep their time; drop the column for the time of the copy"
    found = jobs.batch(topic).first().timestamp.year == 2020
    check("becomes the record's time", found, False, Differs(True, reason))


def test_names_of_columns(topic: str, jobs: Jobs, check: Checks) -> None:
    rows = jobs.spark.sql("select 'k' KEY, 'v' Value")
    reason = "names are compared as Spark compares them, without regard to case"
    found = jobs.write_error(rows, NO_VALUE, topic=topic)
    check("KEY and Value", found, f"save(): {NO_VALUE}", Differs(NO_ERROR, reason))


def test_nulls_and_bytes(topic: str, jobs: Jobs, check: Checks) -> None:
    rows = jobs.spark.sql(
        "select cast('k' as binary) key, cast(null as binary) value union all select null, cast('v' as binary)"
    )
    jobs.write(rows, topic)
    found = {(r.key and bytes(r.key), r.value and bytes(r.value)) for r in jobs.batch(topic).collect()}
    check("rows", found, {(b"k", None), (None, b"v")})


def test_several_topics_in_one_write(system: System, jobs: Jobs, check: Checks) -> None:
    names = [unused_name(), unused_name()]
    for name in names:
        system.create_topic(name, 2)
    rows = jobs.spark.range(10).selectExpr(
        f"case when id < 7 then '{names[0]}' else '{names[1]}' end topic", "cast(id as string) value"
    )
    jobs.write(rows)
    check("first", values(jobs.batch(names[0])), texts(range(7)))
    check("second", values(jobs.batch(names[1])), texts(range(7, 10)))


def test_no_rows(topic: str, jobs: Jobs, check: Checks) -> None:
    jobs.write(jobs.spark.sql("select 'v' value where false"), topic)
    check("rows", values(jobs.batch(topic)), [])


def test_values_of_expressions(topic: str, jobs: Jobs, check: Checks) -> None:
    from pyspark.sql import functions as f

    jobs.write(jobs.spark.range(1, 1000).select(f.to_json(f.struct("*")).alias("value")), topic)
    check("rows", jobs.batch(topic).count(), 999)


def test_much_data_through_a_small_buffer(topic: str, jobs: Jobs, check: Checks) -> None:
    rows = jobs.spark.range(300).selectExpr("repeat('x', 15000) value")
    jobs.write(rows, topic, **{"kafka.buffer.memory": "32768"})
    check("rows", jobs.batch(topic).where("length(value) = 15000").count(), 300)


def test_a_record_that_is_too_large(topic: str, jobs: Jobs, check: Checks) -> None:
    rows = jobs.spark.sql("select repeat('x', 3000000) value")
    found = jobs.write_error(rows, "larger than", topic=topic)
    reason = "max.message.bytes of a topic is 8 MiB, Kafka's 1 MiB: rows are stored in larger batches"
    check("3 MB", found, "save(): larger than", Differs(NO_ERROR, reason))
    rows = jobs.spark.sql("select base64(cast(repeat(uuid(), 300000) as binary)) value")
    found = jobs.write_error(rows, "larger than", "make it smaller", topic=topic)
    reason = "the error says how large a record may be, and how to allow more"
    check("15 MB", found, "save(): larger than", Differs("save(): make it smaller", reason))


@streams
def test_output_modes(source: Any, topic: str, jobs: Jobs, check: Checks) -> None:
    words = "does not support Update mode"
    found = jobs.writing_error(source, words, topic=topic, mode="update")
    differs = Differs(f"run: {words}", f"{PYTHON_SINKS}: write in foreachBatch")
    check("update", found, NO_ERROR, differs)
    counts = source.groupBy("value").count().selectExpr("value key", "cast(count as string) value")
    words = "complete"
    found = jobs.writing_error(counts, words, topic=unused_name("complete"), mode="complete")
    check("complete", found, NO_ERROR, Differs(f"run: {words}", "a log cannot be replaced: write in foreachBatch"))


def test_foreach_batch(source: Any, topic: str, jobs: Jobs, check: Checks) -> None:
    counts = source.groupBy("value").count().selectExpr("value key", "cast(count as string) value")
    exactly_once = jobs.system.name == "sparklog"

    def write(batch: Any, batch_id: int) -> None:
        jobs.write(batch, topic, **(once("counts", batch_id) if exactly_once else {}))

    writer = counts.writeStream.outputMode("update").foreachBatch(write).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(jobs.checkpoint())).start()
    assert query.awaitTermination(120)
    check("rows", values(jobs.batch(topic)), ["1"] * 5)
