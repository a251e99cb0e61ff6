"""The descriptions of mirrors: definitions, progress, errors."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sparklog.client.admin.mirror_plan import open_source
from sparklog.client.admin.mirror_reports import MirrorProgress, read_mirror_reports
from sparklog.client.admin.mirror_rights import hidden_groups, missing_rights
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.reading.mirrored_ends import MirroredEnd, mirrored_ends, refused_logs
from sparklog.errors import InvalidConfigError, SparklogError
from sparklog.metadata.refused_topics import refused_topic
from sparklog.mirror.definition import MirrorDefinition, MirroredTopic, lost_records, mirrored_topic
from sparklog.mirror.refused import RefusedLog
from sparklog.mirror.rules import SourceBounds, absent_text
from sparklog.types import TopicPartition


@dataclass(frozen=True)
class MirrorPartition:
    """The progress of a mirrored partition."""

    partition: int
    """Number of the partition."""
    source_end: int
    """Last stable offset of the source; -1: not known."""
    end: int
    """Log end here: the next offset that the mirror copies."""
    lag: int
    """Number of offsets that the source has committed and the mirror lacks; -1: not known."""
    lag_seconds: float
    """Seconds since the topic had all committed records of the source; 0 without lag; -1: not known."""
    lost: int
    """Number of offsets that the source had deleted before the mirror read them."""
    refused: int = 0
    """Number of records that did not fit the columns of a typed topic."""
    held: int = 0
    """Number of offsets at the source that wait for the end of an open transaction: its records and all after them."""


@dataclass(frozen=True)
class MirrorTopic:
    """A topic of a mirror."""

    topic: str
    """Name of the topic, here and at the source."""
    state: str
    """"running" or "paused"."""
    reason: str
    """Reason of the pause; empty: not paused."""
    partitions: tuple[MirrorPartition, ...]
    """Progress of each partition."""
    error: str = ""
    """Error of the worker's newest round; empty: it succeeded, or no worker has reported."""
    is_reported: bool = False
    """True if a worker has reported to a broker that answers, since this broker's start."""
    held_seconds: float = 0.0
    """Time for which offsets of a partition at the source have waited for the end of the same open transaction, as a
    worker has reported."""


@dataclass(frozen=True)
class MirrorDescription:
    """A mirror with its topics."""

    name: str
    """Name of the mirror."""
    source: str
    """Address of the source."""
    source_config: str
    """Properties file for the source, on the hosts of the workers; empty: plaintext."""
    topics_pattern: str
    """Regular expressions of the topics."""
    groups_pattern: str
    """Regular expressions of the groups; empty: none."""
    topics: tuple[MirrorTopic, ...]
    """Topics that are not promoted yet."""
    error: str
    """Error of asking the source now; empty: it has answered."""

    @property
    def lag(self) -> int:
        """Sum of the partitions' lags; -1: not known."""
        lags = [p.lag for topic in self.topics for p in topic.partitions]
        return -1 if not lags or min(lags) < 0 else sum(lags)


def mirrored_topics(infos: Mapping[str, TopicInfo], name: str | None = None) -> dict[str, list[MirroredTopic]]:
    """Return the mirrored topics by mirror; with `name` those of this mirror. Raises InvalidConfigError for a mirror
    without topics."""
    mirrors: dict[str, list[MirroredTopic]] = {}
    for topic_name in sorted(infos):
        topic = mirrored_topic(topic_name, infos[topic_name].configs)
        if topic is not None and name in (None, topic.definition.name):
            mirrors.setdefault(topic.definition.name, []).append(topic)
    if name is not None and name not in mirrors:
        raise InvalidConfigError(
            f"there is no mirror {name!r}, or all its topics are promoted; 'sparklog mirror status' lists the mirrors"
        )
    return mirrors


def describe_mirrors(
    cluster: Cluster, infos: Mapping[str, TopicInfo], timeout_ms: int, *, asks_source: bool = True
) -> list[MirrorDescription]:
    """Describe all mirrors of topics in `infos`; see `Admin.describe_mirrors`. `asks_source`: False to take the
    source's ends from the workers' reports alone."""
    mirrors = sorted(mirrored_topics(infos).items())
    names = [topic.topic for _, topics in mirrors for topic in topics]
    reports = read_mirror_reports(cluster, names, timeout_ms=timeout_ms)
    return [_description(cluster, infos, topics, reports, timeout_ms, asks_source) for _, topics in mirrors]


def _description(
    cluster: Cluster,
    infos: Mapping[str, TopicInfo],
    topics: Sequence[MirroredTopic],
    reports: Mapping[str, MirrorProgress],
    timeout_ms: int,
    asks_source: bool,
) -> MirrorDescription:
    definition = topics[0].definition
    tps = [TopicPartition(t.topic, p) for t in topics for p in range(infos[t.topic].partitions)]
    ends = mirrored_ends(cluster, tps, timeout_ms)
    refused = refused_logs(cluster, {tp: ends[tp].end for tp in tps if refused_topic(tp.topic) in infos}, timeout_ms)
    error, refusals, bounds = "", dict[str, str](), dict[TopicPartition, SourceBounds]()
    source_ends = {TopicPartition(t, p): end for t, one in reports.items() for p, end in one.source_ends.items()}
    if asks_source:
        try:
            bounds, refusals, error = _ask_source(definition, [t.topic for t in topics], tps, timeout_ms)
            source_ends |= {tp: one.stable for tp, one in bounds.items()}
        except SparklogError as e:
            error = str(e)
    now_ms = time.time() * 1000
    described = []
    for topic in topics:
        lost, report = lost_records(topic.lost), reports.get(topic.topic)
        partitions = tuple(
            _partition(
                tp,
                ends[tp],
                source_ends.get(tp, -1),
                lost.get(tp.partition, 0),
                _count(refused.get(tp)),
                report,
                now_ms,
                _held(tp, bounds, report),
            )
            for tp in tps
            if tp.topic == topic.topic
        )
        state = "paused" if topic.paused else "running"
        problem = (report.error if report is not None else "") or refusals.get(topic.topic, "")
        waits = report is not None and report.held_since_ms and any(p.held for p in partitions)
        held_s = max(0.0, (now_ms - report.held_since_ms) / 1000) if report is not None and waits else 0.0
        described.append(MirrorTopic(topic.topic, state, topic.paused, partitions, problem, report is not None, held_s))
    return MirrorDescription(
        definition.name,
        definition.source,
        definition.source_config,
        definition.topics,
        definition.groups,
        tuple(described),
        error,
    )


def _ask_source(
    definition: MirrorDefinition, names: Sequence[str], tps: Sequence[TopicPartition], timeout_ms: int
) -> tuple[dict[TopicPartition, SourceBounds], dict[str, str], str]:
    """Return the offsets of the source's partitions that answer, the refusals by topic, and those of groups. Raises
    errors of the source."""
    source = open_source(definition, timeout_ms)
    try:
        topics = source.topics(names)
        bounds = source.bounds(topics, [tp for tp in tps if tp.topic in topics])
        refusals = {name: absent_text(name) for name in names if name not in topics}
        refusals |= missing_rights(source, topics, names)
        groups = "; ".join(hidden_groups(source, definition).values())
    finally:
        source.close()
    return {tp: one for tp, one in bounds.items() if isinstance(one, SourceBounds)}, refusals, groups


def _partition(
    tp: TopicPartition,
    end: MirroredEnd,
    source_end: int,
    lost: int,
    refused: int,
    report: MirrorProgress | None,
    now_ms: float,
    held: int,
) -> MirrorPartition:
    lag = max(0, source_end - end.end) if source_end >= 0 else -1
    as_of_ms = report.as_of_ms if report is not None and report.as_of_ms else end.timestamp_ms
    lag_seconds = 0.0 if lag == 0 else -1.0
    if lag > 0 and as_of_ms > 0:
        lag_seconds = max(0.0, (now_ms - as_of_ms) / 1000)
    return MirrorPartition(tp.partition, source_end, end.end, lag, lag_seconds, lost, refused, held)


def _held(tp: TopicPartition, bounds: Mapping[TopicPartition, SourceBounds], report: MirrorProgress | None) -> int:
    """Return the number of offsets that wait at the source, by its answer, or by the newest report."""
    if tp in bounds:
        return bounds[tp].end - bounds[tp].stable
    return 0 if report is None else report.held.get(tp.partition, 0)


def _count(log: RefusedLog | None) -> int:
    return 0 if log is None else log.count
