"""Content of a scrape of a broker with topics, groups and transactions, and its limits."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from sparklog_broker.broker import Broker
from sparklog_broker.counters.traffic import OTHERS
from sparklog_broker.handlers.fetch import fetch
from sparklog_broker.handlers.produce import produce
from sparklog_broker.metrics.exposition import Exposition
from sparklog_broker.metrics.rendering import Renderer
from sparklog_broker.request_context import RequestContext

from sparklog.errors import StorageError
from sparklog.histogram import Histogram
from sparklog.metadata.store import TopicSpec
from sparklog.protocol import group_messages as m
from sparklog.protocol.messages import FetchPartition, FetchRequest, ProducePartition, ProduceRequest
from sparklog.replication.groups import GROUP_ID_CHARS_MAX
from sparklog.types import TopicPartition
from tests.support.brokers import coordinating
from tests.support.metrics import run, scrape
from tests.support.raw_client import envelope_batch

BATCH = envelope_batch(10, 20)


def context(broker: Broker) -> RequestContext:
    return RequestContext(broker, ("127.0.0.1", 1), "127.0.0.1")


async def append(broker: Broker, *where: tuple[str, int]) -> RequestContext:
    """A batch of ten records each."""
    parts = [ProducePartition(topic, number, len(BATCH)) for topic, number in where]
    its_context = context(broker)
    await produce(ProduceRequest(-1, 10_000, parts), memoryview(bytearray(BATCH * len(parts))), its_context)
    return its_context


async def read(broker: Broker, topic: str, offset: int, wait_ms: int = 0) -> RequestContext:
    its_context = context(broker)
    request = FetchRequest(wait_ms, 1, 1 << 20, 0, [FetchPartition(topic, 0, offset, 1 << 20)])
    response = await fetch(request, memoryview(b""), its_context)
    response.release()
    return its_context


async def commit(broker: Broker, group: str, topic: str, *offsets: int) -> None:
    """An offset per partition."""
    await coordinating(broker, transactions=False)
    wanted = [m.CommittedOffset(topic, number, offset) for number, offset in enumerate(offsets)]
    await broker.groups.commit(m.OffsetCommitRequest(group, wanted))


def test_traffic_by_topic(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.create(TopicSpec("a", 2))
        await broker.topics.create(TopicSpec("b", 1))
        await append(broker, ("a", 0), ("a", 1), ("b", 0), ("nobody", 0))
        await append(broker, ("a", 0))
        await read(broker, "a", 0)
        await read(broker, "a", 10)
        await read(broker, "b", 99)
        found = await scrape(broker)
        for name, a, b in (
            ("messagesin", 30, 10),
            ("bytesin", 3 * len(BATCH), len(BATCH)),
            ("totalproducerequests", 3, 1),
            ("failedproducerequests", 0, 0),
            ("bytesout", 3 * len(BATCH), 0),
            ("totalfetchrequests", 2, 1),
            ("failedfetchrequests", 0, 1),
        ):
            expected = {"a": a, "b": b, OTHERS: 0}
            assert found.by("topic", f"kafka_server_brokertopicmetrics_{name}_total") == expected, name
        assert found.of("sparklog_topic_records_out_total", topic="a") == 30

    run(tmp_path, scenario)


def test_a_repeated_or_refused_append_is_no_traffic(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.create(TopicSpec("a", 1))
        parts = [ProducePartition("a", 0, len(BATCH))]
        damaged = bytearray(BATCH)
        damaged[-1] ^= 1
        await produce(ProduceRequest(-1, 10_000, parts), memoryview(damaged), context(broker))
        found = await scrape(broker)
        prefix = "kafka_server_brokertopicmetrics"
        assert found.of(f"{prefix}_messagesin_total", topic="a") == 0
        assert found.of(f"{prefix}_failedproducerequests_total", topic="a") == 1

    run(tmp_path, scenario)


def test_topics_beyond_the_limit_are_others(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        for name in ("a", "b", "c"):
            await broker.topics.create(TopicSpec(name, 2))
        await append(broker, ("a", 0), ("b", 0), ("c", 0))
        await commit(broker, "g", "b", 0)
        found = await scrape(broker)
        assert found.by("topic", "kafka_server_brokertopicmetrics_messagesin_total")["a"] == 10
        assert found.by("topic", "kafka_topic_partitions") == {"a": 2, OTHERS: 4 + 8}
        assert found.of("kafka_consumergroup_lag", consumergroup="g", topic=OTHERS) == 10
        assert found.of("sparklog_metrics_left_out", kind="topics") == 3
        assert found.of("kafka_server_replicamanager_partitioncount") == 14

    run(tmp_path, scenario, metrics_topics_max=1)


def test_partitions_by_option(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        for name, partitions in (("a", 4), ("b", 2), ("c", 1)):
            await broker.topics.create(TopicSpec(name, partitions))
        await append(broker, ("a", 1), ("b", 1), ("c", 0))
        await commit(broker, "g", "b", 0, 4)
        found = await scrape(broker)
        # `a` does not fit, `b` and `c` do
        assert found.labels("kafka_log_log_size") == {
            frozenset({("topic", "a")}),
            frozenset({("topic", "b"), ("partition", "0")}),
            frozenset({("topic", "b"), ("partition", "1")}),
            frozenset({("topic", "c"), ("partition", "0")}),
            frozenset({("topic", "__consumer_offsets")}),
        }
        assert found.of("kafka_topic_partition_current_offset", topic="b", partition="1") == 10
        assert found.of("kafka_topic_partition_current_offset", topic="a") == 10
        assert found.of("kafka_topic_partition_oldest_offset", topic="b", partition="1") == 0
        assert found.of("kafka_consumergroup_lag", consumergroup="g", topic="b", partition="1") == 6
        assert found.of("kafka_consumergroup_current_offset", consumergroup="g", topic="b", partition="1") == 4

    run(tmp_path, scenario, metrics_partitions_max=3)


def test_lag_is_reported_by_group_and_topic(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.create(TopicSpec("a", 2))
        await broker.topics.create(TopicSpec("b", 1))
        await append(broker, ("a", 0), ("a", 1), ("b", 0))
        await commit(broker, "fast", "a", 10, 10)
        await commit(broker, "slow", "a", 1, 7)
        await commit(broker, "slow", "b", 8)
        await commit(broker, "ahead", "b", 99)
        found = await scrape(broker)
        assert found.of("kafka_consumergroup_lag", consumergroup="fast", topic="a") == 0
        assert found.of("kafka_consumergroup_lag", consumergroup="slow", topic="a") == 9 + 3
        assert found.of("kafka_consumergroup_current_offset", consumergroup="slow", topic="a") == 8
        assert found.by("group", "sparklog_group_lag_records") == {"fast": 0, "slow": 14, "ahead": 0}
        assert found.by("group", "sparklog_group_lag_records_max") == {"fast": 0, "slow": 9, "ahead": 0}
        assert found.by("state", "sparklog_groups") == {"Empty": 3}

    run(tmp_path, scenario)


HOSTILE = [
    'a"b',
    "a\\b",
    "a\nb",
    'x"} 1\nup 0',
    "</script><script>alert(1)</script>",
    "\r\x00\x1b[31m",
    "日本語",
    "{",
    " ",
    OTHERS,
]


@pytest.mark.parametrize("exposition", list(Exposition))
def test_hostile_names_are_escaped(tmp_path: Path, exposition: Exposition) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.create(TopicSpec("a", 1))
        await append(broker, ("a", 0))
        names = [*HOSTILE, "y" * GROUP_ID_CHARS_MAX]
        for name in names:
            await commit(broker, name, "a", 3)
        found = await scrape(broker, exposition)
        lag = found.by("group", "sparklog_group_lag_records")
        assert lag == dict.fromkeys(names, 7.0)
        assert "up" not in found.names

    run(tmp_path, scenario)


def test_groups_beyond_the_limit_are_others(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.create(TopicSpec("a", 1))
        await append(broker, ("a", 0))
        for i in range(9):
            await commit(broker, f"g{i}", "a", i)
        found = await scrape(broker)
        assert found.by("group", "sparklog_group_lag_records") == {"g0": 10, "g1": 9, OTHERS: sum(range(2, 9))}

    run(tmp_path, scenario, metrics_groups_max=2)


def test_open_transactions_and_the_records_behind_them(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        before = await scrape(broker)
        assert before.of("sparklog_open_transactions") == 0
        assert before.of("sparklog_open_transaction_age_seconds_max") == 0
        await broker.topics.create(TopicSpec("a", 1))
        await coordinating(broker)
        identity = await broker.transactions.init_producer_id("app", 60_000)
        await broker.transactions.add_partitions("app", *identity, [TopicPartition("a", 0)])
        found = await scrape(broker)
        assert found.of("sparklog_open_transactions") == 1
        assert found.of("sparklog_transactional_ids", state="Ongoing") == 1
        assert 0 <= found.of("sparklog_open_transaction_age_seconds_max") < 30
        await broker.transactions.end("app", *identity, commit=False)
        assert (await scrape(broker)).of("sparklog_open_transactions") == 0

    run(tmp_path, scenario)


def test_the_wait_of_a_fetch_is_no_work(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.create(TopicSpec("a", 1))
        waiting = asyncio.ensure_future(read(broker, "a", 0, wait_ms=20_000))
        while not broker.partitions.fetches.waiting_count:
            await asyncio.sleep(0)
        assert (await scrape(broker)).of("sparklog_purgatory_waiting", purgatory="fetch") == 1
        began = time.monotonic()
        await append(broker, ("a", 0))
        its_context = await waiting
        assert its_context.times.wait_s > 0
        assert its_context.times.wait_s >= time.monotonic() - began - 10
        found = await scrape(broker)
        assert found.of("sparklog_purgatory_waits_total", purgatory="fetch", outcome="satisfied") == 1
        expired = await read(broker, "a", 10, wait_ms=5)
        assert expired.times.wait_s >= 0.004
        found = await scrape(broker)
        assert found.of("sparklog_purgatory_waits_total", purgatory="fetch", outcome="expired") == 1

    run(tmp_path, scenario)


def test_flushes_and_fsyncs(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.create(TopicSpec("a", 1, configs={"flush.mode": "group"}))
        directory = str(broker.config.data_dir)
        before = await scrape(broker)
        await append(broker, ("a", 0))
        found = await scrape(broker)
        syncs = "sparklog_fsync_seconds_count"
        assert found.of(syncs, directory=directory) > before.of(syncs, directory=directory)
        assert found.of("sparklog_fsync_failures_total", directory=directory) == 0
        assert found.of("sparklog_log_directory_failed", directory=directory) == 0

    run(tmp_path, scenario)


def test_offline_partitions(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.create(TopicSpec("a", 3))
        log = broker.partitions.get("a", 1).open_log
        broker.partitions.get("a", 1).take_offline(StorageError("the disk is gone"))
        broker.cluster.on_offline()
        assert await broker.cluster.images.until_true(lambda image: image.topics["a"].partitions[1].leader < 0, 10)
        with pytest.raises(StorageError, match="the disk is gone"):
            broker.partitions.get("a", 1)
        found = await scrape(broker)
        assert found.of("kafka_controller_kafkacontroller_offlinepartitionscount") == 1
        assert found.of("kafka_server_replicamanager_leadercount") == 2
        assert found.of("sparklog_topic_offline_partitions", topic="a") == 1
        assert log is not None

    run(tmp_path, scenario)


def test_before_the_broker_is_ready(tmp_path: Path) -> None:
    body = Renderer(Histogram(), time.monotonic, lambda _: None).scrape(Exposition.TEXT, None, False)
    assert b"\nsparklog_ready 0.0\n" in body
    assert b"kafka_" not in body


def test_a_scrape_beside_changes(tmp_path: Path) -> None:
    """The thread reads while topics, groups and offsets come and go."""

    async def scenario(broker: Broker) -> None:
        await broker.topics.create(TopicSpec("steady", 2))

        async def change() -> None:
            for i in range(12):
                await broker.topics.create(TopicSpec(f"t{i}", 3))
                await append(broker, (f"t{i}", 0))
                await commit(broker, f"g{i}", f"t{i}", 1)
                if i % 2:
                    await broker.topics.delete(f"t{i - 1}")

        changing = asyncio.ensure_future(change())
        count = 0
        while not changing.done() or not count:
            found = await scrape(broker)
            assert found.of("kafka_topic_partitions", topic="steady") == 2
            count += 1
        await changing
        assert (await scrape(broker)).of("kafka_server_replicamanager_partitioncount") == 2 + 6 * 3 + 8

    run(tmp_path, scenario)
