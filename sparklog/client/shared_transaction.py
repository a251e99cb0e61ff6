"""Shared transactions, as Spark's sink uses them: the driver draws a ticket, tasks join, the driver ends.

docs/internals/delivery.md, section 3. Every call is tried again after retriable errors until its policy's time is over;
all of them may be repeated without harm.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sparklog.client.cluster import Cluster
from sparklog.client.retry import RetryPolicy, request_until
from sparklog.protocol.messages import Api
from sparklog.protocol.transaction_messages import (
    EndSharedTxnRequest,
    EndSharedTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    JoinSharedTxnRequest,
    JoinSharedTxnResponse,
)
from sparklog.types import shared_transactional_id

DEFAULT_POLICY = RetryPolicy()


class SharedTransaction(NamedTuple):
    """One transaction of many participants: `app_id` and `version` name it, `run_id` and `ticket` the run that works on it."""

    app_id: str
    version: int
    run_id: str
    ticket: int

    @property
    def transactional_id(self) -> str:
        """What participants name in their produce requests."""
        return shared_transactional_id(self.app_id)


class Participant(NamedTuple):
    """What a participant writes with, once: for `Producer.participate`."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


def draw_ticket(cluster: Cluster, policy: RetryPolicy = DEFAULT_POLICY) -> int:
    """A number larger than all that were drawn before: the run that has it takes over from earlier runs."""
    return request_until(
        cluster, Api.INIT_PRODUCER_ID, InitProducerIdRequest(), InitProducerIdResponse, policy
    ).producer_id


def join_shared_transaction(
    cluster: Cluster, transaction: SharedTransaction, *, timeout_ms: int, policy: RetryPolicy = DEFAULT_POLICY
) -> Participant | None:
    """Makes the caller a participant; None: the version is committed already, nothing is to be written.

    `timeout_ms`: the transaction is aborted if it has not ended by then. Raises ProducerFencedError (a newer run has
    taken over), TransactionAbortedError, InvalidTransactionTimeoutError.
    """
    request = JoinSharedTxnRequest(*transaction, timeout_ms)
    answer = request_until(cluster, Api.JOIN_SHARED_TXN, request, JoinSharedTxnResponse, policy)
    if answer.committed:
        return None
    return Participant(transaction.transactional_id, answer.producer_id, answer.producer_epoch)


def end_shared_transaction(
    cluster: Cluster,
    transaction: SharedTransaction,
    *,
    committed: bool,
    winners: Sequence[int] = (),
    policy: RetryPolicy = DEFAULT_POLICY,
) -> bool:
    """Commits what the participants `winners` (producer ids) wrote, or aborts everything; returns whether the version is
    committed, which an earlier decision may have settled. Raises ProducerFencedError, TransactionAbortedError."""
    request = EndSharedTxnRequest(*transaction, committed, list(winners))
    return request_until(cluster, Api.END_SHARED_TXN, request, EndSharedTxnResponse, policy).committed
