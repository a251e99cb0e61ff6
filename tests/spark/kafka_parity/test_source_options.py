"""Options of a read: refusals, their moment and their words; options without effect."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark_sparklog.compatibility import READERS_RECEIVE_THEIR_START

from tests.spark.kafka_parity.checks import Checks, Differs
from tests.spark.kafka_parity.jobs import NO_ERROR, Jobs, texts, values
from tests.spark.kafka_parity.systems import System, unused_name

pytestmark = pytest.mark.nightly

with_limits = pytest.mark.skipif(not READERS_RECEIVE_THEIR_START, reason="this Spark refuses read limits")

UNKNOWN_TILL_IT_RUNS = (
    "until the query starts, Spark does not tell a Python source whether it reads a stream or a batch"
)

PLAIN = "the error names the allowed values; Java's error shows only the text it could not read"
EARLY = "wrong options are named as early as can be"
NO_NUMBER = "a whole number, not negative, is needed"

BOTH: dict[str, tuple[dict[str, Any], str]] = {
    "no subscription": ({}, "options must be specified"),
    "subscribe and subscribePattern": ({"subscribe": "t", "subscribePattern": "t.*"}, "Only one of the following options"),
    "subscribe and assign": ({"subscribe": "t", "assign": '{"a":[0]}'}, "Only one of the following options"),
    "assign nothing": ({"assign": ""}, "No topicpartitions to assign"),
    "subscribe to nothing": ({"subscribe": ""}, "No topics to subscribe"),
    "an empty pattern": ({"subscribePattern": ""}, "Pattern to subscribe is empty"),
    "no brokers": ({"subscribe": "t", "kafka.bootstrap.servers": None}, "'kafka.bootstrap.servers' must be specified"),
    "minPartitions of 0": ({"subscribe": "t", "minPartitions": "0"}, "minPartitions must be positive"),
    "minPartitions of -1": ({"subscribe": "t", "minPartitions": "-1"}, "minPartitions must be positive"),
    "minPartitions of a": ({"subscribe": "t", "minPartitions": "a"}, 'For input string: "a"'),
    "minPartitions of 1.0": ({"subscribe": "t", "minPartitions": "1.0"}, 'For input string: "1.0"'),
    "maxRecordsPerPartition of 0": ({"subscribe": "t", "maxRecordsPerPartition": "0"}, "maxRecordsPerPartition must be positive"),
    "auto.offset.reset": ({"subscribe": "t", "kafka.auto.offset.reset": "latest"}, "Kafka option 'auto.offset.reset' is not supported"),
    "enable.auto.commit": ({"subscribe": "t", "kafka.enable.auto.commit": "x"}, "Kafka option 'enable.auto.commit' is not supported"),
    "interceptor.classes": ({"subscribe": "t", "kafka.interceptor.classes": "x"}, "Kafka option 'interceptor.classes' is not supported"),
    "key.deserializer": ({"subscribe": "t", "kafka.key.deserializer": "x"}, "Kafka option 'key.deserializer' is not supported as keys are deserialized as byte arrays"),
    "value.deserializer": ({"subscribe": "t", "kafka.value.deserializer": "x"}, "Kafka option 'value.deserializer' is not supported as values are deserialized as byte arrays"),
    "more at least than at most": (
        {"subscribe": "t", "minOffsetsPerTrigger": "20", "maxOffsetsPerTrigger": "15"},
        "The value of minOffsetPerTrigger(20) is higher than the maxOffsetsPerTrigger(15)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("given", BOTH)
def test_refused_at_load(given: str, system: System, jobs: Jobs, check: Checks) -> None:
    options, words = BOTH[given]
    differs = Differs(f"load(): {NO_NUMBER}", PLAIN) if "input string" in words else None
    check("batch", jobs.batch_error(words, NO_NUMBER, **options), f"load(): {words}", differs)
    check("stream", jobs.stream_error(words, NO_NUMBER, **options), f"load(): {words}", differs)


def test_a_batch_cannot_begin_at_latest(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    words = "starting offset can't be latest for batch queries"
    differs = Differs(f"action: {words}", UNKNOWN_TILL_IT_RUNS)
    found = jobs.batch_error(words, topic=topic, startingOffsets="latest")
    check("latest", found, f"load(): {words}", differs)
    words = f"startingOffsets for {topic}-0 can't be latest for batch queries"
    found = jobs.batch_error(words, topic=topic, startingOffsets=json.dumps({topic: {"0": -1}}))
    differs = Differs("action: as expected", UNKNOWN_TILL_IT_RUNS)
    check("-1", found.replace(words, "as expected"), "load(): as expected", differs)


def test_no_read_ends_at_earliest(system: System, jobs: Jobs, check: Checks) -> None:
    words = "ending offset can't be earliest for batch queries"
    check("earliest", jobs.batch_error(words, topic="t", endingOffsets="earliest"), f"load(): {words}")
    words = "ending offset for t-0 can't be earliest for batch queries"
    check("-2", jobs.batch_error(words, topic="t", endingOffsets='{"t":{"0":-2}}'), f"load(): {words}")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("endingOffsets", "latest", "ending offset not valid in streaming queries"),
        ("endingOffsetsByTimestamp", '{"t": {"0": 1000}}', "ending timestamp not valid in streaming queries"),
        ("endingTimestamp", "1000", "ending timestamp not valid in streaming queries"),
    ],
    ids=["endingOffsets", "endingOffsetsByTimestamp", "endingTimestamp"],
)
def test_a_stream_has_no_end(option: str, value: str, words: str, system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    found = jobs.stream_error(words, topic=topic, **{option: value})
    if option == "endingTimestamp":
        reason = "refused like the other two: a stream that was to end would go on for ever"
        check("error", found, NO_ERROR, Differs(f"run: {words}", reason))
    else:
        check("error", found, f"load(): {words}", Differs(f"run: {words}", UNKNOWN_TILL_IT_RUNS))


def test_offsets_that_are_no_offsets(system: System, jobs: Jobs, check: Checks) -> None:
    words = 'Expected e.g. {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}'
    differs = Differs(f"load(): {words}", EARLY)
    check("text", jobs.stream_error(words, topic="t", startingOffsets="nonsense"), f"run: {words}", differs)
    check("half JSON", jobs.stream_error(words, topic="t", startingOffsets='{"t":'), f"run: {words}", differs)
    check("batch", jobs.batch_error(words, topic="t", endingOffsets="nonsense"), f"load(): {words}")


def test_values_without_regard_to_case(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    system.send(topic, "a", "b")
    given = {"STARTINGOFFSETS": "earLiEst", "endingoffsets": "laTest", "FailOnDataLoss": "FALSE"}
    check("batch", values(jobs.batch(None, SUBSCRIBE=topic, **given)), ["a", "b"])
    check("stream", jobs.run(jobs.stream(topic, StartingOffsets="EARLIEST")).values(), ["a", "b"])


def test_a_boolean_that_is_none(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    words = 'For input string: "maybe"'
    differs = Differs("load(): use true or false", PLAIN)
    for option in ("failOnDataLoss", "includeHeaders"):
        found = jobs.batch_error(words, "use true or false", topic=topic, **{option: "maybe"})
        check(option, found, f"load(): {words}", differs)


def test_an_unknown_option(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    words = "did you mean 'failOnDataLoss'"
    reason = "a misspelt option would be without effect for years"
    found = jobs.batch_error(words, topic=topic, failOnDataLos="false")
    check("misspelt", found, NO_ERROR, Differs(f"load(): {words}", reason))
    words = "did you mean 'kafka.fetch.max.bytes'"
    found = jobs.batch_error(words, topic=topic, **{"kafka.fetch.max.byte": "1000"})
    check("misspelt setting", found, NO_ERROR, Differs(f"load(): {words}", reason))


CLIENT_SETTINGS = {
    "kafka.security.protocol": "PLAINTEXT",
    "kafka.client.id": "etl",
    "kafka.group.id": "etl",
    "kafka.request.timeout.ms": "20000",
    "kafka.fetch.max.bytes": "100000",
    "kafka.max.partition.fetch.bytes": "50000",
    "kafka.fetch.max.wait.ms": "100",
    "kafka.session.timeout.ms": "30000",
    "kafka.heartbeat.interval.ms": "3000",
    "kafka.max.poll.records": "100",
    "kafka.metadata.max.age.ms": "1000",
    "kafka.default.api.timeout.ms": "30000",
    "kafka.check.crcs": "true",
    "groupIdPrefix": "etl",
    "kafkaConsumer.pollTimeoutMs": "20000",
    "fetchOffset.numRetries": "3",
    "fetchOffset.retryIntervalMs": "10",
}
WRITE_SETTINGS = {
    "kafka.acks": "1",
    "kafka.retries": "3",
    "kafka.compression.type": "gzip",
    "kafka.batch.size": "65536",
    "kafka.linger.ms": "10",
    "kafka.max.request.size": "1000000",
}


def test_client_settings_go_both_ways(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    rows = jobs.spark.range(1000).selectExpr("cast(id as string) key", "repeat(cast(id as string), 100) value")
    jobs.write(rows, topic, **WRITE_SETTINGS)
    frame = jobs.batch(topic, **CLIENT_SETTINGS)
    check("batch", frame.selectExpr("cast(value as string)").distinct().count(), 1000)
    stream = jobs.stream(topic, startingOffsets="earliest", **CLIENT_SETTINGS)
    check("stream", len(jobs.run(stream).rows), 1000)


def test_options_of_a_stream_in_a_batch(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    system.send(topic, "a", "b")
    if not READERS_RECEIVE_THEIR_START:
        pytest.skip("this Spark refuses read limits")
    limits = {"maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "1", "maxTriggerDelay": "1s"}
    check("limits", values(jobs.batch(topic, **limits)), ["a", "b"])
    check(
        "delay alone",
        jobs.run(jobs.stream(topic, startingOffsets="earliest", maxTriggerDelay="5m")).values(),
        ["a", "b"],
    )


@pytest.mark.skipif(READERS_RECEIVE_THEIR_START, reason="this Spark has read limits")
def test_a_limit_that_this_spark_cannot_keep(system: System, jobs: Jobs) -> None:
    topic = unused_name()
    system.create_topic(topic)
    words = "maxOffsetsPerTrigger and minOffsetsPerTrigger need PySpark 4.2"
    assert jobs.stream_error(words, topic=topic, maxOffsetsPerTrigger="5") == f"load(): {words}"


def test_a_schema_of_ones_own(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    system.send(topic, "a")
    words = "The user-specified schema doesn't match the actual schema"
    kafka = {"kafka.bootstrap.servers": system.bootstrap_servers, "subscribe": topic}
    reader = jobs.spark.read.format(system.name).options(**kafka).schema("value binary, offset bigint")
    try:
        found = str([(bytes(r.value), r.offset) for r in reader.load().collect()])
    except Exception as e:  # noqa: BLE001
        found = words if words in str(e) else str(e)
    differs = Differs("[(b'a', 0)]", "a schema picks columns, which Spark does not do for a Python source by itself")
    check("two columns", found, words, differs)


def test_the_class_of_an_error(system: System, jobs: Jobs, check: Checks) -> None:
    try:
        jobs.batch(None)
        found = NO_ERROR
    except Exception as e:  # noqa: BLE001
        found = type(e).__name__
    reason = "Spark wraps what a Python source raises, and puts the moment before the words"
    check("of a wrong option", found, "IllegalArgumentException", Differs("AnalysisException", reason))


def test_more_than_can_be_counted(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    words, ours = f"Expected a single long value, got {2**63}", f"at most {2**63 - 1} is possible"
    found = jobs.batch_error(words, ours, topic=topic, startingTimestamp=str(2**63))
    check("timestamp", found, f"load(): {words}", Differs(f"load(): {ours}", PLAIN))
    check("spaces", values(jobs.batch(f" {topic} ")), texts())
