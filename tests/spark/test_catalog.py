"""Questions to a real broker, without Spark: waiting for data, offsets of topics that are not there."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from pyspark_sparklog.options.cluster_address import ClusterAddress
from pyspark_sparklog.options.options import Subscription
from pyspark_sparklog.source.catalog import Catalog
from pyspark_sparklog.source.planning import Extent

import sparklog
from sparklog import TopicPartition
from sparklog.errors import BrokerNotAvailableError, UnknownTopicOrPartitionError


@pytest.fixture
def catalog(broker: sparklog.LocalBroker) -> Catalog:
    return Catalog(ClusterAddress(broker.bootstrap_servers), 0)


def test_the_wait_lasts_until_records_come(catalog: Catalog, topic: Any, send: Any) -> None:
    name = topic(partitions=2)
    send(name, "a")
    positions = {TopicPartition(name, 0): 1, TopicPartition(name, 1): 0}
    begun = time.monotonic()
    assert not catalog.wait_for_data(positions, 100)
    assert time.monotonic() - begun >= 0.09


def test_the_wait_ends_when_data_come(catalog: Catalog, topic: Any, send: Any) -> None:
    name = topic(partitions=2)
    positions = {TopicPartition(name, 0): 0, TopicPartition(name, 1): 0}
    answers = []
    thread = threading.Thread(target=lambda: answers.append(catalog.wait_for_data(positions, 30_000)))
    thread.start()
    send(name, "a", partition=1)
    thread.join(30)
    assert answers == [True]


def test_extents(catalog: Catalog, topic: Any, send: Any, admin: sparklog.Admin) -> None:
    name, gone = topic(partitions=2), topic()
    send(name, "a", "b", partition=1)
    catalog.topics(Subscription(topics=(gone,)), missing_is_error=True)
    admin.delete_topic(gone)
    asked = [TopicPartition(name, 0), TopicPartition(name, 1), TopicPartition(gone, 0)]
    assert catalog.extents(asked) == {asked[0]: Extent(0, 0), asked[1]: Extent(0, 2)}


def test_topics(catalog: Catalog, topic: Any) -> None:
    name = topic("found")
    both = Subscription(topics=(name, "never-made"))
    assert list(catalog.topics(both, missing_is_error=False)) == [name]
    with pytest.raises(UnknownTopicOrPartitionError, match="no topic 'never-made'"):
        catalog.topics(both, missing_is_error=True)
    assert list(catalog.topics(Subscription(pattern="found-.*"), missing_is_error=True)) == [name]
    assert list(catalog.topics(Subscription(pattern="oun"), missing_is_error=True)) == [name]
    assert catalog.topics(Subscription(pattern="^oun"), missing_is_error=True) == {}


def test_a_port_without_a_listener() -> None:
    with pytest.raises(BrokerNotAvailableError, match=r"no broker at 127\.0\.0\.1:1 "):
        Catalog(ClusterAddress("127.0.0.1:1"), 0).topics(Subscription(topics=("t",)), missing_is_error=True)
