"""Transactions: end, join, and what operators ask and do. INIT_PRODUCER_ID is in producer_ids.py."""

from __future__ import annotations

from sparklog.errors import InvalidRequestError
from sparklog.protocol.transaction_messages import (
    AbortTransactionRequest,
    AbortTransactionResponse,
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
)
from sparklog.types import TopicPartition
from sparklog_broker.dispatcher import RequestContext
from sparklog_broker.reply import Response


async def end_txn(request: EndTxnRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answered when all markers are in."""
    identity = await context.broker.transactions.end(
        request.transactional_id, request.producer_id, request.producer_epoch, commit=request.committed
    )
    return Response(EndTxnResponse(*identity))


async def join_shared_txn(request: JoinSharedTxnRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answered when the participant is in the log."""
    joined = await context.broker.transactions.join(
        request.app_id, request.version, request.run_id, request.ticket, request.timeout_ms
    )
    if joined.identity is None:
        return Response(JoinSharedTxnResponse(committed=True))
    return Response(JoinSharedTxnResponse(False, *joined.identity))


async def end_shared_txn(request: EndSharedTxnRequest, payload: memoryview, context: RequestContext) -> Response:
    """Answered when all markers are in."""
    committed = await context.broker.transactions.end_shared(
        request.app_id, request.version, request.run_id, request.ticket, request.winners, commit=request.committed
    )
    return Response(EndSharedTxnResponse(committed))


async def list_transactions(request: ListTransactionsRequest, payload: memoryview, context: RequestContext) -> Response:
    found = context.broker.transactions.summaries(request.states, request.running_ms_min)
    return Response(ListTransactionsResponse(found))


async def describe_transactions(
    request: DescribeTransactionsRequest, payload: memoryview, context: RequestContext
) -> Response:
    describe = context.broker.transactions.describe
    return Response(DescribeTransactionsResponse([describe(i) for i in request.transactional_ids]))


async def abort_transaction(request: AbortTransactionRequest, payload: memoryview, context: RequestContext) -> Response:
    transactions = context.broker.transactions
    if request.transactional_id is not None:
        return Response(AbortTransactionResponse(await transactions.abort(request.transactional_id)))
    if request.producer_id < 0:
        raise InvalidRequestError("an abort needs a transactional id, or a partition and a producer id")
    partition = TopicPartition(request.topic, request.partition)
    return Response(AbortTransactionResponse(await transactions.abort_hanging(partition, request.producer_id)))


async def describe_producers(
    request: DescribeProducersRequest, payload: memoryview, context: RequestContext
) -> Response:
    partition = TopicPartition(request.topic, request.partition)
    return Response(context.broker.transactions.describe_producers(partition))
