"""What a task of a write does with its rows: gathers them, joins the write's transaction, and sends them."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pyspark_sparklog.options import SinkOptions
from pyspark_sparklog.producers import producers
from pyspark_sparklog.publication import Publisher, SinkCommitMessage, task_place
from pyspark_sparklog.sink_input import TopicBatch, split_by_topic
from pyspark_sparklog.worker_process import imported_objects
from sparklog.settings import MIB
from sparklog.testing.faults import reach

GATHERED_BYTES = 4 * MIB
"""Rows are gathered to about this size before they are handed to the producer: Spark's batches are small."""
IN_FLIGHT_MAX = 32
"""Hand-overs of that size whose outcome has not been looked at."""


@dataclass(frozen=True)
class SinkTask:
    """Goes to the tasks by pickle."""

    options: SinkOptions
    envelope: bool
    publisher: Publisher

    def write(self, batches: Iterator[pa.RecordBatch]) -> SinkCommitMessage:
        """Writes all rows and waits until every in-sync replica has them. Any failure fails the task.

        A task without rows takes no part in the transaction. One that comes when the version is committed reads its rows,
        so that Spark can use its process again, and writes nothing.
        """
        place = task_place()
        transaction = self.publisher.transaction_of(place)
        message = SinkCommitMessage(place, transaction)
        pieces = self._gathered(batches)
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
        producer = producers.take(self.options.bootstrap_servers, self.options.producer)
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
            if len(pending) > IN_FLIGHT_MAX:
                _take_result(message, pending.popleft())
        while pending:
            _take_result(message, pending.popleft())

    def _gathered(self, batches: Iterator[pa.RecordBatch]) -> Iterator[TopicBatch]:
        """The rows per topic in pieces of about GATHERED_BYTES, in order within a topic."""
        held: dict[str, list[pa.RecordBatch]] = {}
        size = 0
        for batch in batches:
            for topic, rows in split_by_topic(batch, self.options.topic, envelope=self.envelope):
                if rows.num_rows:
                    held.setdefault(topic, []).append(rows)
            size += batch.nbytes
            if size >= GATHERED_BYTES:
                yield from (TopicBatch(t, pa.Table.from_batches(b)) for t, b in held.items())
                held, size = {}, 0
        yield from (TopicBatch(t, pa.Table.from_batches(b)) for t, b in held.items())


def _take_result(message: SinkCommitMessage, future: Any) -> None:
    """Waits for a hand-over (the producer's delivery.timeout.ms bounds it) and notes where its rows went."""
    for stored in future.result():
        tp = (stored.topic, stored.partition)
        first, last = message.offsets.get(tp, (stored.offset, -1))
        message.offsets[tp] = (min(first, stored.offset), max(last, stored.last_offset))
        message.rows += stored.record_count
