"""Answers of the gateway to the requests of Kafka's administration clients, as Kafka 4.3 gives them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, Producer

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.gateway.handlers.configs import BROKER, TOPIC, Operation
from sparklog.gateway.handlers.topics import DEFAULT_COUNT
from sparklog.kafka.wire.errors import Kafka
from tests.support.kafka_wire import KafkaWire, batch_of_values, produced
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A broker with a gateway. New topics have three partitions, and groups at most three members."""
    settings = {"num.partitions": 3, "offsets.topic.num.partitions": 1, "group.max.size": 3}
    with sparklog.start_local(tmp_path_factory.mktemp("admin") / "data", settings=settings, kafka=True) as local:
        yield local


@pytest.fixture
def wire(kafka: LocalBroker) -> Iterator[KafkaWire]:
    with KafkaWire(kafka.kafka_bootstrap_servers) as connection:
        yield connection


def new_topic(name: str, partitions: int = 1, **configs: str | None) -> dict[str, Any]:
    """A topic of CreateTopics. A setting's name has `_` for `.`."""
    entries = [{"name": key.replace("_", "."), "value": value} for key, value in configs.items()]
    factor = DEFAULT_COUNT if partitions == DEFAULT_COUNT else 1
    return {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": factor,
        "assignments": [],
        "configs": entries,
    }


def create(wire: KafkaWire, *topics: dict[str, Any], validate_only: bool = False) -> list[dict[str, Any]]:
    request = {"topics": list(topics), "timeout_ms": 60_000, "validate_only": validate_only}
    results: list[dict[str, Any]] = wire.ask("CreateTopics", 7, request)["topics"]
    return results


def altered(wire: KafkaWire, *resources: tuple[int, str, Sequence[tuple[str, int, str | None]]]) -> list[int]:
    """The error codes of INCREMENTAL_ALTER_CONFIGS: settings with their operations and values, by resource."""
    named = [
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": key, "config_operation": what, "value": value} for key, what, value in configs],
        }
        for kind, name, configs in resources
    ]
    answer = wire.ask("IncrementalAlterConfigs", 1, {"resources": named, "validate_only": False})
    return [outcome["error_code"] for outcome in answer["responses"]]


def deleted_offsets(wire: KafkaWire, group: str, **topics: list[int]) -> dict[str, dict[int, int]] | int:
    """The error codes of OFFSET_DELETE by partition, or the error code of the whole request."""
    named = [
        {"name": name, "partitions": [{"partition_index": i} for i in indexes]} for name, indexes in topics.items()
    ]
    answer = wire.ask("OffsetDelete", 0, {"group_id": group, "topics": named})
    if answer["error_code"]:
        return int(answer["error_code"])
    return {t["name"]: {p["partition_index"]: p["error_code"] for p in t["partitions"]} for t in answer["topics"]}


def commit(wire: KafkaWire, group: str, topic: str) -> None:
    """Commit an offset of partition 0 for a group without members."""
    partition = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    request = {"group_id": group, "topics": [{"name": topic, "partitions": [partition]}]}
    answer = wire.ask_coordinator("OffsetCommit", 8, request)
    assert answer["topics"][0]["partitions"][0]["error_code"] == Kafka.NONE


def join(wire: KafkaWire, group: str, topic: str, member_id: str, instance_id: str | None = None) -> None:
    """Join a group of the consumer protocol."""
    request = {
        "group_id": group, "member_id": member_id, "member_epoch": 0, "instance_id": instance_id,
        "rebalance_timeout_ms": 60_000, "subscribed_topic_names": [topic], "topic_partitions": [],
    }  # fmt: skip
    assert wire.ask_coordinator("ConsumerGroupHeartbeat", 1, request)["error_code"] == Kafka.NONE


def members(wire: KafkaWire, group: str) -> set[str]:
    answer = wire.ask("ConsumerGroupDescribe", 1, {"group_ids": [group], "include_authorized_operations": False})
    return {member["member_id"] for member in answer["groups"][0]["members"]}


def test_a_validated_topic_has_the_numbers_and_settings_that_it_would_get(wire: KafkaWire, kafka: LocalBroker) -> None:
    topics = [new_topic("validated", 2, retention_ms="5"), new_topic("validated-default", DEFAULT_COUNT)]
    checked = create(wire, *topics, validate_only=True)
    with sparklog.Admin(kafka.bootstrap_servers) as admin:
        assert not {"validated", "validated-default"} & set(admin.list_topics())
    created = create(wire, *topics)
    for before, after, partitions in zip(checked, created, (2, 3), strict=True):
        assert before["error_code"] == after["error_code"] == Kafka.NONE
        assert before["topic_id"] != after["topic_id"]
        assert (before["num_partitions"], before["replication_factor"]) == (partitions, 1)
        assert before | {"topic_id": after["topic_id"]} == after
    assert {"retention.ms": "5"}.items() <= {c["name"]: c["value"] for c in checked[0]["configs"]}.items()


def test_a_setting_without_a_value_creates_no_topic(wire: KafkaWire) -> None:
    for validate_only in (True, False):
        (result,) = create(wire, new_topic("null", retention_bytes=None), validate_only=validate_only)
        assert result["error_code"] == Kafka.INVALID_CONFIG
        assert "retention.bytes" in result["error_message"]
    assert create(wire, new_topic("null"))[0]["error_code"] == Kafka.NONE


def test_a_topic_that_is_named_twice_does_not_change(wire: KafkaWire) -> None:
    results = create(wire, new_topic("twice"), new_topic("once"), new_topic("twice"))
    assert [r["error_code"] for r in results] == [Kafka.INVALID_REQUEST, Kafka.NONE, Kafka.INVALID_REQUEST]
    assert create(wire, new_topic("twice"))[0]["error_code"] == Kafka.NONE
    more = [{"name": "twice", "count": count, "assignments": None} for count in (2, 3)]
    answer = wire.ask("CreatePartitions", 3, {"topics": more, "timeout_ms": 60_000, "validate_only": False})
    assert [r["error_code"] for r in answer["results"]] == [Kafka.INVALID_REQUEST] * 2
    names = [{"name": "twice", "topic_id": None}] * 2
    answer = wire.ask("DeleteTopics", 6, {"topics": names, "timeout_ms": 60_000})
    assert [r["error_code"] for r in answer["responses"]] == [Kafka.INVALID_REQUEST] * 2
    described = wire.ask("DescribeTopicPartitions", 0, {"topics": [{"name": "twice"}]})["topics"][0]
    assert (described["error_code"], len(described["partitions"])) == (Kafka.NONE, 1)


def test_ids_beside_empty_names_describe_topics(wire: KafkaWire) -> None:
    """Java's admin client sends an empty name beside an id."""
    topic_id = create(wire, new_topic("with-id"))[0]["topic_id"]
    absent = UUID(int=1)
    for name in (None, "", "with-id"):
        named = [{"name": name, "topic_id": topic_id}, {"name": name, "topic_id": absent}]
        request = {
            "topics": named,
            "allow_auto_topic_creation": False,
            "include_topic_authorized_operations": False,
        }
        described = {t["topic_id"]: (t["error_code"], t["name"]) for t in wire.ask("Metadata", 13, request)["topics"]}
        assert described == {topic_id: (Kafka.NONE, "with-id"), absent: (Kafka.UNKNOWN_TOPIC_ID, None)}, name
    (by_name,) = wire.ask("Metadata", 13, request | {"topics": [{"name": "with-id", "topic_id": None}]})["topics"]
    assert (by_name["error_code"], by_name["topic_id"]) == (Kafka.NONE, topic_id)
    for name, named_id, code in (
        (None, None, Kafka.INVALID_REQUEST),
        ("with-id", topic_id, Kafka.INVALID_REQUEST),
        (None, absent, Kafka.UNKNOWN_TOPIC_ID),
        (None, topic_id, Kafka.NONE),
    ):
        deleted = {"topics": [{"name": name, "topic_id": named_id}], "timeout_ms": 60_000}
        (outcome,) = wire.ask("DeleteTopics", 6, deleted)["responses"]
        assert outcome["error_code"] == code, (name, named_id)


def test_changes_of_settings_that_contradict_themselves_are_refused(wire: KafkaWire) -> None:
    create(wire, new_topic("settings"), new_topic("settings-2"))
    good = ("compression.type", Operation.SET, "gzip")
    for configs, code in (
        ([("retention.ms", Operation.SET, "5"), good, ("retention.ms", Operation.SET, "6")], Kafka.INVALID_REQUEST),
        ([good, ("retention.ms", Operation.SET, None)], Kafka.INVALID_REQUEST),
        ([good, ("cleanup.policy", Operation.APPEND, None)], Kafka.INVALID_REQUEST),
        ([good, ("retention.ms", 9, "5")], Kafka.INVALID_REQUEST),
        ([good, ("segment.bytes", Operation.APPEND, "5")], Kafka.INVALID_CONFIG),
        ([good, ("segment.bytes", Operation.SUBTRACT, "5")], Kafka.INVALID_CONFIG),
        ([good, ("min.cleanable.dirty.ratio", Operation.SET, "1.1")], Kafka.INVALID_CONFIG),
        ([good, ("leader.replication.throttled.replicas", Operation.APPEND, "0:0")], Kafka.INVALID_CONFIG),
    ):
        assert altered(wire, (TOPIC, "settings", configs), (TOPIC, "settings-2", [good])) == [code, Kafka.NONE], configs
    assert altered(wire, *[(TOPIC, "settings", [good])] * 2) == [Kafka.INVALID_REQUEST] * 2
    resource = {"resource_type": TOPIC, "resource_name": "settings", "configuration_keys": None}
    answer = wire.ask("DescribeConfigs", 4, {"resources": [resource], "include_synonyms": False})
    values = {c["name"]: c["value"] for c in answer["results"][0]["configs"]}
    assert values["compression.type"] == "producer"
    assert altered(wire, (TOPIC, "settings", [("leader.replication.throttled.replicas", Operation.SUBTRACT, "0")])) == [
        0
    ]


def test_a_wrong_setting_of_a_broker_is_an_invalid_request(wire: KafkaWire, kafka: LocalBroker) -> None:
    with sparklog.Admin(kafka.bootstrap_servers) as admin:
        (broker,) = admin.describe_cluster().brokers
    for configs in (
        [("kafka.advertised.listeners", Operation.SET, "EXTERNAL://localhost:0")],
        [("log.cleaner.threads", Operation.SET, "none")],
    ):
        assert altered(wire, (BROKER, str(broker.broker_id), configs)) == [Kafka.INVALID_REQUEST], configs
    listed = [("log.cleaner.threads", Operation.APPEND, "2")]
    assert altered(wire, (BROKER, str(broker.broker_id), listed)) == [Kafka.INVALID_CONFIG]


def test_offsets_of_missing_partitions_cannot_be_deleted(wire: KafkaWire) -> None:
    create(wire, new_topic("offsets", 2))
    commit(wire, "deletes", "offsets")
    assert deleted_offsets(wire, "deletes", offsets=[0, 1, 2, -1], missing=[0]) == {
        "offsets": {
            0: Kafka.NONE,
            1: Kafka.NONE,
            2: Kafka.UNKNOWN_TOPIC_OR_PARTITION,
            -1: Kafka.UNKNOWN_TOPIC_OR_PARTITION,
        },
        "missing": {0: Kafka.UNKNOWN_TOPIC_OR_PARTITION},
    }
    assert deleted_offsets(wire, "no-group", offsets=[0], missing=[0]) == Kafka.GROUP_ID_NOT_FOUND


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_offsets_of_topics_with_subscribers_remain(wire: KafkaWire, kafka: LocalBroker, protocol: str) -> None:
    topic = f"subscribed-{protocol}"
    create(wire, new_topic(topic), new_topic(f"{topic}-not"))
    settings = {"bootstrap.servers": kafka.kafka_bootstrap_servers, "group.id": topic, "group.protocol": protocol}
    consumer = Consumer(settings)
    consumer.subscribe([topic])
    until(lambda: consumer.poll(0.1) is not None or consumer.assignment(), "an assignment")
    assert deleted_offsets(wire, topic, **{topic: [0, 1], f"{topic}-not": [0], "missing": [0]}) == {
        topic: {0: Kafka.GROUP_SUBSCRIBED_TO_TOPIC, 1: Kafka.UNKNOWN_TOPIC_OR_PARTITION},
        f"{topic}-not": {0: Kafka.NONE},
        "missing": {0: Kafka.UNKNOWN_TOPIC_OR_PARTITION},
    }
    consumer.close()


def test_a_missing_group_is_an_error_from_version_6_on(wire: KafkaWire) -> None:
    for version, code, text in ((5, Kafka.NONE, None), (6, Kafka.GROUP_ID_NOT_FOUND, "Group absent not found.")):
        request = {"groups": ["absent"], "include_authorized_operations": True}
        (group,) = wire.ask_coordinator("DescribeGroups", version, request)["groups"]
        assert (group["error_code"], group["group_state"]) == (code, "Dead")
        assert group.get("error_message") == text


def test_a_group_that_only_has_offsets_has_no_protocol(wire: KafkaWire) -> None:
    create(wire, new_topic("simple"))
    commit(wire, "simple", "simple")
    (group,) = wire.ask("DescribeGroups", 6, {"groups": ["simple"], "include_authorized_operations": False})["groups"]
    assert (group["error_code"], group["group_state"], group["protocol_type"]) == (Kafka.NONE, "Empty", "")
    listed = {g["group_id"]: g for g in wire.ask("ListGroups", 5, {"states_filter": [], "types_filter": []})["groups"]}
    assert (listed["simple"]["protocol_type"], listed["simple"]["group_type"]) == ("", "classic")


def test_members_of_the_consumer_protocol_can_be_removed(wire: KafkaWire) -> None:
    create(wire, new_topic("removed", 3))
    join(wire, "removed", "removed", "first", "instance-1")
    join(wire, "removed", "removed", "second", "instance-2")
    join(wire, "removed", "removed", "third")

    def removed(*leaving: tuple[str, str | None]) -> list[int]:
        named = [{"member_id": member_id, "group_instance_id": instance_id} for member_id, instance_id in leaving]
        answer = wire.ask("LeaveGroup", 5, {"group_id": "removed", "members": named})
        assert answer["error_code"] == Kafka.NONE
        return [member["error_code"] for member in answer["members"]]

    unknown = Kafka.UNKNOWN_MEMBER_ID
    assert removed(("", "instance-9"), ("nobody", None), ("", None)) == [unknown] * 3
    assert removed(("second", "instance-1")) == [Kafka.FENCED_INSTANCE_ID]
    assert members(wire, "removed") == {"first", "second", "third"}
    assert removed(("", "instance-1"), ("nobody", None), ("third", None)) == [Kafka.NONE, unknown, Kafka.NONE]
    assert members(wire, "removed") == {"second"}
    assert wire.ask("LeaveGroup", 2, {"group_id": "removed", "member_id": "second"})["error_code"] == Kafka.NONE
    assert members(wire, "removed") == set()
    assert removed(("second", None)) == [unknown]


def described(wire: KafkaWire, group: str) -> tuple[int, str, str]:
    """The error, the state and the protocol of a group in DESCRIBE_GROUPS."""
    (answer,) = wire.ask("DescribeGroups", 6, {"groups": [group], "include_authorized_operations": False})["groups"]
    return answer["error_code"], answer["group_state"], answer["protocol_type"]


def test_a_group_without_members_is_empty_until_it_is_deleted(wire: KafkaWire) -> None:
    """A group that has never committed an offset exists in the gateway only."""
    times = {"session_timeout_ms": 60_000, "rebalance_timeout_ms": 60_000}
    protocols = [{"name": "range", "metadata": b""}]
    body = {"group_id": "left", "member_id": "", "protocol_type": "connect", "protocols": protocols, **times}

    def delete() -> int:
        return int(wire.ask("DeleteGroups", 2, {"groups_names": ["left"]})["results"][0]["error_code"])

    for _ in range(2):
        member_id = wire.ask_coordinator("JoinGroup", 3, body)["member_id"]
        assert described(wire, "left")[1] != "Empty"
        assert delete() == Kafka.NON_EMPTY_GROUP
        assert wire.ask("LeaveGroup", 2, {"group_id": "left", "member_id": member_id})["error_code"] == Kafka.NONE
        assert described(wire, "left") == (Kafka.NONE, "Empty", "connect")
    groups = wire.ask("ListGroups", 5, {"states_filter": ["Empty"], "types_filter": []})["groups"]
    assert [g["protocol_type"] for g in groups if g["group_id"] == "left"] == ["connect"]
    assert delete() == Kafka.NONE
    assert described(wire, "left") == (Kafka.GROUP_ID_NOT_FOUND, "Dead", "")
    assert delete() == Kafka.GROUP_ID_NOT_FOUND


def test_a_classic_group_has_as_many_members_as_the_broker_allows(wire: KafkaWire, kafka: LocalBroker) -> None:
    times = {"session_timeout_ms": 60_000, "rebalance_timeout_ms": 60_000}
    protocols = [{"name": "range", "metadata": b""}]
    body = {"group_id": "full", "member_id": "", "protocol_type": "consumer", "protocols": protocols, **times}
    assert wire.ask_coordinator("JoinGroup", 3, body)["error_code"] == Kafka.NONE
    with (
        KafkaWire(kafka.kafka_bootstrap_servers) as second,
        KafkaWire(kafka.kafka_bootstrap_servers) as third,
    ):
        for waiting in (second, third):  # until the first member joins again
            waiting.send("JoinGroup", 3, body)

        def size() -> int:
            request = {"groups": ["full"], "include_authorized_operations": False}
            return len(wire.ask("DescribeGroups", 5, request)["groups"][0]["members"])

        until(lambda: size() == 3, "three members")
        assert wire.ask("JoinGroup", 3, body)["error_code"] == Kafka.GROUP_MAX_SIZE_REACHED
        assert size() == 3


def test_a_producer_has_the_epoch_of_the_coordinator_that_ended_its_transaction(
    wire: KafkaWire, kafka: LocalBroker
) -> None:
    create(wire, new_topic("producers"))
    assert produced(wire, "producers", batch_of_values([b"x"]))["error_code"] == Kafka.NONE
    producer = Producer({"bootstrap.servers": kafka.kafka_bootstrap_servers, "transactional.id": "described"})
    producer.init_transactions(PATIENCE_S)

    def epochs() -> list[int]:
        topics = [{"name": "producers", "partition_indexes": [0]}]
        (partition,) = wire.ask("DescribeProducers", 0, {"topics": topics})["topics"][0]["partitions"]
        return [active["coordinator_epoch"] for active in partition["active_producers"]]

    producer.begin_transaction()
    producer.produce("producers", b"y")
    assert producer.flush(PATIENCE_S) == 0
    assert epochs() == [-1]
    producer.commit_transaction(PATIENCE_S)
    until(lambda: epochs() != [-1], "the marker of the transaction")
    assert len(epochs()) == 1
    assert epochs()[0] >= 0
