"""Without linger.ms a record is sent on the caller's thread, if nothing is under way; whatever happens there, nothing
is lost or comes twice."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparklog.client.net.connection import Connection
from sparklog.client.producer.accumulator import ROOM_BYTES
from sparklog.client.producer.interrupts import InterruptsDeferred
from sparklog.client.producer.producer import Producer
from sparklog.client.producer.sender import HERE_BYTES_MAX, Sender
from sparklog.errors import RequestTimedOutError, SparklogError
from sparklog.protocol.messages import Api
from tests.unit.client.fake_broker import DROP, DROP_AFTER, SILENT, FakeBroker
from tests.unit.client.interruptions import Stopped, interrupted_at
from tests.unit.client.support import stored, until

MODULES = (
    "producer.py",
    "accumulator.py",
    "open_batch.py",
    "sender.py",
    "outcomes.py",
    "encoding.py",
    "sequences.py",
    "small_batch.py",
    "cluster.py",
    "client/net/connection.py",
    "interrupts.py",
    "futures.py",
)
HERE = threading.current_thread().name
THERE = "sparklog-producer"


@pytest.fixture
def senders(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that have sent a PRODUCE request, one by one."""
    seen: list[str] = []
    send = Connection.send

    def note(self: Any, api: Api, *given: Any, **named: Any) -> None:
        if api is Api.PRODUCE:
            seen.append(threading.current_thread().name)
        send(self, api, *given, **named)

    monkeypatch.setattr(Connection, "send", note)
    return seen


def warm(fake: FakeBroker, **settings: Any) -> Producer:
    """A producer that has a connection, and nothing under way."""
    producer = Producer(fake.address, **({"linger_ms": 0} | settings))
    producer.send("events", b"first").result(10)
    if not settings:
        idle(producer)
    return producer


def idle(producer: Producer) -> None:
    until(producer._sender.may_send_here)


def test_a_record_alone_is_sent_by_the_caller(fake: FakeBroker, senders: list[str]) -> None:
    with warm(fake) as producer:
        senders.clear()
        for i in range(20):
            assert producer.send("events", b"%d" % i).result(10).offset == i + 1
            idle(producer)
        assert senders == [HERE] * 20
    assert stored(fake) == [b"first", *(b"%d" % i for i in range(20))]


def test_what_follows_while_a_request_is_under_way_is_not(fake: FakeBroker, senders: list[str]) -> None:
    answer = threading.Event()

    def wait(api: Api, _: Any) -> None:
        if api is Api.PRODUCE:
            answer.wait(10)

    with warm(fake) as producer:
        fake.hook = wait
        senders.clear()
        futures = [producer.send("events", b"%d" % i) for i in range(5)]
        answer.set()
        assert [f.result(10).offset for f in futures] == [1, 2, 3, 4, 5]
        assert senders == [HERE, THERE]


@pytest.mark.parametrize("settings", [{"linger_ms": 5}, {"acks": 0, "enable_idempotence": False}])
def test_not_with_a_linger_and_not_without_answers(
    fake: FakeBroker, senders: list[str], settings: dict[str, Any]
) -> None:
    with warm(fake, **settings) as producer:
        for _ in range(5):
            producer.send("events", b"x").result(10)
        assert set(senders) == {THERE}


def test_not_what_is_large(fake: FakeBroker, senders: list[str]) -> None:
    with warm(fake) as producer:
        senders.clear()
        producer.send("events", bytes(HERE_BYTES_MAX)).result(10)
        assert senders == [THERE]


def test_not_to_a_leader_that_has_to_be_asked_for(fake: FakeBroker, senders: list[str]) -> None:
    with warm(fake) as producer:
        senders.clear()
        producer._cluster.expire("events")
        producer.send("events", b"x").result(10)
        assert senders == [THERE]


@pytest.mark.parametrize(
    ("verdict", "idempotent"),  # without idempotence what is stored before the connection breaks is stored twice
    [(DROP, True), (DROP_AFTER, True), (12, True), (20, True), (DROP, False), (12, False), (20, False)],
)
def test_what_fails_is_tried_again_by_the_thread(
    fake: FakeBroker, senders: list[str], verdict: Any, idempotent: bool
) -> None:
    producer = Producer(fake.address, linger_ms=0, enable_idempotence=idempotent, retry_backoff_ms=1)
    with producer:
        producer.send("events", b"first").result(10)
        idle(producer)
        failures = iter([verdict])
        fake.hook = lambda api, message: next(failures, None) if api is Api.PRODUCE else None
        senders.clear()
        assert producer.send("events", b"x").result(10).offset == 1
        assert senders == [HERE, THERE]
    assert stored(fake) == [b"first", b"x"]


def test_a_connection_that_breaks_while_the_caller_sends(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    send_all = Connection._send_all

    def breaks(self: Any, *given: Any) -> None:
        monkeypatch.setattr(Connection, "_send_all", send_all)
        self._socket.shutdown(socket.SHUT_RDWR)
        send_all(self, *given)

    with warm(fake) as producer:
        monkeypatch.setattr(Connection, "_send_all", breaks)
        assert producer.send("events", b"x").result(10).offset == 1
    assert stored(fake) == [b"first", b"x"]


def test_a_broker_that_does_not_answer_is_noticed_in_time(fake: FakeBroker) -> None:
    with warm(fake, request_timeout_ms=200, delivery_timeout_ms=300) as producer:
        idle(producer)
        fake.hook = lambda api, _: SILENT if api is Api.PRODUCE else None
        future = producer.send("events", b"x")
        with pytest.raises(SparklogError) as raised:
            future.result(10)
        assert isinstance(raised.value, RequestTimedOutError) or "request.timeout.ms" in str(raised.value)


def test_a_partition_that_is_gone_fails_its_record_alone(fake4: FakeBroker, senders: list[str]) -> None:
    with Producer(fake4.address, linger_ms=0, delivery_timeout_ms=300, request_timeout_ms=200) as producer:
        producer.send("events", b"first", partition=3).result(10)
        idle(producer)
        fake4.add_topic("events", 2)
        producer._cluster.topic("events", refresh=True)  # as another client of the process does it
        senders.clear()
        with pytest.raises(SparklogError):
            producer.send("events", b"x", partition=3).result(10)
        assert senders == []
        idle(producer)
        assert producer.send("events", b"y", partition=1).result(10).offset == 0


def test_many_threads_at_once(fake: FakeBroker, senders: list[str]) -> None:
    count, threads = 200, 6
    with warm(fake) as producer:

        def work(n: int) -> None:
            for i in range(count):
                future = producer.send("events", b"%d-%d" % (n, i))
                if i % 3 == 0:
                    future.result(10)

        workers = [threading.Thread(target=work, args=(n,), name=f"worker-{n}") for n in range(threads)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        producer.flush()
    values = stored(fake)[1:]
    for n in range(threads):
        assert [v for v in values if v.startswith(b"%d-" % n)] == [b"%d-%d" % (n, i) for i in range(count)]
    assert len(values) == count * threads
    assert any(name.startswith("worker") for name in senders)


@pytest.fixture
def stopping_sigint() -> Iterator[Callable[[], None]]:
    """SIGINT raises Stopped where it arrives. Gives what sends the signal."""

    def handler(*_: Any) -> None:
        raise Stopped

    before = signal.signal(signal.SIGINT, handler)
    yield lambda: signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is handler
    signal.signal(signal.SIGINT, before)


def test_a_send_that_is_interrupted_anywhere(fake: FakeBroker, stopping_sigint: Callable[[], None]) -> None:
    """Ctrl-C at each line that a send runs through, as long as there are lines: the record is stored once, or not at
    all, and the producer goes on."""
    with warm(fake) as producer:
        expected, line, deferred = [b"first"], 1, 0
        while True:
            value = b"interrupted at %d" % line
            future = None
            with interrupted_at(line, MODULES, by=stopping_sigint) as reached, contextlib.suppress(Stopped):
                future = producer.send("events", value)
            after = producer.send("events", b"after %d" % line).result(10)
            idle(producer)
            found = stored(fake)
            assert found[: len(expected)] == expected
            new = found[len(expected) :]
            assert new in ([b"after %d" % line], [value, b"after %d" % line])
            assert after.offset == len(found) - 1
            if future is not None:
                assert future.result(10).offset == len(found) - 2
            deferred += bool(reached) and len(new) == 2
            expected, line = found, line + 1
            if not reached:
                break
        assert line > 100
        assert deferred > 50
        # a signal in the middle of an account leaves it wrong by what was about to be booked
        assert producer._accumulator.used_bytes < 4 * ROOM_BYTES


def test_another_exception_in_the_middle_ends_the_producer(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    with warm(fake) as producer:
        monkeypatch.setattr(Sender, "_encode", lambda *_: (_ for _ in ()).throw(Stopped()))
        with pytest.raises(Stopped):
            producer.send("events", b"x")
        producer._sender._thread.join(10)
        with pytest.raises(SparklogError, match="Stopped"):
            producer.send("events", b"y")
    assert stored(fake) == [b"first"]


def test_interrupts_wait(stopping_sigint: Callable[[], None]) -> None:
    reached = False
    with pytest.raises(Stopped), InterruptsDeferred():
        stopping_sigint()
        reached = True
    assert reached
    with InterruptsDeferred():
        pass
    with pytest.raises(Stopped):
        stopping_sigint()


def test_signals_that_came_are_delivered_at_the_end_each(stopping_sigint: Callable[[], None]) -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    try:
        with pytest.raises(Stopped), InterruptsDeferred():
            stopping_sigint()
            signal.raise_signal(signal.SIGTERM)
            assert came == []
        assert came == [signal.SIGTERM]
        signal.raise_signal(signal.SIGTERM)
        assert len(came) == 2
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_its_handlers_back(stopping_sigint: Callable[[], None]) -> None:
    handler = signal.getsignal(signal.SIGINT)
    with InterruptsDeferred():
        pid = os.fork()
        if pid == 0:
            os._exit(0 if signal.getsignal(signal.SIGINT) is handler else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert signal.getsignal(signal.SIGINT) is not handler


def test_interrupts_that_are_ignored_or_of_other_threads_are_left_alone(stopping_sigint: Callable[[], None]) -> None:
    handler = signal.getsignal(signal.SIGINT)
    inside: list[Any] = []

    def work() -> None:
        with InterruptsDeferred():
            inside.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [handler]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with InterruptsDeferred():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, handler)
