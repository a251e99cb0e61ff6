"""Requests between brokers of a cluster: REPLICA_FETCH, METADATA_FETCH, ALTER_PARTITION, CONTROLLED_SHUTDOWN,
DIRECTORY_FAILED, SUSPECT_BROKER, ALTER_SECURITY_RECORDS.
"""

from __future__ import annotations

from sparklog.protocol.cluster_messages import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    AlterSecurityRecordsRequest,
    AlterSecurityRecordsResponse,
    ControlledShutdownRequest,
    ControlledShutdownResponse,
    DirectoryFailedRequest,
    DirectoryFailedResponse,
    ImageChange,
    MetadataFetchRequest,
    MetadataFetchResponse,
    ReplicaFetchRequest,
    SuspectBrokerRequest,
    SuspectBrokerResponse,
)
from sparklog.replication.cluster_image import Version
from sparklog.replication.controller.model import ControlledShutdown, DirectoryFailed, DirectoryFull
from sparklog.replication.image_codec import encode, pack_image
from sparklog.security.records import RecordId
from sparklog.settings import MIB
from sparklog.types import TopicPartition
from sparklog_broker.cluster.leader_side.isr_proposals import decide
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext

CHANGES_BYTES_MAX = 4 * MIB
"""Size of the encoded changes beyond which a broker gets a whole image."""


async def replica_fetch(request: ReplicaFetchRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer when the follower's partitions have new records, or after the request's `max_wait_ms`."""
    return await context.broker.cluster.server.answer(request, context.times)


async def metadata_fetch(request: MetadataFetchRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer with the changes since the requesting broker's image (or the whole image), as soon as there are changes or
    after the request's `max_wait_ms`. Only the controller answers."""
    held = Version(request.controller_epoch, request.zxid)
    cluster, clock = context.broker.cluster, context.broker.environment.clock
    began_s = clock.monotonic_s()
    try:
        news = await cluster.membership.news(held, request.max_wait_ms / 1_000)
    finally:
        context.times.wait_s += clock.monotonic_s() - began_s
    changes = [ImageChange(*version, encode(delta)) for version, delta in news.changes]
    image = news.image
    if sum(len(change.delta) for change in changes) > CHANGES_BYTES_MAX:
        image, changes = cluster.membership.controller_image(), []
    if image is None:
        return Response(MetadataFetchResponse(changes=changes))
    packed = pack_image(image)
    return Response(MetadataFetchResponse(packed.data, image_bytes=packed.size_bytes))


async def alter_partition(request: AlterPartitionRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer with the decisions on the requested ISR changes, after they are stored. Only the controller answers."""
    return Response(AlterPartitionResponse(await decide(context.broker.cluster.membership, request)))


async def controlled_shutdown(
    request: ControlledShutdownRequest, payload: memoryview, context: RequestContext
) -> Response:
    """Move the leaderships of a stopping broker to other brokers where possible. The answer has the number of
    partitions that the broker still leads. Only the controller answers."""
    remaining = await context.broker.cluster.membership.ask(
        lambda token: ControlledShutdown(token, request.broker_id, request.broker_epoch)
    )
    return Response(ControlledShutdownResponse(remaining))


async def directory_failed(request: DirectoryFailedRequest, payload: memoryview, context: RequestContext) -> Response:
    """Record that a broker's disk has failed, is full, or has room again (`room`), for the named partitions. Other
    brokers are elected as their leaders where possible, before the answer. Only the controller answers."""
    partitions = tuple(TopicPartition(p.topic, p.partition) for p in request.partitions)
    if request.room:
        moved = await context.broker.cluster.membership.ask(
            lambda token: DirectoryFull(token, request.broker_id, request.broker_epoch, partitions, request.room == 1)
        )
        return Response(DirectoryFailedResponse(0, moved))
    leaderless = await context.broker.cluster.membership.ask(
        lambda token: DirectoryFailed(token, request.broker_id, request.broker_epoch, partitions)
    )
    return Response(DirectoryFailedResponse(leaderless))


async def suspect_broker(request: SuspectBrokerRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer if this broker does not reach the suspected broker either. The controller has then stored other leaders
    of the broker's partitions."""
    return Response(SuspectBrokerResponse(await context.broker.cluster.suspicions.confirm(request)))


async def alter_security_records(
    request: AlterSecurityRecordsRequest, payload: memoryview, context: RequestContext
) -> Response:
    """Answer after the security records are stored."""
    broker = context.broker
    await broker.security_records.change(
        {RecordId(change.kind, change.key): change.value for change in request.changes}
    )
    return Response(AlterSecurityRecordsResponse(*broker.cluster.image.version))
