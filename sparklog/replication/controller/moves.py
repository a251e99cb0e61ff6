"""Plans for moving existing replicas: off drained brokers, onto new brokers, evenly. A plan is a function of the
present state and moves nothing itself. Its steps:

1. Replicas on brokers that must not have replicas move to the least loaded allowed broker, preferably in a rack without
   a replica of the partition. The new replica has the old replica's place in the order, so that the replacement of a
   preferred leader is the new preferred leader.
2. Balancing: while a broker has at least two replicas more than another broker, one replica moves. A replica that is
   alone in its rack never moves into a rack that has another replica of the partition.
3. Balancing: preferred leaders are evened out by changes of the order within partitions, which copy nothing.

Plans count replicas, not bytes: only brokers know the sizes of partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from sparklog.errors import InvalidReplicationFactorError
from sparklog.types import TopicPartition

Assignment = Mapping[TopicPartition, tuple[int, ...]]


def plan_moves(
    current: Assignment,
    racks: Mapping[int, str | None],
    *,
    replication_factor: int | None = None,
    staying: Collection[int] = (),
    balanced: bool = True,
) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the partitions that change, with their new replicas. `racks`: the brokers that can get replicas, with
    their racks. `replication_factor`: replicas of every partition; None keeps each partition's number. `staying`: other
    brokers that keep their replicas and get no more. Only with `balanced=False`: balancing would also move replicas to
    and from these brokers. Raises InvalidReplicationFactorError: There are fewer possible brokers than replicas, or no
    replica is requested."""
    plan = _Plan(racks)
    targets: dict[TopicPartition, list[int]] = {}
    for tp, replicas in current.items():
        factor = replication_factor if replication_factor is not None else len(replicas)
        targets[tp] = [r for r in replicas if r in racks or r in staying]
        possible = sorted({*racks, *targets[tp]})
        if not 1 <= factor <= len(possible):
            raise InvalidReplicationFactorError(
                f"{tp} has {factor} replicas, but only {len(possible)} brokers accept replicas: {possible}"
            )
        plan.load.update(targets[tp])
    for tp, replicas in current.items():
        factor = replication_factor if replication_factor is not None else len(replicas)
        plan.fill(targets[tp], replicas, factor)
    if balanced:
        plan.balance(targets)
        plan.balance_leaders(targets)
    return {tp: tuple(replicas) for tp, replicas in targets.items() if tuple(replicas) != tuple(current[tp])}


class _Plan:
    def __init__(self, racks: Mapping[int, str | None]) -> None:
        self._racks = racks
        self.load: Counter[int] = Counter(dict.fromkeys(racks, 0))

    def fill(self, kept: list[int], before: tuple[int, ...], factor: int) -> None:
        """Reduce or fill `kept` to `factor` replicas. An added replica gets the place of a replica of `before` that is
        not kept."""
        while len(kept) > factor:
            gone = max(kept[1:], key=lambda r: (self._shares_rack(r, kept), self.load[r], r))
            kept.remove(gone)
            self.load[gone] -= 1
        places = [i for i, r in enumerate(before) if r not in kept]
        while len(kept) < factor:
            added = self._best(kept)
            kept.insert(places.pop(0) if places else len(kept), added)
            self.load[added] += 1

    def balance(self, targets: dict[TopicPartition, list[int]]) -> None:
        for _ in range(sum(map(len, targets.values()))):  # each step makes the loads more alike
            ranked = sorted(self.load, key=lambda b: (self.load[b], b))
            if not any(
                self._move_one(targets, most, least)
                for most in reversed(ranked)
                for least in ranked
                if self.load[most] - self.load[least] > 1
            ):
                return

    def _move_one(self, targets: dict[TopicPartition, list[int]], most: int, least: int) -> bool:
        for replicas in targets.values():
            if most in replicas and least not in replicas:
                others = [r for r in replicas if r != most]
                if self._shares_rack(least, others) and not self._shares_rack(most, others):
                    continue
                replicas[replicas.index(most)] = least
                self.load[most] -= 1
                self.load[least] += 1
                return True
        return False

    def balance_leaders(self, targets: dict[TopicPartition, list[int]]) -> None:
        led = Counter({**dict.fromkeys(self._racks, 0), **Counter(replicas[0] for replicas in targets.values())})
        for _ in range(len(targets)):
            if not self._swap_one(targets, led):
                return

    def _swap_one(self, targets: dict[TopicPartition, list[int]], led: Counter[int]) -> bool:
        for replicas in targets.values():
            first = replicas[0]
            other = min(replicas, key=lambda r: (led[r], r))
            if led[first] - led[other] > 1:
                place = replicas.index(other)
                replicas[0], replicas[place] = other, first
                led[first] -= 1
                led[other] += 1
                return True
        return False

    def _best(self, kept: list[int]) -> int:
        free = [b for b in self._racks if b not in kept]
        return min(free, key=lambda b: (self._shares_rack(b, kept), self.load[b], b))

    def _shares_rack(self, broker: int, others: list[int]) -> bool:
        rack = self._racks.get(broker)
        return rack is not None and any(self._racks.get(o) == rack for o in others if o != broker)
