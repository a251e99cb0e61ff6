"""Several gateways of one broker: one of them serves the broker's Kafka clients, and another one replaces it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

import sparklog
from sparklog.client.local import LocalBroker
from tests.support.kafka_wire import KafkaWire
from tests.support.waiting import PATIENCE_S, until

StartGateway = Callable[[LocalBroker], subprocess.Popen[str]]


@pytest.fixture
def start_gateway() -> Iterator[StartGateway]:
    """Starts gateways by hand; they are gone after the test."""
    with ExitStack() as stack:

        def start(broker: LocalBroker) -> subprocess.Popen[str]:
            command = [sys.executable, "-m", "sparklog.cli", "gateway", "kafka", "--listen", "127.0.0.1:0"]
            gateway = subprocess.Popen(
                [*command, "--bootstrap-servers", broker.bootstrap_servers],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(gateway.communicate)
            stack.callback(gateway.kill)
            return gateway

        yield start


def address_of(gateway: subprocess.Popen[str]) -> str:
    """The address in the gateway's first line of output."""
    assert gateway.stdout is not None
    line = gateway.stdout.readline()
    assert line.startswith("listening on "), gateway.communicate()
    return line.split()[-1].rpartition("//")[2]


def test_a_broker_with_a_gateway_takes_no_second_one(tmp_path: Path, start_gateway: StartGateway) -> None:
    with sparklog.start_local(tmp_path / "data", kafka=True) as broker:
        output, errors = start_gateway(broker).communicate(timeout=PATIENCE_S)
    assert output == ""
    assert "is refused: this broker has a gateway of its own" in errors
    assert broker.kafka_bootstrap_servers in errors


def test_a_killed_gateway_is_replaced_by_the_next_and_no_record_is_read_twice(
    tmp_path: Path, start_gateway: StartGateway
) -> None:
    with sparklog.start_local(tmp_path / "data") as broker:
        first = start_gateway(broker)
        address = address_of(first)
        output, errors = start_gateway(broker).communicate(timeout=PATIENCE_S)
        assert output == ""
        assert f"gateway {address} (process {first.pid}" in errors

        producer = Producer({"bootstrap.servers": address})
        for i in range(40):
            producer.produce("events", b"%d" % i, partition=0)
        assert producer.flush(PATIENCE_S) == 0
        first.kill()
        address = address_of(start_gateway(broker))
        consumer = Consumer({"bootstrap.servers": address, "group.id": "g", "auto.offset.reset": "earliest"})
        consumer.subscribe(["events"])
        values: list[bytes | None] = []

        def is_read() -> bool:
            values.extend(m.value() for m in consumer.consume(100, 0.2) if m.error() is None)
            return len(values) >= 40

        until(is_read, "all records")
        consumer.close()
        assert values == [b"%d" % i for i in range(40)]


@pytest.mark.nightly
def test_a_gateway_whose_host_is_stuck_is_replaced_after_a_session(tmp_path: Path, start_gateway: StartGateway) -> None:
    """The connections of a stopped process stay open, as those of a host that is gone."""
    with sparklog.start_local(tmp_path / "data") as broker:
        first = start_gateway(broker)
        former = address_of(first)
        first.send_signal(signal.SIGSTOP)
        address = address_of(start_gateway(broker))
        producer = Producer({"bootstrap.servers": address})
        producer.produce("events", b"x")
        assert producer.flush(PATIENCE_S) == 0
        first.send_signal(signal.SIGCONT)
        with KafkaWire(former) as wire, pytest.raises(ConnectionError):
            wire.ask("Metadata", 4, {"topics": [{"name": "events"}], "allow_auto_topic_creation": False})
