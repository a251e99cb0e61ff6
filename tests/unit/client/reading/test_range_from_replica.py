"""A range is read from a replica in the reader's rack, and missing records from its leader."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sparklog.client.net.cluster import Cluster
from sparklog.client.net.cluster import cluster as cluster_of
from sparklog.client.reading.consumed import records_of
from sparklog.client.reading.range_reader import Fetching, read_range
from sparklog.protocol.apis import Api
from tests.support.clients import TP0, fill
from tests.unit.client.fake_broker import DROP
from tests.unit.client.fake_cluster import FakeCluster


@pytest.fixture
def fakes() -> Iterator[FakeCluster]:
    made = FakeCluster(brokers=3, partitions=1)
    fill(made.brokers[0], 5)
    made.preferred = {0: 2}
    yield made
    made.close()


def offsets(shared: Cluster, rack: str) -> list[int]:
    batches = read_range(shared, TP0, 0, 50, local="off", fetching=Fetching(max_bytes=2_000, rack=rack))
    return [r.offset for batch in batches for r in records_of(batch)]


def served(fakes: FakeCluster, broker: int) -> int:
    return sum(api is Api.FETCH for api, _ in fakes.brokers[broker].requests)


def test_the_replica_serves_it(fakes: FakeCluster) -> None:
    assert offsets(cluster_of(fakes.address), "b") == list(range(50))
    assert served(fakes, 0) == 1
    assert served(fakes, 2) > 1


def test_without_a_rack_the_leader_does(fakes: FakeCluster) -> None:
    assert offsets(cluster_of(fakes.address), "") == list(range(50))
    assert served(fakes, 2) == 0


@pytest.mark.parametrize("how", ["error", "gone"])
def test_when_it_fails_the_leader_does(fakes: FakeCluster, how: str) -> None:
    if how == "error":
        fakes.replicas_fail = True
    else:
        fakes.brokers[2].hook = lambda api, message: DROP
    assert offsets(cluster_of(fakes.address), "b") == list(range(50))
    assert served(fakes, 0) > 1
