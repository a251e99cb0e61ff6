"""Commits on their thread: retried with the newest epoch, only for held partitions, in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from sparklog.client.group.committer import Committer
from sparklog.errors import (
    BrokerNotAvailableError,
    ClosedError,
    CommitFailedError,
    FencedMemberEpochError,
    RequestTimedOutError,
    SparklogError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnknownTopicOrPartitionError,
)
from sparklog.protocol.group_messages import OffsetCommitRequest, OffsetCommitResponse, OffsetResult
from sparklog.types import GroupMetadata, TopicPartition

TP, OTHER = TopicPartition("t", 0), TopicPartition("t", 1)
Reply = Callable[[OffsetCommitRequest], "SparklogError | int"]


class FakeCluster:
    """Answers commits as `replies` say, one after the other; afterwards all succeed. 0 or a partition's error code."""

    def __init__(self) -> None:
        self.replies: list[SparklogError | int | Callable[[], SparklogError | int]] = []
        self.requests: list[OffsetCommitRequest] = []

    def coordinator_request(
        self, group_id: str, api: Any, message: OffsetCommitRequest, response: Any, **_: Any
    ) -> OffsetCommitResponse:
        self.requests.append(message)
        reply = self.replies.pop(0) if self.replies else 0
        reply = reply() if callable(reply) else reply
        if isinstance(reply, SparklogError):
            raise reply
        return OffsetCommitResponse([OffsetResult(o.topic, o.partition, reply) for o in message.offsets])


class FakeMember:
    """A member of group g."""

    def __init__(self) -> None:
        self.epoch = 1
        self.held = frozenset({TP, OTHER})
        self.hurried = 0

    @property
    def metadata(self) -> GroupMetadata:
        return GroupMetadata("g", "m", self.epoch)

    def hurry(self) -> None:
        self.hurried += 1


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def member() -> FakeMember:
    return FakeMember()


@pytest.fixture
def committer(cluster: FakeCluster, member: FakeMember) -> Iterator[Committer]:
    made = Committer(cluster, "g", lambda: member, request_timeout_ms=60_000)  # type: ignore[arg-type]
    yield made
    made.close(30)


def test_a_commit_is_numbered_and_names_the_member(committer: Committer, cluster: FakeCluster) -> None:
    committer.submit({TP: 5}, 60_000).result(30)
    committer.submit({TP: 6}, 60_000).result(30)
    assert [(r.member_id, r.member_epoch, r.sequence, r.offsets[0].offset) for r in cluster.requests] == [
        ("m", 1, 1, 5),
        ("m", 1, 2, 6),
    ]


def test_an_old_epoch_is_replaced(committer: Committer, cluster: FakeCluster, member: FakeMember) -> None:
    def newer() -> SparklogError:
        member.epoch = 2
        return StaleMemberEpochError("")

    cluster.replies = [newer]
    committer.submit({TP: 5}, 60_000).result(30)
    assert [(r.member_epoch, r.sequence) for r in cluster.requests] == [(1, 1), (2, 2)]
    assert member.hurried == 1


def test_offsets_of_revoked_partitions_are_not_committed(
    committer: Committer, cluster: FakeCluster, member: FakeMember
) -> None:
    def moved() -> SparklogError:
        member.epoch, member.held = 2, frozenset({OTHER})
        return StaleMemberEpochError("")

    cluster.replies = [moved]
    with pytest.raises(CommitFailedError, match="t-0"):
        committer.submit({TP: 5}, 60_000).result(30)
    assert len(cluster.requests) == 1, "not with the new epoch"
    committer.submit({OTHER: 1}, 60_000).result(30)


def test_a_member_that_joins_again_commits_no_offset(
    committer: Committer, cluster: FakeCluster, member: FakeMember
) -> None:
    member.epoch = -1
    with pytest.raises(CommitFailedError):
        committer.submit({TP: 5}, 60_000).result(30)
    assert cluster.requests == []


@pytest.mark.parametrize("error", [UnknownMemberIdError(""), FencedMemberEpochError(""), FencedMemberEpochError.code])
def test_an_expelled_member_gets_an_error(
    committer: Committer, cluster: FakeCluster, error: SparklogError | int
) -> None:
    cluster.replies = [error]
    with pytest.raises(CommitFailedError):
        committer.submit({TP: 5}, 60_000).result(30)


def test_retriable_commits_are_retried(committer: Committer, cluster: FakeCluster) -> None:
    cluster.replies = [BrokerNotAvailableError(""), RequestTimedOutError("")]
    first, second = committer.submit({TP: 5}, 60_000), committer.submit({TP: 6}, 60_000)
    first.result(30)
    second.result(30)
    assert [r.offsets[0].offset for r in cluster.requests] == [5, 5, 5, 6], "in order"
    assert [r.sequence for r in cluster.requests] == [1, 2, 3, 4], "another attempt is another commit"


def test_not_for_ever(committer: Committer, cluster: FakeCluster) -> None:
    cluster.replies = [BrokerNotAvailableError("away")] * 100
    with pytest.raises(RequestTimedOutError, match="away"):
        committer.submit({TP: 5}, 0).result(30)


def test_another_error_is_the_commits(committer: Committer, cluster: FakeCluster) -> None:
    cluster.replies = [UnknownTopicOrPartitionError.code]
    with pytest.raises(UnknownTopicOrPartitionError):
        committer.submit({TP: 5}, 60_000).result(30)
    assert committer.idle


def test_close_sends_queued_commits(committer: Committer, cluster: FakeCluster) -> None:
    futures = [committer.submit({TP: i}, 60_000) for i in range(20)]
    committer.close(5)
    for future in futures:
        future.result(0)
    with pytest.raises(ClosedError):
        committer.submit({TP: 5}, 60_000)
