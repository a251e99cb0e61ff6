"""The producer against a fake broker: order, retries, limits, failures."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import pyarrow as pa
import pytest

from sparklog.client.producer.producer import BatchMetadata, Producer
from sparklog.errors import (
    BufferExhaustedError,
    ClosedError,
    CorruptBatchError,
    InvalidConfigError,
    InvalidPartitionsError,
    MessageTooLargeError,
    RequestTimedOutError,
    SchemaMismatchError,
    SparklogError,
    UnknownSchemaError,
    UnknownTopicOrPartitionError,
)
from sparklog.format.batch import decode_batch
from sparklog.format.schema import ENVELOPE_SCHEMA
from sparklog.protocol.apis import Api
from sparklog.protocol.topic_messages import SchemaVersion
from sparklog.types import TopicPartition
from tests.support.clients import stored
from tests.support.expired_batches import expire_after_a_failure
from tests.unit.client.fake_broker import DROP, SILENT, FakeBroker


def produce_requests(fake: FakeBroker) -> list[Any]:
    return [message for api, message in fake.requests if api is Api.PRODUCE]


class Verdicts:
    """A hook that answers PRODUCE requests with a list of verdicts, then normally."""

    def __init__(self, *verdicts: Any) -> None:
        self.left = list(verdicts)

    def __call__(self, api: Api, message: Any) -> Any:
        return self.left.pop(0) if api is Api.PRODUCE and self.left else None


def test_records_get_their_offsets_in_order(fake: FakeBroker) -> None:
    with Producer(fake.address) as producer:
        futures = [producer.send("events", b"%d" % i, timestamp_ms=1000 + i) for i in range(100)]
        found = [f.result(30) for f in futures]
    assert [f.offset for f in found] == list(range(100))
    assert [f.timestamp_ms for f in found] == list(range(1000, 1100))
    assert stored(fake) == [b"%d" % i for i in range(100)]
    assert all(f.done() and not f.running() and not f.cancel() and f.exception() is None for f in futures)


def test_send_and_send_batch_keep_the_order_of_the_calls(fake: FakeBroker) -> None:
    with Producer(fake.address, linger_ms=1000) as producer:
        producer.send("events", b"0")
        future = producer.send_batch("events", pa.table({"value": [b"1", b"2"]}))
        producer.send("events", b"3")
        producer.flush()
        (metadata,) = future.result(0)
        assert isinstance(metadata, BatchMetadata)
        assert (metadata.offset, metadata.last_offset, metadata.record_count) == (1, 2, 2)
    assert stored(fake) == [b"0", b"1", b"2", b"3"]


def test_batches_by_size_and_one_request_per_partition_at_a_time(fake: FakeBroker) -> None:
    with Producer(fake.address, batch_size_bytes=10_000, linger_ms=60_000) as producer:
        for i in range(1000):
            producer.send("events", b"%04d" % i + bytes(96))
    sizes = [h.record_count for h in fake.headers()]
    assert sum(sizes) == 1000 and len(sizes) > 5 and max(sizes) <= 10_000 // 100
    assert [v[:4] for v in stored(fake)] == [b"%04d" % i for i in range(1000)]


@pytest.mark.parametrize("verdict", [DROP, 12, 14, 20])
def test_retriable_failures_are_tried_again_in_order(fake: FakeBroker, verdict: Any) -> None:
    fake.hook = Verdicts(verdict, verdict)
    with Producer(fake.address, batch_size_bytes=1000, linger_ms=0, retry_backoff_ms=1) as producer:
        futures = [producer.send("events", b"%03d" % i + bytes(97)) for i in range(200)]
        producer.flush()
    assert [v[:3] for v in stored(fake)] == [b"%03d" % i for i in range(200)]
    assert [f.result(0).offset for f in futures] == list(range(200))


def test_a_silent_broker_is_abandoned_after_the_request_timeout_and_retried(fake: FakeBroker) -> None:
    fake.hook = Verdicts(SILENT)
    with Producer(fake.address, request_timeout_ms=100, retry_backoff_ms=1) as producer:
        assert producer.send("events", b"x").result(30).offset == 0
    assert len(produce_requests(fake)) >= 2


def test_a_failure_that_is_not_retriable_is_raised_once(fake: FakeBroker) -> None:
    fake.hook = Verdicts(2)
    producer = Producer(fake.address)
    future = producer.send("events", b"x")
    with pytest.raises(CorruptBatchError, match="as told"):
        producer.flush()
    with pytest.raises(CorruptBatchError):
        future.result(0)
    producer.flush()
    assert producer.send("events", b"y").result(30).offset == 0
    producer.close()


def test_answers_that_come_in_one_piece_are_all_taken(fake4: FakeBroker) -> None:
    arrived = threading.Semaphore(0)

    def hook(api: Api, message: Any) -> None:
        if api is Api.PRODUCE:
            arrived.release()

    fake4.hook = hook
    fake4.answers_at_once[Api.PRODUCE] = 3
    with Producer(fake4.address, linger_ms=0) as producer:
        futures = []
        for partition in range(3):  # in a request each
            futures.append(producer.send("events", b"v", partition=partition))
            assert arrived.acquire(timeout=30)
        assert [f.result(30).partition for f in futures] == [0, 1, 2]


def test_close_raises_unseen_failures(fake: FakeBroker) -> None:
    fake.hook = Verdicts(2)
    with pytest.raises(CorruptBatchError), Producer(fake.address) as producer:
        producer.send("events", b"x")


def test_close_does_not_repeat_a_futures_error(fake: FakeBroker) -> None:
    fake.hook = Verdicts(2)
    with Producer(fake.address) as producer:
        assert isinstance(producer.send("events", b"x").exception(30), CorruptBatchError)


def test_an_error_of_the_block_is_not_hidden_by_close(fake: FakeBroker) -> None:
    fake.hook = Verdicts(2)
    with pytest.raises(KeyError) as caught, Producer(fake.address) as producer:
        producer.send("events", b"x")
        raise KeyError("mine")
    assert "as told" in caught.value.__notes__[0]


def test_one_bad_batch_does_not_take_its_neighbours_along(fake: FakeBroker) -> None:
    bad: list[bool] = []

    def hook(api: Api, message: Any) -> Any:
        if api is not Api.PRODUCE:
            return None
        part = message.partitions[0]
        bad.append(part.length_bytes > 5_000)  # the large batch, alone or with others
        return 2 if bad[-1] else None

    fake.hook = hook
    with Producer(fake.address, linger_ms=60_000) as producer:
        # a request under way makes the next three wait and travel together
        futures = [producer.send_batch("events", {"value": [v]}) for v in (b"a", b"b", bytes(10_000), b"c")]
        producer._accumulator.close_all_open()
        errors = [f.exception(30) for f in futures]
    assert [type(e) for e in errors] == [type(None), type(None), CorruptBatchError, type(None)]
    assert stored(fake) == [b"a", b"b", b"c"]


def test_delivery_timeout_names_the_last_failure(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    fake.hook = Verdicts(*[14] * 1000)
    expire_after_a_failure(monkeypatch)
    with Producer(fake.address) as producer:
        future = producer.send("events", b"x")
        with pytest.raises(RequestTimedOutError, match=r"events-0.*delivery.timeout.ms.*as told"):
            future.result(30)


def test_buffer_memory_blocks_and_then_raises(fake: FakeBroker) -> None:
    fake.hook = lambda api, message: SILENT if api is Api.PRODUCE else None
    producer = Producer(fake.address, buffer_memory=65_536, request_timeout_ms=200)
    producer.send("events", bytes(1000))  # metadata are here
    producer._accumulator.max_block_s = 0.05
    with pytest.raises(BufferExhaustedError, match=r"max.block.ms"):
        for _ in range(100):
            producer.send("events", bytes(1000))
    with pytest.raises(BufferExhaustedError):
        producer.send_batch("events", {"value": [bytes(1000)] * 10})
    fake.hook = lambda api, message: None
    producer.close()
    assert producer._accumulator.used_bytes == 0


def test_memory_is_returned(fake: FakeBroker) -> None:
    with Producer(fake.address, buffer_memory=65_536, batch_size_bytes=4096) as producer:
        for _ in range(500):
            producer.send("events", bytes(1000))
        producer.send_batch("events", {"value": [bytes(100_000)]})  # more than buffer.memory goes when it is alone
        producer.flush()
        assert producer._accumulator.used_bytes == 0
        assert not producer._accumulator.outstanding
        assert not producer._accumulator.active
    assert len(stored(fake)) == 501


def test_acks_0_has_no_offsets_and_no_answers(fake: FakeBroker) -> None:
    with Producer(fake.address, acks=0) as producer:
        assert producer.send("events", b"x").result(30).offset == -1
        (metadata,) = producer.send_batch("events", {"value": [b"y", b"z"]}).result(30)
        assert (metadata.offset, metadata.last_offset) == (-1, -1)  # type: ignore[attr-defined]
        with fake._appended:
            assert fake._appended.wait_for(lambda: len(fake.logs[("events", 0)]) == 2, 30)
    assert [r.acks for r in produce_requests(fake)] == [0, 0]


@pytest.mark.parametrize("acks", [0, "all"])
def test_records_sent_during_a_request_follow_it(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch, acks: Any) -> None:
    """The sender is not told of it then: it has to look itself."""
    more: list[Any] = []

    def reached(step: str) -> None:
        if step == "producer.after-send" and not more:
            more.append(producer.send("events", b"second"))

    monkeypatch.setattr("sparklog.client.producer.sender.reach", reached)
    with Producer(fake.address, acks=acks, linger_ms=0) as producer:
        producer.send("events", b"first").result(30)
        more[0].result(30)


@pytest.mark.parametrize(("given", "wire"), [(1, 1), ("all", -1), (-1, -1)])
def test_acks(fake: FakeBroker, given: Any, wire: int) -> None:
    with Producer(fake.address, acks=given) as producer:
        producer.send("events", b"x").result(30)
    assert produce_requests(fake)[0].acks == wire


def test_partitions_explicit_by_key_and_sticky(fake4: FakeBroker) -> None:
    with Producer(fake4.address, linger_ms=1000) as producer:
        assert producer.send("events", b"x", partition=3).running()
        keyed = [producer.send("events", b"x", key=b"21") for _ in range(2)]
        sticky = [producer.send("events", b"x") for _ in range(5)]
        producer.flush()
        # Kafka: toPositive(murmur2("21")) % 4
        assert {f.result(0).partition for f in keyed} == {(-973932308 & 0x7FFFFFFF) % 4}
        assert len({f.result(0).partition for f in sticky}) == 1
        with pytest.raises(InvalidPartitionsError):
            producer.send("events", b"x", partition=4)


def test_batch_results_are_in_partition_order(fake4: FakeBroker) -> None:
    data = pa.table({"value": [b"x"] * 8, "partition": [3, 1, 0, 2] * 2})
    with Producer(fake4.address) as producer:
        found = producer.send_batch("events", data).result(30)
    assert [m.partition for m in found] == [0, 1, 2, 3]
    assert [m.record_count for m in found] == [2, 2, 2, 2]  # type: ignore[attr-defined]


def test_no_rows_resolve_at_once(fake: FakeBroker) -> None:
    called: list[Any] = []
    with Producer(fake.address) as producer:
        future = producer.send_batch("events", {"value": []})
        future.add_done_callback(lambda f: called.append(f.result()))
        assert future.done() and called == [[]]
    assert not produce_requests(fake)


def test_callbacks_run_once_and_their_errors_do_no_harm(fake: FakeBroker, caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()
    with Producer(fake.address, linger_ms=50) as producer:
        first = producer.send("events", b"x")
        first.add_done_callback(lambda f: 1 / 0)
        first.add_done_callback(lambda f: done.set())
        assert done.wait(30)
        late: list[int] = []
        first.add_done_callback(lambda f: late.append(f.result(0).offset))
        assert late == [0]
        batch = producer.send_batch("events", {"value": [b"y"]})
        resolved = threading.Event()
        batch.add_done_callback(lambda f: resolved.set())
        assert resolved.wait(30)
    assert "callback failed" in caplog.text


def test_typed_topics_take_tables_only(fake: FakeBroker) -> None:
    fake.add_topic("typed", 1, pa.schema([("a", pa.int64())]))
    with Producer(fake.address) as producer:
        with pytest.raises(SchemaMismatchError, match="send_batch"):
            producer.send("typed", b"x")
        producer.send_batch("typed", [{"a": 1}]).result(30)


@pytest.mark.parametrize(
    "record",
    [
        {"value": "text"},
        {"value": 5},
        {"key": "text"},
        {"headers": {"a": b"b"}},
        {"headers": [("a", "b")]},
        {"headers": "ab"},
        {"timestamp_ms": 1.5},
    ],
)
def test_bytes_only(fake: FakeBroker, record: dict[str, Any]) -> None:
    with Producer(fake.address) as producer, pytest.raises(TypeError):
        producer.send("events", **record)


def test_bytes_likes_headers_and_nulls_arrive(fake: FakeBroker) -> None:
    with Producer(fake.address) as producer:
        producer.send("events", bytearray(b"v"), key=memoryview(b"k"), headers=[("h", b"1"), ("n", None)])
        producer.send("events")
    rows = [r for b in fake.logs[("events", 0)] for r in decode_batch(b, ENVELOPE_SCHEMA).to_pylist()]
    assert rows[0]["headers"] == [{"key": "h", "value": b"1"}, {"key": "n", "value": None}]
    assert [(r["key"], r["value"], r["headers"]) for r in rows[1:]] == [(None, None, None)]


def test_limits_and_unknown_things(fake: FakeBroker) -> None:
    fake.add_topic("small", 1, configs={"max.message.bytes": 2000})
    with Producer(fake.address) as producer:
        with pytest.raises(MessageTooLargeError, match=r"max\.message\.bytes"):
            producer.send("small", bytes(3000))
        with pytest.raises(MessageTooLargeError):
            producer.send_batch("small", {"value": [bytes(3000)]})
        with pytest.raises(UnknownTopicOrPartitionError):
            producer.send("nope", b"x")
    with pytest.raises(InvalidConfigError, match="did you mean 'linger_ms'"):
        Producer(fake.address, lingr_ms=1)
    with pytest.raises(InvalidConfigError, match="0, 1, all"):
        Producer(fake.address, acks=2)


def test_a_closed_producer_says_so(fake: FakeBroker) -> None:
    producer = Producer(fake.address)
    producer.close()
    producer.close()
    with pytest.raises(ClosedError):
        producer.send("events", b"x")
    with pytest.raises(ClosedError):
        producer.send_batch("events", {"value": [b"x"]})


def test_a_failing_sender_thread_is_not_silent(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    producer = Producer(fake.address, linger_ms=0)

    def broken(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(producer._sender, "_send_ready", broken)
    future = producer.send("events", b"x")
    with pytest.raises(SparklogError, match="a bug"):
        future.result(30)
    with pytest.raises(ClosedError, match="a bug"):
        producer.send("events", b"y")


def test_a_broker_that_comes_back_gets_everything() -> None:
    fake = FakeBroker()
    with Producer(fake.address, retry_backoff_ms=5, retry_backoff_max_ms=20) as producer:
        producer.send("events", b"0").result(30)
        fake.close()
        futures = [producer.send("events", b"%d" % i) for i in range(1, 20)]
        again = FakeBroker(port=fake.port)
        assert [f.result(30).offset for f in futures] == list(range(19))
        assert stored(again) == [b"%d" % i for i in range(1, 20)]
        again.close()


def test_connecting_is_retried_without_a_call() -> None:
    fake = FakeBroker()
    with Producer(fake.address, linger_ms=0, retry_backoff_ms=5, retry_backoff_max_ms=10) as producer:
        producer.send("events", b"0").result(30)
        fake.close()
        future = producer.send("events", b"1")
        attempts = producer._queues[TopicPartition("events", 0)]
        deadline = time.monotonic() + 60
        while attempts.attempts < 5:
            assert time.monotonic() < deadline, "it was not tried again"
            time.sleep(0.002)
        later = [
            producer.send("events", b"2"),
            producer.send_batch("events", {"value": [b"3"]}),
        ]  # not refused meanwhile
        again = FakeBroker(port=fake.port)
        assert future.result(30).offset == 0
        assert all(f.exception(30) is None for f in later)  # type: ignore[attr-defined]
        assert stored(again) == [b"1", b"2", b"3"]
        again.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_cannot_use_the_parents_producer(fake: FakeBroker) -> None:
    with Producer(fake.address, linger_ms=60_000) as producer:
        producer.send("events", b"parent")
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                producer.send("events", b"child")
            except ClosedError:
                producer.close()
                with Producer(fake.address) as own:
                    own.send("events", b"own").result(30)
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert stored(fake) == [b"own", b"parent"]


def test_an_unclosed_producer_is_flushed_at_exit(fake: FakeBroker) -> None:
    script = f"""
        import sparklog
        p = sparklog.Producer({fake.address!r}, linger_ms=3600000)
        p.send("events", b"late")
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, timeout=60, check=True
    )
    assert "was not closed" in done.stderr
    assert stored(fake) == [b"late"]


def test_an_unknown_schema_fails_the_batch_and_the_next_one_has_the_newest(fake: FakeBroker) -> None:
    fake.add_topic("typed", 1, pa.schema([("n", pa.int32())]))
    with Producer(fake.address) as producer:
        producer.send_batch("typed", {"n": [1]}).result(30)
        newer = pa.schema([("n", pa.int64())])
        fake.topics["typed"].schemas = [SchemaVersion(7, newer.serialize().to_pybytes())]
        fake.hook = lambda api, message: UnknownSchemaError.code if api is Api.PRODUCE else None
        with pytest.raises(UnknownSchemaError):
            producer.send_batch("typed", {"n": [2]}).result(30)
        fake.hook = lambda api, message: None
        producer.send_batch("typed", {"n": [1 << 40]}).result(30)
    assert [h.schema_id for h in fake.headers("typed")] == [1, 7]


def test_a_leader_that_has_not_heard_of_a_new_topic_is_tried_again(fake: FakeBroker) -> None:
    """A broker of a cluster may hear of it later than others; that a topic is gone, its metadata tell."""
    left = [UnknownTopicOrPartitionError.code] * 2
    fake.hook = lambda api, message: left.pop() if api is Api.PRODUCE and left else None
    with Producer(fake.address) as producer:
        producer.send("events", value=b"a").result(30)
        fake.hook = lambda api, message: UnknownTopicOrPartitionError.code if api is Api.PRODUCE else None
        del fake.topics["events"]
        with pytest.raises(UnknownTopicOrPartitionError):
            producer.send("events", value=b"b").result(30)
    assert stored(fake) == [b"a"]
