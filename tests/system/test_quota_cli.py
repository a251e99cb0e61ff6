"""`sparklog quota` against a real broker, and its effect on a throttled producer."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import sparklog
from sparklog import Admin, Consumer, Producer
from sparklog.client.net.addresses import parse_bootstrap
from sparklog.client.net.connection import Connection
from sparklog.errors import TopicAlreadyExistsError
from sparklog.protocol.apis import Api
from sparklog.protocol.topic_messages import CreateTopicRequest, CreateTopicResponse, MetadataRequest, MetadataResponse
from sparklog.security.quotas import Entity
from sparklog.types import TopicPartition


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[sparklog.LocalBroker]:
    with sparklog.start_local(data_dir=tmp_path / "broker-data") as local:
        yield local


def test_clients_with_other_client_ids_have_other_quotas(broker: sparklog.LocalBroker) -> None:
    """In one process, at one broker: the one that has a quota of its own owes, the others do not."""
    admin = Admin(broker.bootstrap_servers, client_id="operator")
    admin.create_topic("t")
    admin.alter_client_quotas(Entity(None, "bulk"), {"producer_byte_rate": 100.0})
    for client_id in ("bulk", "quick", ""):
        with Producer(broker.bootstrap_servers, linger_ms=0, client_id=client_id) as producer:
            producer.send("t", b"x" * 100_000).result(60)
    throttled = admin.describe_client_quotas().throttled
    assert [(g.quota, g.user, g.client_id) for g in throttled] == [("producer_byte_rate", None, "bulk")]


def test_a_client_that_only_reads_metadata_is_muted_and_waits(
    broker: sparklog.LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The muted time of `request_percentage` does not count against the time of the next requests."""
    with Admin(broker.bootstrap_servers, client_id="operator") as admin:
        admin.create_topic("t")
        admin.alter_client_quotas(Entity(None, "curious"), {"request_percentage": 0.000_001})
    (endpoint,) = parse_bootstrap(broker.bootstrap_servers)
    for client_id, throttled in (("modest", False), ("curious", True)):
        with closing(Connection(endpoint, timeout_ms=60_000, client_id=client_id)) as connection:
            asked = time.monotonic()
            answer, _ = connection.request(Api.METADATA, MetadataRequest(["t"]), MetadataResponse)
            assert (answer.throttle_ms > 0) == throttled
            connection.send(Api.METADATA, MetadataRequest(["t"]))
            due = connection.answer_due
            assert due >= asked + answer.throttle_ms / 1_000 + 60
            assert [topic.name for topic in connection.receive(MetadataResponse)[0].topics] == ["t"]
            told: list[int] = []
            monkeypatch.setattr(connection, "_wait_for", told.append)
            with pytest.raises(TopicAlreadyExistsError):
                connection.request(Api.CREATE_TOPIC, CreateTopicRequest("t", 1), CreateTopicResponse)
            assert bool(told) == throttled, "an error says it, too"


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
