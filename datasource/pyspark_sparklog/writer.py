"""Writing: the tasks' producer, the message each task sends to the driver, and commit and abort there.

Today the sink is at-least-once: a task writes with acks=all and its records are visible as soon as the broker has them,
so a batch that Spark runs again is written again. The seam for exactly-once is in place: a task's message says which
query, run, batch, partition and attempt wrote which offsets, `commit` is called with the messages of the winning
attempts only, and `abort` may follow a commit that took effect. A transaction begins where `_Task` takes its producer,
ends in `SparklogStreamWriter.commit`, and is keyed by (query id, batch id), fenced by run id.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_sparklog.catalog import Catalog, shapes_of
from pyspark_sparklog.compatibility import STREAMS_CAN_BE_WRITTEN, DataSourceStreamArrowWriter
from pyspark_sparklog.options import SinkOptions, Subscription, parse_sink_options
from pyspark_sparklog.schemas import arrow_schema_of
from pyspark_sparklog.sink_input import check_input, split_by_topic
from sparklog.errors import InvalidConfigError, SparklogError
from sparklog.format.schema import KIND_ENVELOPE
from sparklog.settings import MIB, Scope, settings_of

if TYPE_CHECKING:
    from sparklog.client.producer import Producer

log = logging.getLogger("pyspark_sparklog")

GATHERED_BYTES = 4 * MIB
"""Rows are gathered to about this size before they are handed to the producer: Spark's batches are small."""
IN_FLIGHT_MAX = 32
"""Hand-overs of that size whose outcome has not been looked at."""
PRODUCERS_MAX = 8


@dataclass
class SinkCommitMessage(WriterCommitMessage):
    """What one task wrote. `offsets` maps (topic, partition) to (first, last) offset; other writers may be in between.

    Batch writes outside foreachBatch have no query: then the ids are "" and `batch_id` is -1.
    """

    query_id: str
    run_id: str
    batch_id: int
    partition_id: int
    attempt: int
    rows: int = 0
    offsets: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)


class _Producers:
    """This process's producers by address and settings: a Python worker runs many tasks, one after another."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[Any, ...], Producer] = OrderedDict()
        self._pid = os.getpid()

    def take(self, bootstrap_servers: str, settings: Mapping[str, object]) -> Producer:
        from sparklog.client.producer import Producer

        key = (bootstrap_servers, tuple(sorted(settings.items())))
        dropped = []
        with self._lock:
            if self._pid != os.getpid():  # a forked child must not use its parent's
                self._open.clear()
                self._pid = os.getpid()
            producer = self._open.get(key)
            if producer is None:
                names = settings_of(Scope.PRODUCER)
                parameters: dict[str, Any] = {names[n].parameter: v for n, v in settings.items()}
                producer = self._open[key] = Producer(bootstrap_servers, acks="all", **parameters)
            self._open.move_to_end(key)
            while len(self._open) > PRODUCERS_MAX:
                dropped.append(self._open.popitem(last=False)[1])
        for old in dropped:
            old.close()
        return producer

    def discard(self, producer: Producer) -> None:
        """Closes a producer that failed: the next task gets a new one."""
        with self._lock:
            for key in [k for k, p in self._open.items() if p is producer]:
                del self._open[key]
        try:
            producer.close()
        except SparklogError as e:
            log.warning("while closing a producer that had failed: %s", e)

    def close(self) -> None:
        with self._lock:
            producers = list(self._open.values()) if self._pid == os.getpid() else []
            self._open.clear()
        for producer in producers:
            producer.close()


_producers = _Producers()
atexit.register(_producers.close)


@dataclass(frozen=True)
class _Task:
    """What a task does; goes to it by pickle."""

    options: SinkOptions
    envelope: bool

    def write(self, batches: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
        """Writes all rows and waits until every in-sync replica has them. Any failure fails the task."""
        message = _message_of_this_task()
        producer = _producers.take(self.options.bootstrap_servers, self.options.producer)
        try:
            pending: deque[Any] = deque()
            for topic, table in self._gathered(batches):
                pending.append(producer.send_batch(topic, table))
                if len(pending) > IN_FLIGHT_MAX:
                    _take_result(message, pending.popleft())
            while pending:
                _take_result(message, pending.popleft())
        except BaseException:
            _producers.discard(producer)
            raise
        return message

    def _gathered(self, batches: Iterator[pa.RecordBatch]) -> Iterator[tuple[str, pa.Table]]:
        """The rows per topic in pieces of about GATHERED_BYTES, in order within a topic."""
        held: dict[str, list[pa.RecordBatch]] = {}
        size = 0
        for batch in batches:
            for topic, rows in split_by_topic(batch, self.options.topic, envelope=self.envelope):
                if rows.num_rows:
                    held.setdefault(topic, []).append(rows)
            size += batch.nbytes
            if size >= GATHERED_BYTES:
                yield from ((t, pa.Table.from_batches(b)) for t, b in held.items())
                held, size = {}, 0
        yield from ((t, pa.Table.from_batches(b)) for t, b in held.items())


def _take_result(message: SinkCommitMessage, future: Any) -> None:
    """Waits for a hand-over (the producer's delivery.timeout.ms bounds it) and notes where its rows went."""
    for stored in future.result():
        tp = (stored.topic, stored.partition)
        first, last = message.offsets.get(tp, (stored.offset, -1))
        message.offsets[tp] = (min(first, stored.offset), max(last, stored.last_offset))
        message.rows += stored.record_count


def _message_of_this_task() -> SinkCommitMessage:
    context = TaskContext.get()
    if context is None:
        return SinkCommitMessage("", "", -1, 0, 0)
    query_id = context.getLocalProperty("sql.streaming.queryId")
    batch_id = context.getLocalProperty("streaming.sql.batchId")
    return SinkCommitMessage(
        query_id=query_id or "",
        run_id=(context.getLocalProperty("spark.jobGroup.id") or "") if query_id else "",
        batch_id=int(batch_id) if batch_id is not None else -1,
        partition_id=context.partitionId(),
        attempt=context.attemptNumber(),
    )


class SparklogBatchWriter(DataSourceArrowWriter):
    """`df.write`: appends, at least once."""

    def __init__(self, task: _Task) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes one task's rows."""
        return self._task.write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """All tasks have written; their records have been visible since."""
        _checked(messages)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The write failed. What was written stays: there is no transaction yet."""
        _log_abort(messages, "the write")


class SparklogStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream`: appends every micro-batch, at least once."""

    def __init__(self, task: _Task) -> None:
        self._task = task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Writes one task's rows."""
        return self._task.write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """All tasks of the micro-batch have written; their records have been visible since."""
        for message in _checked(messages):
            if message.batch_id not in (batchId, -1):
                raise SparklogError(
                    f"a task of batch {message.batch_id} reported for batch {batchId}; nothing of it can be committed"
                )

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """The micro-batch failed, possibly after its commit. What was written stays: there is no transaction yet."""
        _log_abort(messages, f"batch {batchId}")


def _checked(messages: Sequence[WriterCommitMessage | None]) -> list[SinkCommitMessage]:
    """The messages of a commit: one from every task."""
    found = [m for m in messages if isinstance(m, SinkCommitMessage)]
    if len(found) != len(messages):
        raise SparklogError(f"{len(messages) - len(found)} of {len(messages)} tasks did not say what they wrote")
    return found


def _log_abort(messages: Sequence[WriterCommitMessage | None], what: str) -> None:
    rows = sum(m.rows for m in messages if isinstance(m, SinkCommitMessage))
    log.warning("%s failed; %d rows of tasks that had finished are in the log and stay there", what, rows)


def batch_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SparklogBatchWriter:
    """The writer of `df.write`. Raises InvalidConfigError or SchemaMismatchError before anything is written."""
    if overwrite:
        raise InvalidConfigError(
            'a topic cannot be overwritten: use .mode("append"), or delete and create the topic before'
        )
    return SparklogBatchWriter(_task(given, schema, streaming=False))


def stream_writer(given: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SparklogStreamWriter:
    """The writer of one micro-batch. Raises InvalidConfigError or SchemaMismatchError before anything is written."""
    if overwrite:
        raise InvalidConfigError(
            'outputMode("complete") replaces the whole result with every batch, a topic can only be appended to: use '
            'outputMode("append") with a watermark, or foreachBatch'
        )
    if not STREAMS_CAN_BE_WRITTEN:
        raise InvalidConfigError(
            "writing a stream to sparklog needs PySpark 4.1 or newer (batch writes and reads work)"
        )
    return SparklogStreamWriter(_task(given, schema, streaming=True))


def _task(given: Mapping[str, str], schema: StructType, *, streaming: bool) -> _Task:
    options = parse_sink_options(given)
    shape = None
    if options.topic is not None:
        catalog = Catalog(options.bootstrap_servers, options.broker_wait_ms if streaming else 0)
        topics = catalog.topics(Subscription(topics=(options.topic,)), missing_is_error=True)
        shape = shapes_of(topics)[options.topic]
    check_input(arrow_schema_of(schema), options.topic, shape)
    return _Task(options, shape is None or shape.kind == KIND_ENVELOPE)
