"""Shared transactions, as Spark's sink uses them: the driver draws a fencing token, tasks join, the driver ends.

The rules are in docs/internals/delivery.md, section 3. Every call is tried again after retriable errors until its
policy's time is over; it is harmless to repeat any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sparklog.client.net.answers import identity_of
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.coordinator_key import application_key, transaction_key
from sparklog.client.net.retry import Retries, RetryPolicy, request_until
from sparklog.errors import InvalidRequestError
from sparklog.protocol.apis import Api
from sparklog.protocol.transaction_messages import (
    EndSharedTxnRequest,
    EndSharedTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    JoinSharedTxnRequest,
    JoinSharedTxnResponse,
    RenewSharedTxnRequest,
    RenewSharedTxnResponse,
)
from sparklog.types import FENCING_TOKENS_ID, shared_transactional_id

DEFAULT_POLICY = RetryPolicy()


class SharedTransaction(NamedTuple):
    """One transaction of many participants. `app_id` and `version` identify the transaction, `run_id` and
    `fencing_token` the present run.
    """

    app_id: str
    version: int
    run_id: str
    fencing_token: int

    @property
    def transactional_id(self) -> str:
        """The transactional id that participants name in their produce requests."""
        return shared_transactional_id(self.app_id)


class Participant(NamedTuple):
    """The identity of a participant, for one use in `Producer.participation`."""

    transactional_id: str
    producer_id: int
    producer_epoch: int


class LastCommit(NamedTuple):
    """The newest version that an application has committed (-1: the broker does not report it), and the application's
    description of its input ("": none)."""

    version: int
    input: str


class TransactionOutcome(NamedTuple):
    """`committed`: True for a committed version. `last`: the application's newest commit, which an abort leaves
    unchanged."""

    committed: bool
    last: LastCommit


def draw_fencing_token(cluster: Cluster, policy: RetryPolicy = DEFAULT_POLICY) -> int:
    """Return a fencing token, a number larger than all that were drawn before. The run that has it takes over from
    earlier runs. Raises InvalidRequestError for a number that cannot be a token."""
    token = request_until(
        cluster,
        Api.INIT_PRODUCER_ID,
        InitProducerIdRequest(fencing_token=True),
        InitProducerIdResponse,
        Retries(policy),
        coordinator=transaction_key(FENCING_TOKENS_ID),
    ).producer_id
    if token < 0:  # a caller could take it for a write without transactions
        raise InvalidRequestError(f"the broker's response has the fencing token {token}: a token is 0 or more")
    return token


def join_shared_transaction(
    cluster: Cluster,
    transaction: SharedTransaction,
    *,
    timeout_ms: int,
    lease_ms: int = 0,
    policy: RetryPolicy = DEFAULT_POLICY,
) -> Participant | LastCommit:
    """Make the caller a participant. If the version is committed already, the result is a LastCommit, and nothing is to
    be written.

    The transaction is aborted if it has not ended after `timeout_ms`. With a lease (`lease_ms` above 0) it is also
    aborted if no participant has joined or renewed it for `lease_ms`. Raises ProducerFencedError (a newer run has taken
    over), TransactionAbortedError, InvalidTransactionTimeoutError, InvalidRequestError for an identity that no producer
    can have.
    """
    request = JoinSharedTxnRequest(*transaction, timeout_ms, lease_ms)
    answer = request_until(
        cluster,
        Api.JOIN_SHARED_TXN,
        request,
        JoinSharedTxnResponse,
        Retries(policy),
        coordinator=application_key(transaction.app_id),
    )
    if answer.committed:
        return LastCommit(answer.last_committed_version, answer.last_committed_input)
    return Participant(transaction.transactional_id, *identity_of(answer))


def end_shared_transaction(
    cluster: Cluster,
    transaction: SharedTransaction,
    *,
    committed: bool,
    committed_participants: Sequence[int] = (),
    input_text: str = "",
    policy: RetryPolicy = DEFAULT_POLICY,
) -> TransactionOutcome:
    """Commit the records of `committed_participants` (producer ids) and abort the rest; with `committed=False` abort
    everything. An outcome that was decided before stays.

    `input_text` is the application's description of its input; it is kept as `LastCommit.input`. Raises
    ProducerFencedError, TransactionAbortedError.
    """
    request = EndSharedTxnRequest(*transaction, committed, list(committed_participants), input_text)
    answer = request_until(
        cluster,
        Api.END_SHARED_TXN,
        request,
        EndSharedTxnResponse,
        Retries(policy),
        coordinator=application_key(transaction.app_id),
    )
    return TransactionOutcome(answer.committed, LastCommit(answer.last_committed_version, answer.last_committed_input))


def renew_shared_transaction(
    cluster: Cluster, transaction: SharedTransaction, *, policy: RetryPolicy = DEFAULT_POLICY
) -> bool:
    """Renew the transaction's lease. Returns False if the transaction has ended; True also before the first participant
    joins."""
    request = RenewSharedTxnRequest(transaction.app_id, transaction.version, transaction.run_id)
    answer = request_until(
        cluster,
        Api.RENEW_SHARED_TXN,
        request,
        RenewSharedTxnResponse,
        Retries(policy),
        coordinator=application_key(transaction.app_id),
    )
    return answer.is_open or not answer.known
