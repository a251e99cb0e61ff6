"""Addresses of other brokers in answers, which save the client a METADATA request: the leader of a partition that this
broker does not lead (KIP-951), and a closer replica for a reader (KIP-392).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sparklog.errors import FencedLeaderEpochError, NotLeaderError
from sparklog.protocol.topic_messages import BrokerEndpoint
from sparklog.replication.cluster_image import NO_LEADER
from sparklog.replication.replica.leader import Leader
from sparklog.types import TopicPartition
from sparklog_broker.broker import Broker
from sparklog_broker.cluster.replica import ClusterReplica
from sparklog_broker.partitions.partition import Partition
from sparklog_broker.request_context import RequestContext

UNKNOWN = -1


class LeaderHint(NamedTuple):
    """The leader and its epoch; -1 if no leader is known."""

    leader_id: int = UNKNOWN
    leader_epoch: int = UNKNOWN


def leader_hint(broker: Broker, topic: str, number: int, error: Exception | None) -> LeaderHint:
    """Return the hint for a client that gets NotLeaderError or FencedLeaderEpochError. With another `error`, or if no
    other leader is known, the hint is -1, -1."""
    if not isinstance(error, NotLeaderError | FencedLeaderEpochError):
        return LeaderHint()
    partition = broker.partitions.find(TopicPartition(topic, number))
    if partition is None:
        return LeaderHint()
    leader = partition.replicas.leader
    is_here = leader == broker.config.broker_id
    if leader == NO_LEADER or (is_here and not isinstance(error, FencedLeaderEpochError)):
        return LeaderHint()
    return LeaderHint(leader, partition.replicas.leader_epoch)


def endpoint_of(context: RequestContext, broker_id: int) -> tuple[str, int] | None:
    """Return the address of a broker for the peer; None if the broker is not registered, or not for the peer's
    listener. A sole broker without a registered address has the address of the peer's connection.
    """
    broker = context.broker
    endpoint = broker.cluster.endpoint_of(broker_id, context.listener)
    if endpoint is None and broker_id == broker.config.broker_id and not broker.cluster.has_endpoints:
        return broker.config.security.advertised_of(context.listener) or context.local_address
    return endpoint


def endpoints(broker: Broker, broker_ids: Iterable[int], listener: str = "") -> list[BrokerEndpoint]:
    """Return the addresses of brokers for peers on `listener`; -1, repeated and unregistered brokers are left out."""
    broker_endpoints = []
    for broker_id in sorted(set(broker_ids) - {UNKNOWN}):
        address, registered = (
            broker.cluster.endpoint_of(broker_id, listener),
            broker.cluster.image.brokers.get(broker_id),
        )
        if address is not None and registered is not None:
            broker_endpoints.append(BrokerEndpoint(broker_id, *address, registered.rack or ""))
    return broker_endpoints


def preferred_replica(broker: Broker, partition: Partition, rack: str, offset: int) -> int:
    """Return the in-sync follower with the most records in the reader's rack, if this broker leads in another rack. -1
    if the reader should stay with this broker, and always without `rack` or `replica.selector.class`.
    """
    replica = partition.replicas
    if not rack or not broker.config.replica_selector_class:
        return UNKNOWN
    if broker.config.broker_rack == rack or not isinstance(replica, ClusterReplica):
        return UNKNOWN
    leader = replica.state
    if not isinstance(leader, Leader) or leader.has_resigned:
        return UNKNOWN
    brokers, in_sync = broker.cluster.image.brokers, replica.isr
    candidates = [
        (progress.log_end_offset, follower)
        for follower, progress in leader.followers.items()
        if follower in in_sync
        and (registered := brokers.get(follower)) is not None
        and registered.rack == rack
        and not registered.is_stopping
        and not registered.is_suspected
        and progress.log_start_offset <= offset <= progress.log_end_offset
    ]
    return max(candidates)[1] if candidates else UNKNOWN
