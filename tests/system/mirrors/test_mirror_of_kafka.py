"""Mirrors of a real Kafka with three nodes: what only its own nodes do, compared offset by offset."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.cimpl import NewTopic

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.client.local_zookeeper import has_java
from sparklog.client.net.cluster import cluster
from sparklog.mirror.worker.verify import verify_mirror
from sparklog.mirror.worker.worker import MirrorWorker
from sparklog.types import TopicPartition
from tests.support.kafka import KafkaInstallation, KafkaServer
from tests.support.waiting import until

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.timeout(1_800),
    pytest.mark.skipif(not has_java() or not shutil.which("mvn"), reason="Java and Maven are needed for Kafka"),
]
PATIENCE_S = 300.0
PARTITIONS = 1_000


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaServer]:
    installation = KafkaInstallation()
    installation.install()
    server = KafkaServer(installation, tmp_path_factory.mktemp("kafka") / "nodes", nodes=3)
    server.start()
    yield server
    server.stop(kill=True)


def create(kafka: KafkaServer, name: str, partitions: int = 1, **more: object) -> None:
    new = NewTopic(name, partitions, **(more or {"replication_factor": 1}))  # type: ignore[arg-type]
    kafka.admin().create_topics([new], operation_timeout=60)[name].result(PATIENCE_S)
    kafka.wait_for_partitions(name, range(partitions))


def send(kafka: KafkaServer, topic: str, values: range, partitions: int = 1) -> None:
    """Send values without transactions, each once."""
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True, "log_level": 0}
    producer = Producer(settings)
    for value in values:
        producer.produce(topic, b"%d" % value, partition=value % partitions)
    assert producer.flush(PATIENCE_S) == 0


def values_here(target: LocalBroker, topic: str) -> dict[int, bytes]:
    table = sparklog.read_table(target.bootstrap_servers, topic, include_metadata=True)
    return dict(zip(table.column("_offset").to_pylist(), table.column("value").to_pylist(), strict=True))


def verified(target: LocalBroker, mirror: str) -> tuple[int, list[str]]:
    report = verify_mirror(cluster(target.bootstrap_servers), mirror)
    return report.records, report.problems


def test_a_thousand_partitions_with_transactions_are_equal(
    kafka: KafkaServer, target: LocalBroker, admin: sparklog.Admin, worker: MirrorWorker
) -> None:
    create(kafka, "many", PARTITIONS)
    send(kafka, "many", range(2 * PARTITIONS), PARTITIONS)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "many"})
    producer.init_transactions(PATIENCE_S)
    for commits in (True, False):
        producer.begin_transaction()
        for partition in range(0, PARTITIONS, 10):
            producer.produce("many", b"in a transaction", partition=partition)
        producer.flush(PATIENCE_S)
        (producer.commit_transaction if commits else producer.abort_transaction)(PATIENCE_S)
    admin.create_mirror("many", source=f"kafka://{kafka.bootstrap_servers}", topics="many")
    assert worker.run_once(["many"]) == {}
    assert verified(target, "many") == (2 * PARTITIONS + PARTITIONS // 10, [])
    ends = admin.list_offsets({TopicPartition("many", p): "latest" for p in (0, 1)})
    assert [one.offset for one in ends.values()] == [2 + 2 + 2, 2]
    admin.delete_mirror("many")


def test_a_topic_that_is_created_again_pauses_and_keeps_its_records(
    kafka: KafkaServer, target: LocalBroker, admin: sparklog.Admin, worker: MirrorWorker
) -> None:
    create(kafka, "again")
    send(kafka, "again", range(10))
    admin.create_mirror("again", source=f"kafka://{kafka.bootstrap_servers}", topics="again")
    assert worker.run_once(["again"]) == {}
    kafka.delete_topic("again")
    until(lambda: "again" not in kafka.admin().list_topics(timeout=60).topics, "the topic is gone")
    create(kafka, "again")
    send(kafka, "again", range(100, 130))
    assert "created again" in worker.run_once(["again"])["again"]
    assert values_here(target, "again") == {i: b"%d" % i for i in range(10)}
    admin.delete_mirror("again")


def test_retention_that_is_quicker_than_the_mirror_is_a_gap(
    kafka: KafkaServer, target: LocalBroker, admin: sparklog.Admin, worker: MirrorWorker
) -> None:
    create(kafka, "short")
    send(kafka, "short", range(10))
    admin.create_mirror("short", source=f"kafka://{kafka.bootstrap_servers}", topics="short")
    assert worker.run_once(["short"]) == {}
    send(kafka, "short", range(10, 50))
    (future,) = kafka.admin().delete_records([KafkaPartition("short", 0, 30)]).values()
    future.result(PATIENCE_S)
    send(kafka, "short", range(50, 60))
    assert worker.run_once(["short"]) == {}
    assert values_here(target, "short") == {i: b"%d" % i for i in [*range(10), *range(30, 60)]}
    assert admin.describe_mirrors()[0].topics[0].partitions[0].lost == 20
    assert verified(target, "short")[1] == []
    admin.delete_mirror("short")


def leader_of(kafka: KafkaServer, topic: str) -> int:
    try:
        return int(kafka.admin().list_topics(topic, timeout=30).topics[topic].partitions[0].leader)
    except KafkaException:
        return -1


def end_of(kafka: KafkaServer, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "ends", "log_level": 0})
    try:
        return int(consumer.get_watermark_offsets(KafkaPartition(topic, 0), timeout=30)[1])
    except KafkaException:
        return -1
    finally:
        consumer.close()


def test_an_unclean_election_pauses_and_another_mirror_gets_the_new_records(
    kafka: KafkaServer, target: LocalBroker, admin: sparklog.Admin, worker: MirrorWorker
) -> None:
    config = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
    create(kafka, "unclean", replica_assignment=[[1, 2]], config=config)
    until(lambda: leader_of(kafka, "unclean") == 1, "node 1 leads", within_s=PATIENCE_S)
    send(kafka, "unclean", range(10))
    kafka.end_node(2)
    send(kafka, "unclean", range(10, 20))
    until(lambda: end_of(kafka, "unclean") >= 20, "the records are committed without node 2", within_s=PATIENCE_S)
    assert end_of(kafka, "unclean") == 20
    admin.create_mirror("unclean", source=f"kafka://{kafka.bootstrap_servers}", topics="unclean")
    assert worker.run_once(["unclean"]) == {}
    assert values_here(target, "unclean") == {i: b"%d" % i for i in range(20)}

    kafka.end_node(1, kill=True)
    kafka.start_node(2)
    until(lambda: leader_of(kafka, "unclean") == 2, "node 2 leads", within_s=PATIENCE_S)
    send(kafka, "unclean", range(100, 130))
    kafka.start_node(1)
    until(lambda: end_of(kafka, "unclean") >= 40, "node 2 has replaced records", within_s=PATIENCE_S)
    assert end_of(kafka, "unclean") == 40
    assert "unclean election" in worker.run_once(["unclean"])["unclean"]
    assert values_here(target, "unclean") == {i: b"%d" % i for i in range(20)}
    records, problems = verified(target, "unclean")
    assert records == 20 and [f"offset {i}:" in text for i, text in enumerate(problems, 10)] == [True] * 10

    admin.delete_mirror("unclean")
    admin.create_mirror("anew", source=f"kafka://{kafka.bootstrap_servers}", topics="unclean")
    assert worker.run_once(["anew"]) == {}
    assert verified(target, "anew") == (40, [])
    admin.delete_mirror("anew")
