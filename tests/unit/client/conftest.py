"""Fixtures of the client's tests: fake brokers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from sparklog.client.consumer.consumer import Consumer
from sparklog.client.net.cluster import forget
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


@pytest.fixture(params=["auto", "off"])
def local_read(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The module's consumers read with local.read=auto (records behind the first batch come from the fakes' files), and
    with local.read=off."""
    settings = {"local_read": request.param}
    if request.param == "auto":
        settings["max_partition_fetch_bytes"] = 1024
        monkeypatch.setattr(FakeBroker, "data_dir", tmp_path)
    monkeypatch.setattr(request.module, "Consumer", partial(Consumer, **settings))
    return str(request.param)
