"""Streams: the size of micro-batches, triggers, transactions, joins, progress."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark_sparklog.compatibility import READERS_RECEIVE_THEIR_START

from tests.spark.kafka_parity.checks import Checks, Differs
from tests.spark.kafka_parity.jobs import Jobs, texts, values_of, without_names
from tests.spark.kafka_parity.systems import System, unused_name

pytestmark = pytest.mark.nightly

with_limits = pytest.mark.skipif(not READERS_RECEIVE_THEIR_START, reason="this Spark refuses read limits")
LONG_MAX = 2**63 - 1


def filled(system: System, partitions: int, numbers: dict[int, range]) -> str:
    topic = unused_name()
    system.create_topic(topic, partitions)
    for partition, some in numbers.items():
        system.send(topic, *(str(n) for n in some), partition=partition)
    return topic


def uneven(system: System) -> str:
    return filled(system, 3, {0: range(100, 201), 1: range(10, 21), 2: range(1, 2)})


@with_limits
def test_available_now_keeps_the_limit(system: System, jobs: Jobs, check: Checks) -> None:
    topic = filled(system, 5, {0: range(15)})
    found = jobs.run(jobs.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger="5"))
    check("batches", [len(b) for b in found.values_by_batch()], [5, 5, 5])


@with_limits
def test_limits_are_shared_by_backlog(system: System, jobs: Jobs, check: Checks) -> None:
    stream, checkpoint = (
        jobs.stream(uneven(system), startingOffsets="earliest", maxOffsetsPerTrigger="10"),
        jobs.checkpoint(),
    )
    found = jobs.run(stream, checkpoint).values_by_batch()
    check("first batch", found[0], sorted(["1", "10", *texts(range(100, 108))]))
    check("second batch", found[1], sorted(["11", *texts(range(108, 117))]))
    check("third batch", found[2], sorted(["12", *texts(range(117, 126))]))
    check("all", len([v for b in found for v in b]), 113)


@with_limits
@pytest.mark.filterwarnings("ignore")
def test_trigger_once_has_no_limit(system: System, jobs: Jobs, check: Checks) -> None:
    topic, checkpoint = uneven(system), jobs.checkpoint()
    stream = jobs.stream(topic, startingOffsets="earliest", maxOffsetsPerTrigger="10", minOffsetsPerTrigger="5")
    check("batches", [len(b) for b in jobs.run(stream, checkpoint, once=True).values_by_batch()], [113])
    system.send(topic, "1000", partition=1)
    check("less than the minimum", jobs.run(stream, checkpoint, once=True).values(), ["1000"])


@with_limits
def test_the_largest_limit(system: System, jobs: Jobs, check: Checks) -> None:
    topic = filled(system, 1, {0: range(5)})
    given = {"startingOffsets": json.dumps({topic: {"0": 5}}), "maxOffsetsPerTrigger": str(LONG_MAX)}
    stream, checkpoint = jobs.stream(topic, **given), jobs.checkpoint()
    jobs.run(stream, checkpoint)
    system.send(topic, *texts(range(30, 35)))
    check("rows", jobs.run(stream, checkpoint).values(), texts(range(30, 35)))


@with_limits
def test_a_minimum_is_waited_for(system: System, jobs: Jobs, check: Checks) -> None:
    topic = filled(system, 3, {0: range(100, 110), 1: range(10, 15), 2: range(1, 2)})
    stream = jobs.stream(topic, startingOffsets="earliest", minOffsetsPerTrigger="15", maxTriggerDelay="1h")
    with jobs.running(stream) as running:
        running.until(16)
        check("the first batch", running.settle(), sorted(texts(range(100, 110), range(10, 15), range(1, 2))))
        system.send(topic, *texts(range(15, 21)), partition=1)
        check("too few", len(running.settle()), 16)
        system.send(topic, *texts(range(110, 121)), partition=0)
        check("enough", len(running.until(33)), 33)
        check("batches", [len(b) for b in running.collected.values_by_batch()], [16, 17])


@with_limits
def test_a_minimum_is_not_waited_for_beyond_the_delay(system: System, jobs: Jobs, check: Checks) -> None:
    topic = filled(system, 1, {0: range(20)})
    stream = jobs.stream(topic, startingOffsets="earliest", minOffsetsPerTrigger="15", maxTriggerDelay="2s")
    with jobs.running(stream) as running:
        running.until(20)
        system.send(topic, "20")
        check("after the delay", len(running.until(21)), 21)


@with_limits
def test_minimum_and_limit(system: System, jobs: Jobs, check: Checks) -> None:
    topic = filled(system, 3, {0: range(100, 121), 1: range(10, 21), 2: range(1, 2)})
    limits = {"minOffsetsPerTrigger": "15", "maxOffsetsPerTrigger": "20", "maxTriggerDelay": "1h"}
    with jobs.running(jobs.stream(topic, startingOffsets="earliest", **limits)) as running:
        running.until(19)
        check("limited", running.settle(), sorted(texts(range(100, 112), range(10, 16), range(1, 2))))
        system.send(topic, *texts(range(121, 129)), partition=0)
        check("enough again", len(running.until(38)), 38)


@with_limits
def test_two_sources_with_limits(system: System, jobs: Jobs, check: Checks) -> None:
    frames = [
        jobs.stream(filled(system, 1, {0: some}), startingOffsets="earliest", maxOffsetsPerTrigger="5")
        for some in (range(10), range(100, 120))
    ]
    found = jobs.run(frames[0].union(frames[1])).values_by_batch()
    expected = [
        texts(range(5), range(100, 105)), texts(range(5, 10), range(105, 110)), texts(range(110, 115)), texts(range(115, 120))
    ]  # fmt: skip
    check("batches", found, expected)


@with_limits
@pytest.mark.parametrize("level", ["read_committed", "read_uncommitted"])
def test_transactions(level: str, system: System, jobs: Jobs, check: Checks) -> None:
    topic, checkpoint, producer = unused_name(), jobs.checkpoint(), system.transactions()
    system.create_topic(topic)
    options = {"kafka.isolation.level": level, "kafkaConsumer.pollTimeoutMs": "5000", "maxOffsetsPerTrigger": "3"}
    stream = jobs.stream(topic, startingOffsets="earliest", **options)

    def batches() -> list[list[str]]:
        return jobs.run(stream, checkpoint).values_by_batch()

    committed = level == "read_committed"
    # values are the records' offsets; the ends of transactions take an offset each: 5, 11, 17, 19, 21, 24
    producer.begin()
    producer.send(topic, *texts(range(5)))
    check("open", batches(), [] if committed else [["0", "1", "2"], ["3", "4"]])
    producer.commit()
    check("committed", batches(), [["0", "1", "2"], ["3", "4"]] if committed else [])
    producer.begin()
    producer.send(topic, *(str(n) for n in range(6, 11)))
    producer.abort()
    aborted = [] if committed else [["6", "7", "8"], ["10", "9"]]
    check("aborted", batches(), aborted)
    producer.begin()
    producer.send(topic, *(str(n) for n in range(12, 17)))
    producer.commit()
    check("five more", batches(), [["12", "13", "14"], ["15", "16"]])
    for some in (["18"], ["20"], ["22", "23"]):
        producer.begin()
        producer.send(topic, *some)
        producer.commit()
    producer.close()
    check("small ones", batches(), [["18", "20"], ["22", "23"]])


def test_input_rows(system: System, jobs: Jobs, check: Checks) -> None:
    topic = filled(system, 5, {0: range(1)})
    with jobs.running(jobs.stream(topic)) as running:
        running.settle()
        for n in (1, 2, 3):
            system.send(topic, str(n), partition=n)
        running.until(3)
        running.settle()
        check("numInputRows", sum(p.numInputRows for p in running.query.recentProgress), 3)


def test_progress(system: System, jobs: Jobs, check: Checks) -> None:
    topic = filled(system, 2, {0: range(3), 1: range(1)})
    with jobs.running(jobs.stream(topic, startingOffsets="earliest")) as running:
        running.until(4)
        running.settle()
        source = next(p for p in running.query.recentProgress if p.numInputRows).sources[0]
    ends = json.loads(source.endOffset).get(topic)
    check("endOffset", ends, {"0": 3, "1": 1})
    check("latestOffset", json.loads(source.latestOffset).get(topic), {"0": 3, "1": 1})
    described = without_names(source.description, topic)
    reason = "Spark describes a source in Python by the name of its own class"
    named = "Subscribe[t]" in described
    check("the description names the subscription", named, True, Differs(False, reason))
    reason = (
        "Spark takes no metrics from a source in Python: endOffset and latestOffset tell, and the group, if one is set"
    )
    metrics = sorted(source.metrics)
    expected = ["avgOffsetsBehindLatest", "maxOffsetsBehindLatest", "minOffsetsBehindLatest"]
    check("metrics", metrics, expected, Differs([], reason))


@pytest.mark.parametrize("reuse", ["true", "false"])
def test_a_stream_joined_with_itself(reuse: str, system: System, jobs: Jobs, check: Checks) -> None:
    topic = filled(system, 2, {0: range(1, 3), 1: range(6, 7)})
    number = "cast(cast(value as string) as int)"
    numbers = jobs.stream(topic, startingOffsets="earliest").selectExpr(f"{number} as value", f"{number} % 5 as key")
    jobs.spark.conf.set("spark.sql.exchange.reuse", reuse)
    rows: list[Any] = []
    try:
        joined = numbers.join(numbers.withColumnRenamed("value", "other"), "key")
        writer = joined.writeStream.foreachBatch(lambda frame, _: rows.extend(frame.collect())).trigger(
            availableNow=True
        )
        query = writer.option("checkpointLocation", str(jobs.checkpoint())).start()
        assert query.awaitTermination(120)
    finally:
        jobs.spark.conf.unset("spark.sql.exchange.reuse")
    check(
        "rows", sorted((r.key, r.value, r.other) for r in rows), [(1, 1, 1), (1, 1, 6), (1, 6, 1), (1, 6, 6), (2, 2, 2)]
    )
    progress = [p for p in query.recentProgress if p.numInputRows]
    check("sources in the offset log", len(progress[0].sources), 1)
    check("rows read", sum(p.numInputRows for p in progress), 3 if reuse == "true" else 6)


def test_a_stream_joined_with_a_batch(system: System, jobs: Jobs, check: Checks) -> None:
    names, facts = unused_name("names"), unused_name("facts")
    for topic in (names, facts):
        system.create_topic(topic)
    system.send(names, "one", key="1")
    static = jobs.batch(names).selectExpr("key", "cast(value as string) name")
    joined = (
        jobs.stream(facts, startingOffsets="earliest")
        .join(static, "key", "left")
        .selectExpr("cast(name as binary) value")
    )
    with jobs.running(joined) as running:
        system.send(facts, "x", key="1")
        check("before", running.until(1), ["one"])
        system.send(names, "two", key="2")
        system.send(facts, "y", key="2")
        check("the batch side sees what has come", running.until(2), ["one", "two"])


def test_watermark(system: System, jobs: Jobs, check: Checks) -> None:
    from pyspark.sql.functions import window

    topic = unused_name()
    system.create_topic(topic)
    at = 1_700_000_000_000
    system.send(topic, "a", "b", timestamp_ms=at)
    system.send(topic, "c", timestamp_ms=at + 60_000)
    counts = (
        jobs.stream(topic, startingOffsets="earliest")
        .withWatermark("timestamp", "10 seconds")
        .groupBy(window("timestamp", "5 seconds"))
        .count()
    )
    found = jobs.run(counts).rows
    check("windows that are over", [(r.window.start.timestamp(), r["count"]) for r in found], [(at / 1000, 2)])


def test_duplicates(system: System, jobs: Jobs, check: Checks) -> None:
    topic, checkpoint = unused_name(), jobs.checkpoint()
    system.create_topic(topic)
    stream = jobs.stream(topic, startingOffsets="earliest").dropDuplicates(["value"])
    system.send(topic, "a", "b", "a")
    check("first run", jobs.run(stream, checkpoint).values(), ["a", "b"])
    system.send(topic, "b", "c")
    check("second run", jobs.run(stream, checkpoint).values(), ["c"])


def test_tasks(system: System, jobs: Jobs, check: Checks) -> None:
    topic = filled(system, 3, {0: range(10), 1: range(10, 20), 2: range(20, 21)})
    sizes: list[int] = []
    rows: list[Any] = []

    def look(frame: Any, batch_id: int) -> None:
        sizes.append(frame.rdd.getNumPartitions())
        rows.extend(frame.collect())

    stream = jobs.stream(topic, startingOffsets="earliest", minPartitions="6")
    writer = stream.writeStream.foreachBatch(look).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(jobs.checkpoint())).start()
    assert query.awaitTermination(120)
    check("minPartitions = 6", sizes, [7])
    check("rows", values_of(rows), texts(range(21)))


def test_a_batch_that_failed_is_run_again(system: System, jobs: Jobs, check: Checks) -> None:
    topic, checkpoint = filled(system, 1, {0: range(1, 8)}), jobs.checkpoint()
    stream = jobs.stream(topic, startingOffsets="earliest")
    seen: list[list[str]] = []

    def fail(frame: Any, batch_id: int) -> None:
        seen.append(values_of(frame.collect()))
        raise RuntimeError("seven")

    def error() -> str:
        writer = stream.writeStream.foreachBatch(fail).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(checkpoint)).start()
        try:
            query.awaitTermination(120)
        except Exception as e:  # noqa: BLE001
            return "seven" if "seven" in str(e) else str(e)
        return "no error"

    check("fails", error(), "seven")
    system.add_partitions(topic, 2)
    system.send(topic, "8", partition=1)
    check("with another partition", error(), "seven")
    check("the same rows", seen, [texts(range(1, 8))] * 2)
    check("then all", jobs.run(stream, checkpoint).values(), texts(range(1, 9)))


def test_records_that_come_while_a_batch_is_read(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    producer = system.transactions()
    producer.begin()
    producer.send(topic, *texts(range(4)))
    producer.commit()
    batches: list[list[str]] = []

    def more(frame: Any, batch_id: int) -> None:
        if batch_id == 0:
            producer.begin()
            producer.send(topic, *texts(range(4, 8)))
            producer.commit()
        batches.append(values_of(frame.collect()))

    stream = jobs.stream(topic, startingOffsets="earliest", **{"kafka.isolation.level": "read_committed"})
    query = stream.writeStream.foreachBatch(more).option("checkpointLocation", str(jobs.checkpoint())).start()
    try:
        query.processAllAvailable()
    finally:
        query.stop()
        producer.close()
    check("batches", [b for b in batches if b], [texts(range(4)), texts(range(4, 8))])


def test_started_and_stopped_at_once(system: System, jobs: Jobs, check: Checks) -> None:
    topic = filled(system, 5, {0: range(3)})
    with jobs.running(jobs.stream(subscribePattern=f"{topic}.*", startingOffsets="earliest")) as running:
        pass
    check("error", running.query.exception(), None)
    check("active", running.query.isActive, False)
