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

from .processes import Finished, MeasurementError, directory_bytes, run

KAFKA_VERSION = "4.3.0"
SPARK_VERSION = "4.2.0"
CACHE_VARIABLE = "SPARKLOG_BENCH_CACHE"
TOKEN_JAR_VARIABLE = "SPARKLOG_BENCH_TOKEN_JAR"
INSTALL_TIMEOUT_S = 1200.0
START_TIMEOUT_S = 60.0
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
PRODUCER_SETTINGS = {
    "batch.size": "1048576",
    "linger.ms": "20",
    "buffer.memory": "134217728",
    "max.request.size": "8388608",
}
FETCH_BYTES = 10 * 1024 * 1024

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>sparklog.bench</groupId><artifactId>{name}</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies></project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
_SERVER_JARS = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3"),
)
_TOKEN_JAR = ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13")
TOKEN_JAR_VERSIONS = (SPARK_VERSION, "4.0.0")  # its classes did not change, and not every mirror has every release
_LOG4J = """<Configuration status="WARN"><Appenders><Console name="c" target="SYSTEM_ERR">
<PatternLayout pattern="%d %p %m%n"/></Console></Appenders>
<Loggers><Root level="WARN"><AppenderRef ref="c"/></Root></Loggers></Configuration>
"""
_PROPERTIES = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners={listeners},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={listeners}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.segment.delete.delay.ms=1000
"""


def cache_directory() -> Path:
    """Where peers are installed: $SPARKLOG_BENCH_CACHE, else ~/.cache/sparklog-bench."""
    return Path(os.environ.get(CACHE_VARIABLE) or Path.home() / ".cache" / "sparklog-bench")


class KafkaInstallation:
    """The jars of the server, its tools, and the one jar of Spark's connector that Spark's resolver leaves out."""

    def __init__(self, directory: Path | None = None) -> None:
        self.directory = directory or cache_directory()
        self.libs = self.directory / f"kafka-{KAFKA_VERSION}"

    def install(self) -> None:
        """Downloads the server and its tools unless they are there. Raises MeasurementError."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._copy(self.libs, _SERVER_JARS, transitive=True)
        (self.directory / "log4j2.xml").write_text(_LOG4J)

    def _copy(self, target: Path, jars: Sequence[tuple[str, str, str]], *, transitive: bool) -> None:
        if target.exists():
            return
        if not shutil.which("mvn"):
            raise MeasurementError("Maven is needed to install Kafka: put `mvn` on the PATH (package maven)")
        partial = target.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        pom = self.directory / f"{target.name}.pom.xml"
        pom.write_text(_POM.format(name=target.name, dependencies="".join(_DEPENDENCY.format(*jar) for jar in jars)))
        command = ["mvn", "-q", "-B", f"-Dmaven.repo.local={self.directory / 'm2'}", "-f", str(pom)]
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={partial}"]
        run(command if transitive else [*command, "-DexcludeTransitive=true"], timeout_s=INSTALL_TIMEOUT_S)
        partial.rename(target)

    def java(self, main: str, *arguments: str) -> list[str]:
        """The command that runs a Kafka class."""
        log = f"-Dlog4j2.configurationFile={self.directory / 'log4j2.xml'}"
        return ["java", *JVM_OPTIONS, log, "-cp", f"{self.libs}/*", main, *arguments]

    def token_jar(self) -> Path:
        """The delegation-token jar that Spark's connector needs beside it: $SPARKLOG_BENCH_TOKEN_JAR, else from
        Maven."""
        given = os.environ.get(TOKEN_JAR_VARIABLE)
        if given:
            return Path(given)
        targets = [(version, self.directory / f"spark-token-provider-{version}") for version in TOKEN_JAR_VERSIONS]
        refusals: list[str] = []
        for version, libs in sorted(targets, key=lambda target: not target[1].exists()):
            try:
                self._copy(libs, ((*_TOKEN_JAR, version),), transitive=False)
                return next(libs.glob("*.jar"))
            except MeasurementError as e:
                refusals.append(str(e))
        raise MeasurementError("\n".join(refusals))


class KafkaServer:
    """One broker that is its own controller, on free ports, with its data under `directory`."""

    def __init__(
        self,
        installation: KafkaInstallation,
        directory: Path,
        *,
        listeners: Mapping[str, int] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`listeners`: ports of those beside PLAINTEXT, by their names; `settings`: further ones of the broker."""
        self.installation = installation
        self.directory = directory
        self.data = directory / "data"
        self.process: subprocess.Popen[bytes] | None = None
        self._admin: Any = None
        directory.mkdir(parents=True, exist_ok=True)
        self.port, controller = free_ports(2)
        self.bootstrap_servers = f"127.0.0.1:{self.port}"
        self._properties = directory / "server.properties"
        places = {"PLAINTEXT": self.port} | dict(listeners or {})
        text = _PROPERTIES.format(
            listeners=",".join(f"{name}://127.0.0.1:{port}" for name, port in places.items()),
            controller=controller,
            data=self.data,
        )
        self._properties.write_text(text + properties(settings or {}))
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        while cluster_id.startswith("-"):  # it would be taken for an option
            cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
        run(
            installation.java("kafka.tools.StorageTool", "format", "-t", cluster_id, "-c", str(self._properties)),
            timeout_s=START_TIMEOUT_S,
        )

    @property
    def pid(self) -> int:
        if self.process is None:
            raise MeasurementError("Kafka is not running")
        return self.process.pid

    def start(self) -> float:
        """Starts the broker; returns the seconds until a client has got metadata from it."""
        begun = time.perf_counter()
        with (self.directory / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                self.installation.java("kafka.Kafka", str(self._properties)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        while not answers(self.port):
            if self.process.poll() is not None or time.perf_counter() > begun + START_TIMEOUT_S:
                last = (self.directory / "server.log").read_text(errors="replace")[-2000:]
                self.kill()
                raise MeasurementError(f"Kafka did not start: {last}")
            time.sleep(0.005)
        self.admin().list_topics(timeout=START_TIMEOUT_S)
        return time.perf_counter() - begun

    def stop(self) -> None:
        """Ends it cleanly; again is fine."""
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.kill()
            self.process = None

    def kill(self) -> None:
        """Ends it as a crash would."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def admin(self) -> Any:
        """One client for the server's life: what it is asked for fails when it is collected."""
        if self._admin is None:
            from confluent_kafka.admin import AdminClient

            self._admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 2})
        return self._admin

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str] | None = None) -> None:
        from confluent_kafka.cimpl import NewTopic

        new = NewTopic(name, num_partitions=partitions, replication_factor=1, config=dict(configs or {}))
        self.admin().create_topics([new], operation_timeout=60)[name].result(120)

    def wait_for_partitions(self, topic: str, partitions: Sequence[int], timeout_s: float = 120.0) -> None:
        """Until a client knows the ends of `partitions`: a create is acknowledged before that. Raises
        MeasurementError."""
        from confluent_kafka import Consumer, KafkaException, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.bootstrap_servers, "group.id": "bench", "log_level": 2})
        deadline = time.monotonic() + timeout_s
        waiting = list(partitions)
        while waiting:
            try:
                consumer.get_watermark_offsets(TopicPartition(topic, waiting[-1]), timeout=5.0)
                waiting.pop()
            except KafkaException as e:  # it has no leader yet
                if time.monotonic() > deadline:
                    raise MeasurementError(f"partition {waiting[-1]} of {topic} did not come: {e}") from e
                time.sleep(0.005)
        consumer.close()

    def delete_topic(self, name: str) -> None:
        self.admin().delete_topics([name], operation_timeout=60)[name].result(120)

    def topic_bytes(self, topic: str) -> int:
        """Bytes of a topic's segments on disk, without indexes."""
        return sum(directory_bytes(d, "*.log") for d in self.data.glob(f"{topic}-[0-9]*"))

    @contextlib.contextmanager
    def topic(self, partitions: int, configs: Mapping[str, str] | None = None, *, wait: bool = True) -> Iterator[str]:
        """A new topic for the time of the block, all of whose partitions have leaders (not with `wait=False`)."""
        name = f"t{uuid.uuid4().hex[:12]}"
        self.create_topic(name, partitions, configs)
        try:
            if wait:
                self.wait_for_partitions(name, range(partitions))
            yield name
        finally:
            self.delete_topic(name)

    def produce(
        self, topic: str, records: int, payload_file: Path, settings: Mapping[str, str], *, rate: int = -1
    ) -> tuple[dict[str, float], Finished]:
        """kafka-producer-perf-test, -1: at full speed: records/s and latency percentiles as it prints them."""
        config = self.directory / f"{topic}.producer.properties"
        lines = {"bootstrap.servers": self.bootstrap_servers} | PRODUCER_SETTINGS | dict(settings)
        config.write_text(properties(lines))
        arguments = ["--topic", topic, "--num-records", str(records), "--throughput", str(rate)]
        arguments += ["--payload-file", str(payload_file), "--producer.config", str(config)]
        done = self._tool("ProducerPerformance", *arguments)
        found = parse_producer_performance(done.stdout)
        if found["records"] < records:
            raise MeasurementError(
                f"Kafka acknowledged {found['records']:.0f} of {records} records: {done.stdout[-300:]!r}"
            )
        return found, done

    def consume(
        self, topic: str, records: int, settings: Mapping[str, str] | None = None
    ) -> tuple[dict[str, float], Finished]:
        """kafka-consumer-perf-test with fetches of 10 MiB; the rate while fetching, without the group's rebalance.
        `settings`: further ones of the consumer."""
        lines = {"bootstrap.servers": self.bootstrap_servers} | dict(settings or {})
        config = self.directory / f"{topic}.consumer.properties"
        config.write_text(properties(lines))
        arguments = ["--bootstrap-server", lines["bootstrap.servers"], "--topic", topic]
        arguments += ["--fetch-size", str(FETCH_BYTES), "--command-config", str(config)]
        done = self._tool("ConsumerPerformance", *arguments, "--messages", str(records))
        return parse_consumer_performance(done.stdout), done

    def round_trips(self, topic: str, records: int, value_bytes: int) -> tuple[dict[str, float], Finished]:
        """EndToEndLatency: one record after the other, acks=all."""
        arguments = [self.bootstrap_servers, topic, str(records), "all", str(value_bytes)]
        done = self._tool("EndToEndLatency", *arguments)
        return parse_end_to_end_latency(done.stdout), done

    def _tool(self, name: str, *arguments: str) -> Finished:
        return run(self.installation.java(f"org.apache.kafka.tools.{name}", *arguments), timeout_s=TOOL_TIMEOUT_S)


def properties(settings: Mapping[str, str]) -> str:
    """A file of Java's properties; values without backslashes and line ends."""
    return "".join(f"{k}={v}\n" for k, v in settings.items())


_PRODUCED = re.compile(
    r"(?P<records>\d+) records sent, (?P<records_per_s>[\d.]+) records/sec.*?(?P<average_ms>[\d.]+) ms avg latency, "
    r"(?P<max_ms>[\d.]+) ms max latency, (?P<p50_ms>\d+) ms 50th, (?P<p95_ms>\d+) ms 95th, (?P<p99_ms>\d+) ms 99th"
)


def parse_producer_performance(text: str) -> dict[str, float]:
    """The last line of kafka-producer-perf-test. Raises MeasurementError."""
    found = list(_PRODUCED.finditer(text))
    if not found:
        raise MeasurementError(f"kafka-producer-perf-test printed no result: {text[-500:]!r}")
    return {name: float(value) for name, value in found[-1].groupdict().items()}


def parse_consumer_performance(text: str) -> dict[str, float]:
    """The table of kafka-consumer-perf-test. Raises MeasurementError."""
    lines = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.count(",") >= 9]
    if len(lines) < 2 or "fetch.nMsg.sec" not in lines[-2]:
        raise MeasurementError(f"kafka-consumer-perf-test printed no result: {text[-500:]!r}")
    row = dict(zip(lines[-2], lines[-1], strict=True))
    return {
        "records": float(row["data.consumed.in.nMsg"]),
        "records_per_s": float(row["fetch.nMsg.sec"]),
        "mib_per_s": float(row["fetch.MB.sec"]),
        "records_per_s_with_rebalance": float(row["nMsg.sec"]),
    }


def parse_end_to_end_latency(text: str) -> dict[str, float]:
    """What EndToEndLatency prints; its percentiles are whole milliseconds. Raises MeasurementError."""
    average = re.search(r"Avg latency: ([\d.]+) ms", text)
    percentiles = re.search(r"50th = (\d+), 99th = (\d+), 99\.9th = (\d+)", text)
    if average is None or percentiles is None:
        raise MeasurementError(f"EndToEndLatency printed no result: {text[-500:]!r}")
    p50, p99, p999 = (float(p) for p in percentiles.groups())
    return {"average_ms": float(average[1]), "p50_ms": p50, "p99_ms": p99, "p999_ms": p999}


def answers(port: int) -> bool:
    """Whether somebody listens."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def free_ports(count: int) -> list[int]:
    """Of loopback."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [s.getsockname()[1] for s in sockets]
