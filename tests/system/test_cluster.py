"""Three real brokers and a real ZooKeeper: records acknowledged with acks=all survive the death of any process."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparklog
from sparklog.client.local_zookeeper import has_java
from sparklog.errors import (
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    NotEnoughReplicasError,
    NotLeaderError,
    SparklogError,
)
from sparklog.types import TopicPartition
from tests.support.waiting import until_reached
from tests.system.cluster_processes import ClusterProcesses

pytestmark = pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ClusterProcesses]:
    made = ClusterProcesses(tmp_path)
    yield made
    made.close()


def served_by_all(cluster: ClusterProcesses, topic: str) -> None:
    for broker in cluster.ports:
        until_reached(lambda b=broker: cluster.in_sync(topic, 3, asked=b), f"{topic} on broker {broker}")  # type: ignore[misc]


def send(cluster: ClusterProcesses, topic: str, partition: int, value: bytes, *, asked: int) -> int:
    """Send until it is acknowledged, to the present leader; returns the base offset. A failed attempt may be stored,
    too."""
    offsets: list[int] = []

    def acknowledged() -> bool:
        leader = cluster.leader_of(topic, partition, asked=asked)
        offsets.append(cluster.produce(leader, topic, partition, [value]))
        return True

    until_reached(acknowledged, f"acknowledgement of {value!r}")
    return offsets[-1]


def all_values(cluster: ClusterProcesses, topic: str, partition: int, *, asked: int) -> list[bytes]:
    found: list[list[bytes]] = []

    def read() -> bool:
        found.append(cluster.read(cluster.leader_of(topic, partition, asked=asked), topic, partition))
        return True

    until_reached(read, f"reading {topic}-{partition}")
    return found[-1]


def check(values: list[bytes], acknowledged: dict[int, bytes]) -> None:
    """All that was acknowledged is where it was said to be."""
    assert {offset: values[offset] for offset in acknowledged} == acknowledged


def test_acknowledged_records_survive_each_broker_in_turn(cluster: ClusterProcesses) -> None:
    """Among those that are killed is the controller, and each partition's leader."""
    cluster.create(2, "events", 3, min_insync_replicas=2)
    served_by_all(cluster, "events")
    acknowledged: dict[int, dict[int, bytes]] = {0: {}, 1: {}, 2: {}}
    for round_, killed in enumerate((1, 2, 3)):
        other = killed % 3 + 1
        for partition, sent in acknowledged.items():
            for i in range(5):
                value = b"before %d %d" % (round_, i)
                sent[send(cluster, "events", partition, value, asked=other)] = value
        cluster.kill(killed)
        for partition, sent in acknowledged.items():
            for i in range(5):
                value = b"without %d %d" % (killed, i)
                sent[send(cluster, "events", partition, value, asked=other)] = value
        assert all(p.leader != killed for p in cluster.partitions(other, "events"))
        cluster.start(killed)
        served_by_all(cluster, "events")
        for partition, sent in acknowledged.items():
            check(all_values(cluster, "events", partition, asked=killed), sent)
    for broker in cluster.ports:
        assert "Traceback" not in cluster.processes[broker].stderr


def test_too_few_in_sync_replicas_refuse_acks_all(cluster: ClusterProcesses) -> None:
    cluster.create(1, "events", 1, min_insync_replicas=2)
    served_by_all(cluster, "events")
    leader = cluster.leader_of("events", 0, asked=1)
    others = [b for b in cluster.ports if b != leader]
    offset = cluster.produce(leader, "events", 0, [b"kept"])
    for broker in others:
        cluster.kill(broker)

    def refused() -> bool:
        try:
            cluster.produce(leader, "events", 0, [b"refused"])
        except NotEnoughReplicasError:
            return True
        except SparklogError:
            return False
        return False

    until_reached(refused, "the in-sync replicas to shrink")
    cluster.produce(leader, "events", 0, [b"with acks=1"], acks=1)
    for broker in others:
        cluster.start(broker)
    served_by_all(cluster, "events")
    again = send(cluster, "events", 0, b"taken", asked=leader)
    check(all_values(cluster, "events", 0, asked=leader), {offset: b"kept", again: b"taken"})


def test_requests_to_a_follower_are_refused_with_the_leader(cluster: ClusterProcesses) -> None:
    cluster.create(1, "events", 1)
    served_by_all(cluster, "events")
    leader = cluster.leader_of("events", 0, asked=1)
    other = leader % 3 + 1
    with pytest.raises(NotLeaderError, match=f"broker {leader} does"):
        cluster.produce(other, "events", 0, [b"x"])
    with pytest.raises(NotLeaderError, match=f"broker {leader} does"):
        cluster.read(other, "events", 0)


def test_a_second_broker_of_an_id_is_refused(cluster: ClusterProcesses) -> None:
    second = cluster.launch(1, 0, "second", wait=False)
    with second.process:
        assert second.process.wait(60) == 1
    assert "another broker is registered as broker.id 1" in second.stderr
    assert cluster.processes[1].process.poll() is None


def test_while_zookeeper_is_away_records_are_acknowledged(cluster: ClusterProcesses) -> None:
    cluster.create(1, "events", 1, min_insync_replicas=2)
    served_by_all(cluster, "events")
    leader = cluster.leader_of("events", 0, asked=1)
    cluster.zookeeper.kill()
    sent: dict[int, bytes] = {}
    began = time.monotonic()
    number = 0
    while time.monotonic() - began < 6:  # three sessions' time
        value = b"%d" % number
        sent[cluster.produce(leader, "events", 0, [value])] = value
        number += 1
        time.sleep(0.05)
    cluster.zookeeper.start()
    after = send(cluster, "events", 0, b"after", asked=leader)
    check(all_values(cluster, "events", 0, asked=leader), {**sent, after: b"after"})


@pytest.mark.nightly
def test_waiting_records_are_flushed_when_the_topics_setting_says_so(cluster: ClusterProcesses) -> None:
    bootstrap = f"127.0.0.1:{cluster.ports[1]}"
    with sparklog.Admin(bootstrap) as admin:  # broker 1 was the first, so it is the controller, too
        admin.create_topic("events", replica_assignment=[[1, 2, 3]])
        served_by_all(cluster, "events")
        followers = [cluster.processes[broker].process for broker in (2, 3)]
        for process in followers:
            process.send_signal(signal.SIGSTOP)
        cluster.produce(1, "events", 0, [b"written"], acks=1)
        admin.alter_topic("events", {"flush.mode": "group"})
        for process in followers:
            process.send_signal(signal.SIGCONT)
    until_reached(
        lambda: cluster.read(1, "events", 0) == [b"written"], "the record is committed, with nothing sent behind it"
    )


def test_producer_and_consumer_continue_when_the_controller_dies(tmp_path: Path) -> None:
    with sparklog.start_local(tmp_path, brokers=3) as cluster:
        assert isinstance(cluster, sparklog.LocalCluster)
        assert [b.broker_id for b in cluster.brokers] == [1, 2, 3]
        with sparklog.Admin(cluster.bootstrap_servers) as admin:
            admin.create_topic("events", partitions=3, configs={"min.insync.replicas": 2})
        with (
            sparklog.Producer(bootstrap_servers=cluster.bootstrap_servers) as producer,
            sparklog.Consumer(bootstrap_servers=cluster.bootstrap_servers) as consumer,
        ):
            consumer.assign([TopicPartition("events", p) for p in range(3)])
            consumer.seek_to_beginning()
            values = [b"%d" % i for i in range(900)]
            futures = [producer.send("events", value=v, partition=i % 3) for i, v in enumerate(values[:300])]
            producer.flush()
            cluster.brokers[0].kill()  # it was the first, so it is the controller, and it leads a partition
            futures += [producer.send("events", value=v, partition=i % 3) for i, v in enumerate(values[300:600])]
            producer.flush()
            cluster.brokers[0].start()
            futures += [producer.send("events", value=v, partition=i % 3) for i, v in enumerate(values[600:])]
            producer.flush()
            assert len({(f.result().partition, f.result().offset) for f in futures}) == 900
            found: list[bytes] = []
            deadline = time.monotonic() + 60
            while len(found) < 900 and time.monotonic() < deadline:
                found += [record.value or b"" for record in consumer.poll(timeout_ms=500)]
        assert sorted(found) == sorted(values)  # each once: retries over the change of leaders double nothing


def test_a_topic_names_its_replicas(cluster: ClusterProcesses) -> None:
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in cluster.ports.values())
    with sparklog.Admin(bootstrap) as admin:
        admin.create_topic("two", partitions=2, replication_factor=2)
        admin.create_topic("named", replica_assignment=[[3, 1], [2, 3]])
        with pytest.raises(InvalidReplicationFactorError, match="4"):
            admin.create_topic("many", replication_factor=4)
        with pytest.raises(InvalidReplicaAssignmentError):
            admin.create_topic("strange", replica_assignment=[[1, 9]])
        assert all(len(p.replicas) == len(p.isr) == 2 for p in admin.describe_topic("two").partition_details)
        named = admin.describe_topic("named").partition_details
        assert [(p.leader, p.replicas) for p in named] == [(3, (3, 1)), (2, (2, 3))]
        assert [b.broker_id for b in admin.describe_cluster().brokers] == [1, 2, 3]
        assert admin.list_groups() == []
        with sparklog.Producer(bootstrap_servers=bootstrap) as producer:
            assert producer.send("named", value=b"x", partition=1).result(30).offset == 0
        admin.delete_topic("named")
        assert admin.list_topics() == ["two"]
