"""Series about the topics' Delta tables, from the reports of lake workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from prometheus_client.core import Metric

from sparklog.types import TopicPartition
from sparklog_broker.metrics.families import MetricInfo, gauge
from sparklog_broker.partitions.lakes import LakeReport, Lakes
from sparklog_broker.partitions.partitions import Partitions

LOCATION, PAUSED, INTERVAL = "lake.location", "lake.paused", "lake.commit.interval.ms"
SILENT_INTERVALS = 10
"""Number of commit intervals without a report after which a table counts as failing."""
SILENT_MS_MIN = 60_000


class LakeRow(NamedTuple):
    """The Delta table of one topic, as far as this broker knows."""

    topic: str
    lag: int
    """Number of offsets that the table lacks, in partitions that this broker leads."""
    lag_seconds: float
    """Age, in s, of the newest time up to which the table has all records; 0 without lag."""
    files: int
    paused: bool
    failing: bool
    """True if the last round failed, or the worker's reports are missing."""


def read_lakes(lakes: Lakes, partitions: Partitions, broker_id: int | None, now_ms: int, born_ms: int) -> list[LakeRow]:
    """Return the rows of all topics with a Delta table. `broker_id`: id of this broker, to count only partitions that
    it leads; None for a sole broker. `born_ms`: time of the broker's start, from which missing reports count."""
    reports = lakes.reports()
    rows = []
    for name, topic in sorted(dict(partitions.topics).items()):
        configs: Mapping[str, object] = topic.configs
        if not configs.get(LOCATION):
            continue
        report = reports.get(name)
        lag = _lag(partitions, name, topic.partitions, report, broker_id)
        since_ms = born_ms if report is None else report.as_of_ms or report.first_reported_ms
        interval_ms = int(str(configs.get(INTERVAL, 10_000)))
        silent_ms = now_ms - (born_ms if report is None else report.reported_ms)
        is_silent = silent_ms > max(SILENT_MS_MIN, SILENT_INTERVALS * interval_ms)
        rows.append(
            LakeRow(
                name,
                lag,
                max(0.0, (now_ms - since_ms) / 1000) if lag else 0.0,
                -1 if report is None else report.files,
                bool(configs.get(PAUSED)),
                is_silent or (report is not None and bool(report.error)),
            )
        )
    return rows


def _lag(partitions: Partitions, topic: str, count: int, report: LakeReport | None, broker_id: int | None) -> int:
    lag = 0
    for number in range(count):
        partition = partitions.find(TopicPartition(topic, number))
        log = None if partition is None else partition.open_log
        if partition is None or log is None or (broker_id is not None and partition.replicas.leader != broker_id):
            continue
        start = log.log_start_offset if report is None else report.next_offsets.get(number, log.log_start_offset)
        lag += max(0, log.last_stable_offset - start)
    return lag


def lake_families(rows: list[LakeRow]) -> Iterator[Metric]:
    """Yield the series."""
    for name, doc, values in (
        ("sparklog_lake_lag_records", "Lag of the topic's Delta table, in offsets.", [r.lag for r in rows]),
        (
            "sparklog_lake_lag_seconds",
            "Delay of the topic's Delta table: age of the newest time up to which the table has all records; 0 if it "
            "is complete.",
            [r.lag_seconds for r in rows],
        ),
        ("sparklog_lake_files", "Files of the topic's Delta table.", [r.files for r in rows]),
        ("sparklog_lake_paused", "1 if the topic's Delta table is paused.", [int(r.paused) for r in rows]),
        (
            "sparklog_lake_failing",
            "1 if the last round of the topic's Delta table failed, or no lake worker reports.",
            [int(r.failing) for r in rows],
        ),
    ):
        yield gauge(MetricInfo(name, doc), [({"topic": r.topic}, v) for r, v in zip(rows, values, strict=True)])
