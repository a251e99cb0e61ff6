"""Streams: topics and records that are deleted."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark_sparklog.compatibility import READERS_RECEIVE_THEIR_START

from tests.spark.kafka_parity.checks import Checks, Differs
from tests.spark.kafka_parity.jobs import Jobs, said, texts, values_of
from tests.spark.kafka_parity.systems import System, unused_name

pytestmark = pytest.mark.nightly

with_limits = pytest.mark.skipif(not READERS_RECEIVE_THEIR_START, reason="this Spark refuses read limits")
QUICK = {
    "kafka.metadata.max.age.ms": "1",
    "kafka.request.timeout.ms": "3000",
    "kafka.default.api.timeout.ms": "3000",
    "kafkaConsumer.pollTimeoutMs": "1000",
}
NOTICED = "a topic has an id: a new topic of the same name is another topic"


def remade(system: System, topic: str, partitions: int, *values: str) -> None:
    """Deletes the topic and makes another one of its name."""
    system.delete_topic(topic)
    system.create_topic(topic, partitions)
    system.send(topic, *values, partition=0)


@with_limits
@pytest.mark.parametrize(("partitions", "count"), [(3, 15), (5, 10)], ids=["fewer partitions", "fewer records"])
def test_recreated_during_available_now(partitions: int, count: int, system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic, 5)
    system.send(topic, *texts(range(15)), partition=0)
    done: list[int] = []

    def recreate(frame: Any, batch_id: int) -> None:
        if not done:
            remade(system, topic, partitions, *texts(range(count)))
        done.append(batch_id)

    stream = jobs.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger="5", **QUICK)
    writer = stream.writeStream.foreachBatch(recreate).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(jobs.checkpoint())).start()
    theirs = {
        3: "Some of partitions in Kafka topic(s) have been lost during running query with Trigger.AvailableNow",
        5: "report available offset which is less than end offset during running query with Trigger.AvailableNow",
    }[partitions]
    ours = "the topic was deleted and created again"
    try:
        query.awaitTermination(120)
        found = "no error"
    except Exception as e:  # noqa: BLE001
        found = said(e, [theirs, ours])
    finally:
        query.stop()
    check("error", found, theirs, Differs(ours, NOTICED))


def test_recreated_between_runs(system: System, jobs: Jobs, check: Checks) -> None:
    topic, checkpoint = unused_name(), jobs.checkpoint()
    system.create_topic(topic)
    system.send(topic, "2", "4")
    stream = jobs.stream(topic, startingOffsets="earliest", **QUICK)
    check("before", jobs.run(stream, checkpoint).values(), ["2", "4"])
    remade(system, topic, 1, "6")
    theirs, ours = "was changed from 2 to 1", "the topic was deleted and created again"
    with jobs.running(stream, checkpoint) as running:
        check("fewer records", running.error(theirs, ours), f"run: {theirs}", Differs(f"run: {ours}", NOTICED))
    tolerant = jobs.stream(topic, failOnDataLoss="false", **QUICK)
    reason = f"{NOTICED}, and is read from its first record"
    check("failOnDataLoss = false", jobs.run(tolerant, checkpoint).values(), [], Differs(["6"], reason))


def test_recreated_with_as_many_records(system: System, jobs: Jobs, check: Checks) -> None:
    topic, checkpoint = unused_name(), jobs.checkpoint()
    system.create_topic(topic)
    system.send(topic, "1", "2")
    stream = jobs.stream(topic, startingOffsets="earliest", **QUICK)
    jobs.run(stream, checkpoint)
    remade(system, topic, 1, "3", "4", "5")
    ours = "the topic was deleted and created again"
    try:
        found: Any = jobs.run(stream, checkpoint).values()
    except Exception as e:  # noqa: BLE001
        found = said(e, [ours])
    check("then", found, ["5"], Differs(ours, f"{NOTICED}; Kafka leaves two records out without a word"))


def test_a_pattern_and_a_deleted_topic(system: System, jobs: Jobs, check: Checks) -> None:
    prefix = unused_name("gone")
    first, second = f"{prefix}-seems", f"{prefix}-bad"
    system.create_topic(first, 2)
    system.send(first, "0", partition=0)
    stream = jobs.stream(subscribePattern=f"{prefix}-.*", failOnDataLoss="false", **QUICK)
    with jobs.running(stream) as running:
        running.settle()
        system.send(first, "1", "2", partition=1)
        check("before", running.until(2), ["1", "2"])
        system.delete_topic(first)
        system.create_topic(second, 2)
        system.send(second, "3", partition=1)
        check("the other topic", running.until(3), ["1", "2", "3"])


def test_a_deleted_topic(system: System, jobs: Jobs, check: Checks) -> None:
    topic, checkpoint = unused_name(), jobs.checkpoint()
    system.create_topic(topic)
    system.send(topic, "1", "2")
    stream = jobs.stream(subscribePattern=f"^{topic}$", startingOffsets="earliest", **QUICK)
    jobs.run(stream, checkpoint)
    system.delete_topic(topic)
    ours = "the topic was deleted"
    with jobs.running(stream, checkpoint) as running:
        try:
            found: Any = running.settle()
        except Exception as e:  # noqa: BLE001
            found = said(e, [ours])
    check("then", found, [], Differs(ours, "a topic that is gone is a loss, whether others match the pattern or not"))


def test_a_topic_that_is_deleted_while_its_batch_is_read(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    system.send(topic, *texts(range(10)))
    rows: list[str] = []

    def recreate(frame: Any, batch_id: int) -> None:
        if batch_id == 0:
            system.delete_topic(topic)
            system.create_topic(topic)
        rows.extend(values_of(frame.collect()))

    stream = jobs.stream(topic, startingOffsets="earliest", failOnDataLoss="false", **QUICK)
    query = stream.writeStream.foreachBatch(recreate).option("checkpointLocation", str(jobs.checkpoint())).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
    check("rows", rows, [])
    check("error", query.exception(), None)


@pytest.mark.parametrize("fail", ["true", "false"])
def test_records_that_were_deleted_between_runs(fail: str, system: System, jobs: Jobs, check: Checks) -> None:
    topic, checkpoint = unused_name(), jobs.checkpoint()
    system.create_topic(topic)
    system.send(topic, *texts(range(3)))
    stream = jobs.stream(topic, startingOffsets="earliest", failOnDataLoss=fail, **QUICK)
    jobs.run(stream, checkpoint)
    system.send(topic, *texts(range(3, 8)))
    system.delete_records(topic, 0, 6)
    theirs, ours = "Could not read records in offset [3", "the log begins at 6 now"
    try:
        found: Any = jobs.run(stream, checkpoint).values()
    except Exception as e:  # noqa: BLE001
        found = said(e, [theirs, ours])
    if fail == "true":
        check("then", found, theirs, Differs(ours, "found when the batch is planned, before a task runs"))
    else:
        check("then", found, ["6", "7"])


def test_a_missing_topic(system: System, jobs: Jobs, check: Checks) -> None:
    words = "UnknownTopicOrPartition"
    found = jobs.stream_error(words, topic=unused_name("missing"), startingOffsets="earliest")
    check(
        "subscribe",
        found,
        f"run: {words}",
        Differs(f"load(): {words}", "the columns come from the topic, which need not be an envelope"),
    )
