"""The writers for Spark. They check options and columns before the first write; `sink_task` does the work of tasks,
`publication` that of the driver."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from pyspark_sparklog.compatibility import STREAMS_CAN_BE_WRITTEN, DataSourceStreamArrowWriter
from pyspark_sparklog.options.option_names import warn_once
from pyspark_sparklog.options.options import SinkOptions, Subscription, no_headers, parse_sink_options
from pyspark_sparklog.options.table_options import of_write, refuse_new_table, tells_new_tables
from pyspark_sparklog.schemas import arrow_schema_of
from pyspark_sparklog.sink.publication import SinkCommitMessage, batch_publisher, checked, stream_publisher
from pyspark_sparklog.sink.sink_input import fit_input
from pyspark_sparklog.sink.sink_task import SinkTask
from pyspark_sparklog.source.catalog import Catalog, shapes_of
from pyspark_sparklog.spark_errors import all_in_one_line
from pyspark_sparklog.worker_process import imported_objects
from sparklog.errors import InvalidConfigError, SparklogError
from sparklog.format.schema import KIND_ENVELOPE

log = logging.getLogger("pyspark_sparklog")


@all_in_one_line
class SparklogBatchWriter(DataSourceArrowWriter):
    """The writer of `df.write`. With exactly-once it appends all rows or none; with at-least-once a failed write can
    leave some rows."""

    def __init__(self, task: SinkTask) -> None:
        self._task = task
        self._tells_new_tables = tells_new_tables()

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows. Raises InvalidConfigError for a write that creates a table of the catalog."""
        if self._tells_new_tables:
            refuse_new_table()
        return self._task.write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make the records of all tasks visible. Raises SparklogError, such as ProducerFencedError or
        TransactionAbortedError."""
        reports = checked(messages)
        self._task.publisher.commit(reports)
        batch_id = max((m.place.batch_id for m in reports), default=-1)
        if batch_id >= 0 and self._task.options.exactly_once and self._task.options.txn_app_id is None:
            log.warning(
                "written in foreachBatch, of batch %d, without txnAppId and txnVersion: if Spark repeats the batch, "
                "its rows are written again; add .options(**once(NAME, batch_id)) of pyspark_sparklog.delta",
                batch_id,
            )

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Abort the failed write: none of its records becomes visible. With at-least-once, stored records stay."""
        _abort(self._task, messages, "the write")


@all_in_one_line
class SparklogStreamWriter(DataSourceStreamArrowWriter):
    """The writer of `df.writeStream`. With exactly-once it appends every micro-batch once. Spark creates a writer that
    its tasks use, and another one that commits."""

    def __init__(self, task: SinkTask, make_task: Callable[[], SinkTask] | None = None) -> None:
        """Keep the task. With `make_task`, `task` serves to commit and abort only; for writing, `make_task` creates
        another task."""
        self._task = task
        self._make_task = make_task

    def __getstate__(self) -> dict[str, Any]:
        """Return the state for the tasks, all of which write with one fencing token."""
        return {"_task": self._writing_task(), "_make_task": None}

    def _writing_task(self) -> SinkTask:
        if self._make_task is not None:
            self._task, self._make_task = self._make_task(), None
        return self._task

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write one task's rows."""
        return self._writing_task().write(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Make the records of a micro-batch visible, after all its tasks have written. Raises SparklogError, such as
        ProducerFencedError, TransactionAbortedError or StaleCheckpointError.
        """
        reports = checked(messages)
        for message in reports:
            if message.place.batch_id not in (batchId, -1):
                raise SparklogError(
                    f"a task of batch {message.place.batch_id} reported for batch {batchId}; it cannot be committed"
                )
        self._task.publisher.commit(reports)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Abort the micro-batch. A commit that has succeeded stays; with at-least-once, stored records stay."""
        _abort(self._task, messages, f"batch {batchId}", batchId)


def _abort(task: SinkTask, messages: Sequence[WriterCommitMessage | None], action: str, batch_id: int = -1) -> None:
    rows = sum(m.rows for m in messages if isinstance(m, SinkCommitMessage))
    if task.options.exactly_once:
        log.warning("%s failed; %d rows of finished tasks are aborted", action, rows)
    else:
        log.warning("%s failed; %d rows of finished tasks stay in the log", action, rows)
    task.publisher.abort(messages, batch_id)


def batch_writer(values: Mapping[str, str], schema: StructType, *, overwrite: bool) -> SparklogBatchWriter:
    """Return the writer of `df.write`. Raises InvalidConfigError or SchemaMismatchError before anything is written."""
    if overwrite:
        raise InvalidConfigError(
            'a topic cannot be overwritten: use .mode("append"), or delete and create the topic first'
        )
    options = parse_sink_options(of_write(values, schema), streaming=False)
    warn_once(options.remarks)
    kind = _check(options, schema, wait_ms=0)
    return SparklogBatchWriter(
        SinkTask(
            options, kind.envelope, kind.keyed, batch_publisher(options), kind.schema_id, kind.names, kind.topic_id
        )
    )


def stream_writer(
    values: Mapping[str, str], schema: StructType, *, overwrite: bool, ends_only: bool = False
) -> SparklogStreamWriter:
    """Return the writer of one micro-batch. Raises InvalidConfigError or SchemaMismatchError before anything is
    written. `ends_only`: Spark is expected to call only commit or abort, so no request is sent to the broker yet.
    """
    if overwrite:
        raise InvalidConfigError(
            'outputMode("complete") replaces the whole result with every batch, a topic can only be appended to: use '
            'outputMode("append") with a watermark, or write each result yourself with .foreachBatch(lambda rows, '
            "batch_id: "
            'rows.write.format("sparklog").mode("append").options(**OPTIONS).options(**once("NAME", '
            "batch_id)).save()), once "
            "from pyspark_sparklog.delta"
        )
    if not STREAMS_CAN_BE_WRITTEN:
        raise InvalidConfigError(
            "writing a stream to sparklog needs PySpark 4.1 or newer; with 4.0 write each batch in "
            ".foreachBatch(lambda rows, "
            'batch_id: rows.write.format("sparklog").mode("append").options(**OPTIONS).options(**once("NAME", '
            "batch_id))"
            ".save()), once from pyspark_sparklog.delta"
        )
    options = parse_sink_options(values, streaming=True)
    if not ends_only:
        warn_once(options.remarks)
    lower = {k.lower(): v for k, v in values.items()}
    query = lower.get("checkpointlocation", ""), lower.get("queryname", "")
    make_task = partial(_stream_task, options, schema, *query)
    if ends_only:
        ending = SinkTask(
            options, envelope=True, keyed=False, publisher=stream_publisher(options, *query, ends_only=True)
        )
        writer = SparklogStreamWriter(ending, make_task)
    else:
        writer = SparklogStreamWriter(make_task())
    imported_objects.freeze()
    return writer


def _stream_task(options: SinkOptions, schema: StructType, checkpoint: str, query_name: str) -> SinkTask:
    kind = _check(options, schema, wait_ms=options.broker_wait_ms)
    publisher = stream_publisher(options, checkpoint, query_name)
    return SinkTask(options, kind.envelope, kind.keyed, publisher, kind.schema_id, kind.names, kind.topic_id)


class _Kind(NamedTuple):
    """The kind of the target topic. `keyed`: the topic is typed and has key columns. `schema_id`, `topic_id`: its
    newest schema and its id; -1 and None if the rows name their topics. `names`: names of the columns in the log; None
    if the rows have the same names."""

    envelope: bool
    keyed: bool
    schema_id: int = -1
    names: tuple[str, ...] | None = None
    topic_id: str | None = None


def _check(options: SinkOptions, schema: StructType, *, wait_ms: int) -> _Kind:
    """Look up the target topic and check the rows against it. Raises SchemaMismatchError if they do not fit."""
    shape, keyed, schema_id, topic_id = None, False, -1, None
    if options.topic is not None:
        catalog = Catalog(options.address, wait_ms)
        topics = catalog.topics(Subscription(topics=(options.topic,)), missing_is_error=True, to_write=True)
        shape = shapes_of(topics)[options.topic]
        schema_id, topic_id = topics[options.topic].schema_id, topics[options.topic].topic_id
        if options.include_headers and shape.kind != KIND_ENVELOPE:
            raise no_headers(f"topic {options.topic!r} is a typed topic")
        keyed = shape.kind != KIND_ENVELOPE and bool(topics[options.topic].key_columns)
    fitted = fit_input(arrow_schema_of(schema), options.topic, shape, strict=options.strict_columns)
    if fitted.dropped:
        warn_once((f"columns that an envelope topic does not take are left out ({', '.join(fitted.dropped)})",))
    envelope = shape is None or shape.kind == KIND_ENVELOPE
    return _Kind(envelope, keyed, schema_id, None if fitted.unchanged else fitted.names, topic_id)
