"""Producers and consumers that are dropped without close."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import subprocess
import sys
import textwrap
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparklog import Consumer, Producer, TopicPartition
from sparklog.client.producer.futures import RecordFuture
from sparklog.errors import ClosedError
from sparklog.format.batch import iterate_batches
from sparklog.protocol.apis import Api
from sparklog.types import Record
from tests.support.waiting import until
from tests.unit.client.fake_broker import DROP, FakeBroker

TP = TopicPartition("events", 0)
OwnThreads = Callable[[], list[str]]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@contextlib.contextmanager
def nothing_left(own_threads: OwnThreads) -> Iterator[None]:
    """Neither threads nor more descriptors than the few pooled connections."""
    assert own_threads() == []
    before = descriptors()
    yield
    gc.collect()
    until(lambda: own_threads() == [])
    until(lambda: descriptors() <= before + 16)


def values(fake: FakeBroker) -> int:
    return sum(h.record_count for log in fake.logs[("events", 0)] for _, h in iterate_batches(memoryview(log)))


def test_many_pairs_free_all_resources(fake: FakeBroker, own_threads: OwnThreads) -> None:
    pairs = 40
    with nothing_left(own_threads):
        for i in range(pairs):
            producer = Producer(fake.address)
            producer.send("events", b"x").result(30)
            consumer = Consumer(fake.address)
            consumer.assign([TP])
            consumer.seek(TP, i)
            assert consumer.poll(10_000)
            with pytest.warns(ResourceWarning, match="unclosed <Producer"):
                del producer
            with pytest.warns(ResourceWarning, match="unclosed <Consumer"):
                del consumer
    assert values(fake) == pairs


def test_accepted_records_are_sent(fake: FakeBroker, own_threads: OwnThreads) -> None:
    producer = Producer(fake.address, linger_ms=3_600_000)
    future = producer.send("events", b"late")
    with pytest.warns(ResourceWarning):
        del producer
    assert future.result(30).offset == 0
    until(lambda: own_threads() == [])


def test_undeliverable_records_are_logged(
    fake: FakeBroker, caplog: pytest.LogCaptureFixture, own_threads: OwnThreads
) -> None:
    fake.hook = lambda api, message: DROP if api is Api.PRODUCE else None
    producer = Producer(fake.address, delivery_timeout_ms=300)
    future = producer.send("events", b"lost")
    with pytest.warns(ResourceWarning), caplog.at_level(logging.ERROR):
        del producer
        until(lambda: own_threads() == [])
    assert "dropped without close are lost" in caplog.text
    with pytest.raises(Exception, match=r"delivery\.timeout\.ms"):
        future.result(0)


def test_a_future_does_not_keep_its_producer(fake: FakeBroker, own_threads: OwnThreads) -> None:
    producer = Producer(fake.address)
    future = producer.send("events", b"x")
    alive = weakref.ref(producer)
    with pytest.warns(ResourceWarning):
        del producer
    assert alive() is None
    assert future.result(30).offset == 0
    until(lambda: own_threads() == [])


def test_a_transactional_producer_is_collected_and_its_transaction_aborted(
    fake: FakeBroker, own_threads: OwnThreads
) -> None:
    producer = Producer(fake.address, transactional_id="t", linger_ms=3_600_000)
    producer.init_transactions()
    producer.begin_transaction()
    producer.send("events", b"sent")
    producer.flush()
    unsent = producer.send("events", b"not sent")
    with pytest.warns(ResourceWarning):
        del producer
    until(lambda: own_threads() == [])
    ends = [message for api, message in fake.requests if api is Api.END_TXN]
    assert [end.committed for end in ends] == [False]
    with pytest.raises(Exception, match="dropped without close"):
        unsent.result(0)
    assert values(fake) == 1


def test_a_producer_without_an_open_transaction_ends_without_an_abort(
    fake: FakeBroker, caplog: pytest.LogCaptureFixture, own_threads: OwnThreads
) -> None:
    producer = Producer(fake.address, transactional_id="closed")
    producer.init_transactions()
    producer.close()
    producer = Producer(fake.address, transactional_id="dropped")
    producer.init_transactions()
    with producer.transaction():
        sent = producer.send("events", b"x")
    with pytest.warns(ResourceWarning):
        del producer
    until(lambda: own_threads() == [])
    assert sent.result(30).offset == 0
    assert [message.committed for api, message in fake.requests if api is Api.END_TXN] == [True]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_in_a_cycle_it_is_the_collector_that_finds_it(fake: FakeBroker, own_threads: OwnThreads) -> None:
    producer = Producer(fake.address)
    producer.send("events", b"x")
    producer.settings["itself"] = producer
    with pytest.warns(ResourceWarning):
        del producer
        gc.collect()
    until(lambda: own_threads() == [])
    assert values(fake) == 1


def test_closed_clients_log_no_warning(fake: FakeBroker, own_threads: OwnThreads) -> None:
    with Producer(fake.address) as producer, Consumer(fake.address) as consumer:
        consumer.assign([TP])
        producer.send("events", b"x")
    del producer, consumer
    gc.collect()
    assert own_threads() == []


def test_a_failing_constructor_frees_all_resources(fake: FakeBroker, own_threads: OwnThreads) -> None:
    for kind in (Producer, Consumer):
        with pytest.raises(Exception, match="nonsense"):
            kind(fake.address, nonsense=1)
    gc.collect()
    assert own_threads() == []


def test_a_dropped_producer_is_flushed_when_the_process_ends(fake: FakeBroker) -> None:
    script = f"""
        import sparklog
        sparklog.Producer({fake.address!r}, linger_ms=3600000).send("events", b"late")
    """
    command = [sys.executable, "-W", "always", "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "unclosed <Producer" in done.stderr
    assert values(fake) == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_drops_the_parents_without_a_word(fake: FakeBroker) -> None:
    producer, consumer = Producer(fake.address, linger_ms=3_600_000), Consumer(fake.address)
    future: RecordFuture = producer.send("events", b"parent")
    consumer.assign([TP])
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            try:
                future.result(0)
            except ClosedError:
                code = 2
            del producer, consumer
            gc.collect()
            with Producer(fake.address) as own:
                own.send("events", b"child").result(30)
            with Consumer(fake.address) as reader:
                reader.assign([TP])
                records: list[Record] = reader.poll(10_000)
            code = 0 if code == 2 and records[0].value == b"child" else code
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    producer.close()
    consumer.close()
    assert values(fake) == 2
