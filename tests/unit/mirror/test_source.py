"""The client of a source: answers with impossible brokers, and topics that cannot exist here."""

from __future__ import annotations

import ssl
from typing import Any
from uuid import UUID

import pytest

from sparklog.client.admin.mirror_plan import plan_mirror
from sparklog.client.kafka.connection import KafkaConnection
from sparklog.client.kafka.source import KafkaSource
from sparklog.client.net.addresses import Endpoint
from sparklog.errors import (
    BrokerNotAvailableError,
    CoordinatorNotAvailableError,
    InvalidConfigError,
    TopicAuthorizationFailedError,
)
from sparklog.kafka.wire.errors import Kafka
from sparklog.mirror.definition import MirrorDefinition
from sparklog.mirror.rules import SourceBounds
from sparklog.security.client_security import client_security
from sparklog.types import TopicPartition
from tests.support.cases import for_each

BOOTSTRAP = Endpoint("old", 9092)
BROKER = {"node_id": 1, "host": "old", "port": 9092, "rack": None}
DEFINITION = MirrorDefinition("m", "kafka://old:9092", topics=".*")


class Connection:
    """A connection that gives prepared answers."""

    is_due = False

    def __init__(self, answers: dict[str, Any]) -> None:
        self.answers = answers

    def request(self, name: str, body: dict[str, Any], **limits: int) -> Any:
        return self.answers[name]

    def has(self, name: str, version: int = 0) -> bool:
        return True

    def close(self) -> None:
        pass


def source_with(**answers: Any) -> KafkaSource:
    connect: Any = lambda endpoint, security, timeout_ms: Connection(answers)  # noqa: E731
    return KafkaSource("old:9092", client_security(None), connect=connect)


def metadata(*topics: dict[str, Any], brokers: tuple[dict[str, Any], ...] = (BROKER,)) -> dict[str, Any]:
    return {"brokers": list(brokers), "topics": list(topics), "cluster_id": "c"}


def topic(name: str, partitions: int = 1) -> dict[str, Any]:
    parts = [{"partition_index": i, "leader_id": 1, "leader_epoch": 0} for i in range(partitions)]
    return {"error_code": 0, "name": name, "topic_id": UUID(int=5), "partitions": parts, "is_internal": False}


@for_each("host, port", [("old", 0), ("old", 65_536), ("", 9092), ("a\0b", 9092), ("a b", 9092), ("::x", 9092)])
def test_impossible_addresses_of_brokers_are_passed_over(host: str, port: int) -> None:
    source = source_with(
        Metadata=metadata(brokers=(BROKER, BROKER | {"node_id": 2, "host": host, "port": port})),
        FindCoordinator={"coordinators": [{"key": "g", "error_code": 0, "host": host, "port": port}]},
    )
    source.topics()
    assert (source.broker_of(1), source.broker_of(2)) == (BOOTSTRAP, None)
    with pytest.raises(CoordinatorNotAvailableError, match="impossible address"):
        source.group_offsets("g")


def test_an_address_of_ipv6_is_possible() -> None:
    source = source_with(Metadata=metadata(brokers=(BROKER | {"host": "fd00::1"},)))
    source.topics()
    assert str(source.broker_of(1)) == "[fd00::1]:9092"


def test_an_address_that_the_source_advertises_and_that_cannot_be_reached_is_named_so() -> None:
    """The broker at the address of the mirror's definition answers, and names another address."""

    def connect(endpoint: Endpoint, security: object, timeout_ms: int) -> Any:
        if endpoint != BOOTSTRAP:
            raise BrokerNotAvailableError(f"no connection to {endpoint}: name or service not known")
        return Connection({"Metadata": metadata(topic("t"), brokers=(BROKER | {"host": "inside"},))})

    source = KafkaSource("old:9092", client_security(None), connect=connect)
    tp = TopicPartition("t", 0)
    error = source.bounds(source.topics(), [tp])[tp]
    assert isinstance(error, BrokerNotAvailableError)
    assert "inside:9092: name" in str(error) and "advertised.listeners" in str(error)

    def unreachable(endpoint: Endpoint, security: object, timeout_ms: int) -> Any:
        raise BrokerNotAvailableError(f"no connection to {endpoint}")

    with pytest.raises(BrokerNotAvailableError) as raised:
        KafkaSource("old:9092", client_security(None), connect=unreachable).topics()
    assert str(raised.value) == "no connection to old:9092"


@for_each(
    "reason", ["SSLV3_ALERT_CERTIFICATE_UNKNOWN", "SSLV3_ALERT_BAD_CERTIFICATE", "TLSV13_ALERT_CERTIFICATE_REQUIRED"]
)
def test_a_certificate_that_the_source_refuses_after_the_handshake_is_a_wrong_setting(
    reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refused:
        """A socket of TLS 1.3, whose peer refuses the client's certificate in the first answer."""

        def settimeout(self, seconds: float) -> None: ...
        def sendall(self, data: bytes) -> None: ...
        def close(self) -> None: ...
        def recv_into(self, view: memoryview) -> int:
            error = ssl.SSLError(1, reason)
            error.reason = reason
            raise error

    monkeypatch.setattr(KafkaConnection, "_connected", lambda *arguments: Refused())
    with pytest.raises(InvalidConfigError, match=r"old:9092.*ssl\.certificate\.location"):
        KafkaConnection(BOOTSTRAP, client_security(None))


def test_records_between_two_answers_wait_for_no_transaction() -> None:
    """The source gets records between the answers about the end and the last stable offset."""
    log_end = iter([0, 5, 7])
    answers = {"Metadata": metadata(topic("t"))}

    class Growing(Connection):
        def request(self, name: str, body: dict[str, Any], **limits: int) -> Any:
            if name != "ListOffsets":
                return super().request(name, body)
            part = {"partition_index": 0, "error_code": 0, "offset": next(log_end)}
            return {"topics": [{"name": "t", "partitions": [part]}]}

    connect: Any = lambda endpoint, security, timeout_ms: Growing(answers)  # noqa: E731
    source = KafkaSource("old:9092", client_security(None), connect=connect)
    tp = TopicPartition("t", 0)
    assert source.bounds(source.topics(), [tp]) == {tp: SourceBounds(0, 7, 7)}


@for_each(
    "request_name, right",
    [
        ("ListOffsets", "Describe on topic 't'"),
        ("Fetch", "Read on topic 't'"),
        ("OffsetFetch", "Describe on group 'g'"),
    ],
)
def test_a_refusal_names_the_right_that_the_request_needs(request_name: str, right: str) -> None:
    refused = {"error_code": Kafka.TOPIC_AUTHORIZATION_FAILED, "partition_index": 0, "aborted_transactions": None}
    refused |= {"last_stable_offset": -1, "high_watermark": -1, "records": None}
    group = {"group_id": "g", "error_code": Kafka.GROUP_AUTHORIZATION_FAILED, "topics": []}
    source = source_with(
        Metadata=metadata(topic("t")),
        FindCoordinator={"coordinators": [{"key": "g", "error_code": 0, "host": "old", "port": 9092}]},
        ListOffsets={"topics": [{"name": "t", "partitions": [refused]}]},
        Fetch={"error_code": 0, "responses": [{"topic": "t", "partitions": [refused]}]},
        OffsetFetch={"groups": [group]},
    )
    tp, topics = TopicPartition("t", 0), source.topics()
    if request_name == "OffsetFetch":
        with pytest.raises(TopicAuthorizationFailedError) as raised:
            source.group_offsets("g")
        text = str(raised.value)
    elif request_name == "Fetch":
        text = str(source.fetch(BOOTSTRAP, {tp: (0, 0, -1)}, wait_ms=0)[tp].error)
    else:
        text = str(source.bounds(topics, [tp])[tp])
    assert text.endswith(f": the mirror's user needs {right}")


def test_topics_that_cannot_exist_here_do_not_stop_the_others() -> None:
    names = ("good", "a b", "wide", "secret", "x" * 300)
    settings = [
        {"resource_name": "good", "error_code": 0, "configs": [{"name": "retention.ms", "value": "-1"}]},
        {"resource_name": "secret", "error_code": Kafka.TOPIC_AUTHORIZATION_FAILED, "configs": []},
    ]
    source = source_with(
        Metadata=metadata(*(topic(name, 10_001 if name == "wide" else 1) for name in names)),
        DescribeConfigs={"results": settings},
    )
    plan = plan_mirror(DEFINITION, source, ["other"])
    assert [(one.name, one.configs["retention.ms"]) for one in plan.topics] == [("good", -1)]
    assert plan.refused.keys() == {"a b", "wide", "secret"}
    assert "DescribeConfigs" in plan.refused["secret"] and "10001 partitions" in plan.refused["wide"]
