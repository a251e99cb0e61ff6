"""Groups and their lag.

The first `metrics.groups.max` groups by name have separate series; all other groups share the series of `(others)`. A
group that is itself named `(others)` never has separate series.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple, TypeVar

from msgspec import Struct, field
from prometheus_client.core import Metric

from sparklog.protocol.group_messages import GroupSummary
from sparklog.replication.group_membership import STATE_RECONCILING
from sparklog.replication.groups import KIND_CONSUMER, GroupCoordinator
from sparklog.types import TopicPartition
from sparklog_broker.counters.traffic import OTHERS
from sparklog_broker.metrics.families import MetricInfo, Row, gauge
from sparklog_broker.metrics.slices import Slices

OFFSETS_MAX = 200_000
"""Largest number of committed offsets that one scrape reads. `sparklog_metrics_left_out` counts the rest."""
TRIES = 5

LAG = MetricInfo(
    "kafka_consumergroup_lag",
    "Lag of a group: offsets between its committed offsets and the ends of the partitions.",
)
CURRENT_OFFSET = MetricInfo(
    "kafka_consumergroup_current_offset", "Committed offset; the sum if the series covers several partitions."
)
MEMBERS = MetricInfo("kafka_consumergroup_members", "Members of a group.")
GROUPS = MetricInfo("sparklog_groups", "Groups by their state.")
GROUP_LAG = MetricInfo("sparklog_group_lag_records", "Sum of kafka_consumergroup_lag over all topics of a group.")
GROUP_LAG_MAX = MetricInfo("sparklog_group_lag_records_max", "Largest lag of one partition of a group.")

T = TypeVar("T")


class TopicLag(Struct):
    """The lag of one group in one topic or partition."""

    lag: int = 0
    offset: int = 0


class GroupLag(Struct):
    """The lag and the members of one group."""

    lag: int = 0
    lag_max: int = 0
    members: int = 0
    topics: dict[str, TopicLag] = field(default_factory=dict)
    partitions: dict[TopicPartition, TopicLag] = field(default_factory=dict)


class GroupsAtOnce(NamedTuple):
    """All groups at one time. `unread`: number of committed offsets that were not read."""

    states: Mapping[str, int]
    by_group: Mapping[str, GroupLag]
    unread: int


def read_groups(
    coordinators: Sequence[GroupCoordinator],
    ends: Mapping[TopicPartition, int],
    shown: Callable[[TopicPartition], bool],
    topic_name: Callable[[str], str],
    groups_max: int,
    slices: Slices,
) -> GroupsAtOnce:
    """Read all groups. `topic_name`: returns the name under which a topic is shown."""
    ids = [c.held_ids() for c in coordinators]
    usable = (i for some in ids for i in some if i != OTHERS)
    named = frozenset(nsmallest(groups_max, slices.each(usable)))
    lags: dict[str, GroupLag] = {}
    states: Counter[str] = Counter()
    for coordinator, its_ids in zip(coordinators, ids, strict=True):
        for group_id in slices.each(its_ids):
            summary = _summary(coordinator, group_id)
            states[summary.state] += 1
            name = group_id if group_id in named else OTHERS
            lags.setdefault(name, GroupLag()).members += summary.members
    remaining = OFFSETS_MAX
    for coordinator in coordinators:
        items = coordinator.offsets.items()
        for group_id, tp, value in slices.each(islice(items, max(remaining, 0))):
            remaining -= 1
            end = ends.get(tp)
            if end is not None:
                of_group = lags.setdefault(group_id if group_id in named else OTHERS, GroupLag())
                _add(of_group, tp, value.offset, max(0, end - value.offset), topic_name(tp.topic), shown(tp))
    total = sum(c.offsets.total for c in coordinators)
    return GroupsAtOnce(states, lags, max(0, total - OFFSETS_MAX))


def _add(of_group: GroupLag, tp: TopicPartition, offset: int, lag: int, topic: str, by_itself: bool) -> None:
    of_group.lag += lag
    of_group.lag_max = max(of_group.lag_max, lag)
    if by_itself:
        place = of_group.partitions.setdefault(tp, TopicLag())
    else:
        place = of_group.topics.setdefault(topic, TopicLag())
    place.lag += lag
    place.offset += offset


def _summary(coordinator: GroupCoordinator, group_id: str) -> GroupSummary:
    """Return the group's summary. The read is repeated if members change during it. After TRIES attempts, the summary
    has no members."""
    for _ in range(TRIES):
        try:
            return coordinator.summary(group_id)
        except RuntimeError:
            continue
    return GroupSummary(group_id, STATE_RECONCILING, KIND_CONSUMER, 0)


def group_families(groups: GroupsAtOnce, slices: Slices) -> Iterator[Metric]:
    yield gauge(GROUPS, [({"state": state}, count) for state, count in sorted(groups.states.items())])
    yield gauge(LAG, slices.each(_by_topic(groups.by_group, lambda place: place.lag)))
    yield gauge(CURRENT_OFFSET, slices.each(_by_topic(groups.by_group, lambda place: place.offset)))
    for described, value in ((MEMBERS, _members), (GROUP_LAG, _lag), (GROUP_LAG_MAX, _lag_max)):
        label = "consumergroup" if described is MEMBERS else "group"
        yield gauge(described, slices.each(_by_group(groups.by_group, label, value)))


def _members(group: GroupLag) -> int:
    return group.members


def _lag(group: GroupLag) -> int:
    return group.lag


def _lag_max(group: GroupLag) -> int:
    return group.lag_max


def _by_group(groups: Mapping[str, GroupLag], label: str, value: Callable[[GroupLag], int]) -> Iterable[Row]:
    return (({label: name}, value(group)) for name, group in groups.items())


def _by_topic(groups: Mapping[str, GroupLag], value: Callable[[TopicLag], int]) -> Iterator[Row]:
    for name, group in groups.items():
        for topic, place in group.topics.items():
            yield {"consumergroup": name, "topic": topic}, value(place)
        for tp, place in group.partitions.items():
            yield {"consumergroup": name, "topic": tp.topic, "partition": str(tp.partition)}, value(place)
