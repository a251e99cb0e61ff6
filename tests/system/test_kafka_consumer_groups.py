"""Groups of the consumer protocol (KIP-848): Kafka's clients and sparklog's consumers are members of one group."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

import sparklog
from sparklog.client.local import LocalBroker
from tests.support.waiting import PATIENCE_S, until

FAST = {
    "group.consumer.heartbeat.interval.ms": 200,
    "group.consumer.session.timeout.ms": 3_000,
    "offsets.topic.num.partitions": 2,
}
MEMBER = """
import sys
from confluent_kafka import Consumer
consumer = Consumer({"bootstrap.servers": sys.argv[1], "group.id": sys.argv[2], "group.protocol": "consumer"})
consumer.subscribe([sys.argv[2]])
while True:
    consumer.poll(0.1)
    print(len(consumer.assignment()), flush=True)
"""
"""A member in a process of its own, which can be killed. It prints the number of its partitions."""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A broker with a gateway."""
    with sparklog.start_local(tmp_path_factory.mktemp("groups") / "data", settings=FAST, kafka=True) as local:
        yield local


@pytest.fixture
def admin(kafka: LocalBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": kafka.kafka_bootstrap_servers})


def create(admin: AdminClient, topic: str, partitions: int) -> None:
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE_S)


def produce(kafka: LocalBroker, topic: str, partitions: int, count: int) -> None:
    producer = Producer({"bootstrap.servers": kafka.kafka_bootstrap_servers})
    for i in range(count):
        producer.produce(topic, b"%d" % i, partition=i % partitions)
    assert producer.flush(PATIENCE_S) == 0


def member(kafka: LocalBroker, group: str, *topics: str, **more: Any) -> Consumer:
    """A member of the consumer protocol."""
    settings = {
        "bootstrap.servers": kafka.kafka_bootstrap_servers, "group.id": group, "group.protocol": "consumer",
        "auto.offset.reset": "earliest", "enable.auto.commit": False,
    }  # fmt: skip
    consumer = Consumer(settings | more)
    consumer.subscribe(list(topics or (group,)))
    return consumer


def polled(consumer: Consumer) -> list[bytes | None]:
    """The values of the records that are there now."""
    values: list[bytes | None] = []
    for message in consumer.consume(100, 0.1):
        error = message.error()
        assert error is None or error.retriable() or error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART, error
        if error is None:
            values.append(message.value())
    return values


def test_kafkas_and_sparklogs_consumers_are_members_of_one_group(
    kafka: LocalBroker, admin: AdminClient, topic: str
) -> None:
    create(admin, topic, 6)
    produce(kafka, topic, 6, 60)
    values: list[Any] = []
    first = member(kafka, topic)
    until(lambda: values.extend(polled(first)) or len(values) == 60, "sixty records")
    first.commit(asynchronous=False)
    with sparklog.Consumer(kafka.bootstrap_servers, group_id=topic, enable_auto_commit=False) as own:
        own.subscribe([topic])

        def share() -> bool:
            values.extend(polled(first) + [r.value for r in own.poll(100)])
            return (len(first.assignment()), len(own.assignment())) == (3, 3)

        until(share, "three partitions each")
        assert len(values) == 60, "the second member has continued at the commit of the first"
        produce(kafka, topic, 6, 60)
        until(lambda: share() and len(values) == 120, "sixty more")
        assert sorted(values) == sorted(2 * [b"%d" % i for i in range(60)])
        details = admin.describe_consumer_groups([topic])[topic].result(PATIENCE_S)
        assert (details.type.name, details.partition_assignor) == ("CONSUMER", "uniform")
        assert sorted(len(m.assignment.topic_partitions) for m in details.members) == [3, 3]
        first.close()
        until(lambda: own.poll(100) is not None and len(own.assignment()) == 6, "all partitions")


def test_a_killed_members_partitions_go_to_the_others(kafka: LocalBroker, admin: AdminClient, topic: str) -> None:
    create(admin, topic, 4)
    command = [sys.executable, "-c", MEMBER, kafka.kafka_bootstrap_servers, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            while process.stdout.readline().strip() != "4":
                pass
            other = member(kafka, topic)
            until(lambda: polled(other) is not None and len(other.assignment()) == 2, "two partitions")
        finally:
            process.kill()
    until(lambda: polled(other) is not None and len(other.assignment()) == 4, "the partitions of the killed member")
    admin.create_partitions([NewPartitions(topic, 6)])[topic].result(PATIENCE_S)
    until(lambda: polled(other) is not None and len(other.assignment()) == 6, "the new partitions")
    other.close()


def test_a_regular_expression_subscribes_to_topics_that_appear(
    kafka: LocalBroker, admin: AdminClient, topic: str
) -> None:
    create(admin, f"{topic}-a", 1)
    consumer = member(kafka, topic, f"^{topic}-.*")
    until(lambda: polled(consumer) is not None and len(consumer.assignment()) == 1, "the topic")
    create(admin, f"{topic}-b", 2)
    create(admin, f"not-{topic}", 1)
    until(lambda: polled(consumer) is not None and len(consumer.assignment()) == 3, "the topic that has appeared")
    admin.delete_topics([f"{topic}-a"])[f"{topic}-a"].result(PATIENCE_S)
    until(lambda: polled(consumer) is not None and len(consumer.assignment()) == 2, "the remaining topic")
    assert {tp.topic for tp in consumer.assignment()} == {f"{topic}-b"}
    consumer.close()


def test_a_static_member_returns_to_its_partitions(kafka: LocalBroker, admin: AdminClient, topic: str) -> None:
    create(admin, topic, 4)
    static, other = member(kafka, topic, **{"group.instance.id": "one"}), member(kafka, topic)

    def share() -> bool:
        polled(static), polled(other)
        return len(static.assignment()) == len(other.assignment()) == 2

    until(share, "two partitions each")
    before = {tp.partition for tp in static.assignment()}
    static.close()
    static = member(kafka, topic, **{"group.instance.id": "one"})
    until(share, "two partitions each again")
    assert {tp.partition for tp in static.assignment()} == before
    static.close()
    other.close()


def test_a_group_moves_to_the_consumer_protocol_and_back(kafka: LocalBroker, admin: AdminClient, topic: str) -> None:
    """Classic clients, a client of the consumer protocol and a consumer of sparklog, one after the other."""
    create(admin, topic, 6)
    classic = {"group.protocol": "classic", "session.timeout.ms": 6_000, "heartbeat.interval.ms": 500}
    values: list[Any] = []
    members: list[Any] = []

    def share(*counts: int) -> bool:
        for one in members:
            own = isinstance(one, sparklog.Consumer)
            values.extend([r.value for r in one.poll(50)] if own else polled(one))
        return sorted(len(one.assignment()) for one in members) == list(counts)

    def kind() -> str:
        groups = admin.list_consumer_groups().result(PATIENCE_S).valid
        return next(g.type.name for g in groups if g.group_id == topic)

    members += [member(kafka, topic, **classic), member(kafka, topic, **classic)]
    until(lambda: share(3, 3), "three partitions each")
    assert kind() == "CLASSIC"
    members.append(member(kafka, topic))
    until(lambda: share(2, 2, 2), "two partitions each")
    assert kind() == "CONSUMER"
    members.append(sparklog.Consumer(kafka.bootstrap_servers, group_id=topic))
    members[-1].subscribe([topic])
    until(lambda: share(1, 1, 2, 2), "the partitions of four members")
    produce(kafka, topic, 6, 60)
    until(lambda: share(1, 1, 2, 2) and len(values) >= 60, "sixty records")
    assert sorted(values) == sorted(b"%d" % i for i in range(60))
    for _ in range(2):
        members.pop().close()
    until(lambda: share(3, 3) and kind() == "CLASSIC", "the classic group")
    members.append(sparklog.Consumer(kafka.bootstrap_servers, group_id=topic))
    members[-1].subscribe([topic])
    until(lambda: share(2, 2, 2), "two partitions each, beside sparklog's consumer alone")
    for one in members:
        one.close()
