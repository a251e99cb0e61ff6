"""The sources of the mirrors' campaign: one or three nodes of Kafka, one of an old release, or a sparklog broker with
its gateway."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol

from confluent_kafka import Consumer, IsolationLevel, KafkaException
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient

import sparklog
from sparklog.client.local_zookeeper import ZooKeeperProcess
from sparklog.types import TopicPartition
from tests.campaigns.torture.mirror_load import PARTITIONS, TOPICS, TYPED, Record
from tests.support.kafka import KAFKA_VERSION, KafkaInstallation, KafkaServer, answers
from tests.support.ports import free_port
from tests.support.waiting import until

PATIENCE_S = 300.0
START_S = 300.0


class Source(Protocol):
    """A cluster that a mirror copies."""

    kafka: str
    """Addresses for Kafka's clients."""
    nodes: int

    @property
    def url(self) -> str: ...

    def kill_one(self, rng: random.Random) -> bool: ...

    def pausable(self, rng: random.Random) -> subprocess.Popen[bytes] | None: ...

    def heal(self) -> None: ...

    def stable_ends(self) -> dict[TopicPartition, int]: ...

    def records(self, topic: str, partition: int) -> dict[int, Record]: ...


class _KafkaReader:
    """Reads by means of Kafka's protocol."""

    def __init__(self, kafka: str, nodes: int) -> None:
        self.kafka = kafka
        self.nodes = nodes

    def topics(self) -> list[str]:
        return list(TOPICS)

    def stable_ends(self) -> dict[TopicPartition, int]:
        """Return the ends of committed records."""
        admin = AdminClient({"bootstrap.servers": self.kafka, "log_level": 2})
        latest = vars(kafka_admin)["OffsetSpec"].latest()
        asked = {KafkaPartition(t, p): latest for t in self.topics() for p in range(PARTITIONS)}
        ends: dict[TopicPartition, int] = {}

        def ask() -> bool:
            futures = admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=30)
            ends.update({TopicPartition(tp.topic, tp.partition): f.result().offset for tp, f in futures.items()})
            return True

        until(ask, "the source states its ends", within_s=PATIENCE_S, passing=(KafkaException,))
        return ends

    def records(self, topic: str, partition: int) -> dict[int, Record]:
        """Return the committed records of a partition by offset."""
        end = self.stable_ends()[TopicPartition(topic, partition)]
        consumer = Consumer(
            {
                "bootstrap.servers": self.kafka,
                "group.id": "campaign",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "log_level": 2,
            }
        )
        start = consumer.get_watermark_offsets(KafkaPartition(topic, partition), timeout=60)[0]
        consumer.assign([KafkaPartition(topic, partition, start)])
        result: dict[int, Record] = {}

        def read() -> bool:
            message: Any  # the library's stubs differ between its releases
            for message in consumer.consume(1_000, 0.2):
                if message.error() is None:
                    headers = tuple(message.headers() or ())
                    result[message.offset()] = Record(message.key(), message.value(), headers, message.timestamp()[1])
            (position,) = consumer.position([KafkaPartition(topic, partition)])
            return position.offset >= end or start >= end

        until(read, f"the records of {topic}", within_s=PATIENCE_S, look_share=0)
        consumer.close()
        return result


class KafkaNodes(_KafkaReader):
    """Nodes of Kafka."""

    def __init__(self, directory: Path, nodes: int, version: str = KAFKA_VERSION, zookeeper: str = "") -> None:
        installation = KafkaInstallation(version=version)
        installation.install()
        settings = {"broker.session.timeout.ms": "6000", "group.initial.rebalance.delay.ms": "0"}
        settings |= {"log.cleaner.backoff.ms": "500", "offsets.topic.num.partitions": "4"}
        settings |= {"transaction.state.log.num.partitions": "4"}
        settings |= {"zookeeper.session.timeout.ms": "6000"} if zookeeper else {}
        self.server = KafkaServer(
            installation, directory / "kafka", nodes=nodes, settings=settings, zookeeper=zookeeper
        )
        super().__init__(self.server.bootstrap_servers, nodes)
        self._has_zookeeper = bool(zookeeper)

    @property
    def url(self) -> str:
        return f"kafka://{self.kafka}"

    def kill_one(self, rng: random.Random) -> bool:
        """Kill a node, and start it again. Returns False if the others lack its records."""
        if not self._is_in_sync():
            return False
        node = rng.choice(list(self.server.processes))
        self.server.end_node(node, kill=True)
        self.server.start_node(node)
        if self._has_zookeeper:
            until(self._is_back, "ZooKeeper has forgotten the killed node, and a new one starts", within_s=PATIENCE_S)
        return True

    def _is_back(self) -> bool:
        """Start the node again if it has ended, as it does while ZooKeeper keeps the session of the killed one."""
        for node, process in self.server.processes.items():
            if process.poll() is not None:
                self.server.start_node(node)
                return False
        return self._is_in_sync()

    def pausable(self, rng: random.Random) -> subprocess.Popen[bytes] | None:
        """Return a node that may be stopped."""
        return self.server.processes[rng.choice(list(self.server.processes))] if self._is_in_sync() else None

    def _is_in_sync(self) -> bool:
        """Return True if each partition has all its replicas; one node always has them."""
        try:
            metadata = self.server.admin().list_topics(timeout=10)
        except KafkaException:
            return False
        partitions = [p for topic in metadata.topics.values() for p in topic.partitions.values()]
        return len(metadata.brokers) == self.nodes and all(len(p.isrs) == self.nodes for p in partitions)

    def heal(self) -> None:
        """Wait until all nodes work."""
        until(self._is_in_sync, "all nodes of Kafka have all records", within_s=PATIENCE_S)


class SparklogNode(_KafkaReader):
    """A sparklog broker."""

    def __init__(self, directory: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._directory = directory / "source"
        kafka = f"127.0.0.1:{free_port()}"
        self._settings = {"kafka.listeners": f"PLAINTEXT://{kafka}", "log.cleaner.backoff.ms": 500}
        super().__init__(kafka, 1)
        self.start()

    def start(self) -> None:
        self.broker = sparklog.start_local(
            self._directory, listen=self.address, kafka=True, settings=self._settings, timeout_s=START_S
        )

    @property
    def url(self) -> str:
        return f"sparklog://{self.address}"

    def topics(self) -> list[str]:
        return list(TOPICS)

    def stable_ends(self) -> dict[TopicPartition, int]:
        """Return the ends of committed records, the typed topic's included."""
        with sparklog.Admin(self.address) as admin:
            tps = [TopicPartition(t, p) for t in (*TOPICS, TYPED) for p in range(PARTITIONS)]
            found = admin.list_offsets(dict.fromkeys(tps, "latest"), isolation_level="read_committed")
            return {tp: one.offset for tp, one in found.items()}

    def kill_one(self, rng: random.Random) -> bool:
        """Kill the broker, and start it again."""
        self.broker.kill()
        self.start()
        return True

    def pausable(self, rng: random.Random) -> subprocess.Popen[bytes] | None:
        return None

    def heal(self) -> None:
        until(lambda: answers(int(self.kafka.rpartition(":")[2])), "the gateway listens", within_s=PATIENCE_S)


@contextmanager
def open_source(form: str, directory: Path) -> Iterator[Source]:
    """Start a source: "kafka", "kafka-3", "sparklog", or an old release of Kafka such as "2.8.2"."""
    if form == "sparklog":
        node = SparklogNode(directory)
        try:
            yield node
        finally:
            node.broker.stop()
        return
    with ExitStack() as stack:
        if form[0].isdecimal():
            zookeeper = ZooKeeperProcess(directory / "zookeeper")
            stack.callback(zookeeper.kill)
            zookeeper.start()
            nodes = KafkaNodes(directory, 1, form, zookeeper.hosts)
        else:
            nodes = KafkaNodes(directory, 3 if form == "kafka-3" else 1)
        stack.callback(nodes.server.stop, kill=True)
        nodes.server.start()
        yield nodes
