"""Reading ranges through the socket, against a fake broker: clipping, damage, lost ranges, a broken connection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from sparklog.client.net.cluster import Cluster, cluster
from sparklog.client.net.cluster import cluster as cluster_of
from sparklog.client.reading.consumed import records_of
from sparklog.client.reading.range_reader import Fetching, read_range
from sparklog.errors import (
    CorruptBatchError,
    DataLossError,
    InvalidRequestError,
)
from sparklog.protocol import messages as m
from sparklog.protocol.apis import Api
from tests.support.clients import TP0, fill
from tests.unit.client.fake_broker import DROP, FakeBroker
from tests.unit.client.fake_cluster import FakeCluster


def values(fake: FakeBroker, start: int, end: int, **how: Any) -> list[bytes]:
    batches = read_range(cluster(fake.address), TP0, start, end, local="off", **how)
    return [v for b in batches for v in b.data.column("value").to_pylist()]


@pytest.mark.parametrize(("start", "end"), [(0, 100), (0, 1), (99, 100), (13, 77), (10, 20), (5, 5)])
def test_ranges_are_clipped(fake: FakeBroker, start: int, end: int) -> None:
    fill(fake, 10)
    assert values(fake, start, end) == [b"%d" % i for i in range(start, end)]


ONE_BATCH = Fetching(max_bytes=1)
"""Each fetch brings one batch."""


def test_a_range_is_fetched_by_its_settings(fake: FakeBroker) -> None:
    fill(fake, 10)
    asked = []

    def hook(api: Api, message: Any) -> None:
        if api is Api.FETCH:
            asked.append((message.max_bytes, message.partitions[0].max_bytes, message.max_wait_ms))

    fake.hook = hook
    assert len(values(fake, 0, 100, fetching=Fetching(1, 70, 100))) == 100
    assert set(asked) == {(1, 1, 50)} and len(asked) >= 10, "the wait leaves half the time for the answer"


def test_a_range_survives_a_broken_connection_without_repeating_rows(fake: FakeBroker) -> None:
    fill(fake, 10)
    count = 0

    def hook(api: Api, message: Any) -> str | None:
        nonlocal count
        count += api is Api.FETCH
        return DROP if api is Api.FETCH and count % 3 == 0 else None

    fake.hook = hook
    assert values(fake, 4, 96, fetching=ONE_BATCH) == [b"%d" % i for i in range(4, 96)]


def test_lost_ranges_are_named(fake: FakeBroker) -> None:
    fill(fake, 10)
    fake.log_start[("events", 0)] = 20
    with pytest.raises(DataLossError, match=r"offsets 5 to 19 of events-0.*starts at offset 20"):
        values(fake, 5, 50)
    with pytest.raises(DataLossError, match=r"offsets 120 to 149 of events-0"):
        values(fake, 120, 150)
    with pytest.raises(DataLossError, match=r"offsets 100 to 109"):
        values(fake, 90, 110, retry_timeout_ms=0)
    with pytest.raises(InvalidRequestError):
        values(fake, 5, 4)


def test_a_gap_in_the_log_is_passed_over(fake: FakeBroker) -> None:
    """Compaction leaves gaps; deletions by retention lie below the log start and are noticed there."""
    fill(fake, 3)
    del fake.logs[("events", 0)][1]
    assert values(fake, 0, 30) == [b"%d" % i for i in [*range(10), *range(20, 30)]]


def test_damage_in_a_range(fake: FakeBroker) -> None:
    fill(fake, 3)
    fake.logs[("events", 0)][1][-1] ^= 1
    with pytest.raises(CorruptBatchError, match="offset 10"):
        values(fake, 0, 30)
    assert len(values(fake, 0, 30, check_crcs=False)) == 30


def test_unrequested_batches_end_the_read(fake: FakeBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the reader would fetch them again for ever."""
    fill(fake, 3)
    honest = fake._fetch

    def repeated(message: m.FetchRequest, code: int) -> tuple[m.FetchResponse, bytes]:
        first = msgspec.structs.replace(message.partitions[0], fetch_offset=0)
        return honest(msgspec.structs.replace(message, partitions=[first]), code)

    monkeypatch.setattr(fake, "_fetch", repeated)
    found = read_range(cluster(fake.address), TP0, 0, 30, local="off", fetching=ONE_BATCH)
    assert next(found).next_offset == 10
    with pytest.raises(CorruptBatchError, match="a fetch from offset 10 only has batches before it"):
        next(found)


def test_an_abandoned_range_does_not_return_a_busy_connection(fake: FakeBroker) -> None:
    fill(fake, 10)
    generator = read_range(cluster(fake.address), TP0, 0, 100, local="off", fetching=ONE_BATCH)
    assert next(generator).base_offset == 0
    generator.close()  # type: ignore[attr-defined]
    assert values(fake, 0, 100) == [b"%d" % i for i in range(100)]


# A range is read from a replica in the reader's rack, and missing records from its leader


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
