"""The cluster's state on a broker's metrics page: the controller, partitions without a leader, changes of in-sync
replicas, copied bytes, the lag of followers, and the session with ZooKeeper. Strimzi's rules give Kafka's beans the
same names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.core import Metric

from sparklog.replication.cluster_image import NO_LEADER
from sparklog.replication.replica.leader import Leader
from sparklog_broker.cluster.replica import ClusterReplica
from sparklog_broker.counters.replication import ReplicationCounters, SessionCounters
from sparklog_broker.metrics.families import one_counter, one_gauge
from sparklog_broker.metrics.slices import Slices
from sparklog_broker.metrics.watched import MetricSources


class ClusterState(NamedTuple):
    """The state at one time."""

    is_controller: bool = True
    offline: int = 0
    """On the controller, the number of partitions without a leader; 0 on other brokers."""
    away: int = 0
    """On the controller, the number of partitions that are not led by their preferred leader; 0 on other brokers."""
    brokers: int = 1
    counted: ReplicationCounters = ReplicationCounters()
    reassigning: int = 0
    """Number of partitions led by this broker with a reassignment in progress."""
    max_lag: int = 0
    """Largest number of records that a follower of a partition led by this broker lacks."""
    in_sync_lag: int = 0
    """Like `max_lag`, of in-sync followers only."""
    session: SessionCounters | None = None
    """Counters of the session with ZooKeeper; None without ZooKeeper."""
    has_older_store: bool = False
    """True while the broker refuses ZooKeeper's data, which are older than its newest image."""
    put_aside: int = 0
    """Number of topics whose files the broker has put aside, because the cluster's metadata lack them."""


def read_cluster(watched: MetricSources, slices: Slices) -> ClusterState:
    """Read the present state."""
    cluster = watched.cluster
    image, counted = cluster.image, cluster.replicas.counters
    is_controller = cluster.controller_id == watched.config.broker_id
    offline = away = 0
    if is_controller:
        for topic in slices.each(list(image.topics.values())):
            offline += sum(p.leader == NO_LEADER for p in topic.partitions)
            away += sum(p.leader != p.replicas[0] for p in topic.partitions)
    lag = in_sync_lag = reassigning = 0
    for partition in slices.each(watched.partitions.all()):
        replica, log = partition.replicas, partition.open_log
        if log is None or not isinstance(replica, ClusterReplica) or not isinstance(replica.state, Leader):
            continue
        reassigning += replica.image.is_reassigned
        end, in_sync = log.log_end_offset, replica.isr
        for follower, progress in list(replica.state.followers.items()):
            behind = max(0, end - max(progress.log_end_offset, 0))
            lag = max(lag, behind)
            if follower in in_sync:
                in_sync_lag = max(in_sync_lag, behind)
    return ClusterState(
        is_controller,
        offline,
        away,
        len(image.brokers),
        counted,
        reassigning,
        lag,
        in_sync_lag,
        cluster.session,
        bool(cluster.older_store),
        len(cluster.put_aside),
    )


def cluster_families(state: ClusterState) -> Iterator[Metric]:
    counted = state.counted
    for name, doc, value in (
        ("kafkacontroller_activecontrollercount", "1 if this broker is the controller.", int(state.is_controller)),
        (
            "kafkacontroller_offlinepartitionscount",
            "Partitions without a usable leader; reported by the controller.",
            state.offline,
        ),
        (
            "kafkacontroller_preferredreplicaimbalancecount",
            "Partitions whose leader is not their preferred replica; reported by the controller.",
            state.away,
        ),
        ("kafkacontroller_activebrokercount", "Brokers that are registered.", state.brokers),
    ):
        yield one_gauge(f"kafka_controller_{name}", doc, value)
    yield one_counter(
        "kafka_controller_controllerstats_uncleanleaderelections",
        "Unclean leader elections, whose leader may lack records; reported by the new leader.",
        counted.unclean_elections,
    )
    for name, doc, value in (
        ("isrshrinks", "Shrinks of the in-sync replicas of partitions led by this broker.", counted.isr_shrinks),
        ("isrexpands", "Expansions of the in-sync replicas of partitions led by this broker.", counted.isr_expands),
    ):
        yield one_counter(f"kafka_server_replicamanager_{name}", doc, value)
    yield one_gauge(
        "kafka_server_replicamanager_reassigningpartitions",
        "Partitions led by this broker that are being reassigned.",
        state.reassigning,
    )
    for name, doc, value in (
        ("replicationbytesin", "Bytes copied from leaders.", counted.bytes_in),
        ("replicationbytesout", "Bytes sent to followers.", counted.bytes_out),
        (
            "reassignmentbytesin",
            "Bytes fetched for replicas that a reassignment adds to this broker.",
            counted.reassignment_bytes_in,
        ),
        ("reassignmentbytesout", "Bytes sent to replicas that a reassignment adds.", counted.reassignment_bytes_out),
    ):
        yield one_counter(f"kafka_server_brokertopicmetrics_{name}", doc, value)
    yield one_gauge(
        "kafka_server_replicafetchermanager_maxlag",
        "Largest lag of a follower of a partition led by this broker, in records.",
        state.max_lag,
    )
    yield one_gauge(
        "sparklog_in_sync_replica_lag_records",
        "Largest lag of an in-sync follower of a partition led by this broker, in records.",
        state.in_sync_lag,
    )
    if state.session is not None:
        yield from _session_families(state.session)
        yield one_gauge(
            "sparklog_zookeeper_is_older",
            "1 if this broker refuses ZooKeeper's data, because they are older than its copy.",
            int(state.has_older_store),
        )
        yield one_gauge(
            "sparklog_topics_put_aside",
            "Topics missing from the cluster's metadata, whose files this broker has put aside.",
            state.put_aside,
        )


def _session_families(session: SessionCounters) -> Iterator[Metric]:
    yield one_gauge("sparklog_zookeeper_connected", "1 if ZooKeeper can be reached.", int(session.is_connected))
    for name, doc, value in (
        ("disconnects", "Lost connections to ZooKeeper.", session.disconnects),
        ("expires", "ZooKeeper sessions that expired.", session.expirations),
        ("syncconnects", "Reconnections to ZooKeeper.", session.connects),
    ):
        yield one_counter(f"kafka_server_sessionexpirelistener_zookeeper{name}", doc, value)
