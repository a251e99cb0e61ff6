"""Transactions: begin, end, join, renewal of leases, operators' requests. INIT_PRODUCER_ID is in producer_ids.py."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from sparklog.errors import InvalidRequestError
from sparklog.protocol.apis import Api
from sparklog.protocol.codec import encode
from sparklog.protocol.permission_rules import application_resource
from sparklog.protocol.transaction_messages import (
    AbortTransactionRequest,
    AbortTransactionResponse,
    BeginTxnRequest,
    BeginTxnResponse,
    DescribeProducersRequest,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    EndSharedTxnRequest,
    EndSharedTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    JoinSharedTxnRequest,
    JoinSharedTxnResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    RenewSharedTxnRequest,
    RenewSharedTxnResponse,
    TransactionDetails,
)
from sparklog.types import TopicPartition
from sparklog_broker.network.large_responses import NEWER_CLIENT, FittingItems, one_by_one, parts_of, too_large
from sparklog_broker.network.reply import Response
from sparklog_broker.request_context import RequestContext


async def begin_txn(request: BeginTxnRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer when the coordinator's log has the open transaction."""
    await context.broker.transactions.begin_transaction(
        request.transactional_id, request.producer_id, request.producer_epoch
    )
    return Response(BeginTxnResponse())


async def end_txn(request: EndTxnRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer when all markers are written."""
    identity = await context.broker.transactions.end(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        commit=request.committed,
        keeps_epoch=request.keeps_epoch,
    )
    return Response(EndTxnResponse(*identity))


async def join_shared_txn(request: JoinSharedTxnRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer when the participant's record is below the high watermark. For a version that is committed already, answer
    with the newest committed version."""
    context.broker.check_drawn(request.fencing_token, context.principal)
    joined = await context.broker.transactions.join(
        request.app_id, request.version, request.run_id, request.fencing_token, request.timeout_ms, request.lease_ms
    )
    if joined.identity is None:
        return Response(
            JoinSharedTxnResponse(True, -1, -1, *context.broker.transactions.last_committed(request.app_id))
        )
    return Response(JoinSharedTxnResponse(False, *joined.identity))


async def end_shared_txn(request: EndSharedTxnRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer when all markers are written."""
    context.broker.check_drawn(request.fencing_token, context.principal)
    transactions = context.broker.transactions
    committed = await transactions.end_shared(
        request.app_id,
        request.version,
        request.run_id,
        request.fencing_token,
        request.committed_participants,
        commit=request.committed,
        input_text=request.input,
    )
    return Response(EndSharedTxnResponse(committed, *transactions.last_committed(request.app_id)))


async def renew_shared_txn(request: RenewSharedTxnRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer at once. A transaction that is not open yet is no error."""
    renewed = await context.broker.transactions.renew(request.app_id, request.version, request.run_id)
    return Response(RenewSharedTxnResponse(*renewed))


async def list_transactions(request: ListTransactionsRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answer with the transactions that this broker coordinates."""
    broker = context.broker
    await broker.time_slices.begin()
    summaries = broker.transactions.summaries(request.states, request.running_ms_min, request.after)
    version = context.older_version
    items = one_by_one(context.shown(Api.LIST_TRANSACTIONS, summaries), version)
    return await broker.large_responses.build(
        ListTransactionsResponse([]), "transactions", items, paged=request.paged, remedy=NEWER_CLIENT, version=version
    )


async def describe_transactions(
    request: DescribeTransactionsRequest, payload: memoryview, context: RequestContext
) -> Response:
    broker = context.broker
    await broker.time_slices.begin()
    response = DescribeTransactionsResponse([])
    return await broker.large_responses.build(
        response,
        "transactions",
        _described(context, request, response),
        paged=request.paged,
        remedy=f"ask for one transaction at a time; {NEWER_CLIENT}",
        version=context.older_version,
    )


def _described(
    context: RequestContext, request: DescribeTransactionsRequest, response: DescribeTransactionsResponse
) -> Iterator[Iterable[bytes]]:
    """Yield for each transaction the encoded parts of its description, with as many partitions as fit. If partitions
    are left over, note the next partition in `response` and stop; an unpaged request raises ResponseTooLargeError
    instead.

    `LargeResponses.build` takes the next transaction only after it has added the previous transaction to the answer.
    """
    transactions, limit_bytes = context.broker.transactions, context.broker.large_responses.limit_bytes
    first = request.partitions_from
    for transactional_id in dict.fromkeys(request.transactional_ids):
        denied = context.denied.get(application_resource(transactional_id))
        if denied is not None:
            details = TransactionDetails(denied.code, transactional_id, message=str(denied))
            yield (encode(details, context.older_version),)
            first = 0
            continue
        details = transactions.describe(transactional_id)
        room_bytes = limit_bytes // 2 if request.paged else limit_bytes
        shown = list(context.shown(Api.DESCRIBE_TRANSACTIONS, details.partitions))
        partitions = FittingItems(shown[first:], room_bytes, context.older_version)
        yield chain(partitions.collect(), _parts(details, partitions, context.older_version))
        if not partitions.complete:
            if not request.paged:
                raise too_large(limit_bytes, NEWER_CLIENT)
            response.more, response.partitions_from = True, first + len(partitions.encoded)
            return
        first = 0


def _parts(details: TransactionDetails, partitions: FittingItems, version: int | None) -> Iterator[bytes]:
    yield from parts_of(details, {"partitions": (len(partitions.encoded), partitions.encoded)}, version)


async def abort_transaction(request: AbortTransactionRequest, payload: memoryview, context: RequestContext) -> Response:
    transactions = context.broker.transactions
    if request.transactional_id is not None:
        return Response(AbortTransactionResponse(await transactions.abort(request.transactional_id)))
    if request.producer_id < 0:
        raise InvalidRequestError("an abort needs a transactional id, or a partition and a producer id")
    partition = TopicPartition(request.topic, request.partition)
    owners = await context.broker.transaction_access.owners(partition)
    return Response(AbortTransactionResponse(await transactions.abort_hanging(partition, request.producer_id, owners)))


async def describe_producers(
    request: DescribeProducersRequest, payload: memoryview, context: RequestContext
) -> Response:
    broker = context.broker
    await broker.time_slices.begin()
    partition = TopicPartition(request.topic, request.partition)
    broker.partitions.get(*partition)
    answer = broker.transactions.describe_producers(partition, await broker.transaction_access.owners(partition))
    producers = (p for p in answer.producers if p.producer_id > request.after)
    answer.producers = []
    version = context.older_version
    return await broker.large_responses.build(
        answer,
        "producers",
        one_by_one(context.shown(Api.DESCRIBE_PRODUCERS, producers), version),
        paged=request.paged,
        remedy=NEWER_CLIENT,
        version=version,
    )
