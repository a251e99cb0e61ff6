"""Streams: where a new query begins, per way of subscribing, and how it goes on after stops, restarts and new
partitions."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from tests.spark.kafka_parity.checks import Checks, Differs
from tests.spark.kafka_parity.jobs import Jobs, texts
from tests.spark.kafka_parity.systems import System, unused_name

pytestmark = pytest.mark.nightly

WAYS = ("assign", "subscribe", "subscribePattern")


def subscription(way: str, topic: str) -> dict[str, str]:
    """The options that name five partitions of `topic`."""
    values = {"assign": json.dumps({topic: list(range(5))}), "subscribe": topic, "subscribePattern": f"^{topic}$"}
    return {way: values[way]}


def five_partitions(system: System) -> tuple[str, list[list[str]]]:
    """Three numbers in each of five partitions."""
    topic = unused_name()
    system.create_topic(topic, 5)
    sent = [[str(10 * p + i) for i in range(3)] for p in range(5)]
    for partition, numbers in enumerate(sent):
        system.send(topic, *numbers, partition=partition)
    return topic, sent


def go_on(way: str, topic: str, stream: Any, expected: list[str], system: System, jobs: Jobs, check: Checks) -> None:
    """Runs, and again with more records and more partitions."""
    checkpoint = jobs.checkpoint()
    check("first run", jobs.run(stream, checkpoint).values(), expected)
    system.send(topic, "100", "101", partition=0)
    system.send(topic, "102", partition=4)
    system.add_partitions(topic, 8)
    system.send(topic, "200", "201", partition=7)
    new = range(0) if way == "assign" else range(200, 202)
    check("then, with new partitions", jobs.run(stream, checkpoint).values(), texts(range(100, 103), new))


@pytest.mark.parametrize("way", WAYS)
def test_from_latest(way: str, system: System, jobs: Jobs, check: Checks) -> None:
    topic, _ = five_partitions(system)
    stream = jobs.stream(**subscription(way, topic), startingOffsets="latest")
    go_on(way, topic, stream, [], system, jobs, check)


@pytest.mark.parametrize("way", WAYS)
def test_from_earliest(way: str, system: System, jobs: Jobs, check: Checks) -> None:
    topic, sent = five_partitions(system)
    stream = jobs.stream(**subscription(way, topic), startingOffsets="earliest", failOnDataLoss="false")
    go_on(way, topic, stream, sorted(v for numbers in sent for v in numbers), system, jobs, check)


@pytest.mark.parametrize("way", WAYS)
def test_from_specific_offsets(way: str, system: System, jobs: Jobs, check: Checks) -> None:
    topic, sent = five_partitions(system)
    given = {topic: {"0": -2, "1": -1, "2": 0, "3": 1, "4": 2}}
    stream = jobs.stream(**subscription(way, topic), startingOffsets=json.dumps(given))
    expected = sorted(sent[0] + sent[2] + sent[3][1:] + sent[4][2:])
    go_on(way, topic, stream, expected, system, jobs, check)


def timed(system: System) -> tuple[str, int]:
    """A record at a first and at a second time in four partitions, in the fifth one at the first time alone; the
    second."""
    topic = unused_name()
    system.create_topic(topic, 5)
    second = int(time.time() * 1000) - 4000
    for partition in range(5):
        system.send(topic, str(partition), partition=partition, timestamp_ms=second - 1000)
    for partition in range(4):
        system.send(topic, str(10 + partition), partition=partition, timestamp_ms=second)
    return topic, second


@pytest.mark.parametrize("way", WAYS)
def test_from_timestamps(way: str, system: System, jobs: Jobs, check: Checks) -> None:
    topic, second = timed(system)
    given = {topic: {str(p): second for p in range(4)} | {"4": second - 1000}}
    stream = jobs.stream(**subscription(way, topic), startingOffsetsByTimestamp=json.dumps(given))
    go_on(way, topic, stream, ["10", "11", "12", "13", "4"], system, jobs, check)


@pytest.mark.parametrize("way", WAYS)
def test_from_one_timestamp(way: str, system: System, jobs: Jobs, check: Checks) -> None:
    topic, second = timed(system)
    system.send(topic, "14", partition=4, timestamp_ms=second)
    stream = jobs.stream(**subscription(way, topic), startingTimestamp=str(second))
    go_on(way, topic, stream, texts(range(10, 15)), system, jobs, check)


@pytest.mark.parametrize("option", ["startingTimestamp", "startingOffsetsByTimestamp"])
def test_no_record_of_that_timestamp(option: str, system: System, jobs: Jobs, check: Checks) -> None:
    topic, second = timed(system)
    per_partition = json.dumps({topic: {str(p): second for p in range(5)}})
    given = {option: str(second) if option == "startingTimestamp" else per_partition}
    words = "No offset matched from request"
    check("by default", jobs.stream_error(words, topic=topic, **given), f"run: {words}")
    strategy = "startingOffsetsByTimestampStrategy"
    check("error", jobs.stream_error(words, topic=topic, **given, **{strategy: "error"}), f"run: {words}")
    stream, checkpoint = jobs.stream(topic, **given, **{strategy: "latest"}), jobs.checkpoint()
    check("latest", jobs.run(stream, checkpoint).values(), texts(range(10, 14)))
    system.send(topic, "23", "24", partition=4, timestamp_ms=second)
    check("afterwards", jobs.run(stream, checkpoint).values(), ["23", "24"])


def test_the_default_is_latest(system: System, jobs: Jobs, check: Checks) -> None:
    topic, _ = five_partitions(system)
    stream, checkpoint = jobs.stream(topic), jobs.checkpoint()
    with jobs.running(stream, checkpoint) as running:
        check("what was there", running.settle(), [])
        system.send(topic, "100", partition=3)
        check("what comes", running.until(1), ["100"])
        running.settle()  # until the batch is committed
    system.send(topic, "101", partition=3)
    check("after a restart", jobs.run(stream, checkpoint).values(), ["101"])
    check("again, with nothing new", jobs.run(stream, checkpoint).values(), [])


def test_a_checkpoint_goes_before_starting_offsets(system: System, jobs: Jobs, check: Checks) -> None:
    topic, _ = five_partitions(system)
    checkpoint = jobs.checkpoint()
    jobs.run(jobs.stream(topic, startingOffsets="earliest"), checkpoint)
    system.send(topic, "100", partition=0)
    check(
        "earliest given again", jobs.run(jobs.stream(topic, startingOffsets="earliest"), checkpoint).values(), ["100"]
    )


def test_new_partitions_while_it_runs(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic)
    with jobs.running(jobs.stream(topic, startingOffsets="latest", **{"kafka.metadata.max.age.ms": "1"})) as running:
        running.settle()
        system.add_partitions(topic, 3)
        system.send(topic, "a", partition=2)
        system.send(topic, "b", partition=0)
        check("rows", running.until(2), ["a", "b"])


def test_a_pattern_and_topics_that_come_later(system: System, jobs: Jobs, check: Checks) -> None:
    prefix = unused_name("later")
    stream = jobs.stream(
        subscribePattern=f"{prefix}-.*", startingOffsets="latest", **{"kafka.metadata.max.age.ms": "1"}
    )
    with jobs.running(stream) as running:
        check("none yet", running.settle(), [])
        system.create_topic(f"{prefix}-a", 2)
        system.send(f"{prefix}-a", "1", partition=1)
        check("from its first record", running.until(1), ["1"])
        system.create_topic(f"{prefix}-b")
        system.send(f"{prefix}-b", "2")
        check("another one", running.until(2), ["1", "2"])


def test_patterns_of_java(system: System, jobs: Jobs, check: Checks) -> None:
    base = unused_name("java")
    for name in ("orders-eu", "orders-us", "returns"):
        system.create_topic(f"{base}-{name}")
        system.send(f"{base}-{name}", name)

    def matching(pattern: str) -> list[str]:
        return jobs.run(jobs.stream(subscribePattern=pattern, startingOffsets="earliest")).values()

    check("found anywhere", matching(f"{base}-orders"), ["orders-eu", "orders-us"])
    check("classes and quotes", matching(rf"^\Q{base}-\E\p{{Alpha}}+-[a-z&&[^u]]\w$"), ["orders-eu"])
    check("named group, look-ahead", matching(f"(?<base>{base})-(?!orders)"), ["returns"])
    check("the whole name", matching("^orders$"), [])


def test_a_topic_taken_out_of_the_subscription(system: System, jobs: Jobs, check: Checks) -> None:
    kept, left = unused_name("kept"), unused_name("left")
    for name in (kept, left):
        system.create_topic(name)
        system.send(name, name[:4])
    checkpoint = jobs.checkpoint()
    both = jobs.stream(f"{kept},{left}", startingOffsets="earliest")
    check("both", jobs.run(both, checkpoint).values(), ["kept", "left"])
    system.send(kept, "more")
    with jobs.running(jobs.stream(kept), checkpoint) as running:
        theirs, ours = "Some data may have been lost", "topics were removed from the subscription"
        found = running.error(theirs, ours)
    reason = "the error names the cause; Kafka's error speaks of deleted partitions"
    check("failOnDataLoss", found, f"run: {theirs}", Differs(f"run: {ours}", reason))
    tolerant = jobs.stream(kept, failOnDataLoss="false")
    check("failOnDataLoss = false", jobs.run(tolerant, checkpoint).values(), ["more"])


def test_offsets_of_an_unchanged_checkpoint(system: System, jobs: Jobs, check: Checks) -> None:
    topic = unused_name()
    system.create_topic(topic, 5)
    stream, checkpoint = jobs.stream(topic), jobs.checkpoint()
    for _ in range(2):
        with jobs.running(stream, checkpoint) as running:
            running.settle()
    system.send(topic, "a", partition=3)
    check("then", jobs.run(stream, checkpoint).values(), ["a"])
