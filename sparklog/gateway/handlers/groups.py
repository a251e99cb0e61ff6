"""Membership of classic groups: JOIN_GROUP, SYNC_GROUP, HEARTBEAT, LEAVE_GROUP."""

from __future__ import annotations

from sparklog.errors import SparklogError
from sparklog.gateway.groups.model import REBALANCE_TIMEOUT_MS_MAX, Join
from sparklog.gateway.handlers.coordinators import refuse_group
from sparklog.gateway.session import Session
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.codec import forget_body
from sparklog.kafka.wire.errors import Kafka, coordinator_code, kafka_code
from sparklog.protocol.apis import Api
from sparklog.protocol.group_messages import DescribeGroupsRequest, DescribeGroupsResponse

CLIENT_ID_CHARS_MAX = 100


async def join_group(session: Session, request: requests.JoinGroup, version: int) -> responses.JoinGroup:
    """Join a group. The answer waits for the other members to join."""
    group_id = request["group_id"]
    error = await refuse_group(session, group_id)
    if error is None and session.gateway.groups.find(group_id) is None:
        error = await _refuse_mixed(session, group_id)
    if error is not None:
        return _not_joined(error, request["member_id"])
    rebalance_timeout_ms = request.get("rebalance_timeout_ms", -1)
    join = Join(
        request["member_id"],
        request.get("group_instance_id"),
        session.client_id[:CLIENT_ID_CHARS_MAX],
        f"/{session.peer_host}",
        request["session_timeout_ms"],
        min(
            rebalance_timeout_ms if rebalance_timeout_ms > 0 else request["session_timeout_ms"],
            REBALANCE_TIMEOUT_MS_MAX,
        ),
        request["protocol_type"],
        [(p["name"], p["metadata"]) for p in request["protocols"]],
        needs_member_id=version >= 4,
        can_skip_assignment=version >= 9,
    )
    forget_body(request)
    session.request.release()  # the group counts its copy
    joined = await session.gateway.groups.join(group_id, join)
    return {
        "error_code": joined.error,
        "generation_id": joined.generation,
        "protocol_type": joined.protocol_type,
        "protocol_name": joined.protocol if joined.protocol is not None or version >= 7 else "",
        "leader": joined.leader,
        "skip_assignment": joined.skip_assignment,
        "member_id": joined.member_id,
        "members": [
            {"member_id": member_id, "group_instance_id": instance_id, "metadata": metadata}
            for member_id, instance_id, metadata in joined.members
        ],
    }


async def _refuse_mixed(session: Session, group_id: str) -> Kafka | None:
    """Return the error for the first classic member of a group, such as INCONSISTENT_GROUP_PROTOCOL if sparklog's
    consumers are members; None if the group has no members."""
    request = DescribeGroupsRequest([group_id], paged=True)
    try:
        answer = await (await session.broker()).ask(Api.DESCRIBE_GROUPS, request, DescribeGroupsResponse)
    except SparklogError as e:
        return coordinator_code(e)
    details = answer.groups[0]
    if details.error_code:
        code = kafka_code(details.error_code)
        return None if code is Kafka.GROUP_ID_NOT_FOUND else code
    return Kafka.INCONSISTENT_GROUP_PROTOCOL if details.members else None


def _not_joined(error: Kafka, member_id: str) -> responses.JoinGroup:
    return {"error_code": error, "protocol_name": "", "leader": "", "member_id": member_id, "members": []}


async def sync_group(session: Session, request: requests.SyncGroup, version: int) -> responses.SyncGroup:
    """Answer with the member's assignment, after the leader has sent it."""
    error = await refuse_group(session, request["group_id"])
    if error is not None:
        return {"error_code": error, "assignment": b""}
    protocols = request.get("protocol_type"), request.get("protocol_name")
    member = request["member_id"], request.get("group_instance_id"), request["generation_id"]
    assignments = [(a["member_id"], a["assignment"]) for a in request["assignments"]]
    group_id = request["group_id"]
    forget_body(request)
    session.request.release()  # the group counts its copy
    synced = await session.gateway.groups.sync(group_id, *member, protocols, assignments)
    return {
        "error_code": synced.error,
        "protocol_type": synced.protocol_type,
        "protocol_name": synced.protocol,
        "assignment": synced.assignment,
    }


async def heartbeat(session: Session, request: requests.Heartbeat, version: int) -> responses.Heartbeat:
    """Handle a heartbeat of a member."""
    group_id = request["group_id"]
    error = await refuse_group(session, group_id)
    if error is not None:
        return {"error_code": error}
    code = session.gateway.groups.heartbeat(
        group_id, request["member_id"], request.get("group_instance_id"), request["generation_id"]
    )
    return {"error_code": code}


async def leave_group(session: Session, request: requests.LeaveGroup, version: int) -> responses.LeaveGroup:
    """Remove members from a group at their own request."""
    error = await refuse_group(session, request["group_id"])
    if error is not None:
        return {"error_code": error, "members": []}
    groups = session.gateway.groups
    if version < 3:
        return {"error_code": groups.leave(request["group_id"], request["member_id"], None)}
    members: list[responses.LeaveGroupMember] = []
    for member in request["members"]:
        code = groups.leave(request["group_id"], member["member_id"], member["group_instance_id"])
        members.append(
            {"member_id": member["member_id"], "group_instance_id": member["group_instance_id"], "error_code": code}
        )
    return {"error_code": Kafka.NONE, "members": members}
