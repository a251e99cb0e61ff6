"""Batch reads: where they begin and where they end."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.spark.kafka_parity.checks import Checks, Differs
from tests.spark.kafka_parity.jobs import NO_ERROR, Jobs, texts, values, without_names
from tests.spark.kafka_parity.systems import System, unused_name
from tests.support.cases import in_gate

LONG_MAX = 2**63 - 1
COLUMNS_ARE_ASKED_FOR = "the columns come from the topic, which need not be those of an envelope: load() asks for them"


def three_partitions(system: System) -> str:
    """0 to 9 in partition 0, 10 to 19 in partition 1, 20 in partition 2."""
    topic = unused_name()
    system.create_topic(topic, 3)
    system.send(topic, *texts(range(10)), partition=0)
    system.send(topic, *texts(range(10, 20)), partition=1)
    system.send(topic, "20", partition=2)
    return topic


def offsets(topic: str, *of_partitions: int) -> str:
    """Offsets JSON; also timestamps JSON."""
    return json.dumps({topic: {str(p): o for p, o in enumerate(of_partitions)}})


def timed(system: System) -> tuple[str, list[int]]:
    """0 to 9, 10 to 19, 20 to 29 in three partitions by turns, with timestamps one second apart; those, and one
    later."""
    topic = unused_name()
    system.create_topic(topic, 3)
    first = int(time.time() * 1000) - 5000
    for n in range(3):
        for partition in range(3):
            numbers = [str(i) for i in range(10 * n, 10 * n + 10) if i % 3 == partition]
            system.send(topic, *numbers, partition=partition, timestamp_ms=first + 1000 * n)
    return topic, [first + 1000 * n for n in range(4)]


def test_explicit_earliest_to_latest(system: System, jobs: Jobs, check: Checks) -> None:
    topic = three_partitions(system)
    frame = jobs.batch(topic, startingOffsets="earliest", endingOffsets="latest")
    check("first action", values(frame), texts(range(21)))
    system.send(topic, *texts(range(21, 30)), partition=2)
    check("second action sees what has come", values(frame), texts(range(30)))


def test_default_offsets(system: System, jobs: Jobs, check: Checks) -> None:
    check("rows", values(jobs.batch(three_partitions(system))), texts(range(21)))


def test_explicit_offsets(system: System, jobs: Jobs, check: Checks) -> None:
    topic = three_partitions(system)
    frame = jobs.batch(topic, startingOffsets=offsets(topic, -2, -2, 0), endingOffsets=offsets(topic, -1, -1, 1))
    check("first action", values(frame), texts(range(21)))
    system.send(topic, *texts(range(31, 40)), partition=2)
    check("a number stays", values(frame), texts(range(21)))
    system.send(topic, *texts(range(21, 31)), partition=1)
    check("latest moves", values(frame), texts(range(31)))


@pytest.mark.nightly
def test_numbers_for_start_and_end(system: System, jobs: Jobs, check: Checks) -> None:
    topic = three_partitions(system)
    frame = jobs.batch(topic, startingOffsets=offsets(topic, 2, 8, 1), endingOffsets=offsets(topic, 4, 10, 1))
    check("rows", values(frame), texts(range(2, 4), range(18, 20)))


TIMES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "by timestamp both": (
        {"startingOffsetsByTimestamp": [1, 1, 1], "endingOffsetsByTimestamp": [2, 2, 2]},
        texts(range(10, 20)),
    ),
    "start by timestamp": ({"startingOffsetsByTimestamp": [1, 1, 1]}, texts(range(10, 30))),
    "end by timestamp": ({"endingOffsetsByTimestamp": [2, 2, 2]}, texts(range(20))),
    "one timestamp for all": ({"startingTimestamp": 1, "endingTimestamp": 2}, texts(range(10, 20))),
    "one timestamp goes before those per partition": (
        {"startingTimestamp": 2, "startingOffsetsByTimestamp": [1, 1, 1], "startingOffsets": "earliest"},
        texts(range(20, 30)),
    ),
    "timestamps go before offsets": (
        {"startingOffsetsByTimestamp": [1, 1, 1], "startingOffsets": "earliest"},
        texts(range(10, 30)),
    ),
    "an end that no record has": (
        {"endingOffsetsByTimestamp": [1, 1, LONG_MAX]},
        texts(range(10), *(range(i, i + 1) for i in range(10, 30) if i % 3 == 2)),
    ),
    "an end beyond all records": ({"endingTimestamp": LONG_MAX}, texts(range(30))),
}


@pytest.mark.parametrize("given", in_gate(TIMES, "timestamps go before offsets", "an end that no record has"))
def test_timestamps(given: str, system: System, jobs: Jobs, check: Checks) -> None:
    topic, times = timed(system)
    options, expected = TIMES[given]

    def at(n: int) -> int:
        return n if n > len(times) else times[n]

    written = {
        name: offsets(topic, *(at(n) for n in value))
        if isinstance(value, list)
        else str(at(value))
        if isinstance(value, int)
        else value
        for name, value in options.items()
    }
    check("rows", values(jobs.batch(topic, **written)), expected)


@pytest.mark.nightly
def test_start_by_timestamp_end_by_offset(system: System, jobs: Jobs, check: Checks) -> None:
    topic, times = timed(system)
    given = {"startingOffsetsByTimestamp": offsets(topic, *times[:1] * 3), "endingOffsets": offsets(topic, -1, -1, 1)}
    expected = texts(*(range(i, i + 1) for i in range(30) if i % 3 != 2 or i == 2))
    check("rows", values(jobs.batch(topic, **given)), expected)


@pytest.mark.nightly
def test_start_by_offset_end_by_timestamp(system: System, jobs: Jobs, check: Checks) -> None:
    topic, times = timed(system)
    given = {"startingOffsets": offsets(topic, -2, -2, 0), "endingOffsetsByTimestamp": offsets(topic, *[times[2]] * 3)}
    check("rows", values(jobs.batch(topic, **given)), texts(range(20)))


@pytest.mark.nightly
def test_no_record_of_that_timestamp(system: System, jobs: Jobs, check: Checks) -> None:
    topic, times = timed(system)
    late = offsets(topic, times[1], times[1], LONG_MAX)
    words = "No offset matched from request"
    check("by default", jobs.batch_error(words, topic=topic, startingOffsetsByTimestamp=late), f"action: {words}")
    strategy = {"startingOffsetsByTimestampStrategy": "error"}
    found = jobs.batch_error(words, topic=topic, startingTimestamp=str(times[3]), **strategy)
    check("one timestamp, strategy error", found, f"action: {words}")
    strategy = {"startingOffsetsByTimestampStrategy": "latest"}
    frame = jobs.batch(topic, startingTimestamp=str(times[2] + 1), **strategy)
    check("strategy latest", values(frame), [])


@pytest.mark.nightly
def test_the_same_frame_twice_in_a_query(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    system.send(topic, *texts(range(11)))
    frame = jobs.batch(topic, startingOffsets="earliest", endingOffsets="latest")
    check("union", values(frame.union(frame)), sorted(texts(range(11)) * 2))
    check("join", frame.alias("a").join(frame.alias("b"), "offset").count(), 11)


def test_the_start_moves_when_records_are_deleted(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    system.send(topic, *texts(range(10)))
    frame = jobs.batch(topic, startingOffsets="earliest", endingOffsets="latest")
    check("before", values(frame), texts(range(10)))
    system.delete_records(topic, 0, 10)
    system.send(topic, *texts(range(10, 20)))
    check("after", values(frame), texts(range(10, 20)))


@pytest.mark.nightly
def test_start_and_end_must_name_the_same_partitions(system: System, jobs: Jobs, check: Checks) -> None:
    topic = three_partitions(system)
    words = "start offset and end offset should have the same topic-partitions"
    given = {"startingOffsets": offsets(topic, 1, 1, 1), "endingOffsets": offsets(topic, 0, 0)}
    check("error", jobs.batch_error(words, topic=topic, **given), f"load(): {words}")


def test_a_start_beyond_the_end(system: System, jobs: Jobs, check: Checks) -> None:
    topic = three_partitions(system)
    words = "The specified start offset 1 is greater than the end offset 0 for"
    given = {"startingOffsets": offsets(topic, 1, 1, 1), "endingOffsets": offsets(topic, 0, 0, 0)}
    check("numbers", jobs.batch_error(words, topic=topic, **given), f"load(): {words}")
    words = "The resolved start offset 1 is greater than the resolved end offset 0 for"
    empty = unused_name()
    system.create_topic(empty)
    beyond = {"startingOffsets": offsets(empty, 1)}
    check("latest", jobs.batch_error(words, topic=empty, **beyond), f"action: {words}")
    found = jobs.batch_error(words, topic=empty, failOnDataLoss="false", **beyond)
    reason = "with failOnDataLoss = false a read begins at the nearest offset there is"
    check("latest, failOnDataLoss = false", found, f"action: {words}", Differs(NO_ERROR, reason))
    timed_topic, times = timed(system)
    words = "The resolved start offset 7 is greater than the resolved end offset"
    given = {
        "startingOffsets": offsets(timed_topic, 7, 7, 7),
        "endingOffsetsByTimestamp": offsets(timed_topic, *[times[1]] * 3),
    }
    check("timestamps", jobs.batch_error(words, topic=timed_topic, **given), f"action: {words}")


@pytest.mark.nightly
def test_offsets_that_do_not_name_every_partition(system: System, jobs: Jobs, check: Checks) -> None:
    topic = three_partitions(system)
    words = "don't match what are assigned"
    found = jobs.batch_error(words, topic=topic, startingOffsets=offsets(topic, 0, 0))
    check("missing", found, f"action: {words}")
    found = jobs.batch_error(words, topic=topic, startingOffsets=offsets(topic, 0, 0, 0, 0))
    check("too many", found, f"action: {words}")


@pytest.mark.nightly
def test_an_end_beyond_the_log(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    system.send(topic, "a")
    quick = {"kafkaConsumer.pollTimeoutMs": "1000", "endingOffsets": offsets(topic, 5)}
    check("failOnDataLoss", jobs.batch_error("out of range", topic=topic, **quick), "action: out of range")


@pytest.mark.nightly
def test_a_start_that_is_deleted(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    system.send(topic, *texts(range(10)))
    system.delete_records(topic, 0, 4)
    given = {"startingOffsets": offsets(topic, 2), "kafkaConsumer.pollTimeoutMs": "1000"}
    check("failOnDataLoss", jobs.batch_error("out of range", topic=topic, **given), "action: out of range")
    frame = jobs.batch(topic, **given, failOnDataLoss="false")
    check("failOnDataLoss = false", values(frame), texts(range(4, 10)))


@pytest.mark.nightly
def test_subscriptions(system: System, jobs: Jobs, check: Checks) -> None:
    one, two = unused_name("par.one"), unused_name("par.two")
    for name in (one, two):
        system.create_topic(name, 2)
        system.send(name, f"{name}/0", partition=0)
        system.send(name, f"{name}/1", partition=1)

    def of(**options: str) -> list[str]:
        return [without_names(v, one, two) for v in values(jobs.batch(**options))]

    everything = ["t/0", "t/1", "t1/0", "t1/1"]
    check("several topics", of(subscribe=f"{one}, {two}"), everything)
    check("a topic twice", of(subscribe=f"{one},{one}"), ["t/0", "t/1"])
    check("pattern", sorted(of(subscribePattern=f"({one}|{two})")), everything)
    check("part of a name", of(subscribePattern=one[4:]), ["t/0", "t/1"])
    check("assigned", of(assign=json.dumps({one: [1]})), ["t/1"])
    check("nothing matches", of(subscribePattern="^nothing-is-called-this$"), [])


@pytest.mark.nightly
def test_a_missing_topic(system: System, jobs: Jobs, check: Checks) -> None:
    words = "UnknownTopicOrPartition"
    differs = Differs(f"load(): {words}", COLUMNS_ARE_ASKED_FOR)
    check("subscribe", jobs.batch_error(words, topic=unused_name("missing")), f"action: {words}", differs)
    found = jobs.batch_error(words, assign=json.dumps({unused_name("missing"): [0]}))
    check("assign", found, f"action: {words}", differs)


@pytest.mark.nightly
def test_a_missing_partition(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    words = "there is no 7"
    found = jobs.batch_error(words, assign=json.dumps({topic: [0, 7]}))
    reason = "a partition that is not there is a wrong number in a job; Kafka's source reads the others"
    check("assign", found, NO_ERROR, Differs(f"load(): {words}", reason))


@pytest.mark.nightly
def test_an_empty_topic(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic, 2)
    frame = jobs.batch(topic)
    check("rows", values(frame), [])
    check("isEmpty", frame.isEmpty(), True)
    system.send(topic, "a", partition=1)
    check("later", values(frame), ["a"])


def test_min_partitions(system: System, jobs: Jobs, check: Checks) -> None:
    topic = three_partitions(system)
    frame = jobs.batch(topic, minPartitions="6")
    check("tasks", frame.rdd.getNumPartitions(), 7)
    check("rows", values(frame), texts(range(21)))
    limited = jobs.batch(topic, maxRecordsPerPartition="4")
    reason = "Spark's V1 relation leaves maxRecordsPerPartition out in batches; here it holds for them, too"
    check("tasks of four records", limited.rdd.getNumPartitions(), 3, Differs(7, reason))
    check("their rows", values(limited), texts(range(21)))


@pytest.mark.nightly
def test_views_and_cached_frames(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    system.send(topic, "1", "2")
    frame = jobs.batch(topic)
    view = unused_name("view").replace("-", "_")
    frame.createOrReplaceTempView(view)
    cached = jobs.batch(topic).cache()

    def count(table: str) -> int:
        return int(jobs.spark.sql(f"select count(*) from {table}").first()[0])

    check("view", count(view), 2)
    check("cached", cached.count(), 2)
    system.send(topic, "3")
    check("view sees what has come", count(view), 3)
    check("cached stays", cached.count(), 2)
    cached.unpersist()
    jobs.spark.catalog.dropTempView(view)


def test_isolation(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    committed = jobs.batch(topic, **{"kafka.isolation.level": "read_committed"})
    everything = jobs.batch(topic, **{"kafka.isolation.level": "read_uncommitted"})
    default = jobs.batch(topic)
    producer = system.transactions()
    producer.begin()
    producer.send(topic, *texts(range(1, 6)))
    check("open, read_committed", values(committed), [])
    check("open, read_uncommitted", values(everything), texts(range(1, 6)))
    reason = "a reader that says nothing sees committed records only; set kafka.isolation.level for the others"
    check("open, default", values(default), texts(range(1, 6)), Differs([], reason))
    producer.commit()
    check("committed", values(committed), texts(range(1, 6)))
    producer.begin()
    producer.send(topic, *texts(range(6, 11)))
    producer.abort()
    check("aborted, read_committed", values(committed), texts(range(1, 6)))
    check("aborted, read_uncommitted", values(everything), texts(range(1, 11)))
    producer.begin()
    producer.send(topic, *texts(range(11, 16)))
    producer.commit()
    producer.close()
    check("committed again", values(committed), texts(range(1, 6), range(11, 16)))
    positions = [r.offset for r in committed.orderBy("offset").collect()]
    check("offsets, with one for each end of a transaction", positions, [*range(5), *range(12, 17)])
