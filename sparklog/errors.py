"""Every error sparklog raises: one table of wire codes, one exception class per code.

Names and messages may change; a code never does and is never reused (a test pins the table). A client that
receives a code it does not know raises `UnknownServerError`, which is not retriable.

`retriable` says whether the same request may succeed later without anybody changing anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


def one_line(text: str) -> str:
    """`text` with everything escaped that could begin a line or change how others look: line ends, control characters,
    marks of direction. For whatever a peer chose and somebody reads."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class SparklogError(Exception):
    """Base of all sparklog errors. `code` is its number on the wire, `retriable` says whether trying again can help."""

    code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False
    outcomes: Mapping[Any, object] | None = None
    """Of a call that changes several items: the result of each item, or its error. None for any other error."""

    @property
    def name(self) -> str:
        """The error's stable name in the log and on the command line, for example `OFFSET_OUT_OF_RANGE`."""
        return NAMES.get(self.code, "UNKNOWN_SERVER_ERROR")


class UnknownServerError(SparklogError):
    """The broker failed in a way it has no name for; its log has the details."""


class OffsetOutOfRangeError(SparklogError):
    """The offset is below the log start or beyond the log end."""

    code = 1


class CorruptBatchError(SparklogError):
    """A batch's bytes are not what its checksum, its header or the topic's schema says."""

    code = 2


class UnknownTopicOrPartitionError(SparklogError):
    """No such topic, or the topic has no such partition."""

    code = 3


class InvalidTopicError(SparklogError):
    """The topic's name or definition is not acceptable."""

    code = 4


class TopicAlreadyExistsError(SparklogError):
    """A topic of this name exists already."""

    code = 5


class MessageTooLargeError(SparklogError):
    """A batch is larger than the topic's `max.message.bytes`, or takes too much once it is decompressed."""

    code = 6


class InvalidRequestError(SparklogError):
    """The request breaks the protocol or one of its limits; the connection is closed after it."""

    code = 7


class UnsupportedVersionError(SparklogError):
    """Client and broker have no version of the API in common. `supported`: the broker's first and last one, if it is
    told."""

    code = 8

    def __init__(self, message: str = "", *, supported: tuple[int, int] | None = None) -> None:
        super().__init__(message)
        self.supported = supported


class UnsupportedApiError(SparklogError):
    """The broker has no such API."""

    code = 9


class FrameTooLargeError(SparklogError):
    """The frame is larger than `socket.request.max.bytes`."""

    code = 10


class RequestTimedOutError(SparklogError):
    """No answer within the time limit; whether the request took effect is not known."""

    code = 11
    retriable = True


class BrokerNotAvailableError(SparklogError):
    """The broker cannot be reached, or the connection broke."""

    code = 12
    retriable = True


class NotLeaderError(SparklogError):
    """This broker does not lead the partition; metadata has to be read again."""

    code = 13
    retriable = True


class StorageFullError(SparklogError):
    """The broker's disk is full. Nothing of the request was written; it can be tried again when there is space."""

    code = 14
    retriable = True


class StorageError(SparklogError):
    """Reading or writing the broker's disk failed."""

    code = 15


class SchemaMismatchError(SparklogError):
    """Data do not fit the topic's schema; the message names the column and both types."""

    code = 16


class UnknownSchemaError(SparklogError):
    """A batch names a schema id that the topic does not have."""

    code = 17


class InvalidConfigError(SparklogError):
    """A setting is unknown or its value is out of bounds."""

    code = 18


class InvalidPartitionsError(SparklogError):
    """The number of partitions, or a partition number, is not acceptable."""

    code = 19


class BrokerShuttingDownError(SparklogError):
    """The broker is stopping and takes no new requests."""

    code = 20
    retriable = True


class LogCorruptError(SparklogError):
    """A partition's files are damaged in the middle; it stays offline until it is repaired."""

    code = 21


class TooManyConnectionsError(SparklogError):
    """The broker has `max.connections` connections already."""

    code = 22
    retriable = True


class BufferExhaustedError(SparklogError):
    """The producer's `buffer.memory` stayed full for `max.block.ms`."""

    code = 23
    retriable = True


class FencedLeaderEpochError(SparklogError):
    """The request names an older leader epoch than the broker's; metadata has to be read again."""

    code = 24
    retriable = True


class UnknownLeaderEpochError(SparklogError):
    """The request names a newer leader epoch than the broker knows yet."""

    code = 25
    retriable = True


class LocalReadUnavailableError(SparklogError):
    """The broker does not offer its files for reading on the same host; the socket has to be used."""

    code = 26


class DataDirLockedError(SparklogError):
    """Another broker uses this data directory."""

    code = 27


class ClosedError(SparklogError):
    """The client, or the future's producer, has been closed."""

    code = 28


class DataLossError(SparklogError):
    """Offsets a reader still needed are gone (retention, a deleted or re-created topic)."""

    code = 29


class OutOfOrderSequenceError(SparklogError):
    """A batch's sequence number does not follow the producer's last one, or another batch is stored under it."""

    code = 30


class InvalidProducerEpochError(SparklogError):
    """The producer has a newer epoch: what was sent with an older one comes too late. Or it cannot have come to this
    one."""

    code = 31


class ProducerFencedError(SparklogError):
    """Another producer with the same transactional id, or a newer run of the query, has taken over."""

    code = 32


class InvalidTxnStateError(SparklogError):
    """The transaction is not in a state in which this can be done."""

    code = 33


class ConcurrentTransactionsError(SparklogError):
    """The end of the transaction before is still being written, or too many are open."""

    code = 34
    retriable = True


class InvalidProducerIdMappingError(SparklogError):
    """The producer id, or the fencing token, was never issued, or does not belong to the transactional id."""

    code = 35


class TransactionAbortedError(SparklogError):
    """The transaction was aborted (its timeout, an operator, a newer run): nothing of it is visible; begin a new
    one."""

    code = 36


class CoordinatorLoadingError(SparklogError):
    """The coordinator is still reading its state."""

    code = 37
    retriable = True


class CoordinatorFencedError(SparklogError):
    """A marker comes from a coordinator that has been replaced."""

    code = 38


class InvalidTransactionTimeoutError(SparklogError):
    """The transaction's timeout is larger than the broker's `transaction.max.timeout.ms`."""

    code = 39


class UnknownMemberIdError(SparklogError):
    """The group does not know this member (any more): it has to join again."""

    code = 40


class FencedMemberEpochError(SparklogError):
    """The member's epoch is not the one the group knows: it has to give up its partitions and join again."""

    code = 41


class StaleMemberEpochError(SparklogError):
    """A commit with an older member epoch than the group knows; the next heartbeat tells the new one."""

    code = 42


class GroupIdNotFoundError(SparklogError):
    """There is no such group."""

    code = 43


class NonEmptyGroupError(SparklogError):
    """The group has members: stop them first."""

    code = 44


class FencedInstanceIdError(SparklogError):
    """Another member with the same `group.instance.id` has taken over."""

    code = 45


class UnreleasedInstanceIdError(SparklogError):
    """The `group.instance.id` is in use by a member that has not left."""

    code = 46


class UnstableOffsetCommitError(SparklogError):
    """An offset is part of a transaction that has not ended yet."""

    code = 47
    retriable = True


class GroupMaxSizeReachedError(SparklogError):
    """The group has `group.max.size` members already, or the broker as many groups or offsets as it keeps."""

    code = 48


class UnsupportedAssignorError(SparklogError):
    """The broker has no assignor of this name."""

    code = 49


class InvalidGroupIdError(SparklogError):
    """The group's name is not acceptable, or the call needs a group and the consumer has none."""

    code = 50


class CommitFailedError(SparklogError):
    """Offsets could not be committed: the group has given the partitions to somebody else."""

    code = 51


class RemoteStorageError(SparklogError):
    """The object store of the older segments cannot be reached, or refused; it is tried again."""

    code = 60
    retriable = True


class ResponseTooLargeError(SparklogError):
    """The answer would be larger than the broker's `response.max.bytes`; the message says how to ask for less."""

    code = 65


class InvalidTimestampError(SparklogError):
    """A record's timestamp lies further in the future than the topic takes."""

    code = 61


class StaleCheckpointError(SparklogError):
    """The number of a streaming batch has been committed already, with other input."""

    code = 62


class SerializationError(SparklogError):
    """A producer's serializer has failed, or has not given bytes; nothing was sent. The cause is what it raised."""

    code = 70


class DeserializationError(SparklogError):
    """A consumer's deserializer has failed for one record, or Python has no object for a value of a typed topic.

    It is the record at `offset` of `partition`; `record` has the bytes, or is None where it is a typed topic's:
    poll_batches reads it. The cause is what the deserializer, or Arrow, has raised. poll raises it again until the
    partition is sought: `seek(error.partition, error.offset + 1)` leaves the record out."""

    code = 71

    def __init__(
        self, message: str = "", *, partition: tuple[str, int] | None = None, offset: int = -1, record: object = None
    ) -> None:
        super().__init__(message)
        self.partition = partition
        self.offset = offset
        self.record = record


class ConcurrentModificationError(SparklogError):
    """A thread has called a consumer while another thread was inside a call of it."""

    code = 72


class WakeupError(SparklogError):
    """`Consumer.wakeup()` of another thread has ended the call."""

    code = 73


class StorageUnavailableError(StorageError):
    """The broker could not get at a file just now: no descriptor or no memory was left, or the system refused to open
    it. Nothing of the request was written, and nothing is in doubt; it can be tried again."""

    code = 64
    retriable = True


class SaslAuthenticationFailedError(SparklogError):
    """The peer is not who it says it is. The text never says whether the user or the password was wrong."""

    code = 100


class UnsupportedSaslMechanismError(SparklogError):
    """The listener does not take this SASL mechanism."""

    code = 101


class IllegalSaslStateError(SparklogError):
    """The message is not allowed at this point of the authentication; the connection is closed."""

    code = 102


class TopicAuthorizationFailedError(SparklogError):
    """The principal may not do this with the topic, whether the topic exists or not."""

    code = 103


class GroupAuthorizationFailedError(SparklogError):
    """The principal may not do this with the group, whether the group exists or not."""

    code = 104


class TransactionalIdAuthorizationFailedError(SparklogError):
    """The principal may not do this with the transactional id, whether the id exists or not."""

    code = 105


class ClusterAuthorizationFailedError(SparklogError):
    """The principal may not do this with the cluster."""

    code = 106


class PolicyViolationError(SparklogError):
    """The request goes beyond a number that the principal is limited to (its quota of topics, partitions or
    connections)."""

    code = 107


class SecurityDisabledError(SparklogError):
    """The broker has no authorizer, so it keeps no ACLs: set authorizer = "acl" in its configuration first."""

    code = 108


class NotEnoughReplicasError(SparklogError):
    """The in-sync replicas are fewer than `min.insync.replicas`: nothing was written."""

    code = 80
    retriable = True


class NotEnoughReplicasAfterAppendError(SparklogError):
    """After the append the in-sync replicas have become fewer than `min.insync.replicas`, or another broker leads: the
    records may stay."""

    code = 81
    retriable = True


class OffsetNotAvailableError(SparklogError):
    """The leader is new and does not know yet how far its log is committed (KIP-207)."""

    code = 82
    retriable = True


class StaleBrokerEpochError(SparklogError):
    """The request comes from a former life of the broker: it has registered anew since."""

    code = 83


class IneligibleReplicaError(SparklogError):
    """A proposed member of the ISR is not alive, is stopping, or has restarted since it was in sync."""

    code = 84


class InvalidUpdateVersionError(SparklogError):
    """The partition has changed since the state that the proposal is based on."""

    code = 85


class NotControllerError(SparklogError):
    """This broker is not the controller; metadata has to be read again."""

    code = 86
    retriable = True


class InvalidReplicationFactorError(SparklogError):
    """The replication factor is below 1 or above the number of brokers."""

    code = 87


class InvalidReplicaAssignmentError(SparklogError):
    """A replica assignment names brokers twice, unknown brokers, or none."""

    code = 88


class NoReassignmentInProgressError(SparklogError):
    """The partition is not being reassigned."""

    code = 89


class EligibleLeadersNotAvailableError(SparklogError):
    """No replica that may lead the partition is alive."""

    code = 90
    retriable = True


class InvalidFetchSessionError(SparklogError):
    """The leader does not know this fetch session, or another request of it was due; begin a new one."""

    code = 91
    retriable = True


class LeaderNotAvailableError(SparklogError):
    """Nobody leads the partition at the moment; one of its replicas has to come back."""

    code = 92
    retriable = True


class NotCoordinatorError(SparklogError):
    """This broker does not coordinate the group or the transactional id; find the coordinator again."""

    code = 93
    retriable = True


class CoordinatorNotAvailableError(SparklogError):
    """Nobody coordinates the group or the transactional id at the moment; it comes with the next leader."""

    code = 94
    retriable = True


class ResourceNotFoundError(SparklogError):
    """What is to be changed or removed, as a user's credential, is not there."""

    code = 95


class AdoptionRefusedError(SparklogError):
    """A broker's directory cannot be taken into a cluster as it is: something in it collides with what is there."""

    code = 96


class InvalidQueryError(SparklogError):
    """DuckDB cannot run the SQL: a mistake in it, or more memory than it may use."""

    code = 110


class QueryResultTooLargeError(SparklogError):
    """A query's result has more rows or bytes than were asked for at most."""

    code = 111


class QueryCancelledError(SparklogError):
    """A query was cancelled while it ran."""

    code = 112


class LogTruncatedError(OffsetOutOfRangeError):
    """Records that were read are gone: an unclean election has made a replica leader that did not have them (KIP-320).
    `divergent_offset`: the first offset at which there may be others now, -1: not known."""

    code = 130

    def __init__(self, message: str = "", *, divergent_offset: int = -1) -> None:
        super().__init__(message)
        self.divergent_offset = divergent_offset


def _with_subclasses(cls: type[SparklogError]) -> list[type[SparklogError]]:
    return [cls, *(s for c in cls.__subclasses__() for s in _with_subclasses(c))]


def _snake(name: str) -> str:
    return "".join("_" + c if c.isupper() and i else c for i, c in enumerate(name)).upper()


ERRORS: dict[int, type[SparklogError]] = {
    UnknownServerError.code: UnknownServerError,
    **{c.code: c for c in _with_subclasses(SparklogError)[1:] if "code" in vars(c)},
}
NAMES: dict[int, str] = {0: "NONE", -1: "UNKNOWN_SERVER_ERROR"} | {
    code: _snake(cls.__name__.removesuffix("Error")) for code, cls in sorted(ERRORS.items()) if code > 0
}


def error_from_code(code: int, message: str) -> SparklogError:
    """The exception for a wire code (not raised); its text is one line. An unknown code gives `UnknownServerError`."""
    cls = ERRORS.get(code, UnknownServerError)
    return cls(one_line(message) or " ".join((cls.__doc__ or "").split()))
