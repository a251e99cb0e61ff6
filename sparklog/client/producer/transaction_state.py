"""The states of a transactional producer and the permitted calls in each: a pure state machine (KIP-98, KIP-890).

    uninitialised -> ready <-> in transaction -> committing -> ready
                                  |    ^                \\-> abortable error
                                  v    |
                      abortable error -> aborting -> ready          any -> fatal error

After an abortable error only an abort is possible, after a fatal one nothing. An end whose answer is lost leaves the
producer committing (or aborting). Only the same end can be requested again, and the coordinator recognises the
repetition by the epoch.
"""

from __future__ import annotations

from enum import Enum

from sparklog.errors import (
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTransactionTimeoutError,
    InvalidTxnStateError,
    ProducerFencedError,
    SparklogError,
)
from sparklog.types import ProducerIdAndEpoch

FENCED = (ProducerFencedError, InvalidProducerIdMappingError)
"""Errors after which this producer cannot continue: another producer has its transactional id, or the id has
expired."""
FATAL_AT_COORDINATOR = (*FENCED, InvalidProducerEpochError, InvalidTransactionTimeoutError, InvalidTxnStateError)
"""Errors that are fatal in a coordinator's answer. A partition's leader can answer InvalidProducerEpochError because
the transaction has timed out; then an abort is still possible."""


class State(Enum):
    """The state of a transactional producer."""

    UNINITIALISED = "not initialised"
    READY = "ready"
    IN_TRANSACTION = "in a transaction"
    COMMITTING = "committing"
    ABORTING = "aborting"
    ABORTABLE_ERROR = "in a transaction that has failed"
    FATAL_ERROR = "fenced or broken"


class TransactionState:
    """The state of one producer's transactions. `error` is the cause of an error state.

    The methods for calls and their answers raise InvalidTxnStateError in a state that does not permit them; after a
    fatal error they raise it. `write_failed` and `coordinator_failed` never raise.
    """

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.state = State.UNINITIALISED
        self.identity: ProducerIdAndEpoch | None = None
        self.error: SparklogError | None = None

    def check_init(self) -> None:
        """Check the state before INIT_PRODUCER_ID."""
        self._require("call init_transactions() once, before all other calls", State.UNINITIALISED)

    def initialised(self, identity: ProducerIdAndEpoch) -> None:
        self.check_init()
        self.identity = identity
        self.state = State.READY

    def begin(self) -> ProducerIdAndEpoch:
        """Begin a transaction. Returns the identity to write with."""
        hint = "call init_transactions() first" if self.state is State.UNINITIALISED else "end the transaction first"
        self._require(hint, State.READY)
        assert self.identity is not None
        self.state = State.IN_TRANSACTION
        return self.identity

    def check_open(self) -> None:
        """Check the state before an addition to the transaction."""
        if self.state is State.ABORTABLE_ERROR:
            raise self._abort_first()
        self._require("call begin_transaction() first", State.IN_TRANSACTION)

    def begin_commit(self) -> None:
        """Begin END_TXN(commit): the first attempt, or a repetition."""
        if self.state is State.ABORTABLE_ERROR:
            raise self._abort_first()
        self._require("no transaction to commit", State.IN_TRANSACTION, State.COMMITTING)
        self.state = State.COMMITTING

    def begin_abort(self) -> None:
        """Begin END_TXN(abort): the first attempt, or a repetition."""
        hint = "no transaction to abort"
        if self.state is State.COMMITTING:
            hint = "the outcome of the commit is not known; call commit_transaction() again"
        self._require(hint, State.IN_TRANSACTION, State.ABORTABLE_ERROR, State.ABORTING)
        self.state = State.ABORTING

    def ended(self, identity: ProducerIdAndEpoch) -> None:
        """Note that the coordinator (or, without records, the producer itself) has ended the transaction."""
        self._require("no transaction is ending", State.COMMITTING, State.ABORTING)
        self.identity, self.error = identity, None
        self.state = State.READY

    def write_failed(self, error: SparklogError) -> None:
        """Note that a batch or offsets of the transaction were not stored. Errors in FENCED are fatal; after others the
        transaction can be aborted."""
        if isinstance(error, FENCED):
            self._fail(error)
        elif self.state is State.IN_TRANSACTION:
            self.state, self.error = State.ABORTABLE_ERROR, error

    def coordinator_failed(self, error: SparklogError) -> None:
        """Handle a failed INIT_PRODUCER_ID or END_TXN. A retriable error changes nothing, because the outcome is not
        known."""
        if isinstance(error, FATAL_AT_COORDINATOR):
            self._fail(error)
        elif error.retriable:
            return
        elif self.state is State.COMMITTING:
            self.state, self.error = State.ABORTABLE_ERROR, error
        elif self.state is State.ABORTING:
            self._fail(error)

    def _fail(self, error: SparklogError) -> None:
        if self.state is not State.FATAL_ERROR:
            self.state, self.error = State.FATAL_ERROR, error

    def _abort_first(self) -> SparklogError:
        error = InvalidTxnStateError(f"the transaction has failed, call abort_transaction(): {self.error}")
        error.__cause__ = self.error
        return error

    def _require(self, hint: str, *states: State) -> None:
        if self.state is State.FATAL_ERROR and self.error is not None:
            raise type(self.error)(f"this producer has failed; create a new producer: {self.error}") from self.error
        if self.state not in states:
            raise InvalidTxnStateError(f"producer {self.transactional_id!r} is {self.state.value}: {hint}")
