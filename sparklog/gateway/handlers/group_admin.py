"""Administration of groups: LIST_GROUPS, DESCRIBE_GROUPS, DELETE_GROUPS, OFFSET_DELETE.

The answers combine the broker's groups with the classic groups of this gateway. A group has members of one of the two
kinds at a time, and the broker stores its offsets in both cases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from operator import attrgetter

from sparklog.client.net.paging import after_last
from sparklog.errors import GroupIdNotFoundError, InvalidRequestError, SparklogError
from sparklog.gateway.backend.topics import read_topics
from sparklog.gateway.groups.classic import ClassicGroup
from sparklog.gateway.groups.model import GroupState
from sparklog.gateway.groups.subscriptions import (
    CONSUMER,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from sparklog.gateway.handlers.authorized_operations import note_group_operations
from sparklog.gateway.handlers.entries import check_entry
from sparklog.gateway.handlers.names import is_group_id, is_topic_name, missing_code
from sparklog.gateway.session import Session
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.errors import Kafka, code_of, coordinator_code, kafka_code
from sparklog.protocol.apis import Api
from sparklog.protocol.group_messages import (
    DeleteGroupRequest,
    DeleteGroupResponse,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
    GroupDetails,
    GroupMember,
    ListGroupsRequest,
    ListGroupsResponse,
    TopicPartitions,
)
from sparklog.protocol.topic_messages import TopicState
from sparklog.replication.groups import KIND_CONSUMER

DESCRIBED_AT_ONCE = 1_000
"""Groups in one request to the broker for the client's permissions. The groups have no members there, so the answer is
short."""
TYPES_FROM = 5
"""First version of LIST_GROUPS whose clients know groups of the consumer protocol."""
CONSUMER_TYPE, CLASSIC_TYPE = "consumer", "classic"
NO_PROTOCOL = ""
"""Protocol type of a group that has offsets, and has had no members of the consumer protocol."""
MISSING_FROM = 6
"""First version of DESCRIBE_GROUPS with an error for a group that does not exist. Before, such a group is dead."""
_STATES = {"Reconciling": "CompletingRebalance"}
"""Kafka's classic names of broker states; other states have equal names."""


def classic_state(state: str) -> str:
    """Return the state of a broker's group under the name that classic clients know."""
    return _STATES.get(state, state)


async def list_groups(session: Session, request: requests.ListGroups, version: int) -> responses.ListGroups:
    """List the groups that the gateway's broker coordinates."""
    listed: dict[str, responses.ListGroupsGroup] = {}
    emptied = session.gateway.groups.emptied()
    message, following = ListGroupsRequest(paged=True), after_last("groups", attrgetter("group_id"))
    try:
        async for page in (await session.broker()).pages(Api.LIST_GROUPS, message, ListGroupsResponse, following):
            for group in page.groups:
                is_typed = version >= TYPES_FROM and group.kind == KIND_CONSUMER
                listed[group.group_id] = _listed(
                    group.group_id,
                    group.state if is_typed else classic_state(group.state),
                    CONSUMER if group.kind == KIND_CONSUMER else emptied.get(group.group_id, NO_PROTOCOL),
                    CONSUMER_TYPE if is_typed else CLASSIC_TYPE,
                )
    except SparklogError as e:
        return {"error_code": code_of(e), "groups": []}
    for group_id in await _visible_groups(session, [i for i in emptied if i not in listed]):
        listed[group_id] = _listed(group_id, GroupState.EMPTY, emptied[group_id], CLASSIC_TYPE)
    classics = {group.group_id: group for group in session.gateway.groups.all()}
    for group_id in await _visible_groups(session, list(classics)):
        classic = classics[group_id]
        listed[group_id] = _listed(group_id, classic.state, classic.protocol_type or NO_PROTOCOL, CLASSIC_TYPE)
    states = {s.lower() for s in request.get("states_filter", ())}
    types = {t.lower() for t in request.get("types_filter", ())}
    return {
        "error_code": Kafka.NONE,
        "groups": [
            group
            for group in listed.values()
            if (not states or group["group_state"].lower() in states) and (not types or group["group_type"] in types)
        ],
    }


async def _visible_groups(session: Session, group_ids: Sequence[str]) -> list[str]:
    """Return the ids of the gateway's groups that the client may describe."""
    visible: list[str] = []
    broker = await session.broker()
    for start in range(0, len(group_ids), DESCRIBED_AT_ONCE):
        some = list(group_ids[start : start + DESCRIBED_AT_ONCE])
        message = DescribeGroupsRequest(some, paged=True)
        for details in (await broker.ask(Api.DESCRIBE_GROUPS, message, DescribeGroupsResponse)).groups:
            if details.error_code in (0, GroupIdNotFoundError.code):
                visible.append(details.group_id)
    return visible


def _listed(group_id: str, state: str, protocol_type: str, group_type: str) -> responses.ListGroupsGroup:
    return {"group_id": group_id, "protocol_type": protocol_type, "group_state": state, "group_type": group_type}


def missing_text(group_id: str) -> str:
    """Return the text of the error for a group that does not exist. Kafka's admin client shows its users this text, so
    it is Kafka's."""
    return f"Group {group_id} not found."


async def describe_groups(session: Session, request: requests.DescribeGroups, version: int) -> responses.DescribeGroups:
    """Describe the members of groups with their assignments."""
    groups = [await _described(session, group_id, i) for i, group_id in enumerate(request["groups"])]
    for group in groups:
        if version < MISSING_FROM and group["error_code"] == Kafka.GROUP_ID_NOT_FOUND:
            group["error_code"] = Kafka.NONE
    is_requested = request.get("include_authorized_operations", False)
    await note_group_operations(session, groups, is_requested=is_requested)
    return {"groups": groups}


async def _described(session: Session, group_id: str, index: int) -> responses.DescribeGroupsGroup:
    if not is_group_id(group_id):
        return _described_error(group_id, Kafka.INVALID_GROUP_ID)
    try:
        check_entry(index)
        details = await read_group(session, group_id)
    except SparklogError as e:
        return _described_error(group_id, coordinator_code(e))
    classic = session.gateway.groups.find(group_id)
    code = kafka_code(details.error_code)
    if classic is not None and code in (Kafka.NONE, Kafka.GROUP_ID_NOT_FOUND):
        return _of_classic(classic)
    emptied = session.gateway.groups.emptied().get(group_id)
    if code is Kafka.GROUP_ID_NOT_FOUND and emptied is not None:
        return _of_broker(details, emptied)
    if code is Kafka.GROUP_ID_NOT_FOUND:
        missing = _described_error(group_id, code)
        missing["group_state"], missing["error_message"] = str(GroupState.DEAD), missing_text(group_id)
        return missing
    return _described_error(group_id, code) if code else _of_broker(details, emptied or NO_PROTOCOL)


async def read_group(session: Session, group_id: str) -> GroupDetails:
    """Return a group with all its members, which the broker sends in pages. Raises the broker's errors."""
    message = DescribeGroupsRequest([group_id], paged=True)
    pages = (await session.broker()).pages(
        Api.DESCRIBE_GROUPS,
        message,
        DescribeGroupsResponse,
        lambda page: {"members_from": page.members_from} if page.members_from > 0 else {},
    )
    parts = [page.groups[0] async for page in pages]
    for part in parts[1:]:
        parts[0].members += part.members
    return parts[0]


def _described_error(group_id: str, code: Kafka) -> responses.DescribeGroupsGroup:
    return {
        "error_code": code,
        "group_id": group_id,
        "group_state": "",
        "protocol_type": "",
        "protocol_data": "",
        "members": [],
    }


def _of_classic(group: ClassicGroup) -> responses.DescribeGroupsGroup:
    return {
        "error_code": Kafka.NONE,
        "group_id": group.group_id,
        "group_state": str(group.state),
        "protocol_type": group.protocol_type or "",
        "protocol_data": group.protocol or "",
        "members": [
            {
                "member_id": m.member_id,
                "group_instance_id": m.instance_id,
                "client_id": m.client_id,
                "client_host": m.client_host,
                "member_metadata": m.metadata_of(group.protocol or ""),
                "member_assignment": m.assignment,
            }
            for m in group.members.values()
        ],
    }


def _of_broker(details: GroupDetails, empty_type: str) -> responses.DescribeGroupsGroup:
    """Return a group of sparklog's consumers, with subscriptions and assignments in the encoding of classic clients.
    `empty_type`: the protocol type of a group without members of the broker's protocol, which may only have
    offsets."""
    return {
        "error_code": Kafka.NONE,
        "group_id": details.group_id,
        "group_state": classic_state(details.state) or str(GroupState.EMPTY),
        "protocol_type": CONSUMER if details.group_epoch >= 0 else empty_type,
        "protocol_data": details.assignor,
        "members": [_member(m) for m in details.members],
    }


def _member(member: GroupMember) -> responses.DescribeGroupsGroupMember:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "member_metadata": encode_subscription(member.topics),
        "member_assignment": encode_assignment(member.owned),
    }


async def delete_groups(session: Session, request: requests.DeleteGroups, version: int) -> responses.DeleteGroups:
    """Delete groups that have no members, together with their offsets."""
    results: list[responses.DeleteGroupsResult] = []
    for i, group_id in enumerate(request["groups_names"]):
        results.append({"group_id": group_id, "error_code": await _delete(session, group_id, i)})
    return {"results": results}


async def _delete(session: Session, group_id: str, index: int) -> Kafka:
    if not is_group_id(group_id):
        return Kafka.INVALID_GROUP_ID
    try:
        check_entry(index)
        classic = session.gateway.groups.find(group_id)
        if classic is not None and classic.members:
            # without the permission to describe the group, the answer is that of a missing group
            code = kafka_code((await read_group(session, group_id)).error_code)
            return Kafka.NON_EMPTY_GROUP if code in (Kafka.NONE, Kafka.GROUP_ID_NOT_FOUND) else code
        await (await session.broker()).ask(Api.DELETE_GROUP, DeleteGroupRequest(group_id), DeleteGroupResponse)
    except GroupIdNotFoundError:
        if group_id not in session.gateway.groups.emptied():
            return Kafka.GROUP_ID_NOT_FOUND
    except SparklogError as e:
        return coordinator_code(e)
    session.gateway.groups.forget(group_id)
    return Kafka.NONE


async def offset_delete(session: Session, request: requests.OffsetDelete, version: int) -> responses.OffsetDelete:
    """Delete committed offsets of a group. Those of a topic remain, if a member subscribes to it."""
    group_id, topics = request["group_id"], request["topics"]
    classic = session.gateway.groups.find(group_id)
    subscribed = set() if classic is None else _subscribed(classic)
    states: dict[str, TopicState] = {}
    code = Kafka.NONE if is_group_id(group_id) else Kafka.INVALID_GROUP_ID
    if code is Kafka.NONE:
        try:
            states = await _topic_states(session, [t["name"] for t in topics])
            partitions = [
                TopicPartitions(
                    t["name"], sorted({i for i in indexes if _partition_error(states, t["name"], i) is None})
                )
                for t in topics
                if t["name"] not in subscribed and (indexes := [p["partition_index"] for p in t["partitions"]])
            ]
            message = DeleteGroupRequest(group_id, [t for t in partitions if t.partitions])
            answer = await (await session.broker()).ask(Api.DELETE_GROUP, message, DeleteGroupResponse)
            subscribed |= set(answer.subscribed)
        except GroupIdNotFoundError:
            is_missing = classic is None and group_id not in session.gateway.groups.emptied()
            code = Kafka.GROUP_ID_NOT_FOUND if is_missing else code
        except SparklogError as e:
            code = coordinator_code(e)
    if code is not Kafka.NONE:
        return {"error_code": code, "topics": []}

    def outcome(name: str, partition: int) -> Kafka:
        subscription = Kafka.GROUP_SUBSCRIBED_TO_TOPIC if name in subscribed else Kafka.NONE
        return _partition_error(states, name, partition) or subscription

    return {
        "error_code": code,
        "topics": [
            {
                "name": t["name"],
                "partitions": [
                    {"partition_index": i, "error_code": outcome(t["name"], i)}
                    for i in (p["partition_index"] for p in t["partitions"])
                ],
            }
            for t in topics
        ],
    }


async def _topic_states(session: Session, names: list[str]) -> dict[str, TopicState]:
    """Return the topics with these names, without partitions. Raises the broker's errors."""
    possible = [name for name in dict.fromkeys(names) if is_topic_name(name)]
    answer = await read_topics(await session.broker(), possible, with_partitions=False)
    return {state.name: state for state in answer.topics}


def _partition_error(states: Mapping[str, TopicState], name: str, partition: int) -> Kafka | None:
    """Return the error for a partition that does not exist, or whose topic may not be described; None if it exists."""
    state = states.get(name)
    if state is None:
        return missing_code(name)
    if state.error_code:
        return kafka_code(state.error_code, of_partition=True)
    return None if 0 <= partition < state.partition_count else Kafka.UNKNOWN_TOPIC_OR_PARTITION


def _subscribed(group: ClassicGroup) -> set[str]:
    """Return the topics to which the members of a group of consumers subscribe. A group of another type has none."""
    topics: set[str] = set()
    for member in group.members.values() if group.protocol_type == CONSUMER else ():
        with suppress(InvalidRequestError):  # the broker does not read what members write for one another
            topics |= set(decode_subscription(member.metadata_of(group.protocol or "")).topics)
    return topics
