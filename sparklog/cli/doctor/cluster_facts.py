"""Collects facts about a cluster, with requests that change nothing. The error of a failed request is a fact, too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from sparklog.cli.doctor.check_readers import RETENTION_SHARE
from sparklog.cli.doctor.facts import (
    BrokerDiskFacts,
    BrokerFacts,
    ClockFacts,
    ClusterFacts,
    GroupFacts,
    HangingFacts,
    LakeFacts,
    MirrorFacts,
    TransactionFacts,
)
from sparklog.client.admin.admin import Admin, TopicDescription
from sparklog.client.cluster_view import (
    ENDS,
    TOPICS_MAX,
    ClusterReader,
    ClusterView,
    GroupPartition,
    age_ms,
    partitions_of,
    replica_brokers,
    retention,
)
from sparklog.client.net.addresses import Endpoint, parse_bootstrap
from sparklog.client.net.cluster import Cluster, cluster
from sparklog.environment.clock import MachineClock
from sparklog.errors import SparklogError
from sparklog.protocol.transaction_messages import TransactionSummary
from sparklog.security.client_security import Security
from sparklog.types import TopicPartition
from sparklog.version import __version__

GROUPS_MAX = 1_000
LAKES_MAX = 100
MIRRORED_TOPICS_MAX = 100
HELD_BACK_MAX = 200
"""Largest number of partitions whose producers are requested, of those in which a transaction holds readers back."""
DESCRIBED_MAX = 20
"""Largest number of transactions whose partitions are requested, the oldest first."""
PLACES_MAX = 100
T = TypeVar("T")


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
            reader = ClusterReader(admin, self._attempt, include_internal=True, groups_max=GROUPS_MAX, all_ends=True)
            try:
                view = reader.read()
            except SparklogError as e:
                return facts._replace(problem=str(e), is_refused=not e.retriable), None
            facts = self._with_contents(facts, admin, reader, view, interval_s)
        times_ms = [*(topic.created_ms for topic in view.topics.values()), *(t.started_ms for t in view.transactions)]
        ahead_ms = max(times_ms, default=-1) - self._clock.now_ms()
        return facts, ClockFacts(ahead_ms, at_least=True) if ahead_ms > 0 else None

    def _with_contents(
        self, facts: ClusterFacts, admin: Admin, reader: ClusterReader, view: ClusterView, interval_s: float
    ) -> ClusterFacts:
        if view.topics_left_out:
            self._note_excess("topics", view.topics_left_out, TOPICS_MAX + view.topics_left_out)
        addresses = {Endpoint(b.host, b.port): b.broker_id for b in view.cluster.brokers}
        addresses |= {e: addresses.get(e, -1) for e in parse_bootstrap(self._bootstrap)}
        brokers = tuple(self._broker(e, number) for e, number in addresses.items())
        topics = tuple(view.topics.values())
        groups, over_s = self._groups(admin, reader, view, interval_s)
        return facts._replace(
            has_controller=view.cluster.controller_id >= 0,
            brokers=brokers,
            disks=self._disks(admin),
            lakes=self._lakes(admin, topics),
            mirrors=self._mirrors(admin, topics),
            topics=topics,
            down_brokers=replica_brokers(topics) - {b.broker_id for b in brokers if b.broker_id >= 0},
            transactions=self._transactions(admin, view.transactions),
            hanging=self._hanging_transactions(admin, view),
            groups=groups,
            over_s=over_s,
            unknown=tuple(self._unknown_parts),
        )

    def _attempt(self, part: str, job: Callable[[], T]) -> T | None:
        """Return the result of `job`. If it fails, add a line to the unknown facts and return None."""
        try:
            return job()
        except SparklogError as e:
            self._unknown_parts.append(f"{part}: {e}")
            return None

    def _limit(self, noun: str, items: Sequence[T], most: int) -> Sequence[T]:
        if len(items) > most:
            self._note_excess(noun, len(items) - most, len(items))
        return items[:most]

    def _note_excess(self, noun: str, left_out: int, total: int) -> None:
        self._unknown_parts.append(f"{left_out:,} of {total:,} {noun} (too many)")

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

    def _lakes(self, admin: Admin, topics: Iterable[TopicDescription]) -> tuple[LakeFacts, ...]:
        names = [topic.name for topic in topics if topic.setting("lake.location")]
        lakes = []
        for name in self._limit("Delta tables", names, LAKES_MAX):
            lake = self._attempt(f"the Delta table of {name}", partial(admin.describe_lake, name))
            if lake is not None:
                lakes.append(LakeFacts(name, lake.paused, lake.error, lake.lag, lake.lag_seconds))
        return tuple(lakes)

    def _mirrors(self, admin: Admin, topics: Iterable[TopicDescription]) -> tuple[MirrorFacts, ...]:
        """Return the facts about mirrored topics, from the workers' reports: this machine may not reach the sources."""
        names = [t.name for t in topics if t.setting("mirror.name") and not t.setting("mirror.refused.of")]
        if not names:
            return ()
        chosen = self._limit("mirrored topics", names, MIRRORED_TOPICS_MAX)
        mirrors = self._attempt("mirrors", lambda: admin.describe_mirrors(chosen, asks_source=False))
        return tuple(
            MirrorFacts(
                mirror.name,
                topic.topic,
                topic.reason,
                topic.error,
                topic.is_reported,
                sum(max(0, p.lag) for p in topic.partitions),
                max((p.lag_seconds for p in topic.partitions), default=0.0),
                sum(p.lost for p in topic.partitions),
                sum(p.refused for p in topic.partitions),
                sum(p.held for p in topic.partitions),
                topic.held_seconds,
            )
            for mirror in mirrors or ()
            for topic in mirror.topics
        )

    def _disks(self, admin: Admin) -> tuple[BrokerDiskFacts, ...]:
        disks = self._attempt("disks", admin.describe_log_dirs) or {}
        return tuple(
            BrokerDiskFacts(d.broker_id, d.path, d.usable_bytes, d.total_bytes, d.put_aside)
            for directories in disks.values()
            for d in directories
        )

    def _transactions(self, admin: Admin, opened: Iterable[TransactionSummary]) -> tuple[TransactionFacts, ...]:
        facts = []
        now_ms = self._clock.now_ms()
        for index, t in enumerate(sorted(opened, key=lambda t: t.started_ms)):
            partitions: tuple[TopicPartition, ...] = ()
            if index < DESCRIBED_MAX:
                describe = partial(admin.describe_transaction, t.transactional_id)
                details = self._attempt(f"transaction {t.transactional_id}", describe)
                places = [] if details is None else details.partitions[:PLACES_MAX]
                partitions = tuple(TopicPartition(p.topic, p.partition) for p in places)
            facts.append(TransactionFacts(t.transactional_id, t.state, age_ms(t, now_ms), t.timeout_ms, partitions))
        return tuple(facts)

    def _hanging_transactions(self, admin: Admin, view: ClusterView) -> tuple[HangingFacts, ...]:
        """Return the hanging transactions. Only partitions whose last stable offset is below the end can have some."""
        held = [
            (tp, p.high_watermark)
            for tp, p in partitions_of(view.topics.values())
            if 0 <= view.ends.get(tp, -1) < p.high_watermark
        ]
        facts = []
        now_ms = self._clock.now_ms()
        for tp, end in self._limit("partitions that hold readers back", held, HELD_BACK_MAX):
            answer = self._attempt(f"producers of {tp.topic}-{tp.partition}", partial(admin.describe_producers, tp))
            for p in () if answer is None else answer.producers:
                if p.transaction_first_offset >= 0 and p.transactional_id is None:
                    quiet_ms = max(0, now_ms - p.last_timestamp_ms) if p.last_timestamp_ms >= 0 else 0
                    behind = end - p.transaction_first_offset
                    facts.append(HangingFacts(tp, p.producer_id, p.transaction_first_offset, behind, quiet_ms))
        return tuple(facts)

    # --- groups ---

    def _groups(
        self, admin: Admin, reader: ClusterReader, view: ClusterView, interval_s: float
    ) -> tuple[tuple[GroupFacts, ...], float | None]:
        listed = self._limit("groups", view.groups, GROUPS_MAX)
        unread = next((g.group_id for g in listed if g.group_id not in view.committed), "")
        if unread:
            self._unknown_parts.append(f"group {unread} and the groups after it: too many committed offsets")
        groups = [GroupFacts(g.group_id, g.kind, g.members, view.positions(g.group_id)) for g in listed]
        groups = self._with_due_offsets(admin, view.topics, groups)
        behind = [g for g in groups if g.lag]
        if not behind or interval_s <= 0:
            return tuple(groups), None
        began_s = self._clock.monotonic_s()
        self._wait(interval_s)
        again = reader.committed([g.group_id for g in behind])
        later = reader.ends({p.partition for g in behind for p in g.partitions}, {}, f"{ENDS}, again")
        over_s = self._clock.monotonic_s() - began_s
        looked = {g.group_id: second_look(g, again.get(g.group_id, {}), later) for g in behind}
        return tuple(looked.get(g.group_id, g) for g in groups), over_s

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
        listed = self._attempt("times of records", partial(admin.list_offsets, times)) or {}

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
