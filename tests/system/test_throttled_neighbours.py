"""A throttled client slows no other down: with and without TLS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sparklog import Admin, Producer
from sparklog.errors import SparklogError
from sparklog.security.quotas import Entity
from tests.system.secure_broker import SecureBroker

SENDS = 50


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[SecureBroker]:
    broker = SecureBroker(tmp_path)
    yield broker
    assert broker.stop() == 0


@pytest.mark.parametrize("listener", ["LOCAL", "TLS"])
def test_others_are_answered_while_one_waits(secure: SecureBroker, listener: str) -> None:
    """The one owes for more than three minutes. All that the other sends meanwhile is answered, and it owes nothing."""
    address = secure.addresses[listener]
    security = {"security.protocol": "SSL", **secure.tls()} if listener == "TLS" else None
    admin = Admin(address, security=security, client_id="operator")
    admin.create_topic("t")
    admin.alter_client_quotas(Entity(None, "bulk"), {"producer_byte_rate": 100.0})
    bulk = Producer(address, security=security, client_id="bulk", linger_ms=0)
    try:
        bulk.send("t", b"x" * 20_000).result(60)
        late = bulk.send("t", b"x" * 20_000)
        with Producer(address, security=security, client_id="quick", linger_ms=0) as quick:
            for _ in range(SENDS):
                quick.send("t", b"y").result(60)
        assert not late.done(), "its connection is not read"
        throttled = admin.describe_client_quotas().throttled
        assert [(g.quota, g.client_id) for g in throttled] == [("producer_byte_rate", "bulk")]
    finally:
        with pytest.raises(SparklogError):  # what waits is not sent any more
            bulk.close(timeout_s=0.1)


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
