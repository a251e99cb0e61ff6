"""Administration of a cluster: its brokers, the placement of replicas, and elections of leaders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sparklog.client.admin.changes import change
from sparklog.client.admin.leader_states import BROKER_MS, states_at
from sparklog.client.admin.repeating import RepeatPolicy
from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.outcomes import raise_failed
from sparklog.client.net.retry import Retries, RetryPolicy, request_until, until_answered
from sparklog.errors import (
    BrokerNotAvailableError,
    ClusterAuthorizationFailedError,
    InvalidRequestError,
    NoReassignmentInProgressError,
    RequestTimedOutError,
    SparklogError,
    error_from_code,
)
from sparklog.protocol.apis import Api
from sparklog.protocol.operation_messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    CordonBrokerRequest,
    CordonBrokerResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    PartitionName,
    PartitionOutcome,
    ReassignmentTarget,
)
from sparklog.types import TopicPartition

ELECTIONS = {"preferred": 0, "unclean": 1}


@dataclass(frozen=True)
class BrokerDescription:
    """A broker and its address."""

    broker_id: int
    """Id of the broker."""
    host: str
    """Host of the broker's address."""
    port: int
    """Port of the broker's address."""
    rack: str | None = None
    """The `broker.rack`; None: not set."""
    is_stopping: bool = False
    """True if the broker leads no partitions any more and is about to stop."""
    is_cordoned: bool = False
    """True if the broker gets no new replicas."""


@dataclass(frozen=True)
class ClusterDescription:
    """The brokers of a cluster."""

    cluster_id: str
    """Id of the cluster."""
    controller_id: int
    """Id of the controller; -1: none at the moment."""
    brokers: tuple[BrokerDescription, ...]
    """Brokers that are alive."""
    missing: tuple[int, ...] = ()
    """Ids of registered brokers that are not alive."""
    throttle_bytes: int = 0
    """Limit of a broker's copying for reassignments, in bytes/s: for sending to the added replicas of other brokers,
    and for receiving into its own added replicas; 0: no limit."""


@dataclass(frozen=True)
class LogDirDescription:
    """A log directory of a broker."""

    broker_id: int
    """Id of the broker."""
    path: str
    """Path on the broker's host."""
    error: str
    """Reason why the directory cannot be used; empty if it can be used."""
    total_bytes: int
    """Size of the disk in bytes; -1: not known."""
    usable_bytes: int
    """Free space of the disk in bytes; -1: not known."""
    partitions: int
    """Number of partitions in the directory."""
    size_bytes: int
    """Size of these partitions in bytes."""
    put_aside: int = 0
    """Number of partition directories that the broker has put aside, because the metadata lack their topics."""


@dataclass(frozen=True)
class PartitionReassignment:
    """A reassignment in progress."""

    topic_partition: TopicPartition
    """The partition."""
    leader: int
    """Id of the leader; -1: none."""
    replicas: tuple[int, ...]
    """Ids of the old and the new replicas."""
    isr: tuple[int, ...]
    """Ids of the replicas that are in sync."""
    adding: tuple[int, ...]
    """Ids of the new replicas, which copy the partition."""
    removing: tuple[int, ...]
    """Ids of the replicas that leave after all new ones are in sync."""
    copied_bytes: int = -1
    """Bytes that the new replicas have copied; -1: not known."""
    total_bytes: int = -1
    """Bytes that the new replicas have to copy; -1: not known."""


def describe_cluster(cluster: Cluster, timeout_ms: int) -> ClusterDescription:
    """Describe the cluster's brokers; see `Admin`."""
    deadline = Deadline(timeout_ms)
    request, policy = DescribeClusterRequest(), RetryPolicy.within(timeout_ms)
    try:
        found = request_until(cluster, Api.DESCRIBE_CLUSTER, request, DescribeClusterResponse, policy)
    except ClusterAuthorizationFailedError:  # metadata do not need the right
        metadata = cluster.metadata([], timeout_ms=deadline.left_ms())
        brokers = tuple(BrokerDescription(b.broker_id, b.host, b.port) for b in metadata.brokers)
        return ClusterDescription(metadata.cluster_id, metadata.controller, brokers)
    there = tuple(
        BrokerDescription(b.broker_id, b.host, b.port, b.rack, b.is_stopping, b.is_cordoned)
        for b in found.brokers
        if b.host
    )
    missing = tuple(b.broker_id for b in found.brokers if not b.host)
    return ClusterDescription(found.cluster_id, found.controller, there, missing, found.throttle_bytes)


def describe_log_dirs(cluster: Cluster, timeout_ms: int) -> dict[int, list[LogDirDescription]]:
    """Describe the disks of all brokers; see `Admin`."""
    deadline = Deadline(timeout_ms)
    found: dict[int, list[LogDirDescription]] = {}
    request = DescribeLogDirsRequest()
    for broker in describe_cluster(cluster, deadline.left_ms()).brokers:
        endpoint, left_ms = Endpoint(broker.host, broker.port), min(BROKER_MS, deadline.left_ms())
        try:
            answer = cluster.request(
                Api.DESCRIBE_LOG_DIRS, request, DescribeLogDirsResponse, endpoint=endpoint, timeout_ms=left_ms
            )
        except (BrokerNotAvailableError, RequestTimedOutError):
            continue
        found[broker.broker_id] = [
            LogDirDescription(
                broker.broker_id,
                d.path,
                f"{error_from_code(d.error_code, '').name}: {d.message}" if d.error_code else "",
                d.total_bytes,
                d.usable_bytes,
                d.partitions,
                d.size_bytes,
                d.put_aside,
            )
            for d in answer.log_dirs
        ]
    return found


def alter_reassignments(
    cluster: Cluster,
    targets: Mapping[TopicPartition, Sequence[int] | None],
    throttle_bytes: int | None,
    timeout_ms: int,
) -> None:
    """Change the replicas of partitions; see `Admin`."""
    request = AlterPartitionReassignmentsRequest(
        [
            ReassignmentTarget(tp.topic, tp.partition, None if replicas is None else list(replicas))
            for tp, replicas in targets.items()
        ],
        -1 if throttle_bytes is None else throttle_bytes,
    )
    repeating = RepeatPolicy()
    answer = change(
        cluster,
        Api.ALTER_PARTITION_REASSIGNMENTS,
        request,
        AlterPartitionReassignmentsResponse,
        timeout_ms,
        repeating=repeating,
    )
    assert answer is not None
    cancelled = {tp for tp, replicas in targets.items() if replicas is None and repeating.is_unclear}
    outcomes = _by_partition(answer.outcomes)
    for tp in cancelled:
        if isinstance(outcomes.get(tp), NoReassignmentInProgressError):  # an earlier attempt has cancelled it
            outcomes[tp] = None
    raise_failed(outcomes, "accepted")


def list_reassignments(
    cluster: Cluster, topics: Iterable[str] | None, timeout_ms: int, *, with_sizes: bool = True
) -> list[PartitionReassignment]:
    """List the reassignments in progress; see `Admin`. `with_sizes` False leaves the bytes at -1 and saves the requests
    to the replicas' brokers.
    """
    deadline = Deadline(timeout_ms)
    request = ListPartitionReassignmentsRequest(None if topics is None else list(topics))
    api, response = Api.LIST_PARTITION_REASSIGNMENTS, ListPartitionReassignmentsResponse
    policy = RetryPolicy.within(timeout_ms)
    answer = request_until(cluster, api, request, response, policy)
    if not answer.reassignments:
        return []
    asked: dict[int, set[str]] = {}
    for r in answer.reassignments if with_sizes else []:
        for broker in (r.leader, *r.adding):
            asked.setdefault(broker, set()).add(r.topic)
    # `states_at` needs the addresses of the brokers
    until_answered(lambda left_ms: cluster.metadata([], timeout_ms=left_ms), Retries(policy))
    sizes = {key: state.size_bytes for key, state in states_at(cluster, asked, deadline).items()}
    found = []
    for r in answer.reassignments:
        tp = TopicPartition(r.topic, r.partition)
        size = sizes.get((r.leader, tp), -1)
        copies = [size if broker in r.isr else sizes.get((broker, tp), -1) for broker in r.adding]
        is_known = size >= 0 and all(c >= 0 for c in copies)
        found.append(
            PartitionReassignment(
                tp,
                r.leader,
                tuple(r.replicas),
                tuple(r.isr),
                tuple(r.adding),
                tuple(r.removing),
                sum(min(c, size) for c in copies) if is_known else -1,
                size * len(r.adding) if is_known else -1,
            )
        )
    return found


def elect_leaders(cluster: Cluster, kind: str, partitions: Iterable[TopicPartition] | None, timeout_ms: int) -> int:
    """Elect leaders, and return the number of partitions with a new leader; see `Admin`."""
    if kind not in ELECTIONS:
        raise InvalidRequestError(f"election type {kind!r}: use one of {', '.join(ELECTIONS)}")
    named = None if partitions is None else [PartitionName(tp.topic, tp.partition) for tp in partitions]
    answer = change(
        cluster, Api.ELECT_LEADERS, ElectLeadersRequest(ELECTIONS[kind], named), ElectLeadersResponse, timeout_ms
    )
    assert answer is not None
    for outcome in answer.outcomes:
        cluster.expire(outcome.topic)
    raise_failed(_by_partition(answer.outcomes), "done")
    return answer.changed


def cordon(cluster: Cluster, broker_id: int, *, cordoned: bool, timeout_ms: int) -> tuple[int, ...]:
    """Cordon a broker against new replicas, or end that; return the ids of all cordoned brokers; see `Admin`."""
    request = CordonBrokerRequest(broker_id, cordoned)
    answer = change(cluster, Api.CORDON_BROKER, request, CordonBrokerResponse, timeout_ms)
    assert answer is not None
    return tuple(answer.cordoned)


def _by_partition(outcomes: Sequence[PartitionOutcome]) -> dict[TopicPartition, SparklogError | None]:
    return {
        TopicPartition(o.topic, o.partition): error_from_code(o.error_code, o.message) if o.error_code else None
        for o in outcomes
    }
