"""Adding partitions to a topic in a broker without network: simultaneous changes of the topic, and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sparklog_broker.broker import Broker
from sparklog_broker.config import load_config

from sparklog.errors import StorageFullError, UnknownTopicOrPartitionError
from sparklog.format.batch import encode_batch
from sparklog.format.schema_evolution import SchemaChange
from sparklog.metadata.coordination import StoreWriteError
from sparklog.metadata.store import Topic, TopicSpec
from tests.support.brokers import started

SCHEMA = pa.schema([("a", pa.int64())])


def run(data: Path, scenario: Callable[[Broker], Awaitable[None]]) -> None:
    async def whole() -> None:
        broker = await started(load_config(None, data_dir=str(data), listen="127.0.0.1:0"))
        try:
            await scenario(broker)
        finally:
            await broker.close()

    asyncio.run(whole())


def test_a_schema_changed_at_the_same_time_is_that_of_the_new_partitions(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.create(TopicSpec("t", 1, schema=SCHEMA))
        change = SchemaChange(add=pa.schema([("b", pa.int64())]))
        await asyncio.gather(broker.topics.add_partitions("t", 3), broker.topics.alter_schema("t", change))
        topic = broker.partitions.topics["t"]
        assert (topic.partitions, len(topic.schemas)) == (3, 2)
        rows = pa.record_batch({"a": [1], "b": [2]}, schema=topic.schemas[topic.schema_id])
        for number in range(3):
            batch = encode_batch(rows, schema_id=topic.schema_id, min_timestamp_ms=0, max_timestamp_ms=0)
            assert broker.partitions.get("t", number).log.appender.append(bytearray(batch)).base_offset == 0

    run(tmp_path, scenario)
    run(tmp_path, lambda broker: _has(broker, 3))


def test_settings_changed_at_the_same_time_are_those_of_the_new_partitions(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.create(TopicSpec("t", 1))
        await asyncio.gather(
            broker.topics.add_partitions("t", 3), broker.topics.alter("t", {"segment.bytes": 1_000_000})
        )
        assert {broker.partitions.get("t", n).log.config.segment_bytes for n in range(3)} == {1_000_000}
        assert (broker.partitions.topics["t"].partitions, broker.partitions.topics["t"].configs["segment.bytes"]) == (
            3,
            1_000_000,
        )

    run(tmp_path, scenario)


def test_a_topic_deleted_meanwhile_does_not_come_back(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        for _ in range(5):
            await broker.topics.create(TopicSpec("t", 1))
            grown, deleted = await asyncio.gather(
                broker.topics.add_partitions("t", 3), broker.topics.delete("t"), return_exceptions=True
            )
            assert isinstance(deleted, str)
            assert isinstance(grown, UnknownTopicOrPartitionError | Topic)
            assert "t" not in broker.partitions.topics
            for number in range(3):
                with pytest.raises(UnknownTopicOrPartitionError):
                    broker.partitions.get("t", number)
        assert not list(tmp_path.glob("t-?"))

    run(tmp_path, scenario)


def test_several_at_once_leave_the_largest_number(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.create(TopicSpec("t", 1))
        await asyncio.gather(*(broker.topics.add_partitions("t", n) for n in (2, 4, 7)))
        await _has(broker, 7)

    run(tmp_path, scenario)
    run(tmp_path, lambda broker: _has(broker, 7))


def test_a_failure_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.create(TopicSpec("t", 1))

        def full(ops: Any, *, in_transaction: bool) -> None:
            raise StoreWriteError(StorageFullError("the disk is full"))

        with monkeypatch.context() as patch:
            patch.setattr(broker.cluster._store.coordination, "_commit", full)
            with pytest.raises(StorageFullError):
                await broker.topics.add_partitions("t", 3)
        assert broker.partitions.topics["t"].partitions == 1
        assert [p.name for p in tmp_path.glob("t-?")] == ["t-0"]
        await broker.cluster.controller.while_it_moves(lambda: broker.topics.add_partitions("t", 2))
        await _has(broker, 2)

    run(tmp_path, scenario)


async def _has(broker: Broker, partitions: int) -> None:
    assert broker.partitions.topics["t"].partitions == partitions
    assert [broker.partitions.get("t", n).open_log is not None for n in range(partitions)] == [True] * partitions
