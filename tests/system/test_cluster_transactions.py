"""Transactions on three real brokers: all or nothing, while any broker dies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import sparklog
from sparklog.client.local_cluster import LocalCluster
from sparklog.client.local_zookeeper import has_java
from sparklog.client.net.cluster import cluster as client_cluster
from sparklog.client.net.coordinator_key import transaction_key
from sparklog.client.transactions.shared_transaction import draw_fencing_token
from sparklog.errors import ProducerFencedError, SparklogError, TransactionAbortedError
from sparklog.types import FENCING_TOKENS_ID, TRANSACTION_STATE_TOPIC, TopicPartition

pytestmark = pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper")

PARTITIONS = 6
FAST = {"zookeeper.session.timeout.ms": 6_000, "replica.lag.time.max.ms": 10_000}


@pytest.fixture
def local() -> Iterator[LocalCluster]:
    with sparklog.start_local(brokers=3, settings=FAST) as started:
        assert isinstance(started, LocalCluster)
        with sparklog.Admin(started.bootstrap_servers) as admin:
            admin.create_topic("t", partitions=PARTITIONS, replication_factor=3, configs={"min.insync.replicas": 2})
        yield started


def coordinator_of(local: LocalCluster, transactional_id: str) -> int:
    """Number in `local.brokers`."""
    shared = client_cluster(local.bootstrap_servers)
    shared._coordinators.clear()
    endpoint = shared._coordinators.find(shared, transaction_key(transactional_id), timeout_ms=30_000).endpoint
    assert endpoint is not None
    ports = [int(address.rpartition(":")[2]) for address in local.bootstrap_servers.split(",")]
    return ports.index(endpoint.port)


def write(producer: sparklog.Producer, number: int) -> None:
    """One transaction with a record for each partition; tried until it is committed."""
    while True:
        producer.begin_transaction()
        try:
            for partition in range(PARTITIONS):
                producer.send("t", value=f"{number}-{partition}".encode(), partition=partition)
            producer.commit_transaction()
        except TransactionAbortedError:
            producer.abort_transaction()
            continue
        return


def read_all(local: LocalCluster, count: int) -> dict[int, list[bytes]]:
    """Return the records that readers of committed records find, by partition, once there are `count` of them."""
    found: dict[int, list[bytes]] = {p: [] for p in range(PARTITIONS)}
    with sparklog.Consumer(
        bootstrap_servers=local.bootstrap_servers, isolation_level="read_committed", auto_offset_reset="earliest"
    ) as consumer:
        consumer.assign([TopicPartition("t", p) for p in range(PARTITIONS)])
        while sum(map(len, found.values())) < count:
            for record in consumer.poll(timeout_ms=60_000):
                found[record.partition].append(record.value)
    return found


def test_transactions_span_brokers_and_survive_the_coordinator_and_leaders(local: LocalCluster) -> None:
    with sparklog.Producer(
        bootstrap_servers=local.bootstrap_servers, transactional_id="loader", transaction_timeout_ms=60_000
    ) as producer:
        producer.init_transactions()
        write(producer, 0)
        producer.begin_transaction()
        for partition in range(PARTITIONS):
            producer.send("t", value=b"never", partition=partition)
        producer.flush()
        producer.abort_transaction()
        first = coordinator_of(local, "loader")
        local.brokers[first].kill()
        write(producer, 1)
        local.brokers[first].start()
        second = coordinator_of(local, "loader")
        assert second != first
        write(producer, 2)
        local.brokers[second].kill()
        write(producer, 3)
        local.brokers[second].start()
        write(producer, 4)
    assert read_all(local, 5 * PARTITIONS) == {p: [f"{n}-{p}".encode() for n in range(5)] for p in range(PARTITIONS)}


@pytest.mark.nightly
def test_a_decided_transaction_gets_its_markers_from_the_next_coordinator(local: LocalCluster) -> None:
    """The producer never hears of its commit; a new one with its id finds the decision carried out, or none."""
    producer = sparklog.Producer(bootstrap_servers=local.bootstrap_servers, transactional_id="a")
    producer.init_transactions()
    producer.begin_transaction()
    for partition in range(PARTITIONS):
        producer.send("t", value=b"open", partition=partition)
    producer.flush()
    local.brokers[coordinator_of(local, "a")].kill()
    with sparklog.Producer(bootstrap_servers=local.bootstrap_servers, transactional_id="a") as successor:
        successor.init_transactions()  # aborts what is open, on the new coordinator
        write(successor, 9)
        with pytest.raises(SparklogError) as refused:
            producer.commit_transaction()
        assert isinstance(refused.value, ProducerFencedError)
    producer.close(timeout_s=0)
    assert read_all(local, PARTITIONS) == {p: [f"9-{p}".encode()] for p in range(PARTITIONS)}


@pytest.mark.nightly
def test_operators_see_transactions_of_all_brokers(local: LocalCluster) -> None:
    ids = [f"id-{n}" for n in range(6)]
    producers = [sparklog.Producer(bootstrap_servers=local.bootstrap_servers, transactional_id=i) for i in ids]
    with sparklog.Admin(local.bootstrap_servers) as admin:
        for producer in producers:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("t", value=b"x", partition=0)
            producer.flush()
        assert [t.transactional_id for t in admin.list_transactions(states=["Ongoing"])] == ids
        assert len({coordinator_of(local, i) for i in ids}) > 1, "several brokers coordinate"
        assert admin.find_hanging_transactions("t") == []
        described = admin.describe_producers(TopicPartition("t", 0)).producers
        assert sorted(p.transactional_id or "" for p in described) == ids
        assert admin.abort_transaction(ids[0]) == 1
        for producer in producers[1:]:
            producer.commit_transaction()
            producer.close()
        producers[0].close(timeout_s=0)
        states = {p.leader for p in admin.describe_topic(TRANSACTION_STATE_TOPIC).partition_details}
        assert len(states) > 1
    assert len(read_all(local, 5)[0]) == 5


@pytest.mark.nightly
def test_a_later_fencing_token_is_larger_whichever_broker_gives_it(local: LocalCluster) -> None:
    """Brokers take producer ids in blocks of their own. A run that is started again draws a larger number all the
    same, else its application's earlier run fences it out."""
    known = client_cluster(local.bootstrap_servers)
    drawn = [draw_fencing_token(known) for _ in range(6)]
    for _ in range(2):
        giver = coordinator_of(local, FENCING_TOKENS_ID)
        local.brokers[giver].kill()
        drawn.append(draw_fencing_token(known))
        local.brokers[giver].start()
        drawn.append(draw_fencing_token(known))
    assert drawn == sorted(set(drawn))
