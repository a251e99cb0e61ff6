"""Administration of consumer groups: list and describe them, look up their offsets, delete them."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from sparklog.client.admin.call import Call
from sparklog.client.admin.repeating import NextStep, RepeatPolicy
from sparklog.client.group.group_offsets import fetch_offsets
from sparklog.client.net.answers import single
from sparklog.client.net.coordinator_key import group_key
from sparklog.client.net.paging import after_last
from sparklog.client.net.retry import RetryPolicy
from sparklog.client.reading.isolation import AbortedOffsets
from sparklog.client.reading.offset_lookup import find_offsets
from sparklog.client.reading.single_fetch import fetch_once
from sparklog.errors import (
    GroupIdNotFoundError,
    InvalidRequestError,
    SparklogError,
    UnknownTopicOrPartitionError,
    error_from_code,
)
from sparklog.format.batch import ATTRIBUTE_CONTROL, iterate_batches
from sparklog.protocol.apis import Api
from sparklog.protocol.group_messages import (
    DeleteGroupRequest,
    DeleteGroupResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupDetails,
    GroupMember,
    ListGroupsRequest,
    ListGroupsResponse,
    TopicPartitions,
)
from sparklog.types import READ_COMMITTED, GroupMetadata, OffsetAndMetadata, TopicPartition

MARKERS_BYTES = 64 * 1024
MARKER_FETCHES_MAX = 100
"""Largest number of fetches that look for a readable record after a committed offset. If none of them finds one, all
offsets up to the end count as lag."""


@dataclass(frozen=True)
class GroupListing:
    """A consumer group in a list."""

    group_id: str
    """Name of the group."""
    state: str
    """"Empty", "Reconciling" (partitions move between members) or "Stable"."""
    kind: str
    """"consumer"; "offsets" if the group never had members."""
    members: int
    """Number of members."""


@dataclass(frozen=True)
class MemberDescription:
    """A member of a group."""

    member_id: str
    """Id of the member."""
    instance_id: str | None
    """The `group.instance.id` of a static member; None for a dynamic member."""
    client_id: str
    """The member's `client.id`."""
    host: str
    """Host of the member."""
    epoch: int
    """Epoch of the member."""
    topics: tuple[str, ...]
    """Names of the topics that the member subscribes to."""
    owned: tuple[TopicPartition, ...]
    """Partitions that the member has, or has not released yet."""
    target: tuple[TopicPartition, ...]
    """Partitions that the group assigns to the member."""


@dataclass(frozen=True)
class PartitionLag:
    """The progress of a group in one partition."""

    partition: TopicPartition
    """The partition."""
    committed: OffsetAndMetadata | None
    """Committed offset; None if nothing is committed."""
    end: int
    """Last stable offset; -1 if the topic is gone."""
    lag: int | None
    """Number of offsets from the committed one to the end; 0 if none of them holds a readable record. None: no offset
    is committed, or the topic is gone."""
    member: MemberDescription | None
    """Member that has the partition; None if no member has it."""


@dataclass(frozen=True)
class GroupDescription:
    """A group with its members and lags."""

    group_id: str
    """Name of the group."""
    state: str
    """"Empty", "Reconciling" or "Stable"."""
    epoch: int
    """The group's epoch, which grows with each new assignment; -1 if the group never had members."""
    assignor: str
    """Name of the assignor; empty: not chosen yet."""
    members: tuple[MemberDescription, ...]
    """Members of the group."""
    partitions: tuple[PartitionLag, ...]
    """Progress in each partition."""


def list_groups(call: Call, states: Iterable[str] = ()) -> list[GroupListing]:
    """List the groups of all coordinators; see `Admin.list_groups`."""
    request = ListGroupsRequest([*states], paged=True)
    pages = call.pages_of_all_brokers(request, ListGroupsResponse, after_last("groups", attrgetter("group_id")))
    groups = {g.group_id: GroupListing(g.group_id, g.state, g.kind, g.members) for page in pages for g in page.groups}
    return [groups[group_id] for group_id in sorted(groups)]


def describe_group(call: Call, group_id: str) -> GroupDescription:
    """Describe a group; see `Admin.describe_group`."""
    group = _details(call, group_id)
    if group.error_code:
        raise _with_hint(call, error_from_code(group.error_code, group.message), group_id)
    members = tuple(map(_member, group.members))
    lags = tuple(_lags(call, group_offsets(call, group_id), members))
    return GroupDescription(group_id, group.state, group.group_epoch, group.assignor, members, lags)


def _details(call: Call, group_id: str) -> GroupDetails:
    """Return the group with all its members."""
    group: GroupDetails | None = None
    for page in call.pages(
        DescribeGroupsRequest([group_id], paged=True),
        DescribeGroupsResponse,
        lambda page: {"members_from": page.members_from} if page.members_from > 0 else {},
        coordinator=group_key(group_id),
    ):
        part = single(page.groups, "group")
        if group is None or part.error_code:
            group = part
        else:
            group.members += part.members
    assert group is not None
    return group


def _member(m: GroupMember) -> MemberDescription:
    names = (m.member_id, m.instance_id, m.client_id, m.client_host)
    return MemberDescription(*names, m.member_epoch, tuple(m.topics), _partitions(m.owned), _partitions(m.target))


def group_offsets(call: Call, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the committed offsets of a group; see `Admin.list_group_offsets`."""

    def fetch(left_ms: int) -> dict[TopicPartition, OffsetAndMetadata | None]:
        policy = RetryPolicy.one_attempt(left_ms)
        return fetch_offsets(call.cluster, GroupMetadata(group_id), require_stable=False, policy=policy)[0]

    return {tp: offset for tp, offset in call.answer(fetch).items() if offset is not None}


def delete_group(call: Call, group_id: str) -> int:
    """Delete a group, and return the number of its offsets; 0 if the answer to the attempt that deleted it was lost."""
    repeating, request = RepeatPolicy((GroupIdNotFoundError,)), DeleteGroupRequest(group_id)
    while True:
        try:
            return call.cluster.coordinator_request(
                group_key(group_id), Api.DELETE_GROUP, request, DeleteGroupResponse, timeout_ms=call.left_ms
            ).offsets
        except SparklogError as e:
            if repeating.after(e, sent=True) is NextStep.LOOK:
                return 0
            if isinstance(e, GroupIdNotFoundError):
                raise _with_hint(call, e, group_id) from e
            call.attempts.pause(e)


def _with_hint(call: Call, error: SparklogError, group_id: str) -> SparklogError:
    """Return an error with a hint at the nearest name, if the error says that a group does not exist; any other error
    unchanged."""
    if not isinstance(error, GroupIdNotFoundError):
        return error
    near: list[str] = []
    with contextlib.suppress(SparklogError):
        near = difflib.get_close_matches(group_id, [g.group_id for g in list_groups(call)], n=1)
    return GroupIdNotFoundError(f"{error} (did you mean {near[0]!r}?)") if near else error


def _lags(
    call: Call, committed: dict[TopicPartition, OffsetAndMetadata], members: Sequence[MemberDescription]
) -> list[PartitionLag]:
    owners = {tp: member for member in members for tp in member.owned}
    partitions = sorted(set(committed) | set(owners))
    leaders = call.cluster.leaders(partitions, timeout_ms=call.left_ms)
    existing = [tp for tp in partitions if not isinstance(leaders[tp], UnknownTopicOrPartitionError)]
    start = find_offsets(call.cluster, dict.fromkeys(existing, "earliest"), call.attempts)
    end = find_offsets(call.cluster, dict.fromkeys(existing, "latest"), call.attempts, isolation=READ_COMMITTED)
    lags = []
    for tp in partitions:
        offset, lag = committed.get(tp), None
        if offset is not None and tp in end:
            lag = _lag(call, tp, max(offset.offset, start[tp].offset), end[tp].offset)
        lags.append(PartitionLag(tp, offset, end[tp].offset if tp in end else -1, lag, owners.get(tp)))
    return lags


def _lag(call: Call, tp: TopicPartition, position: int, end: int) -> int:
    """Return the number of offsets from `position` to `end`; 0 if none of them holds a readable record."""
    offset = position
    for _ in range(MARKER_FETCHES_MAX):
        if offset >= end:
            return 0
        try:
            result, payload = fetch_once(call.cluster, tp, offset, MARKERS_BYTES, READ_COMMITTED, call.attempts)
        except SparklogError as e:
            if e.retriable or isinstance(e, InvalidRequestError):
                raise
            break  # the records are deleted or damaged, so all offsets count
        if not result.length_bytes:
            break
        aborted = AbortedOffsets(result.aborted)
        for _, header in iterate_batches(payload):
            if header.next_offset <= offset:
                continue
            rows = header.record_count and not header.attributes & ATTRIBUTE_CONTROL and not aborted.covers(header)
            if rows and header.base_offset < end:
                return end - position
            offset = header.next_offset
    return max(0, end - position)


def _partitions(topics: Iterable[TopicPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(t.topic, p) for t in topics for p in t.partitions)
