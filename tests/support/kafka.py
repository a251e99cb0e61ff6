"""Apache Kafka as a peer: installed from Maven Central, started, driven with its own performance tools.

Configured as its own scripts do it (G1, 1 GiB heap), the rest are Kafka's defaults. Maven gets a repository of its own:
Spark's resolver stumbles over a default one that another tool has half filled.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import re
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sparklog.environment.ports import free_ports
from tests.support.processes import Finished, MeasurementError, directory_bytes, run

KAFKA_VERSION = "4.3.0"
SPARK_VERSION = "4.2.0"
CACHE_VARIABLE = "SPARKLOG_BENCH_CACHE"
INSTALL_TIMEOUT_S = 1200.0
START_TIMEOUT_S = 120.0
TOOL_TIMEOUT_S = 900.0
JVM_OPTIONS = [
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
    "-Xmx1g",
    "-Xms1g",
]
_MIB = 1024 * 1024
PRODUCER_SETTINGS = {
    "batch.size": str(_MIB), "linger.ms": "20", "buffer.memory": str(128 * _MIB), "max.request.size": str(8 * _MIB),
}  # fmt: skip
FETCH_BYTES = 10 * _MIB

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>sparklog.bench</groupId><artifactId>{name}</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies></project>
"""
_PARTS = ("groupId", "artifactId", "version", "classifier")
"""Parts of a jar's name in Maven. Only a jar beside the main one, such as that of tests, has a classifier."""
_LOG_JAR = ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3")
_TOKEN_JAR = ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", SPARK_VERSION)
_FILE_CONNECTOR_JAR = ("org.apache.kafka", "connect-file", KAFKA_VERSION)
_MIRROR_JARS = (("org.apache.kafka", "connect-mirror", KAFKA_VERSION), _LOG_JAR)
_LOG4J = """<Configuration status="WARN"><Appenders><Console name="c" target="SYSTEM_ERR">
<PatternLayout pattern="%d %p %m%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="c"/></Root></Loggers></Configuration>
"""
_QUORUM_PROPERTIES = """process.roles=broker,controller
node.id={node}
controller.quorum.voters={voters}
listeners={listeners},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={listeners}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
"""
_ZOOKEEPER_PROPERTIES = """broker.id={node}
zookeeper.connect={zookeeper}
listeners={listeners}
inter.broker.listener.name=PLAINTEXT
"""
_PROPERTIES = """log.dirs={data}
offsets.topic.replication.factor={nodes}
transaction.state.log.replication.factor={nodes}
transaction.state.log.min.isr={acknowledging}
log.segment.delete.delay.ms=1000
"""
PLAINTEXT = "PLAINTEXT"


def cache_directory() -> Path:
    """The directory of the peers: $SPARKLOG_BENCH_CACHE, else ~/.cache/sparklog-bench."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "sparklog-bench")


def _dependency(jar: tuple[str, ...]) -> str:
    """The jar as an element of a POM."""
    parts = "".join(f"<{part}>{text}</{part}>" for part, text in zip(_PARTS, jar, strict=False))
    return f"<dependency>{parts}</dependency>"


class KafkaInstallation:
    """The jars of the server, its tools, and the one jar of Spark's connector that Spark's resolver leaves out."""

    def __init__(self, directory: Path | None = None, version: str = KAFKA_VERSION) -> None:
        self.directory = directory or cache_directory()
        self.libs = self.directory / f"kafka-{version}"
        self._jars = [("org.apache.kafka", "kafka_2.13", version)]
        if version == KAFKA_VERSION:
            self._jars += [("org.apache.kafka", "kafka-tools", version), _LOG_JAR]

    def install(self) -> None:
        """Download the server and its tools unless they are there. Raises MeasurementError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._copy(self.libs, self._jars, transitive=True)
        (self.directory / "log4j2.xml").write_text(_LOG4J)

    def _copy(self, target: Path, jars: Sequence[tuple[str, ...]], *, transitive: bool) -> None:
        pom = self.directory / f"{target.name}.pom.xml"
        text = _POM.format(name=target.name, dependencies="".join(map(_dependency, jars)))
        if target.exists() and pom.exists() and pom.read_text() == text:
            return
        if not shutil.which("mvn"):
            raise MeasurementError("Maven is needed to install Kafka: put `mvn` on the PATH (package maven)")
        partial = target.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(target, ignore_errors=True)  # of other jars
        pom.write_text(text)
        command = ["mvn", "-q", "-B", f"-Dmaven.repo.local={self.directory / 'm2'}", "-f", str(pom)]
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
        run(command if transitive else [*command, "-DexcludeTransitive=true"], timeout_s=INSTALL_TIMEOUT_S)
        partial.rename(target)

    def java(self, main: str, *arguments: str, path: str = "") -> list[str]:
        """The command that runs a class of Kafka, or of the class path `path`."""
        log = f"-Dlog4j2.configurationFile={self.directory / 'log4j2.xml'}"
        classes = os.pathsep.join(part for part in (f"{self.libs}/*", path) if part)
        return ["java", *JVM_OPTIONS, log, "-cp", classes, main, *arguments]

    def file_connectors(self) -> str:
        """The class path of Kafka Connect's FileStream connectors, from Maven. Raises MeasurementError."""
        libs = self.directory / f"connect-file-{KAFKA_VERSION}"
        self._copy(libs, (_FILE_CONNECTOR_JAR,), transitive=False)
        return f"{libs}/*"

    def mirror_maker(self, config: Path) -> list[str]:
        """The command that runs MirrorMaker 2 with a file of settings, from Maven. Raises MeasurementError."""
        libs = self.directory / f"connect-mirror-{KAFKA_VERSION}"
        self._copy(libs, _MIRROR_JARS, transitive=True)
        log = f"-Dlog4j2.configurationFile={self.directory / 'log4j2.xml'}"
        return [
            "java",
            *JVM_OPTIONS,
            log,
            "-cp",
            f"{libs}/*",
            "org.apache.kafka.connect.mirror.MirrorMaker",
            str(config),
        ]

    def classes(self, name: str, jars: Sequence[tuple[str, ...]], *, transitive: bool) -> str:
        """The class path of other jars, from Maven. Raises MeasurementError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self._copy(self.directory / name, jars, transitive=transitive)
        return f"{self.directory / name}/*"

    def token_jar(self) -> Path:
        """The delegation-token jar of Spark's connector, from Maven. Raises MeasurementError."""
        libs = self.directory / f"spark-token-provider-{SPARK_VERSION}"
        self._copy(libs, (_TOKEN_JAR,), transitive=False)
        return next(libs.glob("*.jar"))


class KafkaServer:
    """One node of Kafka, or several, on free ports; each is broker and controller, or uses ZooKeeper.

    With several nodes topics have a replica on each of them, and min.insync.replicas is one less.
    """

    def __init__(
        self,
        installation: KafkaInstallation,
        directory: Path,
        *,
        nodes: int = 1,
        listeners: Mapping[str, int] | None = None,
        settings: Mapping[str, str] | None = None,
        security: Mapping[str, Mapping[str, str]] | None = None,
        zookeeper: str = "",
    ) -> None:
        """Format the data directories under `directory`.

        Args:
            nodes: Number of nodes.
            listeners: Ports of the listeners beside PLAINTEXT, by name; for one node only.
            settings: Further settings of the brokers.
            security: Settings of a Java client, by listener.
            zookeeper: Address of a ZooKeeper, for releases that use it.
        """
        self.installation = installation
        self.directory = directory
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._admin: Any = None
        self._security = security or {}
        directory.mkdir(parents=True, exist_ok=True)
        ports = free_ports(2 * nodes)
        self._ports = dict(enumerate(ports[:nodes], 1))
        controllers = dict(enumerate(ports[nodes:], 1))
        self.bootstrap_servers = ",".join(f"127.0.0.1:{port}" for port in self._ports.values())
        self._addresses = {name: f"127.0.0.1:{port}" for name, port in (listeners or {}).items()}
        # The first byte keeps "-" from the front, which the tool would take for an option.
        cluster_id = base64.urlsafe_b64encode(b"\1" + uuid.uuid4().bytes[1:]).rstrip(b"=").decode()
        for node, port in self._ports.items():
            addresses = {PLAINTEXT: f"127.0.0.1:{port}"} | self._addresses
            form = (_ZOOKEEPER_PROPERTIES if zookeeper else _QUORUM_PROPERTIES) + _PROPERTIES
            text = form.format(
                node=node,
                zookeeper=zookeeper,
                voters=",".join(f"{i}@127.0.0.1:{port}" for i, port in controllers.items()),
                listeners=",".join(f"{name}://{address}" for name, address in addresses.items()),
                controller=controllers[node],
                data=directory / f"data{node}",
                nodes=nodes,
                acknowledging=max(1, nodes - 1),
            )
            self._file(node, "properties").write_text(text + properties(settings or {}))
            if zookeeper:
                continue
            command = installation.java("kafka.tools.StorageTool", "format", "-t", cluster_id)
            run([*command, "-c", str(self._file(node, "properties"))], timeout_s=START_TIMEOUT_S)

    def _file(self, node: int, kind: str) -> Path:
        return self.directory / f"node{node}.{kind}"

    @property
    def pids(self) -> list[int]:
        """Process ids of the nodes. Raises MeasurementError if Kafka does not run."""
        if not self.processes:
            raise MeasurementError("Kafka is not running")
        return [process.pid for process in self.processes.values()]

    def address(self, listener: str) -> str:
        """Bootstrap servers at a listener; those of PLAINTEXT for a name that is not a listener."""
        return self._addresses.get(listener, self.bootstrap_servers)

    def client(self, listener: str) -> dict[str, str]:
        """Settings of a Java client at a listener, its addresses among them."""
        return {"bootstrap.servers": self.address(listener)} | dict(self._security.get(listener, {}))

    def start(self) -> float:
        """Start all nodes. Returns the seconds until a client has metadata. Raises MeasurementError."""
        begun = time.perf_counter()
        for node in self._ports:
            self.start_node(node)
        for node, port in self._ports.items():
            while not answers(port):
                if self.processes[node].poll() is not None or time.perf_counter() > begun + START_TIMEOUT_S:
                    last = self._file(node, "log").read_text(errors="replace")[-2000:]
                    self.stop(kill=True)
                    raise MeasurementError(f"node {node} of Kafka did not start: {last}")
                time.sleep(0.005)
        self.admin().list_topics(timeout=START_TIMEOUT_S)
        return time.perf_counter() - begun

    def start_node(self, node: int) -> None:
        """Start one node and do not wait for it."""
        with self._file(node, "log").open("ab") as log:
            self.processes[node] = subprocess.Popen(
                self.installation.java("kafka.Kafka", str(self._file(node, "properties"))),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def end_node(self, node: int, *, kill: bool = False) -> None:
        """End a node cleanly, or as a crash would: with `kill`, or after a minute."""
        process = self.processes[node]
        process.kill() if kill else process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def stop(self, *, kill: bool = False) -> None:
        """End all nodes; a second call does nothing."""
        for process in self.processes.values():
            process.kill() if kill else process.terminate()
        for node in self.processes:
            self.end_node(node, kill=kill)
        self.processes.clear()

    def admin(self) -> Any:
        """The server's admin client. It lives as long as the server: its futures fail when it is collected."""
        if self._admin is None:
            from confluent_kafka.admin import AdminClient

            self._admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 2})
        return self._admin

    def create_topic(self, partitions: int, configs: Mapping[str, str] | None = None) -> str:
        """Create a topic, without waiting for its leaders; returns its name."""
        from confluent_kafka.cimpl import NewTopic

        name, nodes = f"t{uuid.uuid4().hex[:12]}", len(self._ports)
        settings = {"min.insync.replicas": str(max(1, nodes - 1)), **(configs or {})}
        new = NewTopic(name, num_partitions=partitions, replication_factor=nodes, config=settings)
        self.admin().create_topics([new], operation_timeout=60)[name].result(120)
        return name

    def wait_for_partitions(self, topic: str, partitions: Sequence[int], timeout_s: float = 120.0) -> None:
        """Wait until a client knows the ends of `partitions`: Kafka acknowledges a create earlier. Raises
        MeasurementError."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": "bench", "log_level": 2})
        deadline = time.monotonic() + timeout_s
        waiting = list(partitions)
        while waiting:
            try:
                consumer.get_watermark_offsets(TopicPartition(topic, waiting[-1]), timeout=30)
                waiting.pop()
            except KafkaException as e:  # it has no leader yet
                if time.monotonic() > deadline:
                    raise MeasurementError(f"partition {waiting[-1]} of {topic} did not come: {e}") from e
                time.sleep(0.005)
        consumer.close()

    def delete_topic(self, name: str) -> None:
        self.admin().delete_topics([name], operation_timeout=60)[name].result(120)

    def topic_bytes(self, topic: str) -> float:
        """Size of a topic's segments on one node's disk, without indexes."""
        found = self.directory.glob(f"data*/{topic}-[0-9]*")
        return sum(directory_bytes(d, "*.log") for d in found) / len(self._ports)

    @contextlib.contextmanager
    def topic(self, partitions: int, *, configs: Mapping[str, str] | None = None, wait: bool = True) -> Iterator[str]:
        """Create a topic for the time of the block; with `wait` all its partitions have leaders."""
        name = self.create_topic(partitions, configs)
        try:
            if wait:
                self.wait_for_partitions(name, range(partitions))
            yield name
        finally:
            self.delete_topic(name)

    def produce(
        self, topic: str, records: int, payload_file: Path, settings: Mapping[str, str], *, rate: int = -1
    ) -> tuple[dict[str, float], Finished]:
        """Run kafka-producer-perf-test: records/s and latency percentiles as it prints them. `rate` -1: no limit."""
        config = self._config(topic, self.client(PLAINTEXT) | PRODUCER_SETTINGS | dict(settings))
        options = {"topic": topic, "num-records": records, "throughput": rate, "payload-file": payload_file}
        found, done = self._tool("ProducerPerformance", *_arguments(options | {"producer.config": config}))
        if found["records"] < records:
            raise MeasurementError(f"Kafka acknowledged {found['records']:.0f} of {records} records: {done.stdout!r}")
        return found, done

    def consume(self, topic: str, records: int, listener: str = PLAINTEXT) -> tuple[dict[str, float], Finished]:
        """Run kafka-consumer-perf-test with fetches of 10 MiB."""
        options = {"bootstrap-server": self.address(listener), "topic": topic, "fetch-size": FETCH_BYTES}
        options |= {"command-config": self._config(topic, self.client(listener)), "messages": records}
        return self._tool("ConsumerPerformance", *_arguments(options))

    def round_trips(self, topic: str, records: int, value_bytes: int) -> tuple[dict[str, float], Finished]:
        """Run EndToEndLatency: one record after the other, acks=all."""
        return self._tool("EndToEndLatency", self.bootstrap_servers, topic, records, "all", value_bytes)

    def _config(self, topic: str, settings: Mapping[str, str]) -> Path:
        path = self.directory / f"{topic}.client.properties"
        path.write_text(properties(settings))
        return path

    def _tool(self, name: str, *arguments: object) -> tuple[dict[str, float], Finished]:
        command = self.installation.java(f"org.apache.kafka.tools.{name}", *map(str, arguments))
        done = run(command, timeout_s=TOOL_TIMEOUT_S)
        return parse(name, done.stdout), done


def _arguments(options: Mapping[str, object]) -> list[object]:
    return [part for name, value in options.items() for part in (f"--{name}", value)]


def properties(settings: Mapping[str, str]) -> str:
    """The text of a Java properties file; values without backslashes and line ends."""
    return "".join(f"{k}={v}\n" for k, v in settings.items())


_NUMBER = r"([\d.]+)"
_RESULTS = {
    "ProducerPerformance": (
        rf"{_NUMBER} records sent, {_NUMBER} records/sec.*? {_NUMBER} ms avg latency, {_NUMBER} ms max latency, "
        rf"{_NUMBER} ms 50th, {_NUMBER} ms 95th, {_NUMBER} ms 99th",
        ("records", "records_per_s", "average_ms", "max_ms", "p50_ms", "p95_ms", "p99_ms"),
    ),
    # with the columns fetch.MB.sec and fetch.nMsg.sec: the rate without the group's rebalance
    "ConsumerPerformance": (
        rf"(?m)^[^,]+, [^,]+, [\d.]+, [\d.]+, {_NUMBER}, {_NUMBER}, \d+, \d+, {_NUMBER}, {_NUMBER}$",
        ("records", "records_per_s_with_rebalance", "mib_per_s", "records_per_s"),
    ),
    "EndToEndLatency": (
        rf"(?s)Avg latency: {_NUMBER} ms.*50th = {_NUMBER}, 99th = {_NUMBER}, 99\.9th = {_NUMBER}",
        ("average_ms", "p50_ms", "p99_ms", "p999_ms"),
    ),
}
"""By tool: a pattern of its last result, and the names of the numbers."""


def parse(tool: str, text: str) -> dict[str, float]:
    """The numbers that a tool of Kafka has printed last. Raises MeasurementError."""
    pattern, names = _RESULTS[tool]
    found = list(re.finditer(pattern, text))
    if not found:
        raise MeasurementError(f"{tool} printed no result: {text[-500:]!r}")
    return dict(zip(names, map(float, found[-1].groups()), strict=True))


def answers(port: int) -> bool:
    """True if a server listens on the port of loopback."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
