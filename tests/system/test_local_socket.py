"""Clients on the broker's host send and read through its Unix socket, and only they."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparklog
from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.connection import Connection, connect_for_data
from sparklog.protocol.apis import Api
from sparklog.protocol.topic_messages import MetadataRequest, MetadataResponse
from tests.system.broker_process import BrokerProcess
from tests.system.cutting_proxy import CuttingProxy


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    directory = tmp_path_factory.mktemp("broker")
    process = BrokerProcess(directory / "data", work_dir=directory)
    yield process
    assert process.stop() == 0


def family_of(connection: Connection) -> socket.AddressFamily:
    with socket.socket(fileno=os.dup(connection.fileno())) as copy:
        return socket.AddressFamily(copy.family)


def test_records_go_through_it_and_come_back(broker: BrokerProcess) -> None:
    with sparklog.Admin(broker.address) as admin:
        admin.create_topic("t", partitions=1)
    values = [b"%07d" % i * 100 for i in range(20_000)]
    with sparklog.Producer(broker.address) as producer:
        producer.send_batch("t", {"value": values})
        producer.flush()
    read = sparklog.read_table(broker.address, "t", local="off")
    assert read.column("value").to_pylist() == values
    with sparklog.Consumer(broker.address) as consumer:
        consumer.assign([sparklog.TopicPartition("t", 0)])
        got: list[bytes] = []
        while len(got) < len(values):
            got += [v for b in consumer.poll_batches(10_000) for v in b.data.column("value").to_pylist()]
    assert got == values


def test_data_go_through_it_and_metadata_through_tcp(broker: BrokerProcess) -> None:
    connection = connect_for_data(Endpoint(broker.host, broker.port))
    assert family_of(connection) is socket.AF_UNIX
    answer, _ = connection.request(Api.METADATA, MetadataRequest([]), MetadataResponse)
    assert [(b.host, b.port) for b in answer.brokers] == [(broker.host, broker.port)]
    connection.close()
    connection = Connection(Endpoint(broker.host, broker.port))
    assert family_of(connection) is socket.AF_INET
    connection.close()


def test_a_proxy_is_not_gone_around(broker: BrokerProcess) -> None:
    proxy = CuttingProxy(broker.host, broker.port, lambda _: False)
    try:
        connection = connect_for_data(Endpoint("127.0.0.1", proxy.port))
        assert family_of(connection) is socket.AF_INET
        assert connection.broker.local_socket == ""
        connection.close()
    finally:
        proxy.close()


def test_it_is_not_offered_when_switched_off(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", settings="local.socket.enabled = false", work_dir=tmp_path)
    connection = connect_for_data(Endpoint(broker.host, broker.port))
    assert family_of(connection) is socket.AF_INET
    connection.close()
    assert broker.stop() == 0


def test_tcp_is_kept_without_room_for_another_connection(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data", settings="max.connections = 1", work_dir=tmp_path)
    connection = connect_for_data(Endpoint(broker.host, broker.port))
    assert connection.broker.local_socket
    assert family_of(connection) is socket.AF_INET
    connection.request(Api.METADATA, MetadataRequest([]), MetadataResponse)
    connection.close()
    assert broker.stop() == 0
