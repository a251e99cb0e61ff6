"""Internal topics: made on first use, appended to as a whole, replayed in order, closed to clients."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sparklog_broker.broker import Broker
from sparklog_broker.coordinators.internal_topics import (
    InternalTopic,
    Producer,
    Record,
    ReplayedRecord,
    decode,
    encode_records,
)
from sparklog_broker.handlers.produce import produce
from sparklog_broker.handlers.topics import alter_topic, create_partitions, create_topic, delete_topic
from sparklog_broker.request_context import RequestContext

from sparklog.errors import CorruptBatchError, InvalidConfigError, InvalidTopicError, TopicAlreadyExistsError
from sparklog.format.batch import decode_batch, iterate_batches
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.format.small_batch import is_small_batch
from sparklog.protocol.messages import ProducePartition, ProduceRequest, ProduceResponse
from sparklog.protocol.topic_messages import (
    AlterTopicRequest,
    CreatePartitionsRequest,
    CreateTopicRequest,
    DeleteTopicRequest,
)
from sparklog.types import CONSUMER_OFFSETS_TOPIC, INTERNAL_TOPICS, TRANSACTION_STATE_TOPIC
from tests.support.brokers import run, started
from tests.support.raw_client import envelope_batch


def internal_topic(broker: Broker, name: str) -> InternalTopic:
    clock = broker.environment.clock
    return InternalTopic(name, broker.config, clock, broker.topics, broker.appender, broker.io)


async def replayed(topic: InternalTopic, partition: int) -> list[ReplayedRecord]:
    return [record async for piece in topic.replay(partition) for record in piece]


def test_an_internal_topic_is_created_on_first_use_and_replayed_in_order(tmp_path: Path) -> None:
    async def first(broker: Broker, context: RequestContext) -> None:
        topic = internal_topic(broker, TRANSACTION_STATE_TOPIC)
        assert not topic.exists
        assert topic.partitions == 8
        assert await replayed(topic, 0) == []
        infos = await asyncio.gather(*(topic.append(3, [(b"k", b"%d" % i), (b"gone", None)]) for i in range(20)))
        assert [i.base_offset for i in infos] == list(range(0, 40, 2))
        made = broker.partitions.topics[TRANSACTION_STATE_TOPIC]
        assert made.configs["cleanup.policy"] == "compact"
        assert broker.partitions.get(topic.name, 3).log.high_watermark == 40
        found = await replayed(topic, 3)
        assert [r.offset for r in found] == list(range(40))
        assert [(r.key, r.value) for r in found[-2:]] == [(b"k", b"19"), (b"gone", None)]
        assert not found[0].is_marker
        assert not found[0].is_transactional
        assert await replayed(topic, 2) == []

    run(tmp_path, first)

    async def second(broker: Broker, context: RequestContext) -> None:
        topic = internal_topic(broker, TRANSACTION_STATE_TOPIC)
        assert topic.exists
        assert len(await replayed(topic, 3)) == 40

    async def again() -> None:
        from sparklog_broker.config import make_config

        config = make_config({"data.dir": str(tmp_path / "data"), "transaction.state.log.num.partitions": 3})
        broker = await started(config)
        assert internal_topic(broker, TRANSACTION_STATE_TOPIC).partitions == 8, "what is there keeps its number"
        assert internal_topic(broker, CONSUMER_OFFSETS_TOPIC).partitions == 8
        await second(broker, RequestContext(broker, ("", 1), ""))
        broker.stop_waiting()
        assert await broker.close()

    asyncio.run(again())


def test_a_large_partition_is_replayed_in_pieces(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        topic = internal_topic(broker, CONSUMER_OFFSETS_TOPIC)
        value = b"x" * 100_000
        for i in range(30):
            await topic.append(0, [(b"%d" % i, value)])
        pieces = [len(piece) async for piece in topic.replay(0)]
        assert sum(pieces) == 30
        assert len(pieces) > 2

    run(tmp_path, scenario)


def test_damaged_batches_are_not_replayed(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        topic = internal_topic(broker, TRANSACTION_STATE_TOPIC)
        for i in range(5):
            await topic.append(0, [(b"k", b"value %d" % i)])
        (segment,) = (tmp_path / "data" / f"{topic.name}-0").glob("*.arrow")
        with segment.open("r+b") as file:
            file.seek(file.read().index(b"value 3"))
            file.write(b"V")
        with pytest.raises(CorruptBatchError, match="checksum"):
            await replayed(topic, 0)

    run(tmp_path, scenario)


def test_obsolete_records_are_compacted_before_the_replay_takes_long(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        topic = internal_topic(broker, TRANSACTION_STATE_TOPIC)
        value = os.urandom(1_000_000)
        for _ in range(40):
            await topic.append(0, [(b"k", value)])
        log = topic.partition_of(0).log
        while await asyncio.to_thread(broker.background.cleaner.run_once):
            pass
        assert log.size_bytes < 20_000_000
        assert [r.value for r in await replayed(topic, 0)][-1] == value

    run(tmp_path, scenario)


def test_a_key_always_has_the_same_partition(tmp_path: Path) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        topic = internal_topic(broker, CONSUMER_OFFSETS_TOPIC)
        assert [topic.partition_for(k) for k in ("a", "group", "ü")] == [3, 5, 5]
        assert {topic.partition_for(f"g{i}") for i in range(200)} == set(range(8))

    run(tmp_path, scenario)


@pytest.mark.parametrize("name", sorted(INTERNAL_TOPICS))
def test_clients_cannot_touch_it(tmp_path: Path, name: str) -> None:
    async def scenario(broker: Broker, context: RequestContext) -> None:
        nothing = memoryview(b"")
        with pytest.raises(InvalidTopicError, match="is internal"):
            await create_topic(CreateTopicRequest(name, 1), nothing, context)
        await internal_topic(broker, name).append(0, [(b"k", b"v")])
        with pytest.raises(TopicAlreadyExistsError, match="the broker has created it"):
            await create_topic(CreateTopicRequest(name, 1), nothing, context)
        with pytest.raises(InvalidTopicError, match="is internal"):
            await delete_topic(DeleteTopicRequest(name), nothing, context)
        with pytest.raises(InvalidTopicError, match="is internal"):
            await create_partitions(CreatePartitionsRequest(name, 100), nothing, context)
        with pytest.raises(InvalidConfigError, match=r"cleanup\.policy cannot be changed"):
            await alter_topic(AlterTopicRequest(name, {"cleanup.policy": "delete"}), nothing, context)
        await alter_topic(AlterTopicRequest(name, {"segment.ms": 1000}), nothing, context)
        data = envelope_batch(1, 1)
        request = ProduceRequest(-1, 1000, [ProducePartition(name, 0, len(data)), ProducePartition("t", 0, len(data))])
        response = await produce(request, memoryview(bytearray(data * 2)), context)
        assert isinstance(response.message, ProduceResponse)
        refused, taken = response.message.results
        assert (refused.error_code, taken.error_code) == (InvalidTopicError.code, 0)
        assert broker.partitions.get(name, 0).log.log_end_offset == 1

    run(tmp_path, scenario)


@given(
    st.lists(st.tuples(st.binary(max_size=20), st.none() | st.binary(max_size=20)), min_size=1, max_size=300),
    st.none() | st.builds(Producer, st.integers(0, 2**62), st.integers(0, 2**15 - 1)),
)
@example([(b"k", b"v")] * 255, None)
@example([(b"k", b"v")] * 256, Producer(7, 1))
def test_written_records_are_read(records: list[Record], producer: Producer | None) -> None:
    """For both encoders, sparklog's own and Arrow's, which size and nulls decide; Arrow reads both."""
    data = encode_records(records, 5000, producer)
    ((_, header),) = iterate_batches(data)
    assert (header.record_count, header.min_timestamp_ms, header.max_timestamp_ms) == (len(records), 5000, 5000)
    assert [(r.key, r.value) for r in decode(data, header, 1 << 20)] == records
    assert (header.producer_id, header.producer_epoch) == (producer or (-1, -1))
    rows = decode_batch(data, ENVELOPE_SCHEMA)
    assert list(zip(rows.column("key").to_pylist(), rows.column("value").to_pylist(), strict=True)) == records
    assert set(rows.column("headers").to_pylist()) == {None}
    assert is_small_batch(data, 0, header) == (len(records) <= 255 and all(value is not None for _, value in records))


def test_the_brokers_batches_are_built_without_pandas() -> None:
    """In a process of its own: pandas would cost an idle broker 0.3 s of its event loop, and 30 MB."""
    program = """
import sys
from sparklog.format.batch import iterate_batches
import pyarrow as pa
from sparklog.format.schema import HEADER_TYPE, TIMESTAMP_TYPE, null_column, timestamp_bounds_ms
from sparklog_broker.coordinators.internal_topics import decode, encode_records
for records in ([(b"k\\xff", b"v"), (b"", None)], [(b"k\\xff", b"v")]):
    data = encode_records(records, 1000)
    ((_, header),) = iterate_batches(data)
    assert [(r.key, r.value) for r in decode(data, header, 1 << 20)] == records
null_column(3, HEADER_TYPE).validate(full=True)
stamps = pa.Array.from_buffers(TIMESTAMP_TYPE, 1, [None, pa.py_buffer((5000).to_bytes(8, "little"))])
assert timestamp_bounds_ms(stamps, 1) == (5, 5)
assert "pandas" not in sys.modules
"""
    subprocess.run(
        [sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
