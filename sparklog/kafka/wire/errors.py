"""Kafka's error codes, and the mapping from the broker's errors to them."""

from __future__ import annotations

from enum import IntEnum

from sparklog import errors

TEXT_CHARS_MAX = 1_000
"""Largest number of characters of an error text that is sent to a client."""


class Kafka(IntEnum):
    """Error codes of Kafka's protocol that the gateway sends."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    UNKNOWN_TOPIC_ID = 100
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128


_CODES: dict[int, Kafka] = {
    errors.OffsetOutOfRangeError.code: Kafka.OFFSET_OUT_OF_RANGE,
    errors.CorruptBatchError.code: Kafka.CORRUPT_MESSAGE,
    errors.LogCorruptError.code: Kafka.KAFKA_STORAGE_ERROR,
    errors.UnknownTopicOrPartitionError.code: Kafka.UNKNOWN_TOPIC_OR_PARTITION,
    errors.UnknownTopicIdError.code: Kafka.UNKNOWN_TOPIC_ID,
    errors.InvalidTopicError.code: Kafka.INVALID_TOPIC_EXCEPTION,
    errors.TopicAlreadyExistsError.code: Kafka.TOPIC_ALREADY_EXISTS,
    errors.MessageTooLargeError.code: Kafka.MESSAGE_TOO_LARGE,
    errors.InvalidRequestError.code: Kafka.INVALID_REQUEST,
    errors.UnsupportedVersionError.code: Kafka.UNSUPPORTED_VERSION,
    errors.UnsupportedApiError.code: Kafka.UNSUPPORTED_VERSION,
    errors.FrameTooLargeError.code: Kafka.MESSAGE_TOO_LARGE,
    errors.RequestTimedOutError.code: Kafka.REQUEST_TIMED_OUT,
    errors.BrokerNotAvailableError.code: Kafka.COORDINATOR_NOT_AVAILABLE,
    errors.NotLeaderError.code: Kafka.NOT_LEADER_OR_FOLLOWER,
    errors.StorageFullError.code: Kafka.KAFKA_STORAGE_ERROR,
    errors.StorageError.code: Kafka.KAFKA_STORAGE_ERROR,
    errors.SchemaMismatchError.code: Kafka.INVALID_RECORD,
    errors.InvalidConfigError.code: Kafka.INVALID_CONFIG,
    errors.InvalidPartitionsError.code: Kafka.INVALID_PARTITIONS,
    errors.BrokerShuttingDownError.code: Kafka.NOT_LEADER_OR_FOLLOWER,
    errors.FencedLeaderEpochError.code: Kafka.FENCED_LEADER_EPOCH,
    errors.UnknownLeaderEpochError.code: Kafka.UNKNOWN_LEADER_EPOCH,
    errors.OutOfOrderSequenceError.code: Kafka.OUT_OF_ORDER_SEQUENCE_NUMBER,
    errors.InvalidProducerEpochError.code: Kafka.INVALID_PRODUCER_EPOCH,
    errors.ProducerFencedError.code: Kafka.PRODUCER_FENCED,
    errors.InvalidTxnStateError.code: Kafka.INVALID_TXN_STATE,
    errors.ConcurrentTransactionsError.code: Kafka.CONCURRENT_TRANSACTIONS,
    errors.InvalidProducerIdMappingError.code: Kafka.INVALID_PRODUCER_ID_MAPPING,
    errors.TransactionAbortedError.code: Kafka.INVALID_TXN_STATE,
    errors.CoordinatorLoadingError.code: Kafka.COORDINATOR_LOAD_IN_PROGRESS,
    errors.CoordinatorFencedError.code: Kafka.TRANSACTION_COORDINATOR_FENCED,
    errors.InvalidTransactionTimeoutError.code: Kafka.INVALID_TRANSACTION_TIMEOUT,
    errors.UnknownMemberIdError.code: Kafka.UNKNOWN_MEMBER_ID,
    errors.FencedMemberEpochError.code: Kafka.ILLEGAL_GENERATION,
    errors.StaleMemberEpochError.code: Kafka.ILLEGAL_GENERATION,
    errors.GroupIdNotFoundError.code: Kafka.GROUP_ID_NOT_FOUND,
    errors.NonEmptyGroupError.code: Kafka.NON_EMPTY_GROUP,
    errors.FencedInstanceIdError.code: Kafka.FENCED_INSTANCE_ID,
    errors.UnstableOffsetCommitError.code: Kafka.UNSTABLE_OFFSET_COMMIT,
    errors.UnreleasedInstanceIdError.code: Kafka.UNRELEASED_INSTANCE_ID,
    errors.UnsupportedAssignorError.code: Kafka.UNSUPPORTED_ASSIGNOR,
    errors.InvalidRegularExpressionError.code: Kafka.INVALID_REGULAR_EXPRESSION,
    errors.GroupMaxSizeReachedError.code: Kafka.GROUP_MAX_SIZE_REACHED,
    errors.InvalidGroupIdError.code: Kafka.INVALID_GROUP_ID,
    errors.RemoteStorageError.code: Kafka.KAFKA_STORAGE_ERROR,
    errors.InvalidTimestampError.code: Kafka.INVALID_TIMESTAMP,
    errors.StorageUnavailableError.code: Kafka.KAFKA_STORAGE_ERROR,
    errors.NotEnoughReplicasError.code: Kafka.NOT_ENOUGH_REPLICAS,
    errors.NotEnoughReplicasAfterAppendError.code: Kafka.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    errors.OffsetNotAvailableError.code: Kafka.OFFSET_NOT_AVAILABLE,
    errors.NotControllerError.code: Kafka.NOT_CONTROLLER,
    errors.InvalidReplicationFactorError.code: Kafka.INVALID_REPLICATION_FACTOR,
    errors.InvalidReplicaAssignmentError.code: Kafka.INVALID_REPLICA_ASSIGNMENT,
    errors.EligibleLeadersNotAvailableError.code: Kafka.ELIGIBLE_LEADERS_NOT_AVAILABLE,
    errors.ElectionNotNeededError.code: Kafka.ELECTION_NOT_NEEDED,
    errors.NoReassignmentInProgressError.code: Kafka.NO_REASSIGNMENT_IN_PROGRESS,
    errors.LeaderNotAvailableError.code: Kafka.LEADER_NOT_AVAILABLE,
    errors.NotCoordinatorError.code: Kafka.NOT_COORDINATOR,
    errors.CoordinatorNotAvailableError.code: Kafka.COORDINATOR_NOT_AVAILABLE,
    errors.ResourceNotFoundError.code: Kafka.RESOURCE_NOT_FOUND,
    errors.SaslAuthenticationFailedError.code: Kafka.SASL_AUTHENTICATION_FAILED,
    errors.UnsupportedSaslMechanismError.code: Kafka.UNSUPPORTED_SASL_MECHANISM,
    errors.IllegalSaslStateError.code: Kafka.ILLEGAL_SASL_STATE,
    errors.TopicAuthorizationFailedError.code: Kafka.TOPIC_AUTHORIZATION_FAILED,
    errors.GroupAuthorizationFailedError.code: Kafka.GROUP_AUTHORIZATION_FAILED,
    errors.TransactionalIdAuthorizationFailedError.code: Kafka.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    errors.ClusterAuthorizationFailedError.code: Kafka.CLUSTER_AUTHORIZATION_FAILED,
    errors.PolicyViolationError.code: Kafka.POLICY_VIOLATION,
    errors.SecurityDisabledError.code: Kafka.SECURITY_DISABLED,
}
_RETRIABLE_DATA = {errors.BrokerNotAvailableError.code: Kafka.NOT_LEADER_OR_FOLLOWER}
"""Codes for requests to partition leaders. If the broker is not available, the client then asks other brokers for the
leader."""
_OF_COORDINATORS = {
    Kafka.NOT_LEADER_OR_FOLLOWER: Kafka.NOT_COORDINATOR,
    Kafka.FENCED_LEADER_EPOCH: Kafka.NOT_COORDINATOR,
    Kafka.KAFKA_STORAGE_ERROR: Kafka.NOT_COORDINATOR,
    Kafka.LEADER_NOT_AVAILABLE: Kafka.COORDINATOR_NOT_AVAILABLE,
    Kafka.NOT_ENOUGH_REPLICAS: Kafka.COORDINATOR_NOT_AVAILABLE,
    Kafka.NOT_ENOUGH_REPLICAS_AFTER_APPEND: Kafka.COORDINATOR_NOT_AVAILABLE,
    Kafka.REQUEST_TIMED_OUT: Kafka.COORDINATOR_NOT_AVAILABLE,
    Kafka.INVALID_REPLICATION_FACTOR: Kafka.COORDINATOR_NOT_AVAILABLE,  # its topic needs more brokers than are alive
}


def kafka_code(code: int, *, of_partition: bool = False) -> Kafka:
    """Return Kafka's code for an error code of the broker. `of_partition`: True if the request was for the leader of a
    partition. It changes the code of a broker that is not available."""
    if not code:
        return Kafka.NONE
    if of_partition and code in _RETRIABLE_DATA:
        return _RETRIABLE_DATA[code]
    return _CODES.get(code, Kafka.UNKNOWN_SERVER_ERROR)


def code_of(error: errors.SparklogError, *, of_partition: bool = False) -> Kafka:
    """Return Kafka's code for an error. `of_partition`: as in `kafka_code`."""
    return kafka_code(error.code, of_partition=of_partition)


def value_code(error: errors.SparklogError) -> Kafka:
    """Return Kafka's code for the refusal of values that are no settings: INVALID_REQUEST where the broker says
    INVALID_CONFIG."""
    return Kafka.INVALID_REQUEST if isinstance(error, errors.InvalidConfigError) else code_of(error)


def coordinator_code(error: errors.SparklogError) -> Kafka:
    """Return Kafka's code for an error of a coordinator. As in Kafka, the errors of the coordinator's own log become
    NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE: some clients end at errors that they do not expect from a
    coordinator."""
    code = code_of(error)
    return _OF_COORDINATORS.get(code, code)


def text_of(message: object) -> str | None:
    """Return the text of an error for an answer, cut to TEXT_CHARS_MAX characters; None for an empty text."""
    return str(message)[:TEXT_CHARS_MAX] or None
