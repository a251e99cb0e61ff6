"""The consumer against a fake broker: positions, damage, a broker that goes away."""

from __future__ import annotations

import signal
import threading
from typing import Any

import pyarrow as pa
import pytest

from sparklog.client.consumer import fetch_lane
from sparklog.client.consumer.consumer import Consumer
from sparklog.client.reading.consumed import ConsumedBatch
from sparklog.errors import (
    ClosedError,
    CorruptBatchError,
    DeserializationError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    RemoteStorageError,
    SchemaMismatchError,
    UnknownTopicOrPartitionError,
)
from sparklog.format.batch import encode_batch
from sparklog.protocol.apis import Api
from sparklog.types import Record, TopicPartition
from tests.support.clients import TP0, drain, fill
from tests.support.logs import batch
from tests.support.waiting import until
from tests.unit.client.fake_broker import DROP, FakeBroker

TP1 = TopicPartition("events", 1)

pytestmark = pytest.mark.usefixtures("local_read")


def test_records_in_order_with_positions(fake: FakeBroker) -> None:
    fill(fake, 3)
    with Consumer(fake.address, max_poll_records=7) as consumer:
        consumer.assign([TP0])
        assert consumer.assignment() == [TP0] and consumer.position(TP0) == 0
        first = consumer.poll(5000)
        assert first[0] == Record("events", 0, 0, 0, None, b"0", []) and len(first) == 7
        assert consumer.position(TP0) == 7
        assert [r.offset for r in drain(consumer, 23)] == list(range(7, 30))
        assert consumer.position(TP0) == 30
        assert consumer.poll(0) == []


def test_a_poll_gives_as_many_small_batches_as_are_here(fake4: FakeBroker) -> None:
    fill(fake4, 40, rows=2)
    fill(fake4, 10, rows=2, partition=1)
    with Consumer(fake4.address, max_poll_records=75) as consumer:
        consumer.assign([TP0, TP1])
        until(lambda: len(consumer._fetcher.ready._batches) == 50)
        first = consumer.poll(5000)
        assert len(first) == 75
        assert sum(consumer.position(tp) for tp in (TP0, TP1)) == 75
        assert len(consumer.poll(5000)) == 25
        assert (consumer.position(TP0), consumer.position(TP1)) == (80, 20)
        by_partition = [[r.offset for r in first if r.partition == p] for p in (0, 1)]
        assert all(found == list(range(len(found))) for found in by_partition)


def test_records_before_an_error_are_returned_first(fake4: FakeBroker) -> None:
    fill(fake4, 3, rows=1)
    fake4.append(batch([0], value=b"no number"), "events", 0)
    fill(fake4, 1, rows=1)
    with Consumer(fake4.address, value_deserializer=int) as consumer:
        consumer.assign([TP0])
        until(lambda: len(consumer._fetcher.ready._batches) == 5)
        assert [r.offset for r in consumer.poll(5000)] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(DeserializationError, match="offset 3"):
                consumer.poll(5000)
        assert consumer.position(TP0) == 3
        consumer.seek(TP0, 4)
        assert [r.offset for r in consumer.poll(5000)] == [4]


def test_poll_batches_takes_up_where_poll_stopped(fake: FakeBroker) -> None:
    fill(fake, 2)
    with Consumer(fake.address) as consumer:
        consumer.assign([TP0])
        consumer.poll(5000, max_records=4)
        batches = consumer.poll_batches(5000)
        assert batches[0].base_offset == 4 and batches[0].offsets().tolist() == list(range(4, 10))
        assert batches[0].timestamps_ms().tolist() == list(range(4, 10))
        assert (batches[0].topic, batches[0].partition, batches[0].schema_id) == ("events", 0, 1)


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
def test_only_selected_columns_and_still_the_timestamps(fake: FakeBroker, compression: str) -> None:
    fill(fake, 1, compression=compression)
    with Consumer(fake.address, columns=["value"]) as consumer:
        consumer.assign([TP0])
        consumer.seek(TP0, 3)
        (batch,) = consumer.poll_batches(5000)
        assert batch.data.schema.names == ["value"] and batch.data.column("value")[0].as_py() == b"3"
        assert batch.timestamps_ms().tolist() == list(range(3, 10))
        consumer.seek(TP0, 9)
        assert consumer.poll(5000) == [Record("events", 0, 9, 9, None, b"9", [])]
    with Consumer(fake.address, columns=["nope"]) as consumer, pytest.raises(SchemaMismatchError, match="nope"):
        consumer.assign([TP0])


def test_seek_drops_fetched_records_and_ends_a_long_poll(fake: FakeBroker) -> None:
    fill(fake, 3)
    with Consumer(fake.address, fetch_max_wait_ms=60_000) as consumer:
        consumer.assign([TP0])
        assert len(drain(consumer, 30)) == 30
        # the fetch thread now waits for new data for a minute
        until(lambda: fake.requests[-1][0] is Api.FETCH and fake.requests[-1][1].partitions[0].fetch_offset == 30)
        consumer.seek(TP0, 12)
        assert consumer.position(TP0) == 12
        assert consumer.poll(5000, max_records=1)[0].offset == 12
        consumer.seek_to_beginning()
        assert consumer.poll(5000, max_records=1)[0].offset == 0
        consumer.seek_to_end(TP0)
        assert consumer.position(TP0) == 30
        fill(fake, 1)
        assert consumer.poll(5000)[0].offset == 30


def test_reassignment_keeps_positions_and_drops_the_rest(fake4: FakeBroker) -> None:
    fill(fake4, 1)
    fill(fake4, 1, partition=1)
    one = TopicPartition("events", 1)
    with Consumer(fake4.address) as consumer:
        consumer.assign([TP0, one])
        assert len(drain(consumer, 20)) == 20
        consumer.assign([one])
        assert consumer.position(one) == 10
        fill(fake4, 1)
        fill(fake4, 1, partition=1)
        assert {(r.partition, r.offset) for r in drain(consumer, 10)} == {(1, o) for o in range(10, 20)}
        with pytest.raises(InvalidRequestError, match="not assigned"):
            consumer.seek(TP0, 0)
        with pytest.raises(UnknownTopicOrPartitionError):
            consumer.assign([TopicPartition("events", 9)])


def test_auto_offset_reset(fake: FakeBroker) -> None:
    fill(fake, 2)
    fake.log_start[("events", 0)] = 5
    with Consumer(fake.address, auto_offset_reset="latest") as consumer:
        consumer.assign([TP0])
        assert consumer.position(TP0) == 20
    with Consumer(fake.address) as consumer:  # earliest
        consumer.assign([TP0])
        consumer.seek(TP0, 2)
        assert drain(consumer, 1)[0].offset == 5
    with Consumer(fake.address, auto_offset_reset="none") as consumer:
        consumer.assign([TP0])
        with pytest.raises(OffsetOutOfRangeError, match="seek"):
            consumer.poll(5000)
        consumer.seek(TP0, 2)
        with pytest.raises(OffsetOutOfRangeError, match="offset 2 of events-0"):
            consumer.poll(5000)
        consumer.seek(TP0, 7)
        assert consumer.poll(5000)[0].offset == 7


def test_a_damaged_batch_is_raised_after_the_good_ones(fake: FakeBroker) -> None:
    fill(fake, 2)
    fake.logs[("events", 0)][1][-1] ^= 1
    with Consumer(fake.address, max_partition_fetch_bytes=1024) as consumer:
        consumer.assign([TP0])
        assert len(drain(consumer, 10)) == 10
        for _ in range(2):
            with pytest.raises(CorruptBatchError, match="events-0 at offset 10"):
                consumer.poll(5000)
        fill(fake, 1)
        consumer.seek(TP0, 20)
        assert consumer.poll(5000)[0].offset == 20
    with Consumer(fake.address, check_crcs=False, columns=["value"]) as consumer:
        consumer.assign([TP0])
        assert len(drain(consumer, 20)) >= 20


def test_intact_batches_before_a_damaged_one_are_returned(fake: FakeBroker) -> None:
    fill(fake, 5)
    fake.logs[("events", 0)][3][-1] ^= 1
    with Consumer(fake.address) as consumer:
        consumer.assign([TP0])
        assert [r.offset for r in drain(consumer, 30)] == list(range(30))
        assert consumer.position(TP0) == 30
        with pytest.raises(CorruptBatchError, match="events-0 at offset 30"):
            consumer.poll(5000)
        consumer.seek(TP0, 40)
        assert [r.offset for r in drain(consumer, 10)] == list(range(40, 50))


def test_a_broker_that_is_away_is_waited_for(fake: FakeBroker) -> None:
    fill(fake, 1)
    with Consumer(fake.address, fetch_max_wait_ms=20) as consumer:
        consumer.assign([TP0])
        assert len(drain(consumer, 10)) == 10
        dropped: list[int] = []

        def hook(api: Api, message: Any) -> str | None:
            dropped.append(1)
            return DROP

        fake.hook = hook
        until(lambda: len(dropped) > 2)
        assert consumer.poll(0) == []
        fake.hook = lambda api, message: None
        fill(fake, 1)
        assert [r.offset for r in drain(consumer, 10)] == list(range(10, 20))


def test_a_partition_that_is_tried_again_holds_up_no_other(fake4: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    tps = [TopicPartition("events", p) for p in range(2)]
    for tp in tps:
        fill(fake4, 2, partition=tp.partition)
    fake4.fetch_codes[("events", 0)] = RemoteStorageError.code
    with Consumer(fake4.address) as consumer:
        consumer.assign(tps)
        assert {r.partition for r in drain(consumer, 20)} == {1}
        assert consumer.position(tps[1]) == 20
        until(lambda: "trying again" in caplog.text)
        fill(fake4, 1, partition=1)
        assert len(drain(consumer, 10)) == 10
        warnings = [r for r in caplog.records if r.levelname == "WARNING" and "as told; trying again" in r.message]
        assert len(warnings) == 1, "the same trouble is told once"
        fake4.fetch_codes.clear()
        assert {r.partition for r in drain(consumer, 20)} == {0}


def test_a_deleted_topic_is_raised(fake: FakeBroker) -> None:
    fill(fake, 1)
    with Consumer(fake.address, fetch_max_wait_ms=10) as consumer:
        consumer.assign([TP0])
        assert len(drain(consumer, 10)) == 10
        fake.hook = lambda api, message: 3 if api is Api.FETCH else None
        with pytest.raises(UnknownTopicOrPartitionError):
            for _ in range(100):
                consumer.poll(100)


def test_a_broker_behind_a_new_topic_is_queried_again(fake: FakeBroker) -> None:
    fill(fake, 1)
    codes = [3, 3]
    fake.hook = lambda api, message: codes.pop() if api is Api.FETCH and codes else None
    with Consumer(fake.address, fetch_max_wait_ms=10) as consumer:
        consumer.assign([TP0])
        consumer.seek(TP0, 0)
        assert len(drain(consumer, 10)) == 10
    assert not codes


def test_a_poll_of_batches_ends_though_more_come_as_fast_as_it_takes_them(fake: FakeBroker) -> None:
    fill(fake, 60, rows=50)
    size = len(fake.logs[("events", 0)][0])
    with Consumer(fake.address, prefetch_bytes=3 * size, max_partition_fetch_bytes=size) as consumer:
        consumer.assign([TP0])
        fetcher = consumer._fetcher
        polls: list[int] = []
        with pytest.MonkeyPatch.context() as patched:

            def decode_slowly(batch: ConsumedBatch) -> None:
                """Decode slowly, so that the fetcher is always ahead."""
                until(lambda: bool(fetcher.ready) or batch.next_offset == 3000)
                decode(batch)

            decode = ConsumedBatch.decode
            patched.setattr(ConsumedBatch, "decode", decode_slowly)
            while sum(polls) < 60:
                polls.append(len(consumer.poll_batches(5000)))
        assert max(polls) <= 4


def test_prefetch_is_bounded(fake: FakeBroker) -> None:
    fill(fake, 50, rows=100)
    size = len(fake.logs[("events", 0)][0])
    with Consumer(fake.address, prefetch_bytes=3 * size, max_partition_fetch_bytes=2 * size) as consumer:
        consumer.assign([TP0])
        until(lambda: consumer._fetcher.ready.size_bytes >= 3 * size)
        assert consumer._fetcher.ready.size_bytes <= 5 * size
        assert len(drain(consumer, 5000, max_records=10_000)) == 5000
    with Consumer(fake.address, prefetch_bytes=0) as consumer:
        consumer.assign([TP0])
        assert len(drain(consumer, 5000, max_records=10_000)) == 5000


def test_prefetch_bounds_the_memory_of_tiny_batches(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects take most of the memory of tiny batches. One answer has all of them; it is decoded piece by piece."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.list_(pa.int64()))])
    fake.add_topic("typed", 1, schema)
    for i in range(600):
        batch = pa.record_batch([[i], [[i]]], schema=schema)
        fake.append(bytearray(encode_batch(batch, schema_id=1, min_timestamp_ms=3, max_timestamp_ms=9)), "typed")
    monkeypatch.setattr(fetch_lane, "PIECE_BYTES", 10_000)
    tp = TopicPartition("typed", 0)
    with Consumer(fake.address, prefetch_bytes=100_000) as consumer:
        ready = consumer._fetcher.ready
        consumer.assign([tp])
        until(lambda: ready.size_bytes >= 100_000)
        assert ready.size_bytes < 120_000
        assert 0 < len(consumer.poll_batches(5_000)) < 100
        consumer.seek(tp, 200)  # while the rest of the answer waits for room
        found = drain(consumer, 400)
    assert [record.offset for record in found] == list(range(200, 600))


def test_typed_values_are_dicts(fake: FakeBroker) -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    fake.add_topic("typed", 1, schema)
    batch = pa.record_batch([[1, 2], ["x", None]], schema=schema)
    fake.append(bytearray(encode_batch(batch, schema_id=1, min_timestamp_ms=3, max_timestamp_ms=9)), "typed")
    with Consumer(fake.address) as consumer:
        consumer.assign([TopicPartition("typed", 0)])
        found = consumer.poll(5000)
    assert found[0] == Record("typed", 0, 0, 9, None, {"a": 1, "b": "x"}, [])
    assert found[1].value == {"a": 2, "b": None}


def test_ctrl_c_ends_a_poll(fake: FakeBroker) -> None:
    with Consumer(fake.address) as consumer:
        consumer.assign([TP0])
        until(lambda: any(api is Api.FETCH for api, _ in fake.requests))
        timer = threading.Timer(0.1, signal.raise_signal, [signal.SIGINT])
        main = threading.main_thread().ident
        assert main is not None
        timer.function = lambda *_: signal.pthread_kill(main, signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            consumer.poll(30_000)
        timer.join()


def test_a_closed_consumer_says_so(fake: FakeBroker) -> None:
    consumer = Consumer(fake.address)
    consumer.assign([TP0])
    consumer.close()
    consumer.close()
    with pytest.raises(ClosedError):
        consumer.poll(0)
