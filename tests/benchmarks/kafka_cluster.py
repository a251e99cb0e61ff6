"""Three nodes of Apache Kafka, each broker and controller, as `kafka.py` has one."""

from __future__ import annotations

import base64
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from .kafka import START_TIMEOUT_S, KafkaInstallation, KafkaServer, answers, free_ports
from .processes import MeasurementError, run

NODES = 3
_PROPERTIES = """process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=3
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
log.segment.delete.delay.ms=1000
"""


class KafkaCluster(KafkaServer):
    """Nodes 1, 2 and 3 on free ports, with their data under `directory`. Topics have three replicas, two of which must
    have what is acknowledged."""

    def __init__(self, installation: KafkaInstallation, directory: Path) -> None:
        self.installation = installation
        self.directory = self.data = directory
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._admin = None
        directory.mkdir(parents=True, exist_ok=True)
        ports = free_ports(2 * NODES)
        self._ports = {i: ports[2 * i - 2] for i in range(1, NODES + 1)}
        controllers = {i: ports[2 * i - 1] for i in self._ports}
        self.bootstrap_servers = ",".join(f"127.0.0.1:{port}" for port in self._ports.values())
        cluster_id = base64.urlsafe_b64encode(b"\1" + uuid.uuid4().bytes[1:]).rstrip(b"=").decode()
        voters = ",".join(f"{i}@127.0.0.1:{port}" for i, port in controllers.items())
        for i, port in self._ports.items():
            data = directory / f"data{i}"
            text = _PROPERTIES.format(node=i, voters=voters, port=port, controller=controllers[i], data=data)
            self._properties_of(i).write_text(text)
            command = installation.java("kafka.tools.StorageTool", "format", "-t", cluster_id)
            run([*command, "-c", str(self._properties_of(i))], timeout_s=START_TIMEOUT_S)

    def _properties_of(self, node: int) -> Path:
        return self.directory / f"node{node}.properties"

    @property
    def pids(self) -> list[int]:
        return [process.pid for process in self.processes.values()]

    def start(self) -> float:
        """All nodes; the seconds until a client has got metadata."""
        begun = time.perf_counter()
        for i in self._ports:
            self.start_node(i)
        for i, port in self._ports.items():
            while not answers(port):
                if self.processes[i].poll() is not None or time.perf_counter() > begun + 2 * START_TIMEOUT_S:
                    raise MeasurementError(f"node {i} of Kafka did not start, see {self.directory}/node{i}.log")
                time.sleep(0.01)
        self.admin().list_topics(timeout=START_TIMEOUT_S)
        return time.perf_counter() - begun

    def start_node(self, node: int) -> None:
        """Does not wait."""
        with (self.directory / f"node{node}.log").open("ab") as log:
            self.processes[node] = subprocess.Popen(
                self.installation.java("kafka.Kafka", str(self._properties_of(node))),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill_node(self, node: int) -> None:
        self.processes[node].kill()
        self.processes[node].wait()

    def stop_node(self, node: int) -> None:
        self.processes[node].terminate()
        self.processes[node].wait(60)

    def stop(self) -> None:
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes.clear()

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        from confluent_kafka.cimpl import NewTopic

        settings = {"min.insync.replicas": "2", **(configs or {})}
        new = NewTopic(name, num_partitions=partitions, replication_factor=NODES, config=settings)
        self.admin().create_topics([new], operation_timeout=60)[name].result(120)

    def leaders(self, topic: str) -> Sequence[int]:
        """The leader of each partition; -1: none."""
        found = self.admin().list_topics(topic, timeout=START_TIMEOUT_S).topics[topic].partitions
        return [found[p].leader for p in sorted(found)]
