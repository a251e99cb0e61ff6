"""Reports of mirror workers: sent to all brokers, which show them in metrics, and read by `Admin` and the console."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sparklog.client.admin.call import Call
from sparklog.client.net.cluster import Cluster
from sparklog.errors import SparklogError
from sparklog.protocol.base import TOPICS_PER_REQUEST_MAX
from sparklog.protocol.mirror_messages import (
    ERROR_CHARS_MAX,
    DescribeMirrorsRequest,
    DescribeMirrorsResponse,
    MirrorReport,
    MirrorState,
    ReportMirrorsRequest,
    ReportMirrorsResponse,
    SourceEnd,
)


@dataclass(frozen=True)
class MirrorProgress:
    """The newest report of a worker about a topic."""

    source_ends: Mapping[int, int]
    """Last stable offset of the source, by partition."""
    as_of_ms: int
    """The topic has all records that the source had committed before this time; 0: not known."""
    error: str
    """Error of the newest round; empty: it succeeded."""
    held: Mapping[int, int]
    """Number of offsets at the source that wait for the end of an open transaction, by partition."""
    held_since_ms: int
    """Time since which offsets of a partition wait after the same last stable offset; 0: none waits."""


def report_of(
    topic: str,
    topic_id: str,
    source_ends: Mapping[int, int],
    *,
    as_of_ms: int = 0,
    error: str = "",
    refused: int = -1,
    held: Mapping[int, int],
    held_since_ms: int = 0,
) -> MirrorReport:
    """Return a report about one topic."""
    ends = [SourceEnd(p, offset, held.get(p, 0)) for p, offset in sorted(source_ends.items())]
    return MirrorReport(topic, topic_id, ends, as_of_ms, error[:ERROR_CHARS_MAX], refused, held_since_ms)


def report_mirrors(cluster: Cluster, reports: Sequence[MirrorReport], *, timeout_ms: int = 5_000) -> None:
    """Send reports to all brokers. A broker that is away misses them. Raises errors that are not retriable."""
    call = Call(cluster, timeout_ms)
    for endpoint in cluster.brokers(timeout_ms=timeout_ms) if reports else ():
        for start in range(0, len(reports), TOPICS_PER_REQUEST_MAX):
            request = ReportMirrorsRequest(list(reports[start : start + TOPICS_PER_REQUEST_MAX]))
            try:
                call.ask_broker(endpoint, request, ReportMirrorsResponse)
            except SparklogError as e:
                if not e.retriable:
                    raise
                break


def read_mirror_reports(cluster: Cluster, topics: Iterable[str], *, timeout_ms: int) -> dict[str, MirrorProgress]:
    """Return the newest report about each topic, from all brokers that answer within `timeout_ms`. Topics without a
    report are absent."""
    names, call = list(topics), Call(cluster, timeout_ms)
    newest: dict[str, MirrorState] = {}
    for endpoint in cluster.brokers(timeout_ms=call.left_ms) if names else ():
        for start in range(0, len(names), TOPICS_PER_REQUEST_MAX):
            request = DescribeMirrorsRequest(names[start : start + TOPICS_PER_REQUEST_MAX])
            try:
                answer = call.ask_broker(endpoint, request, DescribeMirrorsResponse)
            except SparklogError as e:
                if not e.retriable:
                    raise
                break
            for one in answer.mirrors:
                if one.topic not in newest or one.reported_ms >= newest[one.topic].reported_ms:
                    newest[one.topic] = one
    return {
        topic: MirrorProgress(
            {end.partition: end.offset for end in r.source_ends},
            r.as_of_ms,
            r.error,
            {end.partition: end.held for end in r.source_ends if end.held},
            r.held_since_ms,
        )
        for topic, r in newest.items()
    }
