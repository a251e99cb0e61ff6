"""A transactional producer's conversation with the coordinator.

The rules are in `transaction_state`. This module sends the requests, and sets the error that `send` raises while no
transaction is open.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sparklog.client.group.group_offsets import Offsets, as_committed
from sparklog.client.net.answers import identity_of
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.coordinator_key import group_key, transaction_key
from sparklog.client.net.retry import Retries, RetryPolicy, request_until
from sparklog.client.producer.accumulator import Accumulator
from sparklog.client.producer.sequences import WriteSession
from sparklog.client.producer.transaction_state import State, TransactionState
from sparklog.environment.fault_points import reach
from sparklog.errors import (
    InvalidRequestError,
    InvalidTxnStateError,
    SparklogError,
    TransactionAbortedError,
    error_from_code,
)
from sparklog.protocol.apis import Api
from sparklog.protocol.group_messages import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from sparklog.protocol.transaction_messages import (
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)
from sparklog.types import GroupMetadata, ProducerIdAndEpoch


class Transactions:
    """The transactions of one producer, one after the other. Not thread-safe: one thread begins and ends them.

    `flush` waits for everything accepted and raises the first failure; `wait_for_outcomes` only waits.
    """

    def __init__(
        self,
        cluster: Cluster,
        accumulator: Accumulator,
        policy: RetryPolicy,
        *,
        transactional_id: str,
        timeout_ms: int,
        flush: Callable[[], None],
        wait_for_outcomes: Callable[[float | None], None],
    ) -> None:
        self._cluster = cluster
        self._accumulator = accumulator
        self._policy = policy
        self._timeout_ms = timeout_ms
        self._flush = flush
        self._wait_for_outcomes = wait_for_outcomes
        self._session = WriteSession(None, transactional_id)
        self.state = TransactionState(transactional_id)
        self._refuse("call init_transactions() first")

    @property
    def is_open(self) -> bool:
        """True if there is a transaction to abort."""
        return self.state.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.ABORTING)

    def init(self) -> None:
        """Take over the transactional id: fence its earlier producers, and abort their open transaction."""
        self.state.check_init()
        request = InitProducerIdRequest(self.state.transactional_id, self._timeout_ms)
        answer = self._ask(Api.INIT_PRODUCER_ID, request, InitProducerIdResponse)
        self.state.initialised(identity_of(answer))
        self._refuse("call begin_transaction() first")

    def begin(self) -> None:
        """Begin a transaction, to which all later records belong."""
        self._learn_failure()
        with self._raising():
            identity = self.state.begin()
        self._session = WriteSession(identity, self.state.transactional_id)
        self._accumulator.begin_session(self._session)

    def send_offsets(self, offsets: Offsets, group: GroupMetadata | str) -> None:
        """Add a group's offsets to the transaction; they are committed only with it. A malformed offset or group fails
        the call, not the transaction."""
        self._learn_failure()
        with self._raising():
            self.state.check_open()
        member = GroupMetadata(group) if isinstance(group, str) else group
        if not isinstance(member, GroupMetadata):
            raise InvalidRequestError(
                f"pass the group as Consumer.group_metadata() or as its group_id, not as {group!r}"
            )
        committed = as_committed(offsets)
        if not committed:
            return
        request = TxnOffsetCommitRequest(
            self.state.transactional_id,
            *self._identity(),
            member.group_id,
            committed,
            member.member_id,
            member.member_epoch,
        )
        self._session.is_used = True
        try:
            self._add_offsets(request)
        except SparklogError as e:
            self._accumulator.fail_session(e)
            self._learn_failure()
            self._session.is_error_raised = True
            raise

    def _add_offsets(self, request: TxnOffsetCommitRequest) -> None:
        """Send offsets to the group's coordinator until `max.block.ms` is over. Raises the first error of an offset."""
        attempts, key = Retries(self._policy), group_key(request.group_id)
        while True:
            answer = request_until(
                self._cluster, Api.TXN_OFFSET_COMMIT, request, TxnOffsetCommitResponse, attempts, coordinator=key
            )
            failed = next((result for result in answer.results if result.error_code), None)
            if failed is None:
                return
            attempts.pause(error_from_code(failed.error_code, failed.message))

    def commit(self) -> None:
        """Store everything and commit the transaction, or raise an error."""
        with self._raising():
            self._learn_failure()
            if self.state.state is State.IN_TRANSACTION:
                self._flush_all()
            self._raise_failure()
            self.state.begin_commit()
            self._end(commit=True)

    def _flush_all(self) -> None:
        self._refuse("the transaction is being committed")
        try:
            self._flush()
        except BaseException as e:
            self._learn_failure()
            if self.state.state is State.IN_TRANSACTION:
                self._accumulator.refuse(None)
                raise
            if not isinstance(e, SparklogError):
                raise
        self._learn_failure()

    def _raise_failure(self) -> None:
        """Raise the transaction's first failure. A retriable one is raised as TransactionAbortedError, because a
        retriable error would mean that the commit can be tried again."""
        error = self.state.error
        if self.state.state is State.ABORTABLE_ERROR and error is not None:
            if error.retriable:
                raise TransactionAbortedError(
                    f"the transaction has failed, call abort_transaction(): {error}"
                ) from error
            raise error

    def abort(self, timeout_s: float | None = None) -> None:
        """Abort: none of the transaction's records becomes visible. Batches that are not in flight fail; batches in
        flight are waited for.

        `timeout_s` limits the whole call further than `max.block.ms` does.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        self._learn_failure()
        with self._raising():
            self.state.begin_abort()
        self._accumulator.fail_session(TransactionAbortedError("the producer has aborted the transaction"))
        self._wait_for_outcomes(timeout_s)
        self._end(commit=False, deadline=deadline)

    def _end(self, *, commit: bool, deadline: float | None = None) -> None:
        identity = self._identity()
        if self._session.is_used:
            reach("producer.before-end")
            request = EndTxnRequest(self.state.transactional_id, *identity, commit)
            answer = self._ask(Api.END_TXN, request, EndTxnResponse, deadline)
            identity = identity_of(answer)
            reach("producer.after-end")
        self.state.ended(identity)
        self._refuse("call begin_transaction() first")

    def _identity(self) -> ProducerIdAndEpoch:
        assert self.state.identity is not None
        return self.state.identity

    def _ask(self, api: Api, request: Any, response: type[Any], deadline: float | None = None) -> Any:
        """Send a request to the transaction's coordinator, and repeat it until `max.block.ms` is over, or `deadline`
        (monotonic, in s) if that comes earlier."""
        policy = self._policy
        if deadline is not None:
            remaining_ms = max(1, int((deadline - time.monotonic()) * 1000))
            policy = policy._replace(timeout_ms=min(policy.timeout_ms, remaining_ms))
        try:
            key = transaction_key(self.state.transactional_id)
            return request_until(self._cluster, api, request, response, Retries(policy), coordinator=key)
        except SparklogError as e:
            self.state.coordinator_failed(e)
            if self.state.state is State.FATAL_ERROR:
                self._accumulator.refuse(e)
            raise

    def _learn_failure(self) -> None:
        """Take over the failure that the sender has noted in the session, if there is one."""
        error = self._session.error
        if isinstance(error, SparklogError):
            self.state.write_failed(error)

    @contextmanager
    def _raising(self) -> Iterator[None]:
        """Note that the application has seen the session's failure if the block raises it, or an error with this
        cause."""
        try:
            yield
        except SparklogError as e:
            is_wrong_call = isinstance(e, InvalidTxnStateError) and e.__cause__ is None
            if self._session.error is not None and not is_wrong_call:
                self._session.is_error_raised = True
            raise

    def _refuse(self, hint: str) -> None:
        self._accumulator.refuse(
            InvalidTxnStateError(f"producer {self.state.transactional_id!r} is {self.state.state.value}: {hint}")
        )
