"""A throttled client slows no other down: with and without TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparklog import Admin, Producer
from sparklog.security.quotas import Entity
from tests.system.secure_broker import SecureBroker


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[SecureBroker]:
    broker = SecureBroker(tmp_path)
    yield broker
    assert broker.stop() == 0


def test_a_producer_waits_for_its_quota_on_the_connection_that_it_has(
    secure: SecureBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """The pause is longer than request.timeout.ms, and is no broker that does not answer."""
    address = secure.addresses["LOCAL"]
    with Admin(address, client_id="operator") as admin:
        admin.create_topic("t")
        admin.alter_client_quotas(Entity(None, "bulk"), {"producer_byte_rate": 4_000.0})
    with Producer(address, client_id="bulk", linger_ms=0, request_timeout_ms=5_000) as bulk:
        bulk.send("t", b"x" * 56_000).result(60)  # what eleven seconds may have, and three more
        bulk.send("t", b"x").result(60)
    assert "trying again" not in caplog.text
