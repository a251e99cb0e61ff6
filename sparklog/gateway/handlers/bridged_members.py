"""Classic members of the broker's groups: JOIN_GROUP, SYNC_GROUP, HEARTBEAT and LEAVE_GROUP beside members of the
consumer protocol. `groups/bridge.py` has the rules."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress

from sparklog.errors import (
    FencedMemberEpochError,
    InvalidRequestError,
    SparklogError,
    StaleMemberEpochError,
    UnknownMemberIdError,
)
from sparklog.gateway.groups.bridge import EPOCH_AWAY, EPOCH_LEAVE, BridgedGroup, BridgedMember
from sparklog.gateway.groups.model import Join, JoinAnswer, SyncAnswer
from sparklog.gateway.groups.subscriptions import CONSUMER, Subscription, decode_subscription, encode_assignment
from sparklog.gateway.handlers.coordinators import reserve_group
from sparklog.gateway.handlers.group_admin import read_group
from sparklog.gateway.session import Session
from sparklog.kafka.wire.errors import Kafka, coordinator_code
from sparklog.protocol.apis import Api
from sparklog.protocol.group_messages import GroupHeartbeatRequest, GroupHeartbeatResponse, GroupMember

_ID_BYTES = 16


async def join_bridged(session: Session, group_id: str, join: Join) -> JoinAnswer:
    """Let a classic member join the broker's group, or join it again. The answer has no leader, so that the member asks
    for its assignment."""
    groups = session.gateway.groups
    try:
        if join.protocol_type != CONSUMER or not join.protocols:
            raise InvalidRequestError(f"members of the type {join.protocol_type!r} do not join consumers")
        protocol, metadata = join.protocols[0]
        subscription = decode_subscription(metadata)
    except InvalidRequestError:
        return JoinAnswer(Kafka.INCONSISTENT_GROUP_PROTOCOL, join.member_id)
    bridge = groups.open_bridge(group_id)
    member = bridge.members.get(join.member_id)
    if join.member_id:
        error = bridge.check(join.member_id, join.instance_id)
        if error is not None:
            return JoinAnswer(error, join.member_id)
    if not groups.has_room(join, is_new_group=not bridge.members):
        return JoinAnswer(Kafka.COORDINATOR_LOAD_IN_PROGRESS, join.member_id)
    if member is None:
        await release_instance(session, group_id, join.instance_id)
        name = f"{join.instance_id or join.client_id or 'member'}-{secrets.token_hex(_ID_BYTES)}"
        member = BridgedMember(name, join, groups.now_ms + join.session_timeout_ms)
    member.join = join
    bridge.members[member.member_id] = member
    groups.note_bridge(bridge)
    error = await _beat(session, bridge, member, subscription)
    if error is not None:
        if not join.member_id:
            bridge.members.pop(member.member_id, None)
            groups.note_bridge(bridge)
        is_moved = error is Kafka.REBALANCE_IN_PROGRESS  # the group is a classic group again
        return JoinAnswer(Kafka.COORDINATOR_LOAD_IN_PROGRESS if is_moved else error, join.member_id)
    return JoinAnswer(Kafka.NONE, member.member_id, member.generation, CONSUMER, protocol)


async def join_moved(session: Session, group_id: str, join: Join, member_id: str) -> JoinAnswer:
    """Let a member whose classic group has moved join the broker's group under its present id."""
    groups = session.gateway.groups
    bridge = groups.open_bridge(group_id)
    bridge.members[member_id] = BridgedMember(member_id, join, groups.now_ms + join.session_timeout_ms)
    groups.note_bridge(bridge)
    answer = await join_bridged(session, group_id, join._replace(member_id=member_id))
    if answer.error is not Kafka.NONE:
        bridge.members.pop(member_id, None)
        groups.note_bridge(bridge)
    return answer


async def _beat(
    session: Session, bridge: BridgedGroup, member: BridgedMember, subscription: Subscription | None
) -> Kafka | None:
    """Send the broker a heartbeat of a member, for a JoinGroup with `subscription`, or, if this is None, for a
    Heartbeat. Returns the error; None after success."""
    groups = session.gateway.groups
    try:
        request = member.request(bridge.group_id, subscription)
        answer = await (await session.broker()).ask(Api.GROUP_HEARTBEAT, request, GroupHeartbeatResponse)
    except (UnknownMemberIdError, FencedMemberEpochError, StaleMemberEpochError):
        bridge.members.pop(member.member_id, None)
        return Kafka.UNKNOWN_MEMBER_ID if groups.note_bridge(bridge) else Kafka.REBALANCE_IN_PROGRESS
    except SparklogError as e:
        return coordinator_code(e)
    member.on_answer(answer, groups.now_ms, of_join=subscription is not None)
    return None if groups.note_bridge(bridge) else Kafka.REBALANCE_IN_PROGRESS


def sync_bridged(
    session: Session, bridge: BridgedGroup, member_id: str, instance_id: str | None, generation: int
) -> SyncAnswer:
    """Return the assignment that a member has got with its JoinGroup."""
    error = bridge.check(member_id, instance_id, generation)
    if error is not None:
        return SyncAnswer(error)
    member = bridge.members[member_id]
    return SyncAnswer(Kafka.NONE, encode_assignment(member.assigned), CONSUMER, member.join.protocols[0][0])


async def heartbeat_bridged(
    session: Session, bridge: BridgedGroup, member_id: str, instance_id: str | None, generation: int
) -> Kafka:
    """Handle a heartbeat of a member."""
    error = bridge.check(member_id, instance_id, generation)
    if error is None:
        error = await _beat(session, bridge, bridge.members[member_id], None)
    if error is not None:
        return error
    return Kafka.REBALANCE_IN_PROGRESS if bridge.members[member_id].has_changed else Kafka.NONE


async def leave_bridged(session: Session, bridge: BridgedGroup, member_id: str, instance_id: str | None) -> Kafka:
    """Remove a member, by its id, or a static member by its instance id with an empty member id."""
    holder = bridge.of_instance(instance_id)
    if not member_id and holder is not None:
        member_id = holder.member_id
    error = bridge.check(member_id, instance_id)
    if error is not None:
        return error
    await _leave(session, bridge, bridge.members[member_id], EPOCH_LEAVE)
    return Kafka.NONE


async def leave_broker(session: Session, group_id: str, leaving: Sequence[tuple[str, str | None]]) -> list[Kafka]:
    """Remove members of the broker's group by their member ids and instance ids; a static member also by its instance
    id alone. Returns an error or NONE for each."""
    try:
        members = (await read_group(session, group_id)).members
    except SparklogError as e:
        return [coordinator_code(e)] * len(leaving)
    by_id = {m.member_id: m for m in members}
    by_instance = {m.instance_id: m for m in members if m.instance_id is not None}
    codes: list[Kafka] = []
    for member_id, instance_id in leaving:
        member = by_id.get(member_id) if instance_id is None else by_instance.get(instance_id)
        if member is None:
            codes.append(Kafka.UNKNOWN_MEMBER_ID)
        elif member_id not in ("", member.member_id):
            codes.append(Kafka.FENCED_INSTANCE_ID)
        else:
            codes.append(await _leave_broker(session, group_id, member))
    return codes


async def _leave_broker(session: Session, group_id: str, member: GroupMember) -> Kafka:
    request = GroupHeartbeatRequest(group_id, member.member_id, EPOCH_LEAVE, member.instance_id)
    try:
        await (await session.broker()).ask(Api.GROUP_HEARTBEAT, request, GroupHeartbeatResponse)
    except SparklogError as e:
        return coordinator_code(e)
    return Kafka.NONE


async def release_instance(session: Session, group_id: str, instance_id: str | None) -> None:
    """Let a classic static member of the broker's group go, because another process has its instance id now, which gets
    its partitions."""
    bridge = session.gateway.groups.bridge(group_id)
    holder = None if bridge is None else bridge.of_instance(instance_id)
    if bridge is not None and holder is not None:
        await _leave(session, bridge, holder, EPOCH_AWAY)


async def _leave(session: Session, bridge: BridgedGroup, member: BridgedMember, epoch: int) -> None:
    bridge.members.pop(member.member_id, None)
    session.gateway.groups.note_bridge(bridge)
    request = GroupHeartbeatRequest(bridge.group_id, member.member_id, epoch, member.join.instance_id)
    with suppress(SparklogError):  # then the member's session ends
        await (await session.broker()).ask(Api.GROUP_HEARTBEAT, request, GroupHeartbeatResponse)


async def move_back(session: Session, bridge: BridgedGroup, reserve_ms: int) -> bool:
    """Make the group a classic group again if all its members are classic. Returns True if it is one now. The broker's
    group is reserved for `reserve_ms` before the last look at its members, so that no other member joins meanwhile.
    Raises the broker's errors."""
    groups, group_id = session.gateway.groups, bridge.group_id
    if not await _is_classic(session, bridge):
        return False
    await reserve_group(session, group_id, reserve_ms)
    if not await _is_classic(session, bridge):
        await reserve_group(session, group_id, 0)
        return False
    members = list(bridge.members.values())
    groups.move_back(bridge)
    for member in members:
        await _leave(session, bridge, member, EPOCH_LEAVE)
    return True


async def _is_classic(session: Session, bridge: BridgedGroup) -> bool:
    member_ids = [m.member_id for m in (await read_group(session, bridge.group_id)).members]
    is_classic = bridge.is_classic(member_ids, session.gateway.groups.now_ms)
    bridge.note_members(member_ids)
    return is_classic
