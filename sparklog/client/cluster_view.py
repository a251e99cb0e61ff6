"""One bounded snapshot of a cluster, and judgements about it, for all programs that show a cluster's state: `doctor`,
`top`, the console and `cluster describe`. `ClusterReader` sends the requests; the rest is pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from sparklog.errors import error_from_code
from sparklog.types import TopicPartition

if TYPE_CHECKING:
    from sparklog.client.admin.admin import Admin, PartitionDescription, TopicDescription
    from sparklog.client.admin.cluster_admin import ClusterDescription
    from sparklog.client.admin.group_admin import GroupListing
    from sparklog.protocol.transaction_messages import TransactionSummary

TOPICS_MAX = 10_000
"""Largest number of topics that a view describes."""
OFFSETS_MAX = 100_000
"""Number of committed offsets after which a view reads no further group."""
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")
ENDS = "where committed records end"
"""Name of the part of a view with the last stable offsets."""
T = TypeVar("T")


class Attempt(Protocol):
    """Runs the job that reads a part of a view. If the job fails, it returns None, or raises the error."""

    def __call__(self, part: str, job: Callable[[], T], /) -> T | None: ...


class GroupPartition(NamedTuple):
    """The position of a group in one partition."""

    partition: TopicPartition
    committed: int
    log_start: int
    """First readable offset."""
    end: int
    """Last stable offset: the end of the readable offsets."""
    size_bytes: int = 0
    committed_before: int = -1
    """`committed` of the first of two requests; -1 with a single request."""
    end_before: int = -1
    """`end` of the first of two requests; -1 with a single request."""
    due_offset: int = -1
    """Records below this offset are about to be deleted by their age; -1: unknown, or there is no lag."""

    @property
    def lag(self) -> int:
        """Number of readable offsets that the group has not read. Deleted records do not count."""
        return max(0, self.end - max(self.committed, self.log_start))


class ClusterView(NamedTuple):
    """The state of a cluster at one moment. Parts that could not be read are empty."""

    cluster: ClusterDescription
    topics: Mapping[str, TopicDescription]
    """The topics by name, at most TOPICS_MAX."""
    ends: Mapping[TopicPartition, int]
    """Last stable offsets of online partitions."""
    transactions: Sequence[TransactionSummary]
    """Transactions that have not ended."""
    groups: Sequence[GroupListing]
    """All groups."""
    committed: Mapping[str, Mapping[TopicPartition, int]]
    """Committed offsets by group. Groups beyond the view's limits are absent."""
    topics_left_out: int = 0
    """Number of topics beyond TOPICS_MAX."""

    def positions(self, group_id: str) -> tuple[GroupPartition, ...]:
        """Return the positions of a group in the partitions whose end the view has."""
        positions = []
        for tp, offset in sorted(self.committed.get(group_id, {}).items()):
            topic = self.topics.get(tp.topic)
            if topic is not None and tp in self.ends:
                p = topic.partition_details[tp.partition]
                positions.append(GroupPartition(tp, offset, p.log_start_offset, self.ends[tp], max(0, p.size_bytes)))
        return tuple(positions)


class ClusterReader:
    """Reads views of a cluster. `all_ends` False reads the ends only of partitions in which a group has committed."""

    def __init__(
        self, admin: Admin, attempt: Attempt, *, include_internal: bool, groups_max: int, all_ends: bool
    ) -> None:
        self._admin = admin
        self._attempt = attempt
        self._include_internal = include_internal
        self._groups_max = groups_max
        self._all_ends = all_ends

    def read(self) -> ClusterView:
        """Return the state of the cluster. Raises the error of `describe_cluster`, and errors that `attempt` raises."""
        admin, attempt = self._admin, self._attempt
        cluster = admin.describe_cluster()
        names = attempt("topics", partial(admin.list_topics, include_internal=self._include_internal)) or []
        topics = attempt("topics", partial(admin.describe_topics, names[:TOPICS_MAX])) or {}
        watermarks = {
            tp: p.high_watermark
            for tp, p in partitions_of(topics.values())
            if not is_offline(p) and p.high_watermark >= 0
        }
        ends = self.ends(watermarks, {}) if self._all_ends else {}
        transactions = attempt("transactions", partial(admin.list_transactions, OPEN_STATES)) or []
        groups = attempt("groups", admin.list_groups) or []
        committed = self.committed([g.group_id for g in groups[: self._groups_max]])
        if not self._all_ends:
            ends = {tp: watermarks[tp] for offsets in committed.values() for tp in offsets if tp in watermarks}
            ends = self.ends(ends, ends)
        in_order = {name: topics[name] for name in names if name in topics}
        excess = max(0, len(names) - TOPICS_MAX)
        return ClusterView(cluster, in_order, ends, transactions, groups, committed, excess)

    def ends(
        self, partitions: Iterable[TopicPartition], otherwise: Mapping[TopicPartition, int], part: str = ENDS
    ) -> Mapping[TopicPartition, int]:
        """Return the last stable offsets of partitions."""

        def read() -> Mapping[TopicPartition, int]:
            latest = dict.fromkeys(sorted(partitions), "latest")
            offsets = self._admin.list_offsets(latest, isolation_level="read_committed")
            return {tp: end.offset for tp, end in offsets.items()}

        offsets = self._attempt(part, read)
        return otherwise if offsets is None else offsets

    def committed(self, group_ids: Iterable[str]) -> dict[str, dict[TopicPartition, int]]:
        """Return the committed offsets by group. After OFFSETS_MAX offsets no further group is read."""
        committed: dict[str, dict[TopicPartition, int]] = {}
        remaining = OFFSETS_MAX
        for group_id in group_ids:
            if remaining <= 0:
                break
            offsets = self._attempt(f"group {group_id}", partial(self._admin.list_group_offsets, group_id)) or {}
            committed[group_id] = {tp: o.offset for tp, o in offsets.items()}
            remaining -= len(offsets)
        return committed


# --- judgements


def partitions_of(topics: Iterable[TopicDescription]) -> Iterator[tuple[TopicPartition, PartitionDescription]]:
    """Yield the partitions of topics."""
    for topic in topics:
        for p in topic.partition_details:
            yield TopicPartition(topic.name, p.partition), p


def is_offline(p: PartitionDescription) -> bool:
    """True if the partition has no leader, or its leader reports an error."""
    return p.leader < 0 or p.error_code != 0


def offline_error(p: PartitionDescription) -> str:
    """Return the name of the error that keeps the partition offline; empty if it is online."""
    return error_from_code(p.error_code, "").name if p.error_code else ""


def is_under_replicated(p: PartitionDescription) -> bool:
    """True if a replica is not in sync. Replicas that a reassignment adds count, too."""
    return len(p.isr) < len(p.replicas)


def settled_replicas(p: PartitionDescription) -> list[int]:
    """Return the replicas without those that a reassignment adds."""
    return [r for r in p.replicas if r not in p.adding]


def min_insync(topic: TopicDescription) -> int:
    """Return the topic's `min.insync.replicas`."""
    return int(str(topic.setting("min.insync.replicas")))


def is_under_min_insync(topic: TopicDescription, p: PartitionDescription) -> bool:
    """True if the online partition refuses records with acks=all."""
    return not is_offline(p) and len(p.isr) < min(min_insync(topic), len(settled_replicas(p)))


def replica_brokers(topics: Iterable[TopicDescription]) -> frozenset[int]:
    """Return the ids of the brokers that have replicas of these topics."""
    return frozenset(broker for _, p in partitions_of(topics) for broker in p.replicas)


def leads(topics: Iterable[TopicDescription]) -> Counter[int]:
    """Return the number of partitions that each broker leads."""
    return Counter(p.leader for _, p in partitions_of(topics))


def skew(loads: Sequence[int]) -> float:
    """Return the largest load divided by the mean load; 1 if all loads are 0."""
    total = sum(loads)
    return max(loads) * len(loads) / total if total else 1.0


def retention(topic: TopicDescription) -> tuple[int, int]:
    """Return `retention.ms` and `retention.bytes` of a topic; -1 for each that deletes no records."""
    if "delete" not in str(topic.setting("cleanup.policy")).split(","):
        return -1, -1
    return number(topic, "retention.ms"), number(topic, "retention.bytes")


def number(topic: TopicDescription, name: str) -> int:
    """Return the value of a setting that is a number; -1 for another value."""
    value = topic.setting(name)
    return value if isinstance(value, int) else -1


def age_ms(transaction: TransactionSummary, now_ms: int) -> int:
    """Return the time in ms since the beginning of a transaction; 0 if the beginning is unknown."""
    return max(0, now_ms - transaction.started_ms) if transaction.started_ms >= 0 else 0


def lag_by_topic(lags: Iterable[tuple[TopicPartition, int]]) -> dict[str, int]:
    """Return the sums of lags by topic."""
    sums: dict[str, int] = {}
    for tp, lag in lags:
        sums[tp.topic] = sums.get(tp.topic, 0) + lag
    return sums
