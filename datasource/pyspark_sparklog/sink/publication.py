"""The publication of a write: the records of its tasks become visible all at once and exactly once, or never.

A micro-batch (or a batch write) is one shared transaction (docs/internals/delivery.md, section 3). An application and a
version name the transaction. In a stream these are the query id (or txnAppId) and the batch id; in a batch write
txnAppId and txnVersion, or without them a random name and 0.

- The driver draws a fencing token when the writer is created; later runs have larger ones, and fence earlier ones.
- A task with rows joins and writes with a producer id of its own. If the version is committed already, it writes
  nothing.
- `commit` names the producer ids of the attempts that Spark accepted, the committed participants. All other records are
  aborted: those of failed attempts, speculative copies, zombies of an earlier run.
- The decision is final: the same commit gets the same decision again, and a later abort changes nothing. So it does no
  harm if the driver is killed after the decision and before Spark's own commit: the micro-batch runs again, and finds
  its version committed.
- If a micro-batch finds its number committed with other input, it fails (`batch_input`).
"""

from __future__ import annotations

import logging
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from pyspark_sparklog.options.cluster_address import ClusterAddress
from pyspark_sparklog.options.options import TRANSACTION_TIMEOUT_MS, TRANSACTION_TIMEOUT_MS_MAX, SinkOptions
from pyspark_sparklog.sink.batch_input import BatchInput, check_input, check_number, check_reported
from pyspark_sparklog.sink.leases import lease_keepers
from pyspark_sparklog.sink.spark_checkpoint import CHECKPOINT_SETTING, input_digest, location_of
from sparklog.client.net.cluster import Cluster
from sparklog.client.net.retry import RetryPolicy
from sparklog.client.transactions.shared_transaction import (
    LastCommit,
    Participant,
    SharedTransaction,
    draw_fencing_token,
    end_shared_transaction,
    join_shared_transaction,
)
from sparklog.environment.fault_points import reach
from sparklog.errors import (
    ProducerFencedError,
    SparklogError,
    TransactionAbortedError,
    TransactionalIdAuthorizationFailedError,
)
from sparklog.types import UNNAMED_APP_PREFIX

log = logging.getLogger("pyspark_sparklog")

T = TypeVar("T")

RUNS_REMEMBERED_MAX = 1_000
AT_LEAST_ONCE = -1
"""Value in the place of a fencing token for writes without transactions."""


class TaskPlace(NamedTuple):
    """The place of a task in Spark. Batch writes have no query: then the ids are "" and `batch_id` is -1.
    `checkpoint_setting`: the session's setting CHECKPOINT_SETTING, None if it is not set."""

    query_id: str
    run_id: str
    batch_id: int
    partition_id: int
    attempt: int
    checkpoint_setting: str | None = None


NOWHERE = TaskPlace("", "", -1, 0, 0)


@dataclass
class SinkCommitMessage(WriterCommitMessage):
    """The report of one task about its records. `offsets` maps (topic, partition) to (first, last) offset; records of
    other writers can lie between.

    `transaction` None: at-least-once. `producer_id` -1: there is no transaction, the task had no rows, or it dropped
    its rows because the version had been committed before (`committed_before`). `rows`: number of rows written.
    `input_rows`: number of rows from Spark. `checksum`: checksum of the given rows, None if it was not needed.
    `checkpoint`: location of the query's checkpoint, "" if the task does not know it.
    """

    place: TaskPlace
    transaction: SharedTransaction | None = None
    producer_id: int = -1
    committed_before: bool = False
    rows: int = 0
    input_rows: int = 0
    checksum: int | None = None
    checkpoint: str = ""
    offsets: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)


class EndRequest(NamedTuple):
    """The request of a commit: the records of `committed_participants` (producer ids) become visible."""

    transaction: SharedTransaction
    committed_participants: tuple[int, ...]


def checked(messages: Sequence[WriterCommitMessage | None]) -> list[SinkCommitMessage]:
    """Return the messages of a commit if every task has sent one. Raises SparklogError if a message is missing."""
    reports = [m for m in messages if isinstance(m, SinkCommitMessage)]
    if len(reports) != len(messages):
        raise SparklogError(f"{len(messages) - len(reports)} of {len(messages)} tasks did not report their records")
    return reports


def end_request_of(messages: Sequence[SinkCommitMessage]) -> EndRequest | None:
    """Return the request that ends the transaction in the messages of all tasks; None if the write has no transaction.
    Raises SparklogError if the tasks do not belong to one transaction, or if some of its rows can be missing."""
    transactions = {m.transaction for m in messages}
    if len(transactions) > 1:
        raise SparklogError(f"the tasks wrote in different transactions, so nothing is committed: {transactions}")
    transaction = next(iter(transactions), None)
    if transaction is None:
        return None
    committed_participants = tuple(m.producer_id for m in messages if m.producer_id >= 0)
    skipped = sum(m.committed_before for m in messages)
    if skipped and committed_participants:
        raise SparklogError(
            f"{_describe(transaction)}: the coordinator told {skipped} tasks that it is committed, and let "
            f"{len(committed_participants)} tasks write; it is not committed, because the rows of the former are missing"
        )
    if len(set(committed_participants)) < len(committed_participants):
        raise SparklogError(
            f"{_describe(transaction)}: the coordinator gave one producer id to several tasks, so the broker can have "
            "taken rows of one for repetitions of another; it is not committed"
        )
    # also if there are none: attempts that lost may have written something, and an earlier run must be fenced
    return EndRequest(transaction, committed_participants)


class _Runs:
    """The last transaction that this process has committed for each checkpoint.

    Spark commits and aborts all micro-batches of a run in one process. If no task has reported, an abort does not name
    the run; it is then taken from the last commit.
    """

    def __init__(self) -> None:
        self._by_checkpoint: OrderedDict[str, SharedTransaction] = OrderedDict()

    def remember(self, checkpoint: str, transaction: SharedTransaction) -> None:
        self._by_checkpoint[checkpoint] = transaction
        self._by_checkpoint.move_to_end(checkpoint)
        while len(self._by_checkpoint) > RUNS_REMEMBERED_MAX:
            self._by_checkpoint.popitem(last=False)

    def of(self, checkpoint: str) -> SharedTransaction | None:
        return self._by_checkpoint.get(checkpoint)


_runs = _Runs()


@dataclass(frozen=True)
class Publisher:
    """The transaction of one write, on the driver and, pickled, in its tasks.

    `fencing_token` AT_LEAST_ONCE: there is no transaction. None: no task writes with the publisher, which only commits
    or aborts; it draws a token if it needs one. `is_stream`: the transaction's run and version are the run id and batch
    id of the task's query. If `app_id` is None, the application is the query id. `checkpoint` and `query_name` are the
    query's; "" if unknown. `lease_ms`: length of the lease, 0 without a lease.
    """

    address: ClusterAddress
    timeout_ms: int
    wait_ms: int
    fencing_token: int | None
    run_id: str = ""
    app_id: str | None = None
    version: int = 0
    checkpoint: str = ""
    query_name: str = ""
    is_stream: bool = False
    lease_ms: int = 0

    @property
    def _policy(self) -> RetryPolicy:
        return RetryPolicy(timeout_ms=self.wait_ms)

    def transaction_of(self, place: TaskPlace) -> SharedTransaction | None:
        """Return the transaction in which a task at `place` writes; None for at-least-once. Raises SparklogError if
        Spark passes no query id and batch id to the task of a stream."""
        if self.fencing_token is None:
            raise SparklogError("this writer can only end a batch, tasks cannot write with it")
        if self.fencing_token == AT_LEAST_ONCE:
            return None
        if not self.is_stream:
            return self._own_transaction(self.fencing_token)
        if not place.query_id or place.batch_id < 0:
            raise SparklogError(
                "Spark does not pass the query id and batch id to the task, so the batch cannot be written exactly "
                "once: "
                'set .option("sparklog.delivery.guarantee", "at-least-once")'
            )
        return SharedTransaction(self.app_id or place.query_id, place.batch_id, place.run_id, self.fencing_token)

    def _own_transaction(self, fencing_token: int) -> SharedTransaction:
        """Return the transaction of a batch write."""
        assert self.app_id is not None
        return SharedTransaction(self.app_id, self.version, self.run_id, fencing_token)

    def checkpoint_of(self, place: TaskPlace) -> str:
        """Return the checkpoint of a task's query; "" if it is not known or there is none."""
        return location_of(self.checkpoint, place.checkpoint_setting, self.query_name) if self.is_stream else ""

    def needs_checksum(self, message: SinkCommitMessage) -> bool:
        """True if the input of the task's micro-batch is known only by its rows: its source offsets cannot be read."""
        if not self.is_stream or message.transaction is None:
            return False
        return not input_digest(message.checkpoint, message.place.query_id, message.place.batch_id)

    def join(self, transaction: SharedTransaction) -> Participant | None:
        """Return a producer identity for one task; None if the version is committed already. Then the task must write
        nothing.

        Raises ProducerFencedError if a newer run has taken over, StaleCheckpointError for a micro-batch below the last
        committed one, and other SparklogErrors if the coordinator refuses or cannot be reached.
        """
        reach("sink.before-join")
        joined = self._ask_coordinator(
            transaction,
            lambda c: join_shared_transaction(
                c, transaction, timeout_ms=self.timeout_ms, lease_ms=self.lease_ms, policy=self._policy
            ),
        )
        reach("sink.after-join")
        if not isinstance(joined, LastCommit):
            return joined
        check_reported(transaction, joined)
        if self.is_stream:
            check_number(transaction, joined)
        return None

    def commit(self, messages: Sequence[SinkCommitMessage]) -> None:
        """Make the records of the tasks of `messages` visible, and no others.

        Raises ProducerFencedError, TransactionAbortedError or StaleCheckpointError if none of the records becomes
        visible. After another SparklogError (the coordinator cannot be reached) the outcome can be unknown.
        """
        ending = end_request_of(messages)
        if ending is None:
            return
        transaction, committed_participants = ending
        ours = _input_of(messages) if self.is_stream else None
        reach("sink.before-commit")
        ended = self._ask_coordinator(
            transaction,
            lambda c: end_shared_transaction(
                c,
                transaction,
                committed=True,
                committed_participants=committed_participants,
                input_text="" if ours is None else ours.encode(),
                policy=self._policy,
            ),
        )
        reach("sink.after-commit")
        if not ended.committed:
            raise self._aborted_error(transaction)
        check_reported(transaction, ended.last)
        if ours is not None and ended.last != LastCommit(transaction.version, ours.encode()):
            check_input(transaction, ended.last, ours)
        if not committed_participants and any(m.committed_before for m in messages):
            skipped = sum(m.input_rows for m in messages)
            log.warning(
                "%s had been committed before: its %d rows were not written again", _describe(transaction), skipped
            )
        if self.checkpoint:
            _runs.remember(self.checkpoint, transaction)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int = -1) -> None:
        """Abort the transaction of the tasks. Committed records stay: Spark calls abort after a failed commit, too.

        A SparklogError is logged and not raised: a transaction that cannot be aborted now is ended by the next run, or
        by its timeout.
        """
        transaction = next((m.transaction for m in messages if isinstance(m, SinkCommitMessage)), None)
        try:
            if transaction is None:
                transaction = self._transaction_without_tasks(batch_id)
            if transaction is None:
                if self.fencing_token != AT_LEAST_ONCE:
                    log.warning(
                        "no task reported the failed transaction: it is aborted when the batch runs again, or after "
                        "%d ms",
                        self.timeout_ms,
                    )
                return
            reach("sink.before-abort")
            ended = end_shared_transaction(self.address.connect(), transaction, committed=False, policy=self._policy)
        except SparklogError as e:
            log.warning("%s could not be aborted; the next run or its timeout ends it: %s", _describe(transaction), e)
        else:
            if ended.committed:
                log.warning("%s was committed before the failure: its records stay", _describe(transaction))

    def _transaction_without_tasks(self, batch_id: int) -> SharedTransaction | None:
        """Return the transaction of a write for which no task has reported; None if this process does not know it. An
        abort of that transaction cannot harm a newer run: the coordinator refuses the older fencing token."""
        if self.fencing_token == AT_LEAST_ONCE:
            return None
        if not self.is_stream:
            return self._own_transaction(self._own_fencing_token())
        run = _runs.of(self.checkpoint)
        return None if run is None else run._replace(version=batch_id, fencing_token=self._own_fencing_token())

    def _own_fencing_token(self) -> int:
        return _draw(self.address, self.wait_ms) if self.fencing_token is None else self.fencing_token

    def _ask_coordinator(self, transaction: SharedTransaction, ask: Callable[[Cluster], T]) -> T:
        """Return the result of `ask`. Errors of the coordinator are raised again with a text that names the next
        step."""
        try:
            return ask(self.address.connect())
        except ProducerFencedError as e:
            raise ProducerFencedError(
                f"{_describe(transaction)}: a newer run has taken over, and this run ({transaction.run_id}) can no "
                f"longer write; stop it ({e})"
            ) from e
        except TransactionAbortedError as e:
            raise self._aborted_error(transaction) from e
        except TransactionalIdAuthorizationFailedError as e:
            raise self.denied(transaction.app_id, e) from e

    def denied(self, app_id: str, error: SparklogError) -> TransactionalIdAuthorizationFailedError:
        """Return the coordinator's denial, completed by the option that sets the transactional id."""
        if app_id == self.app_id and not app_id.startswith(UNNAMED_APP_PREFIX):
            origin = "the option txnAppId names it"
        elif self.is_stream:
            origin = "without the option txnAppId it is the query's id, which each new checkpoint changes"
        else:
            origin = "without the options txnAppId and txnVersion each write draws one"
        return TransactionalIdAuthorizationFailedError(
            f"{error}. The sink writes under the transactional id {app_id!r}: {origin}. The user needs Write on that "
            "id: set txnAppId to a name, and allow the name with"
            " sparklog acl add --allow-principal User:NAME --operation Write "
            f"--transactional-id NAME"
        )

    @property
    def _driver_was_away(self) -> str:
        return f"the driver did not renew its lease for {self.lease_ms} ms, " if self.lease_ms else ""

    def _aborted_error(self, transaction: SharedTransaction) -> TransactionAbortedError:
        return TransactionAbortedError(
            f"{_describe(transaction)} was aborted before it could be committed (it took longer than "
            f"sparklog.transaction.timeout.ms = {self.timeout_ms}, {self._driver_was_away}an operator aborted it, or a "
            "newer run took over); none of its records is visible: run it again, with a longer timeout if necessary"
        )


def _describe(transaction: SharedTransaction | None) -> str:
    return "the write" if transaction is None else f"version {transaction.version} of {transaction.app_id}"


def _input_of(messages: Sequence[SinkCommitMessage]) -> BatchInput:
    """Return the input of the batch, from the reports of all its tasks."""
    place, checkpoint = messages[0].place, messages[0].checkpoint
    checksums = [m.checksum for m in messages if m.checksum is not None]
    return BatchInput(
        place.query_id,
        input_digest(checkpoint, place.query_id, place.batch_id),
        sum(m.input_rows for m in messages),
        sum(checksums) % (1 << 64) if len(checksums) == len(messages) else None,
    )


def stream_publisher(
    options: SinkOptions, checkpoint: str = "", query_name: str = "", *, ends_only: bool = False
) -> Publisher:
    """Return the publisher of one micro-batch. With exactly-once it draws a fencing token from the cluster.

    `checkpoint`: the query's option checkpointLocation, "" without. `ends_only`: no task writes with the publisher, so
    no fencing token is drawn yet. Raises SparklogError.
    """
    fencing_token = None if ends_only and options.exactly_once else _fencing_token(options)
    publisher = _publisher(options, fencing_token, app_id=options.txn_app_id, version=0, run_id="")
    return replace(publisher, checkpoint=checkpoint, query_name=query_name, is_stream=True)


def batch_publisher(options: SinkOptions) -> Publisher:
    """Return the publisher of one batch write: under txnAppId and txnVersion if they are given, else under a unique
    name. If the transaction has a lease and the options give no timeout, the timeout is the maximum of 7 days."""
    run_id = uuid.uuid4().hex
    app_id = f"{UNNAMED_APP_PREFIX}{run_id}" if options.txn_app_id is None else options.txn_app_id
    publisher = _publisher(options, _fencing_token(options), app_id=app_id, version=options.txn_version, run_id=run_id)
    transaction = publisher.transaction_of(NOWHERE)
    if transaction is None:
        return publisher
    try:
        lease_ms = lease_keepers.keep(options.address, transaction, options.broker_wait_ms)
    except TransactionalIdAuthorizationFailedError as e:
        raise publisher.denied(transaction.app_id, e) from e
    if lease_ms and options.transaction_timeout_ms is None:
        publisher = replace(publisher, timeout_ms=TRANSACTION_TIMEOUT_MS_MAX)
    return replace(publisher, lease_ms=lease_ms)


def _fencing_token(options: SinkOptions) -> int:
    return _draw(options.address, options.broker_wait_ms) if options.exactly_once else AT_LEAST_ONCE


def _draw(address: ClusterAddress, wait_ms: int) -> int:
    return draw_fencing_token(address.connect(), RetryPolicy(timeout_ms=wait_ms))


def _publisher(
    options: SinkOptions, fencing_token: int | None, *, app_id: str | None, version: int, run_id: str
) -> Publisher:
    return Publisher(
        options.address,
        options.transaction_timeout_ms or TRANSACTION_TIMEOUT_MS,
        options.broker_wait_ms,
        fencing_token,
        run_id,
        app_id,
        version,
    )


def task_place() -> TaskPlace:
    """Return the place of the running task; NOWHERE outside of a task."""
    context = TaskContext.get()
    if context is None:
        return NOWHERE
    query_id = context.getLocalProperty("sql.streaming.queryId")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    return TaskPlace(
        query_id=query_id or "",
        run_id=(context.getLocalProperty("spark.jobGroup.id") or "") if query_id else "",
        batch_id=int(batch_id) if batch_id is not None else -1,
        partition_id=context.partitionId(),
        attempt=context.attemptNumber(),
        checkpoint_setting=context.getLocalProperty(CHECKPOINT_SETTING),
    )
