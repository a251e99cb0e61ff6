"""The samples of `sparklog top`: a cluster at one moment, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sparklog.types import TopicPartition


class TopicSample(NamedTuple):
    """A topic. `ends`: the high watermark of each partition, -1 while it is offline; `size_bytes` are bytes of batches,
    those in the object store too; `unwritable`: partitions whose last append was not taken."""

    topic_id: str
    ends: tuple[int, ...]
    size_bytes: int
    offline: int = 0
    unwritable: int = 0
    under_replicated: int = 0


class GroupSample(NamedTuple):
    """A group. `committed` by partition, or by topic as a sum if its sampler cannot tell partitions apart; `lags` by
    topic; None: no offset is committed, or it is unknown."""

    state: str
    members: int
    committed: Mapping[TopicPartition, int] | Mapping[str, int]
    lags: Mapping[str, int] | None

    @property
    def lag(self) -> int | None:
        """Sum of the lags of all topics, in offsets."""
        return None if self.lags is None else sum(self.lags.values())


class TransactionSample(NamedTuple):
    """A transaction that has not ended. Times are ms by the broker's clock."""

    transactional_id: str
    kind: str
    state: str
    started_ms: int
    timeout_ms: int


class LakeSample(NamedTuple):
    """A Delta table, as workers report it. `lag` and `behind_s` -1: not known."""

    topic: str
    state: str
    lag: int
    behind_s: float
    files: int


class BrokerSample(NamedTuple):
    """A broker, and how many partitions it leads."""

    broker_id: int
    address: str
    is_controller: bool
    leads: int


class BrokerPage(NamedTuple):
    """The content of one broker's metrics page. `*_total` and the numbers by topic count from the broker's start."""

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
    """A cluster at one moment. `at_s` is monotonic time, `now_ms` the best guess at the brokers' clock. `*_left_out`:
    the number beyond the limit of the sample. `page` None: not requested, or missing for the reason in
    `page_problem`."""

    at_s: float
    now_ms: int
    cluster_id: str
    topics: Mapping[str, TopicSample]
    topics_left_out: int
    groups: Mapping[str, GroupSample]
    groups_left_out: int
    transactions: tuple[TransactionSample, ...]
    brokers: tuple[BrokerSample, ...]
    page: BrokerPage | None = None
    page_problem: str = ""
    lakes: tuple[LakeSample, ...] = ()
