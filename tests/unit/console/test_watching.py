"""The memory between pages, and its limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pyarrow as pa

from sparklog.client.admin.admin import BrokerDescription, ClusterDescription, PartitionDescription, TopicDescription
from sparklog.client.admin.group_admin import GroupDescription, GroupListing, PartitionLag
from sparklog.console.views.paging import page_of
from sparklog.console.views.topics import names_matching
from sparklog.console.views.watched import SAMPLES_MAX, GrowthSample
from sparklog.console.watching import (
    GROUPS_WATCHED_MAX,
    REPLICAS_AGE_S,
    TOPICS_RATED_MAX,
    BrokerWatch,
    GroupWatch,
    TopicNames,
    TopicRates,
)
from sparklog.errors import BrokerNotAvailableError, GroupIdNotFoundError
from sparklog.types import OffsetAndMetadata, TopicPartition


class SetClock:
    """A clock that shows a set time."""

    def __init__(self) -> None:
        self.now = 0.0

    def now_ms(self) -> int:
        return round(1000 * self.now)

    def monotonic_s(self) -> float:
        return self.now

    def uptime_ms(self) -> int:
        return self.now_ms()


class Topics:
    """Takes `takes_s` to answer."""

    def __init__(self, clock: SetClock, names: Mapping[str, int], takes_s: float) -> None:
        self.clock, self.names, self.takes_s, self.asked = clock, names, takes_s, 0

    def partition_counts(self, *, include_internal: bool = False) -> dict[str, int]:
        self.asked += 1
        self.clock.now += self.takes_s
        return dict(self.names)


class Groups:
    """Knows `listed`; those in `gone` cannot be described; without `answers` nothing can be asked."""

    def __init__(self, count: int) -> None:
        self.listed = [GroupListing(f"g-{n}", "Empty", "consumer", 0) for n in range(count)]
        self.gone: set[str] = set()
        self.answers = True
        self.committed = 0

    def list_groups(self) -> list[GroupListing]:
        if not self.answers:
            raise BrokerNotAvailableError("nobody answers")
        return self.listed

    def describe_group(self, group_id: str) -> GroupDescription:
        if group_id in self.gone:
            raise GroupIdNotFoundError(f"no group {group_id}")
        part = PartitionLag(TopicPartition("t", 0), OffsetAndMetadata(self.committed), 100, 100 - self.committed, None)
        return GroupDescription(group_id, "Empty", 1, "", (), (part,))


def test_names_are_kept_longer_if_they_take_longer() -> None:
    clock = SetClock()
    source = Topics(clock, {"a": 1}, 0.01)
    names = TopicNames(source, clock)
    assert names.get() == names.get() == {"a": 1}
    assert source.asked == 1
    clock.now += 2.5
    names.get()
    assert source.asked == 2
    source.takes_s = 1.0
    clock.now += 2.5
    names.get()
    clock.now += 9
    names.get()
    assert source.asked == 3
    names.forget()
    names.get()
    assert source.asked == 4


def test_a_page_of_a_hundred_thousand_names() -> None:
    names = {f"team-{n % 97}.topic-{n:06d}": 4 for n in range(100_000)}
    source = Topics(SetClock(), names, 0.0)
    found = names_matching(TopicNames(source, source.clock).get(), "TOPIC-0999", internal=False)
    page = page_of(found, 2)
    assert (len(found), page.total, len(page.rows)) == (100, 100, 50)


def test_how_fast_a_topic_grows() -> None:
    rates = TopicRates()
    assert rates.note("id", GrowthSample(0, 0, 0)) is None
    second = rates.note("id", GrowthSample(1_000, 100, 1000))
    assert second is not None
    assert second.records == 100
    much_later = rates.note("id", GrowthSample(200_000, 100, 1000))
    assert much_later is None  # of the last minute nothing is known
    assert rates.note("id", GrowthSample(100, 5, 5)) is None  # the clock was set back
    for n in range(TOPICS_RATED_MAX + 5):
        rates.note(str(n), GrowthSample(0, 0, 0))
    assert rates.note("id", GrowthSample(1_100, 10, 5)) is None  # forgotten for others


def test_lag_is_remembered_round_after_round() -> None:
    clock, source = SetClock(), Groups(2)
    watch = GroupWatch(source, clock)
    for _ in range(SAMPLES_MAX + 3):
        clock.now += 5
        source.committed = min(100, source.committed + 10)
        watch.measure()
    group = watch.groups()["g-0"]
    assert len(group.samples) == SAMPLES_MAX
    assert (group.lag, group.lag_by_topic, group.topics) == (0, {"t": 0}, {"t"})
    source.listed = source.listed[1:]
    watch.measure()
    assert list(watch.groups()) == ["g-1"]


def test_a_failed_query_is_reported_and_repeated() -> None:
    source = Groups(2)
    watch = GroupWatch(source, SetClock())
    source.gone = {"g-1"}
    watch.measure()
    assert (watch.groups()["g-0"].problem, watch.groups()["g-1"].lag) == ("", None)
    assert "no group g-1" in watch.groups()["g-1"].problem
    source.answers = False
    watch.measure()
    assert "nobody answers" in watch.problem
    assert set(watch.groups()) == {"g-0", "g-1"}
    source.answers, source.gone = True, set()
    watch.measure()
    assert (watch.problem, watch.groups()["g-1"].problem) == ("", "")


def test_only_so_many_groups_are_watched() -> None:
    watch = GroupWatch(Groups(GROUPS_WATCHED_MAX + 7), SetClock())
    watch.measure()
    assert (len(watch.groups()), watch.omitted) == (GROUPS_WATCHED_MAX, 7)


class Brokers:
    """`registered` brokers; one topic with replicas on `replicas`."""

    def __init__(self) -> None:
        self.registered = {1, 2, 3}
        self.replicas: tuple[int, ...] = (1, 2, 3)
        self.missing: tuple[int, ...] = ()
        self.asked = 0

    def describe_cluster(self) -> ClusterDescription:
        brokers = tuple(BrokerDescription(b, "a", b) for b in sorted(self.registered))
        return ClusterDescription("c", 1, brokers, self.missing)

    def partition_counts(self, *, include_internal: bool = False) -> dict[str, int]:
        return {"t": 1}

    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicDescription]:
        self.asked += 1
        partition = PartitionDescription(0, 1, 0, 1, 1, 0, 1, 0, "", self.replicas, self.replicas)
        return {n: TopicDescription(n, n, "typed", 1, pa.schema([]), 1, (), None, {}, 0, (partition,)) for n in names}


def test_a_broker_with_replicas_that_is_not_registered_is_down() -> None:
    clock, source = SetClock(), Brokers()
    watch = BrokerWatch(source, clock)
    assert watch.down() == []  # nobody has looked yet
    watch.measure()
    watch.measure()
    assert (watch.down(), source.asked) == ([], 1)
    source.registered = {1, 2}
    watch.measure()
    assert (watch.down(), source.asked) == ([3], 2)
    source.replicas = (1, 2)  # its partitions have been moved
    clock.now += REPLICAS_AGE_S
    watch.measure()
    assert watch.down() == []
    source.missing = (7,)  # a member without partitions
    watch.measure()
    assert watch.down() == [7]
