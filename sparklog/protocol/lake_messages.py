"""The APIs of lakes: workers report the progress of topics' Delta tables to the leaders, and clients ask for the
reports.

A leader keeps reports in memory only. After its start, retention deletes nothing of a lake's topic until the topic's
first report.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sparklog.protocol.base import (
    PARTITIONS_PER_TOPIC_MAX,
    TOPICS_PER_REQUEST_MAX,
    Int64,
    Message,
    Name,
    Partition,
    Text,
    ThrottleMs,
)

ERROR_CHARS_MAX = 4_096
Offset = Annotated[int, Meta(ge=-1, le=2**63 - 1)]


class LakeOffset(Message):
    """The offset of a partition that the table needs next; -1: not known."""

    partition: Partition
    next_offset: Offset


class ReportLakeRequest(Message):
    """The state of a topic's table after a round of the worker. `as_of_ms`: the table has all records that were
    committed before this time; 0: not known. `version` and `files`: version and number of files of the table; -1: not
    known. `error`: error of the round; empty: it succeeded."""

    topic: Name
    topic_id: Text
    offsets: Annotated[list[LakeOffset], Meta(max_length=PARTITIONS_PER_TOPIC_MAX)]
    as_of_ms: Int64 = 0
    version: Int64 = -1
    files: Int64 = -1
    last_commit_ms: Int64 = 0
    error: Annotated[str, Meta(max_length=ERROR_CHARS_MAX)] = ""


class ReportLakeResponse(Message):
    """Confirmation that the broker has noted the report for its partitions."""

    throttle_ms: ThrottleMs = 0


class DescribeLakesRequest(Message):
    """Ask a broker for its newest reports about these topics."""

    topics: Annotated[list[Name], Meta(min_length=1, max_length=TOPICS_PER_REQUEST_MAX)]


class LakeState(Message):
    """The newest report about a topic. `offsets` has the partitions of which the answering broker has a log.
    `reported_ms`: time of the report by that broker's clock."""

    topic: str
    offsets: list[LakeOffset]
    as_of_ms: int
    version: int
    files: int
    last_commit_ms: int
    error: str
    reported_ms: int


class DescribeLakesResponse(Message):
    """One state per requested topic of which the broker has a report."""

    lakes: list[LakeState]
    throttle_ms: ThrottleMs = 0
