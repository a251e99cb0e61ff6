"""Gateways of a cluster: clients go to the gateway of each leader, and nothing acknowledged is lost with a broker."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

import sparklog
from tests.support.waiting import CLUSTER_PATIENCE_S, until

BROKERS = 3


@pytest.mark.nightly
@pytest.mark.crash
def test_clients_follow_the_leaders_through_a_brokers_death(tmp_path: Any) -> None:
    with sparklog.start_local(tmp_path / "cluster", brokers=BROKERS, kafka=True) as cluster:
        addresses = cluster.kafka_bootstrap_servers
        assert len(addresses.split(",")) == BROKERS
        settings: dict[str, Any] = {"bootstrap.servers": addresses, "log_level": 0}
        assert isinstance(cluster, sparklog.LocalCluster)
        admin = AdminClient(settings)
        topic = NewTopic("events", 6, BROKERS, config={"min.insync.replicas": "2"})
        admin.create_topics([topic])["events"].result(CLUSTER_PATIENCE_S)
        until(lambda: leaders(admin) >= {1, 2, 3}, "a leader on each broker", within_s=CLUSTER_PATIENCE_S)
        told = {f"{b.host}:{b.port}" for b in admin.list_topics(timeout=30).brokers.values()}
        assert told == set(addresses.split(",")), "clients are told of the gateways, not of the brokers"

        producer = Producer({**settings, "enable.idempotence": True, "message.timeout.ms": 120_000})
        acknowledged: list[bytes] = []

        def note(error: Any, message: Any) -> None:
            assert error is None, error
            acknowledged.append(message.value())

        for i in range(3_000):
            producer.produce("events", b"%d" % i, on_delivery=note)
            if i == 1_000:
                producer.flush(CLUSTER_PATIENCE_S)
                cluster.brokers[0].kill()
            producer.poll(0)
        assert producer.flush(CLUSTER_PATIENCE_S) == 0
        assert sorted(acknowledged, key=int) == [b"%d" % i for i in range(3_000)]

        consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False})
        consumer.subscribe(["events"])
        found: list[Any] = []

        def all_read() -> bool:
            found.extend(m.value() for m in consumer.consume(500, 0.5) if m.error() is None)
            return len(found) >= 3_000

        until(all_read, "all records", within_s=CLUSTER_PATIENCE_S)
        consumer.close()
        assert sorted(found, key=int) == [b"%d" % i for i in range(3_000)]


def leaders(admin: AdminClient) -> set[int]:
    return {p.leader for p in admin.list_topics("events", 30).topics["events"].partitions.values()}
