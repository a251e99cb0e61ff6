"""FIND_COORDINATOR: which broker coordinates a group."""

from __future__ import annotations

from sparklog.errors import CoordinatorNotAvailableError, UnsupportedApiError
from sparklog.protocol.group_messages import FindCoordinatorRequest, FindCoordinatorResponse
from sparklog.types import TopicPartition
from sparklog_broker.dispatcher import RequestContext
from sparklog_broker.network.reply import Response

KEY_GROUP = 0


async def find_coordinator(request: FindCoordinatorRequest, payload: memoryview, context: RequestContext) -> Response:
    """The leader of the partition of `__consumer_offsets` that the group belongs to; the topic is made if need be."""
    broker = context.broker
    if broker.cluster is None:
        return Response(FindCoordinatorResponse(broker.config.broker_id))
    if request.key_type != KEY_GROUP:
        raise UnsupportedApiError("a cluster of several brokers has no transactions yet: nobody coordinates them")
    topic = broker.groups.topic
    await topic.ensure()
    partition = broker.partitions.find(TopicPartition(topic.name, topic.partition_for(request.key)))
    leader = -1 if partition is None else partition.replicas.leader
    endpoint = broker.cluster.endpoint_of(leader)
    if endpoint is None:
        raise CoordinatorNotAvailableError(
            f"nobody leads the partition of {topic.name} of {request.key!r} at the moment"
        )
    return Response(FindCoordinatorResponse(leader, *endpoint))
