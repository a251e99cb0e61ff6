"""The broker's numbers under the names that Kafka's dashboards use: the names of Strimzi's rules for Kafka's beans, and
of kafka_exporter. The labels are Kafka's, too, with one exception: series by partition are summed by topic, unless
`metrics.partitions.max` allows partitions. Dashboards sum by topic themselves, so they show the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from prometheus_client.core import Metric

from sparklog_broker.counters.traffic import Traffic
from sparklog_broker.metrics.families import Labels, MetricInfo, Row, counter, gauge, one_gauge
from sparklog_broker.metrics.partition_rows import (
    PartitionRow,
    Sums,
    is_at_min_isr,
    is_under_min_isr,
    is_under_replicated,
    total,
)
from sparklog_broker.metrics.slices import Slices

TRAFFIC = (
    (MetricInfo("kafka_server_brokertopicmetrics_messagesin", "Records appended."), "records_in"),
    (MetricInfo("kafka_server_brokertopicmetrics_bytesin", "Bytes appended."), "bytes_in"),
    (
        MetricInfo("kafka_server_brokertopicmetrics_bytesout", "Bytes sent to consumers in fetch responses."),
        "bytes_out",
    ),
    (
        MetricInfo("kafka_server_brokertopicmetrics_totalproducerequests", "Produce requests, counted per partition."),
        "produces",
    ),
    (MetricInfo("kafka_server_brokertopicmetrics_totalfetchrequests", "Fetches answered, by partition."), "fetches"),
    (
        MetricInfo(
            "kafka_server_brokertopicmetrics_failedproducerequests", "Failed produce requests, counted per partition."
        ),
        "failed_produces",
    ),
    (
        MetricInfo(
            "kafka_server_brokertopicmetrics_failedfetchrequests", "Failed fetch requests, counted per partition."
        ),
        "failed_fetches",
    ),
)

# (family, value from a topic's sums, value from one partition; None if the family is by topic only)
PLACES: tuple[tuple[MetricInfo, Callable[[Sums], float], Callable[[PartitionRow], float] | None], ...] = (
    (MetricInfo("kafka_log_log_size", "Bytes of batches."), lambda s: s.size_bytes, lambda r: r.size_bytes),
    (
        MetricInfo(
            "kafka_topic_partition_current_offset", "High watermark; the sum if the series covers several partitions."
        ),
        lambda s: s.high_watermark,
        lambda r: r.high_watermark,
    ),
    (
        MetricInfo(
            "kafka_topic_partition_oldest_offset", "Log start offset; the sum if the series covers several partitions."
        ),
        lambda s: s.start,
        lambda r: r.start,
    ),
    (MetricInfo("kafka_topic_partition_replicas", "Replicas."), lambda s: s.replicas, lambda r: r.replicas),
    (
        MetricInfo("kafka_topic_partition_in_sync_replica", "In-sync replicas."),
        lambda s: s.in_sync,
        lambda r: r.in_sync,
    ),
    (
        MetricInfo(
            "kafka_topic_partition_under_replicated_partition",
            "Under-replicated partitions: some replicas are not in sync.",
        ),
        lambda s: s.under_replicated,
        is_under_replicated,
    ),
    (MetricInfo("kafka_cluster_partition_replicascount", "Replicas."), lambda s: s.replicas, lambda r: r.replicas),
    (
        MetricInfo(
            "kafka_cluster_partition_underminisr", "Partitions with fewer in-sync replicas than min.insync.replicas."
        ),
        lambda s: s.under_min_isr,
        is_under_min_isr,
    ),
    (
        MetricInfo(
            "kafka_cluster_partition_atminisr",
            "Partitions with exactly min.insync.replicas in-sync replicas: one more failure stops acks=all. "
            "Partitions with a single replica do not count.",
        ),
        lambda s: s.at_min_isr,
        is_at_min_isr,
    ),
    (MetricInfo("kafka_topic_partitions", "Partitions."), lambda s: s.partitions, None),
)


def kafka_families(
    rows: Sequence[PartitionRow],
    sums: dict[str, Sums],
    shown: Callable[[PartitionRow], bool],
    traffic: Traffic,
    broker: Labels,
    connections: int,
    slices: Slices,
) -> Iterator[Metric]:
    """Yield the families under Kafka's names. `shown`: returns True for partitions with separate series. `broker`: the
    labels of `kafka_broker_info`."""
    for described, field in TRAFFIC:
        yield counter(described, slices.each(_traffic(traffic, attrgetter(field))))
    own = [row for row in slices.each(rows) if row.leads and shown(row)]
    rest = _without(sums, own)
    for described, of_sums, of_row in PLACES:
        if of_row is None:
            yield gauge(described, slices.each(_by_topic(sums, of_sums)))
        else:
            yield gauge(described, slices.each(_by_partition(own, rest, of_row, of_sums)))
    everything = total(sums)
    yield gauge(MetricInfo("kafka_broker_info", "Number and address of the broker, as labels."), [(broker, 1)])
    yield one_gauge("kafka_server_replicamanager_partitioncount", "Replicas on this broker.", everything.held)
    yield one_gauge(
        "kafka_server_replicamanager_leadercount", "Online partitions that this broker leads.", everything.online
    )
    yield one_gauge(
        "kafka_server_replicamanager_underreplicatedpartitions",
        "Under-replicated partitions: some replicas are not in sync.",
        everything.under_replicated,
    )
    listener = {"listener": broker["address"]}
    yield gauge(
        MetricInfo("kafka_server_socket_server_metrics_connection_count", "Open connections."),
        [(listener, connections)],
    )


def _traffic(traffic: Traffic, value: Callable[[Any], int]) -> Iterator[Row]:
    for topic, of_topic in traffic.items():
        yield {"topic": topic}, value(of_topic)


def _by_topic(sums: dict[str, Sums], value: Callable[[Sums], float]) -> Iterator[Row]:
    for topic, of_topic in sums.items():
        yield {"topic": topic}, value(of_topic)


def _by_partition(
    own: Sequence[PartitionRow],
    rest: dict[str, Sums],
    of_row: Callable[[PartitionRow], float],
    of_sums: Callable[[Sums], float],
) -> Iterator[Row]:
    for row in own:
        yield {"topic": row.topic, "partition": str(row.number)}, of_row(row)
    yield from _by_topic(rest, of_sums)


def _without(sums: dict[str, Sums], own: Sequence[PartitionRow]) -> dict[str, Sums]:
    """Return the sums of the topics without partitions in `own`. A topic has separate series for all its partitions or
    for none."""
    topics = {row.topic for row in own}
    return {topic: of_topic for topic, of_topic in sums.items() if topic not in topics}
