"""One group, step by step: answers and refusals."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from sparklog.errors import (
    CoordinatorLoadingError,
    FencedInstanceIdError,
    FencedLeaderEpochError,
    FencedMemberEpochError,
    GroupIdNotFoundError,
    GroupMaxSizeReachedError,
    InvalidGroupIdError,
    InvalidRequestError,
    LogCorruptError,
    NonEmptyGroupError,
    SparklogError,
    StaleMemberEpochError,
    UnknownMemberIdError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
    UnreleasedInstanceIdError,
    UnstableOffsetCommitError,
    UnsupportedAssignorError,
)
from sparklog.protocol import group_messages as m
from sparklog.replication import group_records as records
from sparklog.replication.group_membership import GroupConfig, Safeguards
from sparklog.replication.groups import REGEX_REFRESH_MS, GroupCoordinator, Matching, topic_partitions
from sparklog.types import TopicPartition
from tests.support.cases import for_each

TOPICS = {"t": ("id-t", 4), "u": ("id-u", 2)}
SESSION_MS = 900


class Cluster:
    """A coordinator and its clock."""

    def __init__(self, safeguards: Safeguards = Safeguards(), **config: Any) -> None:  # noqa: B008
        self.coordinator = GroupCoordinator(GroupConfig(session_timeout_ms=SESSION_MS, **config), TOPICS, safeguards)
        self.now_ms = 0
        self.log: list[list[records.Record]] = []

    def beat(self, member: str, epoch: int, owned: str | None = None, **more: Any) -> tuple[int, str | None]:
        """The epoch and the partitions of `t` as digits (None: as before). `owned` likewise; joining has nothing."""
        if epoch == 0:
            more = {"topics": ["t"]} | more
            owned = owned or ""
        given = None if owned is None else topic_partitions(TopicPartition("t", int(p)) for p in owned)
        request = m.GroupHeartbeatRequest("g", member, epoch, owned=given, **more)
        answer = self.coordinator.heartbeat(request, "h", self.now_ms, self.now_ms).answer
        assigned = answer.assigned
        return answer.member_epoch, None if assigned is None else "".join(
            str(p) for t in assigned for p in t.partitions
        )

    def state(self) -> str:
        return self.coordinator.describe("g").state

    def commit(
        self, member: str, epoch: int, partition: int = 0, topic: str = "t", producer_id: int = -1, offset: int = 5
    ) -> int:
        offsets = [m.CommittedOffset(topic, partition, offset)]
        step = self.coordinator.commit("g", offsets, member, epoch, self.now_ms, producer_id=producer_id)
        return step.answer[0].error_code


def test_a_partition_is_assigned_only_after_its_revocation() -> None:
    c = Cluster()
    assert c.beat("a", 0) == (1, "0123")
    assert c.beat("b", 0) == (2, ""), "a has everything still"
    assert c.beat("a", 1) == (1, "01"), "it has to let two go, in its old epoch"
    assert c.state() == "Reconciling"
    details = {g.member_id: g for g in c.coordinator.describe("g").members}
    assert (details["a"].owned[0].partitions, details["a"].target[0].partitions) == ([0, 1, 2, 3], [0, 1])
    assert c.beat("b", 2) == (2, None)
    assert c.beat("a", 1) == (1, None), "nothing is said to have been let go"
    assert c.beat("a", 1, "013") == (1, "01"), "not all of it"
    assert c.beat("a", 1, "01") == (2, "01")
    assert c.beat("b", 2) == (2, "23")
    assert c.state() == "Stable"


def test_a_member_that_waits_asks_more_often() -> None:
    c = Cluster(heartbeat_interval_ms=200)
    c.beat("a", 0)
    joins = m.GroupHeartbeatRequest("g", "b", 0, topics=["t"], owned=[])
    waits = c.coordinator.heartbeat(joins, "h", 0, 0).answer
    assert waits.heartbeat_interval_ms == 20
    c.beat("a", 1)
    c.beat("a", 1, "01")
    settled = c.coordinator.heartbeat(m.GroupHeartbeatRequest("g", "b", 2), "h", 0, 0).answer
    assert settled.heartbeat_interval_ms == 200


def test_a_lost_answer_is_repeated() -> None:
    c = Cluster()
    c.beat("a", 0)
    c.beat("b", 0)
    c.beat("a", 1)
    assert c.beat("a", 1, "01") == (2, "01")
    assert c.beat("a", 1, "01") == (2, "01"), "it has not heard of epoch 2"
    with pytest.raises(FencedMemberEpochError):
        c.beat("a", 1, "0123")
    with pytest.raises(FencedMemberEpochError):
        c.beat("a", 1)
    with pytest.raises(FencedMemberEpochError):
        c.beat("a", 3)
    with pytest.raises(UnknownMemberIdError):
        c.beat("x", 1)


def test_an_overtaken_heartbeat_is_refused() -> None:
    c = Cluster()
    c.beat("a", 0, sequence=1)
    c.beat("a", 1, sequence=3)
    for epoch, sequence in ((1, 2), (1, 3), (0, 1), (-1, 2)):
        with pytest.raises(StaleMemberEpochError):
            c.beat("a", epoch, sequence=sequence)
    assert c.beat("a", 1, sequence=4) == (1, None)


def test_a_member_that_does_not_revoke_in_time_is_expelled() -> None:
    c = Cluster()
    c.beat("a", 0, rebalance_timeout_ms=2_000)
    c.beat("b", 0)
    c.beat("a", 1)
    for c.now_ms in (800, 1_600, 1_999):
        c.coordinator.tick(c.now_ms, 0)
        c.beat("b", 2)
        c.beat("a", 1)
    c.now_ms = 2_000
    c.coordinator.tick(c.now_ms, 0)
    c.beat("b", 2)
    with pytest.raises(UnknownMemberIdError):
        c.beat("a", 1)
    assert c.beat("b", 3, "") == (3, "0123")


def test_a_member_that_leaves_makes_room_at_once() -> None:
    c = Cluster()
    c.beat("a", 0)
    c.beat("b", 0)
    c.beat("a", -1)
    assert c.beat("b", 2) == (3, "0123")
    c.beat("b", -1)
    assert c.state() == "Empty"
    with pytest.raises(UnknownMemberIdError):
        c.beat("b", -1)


def test_a_broker_that_stood_still_removes_no_member() -> None:
    c = Cluster()
    c.beat("a", 0)
    c.now_ms += 10 * SESSION_MS
    c.coordinator.prolong(10 * SESSION_MS)
    assert c.coordinator.tick(c.now_ms, 0) == []
    c.now_ms += SESSION_MS
    assert c.coordinator.tick(c.now_ms, 0) != []


def test_static_members() -> None:
    c = Cluster()
    assert c.beat("a", 0, instance_id="one") == (1, "0123")
    assert c.beat("b", 0, instance_id="two") == (2, "")
    c.beat("a", 1)
    assert c.beat("a", 1, "01") == (2, "01")
    assert c.beat("b", 2) == (2, "23")
    with pytest.raises(UnreleasedInstanceIdError):
        c.beat("c", 0, instance_id="one")
    c.beat("a", -2)
    assert c.beat("b", 2) == (2, None), "its place is kept"
    assert c.beat("c", 0, instance_id="one") == (2, "01"), "the same place, without a new epoch"
    with pytest.raises(FencedInstanceIdError):
        c.beat("a", 2, instance_id="one")
    c.beat("c", -2)
    c.now_ms += SESSION_MS - 1
    c.beat("b", 2)
    c.coordinator.tick(c.now_ms + 1, 0)
    assert c.beat("b", 2) == (3, "0123"), "not for ever"


def test_an_absent_static_member_releases_partitions_that_it_no_longer_owns() -> None:
    c = Cluster()
    c.beat("a", 0, instance_id="one")
    c.beat("a", -2)
    assert c.beat("b", 0) == (2, "23"), "nobody has to be waited for"


def test_a_member_that_restarts_has_no_partitions() -> None:
    c = Cluster()
    c.beat("a", 0)
    assert c.beat("a", 0) == (1, "0123"), "its first answer was lost"


def test_subscriptions_change() -> None:
    c = Cluster()
    c.beat("a", 0)
    assert c.beat("a", 1, topics=["t"]) == (1, None), "the same"
    assert c.beat("a", 1, topics=[]) == (1, ""), "everything has to go"
    assert c.beat("a", 1, "") == (2, "")
    assert c.beat("a", 2, topics=["t", "missing"]) == (3, "0123")


def test_assignors_and_limits() -> None:
    c = Cluster(group_size_max=2)
    with pytest.raises(UnsupportedAssignorError):
        c.beat("a", 0, assignor="sticky")
    with pytest.raises(InvalidRequestError):
        c.coordinator.heartbeat(m.GroupHeartbeatRequest("g", "a", 0), "h", 0, 0)
    with pytest.raises(InvalidGroupIdError):
        c.coordinator.heartbeat(m.GroupHeartbeatRequest("", "a", 0, topics=[]), "h", 0, 0)
    assert c.coordinator.list_groups() == [], "what is refused leaves nothing behind"
    c.beat("a", 0, assignor="range")
    c.beat("b", 0)
    assert c.coordinator.describe("g").assignor == "range"
    with pytest.raises(GroupMaxSizeReachedError):
        c.beat("c", 0)


def test_commits() -> None:
    c = Cluster()
    c.beat("a", 0)
    c.beat("b", 0)
    c.beat("a", 1)
    assert c.commit("a", 1, 3) == 0, "it may commit what it is about to let go"
    c.beat("a", 1, "01")
    assert c.commit("a", 2, 3) == FencedMemberEpochError.code, "not afterwards"
    assert c.commit("a", 2, 0) == 0
    assert c.commit("a", 2, 9) == UnknownTopicOrPartitionError.code
    assert c.commit("a", 2, 0, "u") == 0, "a topic that the group has not subscribed to"
    refused: list[tuple[str, int, type[SparklogError]]] = [
        ("a", 1, StaleMemberEpochError),
        ("x", 2, UnknownMemberIdError),
        ("x", -1, UnknownMemberIdError),
    ]
    for member, epoch, error in refused:
        with pytest.raises(error):
            c.commit(member, epoch)


def test_offsets_after_records_of_an_earlier_topic_are_refused() -> None:
    coordinator = GroupCoordinator(GroupConfig(), {"t": ("id", 3), "u": ("id-u", 1)})
    coordinator.set_topics({"t": ("id-2", 3), "u": ("id-u", 1)}, 0, {"t": 5})

    def commit(topic: str, epoch: int, producer_id: int = -1, topic_id: str = "") -> int:
        offsets = [m.CommittedOffset(topic, 0, 100, epoch, topic_id=topic_id)]
        (result,) = coordinator.commit("g", offsets, "", -1, 0, producer_id=producer_id).answer
        return result.error_code

    for producer_id in (-1, 7):
        assert commit("t", 4, producer_id) == FencedLeaderEpochError.code
        assert commit("t", 5, producer_id) == 0
        assert commit("t", -1, producer_id) == 0, "a client without epochs cannot be judged"
        assert commit("t", -1, producer_id, "id") == UnknownTopicIdError.code
        assert commit("t", -1, producer_id, "id-2") == 0
        assert commit("u", 0, producer_id) == 0


def test_offsets_of_topics_that_have_subscribers_are_not_deleted() -> None:
    c = Cluster()
    places = [TopicPartition("t", 0), TopicPartition("u", 0), TopicPartition("u", 0), TopicPartition("v", 3)]
    with pytest.raises(GroupIdNotFoundError):
        c.coordinator.delete_offsets("g", places)
    c.beat("a", 0)
    for topic in ("t", "u"):
        assert c.commit("a", 1, topic=topic) == 0
    assert c.coordinator.delete_offsets("g", places).answer == (1, ["t"])
    assert [c.coordinator.offsets.get("g", place) is not None for place in places[:2]] == [True, False]
    c.commit("a", 1, topic="u", producer_id=7)
    with pytest.raises(UnstableOffsetCommitError):
        c.coordinator.delete_offsets("g", places)


def test_offsets_of_transactions() -> None:
    c = Cluster()
    assert c.commit("", -1, producer_id=7) == 0
    ask = m.OffsetFetchRequest("g", [m.TopicPartitions("t", [0])], True)
    assert c.coordinator.fetch_offsets(ask).offsets[0].error_code == UnstableOffsetCommitError.code
    unstable = m.OffsetFetchRequest("g", [m.TopicPartitions("t", [0])])
    assert c.coordinator.fetch_offsets(unstable).offsets[0].offset == -1
    with pytest.raises(UnstableOffsetCommitError):
        c.coordinator.delete("g")
    c.coordinator.end_transaction(7, committed=True)
    assert c.coordinator.fetch_offsets(ask).offsets[0].offset == 5
    c.commit("", -1, 1, producer_id=7)
    c.coordinator.end_transaction(7, committed=False)
    assert c.coordinator.offsets.get("g", TopicPartition("t", 1)) is None
    assert c.coordinator.delete("g").answer == 1
    with pytest.raises(GroupIdNotFoundError):
        c.coordinator.delete("g")


def test_unused_offsets_expire() -> None:
    c = Cluster(offsets_retention_ms=1_000)
    c.beat("a", 0)
    c.commit("a", 1)
    c.commit("a", 1, 0, "u")
    c.now_ms = 5_000
    assert len(c.coordinator.expire_offsets(c.now_ms)) == 1, "u, which nobody subscribes to"
    c.beat("a", -1)
    assert c.coordinator.expire_offsets(c.now_ms + 999) == [], "counted from when it became empty"
    assert len(c.coordinator.expire_offsets(c.now_ms + 1_001)) == 2, "the offset and the group"
    assert c.coordinator.list_groups() == []


def test_an_offset_that_a_transaction_is_about_to_replace_does_not_expire() -> None:
    c = Cluster(offsets_retention_ms=1_000)
    c.commit("", -1)
    c.commit("", -1, producer_id=7)
    c.now_ms = 5_000
    assert c.coordinator.expire_offsets(c.now_ms) == []
    c.coordinator.end_transaction(7, committed=True)
    assert c.coordinator.offsets.get("g", TopicPartition("t", 0)) is not None


@for_each("key", [b"", b"\xc1", records.group_key("g")[:-1], b"\x93\x01\x01\xa1g", b"\x92\x00\x00"])
def test_a_key_that_is_none(key: bytes) -> None:
    with pytest.raises(LogCorruptError):
        records.decode_key(key)


@for_each("kind", range(5))
def test_a_value_that_is_none(kind: int) -> None:
    for value in (b"", b"\x91\x07", b"\x92\x00\x01", b"\xc0"):
        with pytest.raises(LogCorruptError):
            records.decode_value(kind, value)


# --- how much is kept ---


def heartbeat_of(group_id: str, member_id: str, epoch: int = 0, **more: Any) -> m.GroupHeartbeatRequest:
    return m.GroupHeartbeatRequest(group_id, member_id, epoch, topics=["t"] if epoch == 0 else None, **more)


def test_a_refused_member_leaves_no_group() -> None:
    coordinator = GroupCoordinator(GroupConfig(), {"t": ("id", 3)})
    for request in (
        heartbeat_of("g", "m", 7),
        heartbeat_of("g", "m", -1),
        heartbeat_of("g", "m" * 2_000),
        heartbeat_of("g", "m", client_id="c" * 2_000),
        m.GroupHeartbeatRequest("g", "m", 0),
    ):
        with pytest.raises(SparklogError):
            coordinator.heartbeat(request, "host", 0, 0)
    coordinator.fetch_offsets(m.OffsetFetchRequest("g"))
    with pytest.raises(UnknownMemberIdError):
        coordinator.commit("g", [m.CommittedOffset("t", 0, 5)], "m", 3, 0)
    refused = coordinator.commit("g", [m.CommittedOffset("missing", 0, 5)], "", -1, 0)
    assert (refused.answer[0].error_code, refused.records) == (UnknownTopicOrPartitionError.code, [])
    assert coordinator.list_groups() == []


def test_groups_are_limited_and_unused_ones_are_removed() -> None:
    coordinator = GroupCoordinator(GroupConfig(groups_max=2), {"t": ("id", 3)})
    for group_id in ("a", "b"):
        coordinator.heartbeat(heartbeat_of(group_id, "m"), "host", 0, 0)
        coordinator.commit(group_id + " offsets", [m.CommittedOffset("t", 0, 5)], "", -1, 0)
    with pytest.raises(GroupMaxSizeReachedError, match=r"max\.groups\.per\.partition is 2"):
        coordinator.heartbeat(heartbeat_of("c", "m"), "host", 0, 0)
    with pytest.raises(GroupMaxSizeReachedError, match=r"max\.groups\.per\.partition is 2"):
        coordinator.commit("c", [m.CommittedOffset("t", 0, 5)], "", -1, 0)
    coordinator.heartbeat(heartbeat_of("a", "n"), "host", 0, 0)
    coordinator.commit("a offsets", [m.CommittedOffset("t", 1, 5)], "", -1, 0)
    coordinator.heartbeat(heartbeat_of("b", "m", -1), "host", 0, 0)
    assert len(coordinator.expire_offsets(0)) == 1, "b has neither members nor offsets"
    coordinator.heartbeat(heartbeat_of("c", "m"), "host", 0, 0)
    assert {g.group_id for g in coordinator.list_groups()} == {"a", "c", "a offsets", "b offsets"}


def test_offsets_are_limited() -> None:
    coordinator = GroupCoordinator(GroupConfig(offsets_max=3), {"t": ("id", 9)})

    def commit(group_id: str, *partitions: int, producer_id: int = -1) -> list[int]:
        offsets = [m.CommittedOffset("t", p, 5) for p in partitions]
        return [r.error_code for r in coordinator.commit(group_id, offsets, "", -1, 0, producer_id=producer_id).answer]

    full = GroupMaxSizeReachedError.code
    assert commit("a", 0, 1) == [0, 0]
    assert commit("b", 0, 1, producer_id=7) == [0, full]
    assert commit("a", 0, 1, 2) == [0, 0, full]
    coordinator.end_transaction(7, committed=False)
    assert commit("b", 0, producer_id=8) == [0]
    coordinator.end_transaction(8, committed=True)
    assert commit("a", 2) == [full]
    coordinator.delete("a")
    assert commit("a", 2, 3) == [0, 0]
    assert coordinator.offsets.total == 3
    assert coordinator.offsets.counts == {"b": 1, "a": 2}


def _committed_after_a_removed_member(safeguards: Safeguards) -> int:
    """The group's offset after a member whose session has ended commits, behind the member that has taken over."""
    c = Cluster(safeguards)
    assert c.beat("a", 0) == (1, "0123")
    c.now_ms += SESSION_MS
    c.coordinator.tick(c.now_ms, c.now_ms)
    epoch, assigned = c.beat("b", 0)
    assert assigned == "0123"
    assert c.commit("b", epoch, offset=10) == 0
    with contextlib.suppress(SparklogError):
        c.commit("a", 1, offset=5)
    (found,) = c.coordinator.fetch_offsets(m.OffsetFetchRequest("g")).offsets
    return int(found.offset)


def test_a_removed_member_takes_no_offset_back() -> None:
    assert _committed_after_a_removed_member(Safeguards()) == 10
    assert _committed_after_a_removed_member(Safeguards(member_epoch=False)) == 5


def regex_beat(c: Cluster, epoch: int, regex: str | None, *names: str) -> tuple[int, list[str]]:
    """The epoch and the assigned topics of a member whose expression matches `names` now."""
    request = m.GroupHeartbeatRequest("g", "a", epoch, owned=[] if epoch == 0 else None, topic_regex=regex)
    matching = Matching(list(names), c.coordinator.topics_version) if regex != "" else None
    if regex is None and not c.coordinator.regex_to_resolve(request, c.now_ms):
        matching = None
    answer, written = c.coordinator.heartbeat(request, "h", c.now_ms, c.now_ms, matching)
    c.log.append(written)
    return answer.member_epoch, [t.topic for t in answer.assigned or ()]


def test_a_regular_expression_subscribes_to_the_topics_that_match_it() -> None:
    c = Cluster()
    assert regex_beat(c, 0, "t|v", "t") == (1, ["t"])
    assert regex_beat(c, 1, None) == (1, []), "the topics are as before: nothing is resolved"
    c.log.append(c.coordinator.set_topics(TOPICS | {"v": ("id-v", 1)}, 0))
    assert regex_beat(c, 1, None, "t", "v") == (2, ["t", "v"])
    again = GroupCoordinator(GroupConfig(), TOPICS | {"v": ("id-v", 1)})
    for key, value in [r for step in c.log for r in step]:
        again.replay(key, value)
    again.loaded(0, 0)
    (member,) = again.describe("g").members
    assert (member.topic_regex, member.topics) == ("t|v", ["t", "v"])
    c.now_ms += REGEX_REFRESH_MS
    assert regex_beat(c, 2, None, "t")[0] == 2, "permissions may have changed: v has to be released"
    assert regex_beat(c, 2, "", "t")[0] == 2
    assert c.coordinator.describe("g").members[0].topics == []


def test_an_answer_names_the_ids_of_the_assigned_topics() -> None:
    c = Cluster()
    request = m.GroupHeartbeatRequest("g", "a", 0, topics=["u", "t"], owned=[])
    answer = c.coordinator.heartbeat(request, "h", 0, 0).answer
    assert answer.topic_ids == ["id-t", "id-u"]


def test_a_reserved_group_is_joined_after_its_classic_members_have_moved() -> None:
    c = Cluster()

    def reserve(ms: int) -> None:
        c.beat("gateway", -1, reserve_ms=ms)

    with pytest.raises(UnknownMemberIdError):
        reserve(1_000)
    with pytest.raises(CoordinatorLoadingError):
        c.beat("a", 0)
    with pytest.raises(NonEmptyGroupError):
        reserve(1_000)
    assert c.beat("classic", 0, reserve_ms=0) == (1, "0123"), "the gateway lets its members join, and reserves no more"
    assert c.beat("a", 0) == (2, "")
    with pytest.raises(NonEmptyGroupError):
        reserve(1_000)


def test_a_reservation_ends_with_its_time_or_by_the_gateway() -> None:
    c = Cluster()
    for end in (lambda: c.coordinator.tick(c.now_ms, c.now_ms), lambda: None):
        with pytest.raises(UnknownMemberIdError):
            c.beat("gateway", -1, reserve_ms=1_000)
        c.coordinator.prolong(500)
        c.now_ms += 1_499
        with pytest.raises(CoordinatorLoadingError):
            c.beat("a", 0)
        c.now_ms += 1
        end()
        c.beat("a", 0)
        c.beat("a", -1)
    with pytest.raises(UnknownMemberIdError):
        c.beat("gateway", -1, reserve_ms=1_000)
    with pytest.raises(UnknownMemberIdError):
        c.beat("gateway", -1, reserve_ms=0)
    c.beat("a", 0)
