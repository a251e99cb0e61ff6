"""The next step after a failed command: one hint per error class.

The user guide's troubleshooting table is generated from `HINTS`.
"""

from __future__ import annotations

import re
import shlex
import sys

from sparklog import errors
from sparklog.errors import SparklogError

HINTS: dict[type[SparklogError], str] = {
    errors.UnknownServerError: "the broker's log (its stderr) has the details",
    errors.OffsetOutOfRangeError: "`sparklog offsets TOPIC` shows the offsets that exist; `--from earliest` always works",
    errors.LogTruncatedError: "continue with `--from earliest` or `--from latest`; a consumer needs `seek`, or auto.offset.reset",
    errors.ResourceNotFoundError: "`sparklog user list` shows the users; `sparklog user add NAME` adds one",
    errors.CorruptBatchError: "`sparklog log dump PATH` on the segment file shows the damaged batch; a consumer continues after `seek` behind the batch",
    errors.UnknownTopicOrPartitionError: "`sparklog topic list` shows the topics; `sparklog topic create NAME` creates one",
    errors.InvalidTopicError: "`sparklog topic create --help` shows valid names, schemas and columns",
    errors.TopicAlreadyExistsError: "choose another name, or remove the old one with `sparklog topic delete NAME`",
    errors.MessageTooLargeError: "send smaller batches, or raise the limit with `sparklog topic alter NAME --config max.message.bytes=N` (max.message.inflated.ratio for compressed batches)",
    errors.InvalidRequestError: "check the value in the message, and that client and broker have the same sparklog version",
    errors.UnsupportedVersionError: "client and broker are too far apart: upgrade the side that the message names",
    errors.UnsupportedApiError: "the broker is older than this client: upgrade the broker",
    errors.FrameTooLargeError: "send smaller batches (`batch.size.bytes`), or raise the broker's `socket.request.max.bytes`",
    errors.RequestTimedOutError: "is the broker overloaded or stopped? Try again; `request.timeout.ms` sets the limit",
    errors.BrokerNotAvailableError: "is the broker running, and is the address right? `sparklog broker` starts a broker, `--bootstrap-servers HOST:PORT` names its address",
    errors.NotLeaderError: "try again: the client reads the metadata again",
    errors.ElectionNotNeededError: "no election is needed: `sparklog topic describe NAME` shows the leaders",
    errors.StorageUnavailableError: "no record was written: send again; raise the broker's `ulimit -n` if descriptors run out often",
    errors.StorageFullError: "free space on the broker's disk (or delete a topic), then send again; reading continues meanwhile",
    errors.StorageError: "check the broker's data directory (`data.dir`): does it exist, may the broker write there?",
    errors.SchemaMismatchError: "`sparklog topic describe NAME` shows the topic's columns and types; cast or rename yours",
    errors.UnknownSchemaError: "try again: the topic was changed, or deleted and created again",
    errors.InvalidConfigError: "`sparklog config broker|topic|producer|consumer|client` lists every setting with its bounds",
    errors.InvalidPartitionsError: "`sparklog topic describe NAME` shows the partitions; a topic has 1 to 10000",
    errors.BrokerShuttingDownError: "wait until the broker is back, then try again",
    errors.LogCorruptError: "the partition is offline, its files untouched: `sparklog log verify DIR` lists the damage, `sparklog log repair DIR` keeps the intact batches",
    errors.TooManyConnectionsError: "close unused clients, or raise the broker's `max.connections`",
    errors.BufferExhaustedError: "the broker is slower than the producer: raise `buffer.memory` or `max.block.ms`, or send less",
    errors.FencedLeaderEpochError: "try again: the client reads the metadata again",
    errors.UnknownLeaderEpochError: "try again: the broker soon receives the new metadata",
    errors.UnknownTopicIdError: "try again: the client reads the metadata again, and continues with the topic that has the name now",
    errors.LocalReadUnavailableError: "read through the socket: option `sparklog.local.read=off`",
    errors.DataDirLockedError: "stop the other broker, or give this one a directory of its own with `--data-dir`",
    errors.ClosedError: "create a new producer or consumer; a closed one, or one from before a fork, cannot be used",
    errors.RemoteStorageError: "check the store's URL, its options and credentials, and the network to it; for tiering (`remote.log.storage.url`) the broker's log has the details",
    errors.LakePausedError: "`sparklog lake status TOPIC` shows the reason; `sparklog lake resume TOPIC` goes on once it is mended",
    errors.LakeUnavailableError: "check `lake.location`, the credentials in the environment (AWS_…, AZURE_…, GOOGLE_…) and the network from the worker's host; the worker tries again",
    errors.DataLossError: "start again from the existing records (`startingOffsets`, a new checkpoint), or set `failOnDataLoss=false`",
    errors.StaleCheckpointError: "use a new checkpoint location, or a new `txnAppId` ([Exactly once](#exactly-once))",
    errors.OutOfOrderSequenceError: "records before this one were lost, the producer's state expired, or another producer writes under its id: create a new producer and send the unacknowledged records again",
    errors.InvalidProducerEpochError: "a newer incarnation of this producer exists: stop one of the two",
    errors.ProducerFencedError: "another producer with this `transactional_id`, or a newer run of the query, is running: stop one of the two",
    errors.InvalidTxnStateError: "`sparklog transaction describe ID` shows the transaction's state; a producer begins a transaction (`begin_transaction`) and ends it once",
    errors.ConcurrentTransactionsError: "try again: the previous transaction is still ending",
    errors.InvalidProducerIdMappingError: "`sparklog transaction list` shows the existing ids; replace a producer whose id has expired",
    errors.TransactionAbortedError: "none of its records is visible: begin a new transaction and send the records again; `transaction.timeout.ms` limits its duration",
    errors.CoordinatorLoadingError: "try again: the broker has just started and reads its state",
    errors.CoordinatorFencedError: "try again: another coordinator has taken over",
    errors.InvalidTransactionTimeoutError: "choose a smaller `transaction.timeout.ms`, or raise the broker's `transaction.max.timeout.ms`",
    errors.UnknownMemberIdError: "the member was away for longer than `session.timeout.ms`: it joins again with the next poll",
    errors.FencedMemberEpochError: "the member was away too long and lost its partitions: it joins again with the next poll",
    errors.StaleMemberEpochError: "poll, then commit again: the group has a newer assignment",
    errors.GroupIdNotFoundError: "`sparklog group list` shows the existing groups",
    errors.NonEmptyGroupError: "stop the group's consumers first; `sparklog group describe GROUP` shows them",
    errors.FencedInstanceIdError: "two consumers have the same `group.instance.id`: give each its own",
    errors.UnreleasedInstanceIdError: "stop the other consumer with this `group.instance.id`, or wait for its session timeout",
    errors.UnstableOffsetCommitError: "try again: a transaction with these offsets is about to end; `sparklog transaction list` shows it",
    errors.GroupMaxSizeReachedError: "stop some members or delete unused groups, or raise `group.max.size`, `max.groups.per.partition`, `max.offsets.per.partition`",
    errors.UnsupportedAssignorError: "use `uniform` or `range`",
    errors.InvalidGroupIdError: "give the consumer a `group_id` (1 to 249 characters)",
    errors.InvalidTimestampError: "correct the clock or the records' timestamps, or raise the topic's `message.timestamp.after.max.ms`",
    errors.SerializationError: "the record's key or value does not fit the serializer: the cause has the reason",
    errors.DeserializationError: "read the record without deserializers, or skip it: `consumer.seek(error.partition, error.offset + 1)`",
    errors.ConcurrentModificationError: "give each thread a consumer of its own, or pass records from one thread to the others",
    errors.WakeupError: "no record is lost: poll again, or close the consumer",
    errors.ResponseTooLargeError: "ask for fewer topics, groups or partitions at once; newer clients ask page by page",
    errors.NotEnoughReplicasError: "the client tries again; bring back the missing brokers (`sparklog cluster describe`), or lower `min.insync.replicas`",
    errors.NotEnoughReplicasAfterAppendError: "the client tries again, and an idempotent producer writes no record twice; bring back the missing brokers (`sparklog cluster describe`)",
    errors.OffsetNotAvailableError: "the client tries again: a new leader soon learns the committed end of its log",
    errors.StaleBrokerEpochError: "the broker registers again by itself; its log has the reason",
    errors.IneligibleReplicaError: "the leader proposes again when the replica has caught up",
    errors.InvalidUpdateVersionError: "the leader reads the partition's state again and proposes again",
    errors.InvalidFetchSessionError: "the client tries again in a new fetch session",
    errors.NotCoordinatorError: "the client tries again at the coordinator",
    errors.CoordinatorNotAvailableError: "the client tries again; bring back the brokers that have the coordinator's internal topic",
    errors.LeaderNotAvailableError: "the client tries again; bring back the brokers that have a replica of the partition",
    errors.NotControllerError: "the client tries again at the new controller",
    errors.InvalidReplicationFactorError: "choose a factor from 1 to the number of brokers, or start more brokers",
    errors.InvalidReplicaAssignmentError: "name existing brokers, each once per partition",
    errors.NoReassignmentInProgressError: "nothing to cancel: the reassignment has ended or never began",
    errors.EligibleLeadersNotAvailableError: "start the brokers that were in the ISR; an unclean election would lose records",
    errors.SaslAuthenticationFailedError: "check user, password (or token) and `sasl.mechanism`; the broker's log has the details",
    errors.UnsupportedSaslMechanismError: "choose a `sasl.mechanism` that the message names, or enable yours with `sasl.enabled.mechanisms`",
    errors.IllegalSaslStateError: "does `security.protocol` fit the listener? A client authenticates before any other request",
    errors.TopicAuthorizationFailedError: "ask an operator for `sparklog acl add --allow-principal User:NAME --operation OPERATION --topic TOPIC`; `--producer` or `--consumer` instead of the operation gives all rights of a producer or consumer",
    errors.GroupAuthorizationFailedError: "ask an operator for `sparklog acl add --allow-principal User:NAME --operation OPERATION --group GROUP`",
    errors.TransactionalIdAuthorizationFailedError: "ask an operator for `sparklog acl add --allow-principal User:NAME --operation Write --transactional-id ID`; the option txnAppId names the id of a Spark query",
    errors.ClusterAuthorizationFailedError: "ask an operator for `sparklog acl add --allow-principal User:NAME --operation OPERATION --cluster`",
    errors.PolicyViolationError: "delete unused topics or security records, or ask for a larger quota",
    errors.AdoptionRefusedError: "nothing has changed: remove the cause in the message and run the command again",
    errors.SecurityDisabledError: 'set `authorizer = "acl"` and `super.users` in the broker\'s configuration, and restart the broker',
    errors.InvalidQueryError: "`.tables` and `.schema TOPIC` in `sparklog sql` show topics and columns; a name that is no identifier stands in double quotes",
    errors.QueryResultTooLargeError: "add a LIMIT, take fewer columns, or raise the limit that the message names",
    errors.QueryCancelledError: "run it again",
    errors.InvalidRegularExpressionError: "write the expression in the syntax of RE2, without look-around and back-references, or name the topics",
    errors.CommitFailedError: "the partitions' new owners read the records again; poll more often or raise `max.poll.interval.ms`",
}


def hint_for(error: SparklogError) -> str:
    """Return the hint of the error's class, else of its nearest base class with a hint; "" if there is none."""
    for cls in type(error).__mro__:
        if cls in HINTS:
            return HINTS[cls]
    return ""


_REGISTRY_HINTS = (
    (
        "does not answer",
        "is the registry running? `schema.registry.listeners` of the broker has its address, `--url` names another one",
    ),
    ("was not deleted first", "`sparklog schema delete` without `--permanent`, then with it"),
    ("not found. (HTTP 404)", "`sparklog schema list` shows the subjects and their versions"),
)
"""Hints for the commands of `sparklog schema`, by a part of the message. Other refusals of the registry need none."""

_SOURCE_IS_AWAY = (errors.BrokerNotAvailableError, errors.RequestTimedOutError, errors.LeaderNotAvailableError)
"""Errors of a mirror's source that is another cluster than the one of the command."""

_REFUSALS = (errors.TopicAuthorizationFailedError, errors.GroupAuthorizationFailedError)
_KAFKA_MARKS = ("kafka://", "the source answers")
"""Parts of a message about a mirror's source that is a Kafka cluster."""

_COMMAND = re.compile(r"`([^`]*)`")
_NAMED = re.compile(r"\b(topic|group|user) '([^']+)'")
_PLACEHOLDERS = {"topic": ("TOPIC", "NAME"), "group": ("GROUP",), "user": ("NAME",)}
_SQL_REMEDIES = ("Write:", "Did you mean", "in double quotes", "use the function", "--allow-files")
"""Texts in a message about an SQL statement that show that the message already has a remedy."""
_UNKNOWN_SETTING = re.compile(r"unknown (\w+) (?:setting|parameter)")
_SETTING = re.compile(r"(?:\w+ setting )?([a-z0-9]+(?:\.[a-z0-9]+)+) ?[=:]")


def next_step(error: SparklogError, command: str = "") -> str:
    """Return the next step after `error`: the hint of its class, with the names from its message.

    Parts of the hint that the message already has are left out. For a wrong setting or argument, the next step is the
    command that lists the allowed values.

    `command`: the words of the command, such as "topic create"."""
    message = str(error)
    if command.startswith("schema") and isinstance(error, errors.BrokerNotAvailableError | errors.InvalidRequestError):
        return next((hint for part, hint in _REGISTRY_HINTS if part in message), "")
    if isinstance(error, errors.BrokerNotAvailableError) and message.startswith("the schema registry"):
        return "is the registry running, and is its address (`--registry`) right?"
    if command.startswith("mirror") and "the source" in message and isinstance(error, _SOURCE_IS_AWAY):
        way = " `--now` promotes the topics with the records that they have" if command == "mirror promote" else ""
        return f"is the source running, and is its address right?{way}"
    if isinstance(error, _REFUSALS) and any(mark in message for mark in _KAFKA_MARKS):
        return (
            "ask an operator of the source for `kafka-acls.sh --add --allow-principal User:NAME --operation OPERATION` "
            "with `--topic TOPIC` or `--group GROUP`"
        )
    if isinstance(error, errors.InvalidConfigError | errors.PolicyViolationError) and (
        "sparklog " in message or "pip install" in message
    ):
        return ""  # the message has the next step
    if isinstance(error, errors.RequestTimedOutError) and re.search("[`']sparklog |--now", message):
        return ""
    if isinstance(error, errors.InvalidQueryError) and any(mark in message for mark in _SQL_REMEDIES):
        return ""
    names = {p: shlex.quote(name) for kind, name in _NAMED.findall(message) for p in _PLACEHOLDERS[kind]}

    def filled(match: re.Match[str]) -> str:
        return re.sub(r"(?<![:\w])[A-Z]+\b", lambda word: names.get(word[0], word[0]), match[0])

    parts = [_COMMAND.sub(filled, part) for part in (_help_for(error, command) or hint_for(error)).split("; ")]
    return "; ".join(part for part in parts if not _is_in_message(part, message))


def _is_in_message(hint: str, message: str) -> bool:
    """True if the message has all commands of the hint."""
    commands = _COMMAND.findall(hint)
    return bool(commands) and all(c in message for c in commands)


def _help_for(error: SparklogError, command: str) -> str:
    """Return the command that lists the allowed settings or options; "" if `error` is about something else."""
    message = str(error)
    if isinstance(error, errors.InvalidConfigError) and (scope := _scope_of(message)):
        return f"`sparklog config {scope}` lists every setting with its bounds"
    if command and isinstance(error, errors.InvalidConfigError | errors.InvalidRequestError):
        return f"`sparklog {command} --help` shows its options and their forms"
    return ""


def _scope_of(message: str) -> str:
    """Return the scope of the setting at the beginning of the message; "" if there is none."""
    from sparklog.settings import Scope, settings_of

    if match := _UNKNOWN_SETTING.match(message):
        return match[1] if match[1] in [s.value for s in Scope] else ""
    match = _SETTING.match(message)
    scopes = [s.value for s in Scope if match is not None and match[1] in settings_of(s)]
    return next(iter(scopes), "")


def report(title: str, message: str, hint: str = "") -> None:
    """Print an error as one line on stderr, its title red on a terminal, and the next step below. Does not use rich."""
    red, dim, off = ("\033[31m", "\033[2m", "\033[0m") if sys.stderr.isatty() else ("", "", "")
    print(f"{red}{title}:{off} {message}", file=sys.stderr)
    if hint:
        print(f"  {dim}next:{off} {hint}", file=sys.stderr)
