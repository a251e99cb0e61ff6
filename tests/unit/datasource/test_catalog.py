"""Questions to the cluster with read_committed: where a partition ends while a transaction is open."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark_sparklog.options.cluster_address import ClusterAddress
from pyspark_sparklog.source.catalog import Catalog
from pyspark_sparklog.source.planning import Extent

from sparklog.client.net.cluster import forget
from sparklog.errors import BrokerNotAvailableError, InvalidRequestError
from sparklog.protocol.apis import Api
from sparklog.types import READ_COMMITTED, READ_UNCOMMITTED, TopicPartition
from tests.support.clients import fill
from tests.unit.client.fake_broker import FakeBroker
from tests.unit.client.fake_cluster import FakeCluster

TP0 = TopicPartition("events", 0)


@pytest.fixture
def fake() -> Iterator[FakeBroker]:
    """events-0 with offsets 0 to 41, of which those from 32 on are of an open transaction."""
    broker = FakeBroker()
    fill(broker, 1, rows=42)
    broker.stable[("events", 0)] = 32
    yield broker
    broker.close()
    forget(broker.address)


def test_a_partition_ends_where_a_transaction_is_open(fake: FakeBroker) -> None:
    assert Catalog(ClusterAddress(fake.address), 0).extents([TP0]) == {TP0: Extent(0, 42)}
    committed = Catalog(ClusterAddress(fake.address), 0, READ_COMMITTED)
    assert committed.extents([TP0], {TP0: 32}) == {TP0: Extent(0, 32)}


def test_where_a_reader_stands_is_not_lost_while_the_log_has_it(fake: FakeBroker) -> None:
    """A query that goes over to read_committed may stand behind the last stable offset."""
    committed = Catalog(ClusterAddress(fake.address), 0, READ_COMMITTED)
    assert committed.extents([TP0], {TP0: 40}) == {TP0: Extent(0, 40)}
    assert committed.extents([TP0], {TP0: 50}) == {TP0: Extent(0, 42)}, "that one is beyond the log's end"


def test_waiting_for_data_means_data_that_may_be_read(fake: FakeBroker) -> None:
    assert Catalog(ClusterAddress(fake.address), 0).wait_for_data({TP0: 32}, 0)
    committed = Catalog(ClusterAddress(fake.address), 0, READ_COMMITTED)
    assert not committed.wait_for_data({TP0: 32}, 0)
    assert committed.wait_for_data({TP0: 31}, 0)


class Misnaming(FakeBroker):
    """Answers a fetch about another partition than the one that was asked for."""

    def _answer(self, api: Api, message: Any, payload: bytearray, code: int) -> tuple[Any, bytes]:
        answer, body = super()._answer(api, message, payload, code)
        if api is Api.FETCH:
            answer.results[0].partition += 7
        return answer, body


def test_an_answer_about_another_partition_is_a_typed_error() -> None:
    broker = Misnaming()
    fill(broker, 1, rows=42)
    with pytest.raises(InvalidRequestError, match="does not cover the 1 requested partitions"):
        Catalog(ClusterAddress(broker.address), 0).wait_for_data({TP0: 32}, 0)
    broker.close()
    forget(broker.address)


def test_the_largest_long_means_the_largest_time(fake: FakeBroker) -> None:
    asked: list[Any] = []

    def hook(api: Api, message: Any) -> None:
        if api is Api.LIST_OFFSETS:
            asked.extend(question.timestamp_ms for question in message.partitions)

    fake.hook = hook
    Catalog(ClusterAddress(fake.address), 0).offsets_for_timestamps({TP0: 2**63 - 1})
    assert asked == [2**62]


def test_leaders_that_die_are_looked_for_anew() -> None:
    """Within one question: nothing else reads the metadata again before a streaming query gives up."""
    brokers = FakeCluster(3, 4)
    try:
        tps = [TopicPartition("events", p) for p in range(4)]
        for tp in tps:
            fill(brokers.brokers[0], 1, rows=42, partition=tp.partition)
        for isolation in (READ_UNCOMMITTED, READ_COMMITTED):
            catalog = Catalog(ClusterAddress(brokers.address), 60_000, isolation)
            assert set(catalog.extents(tps).values()) == {Extent(0, 42)}
            brokers.move(1, 2)
            assert set(catalog.extents(tps).values()) == {Extent(0, 42)}
            assert catalog.offsets_for_timestamps({tps[1]: 1}) == {tps[1]: 42}
        brokers.brokers[0].close()
        brokers.move(0, 1)
        brokers.move(3, 1)
        assert catalog.wait_for_data(dict.fromkeys(tps, 41), 0)
        assert set(catalog.extents(tps).values()) == {Extent(0, 42)}
    finally:
        brokers.close()


def test_partitions_that_do_not_exist_are_skipped(fake: FakeBroker) -> None:
    catalog = Catalog(ClusterAddress(fake.address), 0)
    missing = [TopicPartition("events", 1), TopicPartition("none", 0)]
    assert catalog.extents([TP0, *missing]) == {TP0: Extent(0, 42)}
    assert catalog.offsets_for_timestamps(dict.fromkeys([TP0, *missing], 0)) == {TP0: 42} | dict.fromkeys(missing)


def test_a_wait_that_is_over_says_so_once() -> None:
    broker = FakeBroker()
    broker.close()
    with pytest.raises(BrokerNotAvailableError) as raised:
        Catalog(ClusterAddress(broker.address), 1).extents([TP0])
    assert str(raised.value).count("gave up after") == 1
