"""Administration of a cluster: its brokers, the placement of replicas, and elections of leaders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sparklog.client.admin.call import BROKER_MS, Call
from sparklog.client.admin.leader_states import states_at
from sparklog.client.admin.repeating import RepeatPolicy
from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.outcomes import raise_failed
from sparklog.errors import (
    BrokerNotAvailableError,
    ClusterAuthorizationFailedError,
    ElectionNotNeededError,
    InvalidRequestError,
    NoReassignmentInProgressError,
    RequestTimedOutError,
    SparklogError,
    error_from_code,
)
from sparklog.protocol.operation_messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    LogDir,
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


def describe_cluster(call: Call) -> ClusterDescription:
    """Describe the cluster's brokers; see `Admin`."""
    try:
        answer = call.ask(DescribeClusterRequest(), DescribeClusterResponse)
    except ClusterAuthorizationFailedError:  # metadata do not need the right
        old = call.cluster.metadata([], timeout_ms=call.left_ms)
        brokers = tuple(BrokerDescription(b.broker_id, b.host, b.port) for b in old.brokers)
        return ClusterDescription(old.cluster_id, old.controller, brokers)
    alive = tuple(
        BrokerDescription(b.broker_id, b.host, b.port, b.rack, b.is_stopping, b.is_cordoned)
        for b in answer.brokers
        if b.host
    )
    missing = tuple(b.broker_id for b in answer.brokers if not b.host)
    return ClusterDescription(answer.cluster_id, answer.controller, alive, missing, answer.throttle_bytes)


def describe_log_dirs(call: Call) -> dict[int, list[LogDirDescription]]:
    """Describe the disks of all brokers; see `Admin`."""
    descriptions: dict[int, list[LogDirDescription]] = {}
    for broker in describe_cluster(call).brokers:
        endpoint = Endpoint(broker.host, broker.port)
        try:
            answer = call.ask_broker(endpoint, DescribeLogDirsRequest(), DescribeLogDirsResponse, BROKER_MS)
        except (BrokerNotAvailableError, RequestTimedOutError):
            continue
        descriptions[broker.broker_id] = [_log_dir(broker.broker_id, d) for d in answer.log_dirs]
    return descriptions


def _log_dir(broker_id: int, d: LogDir) -> LogDirDescription:
    error = f"{error_from_code(d.error_code, '').name}: {d.message}" if d.error_code else ""
    sizes = (d.total_bytes, d.usable_bytes, d.partitions, d.size_bytes, d.put_aside)
    return LogDirDescription(broker_id, d.path, error, *sizes)


def alter_reassignments(
    call: Call, targets: Mapping[TopicPartition, Sequence[int] | None], throttle_bytes: int | None
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
    answer = call.change_once(request, AlterPartitionReassignmentsResponse, repeating)
    assert answer is not None
    cancelled = {tp for tp, replicas in targets.items() if replicas is None and repeating.is_unclear}
    outcomes = _by_partition(answer.outcomes)
    for tp in cancelled:
        if isinstance(outcomes.get(tp), NoReassignmentInProgressError):  # an earlier attempt has cancelled it
            outcomes[tp] = None
    raise_failed(outcomes, "accepted")


def list_reassignments(
    call: Call, topics: Iterable[str] | None, *, with_sizes: bool = True
) -> list[PartitionReassignment]:
    """List the reassignments in progress; see `Admin`. `with_sizes` False leaves the bytes at -1 and saves the requests
    to the replicas' brokers.
    """
    request = ListPartitionReassignmentsRequest(None if topics is None else list(topics))
    answer = call.ask(request, ListPartitionReassignmentsResponse)
    if not answer.reassignments:
        return []
    topics_of: dict[int, set[str]] = {}
    for r in answer.reassignments if with_sizes else []:
        for broker in (r.leader, *r.adding):
            topics_of.setdefault(broker, set()).add(r.topic)
    # `states_at` needs the addresses of the brokers
    call.answer(lambda left_ms: call.cluster.metadata([], timeout_ms=left_ms))
    sizes = {key: state.size_bytes for key, state in states_at(call, topics_of).items()}
    reassignments = []
    for r in answer.reassignments:
        tp = TopicPartition(r.topic, r.partition)
        size = sizes.get((r.leader, tp), -1)
        copies = [size if broker in r.isr else sizes.get((broker, tp), -1) for broker in r.adding]
        has_sizes = size >= 0 and all(c >= 0 for c in copies)
        reassignments.append(
            PartitionReassignment(
                tp,
                r.leader,
                tuple(r.replicas),
                tuple(r.isr),
                tuple(r.adding),
                tuple(r.removing),
                sum(min(c, size) for c in copies) if has_sizes else -1,
                size * len(r.adding) if has_sizes else -1,
            )
        )
    return reassignments


def elect_leaders(call: Call, kind: str, partitions: Iterable[TopicPartition] | None) -> int:
    """Elect leaders, and return the number of partitions with a new leader; see `Admin`."""
    if kind not in ELECTIONS:
        raise InvalidRequestError(f"election type {kind!r}: use one of {', '.join(ELECTIONS)}")
    named = None if partitions is None else [PartitionName(tp.topic, tp.partition) for tp in partitions]
    answer = call.change(ElectLeadersRequest(ELECTIONS[kind], named), ElectLeadersResponse)
    for outcome in answer.outcomes:
        call.cluster.expire(outcome.topic)
    outcomes = _by_partition(answer.outcomes)
    outcomes |= dict.fromkeys(tp for tp, error in outcomes.items() if isinstance(error, ElectionNotNeededError))
    raise_failed(outcomes, "done")
    return answer.changed


def _by_partition(outcomes: Sequence[PartitionOutcome]) -> dict[TopicPartition, SparklogError | None]:
    return {
        TopicPartition(o.topic, o.partition): error_from_code(o.error_code, o.message) if o.error_code else None
        for o in outcomes
    }
