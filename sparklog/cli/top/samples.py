"""The samples of `sparklog top`: the state of a cluster at one moment, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sparklog.types import TopicPartition


class TopicSample(NamedTuple):
    """A topic."""

    topic_id: str
    ends: tuple[int, ...]
    """High watermark of each partition; -1 for an offline one."""
    size_bytes: int
    """Size of all batches, those in the object store included."""
    offline: int = 0
    unwritable: int = 0
    """Number of partitions whose last append failed."""
    under_replicated: int = 0


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


class TransactionSample(NamedTuple):
    """A transaction that has not ended."""

    transactional_id: str
    kind: str
    state: str
    started_ms: int
    """Time of its beginning by the broker's clock, in ms since 1970; -1: unknown."""
    timeout_ms: int
    """Timeout in ms; -1: none."""


class LakeSample(NamedTuple):
    """A topic's Delta table, from the reports of lake workers. Unknown numbers are -1."""

    topic: str
    state: str
    lag: int
    """Number of offsets that the table lacks."""
    behind_s: float
    """Age in s of the newest time up to which all records are in the table."""
    files: int


class BrokerSample(NamedTuple):
    """A broker of the cluster."""

    broker_id: int
    address: str
    is_controller: bool
    leads: int
    """Number of partitions that the broker leads."""


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
    cluster_id: str
    topics: Mapping[str, TopicSample]
    omitted_topics: int
    """Number of topics beyond the sample's limit."""
    groups: Mapping[str, GroupSample]
    omitted_groups: int
    """Number of groups beyond the sample's limit."""
    transactions: tuple[TransactionSample, ...]
    brokers: tuple[BrokerSample, ...]
    page: BrokerPage | None = None
    """The metrics page; None if none is requested, or if it has failed."""
    page_problem: str = ""
    """Reason why the metrics page has failed; empty without a failure."""
    lakes: tuple[LakeSample, ...] = ()
