"""The content of the overview: brokers, the distribution of data over them, and problems."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from sparklog.client.admin.admin import (
    BrokerDescription,
    ClusterDescription,
    LogDirDescription,
    PartitionDescription,
    TopicDescription,
)
from sparklog.client.cluster_view import is_under_replicated, leads, offline_error, replica_brokers, skew
from sparklog.console.views.numbers import number
from sparklog.console.views.transactions import TransactionRow, transaction_rows
from sparklog.console.views.watched import WatchedGroup
from sparklog.protocol.transaction_messages import TransactionSummary

LARGEST_SHOWN = 10
LAGGING_SHOWN = 5
OLD_TRANSACTION_MS = 60_000


class BrokerRow(NamedTuple):
    """A broker, with the partitions that it leads."""

    broker_id: int
    address: str
    state: str
    """State in words; empty if the broker is up and not the controller."""
    leads: int
    """Number of these partitions."""
    size_bytes: int
    """Size of these partitions."""
    share: float
    """Share of the bytes of all partitions, 0 to 1."""
    skew: float
    """`size_bytes` divided by the mean of all brokers."""


class LargeTopic(NamedTuple):
    """A line of the list of the largest topics."""

    name: str
    partitions: int
    size_bytes: int
    remote_size_bytes: int
    """Bytes in the object store."""
    skew: float
    """Bytes of the largest partition divided by the mean of the topic's partitions."""


class Spread(NamedTuple):
    """The distribution of data over brokers and topics, and the problems of partitions."""

    brokers: list[BrokerRow]
    topics: int
    size_bytes: int
    remote_size_bytes: int
    largest: list[LargeTopic]
    problems: Problems


class Problems(NamedTuple):
    """Partitions that are offline, lack replicas or take no records."""

    title: str
    """The number of problems of each kind; empty if there are none."""
    lines: list[str]
    """Problems that are not a consequence of a broker that is down."""
    folded: list[str]
    """Problems that are a consequence of a broker that is down."""
    brokers: list[int]
    """The brokers that are down and have replicas of the partitions of `folded`."""


def problems_together(topics: Iterable[TopicDescription], down: Collection[int]) -> Problems:
    """Return the problems of the partitions of these topics.

    Problems that a broker in `down` explains are in `Problems.folded`, so that the page shows the broker instead.
    """
    lines: list[str] = []
    folded: list[str] = []
    brokers: set[int] = set()
    offline = lacking = refusing = 0
    for topic in topics:
        for p in topic.partition_details:
            problems = _problems(topic.name, p)
            is_offline = bool(why_offline(p))
            offline += is_offline
            lacking += not is_offline and is_under_replicated(p)
            refusing += bool(p.write_error)
            missing = set(p.replicas) - set(p.isr)
            is_explained = not p.write_error and bool(missing) and missing <= set(down)
            if is_offline and p.leader < 0:
                is_explained = not set(p.replicas).isdisjoint(down)
            (folded if is_explained else lines).extend(problems)
            brokers |= set(down) & set(p.replicas) if problems and is_explained else set()
    counts = [
        f"{number(count)} {'partition' if count == 1 else 'partitions'} {words[count != 1]}"
        for count, words in (
            (offline, ("is offline", "are offline")),
            (lacking, ("lacks replicas", "lack replicas")),
            (refusing, ("takes no records", "take no records")),
        )
        if count
    ]
    return Problems(", ".join(counts), lines, folded, sorted(brokers))


def spread(cluster: ClusterDescription, topics: Iterable[TopicDescription]) -> Spread:
    """Return the distribution of the topics over the brokers, with the LARGEST_SHOWN largest topics."""
    topics = list(topics)
    down = replica_brokers(topics) - {b.broker_id for b in cluster.brokers}
    led = leads(topics)
    sizes = {b.broker_id: 0 for b in cluster.brokers}
    rows: list[LargeTopic] = []
    for topic in topics:
        parts = [max(0, p.size_bytes) for p in topic.partition_details]
        remote = sum(max(0, p.remote_size_bytes) for p in topic.partition_details)
        rows.append(LargeTopic(topic.name, topic.partitions, sum(parts), remote, skew(parts)))
        for p, size_bytes in zip(topic.partition_details, parts, strict=True):
            sizes[p.leader] = sizes.get(p.leader, 0) + size_bytes
    total = sum(sizes.values())
    mean = total / len(cluster.brokers) if cluster.brokers else 0
    brokers = [
        BrokerRow(
            b.broker_id,
            f"{b.host}:{b.port}",
            broker_state(b, cluster),
            led[b.broker_id],
            sizes[b.broker_id],
            sizes[b.broker_id] / total if total else 0,
            sizes[b.broker_id] / mean if mean else 1,
        )
        for b in sorted(cluster.brokers, key=lambda b: b.broker_id)
    ]
    rows.sort(key=lambda t: (-t.size_bytes, t.name))
    return Spread(
        brokers,
        len(rows),
        total,
        sum(t.remote_size_bytes for t in rows),
        rows[:LARGEST_SHOWN],
        problems_together(topics, down),
    )


def broker_state(broker: BrokerDescription, cluster: ClusterDescription) -> str:
    """Return the broker's state in words; "" if it is up and not the controller."""
    words = [
        "controller" if broker.broker_id == cluster.controller_id else "",
        "stopping" if broker.is_stopping else "",
        "cordoned: gets no new replicas" if broker.is_cordoned else "",
    ]
    return ", ".join(filter(None, words))


class DiskRow(NamedTuple):
    """A log directory of a broker."""

    broker_id: int
    path: str
    partitions: int
    size_bytes: int
    """Size of the partitions."""
    total_bytes: int
    """Size of the disk; -1: unknown."""
    usable_bytes: int
    """Free space of the disk; -1: unknown."""
    used: float | None
    """Used share of the disk, 0 to 1; None: unknown."""
    problem: str
    """Reason why the directory cannot be used, or why its state is unknown; empty without a problem."""


def disks(cluster: ClusterDescription, directories: Mapping[int, Sequence[LogDirDescription]]) -> list[DiskRow]:
    """Return the log directories of all registered brokers. A broker without a response has a row with the problem."""
    rows = []
    for broker in sorted(b.broker_id for b in cluster.brokers):
        if broker not in directories:
            rows.append(DiskRow(broker, "", 0, 0, -1, -1, None, "the broker does not answer"))
        for d in directories.get(broker, ()):
            used = 1 - d.usable_bytes / d.total_bytes if d.total_bytes > 0 else None
            where = broker, d.path, d.partitions, d.size_bytes, d.total_bytes, d.usable_bytes
            rows.append(DiskRow(*where, used, d.error))
    return rows


def problems_of(topic: TopicDescription) -> list[str]:
    """Return the problems of a topic's partitions in words: a partition is offline, lacks replicas in sync, or has
    rejected its last append."""
    return [line for p in topic.partition_details for line in _problems(topic.name, p)]


def _problems(topic: str, p: PartitionDescription) -> list[str]:
    problems = []
    if offline := why_offline(p):
        problems.append(f"{topic}-{p.partition} is offline: {offline}")
    elif is_under_replicated(p):
        problems.append(f"{topic}-{p.partition}: {len(p.isr)} of {len(p.replicas)} replicas are in sync")
    if p.write_error:
        problems.append(f"{topic}-{p.partition} rejected its last append: {p.write_error}")
    return problems


def why_offline(partition: PartitionDescription) -> str:
    """Return the reason why the partition is offline, in words; "" if it is online."""
    if partition.leader < 0:
        return "it has no leader"
    return offline_error(partition) or ("its leader does not answer" if partition.high_watermark < 0 else "")


class LaggingGroup(NamedTuple):
    """A group with a lag."""

    group_id: str
    lag: int


def most_lagging(groups: Mapping[str, WatchedGroup]) -> list[LaggingGroup]:
    """Return the LAGGING_SHOWN groups with the largest lag above 0."""
    behind = [LaggingGroup(name, g.lag) for name, g in groups.items() if g.lag]
    return sorted(behind, key=lambda g: (-g.lag, g.group_id))[:LAGGING_SHOWN]


def open_long(transactions: Iterable[TransactionSummary], now_ms: int) -> list[TransactionRow]:
    """Return the transactions that are open for OLD_TRANSACTION_MS or longer, the oldest first."""
    return [t for t in transaction_rows(transactions, now_ms) if (t.open_ms or 0) >= OLD_TRANSACTION_MS]
