"""FIND_COORDINATOR: which broker coordinates a group or a transactional id."""

from __future__ import annotations

from sparklog.errors import CoordinatorNotAvailableError
from sparklog.protocol.group_messages import FindCoordinatorRequest, FindCoordinatorResponse
from sparklog_broker.dispatcher import RequestContext
from sparklog_broker.network.reply import Response

KEY_GROUP = 0


async def find_coordinator(request: FindCoordinatorRequest, payload: memoryview, context: RequestContext) -> Response:
    """The leader of the partition of the internal topic that the key belongs to; the topic is made if need be."""
    broker = context.broker
    if broker.cluster is None:
        return Response(FindCoordinatorResponse(broker.config.broker_id))
    topic = broker.groups.topic if request.key_type == KEY_GROUP else broker.transactions.topic
    await topic.ensure()
    leader = topic.leader_of(topic.partition_for(request.key))
    endpoint = broker.cluster.endpoint_of(leader, context.listener)
    if endpoint is None:
        raise CoordinatorNotAvailableError(
            f"nobody leads the partition of {topic.name} of {request.key!r} at the moment"
        )
    return Response(FindCoordinatorResponse(leader, *endpoint))
