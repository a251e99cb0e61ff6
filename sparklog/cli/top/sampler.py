"""Takes samples of a cluster with Admin, and of a broker's metrics page if its address is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from sparklog.cli.top.page import broker_page, fetch_page, read_series
from sparklog.cli.top.samples import BrokerPage, GroupSample, LakeSample, Snapshot
from sparklog.client.cluster_view import ENDS, ClusterReader, ClusterView, lag_by_topic
from sparklog.errors import InvalidRequestError, SparklogError

if TYPE_CHECKING:
    from sparklog.client.admin.admin import Admin, TopicDescription
    from sparklog.client.admin.group_admin import GroupListing
    from sparklog.client.admin.lake_admin import LakeReport
    from sparklog.environment.clock import MachineClock

GROUPS_MAX = 200
"""Largest number of groups whose offsets are requested. Offsets of further groups are taken from the metrics page."""
REFINED_MAX = 50
"""Largest number of groups with a small lag that are described, because their lag can consist of markers only."""
T = TypeVar("T")


class Sampler:
    """Takes samples. Not thread-safe. Samples are independent of each other."""

    def __init__(
        self, admin: Admin, clock: MachineClock, *, metrics_url: str = "", timeout_s: float, internal: bool
    ) -> None:
        self._admin = admin
        self._clock = clock
        self._metrics_url = metrics_url
        self._timeout_s = timeout_s
        self._reader = ClusterReader(
            admin, self._attempt, include_internal=internal, groups_max=GROUPS_MAX, all_ends=False
        )

    def take(self) -> Snapshot:
        """Take a sample of the cluster. Raises SparklogError, such as BrokerNotAvailableError. A failed metrics page is
        not an error."""
        page, problem = self._page()
        at_s = self._clock.monotonic_s()
        view = self._reader.read()
        now_ms = page.time_ms if page is not None and page.time_ms > 0 else self._clock.now_ms()
        groups = self._groups(view, page)
        return Snapshot(
            at_s, now_ms, view, groups, len(view.groups) - len(groups), page, problem, self._lakes(view.topics)
        )

    def _attempt(self, part: str, job: Callable[[], T]) -> T | None:
        """Return the result of `job`; None if the ends cannot be read, so that the high watermarks take their place."""
        try:
            return job()
        except SparklogError:
            if part != ENDS:
                raise
            self._admin.describe_cluster()  # raises if the cause is an absent broker and not a topic
            return None

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

    def _groups(self, view: ClusterView, page: BrokerPage | None) -> dict[str, GroupSample]:
        samples: dict[str, GroupSample] = {}
        refined = 0
        for group in view.groups:
            if group.group_id in view.committed:
                sample = group_sample(group, view)
                if 0 < (sample.lag or 0) <= 2 * len(sample.committed) and refined < REFINED_MAX:
                    refined += 1
                    sample = self._refine_lag(group.group_id, sample)
                samples[group.group_id] = sample
            elif page is not None and group.group_id in page.group_lags:
                offsets, lags = page.group_offsets.get(group.group_id, {}), page.group_lags[group.group_id]
                samples[group.group_id] = GroupSample(group.state, group.members, offsets, lags)
        return samples

    def _refine_lag(self, group_id: str, sample: GroupSample) -> GroupSample:
        """Return the sample with the lag of `describe_group`, which is 0 if only transaction markers are unread."""
        try:
            described = self._admin.describe_group(group_id)
        except SparklogError:
            return sample  # the group is deleted or its coordinator busy: the next sample is exact
        lags = lag_by_topic((p.partition, p.lag) for p in described.partitions if p.lag is not None)
        return sample._replace(lags=lags)


def group_sample(group: GroupListing, view: ClusterView) -> GroupSample:
    """Return a sample of a group whose offsets the view has."""
    committed = view.committed[group.group_id]
    lags = lag_by_topic((p.partition, p.lag) for p in view.positions(group.group_id))
    return GroupSample(group.state, group.members, committed, lags if committed else None)


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
