"""What a broker's page says about the cluster: the controller and partitions without a leader, in-sync replicas that
change, and how far followers lag."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.core import Metric

from sparklog.replication.cluster_image import NO_LEADER
from sparklog.replication.replica.leader import Leader
from sparklog_broker.cluster.replica import ClusterReplica
from sparklog_broker.metrics.families import one_counter, one_gauge
from sparklog_broker.metrics.slices import Slices
from sparklog_broker.metrics.watched import Watched


class ClusterState(NamedTuple):
    """At one moment. `offline`: partitions that nobody leads, as the controller knows; of another broker 0.
    `max_lag`: the most records that a follower of a partition led here does not have, `in_sync_lag`: one that is in
    sync."""

    is_controller: bool = True
    offline: int = 0
    brokers: int = 1
    isr_shrinks: int = 0
    isr_expands: int = 0
    unclean_elections: int = 0
    max_lag: int = 0
    in_sync_lag: int = 0


def read_cluster(watched: Watched, offline_here: int, slices: Slices) -> ClusterState:
    """`offline_here`: what a broker that is alone has of partitions that nobody can use."""
    cluster = watched.cluster
    if cluster is None:
        return ClusterState(offline=offline_here)
    image, counted = cluster.image, cluster.replicas.counters
    is_controller = cluster.controller.controller_id == watched.config.broker_id
    offline = 0
    if is_controller:
        for topic in slices.each(list(image.topics.values())):
            offline += sum(p.leader == NO_LEADER for p in topic.partitions)
    lag = in_sync_lag = 0
    for partition in slices.each(watched.partitions.all()):
        replica, log = partition.replicas, partition.open_log
        if log is None or not isinstance(replica, ClusterReplica) or not isinstance(replica.state, Leader):
            continue
        end, in_sync = log.log_end_offset, replica.isr
        for follower, progress in list(replica.state.followers.items()):
            behind = max(0, end - max(progress.log_end_offset, 0))
            lag = max(lag, behind)
            if follower in in_sync:
                in_sync_lag = max(in_sync_lag, behind)
    return ClusterState(
        is_controller,
        offline,
        len(image.brokers),
        counted.isr_shrinks,
        counted.isr_expands,
        counted.unclean_elections,
        lag,
        in_sync_lag,
    )


def cluster_families(state: ClusterState) -> Iterator[Metric]:
    yield one_gauge(
        "kafka_controller_kafkacontroller_activecontrollercount",
        "Whether this is the controller.",
        int(state.is_controller),
    )
    yield one_gauge(
        "kafka_controller_kafkacontroller_offlinepartitionscount",
        "Partitions that nobody can use; told by the controller.",
        state.offline,
    )
    yield one_gauge("kafka_controller_kafkacontroller_activebrokercount", "Brokers that are registered.", state.brokers)
    yield one_counter(
        "kafka_controller_controllerstats_uncleanleaderelections",
        "Leaders that did not have all records; told by the leader.",
        state.unclean_elections,
    )
    yield one_counter(
        "kafka_server_replicamanager_isrshrinks",
        "In-sync replicas have become fewer, of partitions led here.",
        state.isr_shrinks,
    )
    yield one_counter(
        "kafka_server_replicamanager_isrexpands",
        "In-sync replicas have become more, of partitions led here.",
        state.isr_expands,
    )
    yield one_gauge(
        "kafka_server_replicafetchermanager_maxlag",
        "Most records that a follower of a partition led here does not have.",
        state.max_lag,
    )
    yield one_gauge(
        "sparklog_in_sync_replica_lag_records",
        "Most records that an in-sync follower of a partition led here does not have.",
        state.in_sync_lag,
    )
