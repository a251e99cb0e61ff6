"""The registration of a broker in a simulated store."""

from __future__ import annotations

from sparklog.metadata.broker_registration import BrokerRegistration
from sparklog.metadata.cluster_znodes import Registration
from sparklog.replication.cluster_image import NO_EPOCH
from sparklog.testing._sim_zookeeper import SimZooKeeper

SESSION_MS = 6_000


def test_a_broker_is_certain_of_its_registration_only_within_its_session() -> None:
    store = SimZooKeeper(1, session_timeout_ms=SESSION_MS)
    client = store.client()
    registration = BrokerRegistration(client, 1, lambda: store.now_ms, lambda epoch: None)
    assert not registration.is_certain()
    registration.start(Registration("1.1", None, (), (), ()))
    store.advance(1_000)
    assert registration.is_certain()
    first_epoch = registration.broker_epoch
    assert first_epoch != NO_EPOCH
    store.cut(client)
    store.advance(1_000 + SESSION_MS - 1)
    was_certain = registration.is_certain()
    store.advance(1_000 + 4 * SESSION_MS)
    assert was_certain
    assert not registration.is_certain(), "the session can have ended"
    store.heal(client)
    store.advance(1_000 + 8 * SESSION_MS)
    assert registration.is_certain()
    assert registration.broker_epoch != first_epoch
