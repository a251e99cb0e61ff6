"""Checks of a leader's proposal to change its ISR (KIP-497, KIP-841, KIP-903)."""

from __future__ import annotations

from msgspec.structs import replace

from sparklog.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidRequestError,
    InvalidUpdateVersionError,
    NotControllerError,
)
from sparklog.replication.cluster_image import PartitionImage
from sparklog.replication.controller.draft import Draft
from sparklog.replication.controller.election import finish_reassignment, with_isr
from sparklog.replication.controller.model import IsrChange, Safeguards


def alter_isr(draft: Draft, broker_id: int, change: IsrChange, safeguards: Safeguards) -> PartitionImage:
    """Return the partition after the change. A proposal that equals the present state succeeds: the leader repeats it
    because the first reply was lost.

    Raises UnknownTopicOrPartitionError, NotControllerError (the leader's epoch is newer than this controller knows),
    FencedLeaderEpochError, InvalidUpdateVersionError, IneligibleReplicaError, InvalidRequestError.
    """
    before = draft.partition(change.partition)
    members = [member for member, _ in change.isr]
    if safeguards.proposal_epoch_check:
        if change.leader_epoch > before.leader_epoch:
            raise NotControllerError(
                f"{change.partition}: leader epoch {change.leader_epoch} is not known to this controller"
            )
        if change.leader_epoch < before.leader_epoch or before.leader != broker_id:
            raise FencedLeaderEpochError(
                f"{change.partition}: broker {before.leader} leads in epoch {before.leader_epoch}, the proposal came "
                f"from broker {broker_id} for epoch {change.leader_epoch}"
            )
    if set(members) == set(before.isr) and change.recovering == before.recovering:
        return before
    if safeguards.proposal_epoch_check and change.partition_epoch != before.partition_epoch:
        raise InvalidUpdateVersionError(
            f"{change.partition}: partition epoch {change.partition_epoch}, but the current one is "
            f"{before.partition_epoch}"
        )
    if broker_id not in members or len(set(members)) < len(members) or not set(members) <= set(before.replicas):
        raise InvalidRequestError(
            f"{change.partition}: invalid ISR {members} for leader {broker_id} and replicas {before.replicas}"
        )
    if before.recovering and len(members) > 1:
        raise InvalidRequestError(f"{change.partition}: the ISR cannot grow before the leader has recovered")
    _check_joining(draft, change, before, safeguards)
    rules = draft.rules(change.partition, before)
    after = with_isr(replace(before, recovering=change.recovering), members, rules.min_insync)
    return draft.change(change.partition, finish_reassignment(after, rules))


def _check_joining(draft: Draft, change: IsrChange, before: PartitionImage, safeguards: Safeguards) -> None:
    for member, epoch in change.isr:
        if member in before.isr or not safeguards.member_epoch_check:
            continue
        broker = draft.broker(member)
        if broker is None or broker.is_stopping or broker.broker_epoch != epoch:
            raise IneligibleReplicaError(
                f"{change.partition}: broker {member} with epoch {epoch} is not alive, or is stopping; "
                f"registered: {broker.broker_epoch if broker is not None else 'no'}"
            )
