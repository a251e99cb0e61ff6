"""Requests between brokers about transactions: WRITE_TXN_MARKERS, ADD_PARTITIONS_TO_TXN, FIND_TXN_OWNERS,
HOLD_TRANSACTIONS.
"""

from __future__ import annotations

from sparklog.protocol.cluster_messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    FindTxnOwnersRequest,
    FindTxnOwnersResponse,
    HoldTransactionsRequest,
    HoldTransactionsResponse,
    TransactionOwner,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from sparklog.replication.transactions import Marker
from sparklog.types import TopicPartition
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext


async def write_txn_markers(request: WriteTxnMarkersRequest, payload: memoryview, context: RequestContext) -> Response:
    """Write the markers, and answer when they are replicated. The answer has the positions of the markers that were not
    written, for example because this broker does not lead their partition."""
    broker = context.broker
    markers = await broker.time_slices.list_of(
        Marker(TopicPartition(m.topic, m.partition), m.producer_id, m.producer_epoch, m.commit, m.keeps_epoch)
        for m in request.markers
    )
    written = await broker.markers.write_here(markers, request.coordinator_epoch, request.started_ms)
    return Response(WriteTxnMarkersResponse([i for i, m in enumerate(markers) if m not in written]))


async def add_partitions_to_txn(
    request: AddPartitionsToTxnRequest, payload: memoryview, context: RequestContext
) -> Response:
    """Answer when the coordinator's log contains the partitions. A request without partitions asks for the error of a
    producer with an old epoch, which is raised."""
    transactions = context.broker.transactions
    identity = request.transactional_id, request.producer_id, request.producer_epoch
    if not request.partitions:
        raise transactions.stale(*identity)
    partitions = [TopicPartition(p.topic, p.partition) for p in request.partitions]
    started_ms = await transactions.add_partitions(*identity, partitions)
    return Response(AddPartitionsToTxnResponse(len(partitions), started_ms))


async def find_txn_owners(request: FindTxnOwnersRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer with the open transactions that this broker coordinates and that include the partition."""
    owners = context.broker.transactions.owners(TopicPartition(request.topic, request.partition))
    return Response(FindTxnOwnersResponse([TransactionOwner(*owner) for owner in owners.items()]))


async def hold_transactions(request: HoldTransactionsRequest, payload: memoryview, context: RequestContext) -> Response:
    """Hold or release the transactions that this broker coordinates. The answer has the held partitions of the state
    topic with their leader epochs."""
    transactions = context.broker.transactions
    if request.release:
        held = transactions.release(request.name)
    else:
        held = await transactions.hold(request.name, request.hold_ms / 1000)
    return Response(HoldTransactionsResponse(list(held), list(held.values())))
