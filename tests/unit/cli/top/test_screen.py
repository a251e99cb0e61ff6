"""The live screen's state after samples, failures and keys."""

from __future__ import annotations

import queue
import threading
from functools import reduce

import pytest
from rich.console import ConsoleDimensions

from sparklog.cli.top.rates import Order
from sparklog.cli.top.samples import Snapshot
from sparklog.cli.top.screen import Failure, SampleThread, State, after, drawn
from sparklog.client.admin.cluster_admin import ClusterDescription
from sparklog.client.cluster_view import ClusterView
from sparklog.errors import BrokerNotAvailableError
from tests.support.cases import for_each
from tests.support.top import text

PATIENCE_S = 60.0
SIZE = ConsoleDimensions(160, 20)


def snapshot(at_s: float) -> Snapshot:
    return Snapshot(at_s, 0, ClusterView(ClusterDescription("c1", 1, ()), {}, {}, (), (), {}), {}, 0)


def states(*events: Snapshot | Failure | str) -> State:
    return reduce(after, events, State(Order.lag))


def test_two_samples_make_rates() -> None:
    assert "asking the cluster" in text(drawn(states(), SIZE))
    assert "rates with the next sample" in text(drawn(states(snapshot(1)), SIZE))
    assert "rates over 2.0 s" in text(drawn(states(snapshot(1), snapshot(3)), SIZE))
    assert "rates over 2.5 s" in text(drawn(states(snapshot(1), snapshot(3), snapshot(5.5)), SIZE))


def test_an_absent_broker_is_reported_and_the_last_sample_stays() -> None:
    away = states(snapshot(1), snapshot(3), Failure("nobody listens", 5), Failure("nobody listens", 12))
    shown = text(drawn(away, SIZE))
    assert "no answer for 7 s, still trying: nobody listens" in shown
    assert "rates over 2.0 s" in shown
    back = after(away, snapshot(14))
    assert "no answer" not in text(drawn(back, SIZE))
    assert "rates with the next sample" in text(drawn(back, SIZE)), "not a mean over the time it was away"
    assert "rates over 2.0 s" in text(drawn(after(back, snapshot(16)), SIZE))


def test_a_broker_that_never_ran() -> None:
    assert "nobody listens" in text(drawn(states(Failure("nobody listens", 5)), SIZE))


@pytest.mark.parametrize(("key", "order"), [("r", Order.rate), ("S", Order.size), ("n", Order.name), ("x", Order.lag)])
def test_keys_sort(key: str, order: Order) -> None:
    assert states(key) == State(order)


@for_each("key", ["q", "Q", "\x04"])
def test_keys_end_it(key: str) -> None:
    assert states(key).ended


def test_samples_and_failures_come_from_the_thread() -> None:
    answers: queue.Queue[Snapshot | Exception] = queue.Queue()
    asked = threading.Semaphore(0)

    def take() -> Snapshot:
        asked.release()
        answer = answers.get(timeout=PATIENCE_S)
        if isinstance(answer, Exception):
            raise answer
        return answer

    thread = SampleThread(take, 0.0, lambda: 42.0)
    thread.start()
    for given, expected in (
        (snapshot(1), snapshot(1)),
        (BrokerNotAvailableError("gone"), Failure("gone", 42.0)),
        (defect := ZeroDivisionError("a defect"), defect),
    ):
        answers.put(given)
        assert thread.events.get(timeout=PATIENCE_S) == expected
    thread.stop()
    answers.put(snapshot(9))


def test_a_slow_screen_gets_the_newest_state() -> None:
    taken = iter(range(1, 1_000_000))
    enough = threading.Event()

    def take() -> Snapshot:
        number = next(taken)
        if number == 5:
            thread.stop()
            enough.set()
        return snapshot(number)

    thread = SampleThread(take, 0.0, lambda: 0.0)
    thread.start()
    assert enough.wait(PATIENCE_S)
    thread._thread.join(PATIENCE_S)
    newest = thread.events.get_nowait()
    assert isinstance(newest, Snapshot)
    assert newest.at_s == 5
