"""What operators ask about transactions, and their aborts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sparklog.client.cluster import Cluster
from sparklog.client.retry import RetryPolicy, request_until
from sparklog.errors import error_from_code
from sparklog.protocol.messages import Api
from sparklog.protocol.transaction_messages import (
    AbortTransactionRequest,
    AbortTransactionResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ListTransactionsRequest,
    ListTransactionsResponse,
    ProducerState,
    TransactionDetails,
    TransactionSummary,
)
from sparklog.types import TopicPartition


class HangingTransaction(NamedTuple):
    """A transaction that is open in a partition though no coordinator knows it: readers of committed records stop there,
    nothing behind it is compacted, until it is aborted."""

    partition: TopicPartition
    producer: ProducerState


def list_transactions(
    cluster: Cluster, states: Sequence[str] = (), running_ms_min: int = 0, *, timeout_ms: int = 30_000
) -> list[TransactionSummary]:
    """See `Admin.list_transactions`."""
    request = ListTransactionsRequest(list(states), running_ms_min)
    policy = RetryPolicy(timeout_ms)
    return request_until(cluster, Api.LIST_TRANSACTIONS, request, ListTransactionsResponse, policy).transactions


def describe_transaction(cluster: Cluster, transactional_id: str, *, timeout_ms: int = 30_000) -> TransactionDetails:
    """See `Admin.describe_transaction`."""
    request = DescribeTransactionsRequest([transactional_id])
    policy = RetryPolicy(timeout_ms)
    answer = request_until(cluster, Api.DESCRIBE_TRANSACTIONS, request, DescribeTransactionsResponse, policy)
    (found,) = answer.transactions
    if found.error_code:
        raise error_from_code(found.error_code, found.message)
    return found


def abort_transaction(cluster: Cluster, transactional_id: str, *, timeout_ms: int = 30_000) -> int:
    """See `Admin.abort_transaction`."""
    request = AbortTransactionRequest(transactional_id)
    return cluster.request(Api.ABORT_TRANSACTION, request, AbortTransactionResponse, timeout_ms=timeout_ms).partitions


def abort_hanging_transaction(
    cluster: Cluster, partition: TopicPartition, producer_id: int, *, timeout_ms: int = 30_000
) -> None:
    """See `Admin.abort_hanging_transaction`."""
    request = AbortTransactionRequest(None, partition.topic, partition.partition, producer_id)
    leader = cluster.leader(partition, timeout_ms=timeout_ms)
    cluster.request(Api.ABORT_TRANSACTION, request, AbortTransactionResponse, endpoint=leader, timeout_ms=timeout_ms)


def describe_producers(
    cluster: Cluster, partition: TopicPartition, *, timeout_ms: int = 30_000
) -> DescribeProducersResponse:
    """See `Admin.describe_producers`."""
    leader = cluster.leader(partition, timeout_ms=timeout_ms)
    return cluster.request(
        Api.DESCRIBE_PRODUCERS,
        DescribeProducersRequest(*partition),
        DescribeProducersResponse,
        endpoint=leader,
        timeout_ms=timeout_ms,
    )


def find_hanging_transactions(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, timeout_ms: int = 30_000
) -> list[HangingTransaction]:
    """See `Admin.find_hanging_transactions`."""
    return [
        HangingTransaction(partition, producer)
        for partition in partitions
        for producer in describe_producers(cluster, partition, timeout_ms=timeout_ms).producers
        if producer.transaction_first_offset >= 0 and producer.transactional_id is None
    ]
