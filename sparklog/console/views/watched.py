"""Values that are observed repeatedly, over time: growth of topics, lag of groups. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sparklog.client.admin.group_admin import GroupDescription, GroupListing

SAMPLES_MAX = 240
RATE_MS = 60_000


class GrowthSample(NamedTuple):
    """Sample of a topic: the sum of its partitions' ends, and its bytes."""

    time_ms: int
    end: int
    size_bytes: int


class Rate(NamedTuple):
    """Growth per second."""

    records: float
    size_bytes: float


def growth(samples: Sequence[GrowthSample]) -> Rate | None:
    """Return the growth between the first and the last sample; deletions do not count."""
    if len(samples) < 2:
        return None
    first, last = samples[0], samples[-1]
    seconds = (last.time_ms - first.time_ms) / 1000
    return Rate(max(0, last.end - first.end) / seconds, max(0, last.size_bytes - first.size_bytes) / seconds)


class LagSample(NamedTuple):
    """Sample of a group: the sum of its lags, None if nothing is committed; the sum of its committed offsets."""

    time_ms: int
    lag: int | None
    committed: int


@dataclass
class WatchedGroup:
    """A group as it was last seen. `lag_by_topic` has the topics with committed offsets; `samples` are over time."""

    listing: GroupListing
    topics: frozenset[str] = frozenset()
    lag_by_topic: Mapping[str, int] = field(default_factory=dict)
    samples: deque[LagSample] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))
    problem: str = ""

    @property
    def lag(self) -> int | None:
        return self.samples[-1].lag if self.samples else None

    @property
    def rate(self) -> float | None:
        """Committed offsets per second in the last minute."""
        samples = [s for s in self.samples if self.samples[-1].time_ms - s.time_ms <= RATE_MS]
        if len(samples) < 2 or samples[-1].time_ms == samples[0].time_ms:
            return None
        moved = samples[-1].committed - samples[0].committed
        return max(0, moved) / (samples[-1].time_ms - samples[0].time_ms) * 1000


def measured(group: GroupDescription, time_ms: int) -> tuple[dict[str, int], LagSample]:
    """Return the group's lag by topic, and its sample."""
    by_topic: dict[str, int] = {}
    committed = 0
    for p in group.partitions:
        if p.committed is not None:
            committed += p.committed.offset
        if p.lag is not None:
            by_topic[p.partition.topic] = by_topic.get(p.partition.topic, 0) + p.lag
    return by_topic, LagSample(time_ms, sum(by_topic.values()) if by_topic else None, committed)
