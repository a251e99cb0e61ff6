"""The meaning of a failed attempt to store batches, and the errors of batches that have finally failed."""

from __future__ import annotations

from sparklog.client.producer.accumulator import PendingBatch
from sparklog.client.producer.sequences import WriteSession
from sparklog.errors import (
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    CorruptBatchError,
    FencedLeaderEpochError,
    FrameTooLargeError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidRequestError,
    InvalidTopicError,
    InvalidTxnStateError,
    MessageTooLargeError,
    NotEnoughReplicasAfterAppendError,
    NotEnoughReplicasError,
    NotLeaderError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RequestTimedOutError,
    SchemaMismatchError,
    SparklogError,
    TransactionAbortedError,
    UnknownLeaderEpochError,
    UnknownSchemaError,
    UnknownTopicOrPartitionError,
)

CUT_OFF = frozenset(e.code for e in (RequestTimedOutError, NotEnoughReplicasError, NotEnoughReplicasAfterAppendError))
"""Codes with which a leader answers that does not reach its followers, so perhaps not the controller either."""
TOPIC_CHANGED = (UnknownTopicOrPartitionError, UnknownSchemaError)
"""Errors that prove the topic's metadata wrong. After other failures the metadata are only read again."""

STORED_NOTHING = (
    OutOfOrderSequenceError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    ProducerFencedError,
    InvalidTxnStateError,
    ConcurrentTransactionsError,
    CoordinatorLoadingError,
    TransactionAbortedError,
    MessageTooLargeError,
    CorruptBatchError,
    SchemaMismatchError,
    UnknownSchemaError,
    UnknownTopicOrPartitionError,
    InvalidTopicError,
    NotLeaderError,
    FencedLeaderEpochError,
    UnknownLeaderEpochError,
    InvalidRequestError,
    FrameTooLargeError,
)
"""Errors of answers which prove that the attempt has stored nothing: the broker raises them before it writes."""


def expired(batch: PendingBatch) -> SparklogError:
    """Return the error of a batch that was tried for `delivery.timeout.ms`."""
    records, tp = batch.delivery.record_count, batch.delivery.tp
    reason = f"; the last attempt failed with: {batch.error}" if batch.error else ""
    error = RequestTimedOutError(f"{records} records for {tp} were not delivered within delivery.timeout.ms{reason}")
    error.__cause__ = batch.error
    return error


def unknown_outcome(batch: PendingBatch) -> SparklogError:
    """Return the error of a batch that cannot be sent again, because it might then be stored twice."""
    records, tp = batch.delivery.record_count, batch.delivery.tp
    error = RequestTimedOutError(f"{records} records for {tp} may or may not be stored, like the records before them")
    error.__cause__ = batch.error
    return error


def session_failed(session: WriteSession | None) -> SparklogError:
    """Return the error of the batches of a failed transaction."""
    cause = session.error if session is not None else None
    if isinstance(cause, TransactionAbortedError):
        return cause
    error = TransactionAbortedError(f"the transaction failed before these records were stored: {cause}")
    error.__cause__ = cause
    return error
