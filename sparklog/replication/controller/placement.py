"""Placement of the replicas of new partitions: round robin, racks alternating (KIP-36).

Partition p's first replica is on number (p + start) mod n in the list of n brokers. The distance of the other replicas
from the first grows by one with every round over the list, so that many brokers share the load of a failed broker. With
racks, the list alternates between the racks, and no rack gets a second replica of a partition while another rack has
none.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sparklog.errors import InvalidReplicaAssignmentError, InvalidReplicationFactorError


def place(
    racks: Mapping[int, str | None],
    partitions: int,
    replication_factor: int,
    *,
    start: int,
    shift: int,
    first_partition: int = 0,
) -> list[tuple[int, ...]]:
    """Return the replicas of each new partition, the preferred leader first. `racks`: the registered brokers with their
    racks. If one broker has no rack, racks are ignored. `start`: index of the first broker, usually random; 0 or more.
    `shift`: distance between first and second replica, usually random; 0 or more. `first_partition`: number of
    partitions that the topic has already. Raises InvalidReplicationFactorError: There are fewer brokers than replicas,
    or no replica is requested."""
    check_replication_factor(replication_factor, racks)
    has_racks = bool(racks) and all(rack is not None for rack in racks.values())
    brokers = _alternate_racks(racks) if has_racks else sorted(racks)
    rack_count = len(set(racks.values())) if has_racks else 1
    placed = []
    for p in range(first_partition, first_partition + partitions):
        turn = shift + p // len(brokers)
        first = (p + start) % len(brokers)
        replicas = [brokers[first]]
        distance = turn * rack_count
        while len(replicas) < replication_factor:
            candidate = _next(brokers, first, distance)
            distance += 1
            if candidate not in replicas and (not has_racks or _fits(candidate, replicas, racks, rack_count)):
                replicas.append(candidate)
        placed.append(tuple(replicas))
    return placed


def check_replication_factor(replication_factor: int, brokers: Collection[int]) -> None:
    """Raise InvalidReplicationFactorError unless the factor is between 1 and the number of brokers."""
    if not 1 <= replication_factor <= len(brokers):
        raise InvalidReplicationFactorError(
            f"replication factor {replication_factor} with {len(brokers)} brokers; use 1 to {len(brokers)}"
        )


def check_assignment(assignment: Sequence[Sequence[int]], brokers: Collection[int]) -> None:
    """Check the replicas that an operator has chosen for some partitions of a topic. Each partition needs the same
    number of replicas, on different brokers of `brokers`. Raises InvalidReplicaAssignmentError."""
    for number, replicas in enumerate(assignment):
        check_replicas(f"partition {number} of the assignment", replicas, brokers)
    if len({len(replicas) for replicas in assignment}) > 1:
        raise InvalidReplicaAssignmentError("all partitions of a topic need the same number of replicas")


def check_replicas(partition: str, replicas: Sequence[int], brokers: Collection[int]) -> None:
    """Raise InvalidReplicaAssignmentError, which names `partition`, unless the replicas are on different brokers of
    `brokers`."""
    unknown = [r for r in replicas if r not in brokers]
    if unknown:
        raise InvalidReplicaAssignmentError(
            f"{partition}: {list(replicas)}; unknown or stopped brokers: {', '.join(map(str, unknown))}; the running "
            f"brokers are {sorted(brokers)}"
        )
    if not replicas or len(set(replicas)) < len(replicas):
        raise InvalidReplicaAssignmentError(
            f"{partition}: {list(replicas)}; name each broker once, of {sorted(brokers)}"
        )


def _next(brokers: Sequence[int], first: int, distance: int) -> int:
    count = len(brokers)
    return brokers[(first + 1 + distance % (count - 1)) % count] if count > 1 else brokers[0]


def _fits(candidate: int, replicas: Sequence[int], racks: Mapping[int, str | None], rack_count: int) -> bool:
    used = {racks[r] for r in replicas}
    return racks[candidate] not in used or len(used) == rack_count


def _alternate_racks(racks: Mapping[int, str | None]) -> list[int]:
    """Order the brokers so that the racks alternate until a rack has no more brokers. For example {0,1,2} {3,4,5} gives
    0, 3, 1, 4, 2, 5."""
    by_rack: dict[str, list[int]] = {}
    for broker, rack in sorted(racks.items()):
        by_rack.setdefault(str(rack), []).append(broker)
    longest = max(map(len, by_rack.values()))
    return [by_rack[rack][i] for i in range(longest) for rack in sorted(by_rack) if i < len(by_rack[rack])]
