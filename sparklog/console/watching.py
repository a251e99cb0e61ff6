"""State that the console keeps between pages: names of topics, growth of topics, brokers that are down, and the history
of groups' lags."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import Protocol

from sparklog.client.admin.admin import ClusterDescription, TopicDescription
from sparklog.client.admin.group_admin import GroupDescription, GroupListing
from sparklog.client.cluster_view import replica_brokers
from sparklog.console.views.watched import RATE_MS, GrowthSample, Rate, WatchedGroup, growth, measured
from sparklog.environment.clock import Clock, MachineClock
from sparklog.errors import SparklogError

NAMES_AGE_S = 2.0
REPLICAS_AGE_S = 60.0
TOPICS_WITH_REPLICAS_MAX = 2_000
DUTY = 10
"""A request is repeated no earlier than after this multiple of its duration, so that slow requests are rare."""
GROUPS_WATCHED_MAX = 1_000
ROUND_S = 5.0
TOPICS_RATED_MAX = 2_000
RATE_SAMPLES_MAX = 32

_log = logging.getLogger(__name__)


class NamesSource(Protocol):
    """The methods of Admin that `TopicNames` uses."""

    def partition_counts(self, *, include_internal: bool = False) -> dict[str, int]: ...


class BrokerSource(NamesSource, Protocol):
    """The methods of Admin that `BrokerWatch` uses."""

    def describe_cluster(self) -> ClusterDescription: ...

    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicDescription]: ...


class GroupSource(Protocol):
    """The methods of Admin that `GroupWatch` uses."""

    def list_groups(self) -> list[GroupListing]: ...

    def describe_group(self, group_id: str) -> GroupDescription: ...


class TopicNames:
    """A cache of all topics' names and numbers of partitions, because a long list takes time to send. Thread-safe."""

    def __init__(self, source: NamesSource, clock: MachineClock) -> None:
        self._source = source
        self._clock = clock
        self._lock = threading.Lock()
        self._names: dict[str, int] = {}
        self._until_s = float("-inf")

    def forget(self) -> None:
        """Empty the cache after a change, so that the next call requests the names."""
        with self._lock:
            self._until_s = float("-inf")

    def get(self) -> Mapping[str, int]:
        """Return the numbers of partitions by topic, sorted, internal topics included.

        Simultaneous calls wait for one request. Raises the errors of Admin.
        """
        with self._lock:
            begun_s = self._clock.monotonic_s()
            if begun_s >= self._until_s:
                self._names = self._source.partition_counts(include_internal=True)
                ended_s = self._clock.monotonic_s()
                self._until_s = ended_s + max(NAMES_AGE_S, DUTY * (ended_s - begun_s))
            return self._names


class TopicRates:
    """Growth rates of topics, from the samples of earlier pages. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: OrderedDict[str, deque[GrowthSample]] = OrderedDict()

    def note(self, topic_id: str, sample: GrowthSample) -> Rate | None:
        """Keep a sample, and return the rate over the last minute; None without an earlier sample."""
        with self._lock:
            samples = self._samples.setdefault(topic_id, deque(maxlen=RATE_SAMPLES_MAX))
            self._samples.move_to_end(topic_id)
            while len(self._samples) > TOPICS_RATED_MAX:
                self._samples.popitem(last=False)
            if samples and sample.time_ms < samples[-1].time_ms:
                samples.clear()  # the clock was set back
            if not samples or sample.time_ms > samples[-1].time_ms:
                samples.append(sample)
            while sample.time_ms - samples[0].time_ms > RATE_MS:
                samples.popleft()
            return growth(samples)


class BrokerWatch:
    """Finds brokers that are down: members of the cluster or brokers with replicas that are not registered."""

    def __init__(self, source: BrokerSource, clock: MachineClock) -> None:
        self._source = source
        self._clock = clock
        self._registered_brokers: frozenset[int] = frozenset()
        self._with_replicas: frozenset[int] = frozenset()
        self._missing: frozenset[int] = frozenset()
        self._until_s = float("-inf")

    def down(self) -> list[int]:
        """Return the sorted ids of the brokers that were down at the last measurement; empty before the first one."""
        return sorted((self._with_replicas | self._missing) - self._registered_brokers)

    def measure(self) -> None:
        """Measure once. Replicas are requested once a minute, and when the registered brokers have changed.

        A failure is logged. Calls must not overlap.
        """
        try:
            cluster = self._source.describe_cluster()
            registered = frozenset(b.broker_id for b in cluster.brokers)
            if registered != self._registered_brokers or self._clock.monotonic_s() >= self._until_s:
                names = list(self._source.partition_counts(include_internal=True))[:TOPICS_WITH_REPLICAS_MAX]
                self._with_replicas = replica_brokers(self._source.describe_topics(names).values())
                self._until_s = self._clock.monotonic_s() + REPLICAS_AGE_S
            self._registered_brokers, self._missing = registered, frozenset(cluster.missing)
        except SparklogError as e:
            _log.warning("the brokers cannot be watched: %s", e)


class GroupWatch:
    """Measures the lag of every group with each call of `measure`."""

    def __init__(self, source: GroupSource, clock: Clock) -> None:
        self._source = source
        self._clock = clock
        self._groups: dict[str, WatchedGroup] = {}
        self.rounds = 0
        """Number of successful measurements."""
        self.omitted = 0
        """Number of groups beyond GROUPS_WATCHED_MAX."""
        self.problem = ""
        """Reason why the last measurement failed; empty if it succeeded."""

    def groups(self) -> Mapping[str, WatchedGroup]:
        """Return the groups of the last measurement, by name."""
        return self._groups

    def measure(self) -> None:
        """Measure once. If the groups cannot be listed, the error is logged and kept in `problem`. The error of a
        single group is kept in `WatchedGroup.problem`. Calls must not overlap."""
        try:
            listed = self._source.list_groups()
        except SparklogError as e:
            self.problem = f"{e.name}: {e}"
            _log.warning("the groups cannot be watched: %s", e)
            return
        self.omitted = max(0, len(listed) - GROUPS_WATCHED_MAX)
        before = self._groups
        measured = {g.group_id: self._measure(g, before.get(g.group_id)) for g in listed[:GROUPS_WATCHED_MAX]}
        self._groups = measured
        self.problem = ""
        self.rounds += 1

    def _measure(self, listing: GroupListing, before: WatchedGroup | None) -> WatchedGroup:
        watched = WatchedGroup(listing)
        if before is not None:
            watched.samples = before.samples
        try:
            described = self._source.describe_group(listing.group_id)
        except SparklogError as e:
            watched.problem = f"{e.name}: {e}"
            return watched
        by_topic, sample = measured(described, self._clock.now_ms())
        watched.lag_by_topic = by_topic
        watched.topics = frozenset(p.partition.topic for p in described.partitions)
        samples = watched.samples.copy()  # a page can be reading the old deque
        samples.append(sample)
        watched.samples = samples
        return watched
