"""Fixtures of the client's tests: fake brokers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparklog.client.cluster import forget
from tests.unit.client.fake_broker import FakeBroker


def _fake(partitions: int) -> Iterator[FakeBroker]:
    broker = FakeBroker(partitions)
    yield broker
    broker.close()
    forget(broker.address)


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    """One envelope topic `events` of one partition."""
    yield from _fake(1)


@pytest.fixture
def fake4() -> Iterator[FakeBroker]:
    """One envelope topic `events` of four partitions."""
    yield from _fake(4)
