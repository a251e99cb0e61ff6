"""Descriptions of transactions for operators, and aborts by operators."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.answers import single
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.coordinator_key import transaction_key
from sparklog.client.net.deadline import Deadline
from sparklog.client.net.paging import pages
from sparklog.client.net.retry import RetryPolicy, of_all_brokers, request_until
from sparklog.errors import error_from_code
from sparklog.protocol.apis import Api
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
    """A transaction that is open in a partition although no coordinator knows it.

    Until it is aborted, `read_committed` readers stop at its first record, and no later record is compacted.
    """

    partition: TopicPartition
    """The partition."""
    producer: ProducerState
    """The producer of the transaction."""


def list_transactions(
    cluster: Cluster, states: Sequence[str] = (), running_ms_min: int = 0, *, timeout_ms: int = 30_000
) -> list[TransactionSummary]:
    """List transactions; see `Admin.list_transactions`."""
    request = ListTransactionsRequest(list(states), running_ms_min, paged=True)
    everywhere = of_all_brokers(cluster, lambda b, ms: _listed_by(cluster, b, request, ms), timeout_ms)
    found = {t.transactional_id: t for t in everywhere}
    return [found[transactional_id] for transactional_id in sorted(found)]


def _listed_by(
    cluster: Cluster, endpoint: Endpoint | None, request: ListTransactionsRequest, timeout_ms: int
) -> list[TransactionSummary]:
    """Return the transactions that one broker coordinates."""

    def ask(before: ListTransactionsResponse | None) -> ListTransactionsResponse:
        after = "" if before is None else before.transactions[-1].transactional_id
        page = msgspec.structs.replace(request, after=after)
        return cluster.request(
            Api.LIST_TRANSACTIONS, page, ListTransactionsResponse, endpoint=endpoint, timeout_ms=timeout_ms
        )

    def position(page: ListTransactionsResponse) -> object:
        return page.transactions[-1].transactional_id if page.transactions else None

    return [t for page in pages(ask, position) for t in page.transactions]


def describe_transaction(cluster: Cluster, transactional_id: str, *, timeout_ms: int = 30_000) -> TransactionDetails:
    """Describe a transaction; see `Admin.describe_transaction`."""
    policy = RetryPolicy.within(timeout_ms)

    def ask(before: DescribeTransactionsResponse | None) -> DescribeTransactionsResponse:
        first = 0 if before is None else before.partitions_from
        request = DescribeTransactionsRequest([transactional_id], paged=True, partitions_from=first)
        return request_until(
            cluster,
            Api.DESCRIBE_TRANSACTIONS,
            request,
            DescribeTransactionsResponse,
            policy,
            coordinator=transaction_key(transactional_id),
        )

    found: TransactionDetails | None = None
    for page in pages(ask, lambda page: page.partitions_from if page.partitions_from > 0 else None):
        part = single(page.transactions, "transaction")
        if part.error_code:
            raise error_from_code(part.error_code, part.message)
        if found is None:
            found = part
        else:
            found.partitions += part.partitions
    assert found is not None
    return found


def abort_transaction(cluster: Cluster, transactional_id: str, *, timeout_ms: int = 30_000) -> int:
    """Abort a transaction; see `Admin.abort_transaction`."""
    return request_until(
        cluster,
        Api.ABORT_TRANSACTION,
        AbortTransactionRequest(transactional_id),
        AbortTransactionResponse,
        RetryPolicy.within(timeout_ms),
        coordinator=transaction_key(transactional_id),
        once=True,
    ).partitions


def abort_hanging_transaction(
    cluster: Cluster, partition: TopicPartition, producer_id: int, *, timeout_ms: int = 30_000
) -> None:
    """Abort a hanging transaction; see `Admin.abort_hanging_transaction`."""
    request_until(
        cluster,
        Api.ABORT_TRANSACTION,
        AbortTransactionRequest(None, partition.topic, partition.partition, producer_id),
        AbortTransactionResponse,
        RetryPolicy.within(timeout_ms),
        leader_of=partition,
        once=True,
    )


def describe_producers(
    cluster: Cluster, partition: TopicPartition, *, timeout_ms: int = 30_000
) -> DescribeProducersResponse:
    """Describe the producers of a partition; see `Admin.describe_producers`."""
    deadline = Deadline(timeout_ms)

    def ask(before: DescribeProducersResponse | None) -> DescribeProducersResponse:
        after = -1 if before is None else before.producers[-1].producer_id
        request = DescribeProducersRequest(*partition, paged=True, after=after)
        policy = RetryPolicy.within(deadline.left_ms())
        return request_until(
            cluster, Api.DESCRIBE_PRODUCERS, request, DescribeProducersResponse, policy, leader_of=partition
        )

    def position(page: DescribeProducersResponse) -> object:
        return page.producers[-1].producer_id if page.producers else None

    first, *others = pages(ask, position)
    for page in others:
        first.producers += page.producers
    first.more = False
    return first


def find_hanging_transactions(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, timeout_ms: int = 30_000
) -> list[HangingTransaction]:
    """Find hanging transactions; see `Admin.find_hanging_transactions`."""
    return [
        HangingTransaction(partition, producer)
        for partition in partitions
        for producer in describe_producers(cluster, partition, timeout_ms=timeout_ms).producers
        if producer.transaction_first_offset >= 0 and producer.transactional_id is None
    ]
