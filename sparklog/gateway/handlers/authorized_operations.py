"""The operations that a client is allowed to do (KIP-430), in the answers of METADATA, DESCRIBE_CLUSTER,
DESCRIBE_GROUPS and CONSUMER_GROUP_DESCRIBE."""

from __future__ import annotations

from collections.abc import Sequence

from sparklog.gateway.session import Session
from sparklog.kafka.wire import responses
from sparklog.protocol.acl_messages import (
    RESOURCES_PER_REQUEST_MAX,
    AllowedOperationsRequest,
    AllowedOperationsResponse,
    ResourceEntry,
)
from sparklog.protocol.apis import Api
from sparklog.security.acls import CLUSTER_NAME, ResourceType

NOT_REQUESTED = -(2**31)
"""Value of the field if the client has not asked for the operations."""


async def authorized_operations(session: Session, kind: ResourceType, names: Sequence[str]) -> dict[str, int]:
    """Return the operations that the client may do on resources of a type, as Kafka's bit fields by name. Raises the
    broker's errors."""
    broker = await session.broker()
    fields: dict[str, int] = {}
    for start in range(0, len(names), RESOURCES_PER_REQUEST_MAX):
        part = names[start : start + RESOURCES_PER_REQUEST_MAX]
        message = AllowedOperationsRequest([ResourceEntry(kind, name) for name in part])
        answer = await broker.ask(Api.ALLOWED_OPERATIONS, message, AllowedOperationsResponse)
        fields |= dict(zip(part, answer.operations, strict=True))
    return fields


async def cluster_operations(session: Session, *, is_requested: bool) -> int:
    """Return the operations that the client may do on the cluster; NOT_REQUESTED if it has not asked for them. Raises
    the broker's errors."""
    if not is_requested:
        return NOT_REQUESTED
    return (await authorized_operations(session, ResourceType.CLUSTER, [CLUSTER_NAME]))[CLUSTER_NAME]


async def note_group_operations(
    session: Session,
    groups: Sequence[responses.DescribeGroupsGroup | responses.ConsumerGroupDescribeGroup],
    *,
    is_requested: bool,
) -> None:
    """Enter the operations that the client may do on each described group, as `cluster_operations`."""
    described = [group for group in groups if not group["error_code"]]
    names = [group["group_id"] for group in described] if is_requested else []
    operations = await authorized_operations(session, ResourceType.GROUP, names)
    for group in described:
        group["authorized_operations"] = operations.get(group["group_id"], NOT_REQUESTED)
