"""Collects facts about a cluster, with requests that change nothing. The error of a failed request is a fact, too."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import ParamSpec, TypeVar

from sparklog.cli.doctor.check_readers import RETENTION_SHARE
from sparklog.cli.doctor.facts import (
    BrokerDiskFacts,
    BrokerFacts,
    ClockFacts,
    ClusterFacts,
    GroupFacts,
    GroupPartition,
    HangingFacts,
    LakeFacts,
    PartitionFacts,
    TopicFacts,
    TransactionFacts,
)
from sparklog.client.admin.admin import Admin, TopicDescription
from sparklog.client.net.addresses import Endpoint, parse_bootstrap
from sparklog.client.net.cluster import Cluster, cluster
from sparklog.environment.clock import MachineClock
from sparklog.errors import SparklogError, error_from_code
from sparklog.protocol.transaction_messages import TransactionSummary
from sparklog.security.client_security import Security
from sparklog.types import TopicPartition
from sparklog.version import __version__

TOPICS_MAX = 10_000
GROUPS_MAX = 1_000
OFFSETS_MAX = 100_000
LAKES_MAX = 100
HELD_BACK_MAX = 200
"""Largest number of partitions whose producers are requested, of those in which a transaction holds readers back."""
DESCRIBED_MAX = 20
"""Largest number of transactions whose partitions are requested, the oldest first."""
PLACES_MAX = 100
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")
T = TypeVar("T")
P = ParamSpec("P")
Offsets = dict[TopicPartition, int]


class ClusterLook:
    """Collects the facts of a cluster once. `wait` sleeps for a number of seconds between two requests of offsets."""

    def __init__(
        self,
        bootstrap_servers: str,
        clock: MachineClock,
        wait: Callable[[float], None],
        *,
        timeout_ms: int,
        security: Security = None,
    ) -> None:
        self._bootstrap = bootstrap_servers
        self._cluster: Cluster = cluster(bootstrap_servers, security)
        self._clock = clock
        self._wait = wait
        self._timeout_ms = timeout_ms
        self._unknown_parts: list[str] = []
        self._seen_ms = -1

    def take(self, interval_s: float) -> tuple[ClusterFacts, ClockFacts | None]:
        """Return the facts of the cluster, and the lead of the broker's clock; None if no time that the broker sent is
        in the future.

        The offsets of groups with lag are requested again after `interval_s` seconds; with 0 they are requested once.
        """
        facts = ClusterFacts(self._bootstrap, client_version=__version__)
        with Admin(
            self._bootstrap,
            request_timeout_ms=self._timeout_ms,
            security=self._cluster.security,
            wait_for_broker=False,  # an absent broker is a finding
        ) as admin:
            try:
                cluster = admin.describe_cluster()
            except SparklogError as e:
                return facts._replace(problem=str(e), is_refused=not e.retriable), None
            brokers = {Endpoint(b.host, b.port): b.broker_id for b in cluster.brokers}
            facts = facts._replace(has_controller=cluster.controller_id >= 0)
            addresses = brokers | {e: brokers.get(e, -1) for e in parse_bootstrap(self._bootstrap)}
            facts = facts._replace(brokers=tuple(self._broker(e, number) for e, number in addresses.items()))
            described = self._try("topics", self._describe, admin) or {}
            facts = self._with_contents(facts, admin, described, interval_s)
        facts = facts._replace(unknown=tuple(self._unknown_parts))
        ahead_ms = self._seen_ms - self._clock.now_ms()
        return facts, ClockFacts(ahead_ms, at_least=True) if ahead_ms > 0 else None

    def _try(self, part: str, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the result of `job`. If it fails, add a line to the unknown facts and return None."""
        try:
            return job(*args, **kwargs)
        except SparklogError as e:
            self._unknown_parts.append(f"{part}: {e}")
            return None

    def _limit(self, noun: str, items: list[T], most: int) -> list[T]:
        if len(items) > most:
            self._unknown_parts.append(f"{len(items) - most:,} of {len(items):,} {noun} (too many)")
        return items[:most]

    def _broker(self, endpoint: Endpoint, broker_id: int) -> BrokerFacts:
        address = f"{endpoint.host}:{endpoint.port}"
        try:
            connection = self._cluster.connect(endpoint, timeout_ms=self._timeout_ms)
        except SparklogError as e:
            return BrokerFacts(address, endpoint.host, broker_id, problem=str(e))
        try:
            peer = connection.broker
        finally:
            connection.close()
        return BrokerFacts(address, endpoint.host, peer.broker_id, peer.broker_version, peer.request_bytes_max)

    def _describe(self, admin: Admin) -> dict[str, TopicDescription]:
        names = self._limit("topics", admin.list_topics(include_internal=True), TOPICS_MAX)
        topics = admin.describe_topics(names)
        self._seen_ms = max([self._seen_ms, *(topic.created_ms for topic in topics.values())])
        return topics

    def _with_contents(
        self, facts: ClusterFacts, admin: Admin, described: Mapping[str, TopicDescription], interval_s: float
    ) -> ClusterFacts:
        healthy = [
            TopicPartition(name, p.partition)
            for name, topic in described.items()
            for p in topic.partition_details
            if p.error_code == 0
        ]
        ends = self._try("where committed records end", _ends, admin, healthy) or {}
        present = {b.broker_id for b in facts.brokers if b.broker_id >= 0}
        topics = tuple(topic_facts(topic, ends, present) for topic in described.values())
        opened = self._try("transactions", admin.list_transactions, OPEN_STATES) or []
        self._seen_ms = max([self._seen_ms, *(t.started_ms for t in opened)])
        groups, over_s = self._groups(admin, described, ends, interval_s)
        return facts._replace(
            disks=self._disks(admin),
            lakes=self._lakes(admin, described),
            topics=topics,
            transactions=self._transactions(admin, opened),
            hanging=self._hanging_transactions(admin, topics),
            groups=groups,
            over_s=over_s,
        )

    def _lakes(self, admin: Admin, described: Mapping[str, TopicDescription]) -> tuple[LakeFacts, ...]:
        names = [name for name, topic in described.items() if topic.setting("lake.location")]
        lakes = []
        for name in self._limit("Delta tables", names, LAKES_MAX):
            lake = self._try(f"the Delta table of {name}", admin.describe_lake, name)
            if lake is not None:
                lakes.append(LakeFacts(name, lake.paused, lake.error, lake.lag, lake.lag_seconds))
        return tuple(lakes)

    def _disks(self, admin: Admin) -> tuple[BrokerDiskFacts, ...]:
        disks = self._try("disks", admin.describe_log_dirs) or {}
        return tuple(
            BrokerDiskFacts(d.broker_id, d.path, d.usable_bytes, d.total_bytes, d.put_aside)
            for directories in disks.values()
            for d in directories
        )

    def _transactions(self, admin: Admin, opened: Iterable[TransactionSummary]) -> tuple[TransactionFacts, ...]:
        transactions = []
        now_ms = self._clock.now_ms()
        for number, t in enumerate(sorted(opened, key=lambda t: t.started_ms)):
            partitions: tuple[TopicPartition, ...] = ()
            if number < DESCRIBED_MAX:
                details = self._try(f"transaction {t.transactional_id}", admin.describe_transaction, t.transactional_id)
                places = [] if details is None else details.partitions[:PLACES_MAX]
                partitions = tuple(TopicPartition(p.topic, p.partition) for p in places)
            age_ms = max(0, now_ms - t.started_ms) if t.started_ms >= 0 else 0
            transactions.append(TransactionFacts(t.transactional_id, t.state, age_ms, t.timeout_ms, partitions))
        return tuple(transactions)

    def _hanging_transactions(self, admin: Admin, topics: Iterable[TopicFacts]) -> tuple[HangingFacts, ...]:
        """Return the hanging transactions. Only partitions whose last stable offset is below the end can have some."""
        held = [
            (TopicPartition(topic.name, p.partition), p.end)
            for topic in topics
            for p in topic.partitions
            if 0 <= p.stable_end < p.end
        ]
        hanging = []
        now_ms = self._clock.now_ms()
        for tp, end in self._limit("partitions that hold readers back", held, HELD_BACK_MAX):
            answer = self._try(f"producers of {tp.topic}-{tp.partition}", admin.describe_producers, tp)
            for p in () if answer is None else answer.producers:
                if p.transaction_first_offset >= 0 and p.transactional_id is None:
                    quiet_ms = max(0, now_ms - p.last_timestamp_ms) if p.last_timestamp_ms >= 0 else 0
                    behind = end - p.transaction_first_offset
                    hanging.append(HangingFacts(tp, p.producer_id, p.transaction_first_offset, behind, quiet_ms))
        return tuple(hanging)

    # --- groups ---

    def _groups(
        self, admin: Admin, described: Mapping[str, TopicDescription], ends: Offsets, interval_s: float
    ) -> tuple[tuple[GroupFacts, ...], float | None]:
        listed = self._limit("groups", self._try("groups", admin.list_groups) or [], GROUPS_MAX)
        committed = self._committed_offsets(admin, [g.group_id for g in listed])
        starts = {TopicPartition(n, p.partition): p for n, topic in described.items() for p in topic.partition_details}
        groups = []
        for group in listed:
            measurable = {tp: o for tp, o in committed.get(group.group_id, {}).items() if tp in ends and tp in starts}
            partitions = tuple(
                GroupPartition(tp, o, starts[tp].log_start_offset, ends[tp], max(0, starts[tp].size_bytes))
                for tp, o in sorted(measurable.items())
            )
            groups.append(GroupFacts(group.group_id, group.kind, group.members, partitions))
        groups = self._with_due_offsets(admin, described, groups)
        behind = [g for g in groups if g.lag]
        if not behind or interval_s <= 0:
            return tuple(groups), None
        began_s = self._clock.monotonic_s()
        self._wait(interval_s)
        again = self._committed_offsets(admin, [g.group_id for g in behind])
        late = sorted({p.partition for g in behind for p in g.partitions})
        later = self._try("where committed records end, again", _ends, admin, late) or {}
        over_s = self._clock.monotonic_s() - began_s
        looked = {g.group_id: second_look(g, again.get(g.group_id, {}), later) for g in behind}
        return tuple(looked.get(g.group_id, g) for g in groups), over_s

    def _committed_offsets(self, admin: Admin, names: Iterable[str]) -> dict[str, Offsets]:
        by_group: dict[str, Offsets] = {}
        remaining = OFFSETS_MAX
        for name in names:
            if remaining <= 0:
                self._unknown_parts.append(f"group {name} and the groups after it: too many committed offsets")
                break
            offsets = self._try(f"group {name}", admin.list_group_offsets, name) or {}
            by_group[name] = {tp: o.offset for tp, o in offsets.items()}
            remaining -= len(offsets)
        return by_group

    def _with_due_offsets(
        self, admin: Admin, described: Mapping[str, TopicDescription], groups: list[GroupFacts]
    ) -> list[GroupFacts]:
        """Set `due_offset` of the partitions with lag. Retention by time soon deletes the records below it."""
        now_ms = self._clock.now_ms()
        times: dict[TopicPartition, str | int] = {}
        for p in (p for group in groups for p in group.partitions if p.lag):
            keep_ms = retention(described[p.partition.topic])[0]
            if 0 <= keep_ms * RETENTION_SHARE <= now_ms:
                times[p.partition] = round(now_ms - keep_ms * RETENTION_SHARE)
        listed = self._try("times of records", admin.list_offsets, times) or {}

        def due(p: GroupPartition) -> GroupPartition:
            if not p.lag or p.partition not in listed:
                return p
            offset = listed[p.partition].offset
            return p._replace(due_offset=p.end if offset < 0 else offset)

        return [g._replace(partitions=tuple(map(due, g.partitions))) for g in groups]


def second_look(
    group: GroupFacts, committed: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]
) -> GroupFacts:
    """Return the group with newer offsets `committed` and `ends`, and its previous offsets as `*_before`.

    Partitions without newer offsets are unchanged.
    """

    def looked(p: GroupPartition) -> GroupPartition:
        if p.partition not in committed or p.partition not in ends:
            return p
        return p._replace(
            committed=committed[p.partition],
            end=ends[p.partition],
            committed_before=p.committed,
            end_before=p.end,
        )

    return group._replace(partitions=tuple(map(looked, group.partitions)))


def topic_facts(
    topic: TopicDescription, stable_ends: Mapping[TopicPartition, int], live_brokers: Collection[int]
) -> TopicFacts:
    """Return the facts of a topic. `stable_ends` are last stable offsets, `live_brokers` ids of registered brokers."""
    keep_ms, keep_bytes = retention(topic)
    return TopicFacts(
        topic.name,
        tuple(
            PartitionFacts(
                p.partition,
                p.log_start_offset,
                p.high_watermark,
                stable_ends.get(TopicPartition(topic.name, p.partition), -1),
                max(0, p.size_bytes),
                len(p.replicas),
                len(p.isr),
                error_from_code(p.error_code, "").name if p.error_code else "",
                p.write_error,
                tuple(r for r in p.replicas if r not in live_brokers),
            )
            for p in topic.partition_details
        ),
        _number(topic, "max.message.bytes"),
        keep_ms,
        keep_bytes,
        _number(topic, "min.insync.replicas"),
    )


def retention(topic: TopicDescription) -> tuple[int, int]:
    """Return `retention.ms` and `retention.bytes` of a topic; -1 for each that deletes no records."""
    if "delete" not in str(topic.setting("cleanup.policy")).split(","):
        return -1, -1
    return _number(topic, "retention.ms"), _number(topic, "retention.bytes")


def _number(topic: TopicDescription, name: str) -> int:
    value = topic.setting(name)
    return value if isinstance(value, int) else -1


def _ends(admin: Admin, partitions: Iterable[TopicPartition]) -> Offsets:
    ends = admin.list_offsets(dict.fromkeys(partitions, "latest"), isolation_level="read_committed")
    return {tp: end.offset for tp, end in ends.items()}
