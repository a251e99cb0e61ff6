"""Administration of consumer groups: list and describe them, set the offsets of stopped groups, delete them."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sparklog.client.admin.repeating import NextStep, RepeatPolicy
from sparklog.client.group.group_offsets import Offsets, commit_offsets, fetch_offsets
from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.answers import single
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.coordinator_key import group_key
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.paging import pages
from sparklog.client.net.retry import Retries, RetryPolicy, of_all_brokers, request_until
from sparklog.client.reading.isolation import AbortedOffsets
from sparklog.client.reading.offset_lookup import list_offsets
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


class GroupAdmin:
    """The part of Admin for groups."""

    def __init__(self, cluster: Cluster, timeout_ms: int) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._policy = RetryPolicy.within(timeout_ms)

    def list_groups(self, states: Iterable[str] = ()) -> list[GroupListing]:
        wanted = [*states]

        def listed(endpoint: Endpoint | None, timeout_ms: int) -> Iterator[GroupListing]:
            def ask(before: ListGroupsResponse | None) -> ListGroupsResponse:
                request = ListGroupsRequest(wanted, paged=True, after=_last_id(before) or "")
                return self._cluster.request(
                    Api.LIST_GROUPS, request, ListGroupsResponse, endpoint=endpoint, timeout_ms=timeout_ms
                )

            found = (g for page in pages(ask, _last_id) for g in page.groups)
            return (GroupListing(g.group_id, g.state, g.kind, g.members) for g in found)

        everywhere = of_all_brokers(self._cluster, listed, self._timeout_ms)
        return sorted({g.group_id: g for g in everywhere}.values(), key=lambda g: g.group_id)

    def describe(self, group_id: str) -> GroupDescription:
        deadline = Deadline(self._timeout_ms)
        group = self._details(group_id)
        if group.error_code:
            error = error_from_code(group.error_code, group.message)
            raise self._with_hint(error, group_id)
        members = tuple(
            MemberDescription(
                m.member_id,
                m.instance_id,
                m.client_id,
                m.client_host,
                m.member_epoch,
                tuple(m.topics),
                _partitions(m.owned),
                _partitions(m.target),
            )
            for m in group.members
        )
        lags = tuple(self._lags(self._offsets(group_id, deadline.left_ms()), members, deadline))
        return GroupDescription(group_id, group.state, group.group_epoch, group.assignor, members, lags)

    def _details(self, group_id: str) -> GroupDetails:
        """Return the group with all its members."""

        def ask(before: DescribeGroupsResponse | None) -> DescribeGroupsResponse:
            first = 0 if before is None else before.members_from
            request = DescribeGroupsRequest([group_id], paged=True, members_from=first)
            return request_until(
                self._cluster,
                Api.DESCRIBE_GROUPS,
                request,
                DescribeGroupsResponse,
                self._policy,
                coordinator=group_key(group_id),
            )

        group: GroupDetails | None = None
        for page in pages(ask, lambda page: page.members_from if page.members_from > 0 else None):
            part = single(page.groups, "group")
            if group is None or part.error_code:
                group = part
            else:
                group.members += part.members
        assert group is not None
        return group

    def offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        return self._offsets(group_id, self._timeout_ms)

    def _offsets(self, group_id: str, timeout_ms: int) -> dict[TopicPartition, OffsetAndMetadata]:
        policy = RetryPolicy.within(timeout_ms)
        found, _ = fetch_offsets(self._cluster, GroupMetadata(group_id), require_stable=False, policy=policy)
        return {tp: offset for tp, offset in found.items() if offset is not None}

    def alter_offsets(self, group_id: str, offsets: Offsets) -> None:
        commit_offsets(self._cluster, GroupMetadata(group_id), offsets, policy=self._policy)

    def delete(self, group_id: str) -> int:
        """Delete a group, and return the number of its offsets; 0 if the answer to the attempt that deleted it was
        lost."""
        attempts, repeating = Retries(self._policy), RepeatPolicy((GroupIdNotFoundError,))
        request, key = DeleteGroupRequest(group_id), group_key(group_id)
        while True:
            try:
                return self._cluster.coordinator_request(
                    key, Api.DELETE_GROUP, request, DeleteGroupResponse, timeout_ms=attempts.attempt_ms
                ).offsets
            except SparklogError as e:
                if repeating.after(e, sent=True) is NextStep.LOOK:
                    return 0
                if isinstance(e, GroupIdNotFoundError):
                    raise self._with_hint(e, group_id) from e
                attempts.pause(e)

    def _with_hint(self, error: SparklogError, group_id: str) -> SparklogError:
        """Return an error with a hint at the nearest name, if the error says that a group does not exist; any other
        error unchanged."""
        if not isinstance(error, GroupIdNotFoundError):
            return error
        near: list[str] = []
        with contextlib.suppress(SparklogError):
            near = difflib.get_close_matches(group_id, [g.group_id for g in self.list_groups()], n=1)
        return GroupIdNotFoundError(f"{error} (did you mean {near[0]!r}?)") if near else error

    def _lags(
        self,
        committed: dict[TopicPartition, OffsetAndMetadata],
        members: Sequence[MemberDescription],
        deadline: Deadline,
    ) -> list[PartitionLag]:
        owners = {tp: member for member in members for tp in member.owned}
        partitions = sorted(set(committed) | set(owners))
        left_ms = deadline.left_ms
        found_leaders = self._cluster.leaders(partitions, timeout_ms=left_ms())
        there = [tp for tp in partitions if not isinstance(found_leaders[tp], UnknownTopicOrPartitionError)]
        start = list_offsets(self._cluster, dict.fromkeys(there, "earliest"), timeout_ms=left_ms())
        latest = dict.fromkeys(there, "latest")
        end = list_offsets(self._cluster, latest, isolation=READ_COMMITTED, timeout_ms=left_ms())
        found = []
        for tp in partitions:
            offset, lag = committed.get(tp), None
            if offset is not None and tp in end:
                lag = self._lag(tp, max(offset.offset, start[tp].offset), end[tp].offset, deadline)
            found.append(PartitionLag(tp, offset, end[tp].offset if tp in end else -1, lag, owners.get(tp)))
        return found

    def _lag(self, tp: TopicPartition, position: int, end: int, deadline: Deadline) -> int:
        """Return the number of offsets from `position` to `end`; 0 if none of them holds a readable record."""
        offset = position
        for _ in range(MARKER_FETCHES_MAX):
            if offset >= end:
                return 0
            attempts = Retries(RetryPolicy.within(deadline.left_ms()))
            try:
                result, payload = fetch_once(self._cluster, tp, offset, MARKERS_BYTES, READ_COMMITTED, attempts)
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


def _last_id(page: ListGroupsResponse | None) -> str | None:
    return page.groups[-1].group_id if page is not None and page.groups else None


def _partitions(topics: Iterable[TopicPartitions]) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(t.topic, p) for t in topics for p in t.partitions)
