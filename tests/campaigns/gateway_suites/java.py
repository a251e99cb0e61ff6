"""Kafka's own integration tests of its Java clients, against clusters of brokers with gateways.

The tests come compiled, in the jars of Kafka's server for tests. They inherit their cluster from a class of Kafka, for
which `stand_ins/java` has a class of the same name: it starts sparklog brokers through this process. Each test gets a
new cluster, as with Kafka: tests leave clients behind that would disturb the next one. `java.toml` has the versions and
the classes, and the tests that are refused with the reasons.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from sparklog.client.local_cluster import SESSION_TIMEOUT_MS, ClusterBroker
from sparklog.client.local_zookeeper import ZooKeeperProcess
from sparklog.errors import SparklogError
from sparklog.protocol.apis import Api
from sparklog.protocol.base import NO_VERSION
from sparklog.protocol.operation_messages import DescribeBrokerConfigsRequest, DescribeBrokerConfigsResponse
from sparklog.replication.dynamic_settings import ALL_BROKERS
from tests.campaigns.gateway_suites.controls import QuietHandler, serving
from tests.campaigns.gateway_suites.verdict import Verdict, judge
from tests.support.kafka import KafkaInstallation
from tests.support.raw_client import RawClient

HERE = Path(__file__).parent
SOURCES = HERE / "stand_ins" / "java"
NEEDS = ("java", "javac", "mvn")
"""Programs that the suite needs; java also runs the ZooKeeper of the clusters."""
TIMEOUT_S = 7_200
TEST_TIMEOUT_S = 300
ATTEMPTS = 2
"""Runs of a test that fails: some tests give a call a second, which a busy machine exceeds."""
START_TIMEOUT_S = 300.0
JUNIT = (("org.junit.platform", "junit-platform-launcher", "1.10.5"), ("org.junit.jupiter", "junit-jupiter", "5.10.5"))
MOCKITO = ("org.mockito", "mockito-core", "5.14.2")
LOGGING = ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.24.3")
SAME = (
    "auto.create.topics.enable",
    "broker.rack",
    "group.consumer.heartbeat.interval.ms",
    "group.consumer.session.timeout.ms",
    "group.max.size",
    "num.partitions",
    "offsets.topic.num.partitions",
    "producer.id.expiration.ms",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms",
    "transaction.max.timeout.ms",
    "transaction.state.log.num.partitions",
)
"""Settings of Kafka's brokers that are settings of sparklog's brokers."""
OF_TOPICS = {
    "log.message.timestamp.type": "topic.message.timestamp.type",
    "message.max.bytes": "topic.max.message.bytes",
    "min.insync.replicas": "topic.min.insync.replicas",
    "unclean.leader.election.enable": "topic.unclean.leader.election.enable",
}
"""Settings of Kafka's brokers that are defaults of topics."""
OFFSETS_FACTOR = "offsets.topic.replication.factor"
RUNNER = "runner.Runner"
TEST_JARS = ("kafka_2.13", "kafka-clients", "kafka-metadata", "kafka-server-common")
"""Jars of Kafka that have a jar of tests, too, on which the tests depend."""
STATES = ("TEST", "RUN", "PASSED", "FAILED", "SKIPPED")
_LINE = re.compile(rf"^({'|'.join(STATES)}) (\S+)(?: (.*))?$", re.MULTILINE)
_JSON = re.compile(r"-?\d+|true|false")


class Results(NamedTuple):
    """Results of a run, by the names of the tests."""

    names: set[str]
    """All tests of the classes, with those that were not chosen, and their methods without parameters."""
    passed: set[str]
    failed: set[str]
    skipped: dict[str, str]
    """The reason of each skipped test."""


def listed() -> dict[str, Any]:
    return tomllib.loads((HERE / "java.toml").read_text(encoding="utf-8"))


def verify(scratch: Path, records: int, pattern: str | None, built: Path | None = None) -> tuple[Verdict, str]:
    """The verdict on the tests whose names match `pattern` (None: all), and their output. The number of records is the
    tests' own, and Maven keeps the jars."""
    listing = listed()
    refused = listing["refused"]
    names: set[str] = set()
    passed: set[str] = set()
    failed: set[str] = set()
    skipped: dict[str, str] = {}
    output = ""
    with running_clusters(scratch / "data") as url:
        for release in listing["release"]:
            program = build(scratch / release["version"], release["version"])
            chosen = pattern or ""
            for _ in range(ATTEMPTS):
                text = run(program, url, release["classes"], chosen, refused)
                results = results_of(text)
                names |= results.names
                passed |= results.passed
                failed = failed - results.passed | results.failed
                skipped |= results.skipped
                output += text
                if not results.failed:
                    break
                chosen = f"^({'|'.join(re.escape(name) for name in sorted(results.failed))})$"
    verdict = judge(passed, failed, refused, skipped)
    return verdict._replace(outdated=verdict.outdated | (set(refused) - names)), output


def build(directory: Path, version: str) -> list[str]:
    """Compile the stand-ins for a version of Kafka, and return the command that runs them with Kafka's tests."""
    installation = KafkaInstallation()
    jars = (
        ("org.apache.kafka", "kafka_2.13", version),
        *(("org.apache.kafka", name, version, "test") for name in TEST_JARS),
        *JUNIT,
        MOCKITO,
        LOGGING,
    )
    libs = installation.classes(f"kafka-tests-{version}", jars, transitive=True)
    sources = [str(path) for path in sorted(SOURCES.rglob("*.java"))]
    subprocess.run(
        ["javac", "-nowarn", "-d", str(directory), "-cp", libs, *sources], check=True, stderr=subprocess.PIPE
    )
    services = directory / "META-INF" / "services"
    services.mkdir(parents=True)
    (services / "org.junit.jupiter.api.extension.Extension").write_text(f"{RUNNER}\n", encoding="utf-8")
    return ["java", "-Xmx1g", "-cp", os.pathsep.join((str(directory), libs)), RUNNER]


def run(program: Sequence[str], url: str, classes: Sequence[str], pattern: str, refused: Collection[str]) -> str:
    """The output of the tests whose names match `pattern`. Refused tests are left out. Tests that have not ended after
    TIMEOUT_S are ended."""
    properties = [f"-Dsparklog.control={url}", f"-Dsparklog.timeout={TEST_TIMEOUT_S} s"]
    lines = "".join(f"{name}\n" for name in sorted(refused)).encode()
    is_complete = False
    with tempfile.TemporaryFile() as output:
        with contextlib.suppress(subprocess.TimeoutExpired):
            ran = subprocess.run(
                [program[0], *properties, *program[1:], pattern, *classes],
                input=lines,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=TIMEOUT_S,
                check=False,
            )
            is_complete = ran.returncode == 0
        output.seek(0)
        text = output.read().decode(errors="replace")
    return text if is_complete else f"{text}\nFAILED {RUNNER}\n"


def results_of(output: str) -> Results:
    """The results in the output of the runner. A test without an end has failed: the JVM has ended before it."""
    lines = _LINE.findall(output)
    of_state = {state: {name for word, name, _ in lines if word == state} for state in STATES}
    names = of_state["TEST"] | {".".join(name.split(".")[:2]) for name in of_state["TEST"]}
    skipped = {name: reason for word, name, reason in lines if word == "SKIPPED"}
    passed = of_state["PASSED"]
    return Results(names, passed, (of_state["RUN"] | of_state["FAILED"]) - passed, skipped)


class Cluster:
    """The brokers of one test."""

    def __init__(self, directory: Path, zookeeper: str, settings: Mapping[str, object], count: int) -> None:
        self.settings = dict(settings)
        """Settings of its first broker, without addresses."""
        self.count = count
        """Number of brokers that the test has at first."""
        self._directory = directory
        self._zookeeper = zookeeper
        self._brokers: dict[int, ClusterBroker] = {}
        self._starts: dict[int, Future[None]] = {}
        self._threads = ThreadPoolExecutor()
        self._lock = threading.Lock()

    def begin(self, broker_id: int, settings: Mapping[str, object], port: int = 0) -> Future[None]:
        """Begin to start a broker unless its start has begun. `port`: of its gateway; 0: any."""
        with self._lock:
            broker = self._brokers.get(broker_id)
            if broker is None:
                values = {
                    "broker.id": broker_id,
                    "zookeeper.connect": self._zookeeper,
                    "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
                    "kafka.listeners": f"PLAINTEXT://localhost:{port}",
                }
                directory = self._directory / str(broker_id)
                broker = ClusterBroker(broker_id, "127.0.0.1:0", directory, {**settings, **values})
                self._brokers[broker_id] = broker
            if broker_id not in self._starts:
                self._starts[broker_id] = self._threads.submit(broker.start, START_TIMEOUT_S)
            return self._starts[broker_id]

    def port(self, broker_id: int) -> int:
        """Port of the broker's gateway, after its start."""
        return int(self._brokers[broker_id].kafka_bootstrap_servers.rpartition(":")[2])

    def settle(self) -> None:
        """Return when all running brokers have the metadata of the newest one."""
        version = NO_VERSION
        for _ in range(2):  # the second time, each broker waits for the newest version of the first
            for broker in self._brokers.values():
                if broker.running:
                    host, _, port = broker.bootstrap_servers.rpartition(":")
                    with RawClient(host, int(port)) as client:
                        request = DescribeBrokerConfigsRequest(ALL_BROKERS, at_least=version)
                        answer = client.request(Api.DESCRIBE_BROKER_CONFIGS, request, DescribeBrokerConfigsResponse)
                    version = max(version, answer.metadata_version)

    def stop(self, broker_id: int) -> None:
        """Stop the broker cleanly."""
        self._starts.pop(broker_id).result()
        self._brokers[broker_id].stop()

    def remove(self) -> None:
        """End the processes, and remove the files."""
        self._threads.shutdown()
        for broker in self._brokers.values():
            broker.kill()
        shutil.rmtree(self._directory, ignore_errors=True)


class Clusters:
    """The clusters of the tests, with one ZooKeeper. While a test runs, the cluster of the next test starts."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._zookeeper = ZooKeeperProcess(directory / "zookeeper")
        self._clusters: dict[str, Cluster] = {}
        self._spare: Cluster | None = None
        self._number = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start ZooKeeper."""
        self._zookeeper.start()

    def stop(self) -> None:
        """Stop all processes."""
        for cluster in [*self._clusters.values(), *([self._spare] if self._spare else [])]:
            cluster.remove()
        self._zookeeper.kill()

    def start_broker(self, name: str, broker_id: int, properties: Mapping[str, str], count: int) -> int:
        """Start the broker with the properties of Kafka's configuration, and return the port of its gateway. `count`:
        brokers of its cluster."""
        settings = settings_of(properties, count)
        port = int(properties["listeners"].partition(",")[0].rpartition(":")[2])
        with self._lock:
            if name not in self._clusters:
                self._clusters[name] = self._take(settings, count, can_be_spare=port == 0)
        cluster = self._clusters[name]
        cluster.begin(broker_id, settings, port).result()
        return cluster.port(broker_id)

    def _take(self, settings: Mapping[str, object], count: int, *, can_be_spare: bool) -> Cluster:
        """The spare cluster if it is alike, else a new one. Another spare is started."""
        spare, self._spare = self._spare, None
        if spare is not None and (not can_be_spare or (spare.settings, spare.count) != (settings, count)):
            spare.remove()
            spare = None
        if can_be_spare:
            self._spare = self._new(settings, count)
            for broker_id in range(count):
                self._spare.begin(broker_id, settings)
        return spare or self._new(settings, count)

    def _new(self, settings: Mapping[str, object], count: int) -> Cluster:
        self._number += 1
        name = f"cluster-{self._number}"
        return Cluster(self._directory / name, f"{self._zookeeper.hosts}/{name}", settings, count)

    def settle(self, name: str) -> None:
        """Wait until all brokers of the cluster have the same metadata."""
        self._clusters[name].settle()

    def stop_broker(self, name: str, broker_id: int) -> None:
        """Stop the broker cleanly."""
        self._clusters[name].stop(broker_id)

    def remove(self, name: str) -> None:
        """End the cluster."""
        cluster = self._clusters.pop(name, None)
        if cluster is not None:
            cluster.remove()


def settings_of(properties: Mapping[str, str], count: int) -> dict[str, object]:
    """The settings for Kafka's properties of one of `count` brokers. Internal topics have the default number of
    replicas; the stand-in sets the default of the test when they exist."""
    settings: dict[str, object] = {}
    if int(properties.get(OFFSETS_FACTOR, count)) < count:
        settings["default.replication.factor"] = int(properties[OFFSETS_FACTOR])
    for name, value in properties.items():
        if name in SAME or name in OF_TOPICS:
            settings[OF_TOPICS.get(name, name)] = json.loads(value) if _JSON.fullmatch(value) else value
    return settings


@contextlib.contextmanager
def running_clusters(directory: Path) -> Iterator[str]:
    """Serve the orders of the stand-ins for brokers, and yield the URL."""
    clusters = Clusters(directory)

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer: dict[str, object] = {}
            status = 200
            try:
                _, _, cluster, *rest = self.path.split("/")
                if rest == ["remove"]:
                    clusters.remove(cluster)
                elif rest == ["settle"]:
                    clusters.settle(cluster)
                elif rest[-1] == "start":
                    port = clusters.start_broker(cluster, int(rest[1]), body["properties"], body["count"])
                    answer["port"] = port
                else:
                    clusters.stop_broker(cluster, int(rest[1]))
            except (SparklogError, OSError, LookupError, ValueError) as e:
                status, answer = 500, {"error": repr(e)}
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Connection", "close")  # otherwise Java's client can send an order on a closed connection
            self.end_headers()
            self.wfile.write(content)

    clusters.start()
    try:
        with serving(Handler) as url:
            yield url
    finally:
        clusters.stop()
