"""Changes of one partition: members leave, a leader is elected, a reassignment takes its steps. Pure functions.

A leader is, in this order:

1. the first replica in the order of the assignment that can lead and is in the ISR;
2. one that is an eligible leader (KIP-966): it left the ISR while this was below min.insync.replicas, so that nothing
   can have been committed without it;
3. only with `unclean.leader.election.enable`: the last leader, else the first replica that can lead. ISR = {it}, and
   `recovering` until it has noticed.

The functions do not change the epochs; `settled` raises them according to the changes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from sparklog.replication.cluster_image import NO_LEADER, PartitionImage


class ElectionRules(NamedTuple):
    """The conditions for a leader. `can_lead`: the broker is registered, is not stopping, and its disk with the
    partition works."""

    can_lead: Callable[[int], bool]
    min_insync: int = 1
    unclean: bool = False
    is_full: Callable[[int], bool] = lambda _: False
    """The broker's disk with the partition has no room: other candidates come first."""


def settled(before: PartitionImage, after: PartitionImage) -> PartitionImage:
    """Return `after` with the epochs that follow those of `before`; `before` itself if nothing has changed.

    A replica that leaves the assignment ends the leader epoch, too. It may be added again, empty, before its leader has
    heard of either change: its earlier fetches, and those on the way, belong to the earlier replica.
    """
    if after == before:
        return before
    ends_epoch = after.leader != before.leader or not set(before.replicas) <= set(after.replicas)
    return replace(
        after,
        leader_epoch=before.leader_epoch + ends_epoch,
        partition_epoch=before.partition_epoch + 1,
    )


def with_isr(partition: PartitionImage, isr: Iterable[int], min_insync: int) -> PartitionImage:
    """Set the ISR to `isr`. A member that leaves an ISR below min.insync.replicas becomes an eligible leader. Once the
    ISR has enough members, no other replica is eligible, because more may be committed without it."""
    members = set(isr)
    elr: set[int] = set()
    if len(members) < min_insync:
        elr = (set(partition.elr) | set(partition.isr)) - members
    return replace(partition, isr=_in_order(partition, members), elr=_in_order(partition, elr))


def without(
    partition: PartitionImage, gone: Collection[int], min_insync: int, forgotten: Collection[int] = ()
) -> PartitionImage:
    """Remove the brokers `gone` from the ISR and the leadership. `forgotten`: brokers whose data may be lost (a crash
    without flushed data, or another disk); they are no eligible leaders either (KAFKA-15586, 18106, 18635)."""
    left = with_isr(partition, [r for r in partition.isr if r not in gone and r not in forgotten], min_insync)
    left = replace(left, elr=tuple(r for r in left.elr if r not in forgotten))
    if partition.leader in gone or partition.leader in forgotten:
        left = replace(left, leader=NO_LEADER, last_leader=partition.leader)
    return left


def elect(
    partition: PartitionImage, rules: ElectionRules, order: Sequence[int] | None = None, *, always: bool = False
) -> PartitionImage:
    """Return the partition with a leader if one is possible; with NO_LEADER otherwise. A leader that can continue
    stays, except with `always`. `order`: of the candidates, else the assignment's."""
    current = partition.leader
    if current in partition.isr and rules.can_lead(current) and not always:
        return partition
    candidates = [r for r in (order if order is not None else partition.replicas) if rules.can_lead(r)]
    candidates.sort(key=rules.is_full)  # otherwise they keep their order
    for candidate in candidates:
        if candidate in partition.isr:
            return _led_by(partition, candidate)
    for candidate in candidates:
        if candidate in partition.elr:
            elr = tuple(r for r in partition.elr if r != candidate)
            return _led_by(replace(partition, isr=(candidate,), elr=elr), candidate)
    if rules.unclean and candidates:
        chosen = partition.last_leader if partition.last_leader in candidates else candidates[0]
        return _led_by(replace(partition, isr=(chosen,), elr=(), recovering=True), chosen)
    last = current if current != NO_LEADER else partition.last_leader
    return replace(partition, leader=NO_LEADER, last_leader=last)


def _led_by(partition: PartitionImage, leader: int) -> PartitionImage:
    return replace(partition, leader=leader, last_leader=NO_LEADER)


def spare(partition: PartitionImage, full: int, rules: ElectionRules) -> PartitionImage:
    """Take the broker `full`, whose disk has no room, out of the ISR, and have another member lead.

    Nothing changes if the other members are fewer than min.insync.replicas, or if none of them can lead and has room:
    nothing would be gained.
    """
    left = [r for r in partition.isr if r != full]
    if full not in partition.isr or partition.recovering or len(left) < max(1, rules.min_insync):
        return partition
    if not any(rules.can_lead(r) and not rules.is_full(r) for r in left):
        return partition
    return elect(with_isr(partition, left, rules.min_insync), rules)


# --- reassignment (KIP-455)


def start_reassignment(partition: PartitionImage, target: Sequence[int]) -> PartitionImage:
    """Set the assignment to old and new replicas together; `finish_reassignment` does the later steps. A second
    reassignment replaces the first: replicas that the first has added and the second does not name are removed."""
    old = tuple(r for r in partition.replicas if r not in target)
    settled_ones = [r for r in partition.replicas if r not in partition.adding]
    return replace(
        partition,
        replicas=(*target, *old),
        adding=tuple(r for r in target if r not in settled_ones),
        removing=old,
    )


def finish_reassignment(partition: PartitionImage, rules: ElectionRules) -> PartitionImage:
    """Complete the reassignment once all new replicas are in the ISR: the leader is one of them, the old ones are
    removed. Else return `partition`."""
    target = partition.target
    if not (partition.adding or partition.removing) or not set(target) <= set(partition.isr):
        return partition
    done = replace(
        partition,
        replicas=target,
        isr=tuple(r for r in target if r in partition.isr),
        elr=(),
        adding=(),
        removing=(),
    )
    elected = elect(done, rules)
    return elected if elected.leader != NO_LEADER else partition


def cancel_reassignment(partition: PartitionImage, rules: ElectionRules) -> PartitionImage | None:
    """Return the old assignment again; None if none of its replicas could lead now."""
    replicas = tuple(r for r in partition.replicas if r not in partition.adding)
    old = replace(
        partition,
        replicas=replicas,
        isr=tuple(r for r in replicas if r in partition.isr),
        elr=tuple(r for r in replicas if r in partition.elr),
        adding=(),
        removing=(),
    )
    elected = elect(old, rules._replace(unclean=False))
    return elected if elected.leader != NO_LEADER else None


def _in_order(partition: PartitionImage, members: Collection[int]) -> tuple[int, ...]:
    return tuple(r for r in partition.replicas if r in members)
