"""`send` from many threads, and `send` that a signal ends in the middle: nothing is lost, or comes twice."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparklog.client.producer.accumulator import ROOM_BYTES
from sparklog.client.producer.producer import Producer
from tests.support.clients import stored
from tests.unit.client.fake_broker import FakeBroker
from tests.unit.client.interruptions import Stopped, interrupted_at

MODULES = ("producer.py", "accumulator.py", "open_batch.py", "producer_topic.py", "futures.py")
"""Modules on the path of the caller's thread."""


def test_many_threads_at_once(fake: FakeBroker) -> None:
    count, threads = 200, 6
    with Producer(fake.address, linger_ms=0) as producer:

        def work(n: int) -> None:
            for i in range(count):
                future = producer.send("events", b"%d-%d" % (n, i))
                if i % 3 == 0:
                    future.result(30)

        workers = [threading.Thread(target=work, args=(n,), name=f"worker-{n}") for n in range(threads)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        producer.flush()
    values = stored(fake)
    for n in range(threads):
        assert [v for v in values if v.startswith(b"%d-" % n)] == [b"%d-%d" % (n, i) for i in range(count)]
    assert len(values) == count * threads


@pytest.fixture
def stopping_sigint() -> Iterator[Callable[[], None]]:
    """SIGINT raises Stopped at its arrival. Yields a function that sends the signal."""

    def handler(*_: Any) -> None:
        raise Stopped

    before = signal.signal(signal.SIGINT, handler)
    yield lambda: signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is handler
    signal.signal(signal.SIGINT, before)


def test_a_send_that_is_interrupted_anywhere(fake: FakeBroker, stopping_sigint: Callable[[], None]) -> None:
    """Ctrl-C at each line that a send runs through, as long as there are lines: the record is stored once, or not at
    all, and the producer goes on."""
    with Producer(fake.address, linger_ms=0) as producer:
        producer.send("events", b"first").result(30)
        expected, line, stopped = [b"first"], 1, 0
        while True:
            value = b"interrupted at %d" % line
            future = None
            with interrupted_at(line, MODULES, by=stopping_sigint) as reached, contextlib.suppress(Stopped):
                future = producer.send("events", value)
            after = producer.send("events", b"after %d" % line).result(30)
            found = stored(fake)
            assert found[: len(expected)] == expected
            new = found[len(expected) :]
            assert new in ([b"after %d" % line], [value, b"after %d" % line])
            assert after.offset == len(found) - 1
            if future is not None:
                assert future.result(30).offset == len(found) - 2
            stopped += bool(reached) and future is None
            expected, line = found, line + 1
            if not reached:
                break
        assert stopped > 20
        # a signal in the middle of an account leaves it wrong by what was about to be booked
        assert producer._accumulator.used_bytes < 4 * ROOM_BYTES
