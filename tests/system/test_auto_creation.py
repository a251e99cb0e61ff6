"""`auto.create.topics.enable`: writing to a topic that does not exist makes it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from sparklog import Admin, Consumer, Producer, TopicPartition
from sparklog.client.net.cluster import cluster
from sparklog.errors import InvalidRequestError, SchemaMismatchError, UnknownTopicOrPartitionError
from sparklog.protocol.apis import Api
from sparklog.protocol.topic_messages import AUTO_CREATED_MAX, MetadataRequest, MetadataResponse
from tests.system.broker_process import BrokerProcess

Start = Callable[[str], str]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[BrokerProcess] = []

    def start_one(settings: str) -> str:
        started.append(BrokerProcess(tmp_path / "data", settings=settings, work_dir=tmp_path))
        return started[-1].address

    yield start_one
    for broker in started:
        broker.stop(signal.SIGKILL)


def test_a_record_makes_its_topic_and_a_read_does_not(start: Start) -> None:
    address = start("num.partitions = 3")
    with Admin(address) as admin, Producer(address) as producer, Consumer(address) as consumer:
        with pytest.raises(UnknownTopicOrPartitionError, match="sparklog topic create read"):
            consumer.assign([TopicPartition("read", 0)])
        with pytest.raises(UnknownTopicOrPartitionError):
            admin.describe_topic("read")
        assert producer.send("sent", b"x").result(30).offset == 0
        made = admin.describe_topic("sent")
        assert (made.kind, made.partitions, dict(made.configs)) == ("envelope", 3, {})
        producer.send_batch("table", {"value": [b"x"]}).result(30)
        assert admin.list_topics() == ["sent", "table"]
        for name in ("__mine", "__consumer_offset", "not a name"):
            with pytest.raises(UnknownTopicOrPartitionError):
                producer.send(name, b"x")
        with pytest.raises(SchemaMismatchError):  # nothing says which columns a typed topic would have
            producer.send_batch("typed", pa.table({"id": [1]}))
        assert admin.list_topics() == ["sent", "table", "typed"]


def test_it_can_be_turned_off(start: Start) -> None:
    address = start("auto.create.topics.enable = false")
    with Admin(address) as admin, Producer(address) as producer:
        with pytest.raises(UnknownTopicOrPartitionError, match="sparklog topic create sent"):
            producer.send("sent", b"x")
        assert admin.list_topics() == []


def test_auto_creation_has_a_limit(start: Start) -> None:
    shared = cluster(start(""))
    for topics in (None, [f"t{i}" for i in range(AUTO_CREATED_MAX + 1)]):
        with pytest.raises(InvalidRequestError, match="create_missing needs 1 to 100"):
            shared.request(Api.METADATA, MetadataRequest(topics, create_missing=True), MetadataResponse)
    assert shared.metadata().topics == []
