"""A topic that is deleted and created again under Kafka's consumers: leader epochs tell them (KIP-320)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.kafka.wire.errors import Kafka
from tests.support.kafka_wire import KafkaWire, fetched
from tests.support.waiting import until


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with sparklog.start_local(tmp_path_factory.mktemp("recreated") / "data", kafka=True) as local:
        yield local


def recreate(kafka: LocalBroker, topic: str, *, count: int) -> None:
    """Delete the topic if it exists, create it, and write `count` records."""
    with sparklog.Admin(kafka.bootstrap_servers) as admin:
        if topic in admin.list_topics():
            admin.delete_topic(topic)
        admin.create_topic(topic)
    with sparklog.Producer(kafka.bootstrap_servers) as producer:
        for i in range(count):
            producer.send(topic, value=b"%d" % i)


def test_a_consumer_reads_the_new_topic_from_its_beginning(kafka: LocalBroker) -> None:
    recreate(kafka, "read", count=100)
    settings = {"bootstrap.servers": kafka.kafka_bootstrap_servers, "group.id": "g", "log_level": 0}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe(["read"])
    values: list[bytes | None] = []

    def has_read(count: int) -> bool:
        values.extend(m.value() for m in consumer.consume(300, 0.2) if m.error() is None)
        return len(values) >= count

    until(lambda: has_read(100), "the records of the first topic")
    consumer.commit(asynchronous=False)
    recreate(kafka, "read", count=200)
    until(lambda: has_read(300), "the records of the second topic")
    consumer.close()
    assert values[100:] == [b"%d" % i for i in range(200)]


def test_an_offset_of_an_earlier_topic_is_out_of_range_without_leader_epochs(kafka: LocalBroker) -> None:
    """Version 4 of FETCH, as aiokafka sends it, names no epoch."""
    recreate(kafka, "old", count=5)
    with KafkaWire(kafka.kafka_bootstrap_servers) as wire:
        assert fetched(wire, "old", 4)["error_code"] == Kafka.NONE
        assert fetched(wire, "old", 4, offset=5)["error_code"] == Kafka.NONE
        recreate(kafka, "old", count=9)
        answer = fetched(wire, "old", 4, offset=5)
        assert answer["error_code"] == Kafka.OFFSET_OUT_OF_RANGE
        assert not answer["records"]
        assert fetched(wire, "old", 4)["error_code"] == Kafka.NONE
        assert fetched(wire, "old", 4, offset=5)["error_code"] == Kafka.NONE, "a position in the new topic"


def test_positions_and_commits_of_the_earlier_topic_are_refused(kafka: LocalBroker) -> None:
    recreate(kafka, "fenced", count=5)
    with KafkaWire(kafka.kafka_bootstrap_servers) as wire:
        before = leader_epoch_of(wire)
        recreate(kafka, "fenced", count=9)
        now = leader_epoch_of(wire)
        assert now > before
        assert fetch_error(wire, before) == Kafka.FENCED_LEADER_EPOCH
        assert fetch_error(wire, now) == Kafka.NONE
        partition = {"partition": 0, "current_leader_epoch": now, "leader_epoch": before}
        body = {"replica_id": -1, "topics": [{"topic": "fenced", "partitions": [partition]}]}
        (answer,) = wire.ask("OffsetForLeaderEpoch", 3, body)["topics"][0]["partitions"]
        assert (answer["error_code"], answer["end_offset"]) == (Kafka.NONE, 0)
        assert [commit_error(wire, epoch) for epoch in (before, now, -1)] == [
            Kafka.FENCED_LEADER_EPOCH, Kafka.NONE, Kafka.NONE
        ]  # fmt: skip


def test_offsets_of_the_earlier_topic_make_a_transaction_abort(kafka: LocalBroker) -> None:
    recreate(kafka, "fenced", count=5)
    with KafkaWire(kafka.kafka_bootstrap_servers) as wire:
        before = leader_epoch_of(wire)
        recreate(kafka, "fenced", count=9)
        identity = {"transactional_id": "t", "transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1}
        answer = wire.ask_coordinator("InitProducerId", 4, identity)
        assert answer["error_code"] == Kafka.NONE
        producer = {name: answer[name] for name in ("producer_id", "producer_epoch")}
        offset = {"partition_index": 0, "committed_offset": 5, "committed_metadata": ""}
        for version, epoch, code in (
            (5, before, Kafka.TRANSACTION_ABORTABLE),
            (3, before, Kafka.ILLEGAL_GENERATION),
            (3, leader_epoch_of(wire), Kafka.NONE),
        ):
            topics = [{"name": "fenced", "partitions": [{**offset, "committed_leader_epoch": epoch}]}]
            body = {
                "transactional_id": "t", "group_id": "txn", **producer, "generation_id": -1, "member_id": "",
                "group_instance_id": None, "topics": topics,
            }  # fmt: skip
            (result,) = wire.ask_coordinator("TxnOffsetCommit", version, body)["topics"][0]["partitions"]
            assert result["error_code"] == code


def leader_epoch_of(wire: KafkaWire) -> int:
    body = {
        "topics": [{"name": "fenced"}], "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": False, "include_topic_authorized_operations": False,
    }  # fmt: skip
    (topic,) = wire.ask("Metadata", 9, body)["topics"]
    return int(topic["partitions"][0]["leader_epoch"])


def fetch_error(wire: KafkaWire, leader_epoch: int) -> int:
    partition = {
        "partition": 0, "current_leader_epoch": leader_epoch, "fetch_offset": 0, "partition_max_bytes": 1_000
    }  # fmt: skip
    body = {
        "max_wait_ms": 0, "min_bytes": 0, "topics": [{"topic": "fenced", "partitions": [partition]}],
        "forgotten_topics_data": [],
    }  # fmt: skip
    return int(wire.ask("Fetch", 12, body)["responses"][0]["partitions"][0]["error_code"])


def commit_error(wire: KafkaWire, leader_epoch: int) -> int:
    offset = {
        "partition_index": 0, "committed_offset": 5, "committed_leader_epoch": leader_epoch, "committed_metadata": ""
    }  # fmt: skip
    body = {
        "group_id": "late", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
        "topics": [{"name": "fenced", "partitions": [offset]}],
    }  # fmt: skip
    return int(wire.ask_coordinator("OffsetCommit", 8, body)["topics"][0]["partitions"][0]["error_code"])
