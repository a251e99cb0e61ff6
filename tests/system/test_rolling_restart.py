"""Brokers of a cluster are restarted one after the other: clients notice nothing but time.

Also here: reading from a replica in the reader's rack, and records that an unclean election has lost.
"""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.client.local_zookeeper import has_java
from sparklog.environment.ports import free_ports
from sparklog.errors import LogTruncatedError
from sparklog.types import Record, TopicPartition
from tests.support.waiting import until_reached
from tests.system.cluster_processes import PATIENCE_S

pytestmark = pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper")


class Workers:
    """Threads that run until they are told to end; an error of one of them fails the test."""

    def __init__(self) -> None:
        self.ending = threading.Event()
        self.failed: list[BaseException] = []
        self.rounds: dict[str, int] = {}
        self._threads: list[threading.Thread] = []

    def run(self, name: str, step: Callable[[], None]) -> None:
        self.rounds[name] = 0

        def loop() -> None:
            try:
                while not self.ending.is_set():
                    step()
                    self.rounds[name] += 1
            except BaseException as e:  # noqa: BLE001 - the test raises it
                self.failed.append(e)

        thread = threading.Thread(target=loop, name=name)
        self._threads.append(thread)
        thread.start()

    def go_on(self, rounds: int = 2) -> None:
        """Until each has done so much more, or one has failed."""
        wanted = {name: done + rounds for name, done in self.rounds.items()}
        until_reached(
            lambda: bool(self.failed) or all(self.rounds[n] >= w for n, w in wanted.items()), f"progress of {wanted}"
        )
        self.check()

    def check(self) -> None:
        if self.failed:
            raise self.failed[0]

    def end(self) -> None:
        self.ending.set()
        for thread in self._threads:
            thread.join(90)


def in_sync(admin: sparklog.Admin, *topics: str) -> None:
    def all_are() -> bool:
        return all(len(p.isr) == 3 for t in topics for p in admin.describe_topic(t).partition_details)

    until_reached(all_are, "all replicas in sync")


def read_on(consumer: sparklog.Consumer, read: list[Record]) -> int:
    """Until nothing comes any more: a poll gives one small batch, and there may be hundreds."""
    while found := consumer.poll(500):
        read += found
    return len(read)


@pytest.mark.nightly
def test_a_rolling_restart_disturbs_no_client(tmp_path: Path) -> None:
    """Idempotent and transactional producers and a group: no call raises, nothing is lost, nothing comes twice."""
    with sparklog.start_local(tmp_path, brokers=3) as cluster, sparklog.Admin(cluster.bootstrap_servers) as admin:
        assert isinstance(cluster, sparklog.LocalCluster)
        where: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers}
        for topic in ("plain", "transactional"):
            admin.create_topic(topic, partitions=3, configs={"min.insync.replicas": 2})
        workers = Workers()
        sent: dict[str, list[bytes]] = {"plain": [], "transactional": []}
        read: dict[str, list[Record]] = {"plain": [], "transactional": []}
        with (
            sparklog.Producer(**where) as idempotent,
            sparklog.Producer(**where, transactional_id="loader") as transactional,
            sparklog.Consumer(**where, group_id="readers", auto_commit_interval_ms=100) as plain,
            sparklog.Consumer(**where, group_id="committed", isolation_level="read_committed") as committed,
        ):
            plain.subscribe(["plain"])
            committed.subscribe(["transactional"])
            transactional.init_transactions()

            def send() -> None:
                values = [b"%d" % (len(sent["plain"]) + i) for i in range(30)]
                futures = [idempotent.send("plain", value=v, partition=i % 3) for i, v in enumerate(values)]
                for future in futures:
                    future.result()
                sent["plain"] += values

            def transact() -> None:
                values = [b"%d" % (len(sent["transactional"]) + i) for i in range(6)]
                transactional.begin_transaction()
                for i, value in enumerate(values):
                    transactional.send("transactional", value=value, partition=i % 3)
                transactional.commit_transaction()
                sent["transactional"] += values

            workers.run("idempotent", send)
            workers.run("transactional", transact)
            workers.run("plain", lambda: read["plain"].extend(plain.poll(200)))
            workers.run("committed", lambda: (read["transactional"].extend(committed.poll(200)), committed.commit())[1])
            try:
                workers.go_on()
                for broker in cluster.brokers:
                    broker.stop()
                    workers.go_on()
                    broker.start()
                    in_sync(admin, "plain", "transactional")
                    workers.go_on()
            finally:
                workers.end()
            workers.check()
            for name, consumer in (("plain", plain), ("transactional", committed)):
                until_reached(
                    lambda n=name, c=consumer: read_on(c, read[n]) >= len(sent[n]),  # type: ignore[misc]
                    f"all records of {name}",
                )
        for name, values in sent.items():
            assert sorted(r.value or b"" for r in read[name]) == sorted(values)


@pytest.mark.nightly
def test_administration_goes_on_while_controllers_are_replaced(tmp_path: Path) -> None:
    """Brokers that are stopped, and a controller that is killed: each change is made once, and no call raises."""
    with sparklog.start_local(tmp_path, brokers=3) as cluster, sparklog.Admin(cluster.bootstrap_servers) as admin:
        assert isinstance(cluster, sparklog.LocalCluster)
        admin.create_topic("grows", configs={"min.insync.replicas": 2})
        with sparklog.Producer(cluster.bootstrap_servers, transactional_id="loader") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("grows", value=b"1")
            producer.commit_transaction()
        workers = Workers()

        def change() -> None:
            name = f"made-{workers.rounds['change']}"
            admin.create_topic(f"{name}-anywhere")
            admin.delete_topic(f"{name}-anywhere")
            assert admin.create_topic(name, partitions=2, replication_factor=2).partitions == 2
            admin.alter_topic(name, {"retention.ms": 60_000})
            assert admin.add_partitions(name, 3).partitions == 3
            admin.delete_topic(name)
            assert name not in admin.list_topics()

        def look() -> None:
            assert admin.list_partition_reassignments() == []
            assert [t.transactional_id for t in admin.list_transactions()] == ["loader"]
            assert admin.list_groups() == []

        workers.run("change", change)
        workers.run("look", look)
        try:
            for broker in cluster.brokers:
                broker.stop()
                workers.go_on()
                broker.start()
                in_sync(admin, "grows")
            controller = admin.describe_cluster().controller_id
            cluster.brokers[controller - 1].kill()
            workers.go_on()
        finally:
            workers.end()
        workers.check()
        assert admin.list_topics() == ["grows"]


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_records_lost_by_an_unclean_election_are_reported(tmp_path: Path) -> None:
    with sparklog.start_local(tmp_path, brokers=3) as cluster, sparklog.Admin(cluster.bootstrap_servers) as admin:
        assert isinstance(cluster, sparklog.LocalCluster)
        by_id = {b.broker_id: b for b in cluster.brokers}
        configs = {"unclean.leader.election.enable": True, "min.insync.replicas": 1}
        admin.create_topic("events", replica_assignment=[[2, 3]], configs=configs)
        until_reached(lambda: len(admin.describe_topic("events").partition_details[0].isr) == 2, "both in sync")
        tp = TopicPartition("events", 0)
        where: dict[str, Any] = {"bootstrap_servers": cluster.bootstrap_servers}
        with (
            sparklog.Producer(**where, enable_idempotence=False) as producer,  # it would notice what is lost
            sparklog.Consumer(**where, auto_offset_reset="none") as careful,
            sparklog.Consumer(**where, auto_offset_reset="earliest") as easy,
        ):
            for consumer in (careful, easy):
                consumer.assign([tp])
                consumer.seek(tp, 0)

            def send(values: range) -> None:
                for i in values:
                    producer.send("events", value=b"%d" % i)
                    producer.flush()

            def read(consumer: sparklog.Consumer, count: int) -> list[int]:
                found: list[int] = []
                deadline = time.monotonic() + PATIENCE_S
                while len(found) < count and time.monotonic() < deadline:
                    found += [int(r.value or b"") for r in consumer.poll(200)]
                return found

            send(range(5))
            by_id[3].kill()
            send(range(5, 10))
            assert read(careful, 10) == read(easy, 10) == list(range(10))
            by_id[2].kill()
            by_id[3].start()
            until_reached(
                lambda: admin.describe_topic("events").partition_details[0].leader == 3, "an unclean election"
            )
            send(range(100, 120))
            assert read(easy, 20) == list(range(100, 120)), "it goes on where the logs part"
            with pytest.raises(LogTruncatedError) as lost:
                read(careful, 1)
            assert lost.value.divergent_offset == 5
            careful.seek(tp, 5)
            assert read(careful, 20) == list(range(100, 120))


def scraped(cluster: sparklog.LocalCluster, name: str) -> list[float]:
    """A series without labels (by topic: the sum) of each broker that runs."""
    found = []
    for broker in cluster.brokers:
        if broker.running:
            with urllib.request.urlopen(f"http://{broker._settings['metrics.listen']}/metrics", timeout=30) as page:
                lines = page.read().decode().splitlines()
            found.append(
                sum(float(line.rpartition(" ")[2]) for line in lines if line.partition("{")[0].split(" ")[0] == name)
            )
    return found


@pytest.mark.nightly
def test_the_brokers_numbers_add_up_to_the_clusters(tmp_path: Path) -> None:
    cluster = sparklog.LocalCluster(tmp_path, temporary=False, brokers=3, settings={})
    for broker, port in zip(cluster.brokers, free_ports(3), strict=True):
        broker._settings["metrics.listen"] = f"127.0.0.1:{port}"
    with cluster, sparklog.Admin(cluster.bootstrap_servers) as admin:
        cluster.start()
        admin.create_topic("events", partitions=6, configs={"min.insync.replicas": 3})
        in_sync(admin, "events")

        def are(name: str, total: float) -> None:
            until_reached(
                lambda: sum(scraped(cluster, name)) == total, f"{name} = {total}, not {scraped(cluster, name)}"
            )

        are("kafka_controller_kafkacontroller_activecontrollercount", 1)
        are("kafka_server_replicamanager_partitioncount", 18)
        are("kafka_server_replicamanager_leadercount", 6)
        are("kafka_topic_partitions", 6)
        are("kafka_server_replicamanager_underreplicatedpartitions", 0)
        are("kafka_cluster_partition_atminisr", 0)
        controller = scraped(cluster, "kafka_controller_kafkacontroller_activecontrollercount").index(1)
        cluster.brokers[controller].kill()
        are("kafka_controller_kafkacontroller_activecontrollercount", 1)
        are("kafka_server_replicamanager_leadercount", 6)
        are("kafka_server_replicamanager_underreplicatedpartitions", 6)
        are("kafka_cluster_partition_underminisr", 6)
        are("kafka_controller_kafkacontroller_offlinepartitionscount", 0)
        shrinks = sum(scraped(cluster, "kafka_server_replicamanager_isrshrinks_total"))
        cluster.brokers[controller].start()
        are("kafka_server_replicamanager_underreplicatedpartitions", 0)
        assert shrinks <= 6 <= sum(scraped(cluster, "kafka_server_replicamanager_isrexpands_total"))
