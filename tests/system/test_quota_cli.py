"""`sparklog quota` against a real broker, and its effect on a throttled producer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparklog
from sparklog import Admin, Consumer, Producer
from sparklog.security.quotas import Entity
from sparklog.types import TopicPartition


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[sparklog.LocalBroker]:
    with sparklog.start_local(data_dir=tmp_path / "broker-data") as local:
        yield local


def test_a_throttled_producer_waits_and_loses_no_record(broker: sparklog.LocalBroker) -> None:
    """A burst of ten seconds' worth is free, then it waits; all its records arrive, once and in order."""
    admin = Admin(broker.bootstrap_servers)
    admin.create_topic("t")
    admin.alter_client_quotas(Entity("ANONYMOUS"), {"producer_byte_rate": 100_000.0})
    with Producer(broker.bootstrap_servers, linger_ms=0) as producer:
        chance = random.Random(1)
        sent = [producer.send("t", chance.randbytes(100_000)) for _ in range(12)]
        assert [future.result(60).offset for future in sent] == list(range(12))
    assert admin.list_offsets({TopicPartition("t", 0): "latest"})[TopicPartition("t", 0)].offset == 12
    throttled = admin.describe_client_quotas().throttled
    assert [(g.quota, g.user) for g in throttled] in ([], [("producer_byte_rate", "ANONYMOUS")])
    admin.alter_client_quotas(Entity("ANONYMOUS"), {"producer_byte_rate": None, "consumer_byte_rate": 100_000.0})
    with Consumer(broker.bootstrap_servers, local_read="off") as consumer:
        consumer.assign([TopicPartition("t", 0)])
        consumer.seek_to_beginning()
        got = 0
        while got < 12:
            got += len(consumer.poll(1_000))
    assert got == 12
