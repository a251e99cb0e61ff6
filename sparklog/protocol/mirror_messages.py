"""The APIs of mirrors: workers report the progress of mirrored topics to all brokers, and clients ask for the reports.

A broker keeps reports in memory only. They are for people and metrics: no decision depends on them.
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


class SourceEnd(Message):
    """The last stable offset of a partition at the source; -1: not known.

    `held`: number of offsets after it, which wait for the end of an open transaction.
    """

    partition: Partition
    offset: Offset
    held: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0


class MirrorReport(Message):
    """The state of a mirrored topic after a round of the worker. `as_of_ms`: the topic has all records that the source
    had committed before this time; 0: not known. `error`: error of the round; empty: it succeeded. `refused`: number of
    records so far that do not fit the columns; -1: not known. `held_since_ms`: time since which a partition has held
    offsets after the same last stable offset; 0: none has."""

    topic: Name
    topic_id: Text
    source_ends: Annotated[list[SourceEnd], Meta(max_length=PARTITIONS_PER_TOPIC_MAX)]
    as_of_ms: Int64 = 0
    error: Annotated[str, Meta(max_length=ERROR_CHARS_MAX)] = ""
    refused: Offset = -1
    held_since_ms: Int64 = 0


class ReportMirrorsRequest(Message):
    """The states of topics of a mirror."""

    reports: Annotated[list[MirrorReport], Meta(min_length=1, max_length=TOPICS_PER_REQUEST_MAX)]


class ReportMirrorsResponse(Message):
    """Confirmation that the broker has noted the reports."""

    throttle_ms: ThrottleMs = 0


class DescribeMirrorsRequest(Message):
    """Ask a broker for its newest reports about these topics."""

    topics: Annotated[list[Name], Meta(min_length=1, max_length=TOPICS_PER_REQUEST_MAX)]


class MirrorState(Message):
    """The newest report about a topic. `reported_ms`: time of the report by the answering broker's clock."""

    topic: str
    source_ends: list[SourceEnd]
    as_of_ms: int
    error: str
    reported_ms: int
    held_since_ms: int = 0


class DescribeMirrorsResponse(Message):
    """One state per requested topic of which the broker has a report."""

    mirrors: list[MirrorState]
    throttle_ms: ThrottleMs = 0
