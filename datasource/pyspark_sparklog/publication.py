"""How what the tasks of a write have stored becomes visible: all of it at once and once, or nothing.

A micro-batch (or a batch write) is one shared transaction (docs/internals/delivery.md, section 3). It is named by the
application and a version: in a stream query id and batch id, in a batch write txnAppId and txnVersion, or a random name.

- The driver draws a ticket when the writer is made; later runs have larger ones, and fence earlier ones.
- A task with rows joins and writes with a producer id of its own. If the version is committed already, it writes nothing.
- `commit` names the producer ids of the attempts that Spark accepted, the winners. Everybody else's records are aborted:
  failed attempts, speculative copies, zombies of an earlier run.
- The decision is for good: the same commit again gets it again, an abort after it changes nothing. So a driver that is
  killed between the decision and Spark's own commit log does no harm: the batch is run again, and finds it committed.
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

from pyspark_sparklog.options import SinkOptions
from sparklog.client.cluster import Cluster, cluster
from sparklog.client.retry import RetryPolicy
from sparklog.client.shared_transaction import (
    Participant,
    SharedTransaction,
    draw_ticket,
    end_shared_transaction,
    join_shared_transaction,
)
from sparklog.errors import ProducerFencedError, SparklogError, TransactionAbortedError
from sparklog.testing.faults import reach
from sparklog.types import UNNAMED_APP_PREFIX

log = logging.getLogger("pyspark_sparklog")

T = TypeVar("T")

RUNS_REMEMBERED_MAX = 1_000
AT_LEAST_ONCE = -1
"""Stands for a ticket."""


class TaskPlace(NamedTuple):
    """Where a task runs. Batch writes have no query: then the ids are "" and `batch_id` is -1."""

    query_id: str
    run_id: str
    batch_id: int
    partition_id: int
    attempt: int


@dataclass
class SinkCommitMessage(WriterCommitMessage):
    """What one task wrote. `offsets` maps (topic, partition) to (first, last) offset; other writers may be in between.

    `transaction` None: at-least-once. `producer_id` -1: the task had no rows, or (`committed_before`) it threw them away
    because the version had been committed before.
    """

    place: TaskPlace
    transaction: SharedTransaction | None = None
    producer_id: int = -1
    committed_before: bool = False
    rows: int = 0
    offsets: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)


class Ending(NamedTuple):
    """What a commit asks for: that the records of `winners` (producer ids) become visible."""

    transaction: SharedTransaction
    winners: tuple[int, ...]


def checked(messages: Sequence[WriterCommitMessage | None]) -> list[SinkCommitMessage]:
    """The messages of a commit: one from every task. Raises SparklogError if one is missing."""
    found = [m for m in messages if isinstance(m, SinkCommitMessage)]
    if len(found) != len(messages):
        raise SparklogError(f"{len(messages) - len(found)} of {len(messages)} tasks did not say what they wrote")
    return found


def ending_of(messages: Sequence[SinkCommitMessage]) -> Ending | None:
    """What to ask for, given the messages of all tasks; None: nothing, all is visible that will ever be.

    Raises SparklogError if the tasks do not belong to one transaction.
    """
    transactions = {m.transaction for m in messages}
    if len(transactions) > 1:
        raise SparklogError(f"the tasks wrote for different transactions, nothing can be committed: {transactions}")
    transaction = next(iter(transactions), None)
    if transaction is None:
        return None
    winners = tuple(m.producer_id for m in messages if m.producer_id >= 0)
    if not winners and any(m.committed_before for m in messages):
        return None
    # also without winners: attempts that lost may have written something, and an earlier run must be fenced
    return Ending(transaction, winners)


class _Runs:
    """The run that has committed last for each checkpoint, as this process has seen it: Spark commits and aborts all batches
    of a run in one process, and an abort in which no task has reported does not say whose it is."""

    def __init__(self) -> None:
        self._by_checkpoint: OrderedDict[str, SharedTransaction] = OrderedDict()

    def note(self, checkpoint: str, transaction: SharedTransaction) -> None:
        self._by_checkpoint[checkpoint] = transaction
        self._by_checkpoint.move_to_end(checkpoint)
        while len(self._by_checkpoint) > RUNS_REMEMBERED_MAX:
            self._by_checkpoint.popitem(last=False)

    def of(self, checkpoint: str) -> SharedTransaction | None:
        return self._by_checkpoint.get(checkpoint)


_runs = _Runs()


@dataclass(frozen=True)
class Publisher:
    """The transaction of one write, on the driver and in its tasks; goes to them by pickle.

    `ticket` AT_LEAST_ONCE: there is no transaction; None: nothing is written with it, it only ends what others wrote, and
    draws a ticket should it need one. `app_id` None: the query's and batch's, which only tasks know.
    `checkpoint` "": the query's is not known.
    """

    bootstrap_servers: str
    timeout_ms: int
    wait_ms: int
    ticket: int | None
    run_id: str = ""
    app_id: str | None = None
    version: int = 0
    checkpoint: str = ""

    @property
    def _policy(self) -> RetryPolicy:
        return RetryPolicy(timeout_ms=self.wait_ms)

    def transaction_of(self, place: TaskPlace) -> SharedTransaction | None:
        """The transaction a task at `place` writes in. Raises SparklogError if Spark does not say which batch it is."""
        if self.ticket is None:
            raise SparklogError("this writer was made to end a batch, tasks cannot write with it")
        if self.ticket == AT_LEAST_ONCE:
            return None
        if self.app_id is not None:
            return SharedTransaction(self.app_id, self.version, self.run_id, self.ticket)
        if not place.query_id or place.batch_id < 0:
            raise SparklogError(
                "Spark does not tell the task its query id and batch id, so the batch cannot be written exactly once: "
                'set .option("sparklog.delivery.guarantee", "at-least-once")'
            )
        return SharedTransaction(place.query_id, place.batch_id, place.run_id, self.ticket)

    def join(self, transaction: SharedTransaction) -> Participant | None:
        """A producer identity for one task; None: the version is committed already, nothing may be written.

        Raises ProducerFencedError when a newer run has taken over.
        """
        reach("sink.before-join")
        joined = self._tell(
            transaction,
            lambda c: join_shared_transaction(c, transaction, timeout_ms=self.timeout_ms, policy=self._policy),
        )
        reach("sink.after-join")
        return joined

    def commit(self, messages: Sequence[SinkCommitMessage]) -> None:
        """Makes visible what the tasks of `messages` have written, and nothing else. Raises ProducerFencedError,
        TransactionAbortedError: then nothing of it is visible."""
        ending = ending_of(messages)
        if ending is None:
            if any(m.committed_before for m in messages):
                log.warning("%s had been committed before: nothing was written", _describe(messages[0].transaction))
            return
        transaction, winners = ending
        reach("sink.before-commit")
        committed = self._tell(
            transaction,
            lambda c: end_shared_transaction(c, transaction, committed=True, winners=winners, policy=self._policy),
        )
        reach("sink.after-commit")
        if not committed:
            raise self._aborted(transaction)
        if self.checkpoint:
            _runs.note(self.checkpoint, transaction)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batch_id: int = -1) -> None:
        """Throws away what the tasks have written, unless it is committed: Spark aborts after a failed commit, too. Raises
        nothing: what cannot be aborted now ends with the next run, or by its timeout."""
        found = next((m.transaction for m in messages if isinstance(m, SinkCommitMessage)), None)
        try:
            if found is None:
                found = self._transaction_of_nobody(batch_id)
            if found is None:
                if self.ticket != AT_LEAST_ONCE:
                    log.warning(
                        "no task said which transaction failed: it is aborted when the batch is run again, or after %d ms",
                        self.timeout_ms,
                    )
                return
            reach("sink.before-abort")
            committed = end_shared_transaction(
                cluster(self.bootstrap_servers), found, committed=False, policy=self._policy
            )
        except SparklogError as e:
            log.warning("%s could not be aborted, it ends with the next run or by its timeout: %s", _describe(found), e)
        else:
            if committed:
                log.warning("%s had been committed before it failed: it stays", _describe(found))

    def _transaction_of_nobody(self, batch_id: int) -> SharedTransaction | None:
        """The transaction of a write in which no task has reported, as far as it is known here. A newer run is in no danger:
        the coordinator knows the run as an older one."""
        if self.ticket == AT_LEAST_ONCE:
            return None
        if self.app_id is not None:
            return SharedTransaction(self.app_id, self.version, self.run_id, self._own_ticket())
        run = _runs.of(self.checkpoint)
        return None if run is None else run._replace(version=batch_id, ticket=self._own_ticket())

    def _own_ticket(self) -> int:
        return _draw(self.bootstrap_servers, self.wait_ms) if self.ticket is None else self.ticket

    def _tell(self, transaction: SharedTransaction, ask: Callable[[Cluster], T]) -> T:
        """The answer, with errors that name the next step."""
        try:
            return ask(cluster(self.bootstrap_servers))
        except ProducerFencedError as e:
            raise ProducerFencedError(
                f"{_describe(transaction)}: a newer run has taken over, this one ({transaction.run_id}) cannot write any "
                f"more; stop it ({e})"
            ) from e
        except TransactionAbortedError as e:
            raise self._aborted(transaction) from e

    def _aborted(self, transaction: SharedTransaction) -> TransactionAbortedError:
        return TransactionAbortedError(
            f"{_describe(transaction)} was aborted before it could be committed (it took longer than "
            f"sparklog.transaction.timeout.ms = {self.timeout_ms}, an operator aborted it, or a newer run took over); "
            "nothing of it is visible: run it again, with a longer timeout if need be"
        )


def _describe(transaction: SharedTransaction | None) -> str:
    return "the write" if transaction is None else f"version {transaction.version} of {transaction.app_id}"


def stream_publisher(options: SinkOptions, checkpoint: str = "", *, ends_only: bool = False) -> Publisher:
    """For one micro-batch: draws its ticket. `checkpoint`: its location, if the query was given one. `ends_only`: no task
    writes with it, so it needs no ticket yet."""
    ticket = None if ends_only and options.exactly_once else _ticket(options)
    return replace(_publisher(options, ticket, app_id=None, version=0, run_id=""), checkpoint=checkpoint)


def batch_publisher(options: SinkOptions) -> Publisher:
    """For one batch write: under txnAppId and txnVersion if they are given, else under a name that nobody uses again."""
    run_id = uuid.uuid4().hex
    app_id = f"{UNNAMED_APP_PREFIX}{run_id}" if options.txn_app_id is None else options.txn_app_id
    return _publisher(options, _ticket(options), app_id=app_id, version=options.txn_version, run_id=run_id)


def _ticket(options: SinkOptions) -> int:
    return _draw(options.bootstrap_servers, options.broker_wait_ms) if options.exactly_once else AT_LEAST_ONCE


def _draw(bootstrap_servers: str, wait_ms: int) -> int:
    return draw_ticket(cluster(bootstrap_servers), RetryPolicy(timeout_ms=wait_ms))


def _publisher(options: SinkOptions, ticket: int | None, *, app_id: str | None, version: int, run_id: str) -> Publisher:
    return Publisher(
        options.bootstrap_servers,
        options.transaction_timeout_ms,
        options.broker_wait_ms,
        ticket,
        run_id,
        app_id,
        version,
    )


def task_place() -> TaskPlace:
    """Where this task runs; of a process that is no task, nothing."""
    context = TaskContext.get()
    if context is None:
        return TaskPlace("", "", -1, 0, 0)
    query_id = context.getLocalProperty("sql.streaming.queryId")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    return TaskPlace(
        query_id=query_id or "",
        run_id=(context.getLocalProperty("spark.jobGroup.id") or "") if query_id else "",
        batch_id=int(batch_id) if batch_id is not None else -1,
        partition_id=context.partitionId(),
        attempt=context.attemptNumber(),
    )
