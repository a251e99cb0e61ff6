"""Growth rates of topics and lags of groups, computed from repeated samples. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sparklog.client.admin.group_admin import GroupDescription, GroupListing
from sparklog.client.cluster_view import lag_by_topic

SAMPLES_MAX = 240
RATE_MS = 60_000


class GrowthSample(NamedTuple):
    """A sample of a topic."""

    time_ms: int
    end: int
    """Sum of the partitions' high watermarks."""
    size_bytes: int


class Rate(NamedTuple):
    """Growth of a topic per second."""

    records: float
    """Offsets per second."""
    size_bytes: float
    """Bytes per second."""


def growth(samples: Sequence[GrowthSample]) -> Rate | None:
    """Return the growth between the first and the last sample, 0 if the topic shrinks; None with a single sample."""
    if len(samples) < 2:
        return None
    first, last = samples[0], samples[-1]
    seconds = (last.time_ms - first.time_ms) / 1000
    return Rate(max(0, last.end - first.end) / seconds, max(0, last.size_bytes - first.size_bytes) / seconds)


class LagSample(NamedTuple):
    """A sample of a group."""

    time_ms: int
    lag: int | None
    """Sum of the lags of all partitions; None without committed offsets."""
    committed: int
    """Sum of the committed offsets."""


@dataclass
class WatchedGroup:
    """A group at its last measurement."""

    listing: GroupListing
    topics: frozenset[str] = frozenset()
    lag_by_topic: Mapping[str, int] = field(default_factory=dict)
    """Lag by topic, of the topics with committed offsets."""
    samples: deque[LagSample] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))
    """Samples of the last measurements, the newest last."""
    problem: str = ""
    """Error of the last measurement; empty if it succeeded."""

    @property
    def lag(self) -> int | None:
        return self.samples[-1].lag if self.samples else None

    @property
    def rate(self) -> float | None:
        """Committed offsets per second in the last minute; None with fewer than two samples."""
        samples = [s for s in self.samples if self.samples[-1].time_ms - s.time_ms <= RATE_MS]
        if len(samples) < 2 or samples[-1].time_ms == samples[0].time_ms:
            return None
        moved = samples[-1].committed - samples[0].committed
        return max(0, moved) / (samples[-1].time_ms - samples[0].time_ms) * 1000


def measured(group: GroupDescription, time_ms: int) -> tuple[dict[str, int], LagSample]:
    """Return the lag of a described group by topic, and its sample at the time `time_ms`."""
    by_topic = lag_by_topic((p.partition, p.lag) for p in group.partitions if p.lag is not None)
    committed = sum(p.committed.offset for p in group.partitions if p.committed is not None)
    return by_topic, LagSample(time_ms, sum(by_topic.values()) if by_topic else None, committed)
