"""Assignment of a group's partitions to its members: pure functions of subscriptions, partition counts and the previous
assignment.

`range` gives each member a run of neighbouring partitions of every topic. If topics have the same subscribers and the
same number of partitions, a member gets the same partition numbers of each topic (co-partitioned joins). `uniform`
balances the numbers of partitions, and lets members keep their previous partitions where possible. The two are the
server-side assignors of KIP-848. Each gives every partition of a subscribed topic to exactly one subscriber.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from sparklog.errors import UnsupportedAssignorError
from sparklog.types import TopicPartition

Assignment = dict[str, frozenset[TopicPartition]]
"""Partitions by member id; every member has an entry."""

UNIFORM, RANGE = "uniform", "range"


class Subscriber(NamedTuple):
    """One member, with its subscribed topics and its partitions in the previous assignment."""

    name: str
    """Sort key of the members: the instance id of a static member, so that its place stays the same when it returns
    under a new member id; the member id of other members."""
    topics: Collection[str]
    previous: frozenset[TopicPartition] = frozenset()


Assignor = Callable[[Mapping[str, Subscriber], Mapping[str, int]], Assignment]
"""Function of the subscribers by member id, and of the numbers of partitions by topic."""


def assignor_of(name: str) -> Assignor:
    """Return the assignor of this name. Raises UnsupportedAssignorError."""
    assignor = ASSIGNORS.get(name)
    if assignor is None:
        raise UnsupportedAssignorError(f"unknown assignor {name!r}: use {' or '.join(sorted(ASSIGNORS))}")
    return assignor


def assign_range(members: Mapping[str, Subscriber], counts: Mapping[str, int]) -> Assignment:
    """Cut each topic's partitions into one run of neighbouring partitions for each subscriber. If the number of
    partitions is not divisible, the first runs are longer by one."""
    chosen: dict[str, set[TopicPartition]] = {m: set() for m in members}
    for topic, subscribers in _subscribers(members, counts).items():
        size, longer = divmod(counts[topic], len(subscribers))
        start = 0
        for i, member in enumerate(subscribers):
            end = start + size + (1 if i < longer else 0)
            chosen[member].update(TopicPartition(topic, p) for p in range(start, end))
            start = end
    return {m: frozenset(partitions) for m, partitions in chosen.items()}


def assign_uniform(members: Mapping[str, Subscriber], counts: Mapping[str, int]) -> Assignment:
    """Assign partitions evenly, and keep previous assignments where possible. If all members subscribe to the same
    topics, their numbers of partitions differ by at most one. Otherwise partitions move between subscribers of their
    topic until no such move makes the numbers more equal."""
    subscribers = _subscribers(members, counts)
    chosen, taken = _still_valid(members, counts)
    alike = len({frozenset(m.topics) for m in members.values()}) == 1
    if alike:
        _cut_to_quota(members, chosen, taken, sum(counts[t] for t in subscribers))
    rarest_first = sorted(subscribers, key=lambda t: (len(subscribers[t]), t))
    free = [tp for t in rarest_first for p in range(counts[t]) if (tp := TopicPartition(t, p)) not in taken]
    for group, partitions in _by_subscribers(free, subscribers):
        heap = [(len(chosen[m]), i, m) for i, m in enumerate(group)]
        heapq.heapify(heap)
        for tp in partitions:
            load, i, member = heap[0]
            chosen[member].add(tp)
            heapq.heapreplace(heap, (load + 1, i, member))
    if not alike:
        _level(chosen, subscribers)
    return {m: frozenset(partitions) for m, partitions in chosen.items()}


def _subscribers(members: Mapping[str, Subscriber], counts: Mapping[str, int]) -> dict[str, list[str]]:
    """Return the ids of the subscribers by topic, in the order of the members' names. Topics that do not exist or have
    no subscriber are left out.
    """
    subscribers: dict[str, list[str]] = defaultdict(list)
    for member in sorted(members, key=lambda m: (members[m].name, m)):
        for topic in set(members[member].topics):
            if counts.get(topic, 0) > 0:
                subscribers[topic].append(member)
    return dict(subscribers)


def _still_valid(
    members: Mapping[str, Subscriber], counts: Mapping[str, int]
) -> tuple[dict[str, set[TopicPartition]], set[TopicPartition]]:
    """Return by member id the previous partitions that the member can keep, and the set of all these partitions. The
    partition must exist, its topic must still be subscribed, and no earlier member must have kept it."""
    taken: set[TopicPartition] = set()
    chosen: dict[str, set[TopicPartition]] = {}
    for member in sorted(members, key=lambda m: (members[m].name, m)):
        topics = set(members[member].topics)
        kept = {
            tp
            for tp in members[member].previous
            if tp.topic in topics and tp.partition < counts.get(tp.topic, 0) and tp not in taken
        }
        taken |= kept
        chosen[member] = kept
    return chosen, taken


def _cut_to_quota(
    members: Mapping[str, Subscriber], chosen: dict[str, set[TopicPartition]], taken: set[TopicPartition], total: int
) -> None:
    """Remove each member's partitions above its quota from `chosen` and `taken`. If `total` is not divisible, the
    members with the most partitions keep one more than the quota."""
    quota, one_more = divmod(total, len(members))
    for i, member in enumerate(sorted(chosen, key=lambda m: (-len(chosen[m]), members[m].name, m))):
        limit = quota + (1 if i < one_more else 0)
        surplus = sorted(chosen[member])[limit:]
        chosen[member].difference_update(surplus)
        taken.difference_update(surplus)


def _by_subscribers(
    free: Iterable[TopicPartition], subscribers: Mapping[str, list[str]]
) -> list[tuple[tuple[str, ...], list[TopicPartition]]]:
    """Group partitions that have the same subscribers. Groups and partitions keep the order of `free`."""
    groups: dict[tuple[str, ...], list[TopicPartition]] = {}
    for tp in free:
        groups.setdefault(tuple(subscribers[tp.topic]), []).append(tp)
    return list(groups.items())


def _level(chosen: dict[str, set[TopicPartition]], subscribers: Mapping[str, list[str]]) -> None:
    """Move partitions to members that have at least two fewer, until no such move is possible. Every move lowers the
    sum of the squared numbers of partitions, so the loop ends."""
    moved = True
    while moved:
        moved = False
        lowest = min(map(len, chosen.values()), default=0)
        for member in sorted(chosen, key=lambda m: (-len(chosen[m]), m)):
            if len(chosen[member]) <= lowest + 1:
                break
            for topic in sorted({tp.topic for tp in chosen[member]}):
                target = min(subscribers[topic], key=lambda m: len(chosen[m]))
                surplus = (len(chosen[member]) - len(chosen[target])) // 2
                if surplus <= 0:
                    continue
                moving = sorted((tp for tp in chosen[member] if tp.topic == topic), reverse=True)[:surplus]
                chosen[member].difference_update(moving)
                chosen[target].update(moving)
                moved = True


ASSIGNORS: dict[str, Assignor] = {UNIFORM: assign_uniform, RANGE: assign_range}
