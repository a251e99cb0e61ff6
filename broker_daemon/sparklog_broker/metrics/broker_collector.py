"""One scrape: reads the broker's parts, and turns them into families, in slices, on the scrape's thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric

from sparklog.errors import InvalidProducerIdMappingError
from sparklog.histogram import Histogram
from sparklog.replication.transactions import Coordinator
from sparklog.types import INTERNAL_PREFIX, TopicPartition
from sparklog_broker.counters.traffic import OTHERS
from sparklog_broker.metrics.cluster_state import cluster_families, read_cluster
from sparklog_broker.metrics.families import MetricInfo, gauge, one_gauge
from sparklog_broker.metrics.groups import group_families, read_groups
from sparklog_broker.metrics.kafka_names import kafka_families
from sparklog_broker.metrics.lakes import lake_families, read_lakes
from sparklog_broker.metrics.mirrors import mirror_families, read_mirrors
from sparklog_broker.metrics.partition_rows import PartitionRow, read_rows, sums_by_topic
from sparklog_broker.metrics.slices import Slices
from sparklog_broker.metrics.sparklog_names import (
    background_families,
    disk_families,
    process_families,
    request_families,
    server_families,
    topic_families,
)
from sparklog_broker.metrics.watched import MetricSources

_PROCESS = ProcessCollector(registry=None)


IDS_MAX = 100_000
"""Largest number of transactional ids that one scrape reads. `sparklog_metrics_left_out` counts the rest."""


class TransactionsAtOnce(NamedTuple):
    """All transactional ids at one time. `open_since_ms`: wall-clock time at which the oldest open transaction began;
    None if none is open.
    """

    states: Mapping[str, int]
    open_count: int
    open_since_ms: int | None
    unread: int


def read_transactions(coordinators: Sequence[Coordinator], slices: Slices) -> TransactionsAtOnce:
    states: Counter[str] = Counter()
    started: list[int] = []
    remaining, count = IDS_MAX, 0
    for coordinator in coordinators:
        ids = coordinator.ids()
        count += len(ids)
        for transactional_id in slices.each(islice(ids, max(remaining, 0))):
            remaining -= 1
            try:
                summary = coordinator.summary(transactional_id)
            except InvalidProducerIdMappingError:  # it has just expired
                continue
            states[summary.state] += 1
            if summary.started_ms >= 0:
                started.append(summary.started_ms)
    return TransactionsAtOnce(states, len(started), min(started, default=None), max(0, count - IDS_MAX))


def transaction_families(transactions: TransactionsAtOnce, now_ms: int) -> Iterator[Metric]:
    described = MetricInfo("sparklog_transactional_ids", "Transactional ids and applications, by state.")
    yield gauge(described, [({"state": state}, count) for state, count in sorted(transactions.states.items())])
    yield one_gauge("sparklog_open_transactions", "Open transactions.", transactions.open_count)
    age_ms = 0 if transactions.open_since_ms is None else max(0, now_ms - transactions.open_since_ms)
    yield one_gauge("sparklog_open_transaction_age_seconds_max", "Age of the oldest open transaction.", age_ms / 1000)


class BrokerCollector:
    """The collector that `prometheus_client` renders. `watched` is None before the broker has started."""

    def __init__(
        self,
        watched: MetricSources | None,
        is_ready: bool,
        loop_delay: Histogram,
        now_s: Callable[[], float],
        slices: Slices,
    ) -> None:
        self._watched = watched
        self._is_ready = is_ready
        self._loop_delay = loop_delay
        self._now_s = now_s
        self._slices = slices

    def collect(self) -> Iterator[Metric]:
        """Yield the families. The caller must read each family to its end before it requests the next family."""
        began_s = self._now_s()
        yield from _PROCESS.collect()
        yield from process_families(self._is_ready, self._loop_delay)
        if self._watched is not None:
            yield from self._of_broker(self._watched)
        yield one_gauge("sparklog_scrape_slices", "Event-loop slices that produced this page.", self._slices.count)
        yield one_gauge(
            "sparklog_scrape_seconds", "Time to produce this page, pauses included.", self._now_s() - began_s
        )

    def _of_broker(self, watched: MetricSources) -> Iterator[Metric]:
        slices, traffic = self._slices, watched.partitions.traffic
        image = watched.cluster.image
        rows = read_rows(watched.partitions.all(), slices, watched.config.broker_id, image)
        sums = sums_by_topic(rows, traffic, slices)
        partitions_max = watched.config.metrics_partitions_max
        shown = _topics_by_partition(rows, partitions_max, traffic.has_own)
        broker = {"id": str(watched.config.broker_id), "address": watched.address}
        yield from kafka_families(
            rows, sums, lambda row: row.topic in shown, traffic, broker, watched.server.connection_count, slices
        )
        yield from cluster_families(read_cluster(watched, slices))
        groups = read_groups(
            watched.groups.loaded(),
            {TopicPartition(row.topic, row.number): row.high_watermark for row in slices.each(rows)},
            lambda tp: tp.topic in shown,
            lambda topic: topic if traffic.has_own(topic) else OTHERS,
            watched.config.metrics_groups_max,
            slices,
        )
        yield from group_families(groups, slices)
        transactions = read_transactions(watched.transactions.loaded_shards(), slices)
        yield from transaction_families(transactions, watched.clock.now_ms())
        own_id = None if image is None else watched.config.broker_id
        lakes = read_lakes(watched.lakes, watched.partitions, own_id, watched.clock.now_ms(), watched.lakes.born_ms)
        yield from lake_families([lake for lake in lakes if traffic.has_own(lake.topic)])
        mirrors = read_mirrors(watched.mirrors, watched.partitions, own_id, watched.clock.now_ms())
        yield from mirror_families([row for row in mirrors if traffic.has_own(row.topic)])
        yield from topic_families(traffic, sums, slices)
        yield from request_families(watched.requests, slices)
        for families in (server_families, disk_families, background_families):
            for family in families(watched):
                yield family
                slices.check()
        yield gauge(
            MetricInfo("sparklog_metrics_left_out", "Items that a limit of this page leaves out, by kind."),
            [
                ({"kind": "partitions"}, sum(row.topic not in shown for row in rows) if partitions_max else 0),
                ({"kind": "topics"}, sum(not traffic.has_own(topic) for topic in list(watched.partitions.topics))),
                ({"kind": "committed_offsets"}, groups.unread),
                ({"kind": "transactional_ids"}, transactions.unread),
            ],
        )


def _topics_by_partition(
    rows: list[PartitionRow], partitions_max: int, has_own: Callable[[str], bool]
) -> frozenset[str]:
    """Return the topics whose partitions have separate series, at most `partitions_max` partitions in total. Topics are
    chosen as a whole and by name, internal topics last. A topic that does not fit is skipped.
    """
    counts = Counter(row.topic for row in rows)
    shown = set()
    for topic in sorted(counts, key=lambda topic: (topic.startswith(INTERNAL_PREFIX), topic)):
        if counts[topic] <= partitions_max and has_own(topic):
            partitions_max -= counts[topic]
            shown.add(topic)
    return frozenset(shown)
