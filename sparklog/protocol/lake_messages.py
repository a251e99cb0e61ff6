"""The APIs of lakes: workers report the progress of topics' Delta tables to the leaders, clients ask for it.

A leader keeps a report in memory only: until the first one after its start, retention deletes nothing of the topic.
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
    """The next offset of a partition in the table; -1: not known."""

    partition: Partition
    next_offset: Offset


class ReportLakeRequest(Message):
    """The state of a topic's table after a round. `as_of_ms`: the table has all records that were committed before; 0:
    not known. `error`: of the last round; empty: it succeeded. `version` and `files` are -1 if they are not known."""

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
    """Request a broker's reports about partitions that it leads."""

    topics: Annotated[list[Name], Meta(min_length=1, max_length=TOPICS_PER_REQUEST_MAX)]


class LakeState(Message):
    """The newest report about a topic, with the partitions that the broker leads. `reported_ms`: by the broker's
    clock."""

    topic: str
    offsets: list[LakeOffset]
    as_of_ms: int
    version: int
    files: int
    last_commit_ms: int
    error: str
    reported_ms: int


class DescribeLakesResponse(Message):
    """One state per topic with a report."""

    lakes: list[LakeState]
    throttle_ms: ThrottleMs = 0
