"""A consumer and several brokers: none holds up another; leaders, epochs and replicas are followed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from sparklog.client.consumer import fetch_lane
from sparklog.client.consumer.consumer import Consumer
from sparklog.client.producer.producer import Producer
from sparklog.errors import LogTruncatedError
from sparklog.protocol.apis import Api
from sparklog.types import Record, TopicPartition
from tests.support.clients import drain, fill
from tests.support.waiting import until
from tests.unit.client.fake_broker import DROP, SILENT
from tests.unit.client.fake_cluster import FakeCluster

TP0, TP1, TP2 = (TopicPartition("events", p) for p in range(3))


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    made = FakeCluster(brokers=3, partitions=3)
    yield made
    made.close()


def consumer_of(cluster: FakeCluster, *partitions: TopicPartition, **settings: Any) -> Consumer:
    consumer = Consumer(cluster.address, **{"local_read": "off", **settings})
    consumer.assign(partitions or (TP0, TP1, TP2))
    return consumer


def fill_all(cluster: FakeCluster, batches: int, partitions: tuple[int, ...] = (0, 1, 2)) -> None:
    for p in partitions:
        fill(cluster.brokers[0], batches, partition=p)


def offsets(records: list[Record], partition: int) -> list[int]:
    return [r.offset for r in records if r.partition == partition]


def fetches(cluster: FakeCluster, broker: int) -> list[Any]:
    return [message for api, message in cluster.brokers[broker].requests if api is Api.FETCH]


def test_all_brokers_are_fetched_from_and_each_waits_for_data(cluster: FakeCluster) -> None:
    with consumer_of(cluster) as consumer:
        fill_all(cluster, 3)
        found = drain(consumer, 90)
        assert all(offsets(found, p) == list(range(30)) for p in range(3))
        until(lambda: all(len(fetches(cluster, b)) >= 2 for b in range(3)))
        fill_all(cluster, 1)
        found = drain(consumer, 30)
        assert all(offsets(found, p) == list(range(30, 40)) for p in range(3))
    for broker in range(3):
        assert {(p.partition, p.leader_epoch) for f in fetches(cluster, broker) for p in f.partitions} >= {(broker, 0)}
        own = [f for f in fetches(cluster, broker) if {p.partition for p in f.partitions} == {broker}]
        assert all(f.max_wait_ms == 500 for f in own), "a request that does not wait is repeated at once"
    assert all(b.connections <= 6 for b in cluster.brokers), "the connections stay"


@pytest.mark.parametrize("hung", [0, 1, 2])
def test_a_broker_that_does_not_answer_holds_up_no_other(cluster: FakeCluster, hung: int) -> None:
    others = tuple(p for p in range(3) if p != hung)
    with consumer_of(cluster) as consumer:
        fill_all(cluster, 1)
        drain(consumer, 30)
        cluster.brokers[hung].hook = lambda api, message: SILENT
        for _ in range(3):
            fill_all(cluster, 1, others)
            assert len(drain(consumer, 20)) == 20
        consumer.seek(TopicPartition("events", others[0]), 0)  # also when positions begin again
        assert len(drain(consumer, 40)) == 40
        cluster.brokers[hung].hook = lambda api, message: None


def test_a_broker_that_is_gone_holds_up_no_other(cluster: FakeCluster) -> None:
    with consumer_of(cluster) as consumer:
        fill_all(cluster, 1)
        drain(consumer, 30)
        cluster.brokers[1].close()
        for _ in range(3):
            fill_all(cluster, 1, (0, 2))
            assert len(drain(consumer, 20)) == 20
        cluster.move(1, 2)
        fill_all(cluster, 1, (1,))
        assert offsets(drain(consumer, 10), 1) == list(range(10, 20))


def test_the_answer_names_the_new_leader(cluster: FakeCluster) -> None:
    with consumer_of(cluster) as consumer:
        fill_all(cluster, 1)
        drain(consumer, 30)
        asked = cluster.count(Api.METADATA)
        cluster.move(1, 2)
        fill_all(cluster, 1)
        found = drain(consumer, 30)
        assert all(offsets(found, p) == list(range(10, 20)) for p in range(3))
        assert cluster.count(Api.METADATA) == asked, "the answer has named the leader"


def test_without_a_hint_the_metadata_are_requested(cluster: FakeCluster) -> None:
    cluster.tells_leaders = False
    with consumer_of(cluster) as consumer:
        fill_all(cluster, 1)
        drain(consumer, 30)
        cluster.move(1, 2)
        fill_all(cluster, 1)
        found = drain(consumer, 30)
        assert all(offsets(found, p) == list(range(10, 20)) for p in range(3))


def test_a_producer_learns_the_leader(cluster: FakeCluster) -> None:
    with Producer(cluster.address, retry_backoff_ms=60_000, delivery_timeout_ms=120_000) as producer:
        producer.send("events", b"1", partition=1).result(30)
        asked = cluster.count(Api.METADATA)
        cluster.move(1, 2)
        assert producer.send("events", b"2", partition=1).result(30).offset == 1  # without waiting
        assert cluster.count(Api.METADATA) == asked


def test_metadata_that_lag_behind_do_not_bring_an_old_leader_back(cluster: FakeCluster) -> None:
    with consumer_of(cluster, TP1) as consumer:
        fill_all(cluster, 1)
        drain(consumer, 10)
        cluster.move(1, 2)
        fill_all(cluster, 1)
        assert len(drain(consumer, 10)) == 10
        now = cluster.leaders[1]
        cluster.leaders[1] = (1, 0)
        consumer._cluster.topic("events", refresh=True)
        cluster.leaders[1] = now
        leader = consumer._cluster.last_leader(TP1)
        assert leader is not None and (leader.broker_id, leader.epoch) == now


def test_a_new_leader_confirms_the_read_records(cluster: FakeCluster) -> None:
    with consumer_of(cluster, TP0, auto_offset_reset="none") as consumer:
        consumer.seek(TP0, 0)
        fill_all(cluster, 1)
        drain(consumer, 10)
        cluster.move(0, 0)  # the same broker leads in another epoch
        fill_all(cluster, 1)
        assert offsets(drain(consumer, 10), 0) == list(range(10, 20))
        (asked,) = [r for b in cluster.brokers for api, r in b.requests if api is Api.OFFSETS_FOR_LEADER_EPOCH]
        assert [(p.partition, p.leader_epoch, p.epoch) for p in asked.partitions] == [(0, 1, 0)]


def test_records_that_were_read_and_are_lost_are_reported(cluster: FakeCluster) -> None:
    with consumer_of(cluster, TP0, auto_offset_reset="none") as consumer:
        consumer.seek(TP0, 0)
        fill_all(cluster, 1)
        drain(consumer, 10)
        cluster.epoch_ends[0] = 7
        cluster.move(0, 1)
        with pytest.raises(LogTruncatedError, match="offset 7 to 9") as lost:
            drain(consumer, 1)
        assert lost.value.divergent_offset == 7
        consumer.seek(TP0, 7)
        assert offsets(drain(consumer, 3), 0) == [7, 8, 9]


@pytest.mark.parametrize("reset", ["earliest", "latest"])
def test_with_a_reset_policy_reading_goes_on_where_the_logs_part(cluster: FakeCluster, reset: str) -> None:
    with consumer_of(cluster, TP0, auto_offset_reset=reset) as consumer:
        consumer.seek(TP0, 0)
        fill_all(cluster, 1)
        drain(consumer, 10)
        cluster.epoch_ends[0] = 7
        cluster.move(0, 1)
        assert offsets(drain(consumer, 3), 0) == [7, 8, 9]
        assert consumer.position(TP0) == 10


def test_unreturned_records_are_read_again(cluster: FakeCluster) -> None:
    """Only records that poll has not returned are gone: no caller has seen them."""
    with consumer_of(cluster, TP0, auto_offset_reset="none") as consumer:
        consumer.seek(TP0, 0)
        fill_all(cluster, 2)
        assert offsets(drain(consumer, 5, max_records=5), 0) == list(range(5))
        until(lambda: bool(consumer._fetcher.ready))
        cluster.epoch_ends[0] = 10
        cluster.move(0, 1)
        until(lambda: cluster.count(Api.OFFSETS_FOR_LEADER_EPOCH) > 0)
        assert offsets(drain(consumer, 15), 0) == list(range(5, 20))


def test_a_replica_in_the_readers_rack_serves_it(cluster: FakeCluster) -> None:
    cluster.preferred = {0: 2}
    with consumer_of(cluster, TP0, client_rack="b") as consumer:
        fill_all(cluster, 2)
        assert offsets(drain(consumer, 20), 0) == list(range(20))
        fill_all(cluster, 1)
        assert offsets(drain(consumer, 10), 0) == list(range(20, 30))
        served = [p.fetch_offset for f in fetches(cluster, 2) for p in f.partitions]
        assert {0, 20} <= set(served)
        assert all(f.rack == "b" for f in fetches(cluster, 0))


@pytest.mark.parametrize("how", ["error", "gone"])
def test_when_a_replica_fails_the_leader_serves_again(cluster: FakeCluster, how: str) -> None:
    cluster.preferred = {0: 2}
    with consumer_of(cluster, TP0, client_rack="b") as consumer:
        fill_all(cluster, 1)
        assert len(drain(consumer, 10)) == 10
        if how == "error":
            cluster.replicas_fail = True
        else:
            cluster.brokers[2].hook = lambda api, message: DROP
        fill_all(cluster, 1)
        began = time.monotonic()
        assert offsets(drain(consumer, 10), 0) == list(range(10, 20))
        assert time.monotonic() - began < fetch_lane.REPLICA_SHUN_S / 2, "it does not wait for the replica"
        fill_all(cluster, 1)
        assert offsets(drain(consumer, 10), 0) == list(range(20, 30))
        assert any(p.leader_only for f in fetches(cluster, 0) for p in f.partitions)


def test_idle_lanes_end(cluster: FakeCluster) -> None:
    with Consumer(cluster.address, local_read="off") as consumer:
        consumer._fetcher.lane_idle_s = 0.05
        consumer.assign([TP0, TP1, TP2])
        fill_all(cluster, 1)
        drain(consumer, 30)
        assert len(consumer._fetcher.lanes) == 3
        consumer.assign([TP0])
        until(lambda: len(consumer._fetcher.lanes) <= 2)
        fill_all(cluster, 1)
        assert offsets(drain(consumer, 10), 0) == list(range(10, 20))
        consumer.assign([TP0, TP1, TP2])
        assert len(drain(consumer, 20 + 20)) == 40
