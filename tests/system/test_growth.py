"""One broker becomes the first of three by a setting, under load, and nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sparklog
from sparklog.client.local_zookeeper import ZooKeeperProcess, has_java
from sparklog.errors import BrokerNotAvailableError
from sparklog.metadata.local_coordination import METADATA_FILE
from sparklog.types import TopicPartition
from tests.system import filled_directory

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper"),
]


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperProcess]:
    process = ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper"))
    process.start()
    yield process
    process.kill()


def start(directory: Path, port: int, connect: str = "", broker_id: int = 0, **more: Any) -> sparklog.LocalBroker:
    settings = {"broker.id": broker_id, **more}
    if connect:
        settings |= {"zookeeper.connect": connect, "zookeeper.session.timeout.ms": 6_000}
    started = sparklog.start_local(directory, listen=f"127.0.0.1:{port}", settings=settings, timeout_s=60)
    assert isinstance(started, sparklog.LocalBroker)
    return started


class Load:
    """A producer that is idempotent, and one with transactions, which go on whatever happens to the broker."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._ended = threading.Event()
        self.sent = {"plain": 0, "transactional": 0}
        self.errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(run,)) for run in (self._plain, self._transactional)
        ]
        for thread in self._threads:
            thread.start()

    def _guarded(self, run: Any) -> None:
        try:
            run()
        except BaseException as e:  # noqa: BLE001 - told at the end
            self.errors.append(e)

    def _plain(self) -> None:
        with sparklog.Producer(bootstrap_servers=self._servers, delivery_timeout_ms=120_000) as producer:
            while not self._ended.is_set():
                producer.send("events", value=b"p%d" % self.sent["plain"], partition=0).result(120)
                self.sent["plain"] += 1

    def _transactional(self) -> None:
        with sparklog.Producer(
            bootstrap_servers=self._servers, transactional_id="load", delivery_timeout_ms=120_000
        ) as producer:
            producer.init_transactions()
            while not self._ended.is_set():
                producer.begin_transaction()
                for partition in (1, 2):
                    producer.send("events", value=b"t%d" % self.sent["transactional"], partition=partition)
                producer.commit_transaction()
                self.sent["transactional"] += 1

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(120)
        assert not self.errors, self.errors


def test_a_broker_grows_under_load_without_a_loss(tmp_path: Path, zookeeper: ZooKeeperProcess) -> None:
    connect = f"{zookeeper.hosts}/grown"
    directory = tmp_path / "data"
    tier: dict[str, Any] = {"remote.log.storage.url": (tmp_path / "tier").as_uri()}
    with start(directory, 0, **filled_directory.SETTINGS, **tier) as alone:
        servers, port = alone.bootstrap_servers, int(alone.bootstrap_servers.rpartition(":")[2])
        filled_directory.fill(servers)
        opened = sparklog.Producer(bootstrap_servers=servers, transactional_id="open", delivery_timeout_ms=120_000)
        opened.init_transactions()
        opened.begin_transaction()
        opened.send("events", value=b"open", partition=3)
        opened.flush()
        load = Load(servers)
        with sparklog.Admin(servers) as admin:
            before = filled_directory.facts(admin)
    grown = start(directory, port, connect, **filled_directory.SETTINGS, **tier)
    with grown, start(tmp_path / "b", 0, connect, 1, **tier), start(tmp_path / "c", 0, connect, 2, **tier):
        assert not (directory / METADATA_FILE).exists()
        opened.commit_transaction()
        opened.close()
        with sparklog.Admin(servers) as admin:
            after = filled_directory.facts(admin)
            before["transactions"] = after["transactions"] = []  # they go on
            assert after == before
            admin.alter_partition_reassignments({TopicPartition("events", p): [2, 1, 0] for p in range(4)})
            while admin.list_partition_reassignments():
                pass
            load.end()
            assert {b.broker_id for b in admin.describe_cluster().brokers} == {0, 1, 2}
        values = sparklog.read_table(servers, "events").column("value").to_pylist()
        expected = [b"%d" % i for i in range(301)] + [b"open"] + [b"p%d" % i for i in range(load.sent["plain"])]
        expected += [b"t%d" % i for i in range(load.sent["transactional"]) for _ in range(2)]
        assert sorted(values) == sorted(expected)
        assert load.sent["plain"] and load.sent["transactional"]
    with pytest.raises(BrokerNotAvailableError, match="is the directory of broker 0 of cluster"):
        start(directory, 0)  # alone no more


def test_a_zookeeper_with_another_cluster_is_refused_without_a_change(
    tmp_path: Path, zookeeper: ZooKeeperProcess
) -> None:
    connect = f"{zookeeper.hosts}/taken"
    with start(tmp_path / "first", 0, connect):
        pass
    with start(tmp_path / "other", 0) as broker, sparklog.Admin(broker.bootstrap_servers) as admin:
        admin.create_topic("kept")
    with pytest.raises(BrokerNotAvailableError, match=r"is not empty .*name an empty path"):
        start(tmp_path / "other", 0, connect, 0)
    with start(tmp_path / "other", 0) as broker, sparklog.Admin(broker.bootstrap_servers) as admin:
        assert admin.list_topics() == ["kept"]
