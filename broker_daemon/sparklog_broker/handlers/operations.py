"""Operators' requests: the list of brokers, reassignments, elections, cordoned brokers.

Any broker accepts these requests; the pipeline forwards those that the controller answers.
"""

from __future__ import annotations

from sparklog.errors import InvalidRequestError, SparklogError
from sparklog.protocol.operation_messages import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    BrokerState,
    CordonBrokerRequest,
    CordonBrokerResponse,
    DescribeClusterRequest,
    DescribeClusterResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    PartitionOutcome,
    PartitionReassignment,
)
from sparklog.replication.cluster_image import ClusterImage
from sparklog.replication.controller.model import Cordon, Elect, ElectionKind, Reassign
from sparklog.types import TopicPartition
from sparklog_broker.handlers.leader_hints import endpoint_of
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext


async def alter_partition_reassignments(
    request: AlterPartitionReassignmentsRequest, payload: memoryview, context: RequestContext
) -> Response:
    """Answer when the reassignments are stored. Brokers then create and copy the replicas."""
    targets = {
        TopicPartition(t.topic, t.partition): None if t.replicas is None else tuple(t.replicas)
        for t in request.partitions
    }
    if len(targets) < len(request.partitions):
        raise InvalidRequestError("a partition is named twice")
    results: dict[TopicPartition, SparklogError | None] = await context.broker.cluster.membership.ask(
        lambda token: Reassign(token, targets, request.throttle_bytes)
    )
    return Response(AlterPartitionReassignmentsResponse([_outcome(tp, results[tp]) for tp in targets]))


async def list_partition_reassignments(
    request: ListPartitionReassignmentsRequest, payload: memoryview, context: RequestContext
) -> Response:
    """Answer with the controller's reassignments, so that a client also sees the reassignment that it just started."""
    image = context.broker.cluster.membership.controller_image()
    return Response(ListPartitionReassignmentsResponse(_reassignments(image, request.topics), image.throttle_bytes))


def _reassignments(image: ClusterImage, topics: list[str] | None) -> list[PartitionReassignment]:
    names = sorted(image.topics) if topics is None else [name for name in dict.fromkeys(topics) if name in image.topics]
    return [
        PartitionReassignment(name, number, p.leader, list(p.replicas), list(p.isr), list(p.adding), list(p.removing))
        for name in names
        for number, p in enumerate(image.topics[name].partitions)
        if p.is_reassigned
    ]


async def elect_leaders(request: ElectLeadersRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer when the elections are stored. The leaders begin when they have applied the image."""
    membership = context.broker.cluster.membership
    kind = ElectionKind.UNCLEAN if request.kind else ElectionKind.PREFERRED
    requested = request.partitions
    partitions = (
        None if requested is None else tuple(dict.fromkeys(TopicPartition(p.topic, p.partition) for p in requested))
    )
    before = membership.controller_image()
    results: dict[TopicPartition, SparklogError | None] = await membership.ask(
        lambda token: Elect(token, kind, partitions)
    )
    after = membership.controller_image()
    changed = sum(_leader(before, tp) != _leader(after, tp) for tp in results)
    return Response(ElectLeadersResponse([_outcome(tp, error) for tp, error in results.items()], changed))


def _leader(image: ClusterImage, tp: TopicPartition) -> int | None:
    partition = image.partition(tp)
    return None if partition is None else partition.leader


async def cordon_broker(request: CordonBrokerRequest, payload: memoryview, context: RequestContext) -> Response:
    """Cordon or uncordon a broker. No new replica is placed on a cordoned broker."""
    membership = context.broker.cluster.membership
    if request.broker_id not in membership.controller_image().known:
        raise InvalidRequestError(f"broker {request.broker_id} has never been in this cluster")
    cordoned: frozenset[int] = await membership.ask(lambda token: Cordon(token, request.broker_id, request.cordoned))
    return Response(CordonBrokerResponse(sorted(cordoned)))


async def describe_cluster(request: DescribeClusterRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer from this broker's image, even if there is no controller."""
    broker = context.broker
    image, controller = broker.cluster.image, broker.cluster.controller_id
    if controller not in image.brokers or not broker.cluster.is_certain:
        controller = -1
    states: list[BrokerState] = []
    for broker_id in sorted({*image.known, *image.brokers} if request.include_missing else image.brokers):
        state = BrokerState(broker_id, is_cordoned=broker_id in image.cordoned)
        registered = image.brokers.get(broker_id)
        if registered is not None:
            where = endpoint_of(context, broker_id)
            if where is not None:
                state.host, state.port = where
            state.rack, state.broker_epoch = registered.rack, registered.broker_epoch
            state.is_stopping = registered.is_stopping
        states.append(state)
    return Response(
        DescribeClusterResponse(
            broker.storage.cluster_id, controller, image.version.controller_epoch, states, image.throttle_bytes
        )
    )


def _outcome(tp: TopicPartition, error: SparklogError | None) -> PartitionOutcome:
    return PartitionOutcome(*tp) if error is None else PartitionOutcome(*tp, error.code, str(error))
