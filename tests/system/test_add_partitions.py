"""A topic gets more partitions while processes write and read it, and while the broker is killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

import sparklog
from sparklog import Admin, Consumer, Producer, TopicPartition
from sparklog.client.net.cluster import Cluster, cluster
from sparklog.client.producer.partitioner import partition_for_key
from sparklog.errors import InvalidPartitionsError
from tests.support.waiting import until

ELSEWHERE = """
import sys, sparklog
with sparklog.Admin(sys.argv[1]) as admin:
    admin.add_partitions(sys.argv[2], int(sys.argv[3]))
"""


def grow_elsewhere(address: str, topic: str, total: int) -> None:
    """In another process: this one's clients do not hear of it."""
    subprocess.run([sys.executable, "-c", ELSEWHERE, address, topic, str(total)], check=True, timeout=60)


@pytest.fixture
def own(admin: Admin, topic: str) -> Iterator[Cluster]:
    admin.create_topic(topic, partitions=1)
    yield cluster(admin._cluster.bootstrap_servers)


def test_new_partitions_are_empty_and_the_old_ones_stay(admin: Admin, topic: str) -> None:
    admin.create_topic(topic, partitions=2, configs={"segment.bytes": 1_000_000})
    servers = admin._cluster.bootstrap_servers
    with Producer(servers) as producer:
        producer.send(topic, b"old", partition=1).result(30)
        before = admin.describe_topic(topic)
        grown = admin.add_partitions(topic, 5)
        assert (grown.partitions, grown.topic_id, grown.configs) == (
            5,
            before.topic_id,
            {**before.configs, "partitions.added": True},
        )
        assert [p.high_watermark for p in grown.partition_details] == [0, 1, 0, 0, 0]
        keys = [b"key-%d" % i for i in range(50)]
        stored = {k: producer.send(topic, b"new", key=k).result(30).partition for k in keys}
    assert stored == {k: partition_for_key(k, 5) for k in keys}
    assert sparklog.read_table(servers, topic).num_rows == 51


def test_a_running_producer_uses_them_when_its_metadata_are_old(own: Cluster, topic: str) -> None:
    key = next(k for i in range(100) if partition_for_key(k := b"%d" % i, 4) == 3)
    with Producer(own.bootstrap_servers, linger_ms=0) as producer:
        assert producer.send(topic, b"x", key=key).result(30).partition == 0
        grow_elsewhere(own.bootstrap_servers, topic, 4)
        assert producer.send(topic, b"x", key=key).result(30).partition == 0
        own.expire(topic)
        until(lambda: producer.send(topic, b"x", key=key).result(30).partition == 3, "the new partition")


def test_a_record_that_names_a_new_partition_need_not_wait(own: Cluster, topic: str) -> None:
    with Producer(own.bootstrap_servers) as producer:
        producer.send(topic, b"x").result(30)
        grow_elsewhere(own.bootstrap_servers, topic, 3)
        assert producer.send(topic, b"x", partition=2).result(30).partition == 2
        grow_elsewhere(own.bootstrap_servers, topic, 6)
        assert producer.send_batch(topic, {"value": [b"x"]}, partition=5).result(30)[0].partition == 5
        grow_elsewhere(own.bootstrap_servers, topic, 8)
        rows = {"value": [b"x", b"y"], "partition": [6, 7]}
        assert [stored.partition for stored in producer.send_batch(topic, rows).result(30)] == [6, 7]
        with pytest.raises(InvalidPartitionsError, match="partitions 0 to 7"):
            producer.send(topic, b"x", partition=8)


def test_a_consumer_can_be_assigned_a_new_partition(own: Cluster, topic: str) -> None:
    with Consumer(own.bootstrap_servers) as consumer, Producer(own.bootstrap_servers) as producer:
        consumer.assign([TopicPartition(topic, 0)])
        grow_elsewhere(own.bootstrap_servers, topic, 2)
        producer.send(topic, b"there", partition=1).result(30)
        consumer.assign([TopicPartition(topic, n) for n in range(2)])
        found: list[bytes] = []
        until(lambda: bool(found.extend(r.value for r in consumer.poll(200)) or found), "the record")
        assert found == [b"there"]


def test_a_group_shares_them_out(own: Cluster, topic: str) -> None:
    with (
        Consumer(own.bootstrap_servers, group_id=topic) as consumer,
        Producer(own.bootstrap_servers) as producer,
        Admin(own.bootstrap_servers) as admin,
    ):
        consumer.subscribe([topic])
        until(lambda: not consumer.poll(50) and len(consumer.assignment()) == 1, "the only partition")
        grow_elsewhere(own.bootstrap_servers, topic, 4)
        for number in range(4):
            producer.send(topic, b"%d" % number, partition=number).result(30)
        found: set[bytes] = set()
        until(lambda: _collect(consumer, found) == 4, "all four")
        consumer.commit()
        lags = {p.partition.partition: p.lag for p in admin.describe_group(topic).partitions}
        assert lags == dict.fromkeys(range(4), 0)


def _collect(consumer: Consumer, found: set[bytes]) -> int:
    found.update(r.value for r in consumer.poll(50))
    return len(found)
