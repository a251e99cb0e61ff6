"""FIND_COORDINATOR: the broker that coordinates a group or a transactional id."""

from __future__ import annotations

from typing import Any

from sparklog.errors import CoordinatorNotAvailableError
from sparklog.protocol.group_messages import FindCoordinatorRequest, FindCoordinatorResponse
from sparklog.protocol.transaction_messages import InitProducerIdRequest
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import Handler, RequestContext

KEY_GROUP, KEY_SCHEMAS = 0, 2


def of_groups(handler: Handler) -> Handler:
    """Wrap a handler that needs the group coordinator, so that a missing internal topic is created first, and its
    partitions are loaded."""

    async def handle(request: Any, payload: memoryview, context: RequestContext) -> Response:
        if not context.broker.groups.topic.exists:
            await context.broker.groups.begin()
        return await handler(request, payload, context)

    return handle


def of_transactions(handler: Handler) -> Handler:
    """Wrap a handler that needs the transaction coordinator, like `of_groups`. A producer without a transactional id
    needs no coordinator, unless it requests a fencing token."""

    async def handle(request: Any, payload: memoryview, context: RequestContext) -> Response:
        is_plain = isinstance(request, InitProducerIdRequest) and request.transactional_id is None
        if not context.broker.transactions.topic.exists and (not is_plain or request.fencing_token):
            await context.broker.transactions.begin()
        return await handler(request, payload, context)

    return handle


async def find_coordinator(request: FindCoordinatorRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer with the leader of the key's partition of the internal topic. A missing topic is created."""
    broker = context.broker
    topics = {KEY_GROUP: broker.groups.topic, KEY_SCHEMAS: broker.schema_log.topic}
    topic = topics.get(request.key_type, broker.transactions.topic)
    await topic.ensure()
    leader = topic.leader_of(topic.partition_for(request.key))
    if leader == broker.config.broker_id and not broker.cluster.has_endpoints:
        return Response(FindCoordinatorResponse(leader))  # the client keeps the address of this connection
    endpoint = broker.cluster.endpoint_of(leader, context.listener)
    if endpoint is None:
        raise CoordinatorNotAvailableError(f"the partition of {topic.name} for {request.key!r} has no leader now")
    return Response(FindCoordinatorResponse(leader, *endpoint))
