"""Reports of mirror workers about mirrored topics, in memory only."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from sparklog.protocol.mirror_messages import MirrorReport, MirrorState, ReportMirrorsRequest, SourceEnd
from sparklog_broker.partitions.partitions import Partitions


class MirrorProgress(Struct, frozen=True):
    """The newest report about one topic."""

    topic_id: str
    source_ends: dict[int, SourceEnd]
    """Last stable offsets of the source by partition."""
    as_of_ms: int
    """The topic has all records that the source had committed before this time; 0 if unknown."""
    error: str
    reported_ms: int
    """Time of the report on this broker's clock."""
    first_reported_ms: int
    """Time of the first report on this broker's clock. While `as_of_ms` is unknown, the lag counts from it."""
    refused: int = -1
    """Number of records so far that do not fit the columns; -1 if unknown."""
    held_since_ms: int = 0
    """Time since which a partition has held offsets after the same last stable offset; 0: none has."""


class Mirrors:
    """The reports by topic. Event-loop thread only, except for `reports`."""

    def __init__(self, partitions: Partitions, now_ms: Callable[[], int]) -> None:
        self._partitions = partitions
        self._now_ms = now_ms
        self.born_ms = now_ms()
        """Time of the broker's start, from which missing reports count."""
        self._reports: dict[str, MirrorProgress] = {}

    def report(self, request: ReportMirrorsRequest) -> None:
        """Store a worker's reports. Those about topics that do not exist any more are passed over."""
        self._reports = self.reports()  # forgets deleted topics
        for report in request.reports:
            topic = self._partitions.topics.get(report.topic)
            if topic is not None and topic.topic_id == report.topic_id:
                self._reports[report.topic] = self._progress(report)

    def _progress(self, report: MirrorReport) -> MirrorProgress:
        now_ms = self._now_ms()
        before = self._reports.get(report.topic)
        if before is None or before.topic_id != report.topic_id:
            before = MirrorProgress(report.topic_id, {}, 0, "", now_ms, now_ms)
        ends = {end.partition: end for end in report.source_ends if end.offset >= 0}
        return MirrorProgress(
            report.topic_id,
            before.source_ends | ends,
            max(before.as_of_ms, report.as_of_ms),
            report.error,
            now_ms,
            before.first_reported_ms,
            max(before.refused, report.refused),
            report.held_since_ms,
        )

    def reports(self) -> dict[str, MirrorProgress]:
        """Return the reports about existing topics, by name. Callable on any thread."""
        return {
            name: report
            for name, report in list(self._reports.items())
            if (topic := self._partitions.topics.get(name)) is not None and topic.topic_id == report.topic_id
        }

    def states(self, topics: list[str]) -> list[MirrorState]:
        """Return the reports about `topics` as messages."""
        reports = self.reports()
        return [
            MirrorState(
                name,
                [end for _, end in sorted(report.source_ends.items())],
                report.as_of_ms,
                report.error,
                report.reported_ms,
                report.held_since_ms,
            )
            for name in dict.fromkeys(topics)
            if (report := reports.get(name)) is not None
        ]
