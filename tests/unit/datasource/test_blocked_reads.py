"""Warnings of a reader that waits behind an open transaction."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark_sparklog.options.cluster_address import ClusterAddress
from pyspark_sparklog.source import blocked_reads
from pyspark_sparklog.source.blocked_reads import AGAIN_S, CHECK_INTERVAL_S, BlockedReads
from pyspark_sparklog.source.catalog import Catalog
from pyspark_sparklog.source.planning import Extent

from sparklog.errors import BrokerNotAvailableError
from sparklog.protocol.transaction_messages import (
    DescribeProducersResponse,
    ProducerState,
    TransactionDetails,
    TransactionSummary,
)
from sparklog.types import READ_COMMITTED, READ_UNCOMMITTED, TopicPartition

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
STARTED_S = 1_000.0


class Cluster:
    """Partition 1 has offsets to 9, of which those from 5 on belong to open transactions."""

    def __init__(self) -> None:
        self.owner: str | None = "__shared:app"
        self.asked = 0
        self.now_s = STARTED_S + CHECK_INTERVAL_S

    def extents(self, partitions: Any) -> dict[TopicPartition, Extent]:
        self.asked += 1
        return {T0: Extent(0, 3), T1: Extent(0, 9)}

    def producers(self, call: Any, tp: TopicPartition) -> DescribeProducersResponse:
        assert tp == T1
        first = ProducerState(7, 0, 1, int(STARTED_S * 1000), 5, self.owner)
        return DescribeProducersResponse([ProducerState(6, 0, 1, 1), ProducerState(8, 0, 1, 1, 6, "later"), first], 5)

    def transaction(self, call: Any, transactional_id: str) -> TransactionDetails:
        summary = TransactionSummary(transactional_id, "shared", "Ongoing", -1, -1, started_ms=int(STARTED_S * 1000))
        return TransactionDetails(0, transactional_id, summary)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(Catalog, "extents", lambda _, partitions: made.extents(partitions))
    monkeypatch.setattr(blocked_reads, "describe_producers", made.producers)
    monkeypatch.setattr(blocked_reads, "describe_transaction", made.transaction)
    return made


def reader(world: Cluster, isolation: int = READ_COMMITTED) -> BlockedReads:
    return BlockedReads(Catalog(ClusterAddress("broker:1"), 0, isolation), clock=lambda: world.now_s)


SEEN = {T0: Extent(0, 3), T1: Extent(0, 5)}


def test_it_names_the_transaction_its_age_and_the_remedy(world: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    one = reader(world)
    one.check(SEEN)
    (line,) = caplog.messages
    assert "t-1: records from offset 5 on" in line and "the transaction of __shared:app has been open for 30 s" in line
    assert "`sparklog transaction abort __shared:app --bootstrap-servers broker:1`" in line
    one.check(SEEN)
    assert world.asked == 1, "not with every question of Spark's"
    world.now_s += CHECK_INTERVAL_S
    one.check(SEEN)
    assert (world.asked, len(caplog.messages)) == (2, 1)
    world.now_s += AGAIN_S
    one.check(SEEN)
    assert len(caplog.messages) == 2


def test_one_that_no_coordinator_knows_is_named_by_its_producer(
    world: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    world.owner = None
    reader(world).check(SEEN)
    assert "sparklog transaction abort --topic t --partition 1 --producer-id 7" in caplog.text


def test_no_warning_of_young_transactions_or_without_a_waiting_reader(
    world: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    reader(world).check({T0: Extent(0, 3), T1: Extent(0, 9)})
    reader(world, READ_UNCOMMITTED).check(SEEN)
    world.now_s -= 1
    reader(world).check(SEEN)
    assert caplog.messages == []


def test_it_cannot_fail_a_read(world: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: Any, **__: Any) -> Any:
        raise BrokerNotAvailableError("gone")

    monkeypatch.setattr(blocked_reads, "describe_producers", gone)
    reader(world).check(SEEN)
