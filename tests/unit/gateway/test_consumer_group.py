"""Heartbeats of the consumer protocol, translated into those of the broker."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from sparklog import errors
from sparklog.environment.memory_budget import MemoryBudget
from sparklog.gateway.groups.runtime import Committer, Groups
from sparklog.gateway.handlers.member_heartbeats import (
    REBALANCE_TIMEOUT_MS_MAX,
    broker_heartbeat,
    heartbeat_answer,
    heartbeat_fault,
    member_code,
)
from sparklog.kafka.wire.errors import Kafka, coordinator_code
from sparklog.protocol.group_messages import GroupHeartbeatResponse, TopicPartitions
from tests.support.cases import for_each

T, U = UUID(int=1), UUID(int=2)


def heartbeat(**more: Any) -> Any:
    joining: dict[str, Any] = {
        "group_id": "g", "member_id": "m", "member_epoch": 0, "instance_id": None, "rack_id": None,
        "rebalance_timeout_ms": 1_000, "subscribed_topic_names": ["t"], "subscribed_topic_regex": None,
        "server_assignor": None, "topic_partitions": [],
    }  # fmt: skip
    return joining | more


@for_each(
    "case",
    [
        ({}, ""),
        ({"member_id": ""}, "MemberId"),
        ({"member_epoch": -3}, "MemberEpoch"),
        ({"instance_id": ""}, "InstanceId"),
        ({"rack_id": ""}, "RackId"),
        ({"member_epoch": -2}, "InstanceId"),
        ({"member_epoch": -2, "instance_id": "i"}, ""),
        ({"member_epoch": -1, "rebalance_timeout_ms": -1, "topic_partitions": None}, ""),
        ({"rebalance_timeout_ms": -1}, "RebalanceTimeoutMs"),
        ({"topic_partitions": None}, "TopicPartitions"),
        ({"topic_partitions": [{"topic_id": T, "partitions": [0]}]}, "TopicPartitions"),
        ({"subscribed_topic_names": None}, "SubscribedTopicNames"),
        ({"subscribed_topic_names": None, "subscribed_topic_regex": "a"}, ""),
        ({"member_epoch": 4, "rebalance_timeout_ms": -1, "subscribed_topic_names": None, "topic_partitions": None}, ""),
    ],
)
def test_invalid_heartbeats_are_refused_by_the_field(case: tuple[dict[str, Any], str]) -> None:
    fields, named = case
    fault = heartbeat_fault(heartbeat(**fields), 1)
    assert (named in fault) if named else fault == ""


def test_a_client_without_an_id_of_its_own_gets_one_in_the_first_version() -> None:
    assert heartbeat_fault(heartbeat(member_id=""), 0) == ""
    assert "MemberId" in heartbeat_fault(heartbeat(member_id="", member_epoch=1), 0)


def test_partitions_of_ids_that_no_topic_has_are_not_reported_as_owned() -> None:
    owned = [
        {"topic_id": T, "partitions": [2, 0, 2]},
        {"topic_id": U, "partitions": [1]},
        {"topic_id": T, "partitions": [1, -1, 2**31 - 1]},
    ]
    made = broker_heartbeat(heartbeat(member_epoch=4, topic_partitions=owned), {T: "t"}, "client")
    assert made.owned == [TopicPartitions("t", [0, 1, 2])]
    assert broker_heartbeat(heartbeat(topic_partitions=None), {}, "client").owned is None, "unchanged"


def test_names_that_no_topic_can_have_are_subscribed_to_without_effect() -> None:
    names = ["t", "no topic", "", "x" * 250, "."]
    assert broker_heartbeat(heartbeat(subscribed_topic_names=names), {}, "").topics == ["t"]
    assert broker_heartbeat(heartbeat(subscribed_topic_names=["no topic"]), {}, "").topics == []
    assert broker_heartbeat(heartbeat(subscribed_topic_names=None), {}, "").topics is None, "unchanged"


def test_a_rebalance_timeout_is_bounded_and_may_be_unchanged() -> None:
    usual = broker_heartbeat(heartbeat(rebalance_timeout_ms=-1), {}, "").rebalance_timeout_ms
    assert usual == 300_000
    longest = broker_heartbeat(heartbeat(rebalance_timeout_ms=2**31 - 1), {}, "").rebalance_timeout_ms
    assert longest == REBALANCE_TIMEOUT_MS_MAX


def test_an_answer_has_the_assignment_by_ids_or_none() -> None:
    assigned = [TopicPartitions("t", [0, 1]), TopicPartitions("u", [3])]
    answer = heartbeat_answer(GroupHeartbeatResponse("m", 3, 500, assigned, topic_ids=[T.hex, "no uuid"]))
    assert answer["assignment"] == {"topic_partitions": [{"topic_id": T, "partitions": [0, 1]}]}
    assert heartbeat_answer(GroupHeartbeatResponse("m", 3, 500))["assignment"] is None
    assert heartbeat_answer(GroupHeartbeatResponse("m", 3, 500, []))["assignment"] == {"topic_partitions": []}


def test_members_get_the_codes_of_their_protocol() -> None:
    codes = {
        errors.FencedMemberEpochError: Kafka.FENCED_MEMBER_EPOCH,
        errors.StaleMemberEpochError: Kafka.STALE_MEMBER_EPOCH,
        errors.UnknownMemberIdError: Kafka.UNKNOWN_MEMBER_ID,
        errors.UnreleasedInstanceIdError: Kafka.UNRELEASED_INSTANCE_ID,
        errors.FencedInstanceIdError: Kafka.FENCED_INSTANCE_ID,
        errors.UnsupportedAssignorError: Kafka.UNSUPPORTED_ASSIGNOR,
        errors.InvalidRegularExpressionError: Kafka.INVALID_REGULAR_EXPRESSION,
        errors.GroupIdNotFoundError: Kafka.GROUP_ID_NOT_FOUND,
        errors.GroupMaxSizeReachedError: Kafka.GROUP_MAX_SIZE_REACHED,
        errors.CoordinatorLoadingError: Kafka.COORDINATOR_LOAD_IN_PROGRESS,
        errors.NotCoordinatorError: Kafka.NOT_COORDINATOR,
        errors.NotLeaderError: Kafka.NOT_COORDINATOR,
    }
    assert {e: member_code(e("x")) for e in codes} == codes
    assert coordinator_code(errors.StaleMemberEpochError("x")) is Kafka.ILLEGAL_GENERATION


def test_clients_wait_for_a_coordinator_whose_topic_cannot_be_created_yet() -> None:
    assert coordinator_code(errors.InvalidReplicationFactorError("x")) is Kafka.COORDINATOR_NOT_AVAILABLE


def test_the_broker_checks_commits_of_its_own_members() -> None:
    groups = Groups(lambda: 0.0, MemoryBudget(1 << 20))
    assert groups.committer("g", "m", None, 5) == Committer(Kafka.NONE, "m", 5)
    assert groups.committer("g", "", None, -1) == Committer(Kafka.NONE, "", -1)
