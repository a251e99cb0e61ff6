"""Batches that are being filled: their memory, and the fields of few records."""

import contextlib
import threading
from collections.abc import Callable

import pytest

from sparklog.client.producer.accumulator import (
    PARTITION_REQUEST_BYTES,
    ROOM_BYTES,
    Accumulator,
    PartitionQueue,
    PendingBatch,
)
from sparklog.client.producer.futures import Delivery
from sparklog.client.producer.open_batch import OpenBatch, Rest
from sparklog.client.producer.producer import Producer
from sparklog.errors import BufferExhaustedError, InvalidRequestError
from sparklog.format.batch import decode_header
from sparklog.format.small_batch import ROWS_MAX
from sparklog.types import TopicPartition
from tests.support.cases import for_each
from tests.support.clients import info
from tests.unit.client.fake_broker import FakeBroker


def accumulator(buffer_bytes: int) -> Accumulator:
    return Accumulator(buffer_bytes=buffer_bytes, linger_s=1, max_block_s=0, delivery_timeout_s=1)


def opened(on: Accumulator, partition: int, size_bytes: int, target_bytes: int = 1 << 20) -> OpenBatch:
    """A batch with one record."""
    on.locked_reserve(size_bytes)
    batch = on.locked_open(PartitionQueue(TopicPartition("t", partition), info()))
    on.locked_give_room(batch, size_bytes, target_bytes)
    batch.room_bytes -= size_bytes
    batch.values.append(b"")
    batch.timestamps_ns.append(0)
    return batch


def test_unused_memory_of_batches_is_free_for_others() -> None:
    on = accumulator(2 * ROOM_BYTES)
    batches = [opened(on, p, 1000) for p in range(20)]
    assert on.used_bytes == on.buffer_bytes
    on.locked_reserve(2 * ROOM_BYTES - 20_000)
    assert [b.size_bytes for b in batches] == [1000] * 20
    with pytest.raises(BufferExhaustedError):
        on.locked_reserve(1)


def test_room_keeps_a_batch_within_its_size() -> None:
    on = accumulator(1 << 20)
    batch = opened(on, 0, 60, target_bytes=100)
    assert (batch.size_bytes, batch.room_bytes) == (60, 40)
    on.locked_reserve(50)
    on.locked_give_room(batch, 50, 100)  # no more than the record needs, what was left is not added to it
    assert (batch.size_bytes, batch.room_bytes, on.used_bytes) == (60, 50, 110)
    large = opened(on, 1, 500, target_bytes=100)
    assert (large.size_bytes, large.room_bytes, on.used_bytes) == (500, 0, 610)


@pytest.mark.parametrize(("linger_s", "due_s"), [(0.005, 0.004), (0.001, 0.0005), (0, 0)])
def test_a_timer_that_counts_in_ms_and_rounds_up_is_not_late(linger_s: float, due_s: float) -> None:
    on = Accumulator(buffer_bytes=1 << 20, linger_s=linger_s, max_block_s=0, delivery_timeout_s=1)
    batch = opened(on, 0, 60)
    (queue,) = on.active.values()
    created, queue.open = 100.0, batch
    batch.created = created
    assert on.locked_ready(created + due_s) == ([queue], None)
    if due_s:
        assert on.locked_ready(created + due_s / 2) == ([], created + due_s)


def test_a_closed_batch_keeps_only_its_records_memory() -> None:
    on = accumulator(1 << 20)
    opened(on, 0, 60)
    assert on.used_bytes == 60 + ROOM_BYTES
    on.close_all_open()
    assert on.used_bytes == 60


@pytest.mark.parametrize(
    ("sizes", "taken"), [([900, 900, 900], 2), ([1024, 1024, 1], 2), ([5000, 1], 1), ([1, 5000], 1)]
)
def test_a_request_takes_a_few_batches_of_a_partition_or_one_that_is_larger(sizes: list[int], taken: int) -> None:
    on = accumulator(1 << 30)
    queue = PartitionQueue(TopicPartition("t", 0), info())
    queue.batches.extend(PendingBatch(Delivery(queue.tp), size * PARTITION_REQUEST_BYTES // 2048, 0) for size in sizes)
    assert len(on.locked_take(queue, 0)) == taken


def test_few_records_have_keys_headers_timestamps() -> None:
    batch = OpenBatch(TopicPartition("t", 0))
    rests = [None, (b"k", None, None), None, (None, [("h", b"1")], 7), (b"l", None, None), None]
    for row, rest in enumerate(rests):
        if rest is not None:
            batch.set_rest(row, rest)
        batch.timestamps_ns.append(row * 1000)
        batch.values.append(b"%d" % row)
    batch.set_rest(6, (b"of a call that was interrupted", None, None))
    rows = batch.to_arrow()
    assert rows.column("value").to_pylist() == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert rows.column("key").to_pylist() == [None, b"k", None, None, b"l", None]
    assert [bool(h) for h in rows.column("headers").to_pylist()] == [False, False, False, True, False, False]
    assert batch.delivery.timestamps_us is not None
    assert list(batch.delivery.timestamps_us) == [0, 1, 2, 7000, 4, 5]


def collected(records: list[tuple[bytes | None, Rest | None]]) -> OpenBatch:
    batch = OpenBatch(TopicPartition("t", 0))
    for row, (value, rest) in enumerate(records):
        if rest is not None:
            batch.set_rest(row, rest)
        batch.timestamps_ns.append(row * 1000 + 999)
        batch.values.append(value)
    return batch


def test_few_simple_records_need_no_arrow() -> None:
    batch = collected([(b"0", None), (b"1", (None, None, 7)), (b"2", None)])
    assert batch.small_rows() == ([b"0", b"1", b"2"], None, [0, 7000, 2])
    assert batch.delivery.timestamp_ms(1) == 7
    keyed = collected([(b"0", (b"k", None, None)), (b"1", (b"", None, None))])
    assert keyed.small_rows() == ([b"0", b"1"], [b"k", b""], [0, 1])
    keyed.set_rest(2, (b"of a call that was interrupted", None, None))
    assert keyed.small_rows() is None


@for_each(
    "records",
    [
        [(None, None)],
        [(b"0", (b"k", None, None)), (b"1", None)],
        [(b"0", None), (b"1", (b"k", None, None))],
        [(b"0", (None, [("h", b"1")], None))],
        [(b"0", None)] * (ROWS_MAX + 1),
    ],
    ids=["no value", "no second key", "no first key", "headers", "many"],
)
def test_other_records_do(records: list[tuple[bytes | None, Rest | None]]) -> None:
    assert collected(records).small_rows() is None


def test_a_full_batch_of_the_next_partition_takes_no_more(fake4: FakeBroker) -> None:
    with Producer(fake4.address, linger_ms=60_000, batch_size_bytes=16_384) as producer:
        for partition in range(4):
            producer.send("events", bytes(10_000), partition=partition)
        producer.send("events", bytes(10_000))
    sizes = [decode_header(batch).record_count for batches in fake4.logs.values() for batch in batches]
    assert sizes == [1] * 5


def test_an_interrupted_call_keeps_no_memory(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    with Producer(fake.address) as producer:
        producer.send("events", b"1")
        with monkeypatch.context() as patched:
            patched.setattr("sparklog.client.producer.producer.time_ns", interrupted)
            with pytest.raises(KeyboardInterrupt):
                producer.send("events", b"2")
        assert producer.send("events", b"3").result(30).offset == 1


def test_a_key_of_an_interrupted_call_is_nobodys(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with Producer(fake.address, linger_ms=60_000) as producer:
        producer.send("events", b"1", key=b"k")
        batch = producer._queues[TopicPartition("events", 0)].open
        assert batch is not None
        with monkeypatch.context() as patched:
            patched.setattr(
                "sparklog.client.producer.open_batch.OpenBatch.set_rest", then(OpenBatch.set_rest, interrupted)
            )
            with pytest.raises(KeyboardInterrupt):
                producer.send("events", b"2", key=b"l", headers=[("h", b"1")], timestamp_ms=7)
        assert (batch.keys, batch.headers, batch.explicit_timestamps_ms) == ([b"k"], {}, {})


def then(first: Callable[..., object], second: Callable[..., object]) -> Callable[..., object]:
    def both(*given: object) -> None:
        first(*given)
        second(*given)

    return both


def test_a_batch_that_an_interrupted_call_has_opened_fails_alone(
    fake: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    with Producer(fake.address) as producer:
        with monkeypatch.context() as patched:
            patched.setattr("sparklog.client.producer.producer.time_ns", interrupted)
            with pytest.raises(KeyboardInterrupt):
                producer.send("events", b"1")
        with contextlib.suppress(InvalidRequestError):
            producer.flush()
        assert producer.send("events", b"2").result(30).offset == 0


def test_only_the_holder_releases_the_lock() -> None:
    on = accumulator(1 << 20)
    with on.lock:
        other = threading.Thread(target=on.release_if_held)
        other.start()
        other.join()
    on.release_if_held()
