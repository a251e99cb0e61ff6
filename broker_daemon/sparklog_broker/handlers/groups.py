"""The APIs of consumer groups: heartbeats, offsets, and what an operator asks."""

from __future__ import annotations

import uuid

import msgspec

from sparklog.errors import InvalidProducerEpochError
from sparklog.protocol import group_messages as m
from sparklog.types import TopicPartition
from sparklog_broker.dispatcher import RequestContext
from sparklog_broker.internal_topics import Producer
from sparklog_broker.reply import Response


async def group_heartbeat(request: m.GroupHeartbeatRequest, payload: memoryview, context: RequestContext) -> Response:
    if not request.member_id and request.member_epoch == 0:
        request = msgspec.structs.replace(request, member_id=uuid.uuid4().hex)
    return Response(await context.broker.groups.heartbeat(request, context.peer_host))


async def offset_commit(request: m.OffsetCommitRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answered when the offsets are below the high watermark."""
    return Response(m.OffsetCommitResponse(await context.broker.groups.commit(request)))


async def txn_offset_commit(
    request: m.TxnOffsetCommitRequest, payload: memoryview, context: RequestContext
) -> Response:
    """The transaction gets the group's partition first: its end must reach the offsets whatever happens here."""
    groups = context.broker.groups
    number = groups.partition_of(request.group_id).number
    await groups.topic.ensure()
    await context.broker.transactions.add_partition(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        TopicPartition(groups.topic.name, number),
    )
    producer = Producer(request.producer_id, request.producer_epoch)
    try:
        results = await groups.commit(request, producer)
    except InvalidProducerEpochError:  # it has ended meanwhile
        identity = request.transactional_id, request.producer_id, request.producer_epoch
        raise context.broker.transactions.stale(*identity) from None
    return Response(m.TxnOffsetCommitResponse(results))


async def offset_fetch(request: m.OffsetFetchRequest, payload: memoryview, context: RequestContext) -> Response:
    return Response(await context.broker.groups.fetch_offsets(request))


async def list_groups(request: m.ListGroupsRequest, payload: memoryview, context: RequestContext) -> Response:
    return Response(m.ListGroupsResponse(await context.broker.groups.list_groups(request.states)))


async def describe_groups(request: m.DescribeGroupsRequest, payload: memoryview, context: RequestContext) -> Response:
    return Response(m.DescribeGroupsResponse([await context.broker.groups.describe(g) for g in request.group_ids]))


async def delete_group(request: m.DeleteGroupRequest, payload: memoryview, context: RequestContext) -> Response:
    return Response(m.DeleteGroupResponse(await context.broker.groups.delete(request.group_id)))
