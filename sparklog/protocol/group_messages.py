"""The APIs of consumer groups and their offsets; see docs/internals/delivery.md."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from sparklog.protocol.base import (
    PARTITIONS_PER_REQUEST_MAX,
    PARTITIONS_PER_TOPIC_MAX,
    TOPICS_PER_REQUEST_MAX,
    Int32,
    Int64,
    Message,
    Name,
    Partition,
    Since,
    Text,
    ThrottleMs,
)


class FindCoordinatorRequest(Message):
    """Ask for the coordinator of the group (`key_type` 0) or transactional id (1) `key`."""

    key: Text
    key_type: Annotated[int, Meta(ge=0, le=1)] = 0


class FindCoordinatorResponse(Message):
    """Address of the coordinator. `host` "": the asked broker itself, which has no cluster."""

    broker_id: int
    host: Text = ""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    throttle_ms: ThrottleMs = 0


class CommittedOffset(Message):
    """The next offset to read of a partition. `leader_epoch` -1: not known."""

    topic: Name
    partition: Partition
    offset: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    leader_epoch: Int32 = -1
    metadata: Annotated[str, Meta(max_length=4096)] = ""


class OffsetResult(Message):
    """Outcome of a commit for one partition."""

    topic: str
    partition: int
    error_code: int
    message: str = ""


class TopicPartitions(Message):
    """Partitions of one topic."""

    topic: Name
    partitions: Annotated[list[Partition], Meta(max_length=PARTITIONS_PER_TOPIC_MAX)]


class GroupHeartbeatRequest(Message):
    """Heartbeat of a member (KIP-848)."""

    group_id: Text
    member_id: Text = ""
    """Id of the member; "": the broker assigns one."""
    member_epoch: Int32 = 0
    """Epoch of the member; 0: it joins, -1: it leaves, -2: a static member leaves for a while."""
    instance_id: Text | None = None
    """Instance id of a static member; None: a dynamic member."""
    topics: Annotated[list[Name], Meta(max_length=TOPICS_PER_REQUEST_MAX)] | None = None
    """Subscribed topics; None: unchanged."""
    assignor: Text | None = None
    """Wanted assignor; None: unchanged."""
    owned: Annotated[list[TopicPartitions], Meta(max_length=TOPICS_PER_REQUEST_MAX)] | None = None
    """Partitions that the member reads, or may begin to read without a further heartbeat; None: unchanged."""
    rebalance_timeout_ms: Annotated[int, Meta(ge=1, le=86_400_000)] = 300_000
    session_timeout_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 0
    """Session timeout in ms; 0: the broker's default."""
    client_id: Text = ""
    sequence: Int64 = -1
    """Number of the member's heartbeat; -1: not counted. The broker refuses an overtaken heartbeat, which comes from an
    abandoned connection."""


class GroupHeartbeatResponse(Message):
    """The member's state in its group. `assigned`: all partitions that the member may own now; None if nothing has
    changed since the last answer."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assigned: list[TopicPartitions] | None = None
    throttle_ms: ThrottleMs = 0


class OffsetCommitRequest(Message):
    """Commit offsets of a group. `member_epoch` -1: the client is no member, which is allowed while the group is empty.
    `sequence` numbers a member's commits, so that the broker refuses an overtaken commit; -1: not counted."""

    group_id: Text
    offsets: Annotated[list[CommittedOffset], Meta(min_length=1, max_length=PARTITIONS_PER_REQUEST_MAX)]
    member_id: Text = ""
    member_epoch: Int32 = -1
    sequence: Int64 = -1


class OffsetCommitResponse(Message):
    """One result per offset of the request, in its order."""

    results: list[OffsetResult]
    throttle_ms: ThrottleMs = 0


class OffsetFetchRequest(Message):
    """Ask for committed offsets. `partitions` None: all offsets of the group. `require_stable`: UNSTABLE_OFFSET_COMMIT
    while a transaction with offsets of the partition is open. With a member, its epoch is checked. `paged`: the client
    requests the rest of a long answer: with `partitions` the remaining ones, without them the partitions after
    (`after_topic`, `after_partition`)."""

    group_id: Text
    partitions: Annotated[list[TopicPartitions], Meta(max_length=TOPICS_PER_REQUEST_MAX)] | None = None
    require_stable: bool = False
    member_id: Text = ""
    member_epoch: Int32 = -1
    paged: Annotated[bool, Since(1, ignorable=True)] = False
    after_topic: Annotated[Name, Since(1)] = ""
    after_partition: Annotated[Int32, Since(1)] = -1


class FetchedOffset(Message):
    """A committed offset; -1 if none is committed."""

    topic: str
    partition: int
    error_code: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    committed_ms: int = -1
    message: str = ""


class OffsetFetchResponse(Message):
    """Offsets by topic and partition, or in the order of the request, each once. `more`: True if a further page
    follows."""

    offsets: list[FetchedOffset]
    more: Annotated[bool, Since(1)] = False
    throttle_ms: ThrottleMs = 0


class ListGroupsRequest(Message):
    """Ask for the groups. `states`: only these. `paged`: the client requests the rest of a long answer: the groups with
    ids after `after`."""

    states: Annotated[list[Text], Meta(max_length=20)] = []
    paged: Annotated[bool, Since(1, ignorable=True)] = False
    after: Annotated[Text, Since(1)] = ""


class GroupSummary(Message):
    """A group in a list. `state`: Empty, Assigning, Reconciling, Stable, Dead; `kind`: "consumer", or "offsets" if it
    has only offsets."""

    group_id: str
    state: str
    kind: str
    members: int


class ListGroupsResponse(Message):
    """Groups in the order of their ids. `more`: True if a further page follows."""

    groups: list[GroupSummary]
    more: Annotated[bool, Since(1)] = False
    throttle_ms: ThrottleMs = 0


class DescribeGroupsRequest(Message):
    """Ask for details of groups. `paged`: True if the client requests the rest of a long answer. If `members_from` is
    above 0, the first group is the last one of the page before, from this member on."""

    group_ids: Annotated[list[Name], Meta(min_length=1, max_length=10_000)]
    paged: Annotated[bool, Since(1, ignorable=True)] = False
    members_from: Annotated[int, Meta(ge=0, le=2**31 - 1), Since(1)] = 0


class GroupMember(Message):
    """One member: its partitions, and its target."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    member_epoch: int
    topics: list[str]
    owned: list[TopicPartitions]
    target: list[TopicPartitions]


class GroupDetails(Message):
    """One group. `error_code` is not 0 if there is no such group."""

    error_code: int
    group_id: str
    state: str = ""
    group_epoch: int = -1
    assignor: str = ""
    members: list[GroupMember] = []
    message: str = ""


class DescribeGroupsResponse(Message):
    """One group per id of the request, in its order; an id that is named twice has one."""

    groups: list[GroupDetails]
    more: Annotated[bool, Since(1)] = False
    """True if a further page follows."""
    members_from: Annotated[int, Since(1)] = -1
    """Number of the first member of the last group that is not in this page; -1: all its members are."""
    throttle_ms: ThrottleMs = 0


class DeleteGroupRequest(Message):
    """Deletes an empty group with its offsets."""

    group_id: Text


class DeleteGroupResponse(Message):
    """Result of a deletion. `offsets`: number of deleted offsets."""

    offsets: int
    throttle_ms: ThrottleMs = 0


class TxnOffsetCommitRequest(Message):
    """Offsets that are committed to a group if the transaction is. `member_epoch` -1: no member, an empty group."""

    transactional_id: Text
    producer_id: Int64
    producer_epoch: Int32
    group_id: Text
    offsets: Annotated[list[CommittedOffset], Meta(min_length=1, max_length=PARTITIONS_PER_REQUEST_MAX)]
    member_id: Text = ""
    member_epoch: Int32 = -1


class TxnOffsetCommitResponse(Message):
    """One result per offset of the request, in its order."""

    results: list[OffsetResult]
    throttle_ms: ThrottleMs = 0
