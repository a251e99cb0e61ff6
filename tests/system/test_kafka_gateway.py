"""The gateway with Kafka's own clients: librdkafka, kafka-python and aiokafka."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewPartitions, NewTopic
from kafka import KafkaConsumer, KafkaProducer

import sparklog
from sparklog.client.local import LocalBroker
from tests.support.kafka_wire import KafkaWire
from tests.support.waiting import PATIENCE_S, until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A broker with a gateway."""
    directory = tmp_path_factory.mktemp("gateway") / "data"
    with sparklog.start_local(data_dir=directory, kafka=True) as local:
        yield local


@pytest.fixture
def settings(kafka: LocalBroker) -> dict[str, Any]:
    """Settings that each client of librdkafka needs."""
    return {"bootstrap.servers": kafka.kafka_bootstrap_servers}


@pytest.fixture
def native(kafka: LocalBroker) -> Iterator[sparklog.Admin]:
    with sparklog.Admin(kafka.bootstrap_servers) as admin:
        yield admin


def sent(producer: Producer, topic: str, records: list[dict[str, Any]]) -> list[Message]:
    """Produces, and returns what was acknowledged."""
    found: list[Any] = []

    def note(error: KafkaError | None, message: Message) -> None:
        found.append(error or message)

    for record in records:
        producer.produce(topic, on_delivery=note, **record)
    assert producer.flush(PATIENCE_S) == 0
    assert [e for e in found if isinstance(e, KafkaError)] == []
    return found


def read(consumer: Consumer, count: int) -> list[Message]:
    """The next `count` messages."""
    found: list[Message] = []

    def enough() -> bool:
        for message in consumer.consume(count, 0.2):
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.retriable(), error
        return len(found) >= count

    until(enough, f"{count} messages")
    return found


def consumer_of(settings: dict[str, Any], group: str, topic: str, **more: Any) -> Consumer:
    found = Consumer(
        {**settings, "group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False, **more}
    )
    found.subscribe([topic])
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_records_come_back_as_they_were_sent(settings: dict[str, Any], topic: str, codec: str) -> None:
    records = [
        {
            "key": None if i % 3 == 0 else b"k%d" % i,
            "value": None if i % 5 == 0 else b"v" * (i % 50),
            "headers": [("h", b"x" * i), ("n", None)] if i % 7 == 0 else [],
            "timestamp": 1_700_000_000_000 + i,
        }
        for i in range(400)
    ]
    producer = Producer({**settings, "compression.type": codec, "enable.idempotence": True, "linger.ms": 20})
    acknowledged = sent(producer, topic, records)
    assert {m.offset() for m in acknowledged} == set(range(400))
    consumer = consumer_of(settings, topic, topic)
    found = read(consumer, 400)
    assert [m.offset() for m in found] == list(range(400))
    for message, record in zip(found, records, strict=True):
        assert (message.key(), message.value()) == (record["key"], record["value"])
        assert (message.headers() or []) == record["headers"]
        assert message.timestamp() == (1, record["timestamp"])
    consumer.close()


def test_sparklogs_clients_and_kafkas_share_topics_groups_and_offsets(
    kafka: LocalBroker, settings: dict[str, Any], topic: str
) -> None:
    sent(Producer(settings), topic, [{"value": b"a%d" % i} for i in range(10)])
    with sparklog.Consumer(kafka.bootstrap_servers, group_id=topic, enable_auto_commit=False) as own:
        own.subscribe([topic])
        found: list[Any] = []

        def enough() -> bool:
            found.extend(own.poll(200))
            return len(found) >= 10

        until(enough, "ten records")
        assert [r.value for r in found] == [b"a%d" % i for i in range(10)]
        own.commit({sparklog.TopicPartition(topic, 0): 4})
    consumer = consumer_of(settings, topic, topic)
    assert [m.offset() for m in read(consumer, 6)] == [4, 5, 6, 7, 8, 9]
    consumer.commit(offsets=[TopicPartition(topic, 0, 7, "m")], asynchronous=False)
    assert consumer.committed([TopicPartition(topic, 0)], PATIENCE_S)[0].offset == 7
    consumer.close()
    with sparklog.Consumer(kafka.bootstrap_servers, group_id=topic, enable_auto_commit=False) as own:
        partition = sparklog.TopicPartition(topic, 0)
        committed = own.committed(partition)[partition]
        assert committed is not None and committed.offset == 7


@pytest.mark.nightly
def test_the_example_of_the_page_runs(tmp_path: Any) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "kafka-clients.md").read_text(encoding="utf-8")
    code = page.split("<!-- test: kafka -->\n```python\n")[1].split("```")[0]
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["b'k' b'hello'", "[b'hello']"]


def test_members_of_a_group_share_the_partitions(settings: dict[str, Any], topic: str) -> None:
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(topic, 4, 1)])[topic].result(PATIENCE_S)
    members = [consumer_of(settings, topic, topic, **{"session.timeout.ms": 6000}) for _ in range(2)]

    def shared() -> bool:
        for member in members:
            member.poll(0.1)
        return sorted(len(m.assignment()) for m in members) == [2, 2]

    until(shared, "two partitions each")
    described = admin.describe_consumer_groups([topic])[topic].result(PATIENCE_S)
    assert sorted(len(m.assignment.topic_partitions) for m in described.members) == [2, 2]
    assert topic in {g.group_id for g in admin.list_consumer_groups().result(PATIENCE_S).valid}
    members.pop().close()

    def taken_over() -> bool:
        members[0].poll(0.1)
        return len(members[0].assignment()) == 4

    until(taken_over, "all partitions after the other has left")
    with pytest.raises(KafkaException, match="NON_EMPTY_GROUP"):
        admin.delete_consumer_groups([topic])[topic].result(PATIENCE_S)
    members[0].commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    members[0].close()
    admin.delete_consumer_groups([topic])[topic].result(PATIENCE_S)


def test_transactions_are_seen_whole_or_not_at_all(settings: dict[str, Any], topic: str) -> None:
    sent(Producer(settings), topic, [{"value": b"before"}])
    producer = Producer({**settings, "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    for number, commits in enumerate((True, False, True, True, False)):
        producer.begin_transaction()
        for i in range(3):
            producer.produce(topic, b"%d-%d" % (number, i))
            producer.flush()
        (producer.commit_transaction if commits else producer.abort_transaction)(PATIENCE_S)
    sent(Producer(settings), topic, [{"value": b"after"}])
    committed = consumer_of(settings, topic + "c", topic, **{"isolation.level": "read_committed"})
    values = [m.value() for m in read(committed, 11)]
    assert values == [b"before", *(b"%d-%d" % (n, i) for n in (0, 2, 3) for i in range(3)), b"after"]
    uncommitted = consumer_of(settings, topic + "u", topic, **{"isolation.level": "read_uncommitted"})
    assert len(read(uncommitted, 17)) == 17
    for consumer in (committed, uncommitted):
        consumer.close()


def test_offsets_go_with_the_transaction(settings: dict[str, Any], topic: str) -> None:
    sent(Producer(settings), topic, [{"value": b"in%d" % i} for i in range(5)])
    consumer = consumer_of(settings, topic, topic)
    read(consumer, 5)
    producer = Producer({**settings, "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    for position, commits in ((3, False), (5, True)):
        producer.begin_transaction()
        producer.produce(topic + "-out", b"x")
        offsets = [TopicPartition(topic, 0, position)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), PATIENCE_S)
        (producer.commit_transaction if commits else producer.abort_transaction)(PATIENCE_S)
        committed = consumer.committed([TopicPartition(topic, 0)], PATIENCE_S)[0].offset
        assert committed == (5 if commits else -1001)
    consumer.close()


def test_a_second_producer_with_the_id_fences_the_first(settings: dict[str, Any], topic: str) -> None:
    group = consumer_of(settings, topic, topic)

    def commit(producer: Producer) -> None:
        producer.commit_transaction(PATIENCE_S)

    def produce(producer: Producer) -> None:
        producer.produce(topic, b"late")
        producer.flush(PATIENCE_S)
        producer.commit_transaction(PATIENCE_S)

    def commit_offsets(producer: Producer) -> None:
        offsets = [TopicPartition(topic, 0, 0)]
        producer.send_offsets_to_transaction(offsets, group.consumer_group_metadata(), PATIENCE_S)

    for late in (commit, produce, commit_offsets):
        identity = {"transactional.id": f"{topic}-{late.__name__}", "log_level": 0}
        first, second = (Producer({**settings, **identity}) for _ in range(2))
        first.init_transactions(PATIENCE_S)
        first.begin_transaction()
        first.produce(topic, b"first")
        first.flush()
        second.init_transactions(PATIENCE_S)
        with pytest.raises(KafkaException) as raised:
            late(first)
        assert raised.value.args[0].fatal(), late.__name__
        second.begin_transaction()
        second.produce(topic, late.__name__.encode())
        second.commit_transaction(PATIENCE_S)
    consumer = consumer_of(settings, topic + "-c", topic, **{"isolation.level": "read_committed"})
    assert [m.value() for m in read(consumer, 3)] == [b"commit", b"produce", b"commit_offsets"]
    for one in (group, consumer):
        one.close()


def test_typed_topics_speak_json(
    settings: dict[str, Any], native: sparklog.Admin, kafka: LocalBroker, topic: str
) -> None:
    schema = pa.schema(
        [("id", pa.int32()), ("name", pa.string()), ("price", pa.float64()), ("tags", pa.list_(pa.string()))]
    )
    native.create_topic(topic, schema=schema, key_columns=["id"])
    producer = Producer(settings)
    good = b'{"id":1,"name":"n\xc3\xa9","price":1.5,"tags":["a",null]}'
    sent(producer, topic, [{"value": good}, {"value": b'{"id":2}'}])
    rows = sparklog.read_table(kafka.bootstrap_servers, topic).select(["id", "name", "price", "tags"]).to_pylist()
    assert rows == [
        {"id": 1, "name": "né", "price": 1.5, "tags": ["a", None]},
        {"id": 2, "name": None, "price": None, "tags": None},
    ]
    consumer = consumer_of(settings, topic, topic)
    first, second = read(consumer, 2)
    assert first.value() == good and first.key() == b'{"id":1}'
    assert second.value() == b'{"id":2,"name":null,"price":null,"tags":null}'
    consumer.close()
    for bad, said in (
        (b'{"id":"x"}', "column 'id' is int32"),
        (b'{"id":1,"nothing":2}', "nothing"),
        (b'{"id":3000000000}', "column 'id' is int32"),
        (b"no json", "not readable as JSON"),
    ):
        outcome: list[Any] = []
        producer.produce(topic, bad, on_delivery=note(outcome))
        producer.flush(PATIENCE_S)
        assert outcome[0] is not None and outcome[0].code() == KafkaError.INVALID_RECORD, (bad, outcome)
        with KafkaRequest(settings) as raw:
            assert said in raw.produce_error(topic, bad)


def test_topics_and_their_settings_are_administered(settings: dict[str, Any], topic: str) -> None:
    admin = AdminClient(settings)
    admin.create_topics([NewTopic(topic, 2, 1, config={"retention.ms": "60000"})])[topic].result(PATIENCE_S)
    with pytest.raises(KafkaException, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(PATIENCE_S)
    with pytest.raises(KafkaException, match=r"no\.such\.setting"):
        bad = NewTopic(topic + "x", 1, 1, config={"no.such.setting": "1"})
        admin.create_topics([bad])[topic + "x"].result(PATIENCE_S)
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(PATIENCE_S)
    assert len(admin.list_topics(topic, PATIENCE_S).topics[topic].partitions) == 3
    with KafkaWire(settings["bootstrap.servers"]) as wire:
        answer = wire.ask("DescribeLogDirs", 4, {"topics": [{"topic": topic, "partitions": [0, 2, 9]}]})
        partitions = [p["partition_index"] for d in answer["results"] for t in d["topics"] for p in t["partitions"]]
        assert partitions == [0, 2], "empty ones are listed, too"
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
    configs = admin.describe_configs([resource])[resource].result(PATIENCE_S)
    assert configs["retention.ms"].value == "60000" and not configs["retention.ms"].is_default
    assert configs["cleanup.policy"].value == "delete" and configs["cleanup.policy"].is_default
    cluster = admin.describe_cluster().result(PATIENCE_S)
    assert [n.id for n in cluster.nodes] == [0]
    sent(Producer(settings), topic, [{"value": b"x", "partition": 0} for _ in range(10)])
    deleted = admin.delete_records([TopicPartition(topic, 0, 4)])
    assert next(iter(deleted.values())).result(PATIENCE_S).low_watermark == 4
    admin.delete_topics([topic])[topic].result(PATIENCE_S)
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC_OR_PART"):
        admin.delete_topics([topic])[topic].result(PATIENCE_S)


def test_settings_of_the_broker_are_changed_and_described(settings: dict[str, Any]) -> None:
    admin, name = AdminClient(settings), "slow.request.threshold.ms"

    def alter(broker: str, setting: str, value: str | None) -> None:
        kind = AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET
        entry = ConfigEntry(setting, value, incremental_operation=kind)
        resource = ConfigResource(ConfigResource.Type.BROKER, broker, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result(PATIENCE_S)

    def described(broker: str) -> Any:
        resource = ConfigResource(ConfigResource.Type.BROKER, broker)
        return admin.describe_configs([resource])[resource].result(PATIENCE_S)

    before = described("0")[name]
    alter("0", name, "4321")
    changed = described("0")
    assert (changed[name].value, changed[name].source, changed[name].is_read_only) == ("4321", 2, False)
    assert changed["broker.id"].value == "0" and changed["broker.id"].is_read_only
    with pytest.raises(KafkaException, match="restart the broker"):
        alter("0", "num.io.threads", "3")
    alter("0", name, None)
    assert (described("0")[name].value, described("0")[name].source) == (before.value, before.source)


def test_kafka_python_produces_and_consumes(kafka: LocalBroker, topic: str) -> None:
    producer = KafkaProducer(bootstrap_servers=kafka.kafka_bootstrap_servers, compression_type="gzip")
    futures = [producer.send(topic, b"v%d" % i, key=b"k", headers=[("h", b"x")]) for i in range(50)]
    assert [f.get(PATIENCE_S).offset for f in futures] == list(range(50))
    producer.close()
    consumer = KafkaConsumer(
        topic,
        bootstrap_servers=kafka.kafka_bootstrap_servers,
        group_id=topic,
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(PATIENCE_S * 1000),
    )
    found = [next(consumer) for _ in range(50)]
    assert [(m.key, m.value, m.headers) for m in found] == [(b"k", b"v%d" % i, [("h", b"x")]) for i in range(50)]
    consumer.close()


def test_aiokafka_produces_and_consumes(kafka: LocalBroker, topic: str) -> None:
    async def go() -> list[bytes]:
        producer = AIOKafkaProducer(bootstrap_servers=kafka.kafka_bootstrap_servers, enable_idempotence=True)
        await producer.start()
        for i in range(50):
            await producer.send_and_wait(topic, b"v%d" % i)
        await producer.stop()
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=kafka.kafka_bootstrap_servers, group_id=topic, auto_offset_reset="earliest"
        )
        await consumer.start()
        found = [(await consumer.getone()).value for _ in range(50)]
        await consumer.stop()
        return found

    assert asyncio.run(asyncio.wait_for(go(), PATIENCE_S)) == [b"v%d" % i for i in range(50)]


def test_a_transactional_producer_outlives_its_gateway(
    kafka: LocalBroker, settings: dict[str, Any], topic: str
) -> None:
    producer = Producer({**settings, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(PATIENCE_S)
    for number, (commits, is_killed) in enumerate(((True, True), (False, False), (True, True), (True, False))):
        producer.begin_transaction()
        for i in range(4):
            producer.produce(topic, b"%d-%d" % (number, i))
            producer.flush(PATIENCE_S)
            if i == 1 and is_killed:
                until(lambda: gateway_is_up(kafka), "the gateway")
                os.kill(gateway_pid(kafka), signal.SIGKILL)
        (producer.commit_transaction if commits else producer.abort_transaction)(PATIENCE_S)
    consumer = consumer_of(settings, topic, topic, **{"isolation.level": "read_committed"})
    assert [m.value() for m in read(consumer, 12)] == [b"%d-%d" % (n, i) for n in (0, 2, 3) for i in range(4)]
    consumer.close()


def test_a_transaction_that_an_operator_aborts_does_not_stop_its_producer(
    settings: dict[str, Any], native: sparklog.Admin, topic: str
) -> None:
    producer = Producer({**settings, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(PATIENCE_S)
    for value, is_aborted in ((b"first", False), (b"lost", True), (b"last", False)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(PATIENCE_S)
        if is_aborted:
            native.abort_transaction(topic)
            producer.produce(topic, b"the rest")
            with pytest.raises(KafkaException) as raised:
                producer.commit_transaction(PATIENCE_S)
            assert raised.value.args[0].txn_requires_abort()
            producer.abort_transaction(PATIENCE_S)
        else:
            producer.commit_transaction(PATIENCE_S)
    consumer = consumer_of(settings, topic, topic, **{"isolation.level": "read_committed"})
    assert [m.value() for m in read(consumer, 2)] == [b"first", b"last"]
    consumer.close()


def gateway_pid(kafka: LocalBroker) -> int:
    """The newest process that the broker has told of."""
    return int([line for line in kafka.log.splitlines() if "kafka-gateway started" in line][-1].split()[-1])


def note(outcomes: list[Any]) -> Callable[[Any, Any], None]:
    """A callback that keeps the outcome."""
    return lambda error, _: outcomes.append(error)


class KafkaRequest:
    """Requests by hand, for what no client shows or sends."""

    def __init__(self, settings: dict[str, Any]) -> None:
        host, _, port = settings["bootstrap.servers"].rpartition(":")
        self.sock = socket.create_connection((host, int(port)), PATIENCE_S)

    def __enter__(self) -> KafkaRequest:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, data: bytes) -> None:
        self.sock.sendall(struct.pack(">i", len(data)) + data)

    def receive(self) -> bytes:
        """An answer; empty: the connection has ended."""
        head = self._exactly(4)
        return self._exactly(struct.unpack(">i", head)[0]) if head else b""

    def _exactly(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            try:
                part = self.sock.recv(size - len(found))
            except ConnectionResetError:
                part = b""
            if not part:
                return b""
            found += part
        return found

    def produce_error(self, topic: str, value: bytes) -> str:
        """The text of the error for a record."""
        from sparklog.gateway.records.small import write_small

        return self.batch_error(topic, write_small(None, [value], [0]))

    def batch_error(self, topic: str, records: bytes, codec: int = 0, count: int = 1) -> str:
        """The text of the error for a batch."""
        from sparklog.kafka.records.batch_v2 import write_batch
        from sparklog.kafka.wire.codec import decoder, encoder
        from sparklog.kafka.wire.schema import REQUEST, RESPONSE

        batch = write_batch(
            [records], base_offset=0, leader_epoch=0, attributes=codec, last_offset_delta=count - 1,
            base_timestamp_ms=1, max_timestamp_ms=1, producer_id=-1, producer_epoch=-1, base_sequence=-1,
            record_count=count,
        )  # fmt: skip
        body = {
            "acks": -1,
            "timeout_ms": 1000,
            "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}],
        }
        self.send(struct.pack(">hhih", 0, 8, 1, -1) + b"".join(encoder(REQUEST, "Produce", 8)(body)))
        answer = decoder(RESPONSE, "Produce", 8)(memoryview(self.receive())[4:])
        return str(answer["responses"][0]["partition_responses"][0]["error_message"])


def test_unknown_versions_of_api_versions_are_answered(settings: dict[str, Any]) -> None:
    with KafkaRequest(settings) as raw:
        raw.send(struct.pack(">hhih", 18, 99, 7, -1))
        answer = raw.receive()
        assert answer[:6] == struct.pack(">ih", 7, 35)
        raw.send(struct.pack(">hhih", 18, 0, 8, -1))
        assert raw.receive()[:6] == struct.pack(">ih", 8, 0)


@pytest.mark.nightly
@pytest.mark.crash
def test_a_gateway_that_is_killed_repeatedly_loses_and_repeats_no_record(
    kafka: LocalBroker, settings: dict[str, Any], topic: str
) -> None:
    producer = Producer({**settings, "enable.idempotence": True, "log_level": 0, "message.timeout.ms": 240_000})
    outcomes: list[Any] = []
    for number in range(6_000):
        producer.produce(topic, b"%d" % number, on_delivery=note(outcomes))
        producer.poll(0)
        if number % 1_000 == 500:
            until(lambda: gateway_is_up(kafka), "the gateway")
            os.kill(gateway_pid(kafka), signal.SIGKILL)
    assert producer.flush(240) == 0
    assert [e for e in outcomes if e is not None] == []
    consumer = consumer_of(settings, topic, topic)
    assert [m.value() for m in read(consumer, 6_000)] == [b"%d" % number for number in range(6_000)]
    consumer.close()


def gateway_is_up(kafka: LocalBroker) -> bool:
    """True if the newest gateway runs."""
    if "kafka-gateway started" not in kafka.log:
        return False
    try:
        os.kill(gateway_pid(kafka), 0)
    except ProcessLookupError:
        return False
    return True
