"""Groups of the consumer protocol (KIP-848): CONSUMER_GROUP_HEARTBEAT, CONSUMER_GROUP_DESCRIBE.

Their members are members of the broker's own groups, beside sparklog's consumers: the broker keeps them, with their
epochs and assignments, over restarts of the gateway.
"""

from __future__ import annotations

from sparklog.errors import (
    CoordinatorLoadingError,
    GroupIdNotFoundError,
    InvalidGroupIdError,
    InvalidRequestError,
    SparklogError,
    error_from_code,
)
from sparklog.gateway.backend.topics import read_topics, topic_uuid
from sparklog.gateway.handlers.authorized_operations import note_group_operations
from sparklog.gateway.handlers.bridged_members import release_instance
from sparklog.gateway.handlers.coordinators import refuse_group
from sparklog.gateway.handlers.entries import check_entry
from sparklog.gateway.handlers.group_admin import missing_text, read_group
from sparklog.gateway.handlers.member_heartbeats import (
    EPOCH_JOIN,
    broker_heartbeat,
    described_partitions,
    heartbeat_answer,
    heartbeat_fault,
    member_code,
)
from sparklog.gateway.handlers.names import is_group_id
from sparklog.gateway.session import Session
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.errors import Kafka, text_of
from sparklog.protocol.apis import Api
from sparklog.protocol.group_messages import GroupDetails, GroupHeartbeatResponse

CLIENT_ID_CHARS_MAX = 100
CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1
"""Numbers of the types of members."""


async def consumer_group_heartbeat(
    session: Session, request: requests.ConsumerGroupHeartbeat, version: int
) -> responses.ConsumerGroupHeartbeat:
    """Handle a heartbeat, with which a member joins, stays alive, acknowledges a revocation, or leaves."""
    try:
        return await _heartbeat(session, request, version)
    except SparklogError as e:
        return {"error_code": member_code(e), "error_message": text_of(e)}


async def _heartbeat(
    session: Session, request: requests.ConsumerGroupHeartbeat, version: int
) -> responses.ConsumerGroupHeartbeat:
    if not is_group_id(request["group_id"]):
        raise InvalidGroupIdError(f"a group id of {len(request['group_id'])} characters: choose another one")
    fault = heartbeat_fault(request, version)
    if fault:
        raise InvalidRequestError(fault)
    broker = await session.broker()
    ids = {t["topic_id"] for t in request["topic_partitions"] or ()}
    names = await session.topic_names.names_of(broker, ids) if ids else {}
    heartbeat = broker_heartbeat(request, names, session.client_id[:CLIENT_ID_CHARS_MAX])
    if heartbeat.member_epoch != EPOCH_JOIN:
        return heartbeat_answer(await broker.ask(Api.GROUP_HEARTBEAT, heartbeat, GroupHeartbeatResponse))
    async with session.gateway.groups.lock(heartbeat.group_id):
        await _move_classic(session, heartbeat.group_id, heartbeat.instance_id)
        return heartbeat_answer(await broker.ask(Api.GROUP_HEARTBEAT, heartbeat, GroupHeartbeatResponse))


async def _move_classic(session: Session, group_id: str, instance_id: str | None) -> None:
    """Move a classic group into the broker's group, for a client that may use the group. Raises CoordinatorLoadingError
    until it has moved, after which clients try again, and GroupIdNotFoundError for a group of other members than
    consumers."""
    groups = session.gateway.groups
    if groups.find(group_id) is None and groups.bridge(group_id) is None:
        return
    if await refuse_group(session, group_id) is not None:
        return  # the broker refuses the heartbeat
    if not groups.move(group_id, instance_id):
        raise CoordinatorLoadingError(f"the classic members of group {group_id!r} join again: try again")
    await release_instance(session, group_id, instance_id)


async def consumer_group_describe(
    session: Session, request: requests.ConsumerGroupDescribe, version: int
) -> responses.ConsumerGroupDescribe:
    """Describe groups with their members. A classic group, and a group that only has offsets, get GROUP_ID_NOT_FOUND,
    after which clients ask by DESCRIBE_GROUPS."""
    groups: list[responses.ConsumerGroupDescribeGroup] = []
    for i, group_id in enumerate(request["group_ids"]):
        try:
            check_entry(i)
            groups.append(await _described(session, group_id))
        except SparklogError as e:
            groups.append({"error_code": member_code(e), "error_message": text_of(e), "group_id": group_id})
    await note_group_operations(session, groups, is_requested=request["include_authorized_operations"])
    return {"groups": groups}


async def _described(session: Session, group_id: str) -> responses.ConsumerGroupDescribeGroup:
    """Return the description of a group. Raises InvalidGroupIdError, GroupIdNotFoundError and the broker's errors."""
    if not is_group_id(group_id):
        raise InvalidGroupIdError(f"a group id of {len(group_id)} characters: choose another one")
    details = await read_group(session, group_id)
    if details.error_code == GroupIdNotFoundError.code:
        raise GroupIdNotFoundError(missing_text(group_id))
    if details.error_code:
        raise error_from_code(details.error_code, details.message)
    if details.group_epoch < 0 or session.gateway.groups.find(group_id) is not None:
        raise GroupIdNotFoundError(f"Group {group_id} is not a consumer group.")
    return await _of_broker(session, details)


async def _of_broker(session: Session, details: GroupDetails) -> responses.ConsumerGroupDescribeGroup:
    bridge = session.gateway.groups.bridge(details.group_id)
    classic = () if bridge is None else bridge.members
    names = {t.topic for m in details.members for t in (*m.owned, *m.target)}
    states = (await read_topics(await session.broker(), sorted(names))).topics if names else []
    ids = {state.name: topic_id for state in states if (topic_id := topic_uuid(state)) is not None}
    return {
        "error_code": Kafka.NONE,
        "group_id": details.group_id,
        "group_state": details.state,
        "group_epoch": details.group_epoch,
        "assignment_epoch": details.group_epoch,
        "assignor_name": details.assignor,
        "members": [
            {
                "member_id": m.member_id,
                "instance_id": m.instance_id,
                "member_epoch": m.member_epoch,
                "client_id": m.client_id,
                "client_host": m.client_host,
                "subscribed_topic_names": [] if m.topic_regex else m.topics,
                "subscribed_topic_regex": m.topic_regex or None,
                "assignment": {"topic_partitions": described_partitions(m.owned, ids)},
                "target_assignment": {"topic_partitions": described_partitions(m.target, ids)},
                "member_type": CLASSIC_MEMBER if m.member_id in classic else CONSUMER_MEMBER,
            }
            for m in details.members
        ],
    }
