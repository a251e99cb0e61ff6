"""Reports of lake workers about topics whose partitions this broker leads.

The reports are in memory only. With `lake.hold.retention`, a log deletes no records by retention until a report says
how far its table is (`LogRetention.held_from`).
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from sparklog.errors import UnknownTopicOrPartitionError
from sparklog.protocol.lake_messages import LakeOffset, LakeState, ReportLakeRequest
from sparklog.types import TopicPartition
from sparklog_broker.partitions.partitions import Partitions


class LakeReport(Struct):
    """The newest report about one topic."""

    topic_id: str
    next_offsets: dict[int, int]
    """By partition that this broker leads: the next offset for the table."""
    as_of_ms: int
    """The table has all records that were committed before this time; 0 if unknown."""
    version: int
    files: int
    last_commit_ms: int
    error: str
    reported_ms: int
    """Time of the report on this broker's clock."""
    first_reported_ms: int
    """Time of the first report on this broker's clock. While `as_of_ms` is unknown, the lag counts from it."""


class Lakes:
    """The reports by topic. Event-loop thread only, except for `reports`."""

    def __init__(self, partitions: Partitions, now_ms: Callable[[], int]) -> None:
        self._partitions = partitions
        self._now_ms = now_ms
        self.born_ms = now_ms()
        """Time of the broker's start, from which missing reports count."""
        self._reports: dict[str, LakeReport] = {}

    def report(self, request: ReportLakeRequest) -> None:
        """Store a worker's report. Raises UnknownTopicOrPartitionError."""
        topic = self._partitions.topics.get(request.topic)
        if topic is None or topic.topic_id != request.topic_id:
            raise UnknownTopicOrPartitionError(f"topic {request.topic!r} with id {request.topic_id!r} does not exist")
        now_ms = self._now_ms()
        report = self._reports.get(request.topic)
        if report is None or report.topic_id != request.topic_id:
            report = self._reports[request.topic] = LakeReport(request.topic_id, {}, 0, -1, -1, 0, "", now_ms, now_ms)
        for offset in request.offsets:
            partition = self._partitions.find(TopicPartition(request.topic, offset.partition))
            log = None if partition is None else partition.open_log
            if log is None or offset.next_offset < 0:
                continue
            log.retention.note_lake_offset(offset.next_offset)
            report.next_offsets[offset.partition] = offset.next_offset
        report.as_of_ms = max(report.as_of_ms, request.as_of_ms)
        report.last_commit_ms = max(report.last_commit_ms, request.last_commit_ms)
        report.version = request.version if request.version >= 0 else report.version
        report.files = request.files if request.files >= 0 else report.files
        report.error, report.reported_ms = request.error, now_ms

    def reports(self) -> dict[str, LakeReport]:
        """Return the reports about existing topics, by name. Callable on any thread."""
        return {
            name: report
            for name, report in list(self._reports.items())
            if (topic := self._partitions.topics.get(name)) is not None and topic.topic_id == report.topic_id
        }

    def states(self, topics: list[str]) -> list[LakeState]:
        """Return the reports about `topics` as messages."""
        reports = self.reports()
        return [
            LakeState(
                name,
                [LakeOffset(p, offset) for p, offset in sorted(report.next_offsets.items())],
                report.as_of_ms,
                report.version,
                report.files,
                report.last_commit_ms,
                report.error,
                report.reported_ms,
            )
            for name in dict.fromkeys(topics)
            if (report := reports.get(name)) is not None
        ]
