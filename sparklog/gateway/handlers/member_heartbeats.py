"""Members of the consumer protocol (KIP-848): the translation of their heartbeats into those of the broker's groups.

All are pure functions.

The broker's group heartbeat has the same states, epochs and errors as Kafka's. The translation changes names:

    Kafka                            broker
    topic ids                        topic names. A partition of an id that no topic has any more is left out
                                     of `owned`, because it cannot be read any more
    TopicPartitions of the request   `owned`, which acknowledges a revocation: the broker gives a partition to another
                                     member after its owner has sent a list without it
    Assignment of the answer         `assigned`; null if it is as before
    RebalanceTimeoutMs -1            unchanged
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from uuid import UUID

from sparklog.errors import FencedMemberEpochError, SparklogError, StaleMemberEpochError
from sparklog.gateway.backend.topics import uuid_of
from sparklog.gateway.handlers.names import is_partition, is_topic_name
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.errors import Kafka, coordinator_code
from sparklog.protocol.group_messages import GroupHeartbeatRequest, GroupHeartbeatResponse, TopicPartitions

EPOCH_JOIN, EPOCH_LEAVE, EPOCH_AWAY = 0, -1, -2
CLIENT_IDS_FROM = 1
"""First version of CONSUMER_GROUP_HEARTBEAT in which the client chooses its member id."""
REBALANCE_TIMEOUT_MS_MAX = 86_400_000
_OF_MEMBERS = {
    FencedMemberEpochError.code: Kafka.FENCED_MEMBER_EPOCH,
    StaleMemberEpochError.code: Kafka.STALE_MEMBER_EPOCH,
}


def member_code(error: SparklogError) -> Kafka:
    """Return Kafka's code of an error for a member of the consumer protocol. Classic members get ILLEGAL_GENERATION in
    place of the codes for epochs (`coordinator_code`)."""
    return _OF_MEMBERS.get(error.code) or coordinator_code(error)


def heartbeat_fault(request: requests.ConsumerGroupHeartbeat, version: int) -> str:
    """Return the text about the field that makes a heartbeat invalid, as in Kafka; "" for a valid heartbeat."""
    epoch = request["member_epoch"]
    is_id_needed = version >= CLIENT_IDS_FROM or epoch > EPOCH_JOIN or epoch == EPOCH_LEAVE
    rules = (
        (epoch >= EPOCH_AWAY, f"MemberEpoch {epoch} is invalid: -2 is the least"),
        (request["member_id"] or not is_id_needed, "MemberId must not be empty"),
        (request["instance_id"] != "", "InstanceId must not be empty"),
        (request["rack_id"] != "", "RackId must not be empty"),
        (
            epoch != EPOCH_AWAY or request["instance_id"] is not None,
            "only a static member, with InstanceId, leaves by -2",
        ),
    )
    joining = (
        (request["rebalance_timeout_ms"] > 0, "RebalanceTimeoutMs must be positive in the first heartbeat"),
        (request["topic_partitions"] == [], "TopicPartitions must be an empty list in the first heartbeat"),
        (
            request["subscribed_topic_names"] is not None or request.get("subscribed_topic_regex") is not None,
            "the first heartbeat must have SubscribedTopicNames or SubscribedTopicRegex",
        ),
    )
    return next((text for is_met, text in rules + joining * (epoch == EPOCH_JOIN) if not is_met), "")


def broker_heartbeat(
    request: requests.ConsumerGroupHeartbeat, names: Mapping[UUID, str], client_id: str
) -> GroupHeartbeatRequest:
    """Return the broker's heartbeat for a valid heartbeat. `names`: the names of the topics of its partitions; ids of
    no topic are left out, and so are names that no topic can have. Kafka keeps such names, and assigns nothing for
    them; an error would end the client's membership."""
    owned = request["topic_partitions"]
    topics = request["subscribed_topic_names"]
    timeout_ms = request["rebalance_timeout_ms"]
    heartbeat = GroupHeartbeatRequest(
        request["group_id"],
        request["member_id"],
        request["member_epoch"],
        request["instance_id"],
        None if topics is None else [name for name in topics if is_topic_name(name)],
        request["server_assignor"],
        None if owned is None else owned_partitions(owned, names),
        client_id=client_id,
        topic_regex=request.get("subscribed_topic_regex"),
        reserve_ms=0 if request["member_epoch"] == EPOCH_JOIN else -1,
    )
    if timeout_ms > 0:
        heartbeat.rebalance_timeout_ms = min(timeout_ms, REBALANCE_TIMEOUT_MS_MAX)
    return heartbeat


def owned_partitions(
    owned: Iterable[requests.ConsumerGroupHeartbeatTopicPartition], names: Mapping[UUID, str]
) -> list[TopicPartitions]:
    """Return the partitions that a member reports, by topic name, each once."""
    numbers: dict[str, set[int]] = {}
    for topic in owned:
        name = names.get(topic["topic_id"], "")
        present = {p for p in topic["partitions"] if is_partition(name, p)}
        if present:
            numbers.setdefault(name, set()).update(present)
    return [TopicPartitions(name, sorted(present)) for name, present in numbers.items()]


def heartbeat_answer(answer: GroupHeartbeatResponse) -> responses.ConsumerGroupHeartbeat:
    """Return Kafka's form of the broker's answer."""
    assignment: responses.ConsumerGroupHeartbeatAssignment | None = None
    if answer.assigned is not None:
        assignment = {
            "topic_partitions": [
                {"topic_id": topic_id, "partitions": topic.partitions}
                for topic, text in zip(answer.assigned, answer.topic_ids, strict=True)
                if (topic_id := uuid_of(text)) is not None
            ]
        }
    return {
        "throttle_time_ms": answer.throttle_ms,
        "error_code": Kafka.NONE,
        "member_id": answer.member_id,
        "member_epoch": answer.member_epoch,
        "heartbeat_interval_ms": answer.heartbeat_interval_ms,
        "assignment": assignment,
    }


def described_partitions(
    partitions: Sequence[TopicPartitions], ids: Mapping[str, UUID]
) -> list[responses.ConsumerGroupDescribeGroupMemberAssignmentTopicPartition]:
    """Return partitions for CONSUMER_GROUP_DESCRIBE, with the topics' ids. Topics without an id are left out."""
    return [
        {"topic_id": ids[t.topic], "topic_name": t.topic, "partitions": t.partitions}
        for t in partitions
        if t.topic in ids
    ]
