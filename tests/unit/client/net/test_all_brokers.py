"""Requests for data of which each broker has a part go to all live brokers, while one of them stops."""

from __future__ import annotations

from typing import Any

import pytest

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.retry import Retries, RetryPolicy, of_all_brokers
from sparklog.errors import BrokerNotAvailableError

ONE, TWO = Endpoint("a", 1), Endpoint("b", 2)
PARTS = {ONE: ["x"], TWO: ["y", "z"]}


class Brokers:
    """The second one is dead, and not missed before it is asked for the third time."""

    def __init__(self) -> None:
        self.there = [ONE, TWO]
        self.now_s = 0.0
        self.asked: list[Endpoint] = []
        self.parts = dict(PARTS)

    def brokers(self, *, timeout_ms: int) -> list[Endpoint]:
        return self.there

    def ask(self, broker: Endpoint | None, timeout_ms: int) -> list[str]:
        assert broker is not None
        self.asked.append(broker)
        if broker == TWO:
            if self.asked.count(TWO) == 3:
                self.there = [ONE]
                self.parts[ONE] = ["x", "y", "z"]
            raise BrokerNotAvailableError("no broker")
        return self.parts[broker]

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def asked_of(brokers: Any, ask: Any, timeout_ms: int = 30_000) -> list[str]:
    attempts = Retries(RetryPolicy.within(timeout_ms), sleep=brokers.sleep, clock=lambda: brokers.now_s)
    return of_all_brokers(brokers, ask, attempts)


def test_all_brokers_are_queried() -> None:
    assert asked_of(Brokers(), lambda broker, _: PARTS[broker]) == ["x", "y", "z"]


def test_items_of_a_dead_broker_come_from_the_others() -> None:
    brokers = Brokers()
    assert asked_of(brokers, brokers.ask) == ["x", "y", "z"]
    assert brokers.asked == [ONE, TWO] * 3 + [ONE]


def test_the_last_error_is_raised_when_the_time_is_over() -> None:
    def gone(broker: Endpoint, timeout_ms: int) -> list[str]:
        raise BrokerNotAvailableError("no broker")

    brokers = Brokers()
    with pytest.raises(BrokerNotAvailableError, match="no broker"):
        asked_of(brokers, gone, 1_000)
    assert 0.5 < brokers.now_s < 1
