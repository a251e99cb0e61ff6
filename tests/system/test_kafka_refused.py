"""Records of Kafka's clients that do not fit a topic with kafka.refused.records=topic: the others of their batch are
stored once, and these wait in the refused topic."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.client.net.cluster import cluster
from sparklog.client.refused import RefusedRecords, Values
from sparklog.kafka.records.errors import RECORDS_NAMED_MAX
from sparklog.kafka.wire.errors import Kafka
from tests.support.kafka_batches import kafka_batch
from tests.support.kafka_wire import KafkaWire, batch_of_values, produced
from tests.support.waiting import CLUSTER_PATIENCE_S, PATIENCE_S, until

TO_TOPIC = {"kafka.refused.records": "topic"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with sparklog.start_local(tmp_path_factory.mktemp("refused") / "data", kafka=True) as local:
        yield local


@pytest.fixture(scope="module")
def admin(broker: LocalBroker) -> Iterator[sparklog.Admin]:
    with sparklog.Admin(broker.bootstrap_servers) as own:
        yield own


def send(
    addresses: str, topic: str, *batches: Sequence[tuple[bytes | None, bytes]], **settings: Any
) -> list[tuple[int, int]]:
    """Send each list of keys and values as a batch for each partition. Returns the places that the client is told."""
    places: list[tuple[int, int]] = []
    producer = Producer(
        {
            "bootstrap.servers": addresses,
            "linger.ms": 2_000,
            "partitioner": "murmur2_random",
            "log_level": 0,
            **settings,
        }
    )

    def note(error: Any, message: Any) -> None:
        assert error is None, error
        places.append((message.partition(), message.offset()))

    for batch in batches:
        for key, value in batch:
            producer.produce(topic, value, key, on_delivery=note)
        assert producer.flush(CLUSTER_PATIENCE_S) == 0
    return places


def rows_of(address: str, topic: str, *columns: str) -> list[Any]:
    rows = sparklog.read_table(address, topic).to_pylist()
    return [row[columns[0]] if len(columns) == 1 else tuple(row[name] for name in columns) for row in rows]


def order(i: int, **more: Any) -> tuple[bytes, bytes]:
    return b'{"id":%d}' % i, json.dumps({"id": i, **more}).encode()


def test_the_others_of_a_batch_are_stored_and_refused_records_can_be_retried(
    broker: LocalBroker, admin: sparklog.Admin
) -> None:
    address = broker.bootstrap_servers
    admin.create_topic("orders", 2, "id BIGINT, amount DOUBLE", key_columns=["id"], configs=TO_TOPIC)
    mixed = [order(i, amount=1.5) if i % 4 else order(i, note="new") for i in range(20)]
    places = send(
        broker.kafka_bootstrap_servers,
        "orders",
        mixed,
        [(b'{"id":1}', b"no JSON")] * 3,
        [order(i, amount=2.0) for i in range(20, 30)],
        **{"enable.idempotence": True},
    )
    stored = rows_of(address, "orders", "id")
    assert sorted(stored) == [*(i for i in range(20) if i % 4), *range(20, 30)]
    refused = rows_of(address, "orders.refused", "partition", "offset", "value", "client_id")
    assert len(refused) == 8 and {one[3] for one in refused} == {"rdkafka"}
    kafka = Consumer(
        {"bootstrap.servers": broker.kafka_bootstrap_servers, "group.id": "g", "auto.offset.reset": "earliest"}
    )
    kafka.subscribe(["orders"])
    taken: list[Any] = []

    def all_taken() -> bool:
        taken.extend((m.partition(), m.offset()) for m in kafka.consume(50, 0.5) if m.error() is None)
        return len(taken) == len(stored)

    until(all_taken, "all rows")
    kafka.close()
    assert sorted(taken + [one[:2] for one in refused]) == sorted(places), "each offset has a row or a refused record"

    records = RefusedRecords(cluster(address), admin, "orders")
    assert records.count() == 8 and "note" in records.find(*refused[0][:2])["reason"]
    admin.alter_schema("orders", add_columns="note STRING")
    result = RefusedRecords(cluster(address), admin, "orders").retry(address, None)
    assert (result.stored, result.refused) == (5, 3)
    retried = [row for row in sparklog.read_table(address, "orders").to_pylist() if row["note"]]
    assert sorted(row["id"] for row in retried) == [0, 4, 8, 12, 16]


def test_an_aborted_transaction_and_a_client_without_answers_keep_refused_records(
    broker: LocalBroker, admin: sparklog.Admin
) -> None:
    address, addresses = broker.bootstrap_servers, broker.kafka_bootstrap_servers
    admin.create_topic("rides", 1, "id BIGINT", configs=TO_TOPIC)
    producer = Producer({"bootstrap.servers": addresses, "transactional.id": "t", "linger.ms": 2_000})
    producer.init_transactions(PATIENCE_S)
    for values, commits in (((b'{"id":1}', b"bad 1"), False), ((b"bad 2",), True), ((b"bad 3", b'{"id":2}'), True)):
        producer.begin_transaction()
        for value in values:
            producer.produce("rides", value)
        assert producer.flush(PATIENCE_S) == 0
        end = producer.commit_transaction if commits else producer.abort_transaction
        end(PATIENCE_S)
    send(addresses, "rides", [(None, b"bad 4"), (None, b'{"id":3}')], acks=0)
    until(lambda: 3 in rows_of(address, "rides", "id"), "the row of the client without answers")
    assert rows_of(address, "rides", "id") == [2, 3]
    until(lambda: len(rows_of(address, "rides.refused", "value")) == 4, "all refused records")
    assert rows_of(address, "rides.refused", "value") == [b"bad 1", b"bad 2", b"bad 3", b"bad 4"]


def test_records_with_schemas_are_refused_one_by_one(broker: LocalBroker, admin: sparklog.Admin) -> None:
    address, registry = broker.bootstrap_servers, broker.schema_registry_url
    admin.create_topic("trips", 1, "n INT", configs={"kafka.value.format": "avro", **TO_TOPIC})
    schema = json.dumps({"type": "record", "name": "S", "fields": [{"name": "n", "type": "int"}]})
    with SchemaRegistryClient({"url": registry}) as client:
        serialize = AvroSerializer(client, schema)
        data = serialize({"n": 70_000}, SerializationContext("trips", MessageField.VALUE))
    assert isinstance(data, bytes)
    batch = [data[:-1], data, b"", b"\0\0\0\xff\xff" + data[5:], data, data + b"\0"]
    send(broker.kafka_bootstrap_servers, "trips", [(None, value) for value in batch])
    assert rows_of(address, "trips", "n") == [70_000, 70_000]
    refused = rows_of(address, "trips.refused", "value", "offset")
    assert refused == [(value, 2 + i) for i, value in enumerate(one for one in batch if one != data)]
    result = RefusedRecords(cluster(address), admin, "trips").check(Values(registry=registry))
    assert (result.stored, result.refused) == (0, 4)


def test_a_topic_that_cannot_have_a_refused_topic_refuses_the_batch(broker: LocalBroker, admin: sparklog.Admin) -> None:
    admin.create_topic("taken", 1, "id BIGINT", configs=TO_TOPIC)
    admin.create_topic("taken.refused", 1, "other STRING")
    errors: list[Any] = []
    producer = Producer({"bootstrap.servers": broker.kafka_bootstrap_servers, "linger.ms": 500})
    for value in (b'{"id":1}', b"bad"):
        producer.produce("taken", value, on_delivery=lambda error, _: errors.append(error and error.name()))
    assert producer.flush(PATIENCE_S) == 0 and errors == ["INVALID_RECORD"] * 2
    assert rows_of(broker.bootstrap_servers, "taken", "id") == []
    with KafkaWire(broker.kafka_bootstrap_servers) as wire:
        result = produced(wire, "taken", batch_of_values([b"bad"] * (RECORDS_NAMED_MAX + 500)))
    assert "(1500 records do not fit); they cannot go to 'taken.refused'" in result["error_message"]


def test_a_topic_without_a_key_schema_has_refused_records(broker: LocalBroker, admin: sparklog.Admin) -> None:
    formats = {"kafka.value.format": "json", "kafka.key.format": "avro"}
    admin.create_topic("keyless", 1, "id BIGINT, n INT", key_columns=["id"], configs={**formats, **TO_TOPIC})
    registry = broker.schema_registry_url
    assert registry is not None
    send(broker.kafka_bootstrap_servers, "keyless", [(b"\0\0\0\0\1\2", b'{"n":1}'), (b"raw", b'{"n":2}')])
    refused = rows_of(broker.bootstrap_servers, "keyless.refused", "offset", "value", "reason")
    assert [one[:2] for one in refused] == [(0, b'{"n":1}'), (1, b'{"n":2}')]
    assert "has no key schema yet: register one for the subject 'keyless-key'" in refused[0][2]
    with SchemaRegistryClient({"url": registry}) as client:
        schema_id = client.register_schema("keyless-key", Schema('"long"', "AVRO"))
    key = b"\0" + schema_id.to_bytes(4, "big") + b"\x0a"
    send(broker.kafka_bootstrap_servers, "keyless", [(key, b'{"n":3}')])
    assert rows_of(broker.bootstrap_servers, "keyless", "id", "n") == [(5, 3)]


@pytest.mark.nightly
def test_refused_records_go_to_the_leaders_of_their_partitions(tmp_path: Any) -> None:
    with sparklog.start_local(tmp_path / "cluster", brokers=2, kafka=True) as local:
        with sparklog.Admin(local.bootstrap_servers) as admin:
            admin.create_topic("events", 8, "id BIGINT", key_columns=["id"], configs=TO_TOPIC)
            admin.create_topic("events.refused", 1, sparklog.client.refused.REFUSED_SCHEMA)
            batch = [order(i) if i % 2 else order(i, more=1) for i in range(200)]
            send(local.kafka_bootstrap_servers, "events", batch, **{"enable.idempotence": True})
        assert sorted(rows_of(local.bootstrap_servers, "events", "id")) == list(range(1, 200, 2))
        assert len(rows_of(local.bootstrap_servers, "events.refused", "offset")) == 100


def test_a_batch_that_is_sent_again_has_each_refused_record_once_in_a_retry(
    broker: LocalBroker, admin: sparklog.Admin
) -> None:
    address = broker.bootstrap_servers
    admin.create_topic("repeats", 1, "id BIGINT", configs=TO_TOPIC)
    values = [b'{"id":1}', b'{"id":2,"n":1}', b"bad", b'{"id":2,"n":1}']
    with KafkaWire(broker.kafka_bootstrap_servers) as wire:
        identity = {"transactional_id": None, "transaction_timeout_ms": 1, "producer_id": -1, "producer_epoch": -1}
        producer_id = wire.ask("InitProducerId", 4, identity)["producer_id"]
        batch = kafka_batch(range(4), epoch=-1, producer_id=producer_id, base_sequence=0, values=values)
        results = [produced(wire, "repeats", batch) for _ in range(3)]
    assert [(one["error_code"], one["base_offset"]) for one in results] == [(Kafka.NONE, 0)] * 3
    assert rows_of(address, "repeats.refused", "offset") == [1, 2, 3] * 3
    records = RefusedRecords(cluster(address), admin, "repeats")
    assert records.count() == 3 and sum(rows.num_rows for rows in records.waiting()) == 3
    admin.alter_schema("repeats", add_columns="n BIGINT")
    for expected in ((2, 1), (0, 1)):
        result = RefusedRecords(cluster(address), admin, "repeats").retry(address, None)
        assert (result.stored, result.refused) == expected
    assert rows_of(address, "repeats", "id", "n") == [(1, None), (2, 1), (2, 1)]


def test_the_size_of_a_batch_with_refused_records_is_limited(broker: LocalBroker, admin: sparklog.Admin) -> None:
    admin.create_topic("small", 1, "id BIGINT", configs={"max.message.bytes": 2_000, **TO_TOPIC})
    with KafkaWire(broker.kafka_bootstrap_servers) as wire:
        codes = [produced(wire, "small", batch_of_values([b"x" * size]))["error_code"] for size in (1_000, 3_000)]
    assert codes == [Kafka.NONE, Kafka.MESSAGE_TOO_LARGE]
    assert [len(value) for value in rows_of(broker.bootstrap_servers, "small.refused", "value")] == [1_000]
