"""FIND_COORDINATOR, and the check of a client's access to a group."""

from __future__ import annotations

from contextlib import suppress

from sparklog.errors import (
    GroupIdNotFoundError,
    InvalidGroupIdError,
    InvalidRequestError,
    NonEmptyGroupError,
    SparklogError,
    TransactionalIdAuthorizationFailedError,
    UnknownMemberIdError,
)
from sparklog.gateway.handlers.entries import check_entry
from sparklog.gateway.handlers.names import (
    GROUP_ID_CHARS_MAX,
    TRANSACTIONAL_ID_CHARS_MAX,
    is_group_id,
    is_transactional_id,
)
from sparklog.gateway.session import Session
from sparklog.kafka.wire import requests, responses
from sparklog.kafka.wire.errors import Kafka, coordinator_code, text_of
from sparklog.protocol.apis import Api
from sparklog.protocol.group_messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    GroupHeartbeatRequest,
    GroupHeartbeatResponse,
)
from sparklog.protocol.topic_messages import BrokerEndpoint

GROUP, TRANSACTION = 0, 1
GROUP_CHECK_S = 3.0
"""Time in s between two checks of a session that it may use a group."""
_LEAVES = -1
_NO_MEMBER = "kafka-gateway"


async def find_coordinator(
    session: Session, request: requests.FindCoordinator, version: int
) -> responses.FindCoordinator:
    """Answer with the address of the gateway whose broker coordinates the group or transactional id, for each key."""
    kind = request.get("key_type", GROUP)
    if version < 4:
        only = await _find(session, request["key"], kind)
        return {
            "error_code": only["error_code"],
            "error_message": only["error_message"],
            "node_id": only["node_id"],
            "host": only["host"],
            "port": only["port"],
        }
    return {"coordinators": [await _find(session, key, kind, i) for i, key in enumerate(request["coordinator_keys"])]}


async def _find(session: Session, key: str, kind: int, index: int = 0) -> responses.FindCoordinatorCoordinator:
    try:
        check_entry(index)
        _check_key(key, kind)
        coordinator = await ask_coordinator(session, key, kind)
    except SparklogError as e:
        code = coordinator_code(e)
        if code is Kafka.NOT_COORDINATOR:
            code = Kafka.COORDINATOR_NOT_AVAILABLE  # any broker may be asked for the coordinator
        return {"key": key, "error_code": code, "error_message": text_of(e), "node_id": -1, "host": "", "port": -1}
    gateway = session.gateway
    if coordinator.broker_id == gateway.broker_id or not coordinator.host:
        address = gateway.own_address(session.listener, session.local)
    else:
        brokers = [BrokerEndpoint(coordinator.broker_id, coordinator.host, coordinator.port)]
        address = gateway.addresses(brokers, session.listener, session.local)[coordinator.broker_id]
    return {
        "key": key,
        "error_code": Kafka.NONE,
        "error_message": None,
        "node_id": address.node_id,
        "host": address.host,
        "port": address.port,
    }


def _check_key(key: str, kind: int) -> None:
    """Raise the error for a key that no coordinator has.

    It is InvalidGroupIdError, InvalidRequestError, or TransactionalIdAuthorizationFailedError for a transactional id:
    after any other error librdkafka asks for the coordinator of a transactional id until its timeout.
    """
    if kind == GROUP and not is_group_id(key):
        raise InvalidGroupIdError(
            f"a group id of {len(key)} characters; 1 to {GROUP_ID_CHARS_MAX} are allowed: choose another group id"
        )
    if kind == TRANSACTION and not is_transactional_id(key):
        raise TransactionalIdAuthorizationFailedError(
            f"a transactional id of {len(key)} characters; 1 to {TRANSACTIONAL_ID_CHARS_MAX} are allowed: choose "
            "another transactional id"
        )
    if kind not in (GROUP, TRANSACTION):
        raise InvalidRequestError(f"a key of type {kind} has no coordinator: use 0 (group) or 1 (transactional id)")


async def ask_coordinator(session: Session, key: str, kind: int) -> FindCoordinatorResponse:
    """Ask the broker for the coordinator of a key. Raises the broker's errors."""
    broker = await session.broker()
    return await broker.ask(Api.FIND_COORDINATOR, FindCoordinatorRequest(key, kind), FindCoordinatorResponse)


async def refuse_group(session: Session, group_id: str) -> Kafka | None:
    """Return the error for a client that cannot use the group at this gateway; None if it can. Handlers call it before
    they look at the gateway's groups.

    The gateway's broker has to coordinate the group, and the client has to be allowed to read it. The gateway tests the
    permission with the heartbeat that reserves the group for its classic members.
    """
    if not is_group_id(group_id):
        return Kafka.INVALID_GROUP_ID
    checks, key = session.gateway.checks, (session.check_key, "group", group_id)
    if checks.is_recent(key, GROUP_CHECK_S):
        return None
    checks.forget(key)
    try:
        coordinator = await ask_coordinator(session, group_id, GROUP)
    except SparklogError as e:
        return coordinator_code(e)
    if coordinator.broker_id != session.gateway.broker_id:
        session.gateway.groups.drop(group_id, Kafka.NOT_COORDINATOR)
        return Kafka.NOT_COORDINATOR
    try:
        if not await reserve_group(session, group_id, session.gateway.groups.reserve_ms(group_id)):
            with suppress(GroupIdNotFoundError):  # the classic members are no consumers: they stay
                session.gateway.groups.move(group_id, None)
    except SparklogError as e:
        code = coordinator_code(e)
        if code is not Kafka.GROUP_ID_NOT_FOUND:
            return code
    checks.record(key)
    return None


async def reserve_group(session: Session, group_id: str, reserve_ms: int) -> bool:
    """Reserve the broker's group for classic members, by a heartbeat that changes nothing else: a member that does not
    exist leaves. `reserve_ms`: time of the reservation; 0: end it; -1: change nothing. Returns False if the broker's
    group has members, or members wait to join it. Raises the broker's errors."""
    leave = GroupHeartbeatRequest(group_id, _NO_MEMBER, _LEAVES, reserve_ms=reserve_ms)
    try:
        await (await session.broker()).ask(Api.GROUP_HEARTBEAT, leave, GroupHeartbeatResponse)
    except UnknownMemberIdError:
        return True
    except NonEmptyGroupError:
        return False
    return True
