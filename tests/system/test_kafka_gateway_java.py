"""Kafka's own console tools (Java) against the gateway."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

import sparklog
from sparklog.client.local import LocalBroker
from tests.support.kafka import KafkaInstallation
from tests.support.waiting import until

pytestmark = pytest.mark.nightly

TOOLS = "org.apache.kafka.tools"
TIMEOUT_S = 240


@pytest.fixture(scope="module")
def installation() -> KafkaInstallation:
    """Kafka's tools, downloaded at the first use."""
    found = KafkaInstallation()
    found.install()
    return found


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalBroker]:
    """A broker with a gateway."""
    with sparklog.start_local(tmp_path_factory.mktemp("java") / "data", kafka=True) as local:
        yield local


def test_the_tools_work_on_topics_groups_and_settings(kafka: LocalBroker, installation: KafkaInstallation) -> None:
    def tool(name: str, *arguments: str, given: str = "", at: str = "--bootstrap-server") -> str:
        command = installation.java(name, at, kafka.kafka_bootstrap_servers, *arguments)
        ran = subprocess.run(command, input=given, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    topics, groups = f"{TOOLS}.TopicCommand", f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    tool(topics, "--create", "--topic", "t", "--partitions", "2", "--config", "retention.ms=60000")
    described = tool(topics, "--describe", "--topic", "t")
    assert "PartitionCount: 2" in described and "retention.ms=60000" in described
    lines = "".join(f"{i}\n" for i in range(100))
    tool(f"{TOOLS}.ConsoleProducer", "--topic", "t", given=lines)
    options = ("--topic", "t", "--from-beginning", "--group", "g", "--max-messages", "100")
    consumed = tool(f"{TOOLS}.consumer.ConsoleConsumer", *options)
    assert sorted(consumed.split(), key=int) == lines.split()
    assert "g" in tool(groups, "--list").split()
    lags = [line.split() for line in tool(groups, "--describe", "--group", "g").splitlines() if line.startswith("g ")]
    assert sum(int(line[4]) for line in lags) == 100 and sum(int(line[5]) for line in lags) == 0
    tool(groups, "--group", "g", "--topic", "t", "--reset-offsets", "--to-earliest", "--execute")
    lags = [line.split() for line in tool(groups, "--describe", "--group", "g").splitlines() if line.startswith("g ")]
    assert sum(int(line[5]) for line in lags) == 100
    tool(groups, "--delete", "--group", "g")
    setting = ("--entity-type", "topics", "--entity-name", "t")
    tool("kafka.admin.ConfigCommand", "--alter", *setting, "--add-config", "max.message.bytes=2000000")
    assert "max.message.bytes=2000000" in tool("kafka.admin.ConfigCommand", "--describe", *setting)
    offsets = dict(line.rsplit(":", 1) for line in tool(f"{TOOLS}.GetOffsetShell", "--topic", "t").split())
    assert sum(map(int, offsets.values())) == 100
    tool(topics, "--alter", "--topic", "t", "--partitions", "3")
    directories = tool(f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", "t")
    assert all(f'"partition":"t-{p}"' in directories for p in range(3)), "the empty one, too"
    assert "Metadata(3): 0 to 13" in tool(f"{TOOLS}.BrokerApiVersionsCommand")
    tool(topics, "--delete", "--topic", "t")
    assert "t" not in tool(topics, "--list").split()


def test_java_producers_transactions_hold(kafka: LocalBroker, installation: KafkaInstallation, tmp_path: Any) -> None:
    """kafka-producer-perf-test with transactions of 100 ms: each record is there once, and committed."""
    payload = tmp_path / "payload"
    payload.write_text("x" * 100)
    properties = tmp_path / "producer.properties"
    properties.write_text(f"bootstrap.servers={kafka.kafka_bootstrap_servers}\n")
    command = installation.java(
        f"{TOOLS}.ProducerPerformance", "--topic", "txn", "--num-records", "20000", "--throughput", "20000",
        "--payload-file", str(payload), "--producer.config", str(properties), "--transactional-id", "perf",
        "--transaction-duration-ms", "100",
    )  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert ran.returncode == 0 and "20000 records sent" in ran.stdout, ran.stdout + ran.stderr
    table = sparklog.read_table(kafka.bootstrap_servers, "txn")
    assert table.num_rows == 20_000


def test_java_consumers_join_the_brokers_groups(kafka: LocalBroker, installation: KafkaInstallation) -> None:
    """kafka-console-consumer with group.protocol=consumer beside a consumer of sparklog, and kafka-consumer-groups."""

    def tool(name: str, *arguments: str) -> str:
        command = installation.java(name, "--bootstrap-server", kafka.kafka_bootstrap_servers, *arguments)
        ran = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout

    groups = f"{TOOLS}.consumer.group.ConsumerGroupCommand"
    tool(f"{TOOLS}.TopicCommand", "--create", "--topic", "protocol", "--partitions", "4")
    options = ("--topic", "protocol", "--group", "own", "--consumer-property", "group.protocol=consumer")
    command = installation.java(
        f"{TOOLS}.consumer.ConsoleConsumer", "--bootstrap-server", kafka.kafka_bootstrap_servers, *options
    )
    with (
        sparklog.Consumer(kafka.bootstrap_servers, group_id="own") as own,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as java,
    ):
        own.subscribe(["protocol"])
        try:
            until(
                lambda: own.poll(100) is not None and len(own.assignment()) == 4, "all partitions", within_s=TIMEOUT_S
            )
            until(
                lambda: own.poll(100) is not None and len(own.assignment()) == 2, "two partitions", within_s=TIMEOUT_S
            )
            members = tool(groups, "--describe", "--group", "own", "--members", "--verbose")
            assert members.count("protocol") >= 2 and "console-consumer" in members, members
            own.poll(100)
            state = tool(groups, "--describe", "--group", "own", "--state")
            assert "uniform" in state and "Stable" in state, state
            assert "Consumer" in tool(groups, "--list", "--type")
            setting = ("--entity-type", "groups", "--entity-name", "own")
            configs = "kafka.admin.ConfigCommand"
            tool(configs, "--alter", *setting, "--add-config", "consumer.heartbeat.interval.ms=1500")
            assert "consumer.heartbeat.interval.ms=1500" in tool(configs, "--describe", *setting)
        finally:
            java.terminate()
            java.wait(TIMEOUT_S)
        until(lambda: own.poll(100) is not None and len(own.assignment()) == 4, "the partitions of the Java consumer")
    assert "Empty" in tool(groups, "--describe", "--group", "own", "--state")
