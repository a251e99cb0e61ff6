"""The error table: codes never change, unknown codes degrade."""

from __future__ import annotations

import copy
import pickle

from sparklog import errors as e
from sparklog.format.batch import TruncatedBatchError
from tests.support.cases import for_each

TABLE = {
    -1: ("UnknownServerError", "UNKNOWN_SERVER_ERROR", False),
    1: ("OffsetOutOfRangeError", "OFFSET_OUT_OF_RANGE", False),
    2: ("CorruptBatchError", "CORRUPT_BATCH", False),
    3: ("UnknownTopicOrPartitionError", "UNKNOWN_TOPIC_OR_PARTITION", False),
    4: ("InvalidTopicError", "INVALID_TOPIC", False),
    5: ("TopicAlreadyExistsError", "TOPIC_ALREADY_EXISTS", False),
    6: ("MessageTooLargeError", "MESSAGE_TOO_LARGE", False),
    7: ("InvalidRequestError", "INVALID_REQUEST", False),
    8: ("UnsupportedVersionError", "UNSUPPORTED_VERSION", False),
    9: ("UnsupportedApiError", "UNSUPPORTED_API", False),
    10: ("FrameTooLargeError", "FRAME_TOO_LARGE", False),
    11: ("RequestTimedOutError", "REQUEST_TIMED_OUT", True),
    12: ("BrokerNotAvailableError", "BROKER_NOT_AVAILABLE", True),
    13: ("NotLeaderError", "NOT_LEADER", True),
    14: ("StorageFullError", "STORAGE_FULL", True),
    15: ("StorageError", "STORAGE", False),
    16: ("SchemaMismatchError", "SCHEMA_MISMATCH", False),
    17: ("UnknownSchemaError", "UNKNOWN_SCHEMA", False),
    18: ("InvalidConfigError", "INVALID_CONFIG", False),
    19: ("InvalidPartitionsError", "INVALID_PARTITIONS", False),
    20: ("BrokerShuttingDownError", "BROKER_SHUTTING_DOWN", True),
    21: ("LogCorruptError", "LOG_CORRUPT", False),
    22: ("TooManyConnectionsError", "TOO_MANY_CONNECTIONS", True),
    23: ("BufferExhaustedError", "BUFFER_EXHAUSTED", True),
    24: ("FencedLeaderEpochError", "FENCED_LEADER_EPOCH", True),
    25: ("UnknownLeaderEpochError", "UNKNOWN_LEADER_EPOCH", True),
    26: ("LocalReadUnavailableError", "LOCAL_READ_UNAVAILABLE", False),
    27: ("DataDirLockedError", "DATA_DIR_LOCKED", False),
    28: ("ClosedError", "CLOSED", False),
    29: ("DataLossError", "DATA_LOSS", False),
    30: ("OutOfOrderSequenceError", "OUT_OF_ORDER_SEQUENCE", False),
    31: ("InvalidProducerEpochError", "INVALID_PRODUCER_EPOCH", False),
    32: ("ProducerFencedError", "PRODUCER_FENCED", False),
    33: ("InvalidTxnStateError", "INVALID_TXN_STATE", False),
    34: ("ConcurrentTransactionsError", "CONCURRENT_TRANSACTIONS", True),
    35: ("InvalidProducerIdMappingError", "INVALID_PRODUCER_ID_MAPPING", False),
    36: ("TransactionAbortedError", "TRANSACTION_ABORTED", False),
    37: ("CoordinatorLoadingError", "COORDINATOR_LOADING", True),
    38: ("CoordinatorFencedError", "COORDINATOR_FENCED", False),
    39: ("InvalidTransactionTimeoutError", "INVALID_TRANSACTION_TIMEOUT", False),
    40: ("UnknownMemberIdError", "UNKNOWN_MEMBER_ID", False),
    41: ("FencedMemberEpochError", "FENCED_MEMBER_EPOCH", False),
    42: ("StaleMemberEpochError", "STALE_MEMBER_EPOCH", False),
    43: ("GroupIdNotFoundError", "GROUP_ID_NOT_FOUND", False),
    44: ("NonEmptyGroupError", "NON_EMPTY_GROUP", False),
    45: ("FencedInstanceIdError", "FENCED_INSTANCE_ID", False),
    46: ("UnreleasedInstanceIdError", "UNRELEASED_INSTANCE_ID", False),
    47: ("UnstableOffsetCommitError", "UNSTABLE_OFFSET_COMMIT", True),
    48: ("GroupMaxSizeReachedError", "GROUP_MAX_SIZE_REACHED", False),
    49: ("UnsupportedAssignorError", "UNSUPPORTED_ASSIGNOR", False),
    50: ("InvalidGroupIdError", "INVALID_GROUP_ID", False),
    51: ("CommitFailedError", "COMMIT_FAILED", False),
    52: ("InvalidRegularExpressionError", "INVALID_REGULAR_EXPRESSION", False),
    60: ("RemoteStorageError", "REMOTE_STORAGE", True),
    61: ("InvalidTimestampError", "INVALID_TIMESTAMP", False),
    70: ("SerializationError", "SERIALIZATION", False),
    71: ("DeserializationError", "DESERIALIZATION", False),
    72: ("ConcurrentModificationError", "CONCURRENT_MODIFICATION", False),
    73: ("WakeupError", "WAKEUP", False),
    64: ("StorageUnavailableError", "STORAGE_UNAVAILABLE", True),
    65: ("ResponseTooLargeError", "RESPONSE_TOO_LARGE", False),
    62: ("StaleCheckpointError", "STALE_CHECKPOINT", False),
    66: ("UnknownTopicIdError", "UNKNOWN_TOPIC_ID", False),
    100: ("SaslAuthenticationFailedError", "SASL_AUTHENTICATION_FAILED", False),
    101: ("UnsupportedSaslMechanismError", "UNSUPPORTED_SASL_MECHANISM", False),
    102: ("IllegalSaslStateError", "ILLEGAL_SASL_STATE", False),
    103: ("TopicAuthorizationFailedError", "TOPIC_AUTHORIZATION_FAILED", False),
    104: ("GroupAuthorizationFailedError", "GROUP_AUTHORIZATION_FAILED", False),
    105: ("TransactionalIdAuthorizationFailedError", "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", False),
    106: ("ClusterAuthorizationFailedError", "CLUSTER_AUTHORIZATION_FAILED", False),
    107: ("PolicyViolationError", "POLICY_VIOLATION", False),
    108: ("SecurityDisabledError", "SECURITY_DISABLED", False),
    110: ("InvalidQueryError", "INVALID_QUERY", False),
    111: ("QueryResultTooLargeError", "QUERY_RESULT_TOO_LARGE", False),
    112: ("QueryCancelledError", "QUERY_CANCELLED", False),
    120: ("LakePausedError", "LAKE_PAUSED", False),
    121: ("LakeUnavailableError", "LAKE_UNAVAILABLE", True),
    130: ("LogTruncatedError", "LOG_TRUNCATED", False),
    80: ("NotEnoughReplicasError", "NOT_ENOUGH_REPLICAS", True),
    81: ("NotEnoughReplicasAfterAppendError", "NOT_ENOUGH_REPLICAS_AFTER_APPEND", True),
    82: ("OffsetNotAvailableError", "OFFSET_NOT_AVAILABLE", True),
    83: ("StaleBrokerEpochError", "STALE_BROKER_EPOCH", False),
    84: ("IneligibleReplicaError", "INELIGIBLE_REPLICA", False),
    85: ("InvalidUpdateVersionError", "INVALID_UPDATE_VERSION", False),
    86: ("NotControllerError", "NOT_CONTROLLER", True),
    87: ("InvalidReplicationFactorError", "INVALID_REPLICATION_FACTOR", False),
    88: ("InvalidReplicaAssignmentError", "INVALID_REPLICA_ASSIGNMENT", False),
    89: ("NoReassignmentInProgressError", "NO_REASSIGNMENT_IN_PROGRESS", False),
    90: ("EligibleLeadersNotAvailableError", "ELIGIBLE_LEADERS_NOT_AVAILABLE", True),
    91: ("InvalidFetchSessionError", "INVALID_FETCH_SESSION", True),
    92: ("LeaderNotAvailableError", "LEADER_NOT_AVAILABLE", True),
    93: ("NotCoordinatorError", "NOT_COORDINATOR", True),
    94: ("CoordinatorNotAvailableError", "COORDINATOR_NOT_AVAILABLE", True),
    95: ("ResourceNotFoundError", "RESOURCE_NOT_FOUND", False),
    96: ("AdoptionRefusedError", "ADOPTION_REFUSED", False),
    97: ("ElectionNotNeededError", "ELECTION_NOT_NEEDED", False),
}
"""A line may be added. A code may neither change nor be used again."""


def test_codes_are_pinned() -> None:
    found = {code: (cls.__name__, e.NAMES[code], cls.retriable) for code, cls in e.ERRORS.items()}
    assert found == TABLE


def test_no_code_is_used_twice() -> None:
    classes = [c for c in e.SparklogError.__subclasses__() if c.__module__ == e.__name__] + [
        e.StorageUnavailableError,
        e.LogTruncatedError,
    ]
    assert len({c.code for c in classes}) == len(classes) == len(e.ERRORS)
    assert 0 not in e.ERRORS
    assert e.NAMES[0] == "NONE"
    assert all(-(2**15) <= code < 2**15 for code in e.ERRORS)  # an i16 on the wire


@for_each("code", sorted(e.ERRORS))
def test_every_code_gives_its_class_name_and_text(code: int) -> None:
    error = e.error_from_code(code, "why")
    assert type(error) is e.ERRORS[code]
    assert (str(error), error.code, error.name) == ("why", code, e.NAMES[code])
    assert str(e.error_from_code(code, "")) == " ".join((e.ERRORS[code].__doc__ or "").split())
    assert str(e.error_from_code(code, "")).endswith(".")


@for_each("code", [0, -2, max(TABLE) + 1, 999, 32_767, -32_768])
def test_unknown_codes_degrade(code: int) -> None:
    error = e.error_from_code(code, "from the future")
    assert type(error) is e.UnknownServerError
    assert (str(error), error.retriable, error.name) == ("from the future", False, "UNKNOWN_SERVER_ERROR")


def test_a_subclass_keeps_the_code_of_its_parent() -> None:
    assert issubclass(TruncatedBatchError, e.CorruptBatchError)
    assert TruncatedBatchError("x").name == "CORRUPT_BATCH"
    assert e.ERRORS[2] is e.CorruptBatchError


@for_each("cls", e.ERRORS.values())
def test_errors_survive_pickling(cls: type[e.SparklogError]) -> None:
    error = cls("why")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is cls
        assert again.args == ("why",)


def test_text_of_a_peer_is_one_line() -> None:
    error = e.error_from_code(14, "no room\n2026 ERROR forged\x1b[2J\u2028\u202e\x85")
    assert str(error) == r"no room\n2026 ERROR forged\x1b[2J\u2028\u202e\x85"
    assert str(e.error_from_code(999, "a\rb")) == r"a\rb"


@for_each("text", ["", "plain", "Grüße, 東京 😀", "C:\\n"])
def test_a_single_line_stays_unchanged(text: str) -> None:
    assert e.one_line(text) == text


def test_every_character_that_ends_a_line_is_escaped() -> None:
    everything = "".join(map(chr, range(0x110000)))
    shown = e.one_line(everything)
    assert len(shown.splitlines()) == 1
    assert shown.isprintable()
