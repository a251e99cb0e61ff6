"""Clients whose requests take longer than those of a broker on the same host."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pyarrow as pa
import pytest

import sparklog
from sparklog.client.net.cluster import cluster, forget
from sparklog.client.transactions.lease_keeper import ONE_ATTEMPT
from sparklog.client.transactions.shared_transaction import (
    SharedTransaction,
    draw_fencing_token,
    end_shared_transaction,
    join_shared_transaction,
    renew_shared_transaction,
)
from sparklog.protocol.apis import Api
from sparklog.types import TopicPartition
from tests.support.waiting import until
from tests.system.cutting_proxy import CuttingProxy

ANSWER_S = 0.03


@pytest.fixture
def slow(broker: sparklog.LocalBroker) -> Iterator[CuttingProxy]:
    """A way to the broker on which each answer takes some time."""

    def wait(api: Api) -> bool:
        time.sleep(ANSWER_S)
        return False

    host, _, port = broker.bootstrap_servers.rpartition(":")
    proxy = CuttingProxy(host, int(port), wait)
    yield proxy
    proxy.close()
    forget(proxy.address)


def test_a_group_reads_and_commits_also_in_a_transaction(slow: CuttingProxy, topic: str, admin: sparklog.Admin) -> None:
    admin.create_topic(topic, partitions=1)
    tp = TopicPartition(topic, 0)
    with (
        sparklog.Producer(slow.address, transactional_id=topic) as producer,
        sparklog.Consumer(slow.address, group_id=topic, enable_auto_commit=False) as consumer,
    ):
        consumer.subscribe([topic])
        producer.init_transactions()
        for value in (b"a", b"b"):
            producer.begin_transaction()
            producer.send_batch(topic, pa.table({"value": [value]}))
            producer.commit_transaction()
        found: list[bytes | None] = []
        until(lambda: found.extend(r.value for r in consumer.poll(1)) or len(found) == 2, "all records")
        consumer.commit()
        committed = consumer.committed(tp)[tp]
        assert committed is not None
        producer.begin_transaction()
        producer.send_offsets_to_transaction({tp: committed.offset - 1}, consumer.group_metadata())
        producer.commit_transaction()
    with sparklog.Admin(slow.address) as slow_admin:
        assert slow_admin.list_group_offsets(topic)[tp].offset == committed.offset - 1
    assert sparklog.read_table(slow.address, topic)["value"].to_pylist() == [b"a", b"b"]


def test_one_attempt_is_enough_to_keep_and_to_end_a_transaction(slow: CuttingProxy) -> None:
    known = cluster(slow.address)
    transaction = SharedTransaction("slow-network", 0, "run", draw_fencing_token(known))
    join_shared_transaction(known, transaction, timeout_ms=60_000, lease_ms=40_000)
    forget(slow.address)  # the keeper of the lease is a process of its own, without connections
    assert renew_shared_transaction(cluster(slow.address), transaction, policy=ONE_ATTEMPT)
    forget(slow.address)
    assert not end_shared_transaction(cluster(slow.address), transaction, committed=False, policy=ONE_ATTEMPT).committed
