"""The ends of transactions at the gateway, request by request: which END_TXN is accepted, and by which versions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.gateway.records.small import write_small
from sparklog.kafka.records.batch_v2 import TRANSACTIONAL, write_batch
from sparklog.kafka.wire.errors import Kafka
from tests.support.cases import for_each
from tests.support.kafka_wire import KafkaWire
from tests.support.waiting import PATIENCE_S, until

COMMIT, ABORT = True, False
V1, V2 = 3, 5
"""Versions of EndTxn whose producers keep and raise their epochs (transaction.version 1 and 2)."""
OK, REFUSED = Kafka.NONE, Kafka.INVALID_TXN_STATE


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    with sparklog.start_local(data_dir=tmp_path_factory.mktemp("ends") / "data", kafka=True) as local:
        with sparklog.Admin(local.bootstrap_servers) as admin:
            admin.create_topic("ends")
        yield local


class RawProducer:
    """A transactional producer that sends single requests."""

    def __init__(self, wire: KafkaWire, name: str, version: int) -> None:
        self._wire = wire
        self._name = name
        self._version = version
        self._sequence = 0
        body = {"transactional_id": name, "transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1}
        answer = wire.ask_coordinator("InitProducerId", 4, body)
        assert answer["error_code"] == OK
        self.identity = answer["producer_id"], answer["producer_epoch"]

    def begin(self, topic: str) -> int:
        """Announce partition 0 of a topic, as producers of version 1 do."""
        body = {
            "v3_and_below_transactional_id": self._name,
            "v3_and_below_producer_id": self.identity[0],
            "v3_and_below_producer_epoch": self.identity[1],
            "v3_and_below_topics": [{"name": topic, "partitions": [0]}],
        }
        (found,) = self._wire.ask_coordinator("AddPartitionsToTxn", 3, body)["results_by_topic_v3_and_below"]
        return int(found["results_by_partition"][0]["partition_error_code"])

    def write(self, topic: str) -> None:
        batch = write_batch(
            [write_small(None, [b"x"], [0])], base_offset=0, leader_epoch=-1, attributes=TRANSACTIONAL,
            last_offset_delta=0, base_timestamp_ms=1, max_timestamp_ms=1, producer_id=self.identity[0],
            producer_epoch=self.identity[1], base_sequence=self._sequence, record_count=1,
        )  # fmt: skip
        self._sequence += 1
        body = {
            "transactional_id": self._name, "acks": -1, "timeout_ms": 10_000,
            "topic_data": [{"name": topic, "partition_data": [{"index": 0, "records": batch}]}],
        }  # fmt: skip
        answer = self._wire.ask("Produce", 12 if self._version == V2 else 9, body)
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == OK, answer

    def end(self, result: bool, *, identity: tuple[int, int] | None = None) -> tuple[int, tuple[int, int]]:
        """Return the error code, and the identity in the answer."""
        producer_id, epoch = identity or self.identity
        body = {
            "transactional_id": self._name, "producer_id": producer_id, "producer_epoch": epoch, "committed": result
        }  # fmt: skip
        answer = self._wire.ask("EndTxn", self._version, body)
        after = (answer["producer_id"], answer["producer_epoch"]) if self._version == V2 else self.identity
        return answer["error_code"], after


@for_each(
    "version, first, second, is_repetition, answer",
    [
        (V1, None, COMMIT, False, REFUSED),
        (V1, None, ABORT, False, REFUSED),
        (V1, COMMIT, COMMIT, False, OK),
        (V1, COMMIT, ABORT, False, REFUSED),
        (V1, ABORT, COMMIT, False, REFUSED),
        (V1, ABORT, ABORT, False, OK),
        (V2, None, COMMIT, False, REFUSED),
        (V2, None, ABORT, False, OK),
        (V2, COMMIT, COMMIT, True, OK),
        (V2, COMMIT, ABORT, True, REFUSED),
        (V2, ABORT, COMMIT, True, Kafka.TRANSACTION_ABORTABLE),
        (V2, ABORT, ABORT, True, OK),
        (V2, COMMIT, COMMIT, False, REFUSED),
        (V2, COMMIT, ABORT, False, OK),
        (V2, ABORT, COMMIT, False, REFUSED),
        (V2, ABORT, ABORT, False, OK),
    ],
)
def test_an_end_without_its_transaction_is_refused(
    kafka: LocalBroker, version: int, first: bool | None, second: bool, is_repetition: bool, answer: int
) -> None:
    with KafkaWire(kafka.kafka_bootstrap_servers) as wire:
        name = f"ends-{version}-{first}-{second}-{is_repetition}"
        producer = RawProducer(wire, name, version)
        before = producer.identity
        if first is not None:
            if version == V1:
                assert producer.begin("ends") == OK
            producer.write("ends")
            code, producer.identity = producer.end(first)
            assert code == OK
        assert producer.end(second, identity=before if is_repetition else None)[0] == answer


def test_an_announced_transaction_without_records_can_be_ended(kafka: LocalBroker) -> None:
    with KafkaWire(kafka.kafka_bootstrap_servers) as wire:
        producer = RawProducer(wire, "announced", V1)
        for result in (ABORT, COMMIT, ABORT):
            assert producer.begin("ends") == OK
            assert producer.end(result)[0] == OK
            assert producer.end(not result)[0] == REFUSED
        assert producer.begin("no-such-topic") == Kafka.UNKNOWN_TOPIC_OR_PARTITION
        assert producer.end(COMMIT)[0] == REFUSED, "an announcement with an error opens nothing"


def test_offsets_that_are_announced_open_a_transaction(kafka: LocalBroker) -> None:
    with KafkaWire(kafka.kafka_bootstrap_servers) as wire:
        producer = RawProducer(wire, "offsets", V1)
        producer_id, epoch = producer.identity
        body = {"transactional_id": "offsets", "producer_id": producer_id, "producer_epoch": epoch, "group_id": "g"}
        assert wire.ask_coordinator("AddOffsetsToTxn", 3, body)["error_code"] == OK
        assert producer.end(ABORT)[0] == OK
        assert wire.ask_coordinator("AddOffsetsToTxn", 3, body | {"producer_epoch": epoch + 9})["error_code"] != OK


def test_offsets_of_a_transaction_need_a_member_only_if_they_name_one(kafka: LocalBroker) -> None:
    settings = {"bootstrap.servers": kafka.kafka_bootstrap_servers, "log_level": 0}
    consumer = Consumer({**settings, "group.id": "joined"})
    consumer.subscribe(["ends"])
    until(lambda: consumer.poll(0.1) is None and bool(consumer.assignment()), "a member")
    topics = [{
        "name": "ends",
        "partitions": [{"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}],
    }]  # fmt: skip
    with KafkaWire(kafka.kafka_bootstrap_servers) as wire:
        producer_id, epoch = RawProducer(wire, "joined", V1).identity
        identity = {
            "transactional_id": "joined",
            "producer_id": producer_id,
            "producer_epoch": epoch,
            "group_id": "joined",
        }
        assert wire.ask_coordinator("AddOffsetsToTxn", 3, identity)["error_code"] == OK
        for member_id, generation, code in (("", -1, OK), ("other", 1, Kafka.UNKNOWN_MEMBER_ID)):
            member = {"member_id": member_id, "generation_id": generation, "group_instance_id": None, "topics": topics}
            (answer,) = wire.ask_coordinator("TxnOffsetCommit", 3, identity | member)["topics"][0]["partitions"]
            assert answer["error_code"] == code
    consumer.close()


def test_offsets_of_a_transaction_that_an_operator_aborts_do_not_stop_their_producer(kafka: LocalBroker) -> None:
    """librdkafka requests a new epoch after an error of AddPartitionsToTxn, Produce and EndTxn only, and a transaction
    of offsets needs only the last one."""
    settings = {"bootstrap.servers": kafka.kafka_bootstrap_servers, "log_level": 0}
    consumer = Consumer({**settings, "group.id": "pipeline", "auto.offset.reset": "earliest"})
    consumer.subscribe(["ends"])
    source = Producer(settings)
    source.produce("ends", b"x")
    source.flush(PATIENCE_S)
    until(lambda: consumer.poll(0.1) is not None, "a record")
    producer = Producer({**settings, "transactional.id": "pipeline"})
    producer.init_transactions(PATIENCE_S)

    def send_offset(offset: int) -> None:
        offsets = [TopicPartition("ends", 0, offset)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), PATIENCE_S)

    def begin_and_send(offset: int) -> None:
        producer.begin_transaction()
        send_offset(offset)

    with sparklog.Admin(kafka.bootstrap_servers) as admin:
        for next_call in (None, lambda: send_offset(7), lambda: producer.commit_transaction(PATIENCE_S)):
            begin_and_send(6)
            admin.abort_transaction("pipeline")
            if next_call is not None:
                with pytest.raises(KafkaException) as raised:
                    next_call()
                assert raised.value.args[0].txn_requires_abort()
            producer.abort_transaction(PATIENCE_S)
            begin_and_send(1)
            producer.commit_transaction(PATIENCE_S)
            assert consumer.committed([TopicPartition("ends", 0)], PATIENCE_S)[0].offset == 1
    consumer.close()
