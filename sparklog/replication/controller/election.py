"""Changes of one partition: members leave the ISR, a leader is elected, a reassignment proceeds. Pure functions.

Replicas on full disks and of suspected brokers come last, the others in the order of the assignment. The leader is the
first of these that exists:

1. the first replica that can lead and is in the ISR;
2. the first replica that can lead and is an eligible leader (KIP-966): it left the ISR while the ISR was below
   min.insync.replicas, so that no record was committed without it;
3. only with `unclean.leader.election.enable`: the last leader if it can lead, else the first replica that can lead. It
   becomes the only member of the ISR, and the partition is `recovering` until this leader has confirmed its role.

Only `settled` changes the epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from msgspec.structs import replace

from sparklog.replication.cluster_image import NO_LEADER, PartitionImage


class ElectionRules(NamedTuple):
    """The conditions for a leader. `can_lead(replica)`: True if the broker is registered and not stopping, and its disk
    with the partition works."""

    can_lead: Callable[[int], bool]
    min_insync: int = 1
    unclean: bool = False
    is_avoided: Callable[[int], bool] = lambda _: False
    """True if the broker is suspected, or its disk with the partition is full; other candidates are preferred."""


def settled(before: PartitionImage, after: PartitionImage) -> PartitionImage:
    """Return `after` with the epochs that follow those of `before`; `before` itself if nothing has changed.

    The leader epoch also ends when a replica leaves the assignment. The replica can be added again, empty, before the
    leader knows of the two changes. The leader must not count the fetches of the removed replica for the new one.
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
    """Set the ISR to `isr`. While the ISR has fewer than `min_insync` members, the members that leave the ISR become
    eligible leaders. With enough members the ELR is empty, because records can be committed without its replicas."""
    members = set(isr)
    elr: set[int] = set()
    if len(members) < min_insync:
        elr = (set(partition.elr) | set(partition.isr)) - members
    return replace(partition, isr=_in_order(partition, members), elr=_in_order(partition, elr))


def without(
    partition: PartitionImage, gone: Collection[int], min_insync: int, forgotten: Collection[int] = ()
) -> PartitionImage:
    """Remove the brokers `gone` from the ISR and the leadership. The brokers `forgotten` can have lost data, in a crash
    of the machine or with a disk; they leave ISR, leadership and ELR (KAFKA-15586, 18106, 18635)."""
    remaining = with_isr(partition, [r for r in partition.isr if r not in gone and r not in forgotten], min_insync)
    remaining = replace(remaining, elr=tuple(r for r in remaining.elr if r not in forgotten))
    if partition.leader in gone or partition.leader in forgotten:
        remaining = replace(remaining, leader=NO_LEADER, last_leader=partition.leader)
    return remaining


def elect(
    partition: PartitionImage, rules: ElectionRules, order: Sequence[int] | None = None, *, always: bool = False
) -> PartitionImage:
    """Return the partition with an elected leader, or with NO_LEADER if no replica can be elected. Without `always`, a
    leader that is in the ISR and can lead stays. `order`: the order of the candidates; None for the order of the
    assignment."""
    current = partition.leader
    if current in partition.isr and rules.can_lead(current) and not always:
        return partition
    candidates = [r for r in (order if order is not None else partition.replicas) if rules.can_lead(r)]
    candidates.sort(key=rules.is_avoided)  # a stable sort: avoided ones last
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
    """Remove the broker `full`, whose disk is full, from the ISR, and elect another member if that broker leads.

    The partition stays as it is if fewer than min.insync.replicas other members remain, or if none of them can lead and
    has room on its disk.
    """
    others = [r for r in partition.isr if r != full]
    if full not in partition.isr or partition.recovering or len(others) < max(1, rules.min_insync):
        return partition
    if not any(rules.can_lead(r) and not rules.is_avoided(r) for r in others):
        return partition
    return elect(with_isr(partition, others, rules.min_insync), rules)


def bypass(partition: PartitionImage, suspect: int, rules: ElectionRules) -> PartitionImage:
    """Elect another member of the ISR if the broker `suspect` leads, and remove it from the ISR if at least
    min.insync.replicas other members remain.

    The partition stays as it is if no other member can lead, or only avoided ones can. `suspect` may be alive: the new
    leader epoch fences it, and it can acknowledge no record that the new leader lacks.
    """
    others = [r for r in partition.isr if r != suspect]
    can_replace = any(rules.can_lead(r) and not rules.is_avoided(r) for r in others)
    if suspect not in partition.isr or partition.recovering or not can_replace:
        return partition
    members = others if len(others) >= rules.min_insync else partition.isr
    remaining = with_isr(partition, members, rules.min_insync)
    return elect(remaining, rules, always=True) if partition.leader == suspect else remaining


# --- reassignment (KIP-455)


def start_reassignment(partition: PartitionImage, target: Sequence[int]) -> PartitionImage:
    """Set the assignment to the old and new replicas together; `finish_reassignment` completes it. A second
    reassignment replaces the first: replicas that only the first names are removed."""
    old = tuple(r for r in partition.replicas if r not in target)
    settled_ones = [r for r in partition.replicas if r not in partition.adding]
    return replace(
        partition,
        replicas=(*target, *old),
        adding=tuple(r for r in target if r not in settled_ones),
        removing=old,
    )


def finish_reassignment(partition: PartitionImage, rules: ElectionRules) -> PartitionImage:
    """Complete the reassignment if all target replicas are in the ISR: remove the other replicas, and elect a leader
    among the target replicas. Returns `partition` if a target replica is not in sync, or none of them can lead."""
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
    """Return the partition with its old assignment; None if no old replica in the ISR or ELR can lead now."""
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
