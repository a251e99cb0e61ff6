"""Series about mirrored topics, from the reports of mirror workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from prometheus_client.core import Metric

from sparklog.mirror.definition import lost_records, mirrored_topic
from sparklog.types import TopicPartition
from sparklog_broker.metrics.families import MetricInfo, gauge
from sparklog_broker.partitions.mirrors import MirrorProgress, Mirrors
from sparklog_broker.partitions.partitions import Partitions

SILENT_MS = 60_000
"""Time without a report after which a mirrored topic counts as failing."""


class MirrorRow(NamedTuple):
    """One mirrored topic, as far as this broker knows."""

    topic: str
    mirror: str
    lag: int
    """Number of offsets that the topic lacks, in partitions that this broker leads."""
    lag_seconds: float
    """Age, in s, of the newest time up to which the topic has all records of the source; 0 without lag."""
    lost: int
    """Number of offsets that the source had deleted before the mirror read them."""
    refused: int
    """Number of records that do not fit the columns of the topic; -1 if unknown: the series is left out."""
    paused: bool
    failing: bool
    """True if the last round failed, or the worker's reports are missing."""
    held: int = 0
    """Number of offsets at the source that wait for the end of an open transaction."""
    held_seconds: float = 0.0
    """Time, in s, for which offsets of a partition have waited after the same last stable offset."""


def read_mirrors(mirrors: Mirrors, partitions: Partitions, broker_id: int | None, now_ms: int) -> list[MirrorRow]:
    """Return the rows of all mirrored topics. `broker_id`: id of this broker, to count only partitions that it leads;
    None for a sole broker."""
    reports = mirrors.reports()
    rows = []
    for name, topic in sorted(dict(partitions.topics).items()):
        mirrored = mirrored_topic(name, topic.configs)
        if mirrored is None:
            continue
        report = reports.get(name)
        lag = 0 if report is None else _lag(partitions, name, report, broker_id)
        since_ms = mirrors.born_ms if report is None else report.as_of_ms or report.first_reported_ms
        silent_ms = now_ms - (mirrors.born_ms if report is None else report.reported_ms)
        is_paused = bool(mirrored.paused)
        held = 0 if report is None else sum(end.held for end in report.source_ends.values())
        rows.append(
            MirrorRow(
                name,
                mirrored.definition.name,
                lag,
                max(0.0, (now_ms - since_ms) / 1000) if lag else 0.0,
                sum(lost_records(mirrored.lost).values()),
                -1 if report is None else report.refused,
                is_paused,
                not is_paused and (silent_ms > SILENT_MS or (report is not None and bool(report.error))),
                held,
                max(0.0, (now_ms - report.held_since_ms) / 1000) if report is not None and held else 0.0,
            )
        )
    return rows


def _lag(partitions: Partitions, topic: str, report: MirrorProgress, broker_id: int | None) -> int:
    lag = 0
    for number, source_end in report.source_ends.items():
        partition = partitions.find(TopicPartition(topic, number))
        log = None if partition is None else partition.open_log
        if partition is None or log is None or (broker_id is not None and partition.replicas.leader != broker_id):
            continue
        lag += max(0, source_end.offset - log.last_stable_offset)
    return lag


def mirror_families(rows: list[MirrorRow]) -> Iterator[Metric]:
    """Yield the series."""
    for name, doc, values in (
        (
            "sparklog_mirror_lag_records",
            "Lag of the mirrored topic behind its source, in offsets.",
            [r.lag for r in rows],
        ),
        (
            "sparklog_mirror_lag_seconds",
            "Delay of the mirrored topic: age of the newest time up to which it has all records of its source; 0 if it "
            "is complete.",
            [r.lag_seconds for r in rows],
        ),
        (
            "sparklog_mirror_lost_records",
            "Offsets that the source had deleted before the mirror read them.",
            [r.lost for r in rows],
        ),
        (
            "sparklog_mirror_refused_records",
            "Records of the source that do not fit the columns of the mirrored topic, since the mirror's beginning.",
            [r.refused for r in rows],
        ),
        (
            "sparklog_mirror_held_records",
            "Offsets at the source that wait for the end of an open transaction.",
            [r.held for r in rows],
        ),
        (
            "sparklog_mirror_held_seconds",
            "Time for which offsets of a partition at the source have waited for the end of the same open transaction.",
            [r.held_seconds for r in rows],
        ),
        ("sparklog_mirror_paused", "1 if the mirror of the topic is paused.", [int(r.paused) for r in rows]),
        (
            "sparklog_mirror_failing",
            "1 if the last round of the mirror failed, or no mirror worker reports.",
            [int(r.failing) for r in rows],
        ),
    ):
        labels = [{"topic": r.topic, "mirror": r.mirror} for r in rows]
        known = [(labels, value) for labels, value in zip(labels, values, strict=True) if value >= 0]
        yield gauge(MetricInfo(name, doc), known)
