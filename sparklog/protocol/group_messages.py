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
    Text,
    ThrottleMs,
    TopicId,
)

REGEX_CHARS_MAX = 10_000
RESERVE_MS_MAX = 1_800_000


class FindCoordinatorRequest(Message):
    """Ask for the coordinator of the group (`key_type` 0) or transactional id (1) `key`. With 2, brokers ask for the
    leader of the schema registry's log. A missing log is created."""

    key: Text
    key_type: Annotated[int, Meta(ge=0, le=2)] = 0


class FindCoordinatorResponse(Message):
    """Address of the coordinator. `host` "": the asked broker, which has no cluster, is the coordinator."""

    broker_id: int
    host: Text = ""
    port: Annotated[int, Meta(ge=0, le=65_535)] = 0
    throttle_ms: ThrottleMs = 0


class CommittedOffset(Message):
    """A committed offset: the offset of a partition that the group reads next. `leader_epoch` -1: not known.
    `topic_id`: the broker refuses a topic of this name with another id; "": not checked."""

    topic: Name
    partition: Partition
    offset: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    leader_epoch: Int32 = -1
    metadata: Annotated[str, Meta(max_length=4096)] = ""
    topic_id: TopicId = ""


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
    """Epoch of the member; 0: the member joins, -1: it leaves, -2: a static member leaves temporarily."""
    instance_id: Text | None = None
    """Instance id of a static member; None: a dynamic member."""
    topics: Annotated[list[Name], Meta(max_length=TOPICS_PER_REQUEST_MAX)] | None = None
    """Subscribed topics; None: unchanged."""
    assignor: Text | None = None
    """Wanted assignor; None: unchanged."""
    owned: Annotated[list[TopicPartitions], Meta(max_length=TOPICS_PER_REQUEST_MAX)] | None = None
    """Partitions that the member reads, or can begin to read before its next heartbeat; None: unchanged."""
    rebalance_timeout_ms: Annotated[int, Meta(ge=1, le=86_400_000)] = 300_000
    session_timeout_ms: Annotated[int, Meta(ge=0, le=86_400_000)] = 0
    """Session timeout in ms; 0: the broker's default."""
    client_id: Text = ""
    sequence: Int64 = -1
    """Number of the member's heartbeat; -1: not counted. The broker refuses a heartbeat that a later one has overtaken:
    it comes from an abandoned connection."""
    topic_regex: Annotated[str, Meta(max_length=REGEX_CHARS_MAX)] | None = None
    """Regular expression (RE2) of further topics. It matches whole names of topics that the member can describe. "":
    none from now on; None: unchanged."""
    reserve_ms: Annotated[int, Meta(ge=-1, le=RESERVE_MS_MAX)] = -1
    """Set by Kafka's gateway. Above 0: time in ms for which it has classic members of the group, so that no member can
    join; 0: it has none, and the reservation ends."""


class GroupHeartbeatResponse(Message):
    """The member's state in its group. `assigned`: all partitions that the member is allowed to own now; None if they
    have not changed since the last answer. `topic_ids`: the ids of the topics in `assigned`, in its order."""

    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assigned: list[TopicPartitions] | None = None
    throttle_ms: ThrottleMs = 0
    topic_ids: list[str] = []


class OffsetCommitRequest(Message):
    """Commit offsets of a group. `member_epoch` -1: the client is not a member, which is allowed while the group is
    empty. `sequence`: number of the member's commit; the broker refuses a commit that a later one has overtaken; -1:
    not counted."""

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
    """Ask for the committed offsets of `partitions`; None: of all partitions of the group."""

    group_id: Text
    partitions: Annotated[list[TopicPartitions], Meta(max_length=TOPICS_PER_REQUEST_MAX)] | None = None
    require_stable: bool = False
    """True: answer UNSTABLE_OFFSET_COMMIT for a partition while an open transaction has offsets of it."""
    member_id: Text = ""
    member_epoch: Int32 = -1
    """Epoch of the member `member_id`, which the broker checks; -1: not checked."""
    paged: bool = False
    """True if the client reads long answers page by page."""
    after_topic: Name = ""
    """Without `partitions`: the last topic of the page before; "": the first page. With `partitions`, the client names
    the remaining ones instead."""
    after_partition: Int32 = -1
    """The last partition of the page before."""


class FetchedOffset(Message):
    """The committed offset of a partition; `offset` -1: none is committed."""

    topic: str
    partition: int
    error_code: int
    offset: int = -1
    leader_epoch: int = -1
    metadata: str = ""
    committed_ms: int = -1
    message: str = ""


class OffsetFetchResponse(Message):
    """Offsets, each once: in the order of the request, or, if it names no partitions, by topic and partition. `more`:
    True if a further page follows."""

    offsets: list[FetchedOffset]
    more: bool = False
    throttle_ms: ThrottleMs = 0


class ListGroupsRequest(Message):
    """Ask for the groups in one of `states`; empty: for all groups. `paged`: True if the client reads long answers page
    by page. `after`: last id of the page before; "": the first page."""

    states: Annotated[list[Text], Meta(max_length=20)] = []
    paged: bool = False
    after: Text = ""


class GroupSummary(Message):
    """A group in a list. `state` is Empty, Reconciling or Stable. `kind` is "consumer", or "offsets" for a group that
    has committed offsets and nothing else."""

    group_id: str
    state: str
    kind: str
    members: int


class ListGroupsResponse(Message):
    """Groups in the order of their ids. `more`: True if a further page follows."""

    groups: list[GroupSummary]
    more: bool = False
    throttle_ms: ThrottleMs = 0


class DescribeGroupsRequest(Message):
    """Ask for details of groups. `paged`: True if the client reads long answers page by page. `members_from` above 0
    continues a group whose members did not fit into the page before: the answer has the members of the first requested
    group from this index on."""

    group_ids: Annotated[list[Name], Meta(min_length=1, max_length=10_000)]
    paged: bool = False
    members_from: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 0


class GroupMember(Message):
    """One member: the partitions that it owns, and its target assignment. `topics` has all topics to which it
    subscribes, those of its regular expression `topic_regex` ("": none) included."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    member_epoch: int
    topics: list[str]
    owned: list[TopicPartitions]
    target: list[TopicPartitions]
    topic_regex: str = ""


class GroupDetails(Message):
    """One group. `error_code` is not 0 if the group does not exist or may not be described."""

    error_code: int
    group_id: str
    state: str = ""
    group_epoch: int = -1
    assignor: str = ""
    members: list[GroupMember] = []
    message: str = ""


class DescribeGroupsResponse(Message):
    """One group per id of the request, in its order. An id that is named twice has one group."""

    groups: list[GroupDetails]
    more: bool = False
    """True if a further page follows."""
    members_from: int = -1
    """Index of the first member of the last group that is not in this page; -1: all its members are."""
    throttle_ms: ThrottleMs = 0


class DeleteGroupRequest(Message):
    """Delete an empty group with its offsets; with `partitions` only their offsets, where no member subscribes to the
    topic."""

    group_id: Text
    partitions: Annotated[list[TopicPartitions], Meta(max_length=TOPICS_PER_REQUEST_MAX)] | None = None


class DeleteGroupResponse(Message):
    """Result of a deletion. `offsets`: number of deleted offsets. `subscribed`: the topics whose offsets remain,
    because members subscribe to them."""

    offsets: int
    throttle_ms: ThrottleMs = 0
    subscribed: list[str] = []


class TxnOffsetCommitRequest(Message):
    """Add offsets to a transaction. They are committed to the group if the transaction is committed. `member_epoch` -1:
    the client is not a member, which is allowed while the group is empty."""

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
