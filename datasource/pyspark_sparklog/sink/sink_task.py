"""The task of a write: it gathers its rows, joins the write's transaction, and sends them."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pyspark_sparklog.options.options import SinkOptions
from pyspark_sparklog.sink.producers import producers
from pyspark_sparklog.sink.publication import Publisher, SinkCommitMessage, task_place
from pyspark_sparklog.sink.row_checksum import row_checksum
from pyspark_sparklog.sink.sink_input import TopicBatch, in_log_columns, names_partitions, split_by_topic
from pyspark_sparklog.worker_process import imported_objects
from sparklog.environment.fault_points import reach
from sparklog.settings import MIB, Scope, settings_of

SPREAD_BYTES = 4 * MIB
"""Bytes of rows that a task gathers before it hands them to the producer, if the rows go to several partitions or
topics: then each of these gets more than a few rows. Other rows are gathered up to the size of one batch of the log,
because more would leave the processor's caches. Also, if more than two Arrow batches are freed at a time, libc returns
their memory to the kernel, and the next batches cost a page fault per 4 KiB."""
IN_FLIGHT_MAX = 128
"""Number of hand-overs to the producer whose outcome is not yet awaited; `buffer.memory` bounds their bytes."""
_BATCH_SIZE = settings_of(Scope.PRODUCER)["batch.size.bytes"]


@dataclass(frozen=True)
class SinkTask:
    """A task of a write; Spark pickles it. `keyed`: the topic is typed and has key columns. `schema_id`, `topic_id`:
    the topic's newest schema and its id when the write began; -1 and None: the rows name their topics. `names`: the
    columns' names in the log (`sink_input.ColumnFit`); None: the names of the rows."""

    options: SinkOptions
    envelope: bool
    keyed: bool
    publisher: Publisher
    schema_id: int = -1
    names: tuple[str, ...] | None = None
    topic_id: str | None = None

    def write(self, batches: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
        """Write all rows and wait until every in-sync replica has them. Any failure fails the task.

        A task without rows does not join the transaction. If the version is committed already, the task reads its rows,
        so that the commit can compare them with the committed input, and writes nothing.
        """
        place = task_place()
        transaction = self.publisher.transaction_of(place)
        message = SinkCommitMessage(place, transaction)
        batches = self._count_rows(batches, message)
        pieces = self._gather_by_topic(batches)
        first = next(pieces, None)
        if first is None:
            return message
        participant = None
        if transaction is not None:
            participant = self.publisher.join(transaction)
            if participant is None:
                message.committed_before = True
                deque(batches, maxlen=0)
                return message
            message.producer_id = participant.producer_id
        producer = producers.take(self.options.address, self.options.producer)
        if self.options.topic is not None:  # the topic may have been created again since this worker wrote to it
            client_id = str(self.options.producer.get("client.id", ""))
            self.options.address.connect(client_id).note_schema(self.options.topic, self.schema_id, self.topic_id)
        try:
            with nullcontext() if participant is None else producer.participation(participant):
                self._send(producer, itertools.chain([first], pieces), message)
        except BaseException:
            producers.discard(producer)
            raise
        reach("sink.after-write")
        imported_objects.freeze()
        return message

    def _send(self, producer: Any, pieces: Iterator[TopicBatch], message: SinkCommitMessage) -> None:
        pending: deque[Any] = deque()
        for topic, rows in pieces:
            pending.append(producer.send_batch(topic, rows))
            del rows  # encoded by now: not to be held while Spark's next batch is read
            if len(pending) > IN_FLIGHT_MAX:
                _take_result(message, pending.popleft())
        while pending:
            _take_result(message, pending.popleft())

    def _count_rows(self, batches: Iterator[pa.RecordBatch], message: SinkCommitMessage) -> Iterator[pa.RecordBatch]:
        """Yield `batches` unchanged. Adds the number of their rows to the message, and their checksum if the publisher
        needs one."""
        message.checkpoint = self.publisher.checkpoint_of(message.place)
        if self.publisher.needs_checksum(message):
            message.checksum = 0
        for batch in batches:
            message.input_rows += batch.num_rows
            if message.checksum is not None:
                message.checksum = (message.checksum + row_checksum(batch)) % (1 << 64)
            yield batch

    def _gather_by_topic(
        self, batches: Iterator[pa.RecordBatch], *, spread_bytes: int = SPREAD_BYTES
    ) -> Iterator[TopicBatch]:
        """Yield the rows per topic, in their order, gathered to pieces of about `spread_bytes` or one batch of the log
        (see SPREAD_BYTES)."""
        held: dict[str, list[pa.RecordBatch]] = {}
        size, spread = 0, self.keyed
        one_batch = int(str(self.options.producer.get(_BATCH_SIZE.name, _BATCH_SIZE.default)))
        for rows_of_spark in batches:
            batch = rows_of_spark if self.names is None else in_log_columns(rows_of_spark, self.names)
            for topic, rows in split_by_topic(batch, self.options.topic, envelope=self.envelope):
                if rows.num_rows:
                    held.setdefault(topic, []).append(rows)
            more = batch.nbytes
            size += more
            spread = spread or len(held) > 1 or (self.envelope and names_partitions(batch))
            # stop where the size is nearest to one batch of the log, if Spark's next batch is as large as this one
            if size >= spread_bytes if spread else size + more // 2 >= one_batch:
                yield from (TopicBatch(t, pa.Table.from_batches(b)) for t, b in held.items())
                held, size, spread = {}, 0, self.keyed
        yield from (TopicBatch(t, pa.Table.from_batches(b)) for t, b in held.items())


def _take_result(message: SinkCommitMessage, future: Any) -> None:
    """Wait for the delivery of rows (at most the producer's delivery.timeout.ms), and add their partitions and offsets
    to the message."""
    for stored in future.result():
        tp = (stored.topic, stored.partition)
        first, last = message.offsets.get(tp, (stored.offset, -1))
        message.offsets[tp] = (min(first, stored.offset), max(last, stored.last_offset))
        message.rows += stored.record_count
