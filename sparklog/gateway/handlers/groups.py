"""Membership of classic groups: JOIN_GROUP, SYNC_GROUP, HEARTBEAT, LEAVE_GROUP."""

from __future__ import annotations

from contextlib import suppress

from sparklog.errors import SparklogError
from sparklog.gateway.groups.model import REBALANCE_TIMEOUT_MS_MAX, SESSION_TIMEOUT_MS_MAX, Join, JoinAnswer, SyncAnswer
from sparklog.gateway.handlers.bridged_members import (
    heartbeat_bridged,
    join_bridged,
    join_moved,
    leave_bridged,
    leave_broker,
    move_back,
    sync_bridged,
)
from sparklog.gateway.handlers.coordinators import refuse_group, reserve_group
from sparklog.gateway.session import Session
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.codec import forget_body
from sparklog.kafka.wire.errors import Kafka, coordinator_code

CLIENT_ID_CHARS_MAX = 100


async def join_group(session: Session, request: requests.JoinGroup, version: int) -> responses.JoinGroup:
    """Join a group. The answer waits for the other members to join."""
    group_id = request["group_id"]
    error = await refuse_group(session, group_id)
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
    joined = await _join(session, group_id, join)
    if joined.error and not joined.protocol_type:
        return _not_joined(joined.error, joined.member_id)
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


async def _join(session: Session, group_id: str, join: Join) -> JoinAnswer:
    """Join the classic group, or the broker's group if it has members."""
    groups = session.gateway.groups
    async with groups.lock(group_id):
        classic = groups.find(group_id)
        if classic is None or not classic.members:
            try:
                is_bridged = await _has_members(session, group_id, join.session_timeout_ms)
            except SparklogError as e:
                return JoinAnswer(coordinator_code(e), join.member_id)
            if is_bridged:
                return await join_bridged(session, group_id, join)
    # without a pause since the lock was released: a classic group is begun at once
    joined = await groups.join(group_id, join)
    if not joined.is_moved:
        return joined
    async with groups.lock(group_id):
        return await join_moved(session, group_id, join, joined.member_id)


async def _has_members(session: Session, group_id: str, session_timeout_ms: int) -> bool:
    """Return True if the broker's group has members, which are not all classic. Otherwise reserve it for classic
    members. Raises the broker's errors."""
    groups = session.gateway.groups
    bridge = groups.bridge(group_id)
    reserve_ms = min(max(session_timeout_ms, 1), SESSION_TIMEOUT_MS_MAX)
    if bridge is not None and not await move_back(session, bridge, reserve_ms):
        return True
    if groups.reserve_ms(group_id) >= 0:  # its members have just moved back, and own partitions: others wait for them
        return False
    is_reserved = await reserve_group(session, group_id, reserve_ms)
    return not is_reserved or groups.bridge(group_id) is not None


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
    bridge = session.gateway.groups.bridge(group_id)
    if bridge is not None:
        return _synced(sync_bridged(session, bridge, *member))
    synced = await session.gateway.groups.sync(group_id, *member, protocols, assignments)
    return _synced(synced)


def _synced(synced: SyncAnswer) -> responses.SyncGroup:
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
    member = request["member_id"], request.get("group_instance_id"), request["generation_id"]
    bridge = session.gateway.groups.bridge(group_id)
    if bridge is not None:
        return {"error_code": await heartbeat_bridged(session, bridge, *member)}
    return {"error_code": session.gateway.groups.heartbeat(group_id, *member)}


async def leave_group(session: Session, request: requests.LeaveGroup, version: int) -> responses.LeaveGroup:
    """Remove members from a group, at their own request or at that of an operator."""
    error = await refuse_group(session, request["group_id"])
    if error is not None:
        return {"error_code": error, "members": []}
    group_id = request["group_id"]
    if version < 3:
        return {"error_code": (await _leave_all(session, group_id, [(request["member_id"], None)]))[0]}
    leaving = [(member["member_id"], member["group_instance_id"]) for member in request["members"]]
    codes = await _leave_all(session, group_id, leaving)
    return {
        "error_code": Kafka.NONE,
        "members": [
            {"member_id": member_id, "group_instance_id": instance_id, "error_code": code}
            for (member_id, instance_id), code in zip(leaving, codes, strict=True)
        ],
    }


async def _leave_all(session: Session, group_id: str, leaving: list[tuple[str, str | None]]) -> list[Kafka]:
    """Remove members by their member ids and instance ids, and return an error or NONE for each: classic members first,
    then members of the consumer protocol, which the broker keeps."""
    codes = [await _leave(session, group_id, *member) for member in leaving]
    others = [i for i, code in enumerate(codes) if code is Kafka.UNKNOWN_MEMBER_ID]
    if others and session.gateway.groups.find(group_id) is None:
        for i, code in zip(others, await leave_broker(session, group_id, [leaving[i] for i in others]), strict=True):
            codes[i] = code
    return codes


async def _leave(session: Session, group_id: str, member_id: str, instance_id: str | None) -> Kafka:
    bridge = session.gateway.groups.bridge(group_id)
    if bridge is not None:
        return await leave_bridged(session, bridge, member_id, instance_id)
    groups = session.gateway.groups
    code = groups.leave(group_id, member_id, instance_id)
    if groups.reserve_ms(group_id) < 0:
        async with groups.lock(group_id):
            if groups.reserve_ms(group_id) < 0:
                with suppress(SparklogError):  # then the reservation ends by itself
                    await reserve_group(session, group_id, 0)
    return code
