"""Consumer groups from outside: what there is, who reads what, how far behind, and setting offsets of stopped groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sparklog.client.cluster import Cluster
from sparklog.client.group_offsets import Offsets, commit_offsets, fetch_offsets
from sparklog.client.isolation import Aborted
from sparklog.client.offsets import list_offsets
from sparklog.client.retry import RetryPolicy, request_until
from sparklog.errors import UnknownTopicOrPartitionError, error_from_code
from sparklog.format.batch import ATTRIBUTE_CONTROL, iterate_batches
from sparklog.protocol.group_messages import (
    DeleteGroupRequest,
    DeleteGroupResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    ListGroupsRequest,
    ListGroupsResponse,
    TopicPartitions,
)
from sparklog.protocol.messages import Api, FetchPartition, FetchRequest, FetchResponse
from sparklog.types import READ_COMMITTED, GroupMetadata, OffsetAndMetadata, TopicPartition

MARKERS_BYTES = 64 * 1024
MARKER_FETCHES_MAX = 100
"""So many answers without a record are looked through behind a committed offset; then the rest counts as lag."""


@dataclass(frozen=True)
class GroupListing:
    """`state`: Empty, Reconciling (partitions are on their way) or Stable; `kind`: "consumer", or "offsets" if it has never
    had members."""

    group_id: str
    state: str
    kind: str
    members: int


@dataclass(frozen=True)
class MemberDescription:
    """One member: `owned` it has (or has not let go yet), `target` it is to have."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    epoch: int
    topics: tuple[str, ...]
    owned: tuple[TopicPartition, ...]
    target: tuple[TopicPartition, ...]


@dataclass(frozen=True)
class PartitionLag:
    """How far a group is in one partition. `committed` None: nothing is; `end` is the last stable offset, -1 if the topic
    is gone; `lag` 0: all that can be read is read, None: nothing is committed. `member`: who has it."""

    partition: TopicPartition
    committed: OffsetAndMetadata | None
    end: int
    lag: int | None
    member: MemberDescription | None


@dataclass(frozen=True)
class GroupDescription:
    """A group. `epoch` counts its assignments, -1 if it has never had members."""

    group_id: str
    state: str
    epoch: int
    assignor: str
    members: tuple[MemberDescription, ...]
    partitions: tuple[PartitionLag, ...]


class GroupAdmin:
    """The part of Admin that is about groups."""

    def __init__(self, cluster: Cluster, timeout_ms: int) -> None:
        self._cluster = cluster
        self._timeout_ms = timeout_ms
        self._policy = RetryPolicy(timeout_ms=timeout_ms, request_timeout_ms=timeout_ms)

    def list_groups(self, states: Iterable[str] = ()) -> list[GroupListing]:
        request = ListGroupsRequest([*states])
        found = request_until(self._cluster, Api.LIST_GROUPS, request, ListGroupsResponse, self._policy).groups
        return [GroupListing(g.group_id, g.state, g.kind, g.members) for g in found]

    def describe(self, group_id: str) -> GroupDescription:
        request = DescribeGroupsRequest([group_id])
        answer = request_until(self._cluster, Api.DESCRIBE_GROUPS, request, DescribeGroupsResponse, self._policy)
        (group,) = answer.groups
        if group.error_code:
            raise error_from_code(group.error_code, group.message)
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
        lags = tuple(self._lags(self.offsets(group_id), members))
        return GroupDescription(group_id, group.state, group.group_epoch, group.assignor, members, lags)

    def offsets(self, group_id: str) -> dict[TopicPartition, OffsetAndMetadata]:
        who = GroupMetadata(group_id)
        found, _ = fetch_offsets(self._cluster, who, require_stable=False, policy=self._policy)
        return {tp: offset for tp, offset in found.items() if offset is not None}

    def alter_offsets(self, group_id: str, offsets: Offsets) -> None:
        commit_offsets(self._cluster, GroupMetadata(group_id), offsets, policy=self._policy)

    def delete(self, group_id: str) -> int:
        request = DeleteGroupRequest(group_id)
        return request_until(self._cluster, Api.DELETE_GROUP, request, DeleteGroupResponse, self._policy).offsets

    def _lags(
        self, committed: dict[TopicPartition, OffsetAndMetadata], members: Sequence[MemberDescription]
    ) -> list[PartitionLag]:
        owners = {tp: member for member in members for tp in member.owned}
        partitions = sorted(set(committed) | set(owners))
        there = [tp for tp in partitions if self._exists(tp)]
        start = list_offsets(self._cluster, dict.fromkeys(there, "earliest"), timeout_ms=self._timeout_ms)
        end = list_offsets(
            self._cluster, dict.fromkeys(there, "latest"), isolation=READ_COMMITTED, timeout_ms=self._timeout_ms
        )
        found = []
        for tp in partitions:
            offset, lag = committed.get(tp), None
            if offset is not None and tp in end:
                lag = self._lag(tp, max(offset.offset, start[tp].offset), end[tp].offset)
            found.append(PartitionLag(tp, offset, end[tp].offset if tp in end else -1, lag, owners.get(tp)))
        return found

    def _exists(self, tp: TopicPartition) -> bool:
        try:
            return tp.partition < self._cluster.topic(tp.topic, timeout_ms=self._timeout_ms).partitions
        except UnknownTopicOrPartitionError:
            return False

    def _lag(self, tp: TopicPartition, position: int, end: int) -> int:
        """Offsets between `position` and `end`; 0 if none of them holds a record that can be read."""
        offset = position
        leader = self._cluster.leader(tp, timeout_ms=self._timeout_ms) if offset < end else None
        for _ in range(MARKER_FETCHES_MAX):
            if offset >= end:
                return 0
            wanted = FetchPartition(*tp, offset, MARKERS_BYTES)
            request = FetchRequest(0, 0, MARKERS_BYTES, READ_COMMITTED, [wanted])
            with self._cluster.connection(leader, timeout_ms=self._timeout_ms) as connection:
                response, payload = connection.request(Api.FETCH, request, FetchResponse, timeout_ms=self._timeout_ms)
            (result,) = response.results
            if result.error_code or not result.length_bytes:
                break  # deleted or damaged meanwhile: the number alone can be told
            aborted = Aborted(result.aborted)
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
