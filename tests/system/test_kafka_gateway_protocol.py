"""The gateway's answers to unusual requests: each has an answer that ends the client's attempts, or lets it go on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.gateway.records.batch_v2 import iterate_batches
from sparklog.gateway.records.compression import GZIP, NAMES, ZSTD, compress
from sparklog.gateway.records.small import write_small
from sparklog.gateway.wire.errors import Kafka
from tests.support.kafka_wire import KafkaWire, batch_of, batch_of_values, fetched, produced


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A broker with a gateway."""
    with sparklog.start_local(tmp_path_factory.mktemp("protocol") / "data", kafka=True) as local:
        yield local


@pytest.fixture
def wire(kafka: LocalBroker) -> Iterator[KafkaWire]:
    with KafkaWire(kafka.kafka_bootstrap_servers) as connection:
        yield connection


@pytest.fixture
def native(kafka: LocalBroker) -> Iterator[sparklog.Admin]:
    with sparklog.Admin(kafka.bootstrap_servers) as admin:
        yield admin


def compressed(codec: int, count: int = 50) -> bytes:
    """A batch that is compressed with a codec of Kafka."""
    records = write_small(None, [b"value %d" % i for i in range(count)], [0] * count)
    return batch_of(compress(codec, [records]), count, codec=codec)


def codecs_of(result: dict[str, Any]) -> list[str]:
    """The codecs of the batches in a partition's result."""
    return [NAMES[head.codec] for head, _ in iterate_batches(memoryview(result["records"]))]


def test_a_changed_topic_takes_records_in_its_new_form_at_once(
    wire: KafkaWire, native: sparklog.Admin, topic: str
) -> None:
    native.create_topic(topic, schema="id BIGINT")
    assert produced(wire, topic, batch_of_values([b'{"id":1}']))["error_code"] == Kafka.NONE
    native.alter_schema(topic, add_columns="more BIGINT")
    assert produced(wire, topic, batch_of_values([b'{"id":2,"more":2}']))["error_code"] == Kafka.NONE
    assert produced(wire, topic, batch_of_values([b'{"id":3,"others":3}']))["error_code"] == Kafka.INVALID_RECORD
    native.delete_topic(topic)
    native.create_topic(topic, configs={"message.timestamp.type": "LogAppendTime"})
    codes = [produced(wire, topic, batch_of_values([b"4"]))["error_code"] for _ in range(2)]
    assert codes[0] in (Kafka.NONE, Kafka.NOT_LEADER_OR_FOLLOWER) and codes[1] == Kafka.NONE


def test_gzip_is_answered_as_gzip_or_as_the_topic_says(wire: KafkaWire, topic: str) -> None:
    wire.ask("Metadata", 4, {"topics": [{"name": topic}], "allow_auto_topic_creation": True})
    assert produced(wire, topic, compressed(GZIP))["error_code"] == Kafka.NONE
    assert codecs_of(fetched(wire, topic, 4)) == ["gzip"]
    config = {"name": "compression.type", "value": "uncompressed", "config_operation": 0}
    resource = {"resource_type": 2, "resource_name": topic, "configs": [config]}
    wire.ask("IncrementalAlterConfigs", 1, {"resources": [resource], "validate_only": False})
    assert codecs_of(fetched(wire, topic, 4)) == ["none"]


def test_versions_before_zstd_neither_send_nor_get_it(wire: KafkaWire, topic: str) -> None:
    wire.ask("Metadata", 4, {"topics": [{"name": topic}], "allow_auto_topic_creation": True})
    assert produced(wire, topic, compressed(ZSTD), 6)["error_code"] == Kafka.UNSUPPORTED_COMPRESSION_TYPE
    assert produced(wire, topic, compressed(ZSTD), 7)["error_code"] == Kafka.NONE
    assert fetched(wire, topic, 9)["error_code"] == Kafka.UNSUPPORTED_COMPRESSION_TYPE
    assert codecs_of(fetched(wire, topic, 10)) == ["zstd"]
