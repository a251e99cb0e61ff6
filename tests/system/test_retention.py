"""Retention, delete-records and changed settings with a real broker, its client and its command line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog import TopicPartition
from sparklog.errors import (
    DataLossError,
    InvalidConfigError,
    InvalidRequestError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from tests.support.cli import Result, run_here
from tests.support.waiting import until

SMALL = {"segment.bytes": 4096, "file.delete.delay.ms": 0}
VALUE = b"x" * 1000


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sparklog.LocalBroker]:
    """A broker that runs its retention all the time."""
    settings = {"log.retention.check.interval.ms": 20, "log.flush.interval.ms": 100}
    with sparklog.start_local(tmp_path_factory.mktemp("retention") / "data", settings=settings) as started:
        yield started


@pytest.fixture
def admin(local: sparklog.LocalBroker) -> Iterator[sparklog.Admin]:
    with sparklog.Admin(local.bootstrap_servers) as made:
        yield made


def send(local: sparklog.LocalBroker, topic: str, count: int, *, partition: int = 0, **more: Any) -> None:
    with sparklog.Producer(local.bootstrap_servers, linger_ms=0) as producer:
        for _ in range(count):
            producer.send(topic, value=VALUE, partition=partition, **more).result(30)


def offsets(local: sparklog.LocalBroker, topic: str) -> list[int]:
    table = sparklog.read_table(local.bootstrap_servers, topic, include_metadata=True)
    return sorted(table["_offset"].to_pylist())


def bases(local: sparklog.LocalBroker, topic: str, partition: int = 0) -> list[int]:
    return sorted(int(p.stem) for p in (local.data_dir / f"{topic}-{partition}").glob("*.arrow"))


def start_of(admin: sparklog.Admin, topic: str, partition: int = 0) -> int:
    return admin.describe_topic(topic).partition_details[partition].log_start_offset


def test_old_records_go_and_the_log_goes_on(local: sparklog.LocalBroker, admin: sparklog.Admin, topic: str) -> None:
    admin.create_topic(topic, configs=SMALL | {"retention.ms": 3_600_000})
    send(local, topic, 5, timestamp_ms=int(time.time() * 1000) - 7_200_000)
    until(lambda: start_of(admin, topic) == 5, "all expired, the active segment too")
    until(lambda: bases(local, topic) == [5], "files unlinked")
    assert offsets(local, topic) == []
    send(local, topic, 2)
    assert offsets(local, topic) == [5, 6]
    assert admin.list_offsets({TopicPartition(topic, 0): "earliest"})[TopicPartition(topic, 0)].offset == 5


def test_settings_reach_producers_and_are_checked(
    local: sparklog.LocalBroker, admin: sparklog.Admin, topic: str
) -> None:
    admin.create_topic(topic)
    admin.alter_topic(topic, {"max.message.bytes": 1024})
    with pytest.raises(MessageTooLargeError):
        send(local, topic, 1)
    with pytest.raises(InvalidConfigError, match="did you mean 'retention"):
        admin.alter_topic(topic, {"retention.m": 5})
    with pytest.raises(InvalidConfigError, match="cannot be changed"):
        admin.alter_topic(topic, {"message.timestamp.type": "LogAppendTime"})
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.alter_topic("no-such-topic", {"segment.ms": 5})
    described = admin.describe_topic(topic)
    assert described.configs == {"max.message.bytes": 1024}
    assert (described.setting("retention.ms"), described.setting("segment.ms")) == (-1, 604_800_000)


def test_delete_records_is_exact_for_every_reader(
    local: sparklog.LocalBroker, admin: sparklog.Admin, topic: str
) -> None:
    admin.create_topic(topic, partitions=2, configs=SMALL)
    with sparklog.Producer(local.bootstrap_servers) as producer:
        for partition in (0, 1):
            producer.send_batch(topic, {"value": [b"%d" % i for i in range(10)]}, partition=partition).result(30)
    tps = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
    assert admin.delete_records({tps[0]: 4, tps[1]: -1}) == {tps[0]: 4, tps[1]: 10}
    assert offsets(local, topic) == [4, 5, 6, 7, 8, 9]
    assert admin.delete_records({tps[0]: 2}) == {tps[0]: 4}, "below the log start there is nothing left to do"
    with sparklog.Consumer(local.bootstrap_servers, auto_offset_reset="none") as consumer:
        consumer.assign(tps)
        consumer.seek(tps[0], 4)
        consumer.seek(tps[1], 10)
        records: list[sparklog.Record] = []
        while len(records) < 6:
            records += consumer.poll(timeout_ms=1000)
        assert [(r.offset, r.value) for r in records] == [(o, b"%d" % o) for o in range(4, 10)]
        consumer.seek(tps[0], 3)
        with pytest.raises(OffsetOutOfRangeError, match="offset 3"):
            consumer.poll(timeout_ms=5000)
    with pytest.raises((DataLossError, OffsetOutOfRangeError)):
        sparklog.read_table(local.bootstrap_servers, topic, start={0: 0, 1: 10})
    until(lambda: bases(local, topic, 1) == [10], "the files of what is wholly deleted go")
    assert bases(local, topic, 0) == [0]


def test_delete_records_is_refused_before_anything_is_deleted(
    local: sparklog.LocalBroker, admin: sparklog.Admin, topic: str
) -> None:
    admin.create_topic(topic, partitions=2)
    send(local, topic, 3)
    send(local, topic, 1, partition=1)
    with pytest.raises(OffsetOutOfRangeError, match=f"{topic}-1 ends at 1. Nothing was deleted: name an offset"):
        admin.delete_records({TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 2})
    with pytest.raises(InvalidRequestError, match="or -1 for all"):
        admin.delete_records({TopicPartition(topic, 0): -2})
    with pytest.raises(UnknownTopicOrPartitionError):
        admin.delete_records({TopicPartition(topic, 2): 0})
    assert offsets(local, topic) == [0, 0, 1, 2]


def test_a_waiting_fetch_is_answered(local: sparklog.LocalBroker, admin: sparklog.Admin, topic: str) -> None:
    """A waiting consumer below the deleted offsets learns of the deletion and continues."""
    admin.create_topic(topic)
    send(local, topic, 3)
    with sparklog.Consumer(local.bootstrap_servers, fetch_min_bytes=1 << 20, fetch_max_wait_ms=60_000) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek(TopicPartition(topic, 0), 1)
        assert consumer.poll(timeout_ms=200) == []
        admin.delete_records({TopicPartition(topic, 0): 2})
        found: list[sparklog.Record] = []
        deadline = time.monotonic() + 60
        while consumer.position(TopicPartition(topic, 0)) < 2:
            assert time.monotonic() < deadline
            found += consumer.poll(timeout_ms=500)


def sparklog_command(local: sparklog.LocalBroker, *arguments: str) -> Result:
    return run_here(*arguments, "-b", local.bootstrap_servers)


def test_loading_old_data_warns(tmp_path: Path) -> None:
    with sparklog.start_local(tmp_path / "data", settings={"topic.retention.ms": 7 * 86_400_000}) as local:
        created = sparklog_command(
            local, "topic", "create", "t", "--schema", "n INT, at TIMESTAMP", "--timestamp-column", "at"
        )
        assert "records whose at is older than 7 days will be deleted; --config retention.ms=-1" in created.stderr
        arguments = ("--schema", "n INT, at TIMESTAMP", "--timestamp-column", "at", "--config", "retention.ms=-1")
        assert sparklog_command(local, "topic", "create", "u", *arguments).stderr == ""
