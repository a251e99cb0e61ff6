"""Fetches: ahead of the application, and in their turn."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from typing import Any

import pytest

from sparklog.client.consumer.consumer import Consumer
from sparklog.client.consumer.fetch_turn import FetchTurn
from sparklog.errors import BrokerNotAvailableError
from sparklog.protocol.apis import Api
from sparklog.types import TopicPartition
from tests.support.clients import TP0, drain, fill
from tests.support.waiting import until
from tests.unit.client.fake_broker import DROP, FakeBroker

TP1 = TopicPartition("events", 1)

pytestmark = pytest.mark.usefixtures("local_read")


def values(records: list[Any], partition: int) -> list[int]:
    return [int(r.value) for r in records if r.partition == partition]


def test_it_goes_out_before_anything_is_decoded(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(fake, 3)
    with Consumer(fake.address, max_partition_fetch_bytes=1024, local_read="off") as consumer:
        seen: list[int] = []
        consumer.assign([])
        take_part = consumer._fetcher.first._take_part

        def look(part: Any) -> None:
            if part.data.size:
                ahead = consumer._fetcher.first.in_flight
                seen.append(-1 if ahead is None else ahead.requested[0][1].fetch_offset)
            take_part(part)

        monkeypatch.setattr(consumer._fetcher.first, "_take_part", look)
        consumer.assign([TP0])
        consumer.seek(TP0, 0)
        assert values(drain(consumer, 30), 0) == list(range(30))
    assert seen[-3:] == [10, 20, 30]  # `assign` may have read something before `seek`


def test_undecodable_batches_are_fetched_again(fake4: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(fake4, 4, partition=0)
    fill(fake4, 4, partition=1)
    with Consumer(fake4.address) as consumer:
        failures = [3, 5]
        calls = 0
        take_part = consumer._fetcher.first._take_part

        def fail_at_times(part: Any) -> None:
            nonlocal calls
            calls += 1
            if calls in failures:
                raise BrokerNotAvailableError("the schema cannot be asked for")
            take_part(part)

        monkeypatch.setattr(consumer._fetcher.first, "_take_part", fail_at_times)
        consumer.assign([TP0, TP1])
        found = drain(consumer, 80, max_records=1000)
        fill(fake4, 1, partition=0)
        found += drain(consumer, 10, max_records=1000)
    assert values(found, 0) == list(range(50))
    assert values(found, 1) == list(range(40))
    assert calls > max(failures)


def test_an_answer_that_never_comes_is_requested_again(fake: FakeBroker) -> None:
    fill(fake, 6)
    fetches = 0

    def drop_some(api: Api, _: Any) -> Any:
        nonlocal fetches
        fetches += api is Api.FETCH
        return DROP if api is Api.FETCH and fetches in (2, 4) else None

    fake.hook = drop_some
    with Consumer(fake.address, max_partition_fetch_bytes=1024) as consumer:
        consumer.assign([TP0])
        assert values(drain(consumer, 60), 0) == list(range(60))


def test_no_fetch_goes_ahead_of_a_full_prefetch(fake: FakeBroker) -> None:
    fill(fake, 10)
    size = len(fake.logs[("events", 0)][0])
    with Consumer(fake.address, max_partition_fetch_bytes=1024, prefetch_bytes=size) as consumer:
        consumer.assign([TP0])
        until(lambda: consumer._fetcher.ready.size_bytes >= size)
        assert values(drain(consumer, 100), 0) == list(range(100))
        assert consumer._fetcher.ready.size_bytes <= 2 * size


def test_a_partition_that_is_resumed_is_not_forgotten(fake4: FakeBroker) -> None:
    fill(fake4, 20, partition=0)
    fill(fake4, 2, partition=1)
    with Consumer(fake4.address, max_partition_fetch_bytes=1024) as consumer:
        consumer.assign([TP0, TP1])
        consumer.pause(TP1)
        found = drain(consumer, 50, max_records=10)
        consumer.resume(TP1)
        found += drain(consumer, 220 - len(found))
    assert values(found, 0) == list(range(200))
    assert values(found, 1) == list(range(20))


# Whose turn it is at the socket: the poll's, or the background thread's


def test_the_answer_is_waited_for_no_longer_than_it_may_take() -> None:
    class _Late:
        has_read_ahead = False
        due = 100.0

        def __init__(self, sock: socket.socket) -> None:
            self._sock = sock

        def fileno(self) -> int:
            return self._sock.fileno()

    now = 98.0
    lock = threading.RLock()
    turn = FetchTurn(lock, lambda: now)
    ours, theirs = socket.socketpair()
    connection: Any = _Late(ours)
    with ours, theirs, lock:
        turn.begin_poll()
        assert not turn.is_polls(connection)  # the last answer was not small
        turn.is_sparse = True
        assert turn.is_polls(connection)
        turn.go_to_socket()
        assert not turn.is_readable(connection, 0)
        turn.notify()
        assert not turn.is_readable(connection, 60)  # told: it comes back at once
        theirs.send(b"x")
        assert turn.is_readable(connection, 60)
        turn.leave_socket()
        turn.end_poll()
        assert turn.is_polls(connection)
        now = 98.9
        assert turn.is_polls(connection)
        now = 99.1  # poll is not called, and the background thread needs time before the answer is late
        assert not turn.is_polls(connection)
        turn.begin_poll()
        assert turn.is_polls(connection)
        now = 100.1
        assert not turn.is_polls(connection)
        turn.close()


# Imports of a consumer's first use: every process that reads pays for them, each Spark worker too


def test_a_consumer_imports_no_module_of_the_brokers_storage() -> None:
    code = (
        "import sys, sparklog; sparklog.Consumer; "
        "print(sorted(m for m in sys.modules if m.startswith(('sparklog.log.', 'sparklog.metadata.', 'sqlite3'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "['sparklog.log.tiering', 'sparklog.log.tiering.cache_directory']"
