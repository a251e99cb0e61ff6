"""The samples of `sparklog top`: the state of a cluster at one moment, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sparklog.client.cluster_view import ClusterView
from sparklog.types import TopicPartition


class GroupSample(NamedTuple):
    """A group."""

    state: str
    members: int
    committed: Mapping[TopicPartition, int] | Mapping[str, int]
    """Committed offsets by partition; sums by topic if they are from a metrics page."""
    lags: Mapping[str, int] | None
    """Lag in offsets, by topic; None without committed offsets."""

    @property
    def lag(self) -> int | None:
        """Sum of the lags of all topics, in offsets."""
        return None if self.lags is None else sum(self.lags.values())


class LakeSample(NamedTuple):
    """A topic's Delta table, from the reports of lake workers. Unknown numbers are -1."""

    topic: str
    state: str
    lag: int
    """Number of offsets that the table lacks."""
    behind_s: float
    """Age in s of the newest time up to which all records are in the table."""
    files: int


class BrokerPage(NamedTuple):
    """The content of one broker's metrics page. `*_total`, `bytes_in` and `bytes_out` count from the broker's start."""

    broker_id: int
    version: str
    time_ms: int
    requests_total: float
    errors_total: float
    connections: float
    memory_used_bytes: float
    memory_limit_bytes: float
    bytes_in: Mapping[str, float]
    bytes_out: Mapping[str, float]
    group_lags: Mapping[str, Mapping[str, int]]
    group_offsets: Mapping[str, Mapping[str, int]]


class Snapshot(NamedTuple):
    """The state of a cluster at one moment."""

    at_s: float
    """Monotonic time on this machine, in s."""
    now_ms: int
    """Time in ms since 1970: of the metrics page's broker, else of this machine."""
    view: ClusterView
    groups: Mapping[str, GroupSample]
    omitted_groups: int
    """Number of groups beyond the sample's limit."""
    page: BrokerPage | None = None
    """The metrics page; None if none is requested, or if it has failed."""
    page_problem: str = ""
    """Reason why the metrics page has failed; empty without a failure."""
    lakes: tuple[LakeSample, ...] = ()
