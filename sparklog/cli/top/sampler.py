"""Takes samples of a cluster with Admin, and of a broker's metrics page if its address is given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sparklog.cli.top.page import broker_page, fetch_page, read_series
from sparklog.cli.top.samples import (
    BrokerPage,
    BrokerSample,
    GroupSample,
    LakeSample,
    Snapshot,
    TopicSample,
    TransactionSample,
)
from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.types import TopicPartition

if TYPE_CHECKING:
    from sparklog.client.admin.admin import Admin, TopicDescription
    from sparklog.client.admin.group_admin import GroupListing
    from sparklog.client.admin.lake_admin import LakeReport
    from sparklog.environment.clock import MachineClock

TOPICS_MAX = 10_000
GROUPS_MAX = 200
"""Largest number of groups whose offsets are requested. Offsets of further groups are taken from the metrics page."""
OFFSETS_MAX = 100_000
REFINED_MAX = 50
"""Largest number of groups with a small lag that are described, because their lag can consist of markers only."""
OPEN_STATES = ("Ongoing", "PrepareCommit", "PrepareAbort")


class Sampler:
    """Takes samples. Not thread-safe. Samples are independent of each other."""

    def __init__(
        self, admin: Admin, clock: MachineClock, *, metrics_url: str = "", timeout_s: float, internal: bool
    ) -> None:
        self._admin = admin
        self._clock = clock
        self._metrics_url = metrics_url
        self._timeout_s = timeout_s
        self._internal = internal

    def take(self) -> Snapshot:
        """Take a sample of the cluster. Raises SparklogError, such as BrokerNotAvailableError. A failed metrics page is
        not an error."""
        page, problem = self._page()
        at_s = self._clock.monotonic_s()
        cluster = self._admin.describe_cluster()
        names = self._admin.list_topics(include_internal=self._internal)
        described = self._admin.describe_topics(names[:TOPICS_MAX])
        leads = _leads(described.values())
        groups, omitted_groups = self._groups(described, page)
        return Snapshot(
            at_s,
            page.time_ms if page is not None and page.time_ms > 0 else self._clock.now_ms(),
            cluster.cluster_id,
            {name: topic_sample(described[name]) for name in names if name in described},
            max(0, len(names) - TOPICS_MAX),
            groups,
            omitted_groups,
            tuple(
                TransactionSample(t.transactional_id, t.kind, t.state, t.started_ms, t.timeout_ms)
                for t in self._admin.list_transactions(OPEN_STATES)
            ),
            tuple(
                BrokerSample(
                    b.broker_id, f"{b.host}:{b.port}", b.broker_id == cluster.controller_id, leads.get(b.broker_id, 0)
                )
                for b in sorted(cluster.brokers, key=lambda b: b.broker_id)
            ),
            page,
            problem,
            self._lakes(described),
        )

    def _lakes(self, described: Mapping[str, TopicDescription]) -> tuple[LakeSample, ...]:
        """Return samples of the Delta tables, from the workers' reports only, without opening a table."""
        topics = {name: topic for name, topic in described.items() if topic.setting("lake.location")}
        if not topics:
            return ()
        from sparklog.client.admin.lake_admin import read_reports

        reports = read_reports(self._admin._cluster, topics, timeout_ms=round(self._timeout_s * 1000))
        return tuple(lake_sample(topic, reports.get(name), self._clock.now_ms()) for name, topic in topics.items())

    def _page(self) -> tuple[BrokerPage | None, str]:
        if not self._metrics_url:
            return None, ""
        try:
            return broker_page(read_series(fetch_page(self._metrics_url, self._timeout_s))), ""
        except InvalidRequestError as e:
            return None, str(e)

    def _groups(
        self, topics: Mapping[str, TopicDescription], page: BrokerPage | None
    ) -> tuple[dict[str, GroupSample], int]:
        listed = self._admin.list_groups()
        committed: dict[str, dict[TopicPartition, int]] = {}
        remaining = OFFSETS_MAX
        for group in listed[:GROUPS_MAX]:
            if remaining <= 0:
                break
            offsets = self._admin.list_group_offsets(group.group_id)
            committed[group.group_id] = {tp: o.offset for tp, o in offsets.items()}
            remaining -= len(offsets)
        ends = self._ends({tp for offsets in committed.values() for tp in offsets}, topics)
        starts = _starts(topics)
        groups: dict[str, GroupSample] = {}
        refined = 0
        for group in listed:
            if group.group_id in committed:
                sample = group_sample(group, committed[group.group_id], starts, ends)
                if 0 < (sample.lag or 0) <= 2 * len(sample.committed) and refined < REFINED_MAX:
                    refined += 1
                    sample = self._refine_lag(group.group_id, sample)
                groups[group.group_id] = sample
            elif page is not None and group.group_id in page.group_lags:
                groups[group.group_id] = GroupSample(
                    group.state,
                    group.members,
                    page.group_offsets.get(group.group_id, {}),
                    page.group_lags[group.group_id],
                )
        return groups, len(listed) - len(groups)

    def _ends(
        self, partitions: set[TopicPartition], topics: Mapping[str, TopicDescription]
    ) -> dict[TopicPartition, int]:
        """Return the last stable offsets of the partitions; their high watermarks if the request fails."""
        watermarks = {
            TopicPartition(name, p.partition): p.high_watermark
            for name, topic in topics.items()
            for p in topic.partition_details
            if p.error_code == 0 and p.high_watermark >= 0
        }
        measured = sorted(partitions & watermarks.keys())
        try:
            listed = self._admin.list_offsets(dict.fromkeys(measured, "latest"), isolation_level="read_committed")
        except SparklogError:
            self._admin.describe_cluster()  # raises if the cause is an absent broker and not a topic
            return {tp: watermarks[tp] for tp in measured}
        return {tp: end.offset for tp, end in listed.items()}

    def _refine_lag(self, group_id: str, sample: GroupSample) -> GroupSample:
        """Return the sample with the lag of `describe_group`, which is 0 if only transaction markers are unread."""
        try:
            described = self._admin.describe_group(group_id)
        except SparklogError:
            return sample  # the group is deleted or its coordinator busy: the next sample is exact
        lags: dict[str, int] = {}
        for p in described.partitions:
            if p.lag is not None:
                lags[p.partition.topic] = lags.get(p.partition.topic, 0) + p.lag
        return sample._replace(lags=lags)


def topic_sample(topic: TopicDescription) -> TopicSample:
    details = topic.partition_details
    return TopicSample(
        topic.topic_id,
        tuple(p.high_watermark if p.error_code == 0 else -1 for p in details),
        sum(max(0, p.size_bytes) for p in details),
        offline=sum(p.error_code != 0 for p in details),
        unwritable=sum(bool(p.write_error) for p in details),
        under_replicated=sum(len(p.isr) < len(p.replicas) for p in details),
    )


def group_sample(
    group: GroupListing,
    committed: Mapping[TopicPartition, int],
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> GroupSample:
    """Return a sample of a group. Deleted records, which are below a partition's start, do not count as lag."""
    lags: dict[str, int] = {}
    for tp, offset in committed.items():
        if tp in ends:
            behind = max(0, ends[tp] - max(offset, starts.get(tp, 0)))
            lags[tp.topic] = lags.get(tp.topic, 0) + behind
    return GroupSample(group.state, group.members, dict(committed), lags if committed else None)


def _starts(topics: Mapping[str, TopicDescription]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(name, p.partition): p.log_start_offset
        for name, topic in topics.items()
        for p in topic.partition_details
    }


def _leads(topics: Iterable[TopicDescription]) -> dict[int, int]:
    leads: dict[int, int] = {}
    for topic in topics:
        for p in topic.partition_details:
            leads[p.leader] = leads.get(p.leader, 0) + 1
    return leads


def lake_sample(topic: TopicDescription, report: LakeReport | None, now_ms: int) -> LakeSample:
    """Return a sample of a topic's Delta table. Without a report, its numbers are unknown."""
    paused = bool(topic.setting("lake.paused"))
    state = "paused" if paused else "not reported" if report is None else "failing" if report.error else "running"
    if report is None:
        return LakeSample(topic.name, state, -1, -1.0, -1)
    lag = sum(
        max(0, p.high_watermark - report.next_offsets.get(p.partition, p.log_start_offset))
        for p in topic.partition_details
    )
    behind_s = 0.0 if not lag else max(0.0, (now_ms - report.as_of_ms) / 1000) if report.as_of_ms else -1.0
    return LakeSample(topic.name, state, lag, behind_s, report.files)
