"""Classes of errors by their meaning for the sender, and the errors with which batches finally fail."""

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
"""Error codes of a leader that does not reach its followers. Such a leader is perhaps cut off from the controller, too,
so the client asks it last."""
TOPIC_CHANGED = (UnknownTopicOrPartitionError, UnknownSchemaError)
"""Errors which prove that the known metadata of the topic are wrong; the metadata are then forgotten. After other
errors the metadata are read again, but stay in use if no broker answers."""

NOT_STORED = (
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
"""Errors which prove that the attempt has stored nothing: the client or the broker raises them before the broker
writes."""


def expired(batch: PendingBatch) -> SparklogError:
    """Return the error of a batch that was not acknowledged within `delivery.timeout.ms`."""
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
    """Return the TransactionAbortedError for the batches of a failed transaction."""
    cause = session.error if session is not None else None
    if isinstance(cause, TransactionAbortedError):
        return cause
    error = TransactionAbortedError(f"the transaction failed before these records were stored: {cause}")
    error.__cause__ = cause
    return error
