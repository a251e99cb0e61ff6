"""Requests of operators: election of leaders, reassignment of replicas (KIP-455), and cordoning of brokers."""

from __future__ import annotations

from msgspec.structs import replace

from sparklog.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    InvalidReplicaAssignmentError,
    NoReassignmentInProgressError,
    SparklogError,
)
from sparklog.replication.cluster_image import (
    CORDONED_SETTING,
    MIN_INSYNC_SETTING,
    NO_LEADER,
    THROTTLE_SETTING,
    cordoned_brokers,
)
from sparklog.replication.controller import election
from sparklog.replication.controller.draft import Draft
from sparklog.replication.controller.model import Cordon, Elect, ElectionKind, Reassign
from sparklog.replication.controller.placement import check_replicas
from sparklog.types import TopicPartition

Outcomes = dict[TopicPartition, SparklogError | None]


def elect_leaders(draft: Draft, request: Elect) -> Outcomes:
    """Elect leaders, and return each partition's error; None if the partition gets another leader. An election of all
    partitions leaves out those that need no election."""
    partitions = request.partitions if request.partitions is not None else [tp for tp, _ in draft.all_partitions()]
    results: Outcomes = {}
    for tp in partitions:
        try:
            _elect_one(draft, tp, request.kind)
            results[tp] = None
        except ElectionNotNeededError as e:
            if request.partitions is not None:
                results[tp] = e
        except SparklogError as e:
            results[tp] = e
    return results


def _elect_one(draft: Draft, tp: TopicPartition, kind: ElectionKind) -> None:
    partition = draft.partition(tp)
    if kind is ElectionKind.PREFERRED:
        preferred = partition.replicas[0]
        if partition.leader == preferred:
            raise ElectionNotNeededError(f"{tp}: the preferred leader {preferred} leads the partition already")
        if preferred not in partition.isr or not draft.rules(tp, partition).can_lead(preferred):
            raise EligibleLeadersNotAvailableError(f"{tp}: the preferred leader {preferred} is not in sync")
        if draft.rules(tp, partition).is_avoided(preferred):
            raise EligibleLeadersNotAvailableError(
                f"{tp}: the disk of the preferred leader {preferred} is full, or other brokers did not reach it in the "
                "last seconds; free space on the disk or wait, then retry"
            )
        draft.change(tp, replace(partition, leader=preferred))
    elif partition.leader != NO_LEADER:
        raise ElectionNotNeededError(f"{tp}: broker {partition.leader} leads the partition")
    else:
        elected = election.elect(partition, draft.rules(tp, partition, unclean=True))
        if elected.leader == NO_LEADER:
            raise EligibleLeadersNotAvailableError(f"{tp}: none of {partition.replicas} is alive")
        draft.change(tp, elected)


def reassign(draft: Draft, request: Reassign) -> Outcomes:
    """Begin or cancel reassignments, and return each partition's error; None if the request was carried out."""
    results: Outcomes = {}
    for tp, target in request.targets.items():
        try:
            _reassign_one(draft, tp, target)
            results[tp] = None
        except SparklogError as e:
            results[tp] = e
    if request.throttle_bytes >= 0:
        draft.set_config(THROTTLE_SETTING, request.throttle_bytes or None)
    end_throttle(draft)
    return results


def _reassign_one(draft: Draft, tp: TopicPartition, target: tuple[int, ...] | None) -> None:
    partition = draft.partition(tp)
    rules = draft.rules(tp, partition)
    if target is not None:
        check_replicas(str(tp), target, {*draft.live_brokers(), *partition.replicas})  # replicas may be down
        no_new = cordoned_brokers(draft.config(CORDONED_SETTING, ""))
        refused = [r for r in target if r in no_new and r not in partition.replicas]
        if refused:
            raise InvalidReplicaAssignmentError(f"{tp}: brokers {refused} are cordoned and accept no new replicas")
        needed = int(draft.topic(tp.topic).configs.get(MIN_INSYNC_SETTING, 1))
        if len(target) < min(needed, len(partition.target)):
            raise InvalidReplicaAssignmentError(
                f"{tp}: {len(target)} replicas cannot keep min.insync.replicas = {needed}; name more brokers, or "
                "lower the setting first"
            )
        started = election.start_reassignment(partition, target)
        draft.change(tp, election.finish_reassignment(started, rules))
        return
    if not partition.is_reassigned:
        raise NoReassignmentInProgressError(f"{tp} is not being reassigned")
    cancelled = election.cancel_reassignment(partition, rules)
    if cancelled is None:
        raise EligibleLeadersNotAvailableError(f"{tp}: no replica of the old assignment is in sync")
    draft.change(tp, cancelled)


def end_throttle(draft: Draft) -> None:
    """Remove the throttle if no reassignment is in progress."""
    if int(draft.config(THROTTLE_SETTING, 0)) and not any(p.is_reassigned for _, p in draft.all_partitions()):
        draft.set_config(THROTTLE_SETTING, None)


def cordon(draft: Draft, request: Cordon) -> frozenset[int]:
    """Cordon or uncordon a broker, and return all cordoned brokers."""
    before = cordoned_brokers(draft.config(CORDONED_SETTING, ""))
    after = before | {request.broker_id} if request.cordoned else before - {request.broker_id}
    if after != before:
        draft.set_config(CORDONED_SETTING, ",".join(map(str, sorted(after))) or None)
    return after
