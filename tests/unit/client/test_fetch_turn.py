"""Who keeps up with the log receives on the thread that polls; whatever ends a poll there, nothing is lost or comes twice."""

from __future__ import annotations

import linecache
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from sparklog.client import fetch_turn, fetcher
from sparklog.client.consumer import Consumer
from sparklog.client.fetch_turn import FetchTurn
from sparklog.protocol.messages import Api
from sparklog.types import TopicPartition
from tests.unit.client.fake_broker import DROP, SILENT, FakeBroker
from tests.unit.client.test_consumer import TP0, drain, fill, until

TP1 = TopicPartition("events", 1)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that have received something, one by one."""
    seen: list[str] = []
    step = fetcher.Fetcher._step

    def note(self: Any, *given: Any) -> None:
        seen.append(threading.current_thread().name)
        step(self, *given)

    monkeypatch.setattr(fetcher.Fetcher, "_step", note)
    return seen


def caught_up(fake: FakeBroker, **settings: Any) -> Consumer:
    """A consumer whose poll receives."""
    consumer = Consumer(fake.address, **settings)
    consumer.assign([TP0])
    fill(fake, 1)
    assert len(drain(consumer, fake.end(("events", 0)))) == fake.end(("events", 0))
    until(lambda: consumer.poll(0) == [] and consumer._fetcher._left_to_poll() is not None)
    return consumer


def offsets(records: list[Any]) -> list[int]:
    return [r.offset for r in records]


def test_who_keeps_up_receives_on_the_polling_thread(fake: FakeBroker, steps: list[str]) -> None:
    with caught_up(fake) as consumer:
        steps.clear()
        for i in range(1, 20):
            fill(fake, 1, rows=2)
            assert offsets(drain(consumer, 2)) == [8 + 2 * i, 9 + 2 * i]
        assert set(steps) == {threading.current_thread().name}


def test_where_much_comes_it_is_read_ahead(fake: FakeBroker, steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with caught_up(fake, local_read="off") as consumer:
        monkeypatch.setattr(fetcher, "SPARSE_BYTES", 2000)
        fill(fake, 20)
        fill(fake, 20, rows=1)
        assert offsets(drain(consumer, 1)) == list(range(10, 20))
        until(lambda: len(consumer._fetcher.ready._batches) >= 39)
        assert offsets(drain(consumer, 210)) == list(range(20, 230))


def test_without_polls_the_background_thread_goes_on(
    fake: FakeBroker, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_turn, "IDLE_S", 0.05)
    with caught_up(fake) as consumer:
        fill(fake, 3)
        until(lambda: bool(consumer._fetcher.ready))
        assert offsets(drain(consumer, 30)) == list(range(10, 40))
    assert "sparklog-consumer" in steps


def test_wake_ends_a_poll_at_the_socket(fake: FakeBroker) -> None:
    with caught_up(fake) as consumer:
        woken = threading.Event()

        def wake() -> None:
            until(lambda: consumer._fetcher._turn.poll_receives)
            woken.set()
            consumer._fetcher.wake()

        waker = threading.Thread(target=wake)
        waker.start()
        assert consumer._fetcher.take(60, woken.is_set) is None
        waker.join()
        fill(fake, 1)
        assert offsets(drain(consumer, 10)) == list(range(10, 20))


def test_an_answer_that_is_late_is_given_up(fake: FakeBroker) -> None:
    with caught_up(fake, request_timeout_ms=200, fetch_max_wait_ms=100) as consumer:
        fake.hook = lambda api, message: SILENT if api is Api.FETCH else None
        assert drain_for(consumer, 0.6) == []
        fake.hook = lambda api, message: None
        fill(fake, 1)
        assert offsets(drain(consumer, 10)) == list(range(10, 20))


def drain_for(consumer: Consumer, seconds: float) -> list[Any]:
    found: list[Any] = []
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found += consumer.poll(50)
    return found


@pytest.mark.usefixtures("local_read")
def test_a_broker_that_goes_away_while_poll_receives(fake: FakeBroker) -> None:
    fetches = 0

    def drop_some(api: Api, _: Any) -> Any:
        nonlocal fetches
        fetches += api is Api.FETCH
        return DROP if api is Api.FETCH and fetches % 3 == 0 else None

    with caught_up(fake) as consumer:
        fake.hook = drop_some
        found: list[int] = []
        for i in range(8):
            fill(fake, 1, rows=1)
            found += offsets(drain(consumer, 1))
            assert found == list(range(10, 11 + i))


@pytest.mark.usefixtures("local_read")
def test_what_another_partition_needs_is_not_forgotten(fake4: FakeBroker) -> None:
    with caught_up(fake4) as consumer:
        fill(fake4, 2, partition=1)
        consumer.assign([TP0, TP1])
        assert sorted(offsets(drain(consumer, 20))) == list(range(20))
        consumer.pause(TP1)
        fill(fake4, 1, partition=1)
        fill(fake4, 1)
        assert {(r.partition, r.offset) for r in drain(consumer, 10)} == {(0, o) for o in range(10, 20)}
        consumer.resume(TP1)
        assert {(r.partition, r.offset) for r in drain(consumer, 10)} == {(1, o) for o in range(20, 30)}
        consumer.seek(TP0, 3)
        assert offsets(drain(consumer, 17)) == list(range(3, 20))


class Stopped(BaseException):
    """As KeyboardInterrupt, which pytest would take for its own."""


MODULES = (
    "fetcher.py",
    "fetch_turn.py",
    "fetch_answer.py",
    "position.py",
    "connection.py",
    "consumed.py",
    "consumer.py",
)


def stop_at(line: int, reached: list[bool]) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that raises at the `line`-th line of the client's modules, but for that with which poll returns."""
    left = line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(MODULES):
            return None
        if event == "line" and linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip() != "return chosen":
            left -= 1
            if left == 0:
                reached.append(True)
                raise Stopped
        return trace

    return trace


def test_a_poll_that_is_interrupted_anywhere_loses_nothing(fake: FakeBroker) -> None:
    """Ctrl-C at each line that a poll runs through, as long as there are lines; the records that were not returned come with
    the next polls."""
    with caught_up(fake, local_read="off") as consumer:
        expected, line = 10, 1
        interrupted = 0
        while True:
            fill(fake, 1, rows=3)
            until(lambda: consumer._fetcher._left_to_poll() is not None or bool(consumer._fetcher.ready))
            reached: list[bool] = []
            found: list[Any] = []
            previous = sys.gettrace()
            sys.settrace(stop_at(line, reached))
            try:
                found = consumer.poll(2000)
            except Stopped:
                interrupted += 1
            finally:
                sys.settrace(previous)
            found += drain(consumer, 3 - len(found))
            assert offsets(found) == list(range(expected, expected + 3)), f"interrupted at line {line}"
            expected += 3
            line += 1
            if not reached:
                break
    assert interrupted > 100


def test_the_answer_is_waited_for_no_longer_than_it_may_take() -> None:
    class _Late:
        has_read_ahead = False
        due = 100.0

        def __init__(self, sock: socket.socket) -> None:
            self._sock = sock

        def fileno(self) -> int:
            return self._sock.fileno()

    now = 99.0
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
        turn.tell()
        assert not turn.is_readable(connection, 60)  # told: it comes back at once
        theirs.send(b"x")
        assert turn.is_readable(connection, 60)
        turn.leave_socket()
        turn.end_poll()
        assert turn.is_polls(connection)
        now = 99.9 + fetch_turn.IDLE_S
        assert not turn.is_polls(connection)
        turn.begin_poll()
        assert not turn.is_polls(connection)  # late
        turn.close()
