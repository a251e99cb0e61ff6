"""The watch on a broker's session, with a real ZooKeeper."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from sparklog.client.local_zookeeper import ZooKeeperProcess, has_java
from sparklog.metadata.cluster_znodes import BROKER_IDS
from tests.campaigns.benchmarks.rows.cluster import watched_session
from tests.support.processes import MeasurementError

WAIT_S = 60.0
NODE = f"{BROKER_IDS}/2"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not has_java():
        pytest.skip("there is no Java: no ZooKeeper")
    process = ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper"))
    process.start()
    yield process.hosts
    process.kill()


@pytest.fixture
def broker(hosts: str) -> Iterator[KazooClient]:
    """The session of broker 2."""
    client = KazooClient(hosts=hosts)
    client.start(WAIT_S)
    client.create(NODE, b"here", ephemeral=True, makepath=True)
    yield client
    client.stop()
    client.close()


def test_the_end_of_the_session_is_seen_when_it_is(hosts: str, broker: KazooClient) -> None:
    with watched_session(hosts, 2) as session:
        before = time.monotonic()
        broker.stop()
        assert session(WAIT_S) >= before


def test_a_session_that_goes_on_has_no_end(hosts: str, broker: KazooClient) -> None:
    with watched_session(hosts, 2) as session:
        broker.set(NODE, b"changed")  # a watch sees this, too
        with pytest.raises(MeasurementError, match="broker 2 has not ended"):
            session(WAIT_S)


def test_an_absent_broker(hosts: str) -> None:
    with pytest.raises(MeasurementError, match="broker 7 is not registered"), watched_session(hosts, 7):
        pass
