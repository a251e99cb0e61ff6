"""Every error of sparklog: one table of wire codes, one exception class per code.

Names and messages can change between releases. A code never changes and is never reused (a test pins the table). A
client that receives an unknown code raises `UnknownServerError`, which is not retriable.

`retriable` is True if the same request can succeed later without any change by the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar


def one_line(text: str) -> str:
    """Return `text` with all characters escaped that could begin a line or change how other characters look.

    Such characters are line ends, control characters and marks of direction. The function is for text that a peer has
    chosen and a person reads."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class SparklogError(Exception):
    """Base of all sparklog errors."""

    code: ClassVar[int] = -1
    """Number of the error on the wire."""
    retriable: ClassVar[bool] = False
    """True if the same request can succeed later without any change by the user."""
    outcomes: Mapping[Any, object] | None = None
    """The result or the error of each item, for a call that changes several items; None for any other error."""

    @property
    def name(self) -> str:
        """Name of the error in the log and on the command line, for example `OFFSET_OUT_OF_RANGE`. It can change
        between releases; `code` cannot."""
        return NAMES.get(self.code, "UNKNOWN_SERVER_ERROR")


class UnknownServerError(SparklogError):
    """The broker failed in a way it has no name for; its log has the details."""


class OffsetOutOfRangeError(SparklogError):
    """The offset is below the log start or beyond the log end."""

    code = 1


class CorruptBatchError(SparklogError):
    """A batch's bytes do not match its checksum, its header or the topic's schema."""

    code = 2


class UnknownTopicOrPartitionError(SparklogError):
    """The topic does not exist, or has no such partition."""

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
    """Client and broker have no version of the API in common."""

    code = 8

    def __init__(self, message: str = "", *, supported: tuple[int, int] | None = None) -> None:
        """Create the error.

        Args:
            message: The text.
            supported: First and last version of the broker; None: not known.
        """
        super().__init__(message)
        self.supported = supported
        """First and last version of the broker; None: not known."""


class UnsupportedApiError(SparklogError):
    """The broker has no such API."""

    code = 9


class FrameTooLargeError(SparklogError):
    """The frame is larger than `socket.request.max.bytes`."""

    code = 10


class RequestTimedOutError(SparklogError):
    """The answer did not arrive within the time limit; the request may have taken effect."""

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
    """The request names a newer leader epoch than the broker knows."""

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
    """Offsets that a reader still needed are gone (retention, a deleted or re-created topic)."""

    code = 29


class OutOfOrderSequenceError(SparklogError):
    """A batch's sequence number does not follow the producer's last one, or another batch is stored under it."""

    code = 30


class InvalidProducerEpochError(SparklogError):
    """The producer's epoch is not the current one: a newer epoch has been issued, or the epoch was never issued."""

    code = 31


class ProducerFencedError(SparklogError):
    """Another producer with the same transactional id, or a newer run of the query, has taken over."""

    code = 32


class InvalidTxnStateError(SparklogError):
    """The transaction is not in a state in which this can be done."""

    code = 33


class ConcurrentTransactionsError(SparklogError):
    """The end of the previous transaction is still being written, or too many transactions are open."""

    code = 34
    retriable = True


class InvalidProducerIdMappingError(SparklogError):
    """The producer id, or the fencing token, was never issued, or does not belong to the transactional id."""

    code = 35


class TransactionAbortedError(SparklogError):
    """The transaction was aborted (its timeout, an operator, a newer run) and none of its records is visible; begin a
    new one."""

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
    """The group does not know this member, or not any more: the member has to join again."""

    code = 40


class FencedMemberEpochError(SparklogError):
    """The member's epoch is not the group's: the member has to give up its partitions and join again."""

    code = 41


class StaleMemberEpochError(SparklogError):
    """The commit has an older member epoch than the group; the next heartbeat returns the new epoch."""

    code = 42


class GroupIdNotFoundError(SparklogError):
    """The group does not exist."""

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
    """The offset is part of an open transaction."""

    code = 47
    retriable = True


class GroupMaxSizeReachedError(SparklogError):
    """The group has `group.max.size` members already, or the broker has its largest number of groups or offsets."""

    code = 48


class UnsupportedAssignorError(SparklogError):
    """The broker has no assignor of this name."""

    code = 49


class InvalidGroupIdError(SparklogError):
    """The group's name is not acceptable, or the call needs a group and the consumer has none."""

    code = 50


class InvalidRegularExpressionError(SparklogError):
    """The regular expression of a subscription is none in the syntax of RE2, or it is too long."""

    code = 52


class CommitFailedError(SparklogError):
    """Offsets could not be committed: the group has given the partitions to another member."""

    code = 51


class RemoteStorageError(SparklogError):
    """The object store of the older segments cannot be reached, or has refused the request; the broker tries again."""

    code = 60
    retriable = True


class ResponseTooLargeError(SparklogError):
    """The answer would be larger than the broker's `response.max.bytes`; the message says how to ask for less."""

    code = 65


class InvalidTimestampError(SparklogError):
    """A record's timestamp lies further in the future than the topic allows."""

    code = 61


class StaleCheckpointError(SparklogError):
    """The number of a streaming batch has been committed already, with other input."""

    code = 62


class SerializationError(SparklogError):
    """A producer's serializer has failed or has not returned bytes; nothing was sent. The cause is the serializer's
    exception."""

    code = 70


class DeserializationError(SparklogError):
    """A consumer's deserializer has failed for one record, or Python has no object for a value of a typed topic.

    The cause is the exception of the deserializer or of Arrow. Poll raises the error again until the partition is
    sought: `seek(error.partition, error.offset + 1)` leaves the record out.
    """

    code = 71

    def __init__(
        self, message: str = "", *, partition: tuple[str, int] | None = None, offset: int = -1, record: object = None
    ) -> None:
        """Create the error.

        Args:
            message: The text.
            partition: Partition of the record; None: not known.
            offset: Offset of the record; -1: not known.
            record: The record with its bytes. None for a typed topic, where `poll_batches` reads the row.
        """
        super().__init__(message)
        self.partition = partition
        """Partition of the record; None: not known."""
        self.offset = offset
        """Offset of the record; -1: not known."""
        self.record = record
        """The record with its bytes; None for a typed topic, where `poll_batches` reads the row."""


class ConcurrentModificationError(SparklogError):
    """A thread has called a consumer while another thread was inside a call of it."""

    code = 72


class WakeupError(SparklogError):
    """Another thread has ended the call with `Consumer.wakeup()`."""

    code = 73


class StorageUnavailableError(StorageError):
    """The broker could not open a file: it has no descriptor or memory left, or the system refused. Nothing of the
    request was written; it can be tried again."""

    code = 64
    retriable = True


class SaslAuthenticationFailedError(SparklogError):
    """The peer has not proved its identity. The text never says if the user or the password was wrong."""

    code = 100


class UnsupportedSaslMechanismError(SparklogError):
    """The listener does not accept this SASL mechanism."""

    code = 101


class IllegalSaslStateError(SparklogError):
    """The message is not allowed at this point of the authentication; the connection is closed."""

    code = 102


class TopicAuthorizationFailedError(SparklogError):
    """The principal may not do this with the topic, existing or not."""

    code = 103


class GroupAuthorizationFailedError(SparklogError):
    """The principal may not do this with the group, existing or not."""

    code = 104


class TransactionalIdAuthorizationFailedError(SparklogError):
    """The principal may not do this with the transactional id, existing or not."""

    code = 105


class ClusterAuthorizationFailedError(SparklogError):
    """The principal may not do this with the cluster."""

    code = 106


class PolicyViolationError(SparklogError):
    """The request exceeds a quota of the principal (topics, partitions or connections), or writes to a mirrored
    topic."""

    code = 107


class SecurityDisabledError(SparklogError):
    """The broker has no authorizer, so it keeps no ACLs: set authorizer = "acl" in its configuration first."""

    code = 108


class NotEnoughReplicasError(SparklogError):
    """The in-sync replicas are fewer than `min.insync.replicas`: nothing was written."""

    code = 80
    retriable = True


class NotEnoughReplicasAfterAppendError(SparklogError):
    """After the append the in-sync replicas have become fewer than `min.insync.replicas`, or another broker leads; the
    records may stay."""

    code = 81
    retriable = True


class OffsetNotAvailableError(SparklogError):
    """The leader is new and does not know yet how far its log is committed (KIP-207)."""

    code = 82
    retriable = True


class StaleBrokerEpochError(SparklogError):
    """The request comes from an earlier run of the broker, which has registered again since."""

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
    """No broker leads the partition at the moment; one of its replicas has to come back."""

    code = 92
    retriable = True


class NotCoordinatorError(SparklogError):
    """This broker does not coordinate the group or the transactional id; find the coordinator again."""

    code = 93
    retriable = True


class CoordinatorNotAvailableError(SparklogError):
    """No broker coordinates the group or the transactional id at the moment; the next leader will."""

    code = 94
    retriable = True


class ResourceNotFoundError(SparklogError):
    """The resource to change or remove does not exist, for example a user's credential."""

    code = 95


class UnknownTopicIdError(SparklogError):
    """No topic has the id that the request names: the topic was deleted, and perhaps created again under its name."""

    code = 66


class ElectionNotNeededError(SparklogError):
    """The preferred leader leads the partition already or, for an unclean election, the partition has a leader."""

    code = 97


class AdoptionRefusedError(SparklogError):
    """A broker's directory cannot be taken into a cluster as it is: its content conflicts with the cluster's."""

    code = 96


class InvalidQueryError(SparklogError):
    """DuckDB cannot run the SQL: the SQL has a mistake, or needs more memory than DuckDB may use."""

    code = 110


class QueryResultTooLargeError(SparklogError):
    """A query's result has more rows or bytes than the caller has allowed."""

    code = 111


class QueryCancelledError(SparklogError):
    """A query was cancelled while it ran."""

    code = 112


class LakePausedError(SparklogError):
    """The lake of a topic is paused, or has to be: its table needs a decision of a user."""

    code = 120


class LakeUnavailableError(SparklogError):
    """The table of a topic's lake, or its location, cannot be reached at the moment."""

    code = 121
    retriable = True


class LogTruncatedError(OffsetOutOfRangeError):
    """Records that were read are gone: an unclean election has made a replica leader that lacked them (KIP-320)."""

    code = 130

    def __init__(self, message: str = "", *, divergent_offset: int = -1) -> None:
        """Create the error.

        Args:
            message: The text.
            divergent_offset: First offset at which the log can differ from the records that were read; -1: not known.
        """
        super().__init__(message)
        self.divergent_offset = divergent_offset
        """First offset at which the log can differ from the records that were read; -1: not known."""


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
    """Return the exception for a wire code, without raising it. `code`: the wire code. An unknown code gives
    `UnknownServerError`. `message`: the text, which is made one line. Empty: the error's description."""
    cls = ERRORS.get(code, UnknownServerError)
    return cls(one_line(message) or " ".join((cls.__doc__ or "").split()))
