"""Descriptions of transactions for operators."""

from __future__ import annotations

from operator import attrgetter
from typing import NamedTuple

from sparklog.client.admin.call import Call
from sparklog.client.net.answers import single
from sparklog.client.net.coordinator_key import transaction_key
from sparklog.client.net.paging import after_last
from sparklog.errors import error_from_code
from sparklog.protocol.transaction_messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    ProducerState,
    TransactionDetails,
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


def describe_transaction(call: Call, transactional_id: str) -> TransactionDetails:
    """Describe a transaction; see `Admin.describe_transaction`."""
    request = DescribeTransactionsRequest([transactional_id], paged=True)
    details: TransactionDetails | None = None
    for page in call.pages(
        request,
        DescribeTransactionsResponse,
        lambda page: {"partitions_from": page.partitions_from} if page.partitions_from > 0 else {},
        coordinator=transaction_key(transactional_id),
    ):
        part = single(page.transactions, "transaction")
        if part.error_code:
            raise error_from_code(part.error_code, part.message)
        if details is None:
            details = part
        else:
            details.partitions += part.partitions
    assert details is not None
    return details


def describe_producers(call: Call, partition: TopicPartition) -> DescribeProducersResponse:
    """Describe the producers of a partition; see `Admin.describe_producers`."""
    request = DescribeProducersRequest(*partition, paged=True)
    following = after_last("producers", attrgetter("producer_id"))
    first, *others = call.pages(request, DescribeProducersResponse, following, leader_of=partition)
    for page in others:
        first.producers += page.producers
    first.more = False
    return first
