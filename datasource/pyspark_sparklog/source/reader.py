"""The task that reads a range of one partition, and the batch reader that plans the ranges."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_sparklog.options.options import HISTORY, NEWEST, SourceOptions
from pyspark_sparklog.schemas import ReadSchema
from pyspark_sparklog.source.assembly import BatchAssembler
from pyspark_sparklog.source.batch_dataframe import FIXED, Edges, Frame, edges_of
from pyspark_sparklog.source.blocked_reads import BlockedReads
from pyspark_sparklog.source.catalog import BrokerWait, Catalog, ids_of, partitions_of
from pyspark_sparklog.source.planning import OffsetRange, split_ranges
from pyspark_sparklog.source.positions import check_order, explicit_starts, resolve_ending, resolve_starting
from pyspark_sparklog.spark_errors import all_in_one_line, in_one_line
from pyspark_sparklog.worker_process import imported_objects
from sparklog.client.net.topic_info import TopicInfo
from sparklog.client.reading.range_reader import Fetching, read_range
from sparklog.errors import DataLossError, OffsetOutOfRangeError, SparklogError, UnknownTopicOrPartitionError
from sparklog.types import TopicPartition

if TYPE_CHECKING:
    from sparklog.client.reading.consumed import ConsumedBatch
    from sparklog.client.reading.history_range import HistorySource
    from sparklog.lake.history import HistoryBatch

log = logging.getLogger("pyspark_sparklog")

QUIET_RETRY_MS = 5_000
"""Time in ms for which a fetch is retried before the broker's absence is logged."""


class RangePartition(InputPartition):
    """Offsets [start, end) of one partition, and the topic id to which they belong. `edges`: the ends of the range that
    are not fixed, but looked up by each action on `frame`, the DataFrame's read."""

    def __init__(
        self,
        topic: str,
        partition: int,
        start: int,
        end: int,
        topic_id: str,
        frame: Frame | None = None,
        edges: Edges = FIXED,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end
        self.topic_id = topic_id
        self.frame = frame
        self.edges = edges

    def __repr__(self) -> str:
        return f"RangePartition({self.topic}-{self.partition}, [{self.start}, {self.end}))"


def to_tasks(ranges: list[OffsetRange], options: SourceOptions, ids: dict[str, str]) -> list[RangePartition]:
    """Return the tasks that read `ranges`."""
    pieces = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
    return [RangePartition(*r.partition, r.start, r.end, ids[r.partition.topic]) for r in pieces]


def to_moving_tasks(
    ranges: list[OffsetRange], options: SourceOptions, ids: dict[str, str], frame: Frame
) -> list[RangePartition]:
    """Return the tasks that read `ranges`, with the edges that each action on `frame` decides. An empty range gets a
    task if its end moves."""
    pieces: dict[TopicPartition, list[OffsetRange]] = {}
    limits = options.min_partitions, options.max_records_per_partition
    if options.starting.kind == NEWEST:  # tasks of one partition would read different versions of an upserted table
        limits = None, None
    for piece in split_ranges(ranges, *limits):
        pieces.setdefault(piece.partition, []).append(piece)
    tasks = []
    for whole in ranges:
        tp = whole.partition
        edges = edges_of(options, tp)
        parts = pieces.get(tp, [whole] if edges.end else [])
        for n, part in enumerate(parts, 1):
            mine = Edges(edges.start, edges.end and n == len(parts))
            tasks.append(RangePartition(*tp, part.start, part.end, ids[tp.topic], frame, mine))
    return tasks


@dataclass(frozen=True)
class RangeRead:
    """The options and the schema for reading ranges. Spark pickles them for the tasks."""

    options: SourceOptions
    schema: ReadSchema

    @in_one_line
    def read(self, task: RangePartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the range as batches in Spark's layout.

        If the broker is away, the task waits for it, at most `sparklog.broker.wait.ms`, and continues where it stopped.
        Raises DataLossError if part of the range is gone; with failOnDataLoss=false it logs a warning and continues
        after the gap. Raises other SparklogErrors, for example after the wait.
        """
        tp = TopicPartition(task.topic, task.partition)
        assembler: BatchAssembler | None = None
        wait = BrokerWait(f"reading {tp}", self.options.broker_wait_ms)
        start, end = self._bounds(tp, task)
        position = start
        source: HistorySource | None = None
        while position < end:
            try:
                info = self._check_incarnation(tp, task, position, end)
                assembler = assembler or BatchAssembler(self.schema, tp, log_append_time=info.log_append_time)
                source = source or self._history(info)
                for batch in self._batches(tp, position, end, source, has_begun=position > start, task=task):
                    wait.reset()
                    yield from assembler.add(batch)
                    position = batch.next_offset
                break
            except (OffsetOutOfRangeError, DataLossError, UnknownTopicOrPartitionError) as e:
                position = self._behind_the_loss(tp, position, end, e)
            except SparklogError as e:
                wait.pause(e)
        if assembler is not None:
            yield from assembler.finish()
        imported_objects.freeze()

    def _history(self, info: TopicInfo) -> HistorySource | None:
        """Return the topic's history in its Delta table; None if the read has no use for it."""
        kind = self.options.starting.kind
        return recent_history(info, newest=kind == NEWEST) if kind in (HISTORY, NEWEST) else None

    def _batches(
        self,
        tp: TopicPartition,
        position: int,
        end: int,
        source: HistorySource | None,
        *,
        has_begun: bool,
        task: RangePartition,
    ) -> Iterator[ConsumedBatch | HistoryBatch]:
        options = self.options
        connections = options.address.connect()
        reading: dict[str, Any] = {
            "local": options.local_read,
            "check_crcs": options.check_crcs,
            "isolation": options.isolation,
            "retry_timeout_ms": min(QUIET_RETRY_MS, options.broker_wait_ms),
            "fetching": Fetching(
                options.fetch_max_bytes, options.fetch_max_wait_ms, options.request_timeout_ms, options.client_rack
            ),
        }
        columns, layout = self.schema.decoded_columns, self.schema.stored_layout
        if source is None:
            return read_range(connections, tp, position, end, columns=columns, layout=layout, **reading)
        from sparklog.client.reading.history_range import read_range_with_history

        return read_range_with_history(
            connections,
            tp,
            position,
            end,
            source,
            columns=layout.names if columns is None else columns,
            layout=layout,
            reaches_table_end=task.edges.end,
            has_begun=has_begun,
            **reading,
        )

    def _bounds(self, tp: TopicPartition, task: RangePartition) -> tuple[int, int]:
        """Return the start and end offset that the task reads in the running action."""
        planned = task.start, task.end
        if task.frame is None or not any(task.edges):
            return planned
        connections = self.options.address.connect()
        isolation, wait_ms = self.options.isolation, self.options.broker_wait_ms
        try:
            return task.frame.bounds(connections, tp, planned, task.edges, isolation, wait_ms)
        except UnknownTopicOrPartitionError:  # a loss, which is reported as such if there was anything to read
            return planned

    def _check_incarnation(self, tp: TopicPartition, task: RangePartition, position: int, end: int) -> TopicInfo:
        info = self.options.address.connect().topic(tp.topic, refresh=True)
        if info.topic_id != task.topic_id:
            raise UnknownTopicOrPartitionError(
                f"topic {tp.topic!r} was deleted and created again before offsets {position} to {end - 1} of "
                f"partition {tp.partition} were read"
            )
        if task.frame is not None:
            task.frame.check_partitions(tp, info)
        return info

    def _behind_the_loss(self, tp: TopicPartition, position: int, end: int, error: SparklogError) -> int:
        """Return the offset after the lost records that caused `error`. With failOnDataLoss it raises DataLossError."""
        if self.options.fail_on_data_loss:
            raise DataLossError(
                f"{tp}: some unread offsets of {position} to {end - 1} are gone: {error}. To continue with the "
                'existing records, restart the query with .option("failOnDataLoss", "false")'
            ) from error
        extent = None
        if not isinstance(error, UnknownTopicOrPartitionError):
            catalog = Catalog(self.options.address, self.options.broker_wait_ms)
            extent = catalog.extents([tp]).get(tp)
        # never the same place again: something was lost there, and the loop must end
        following = end if extent is None or extent.start <= position else min(extent.start, end)
        log.warning("%s: offsets %d to %d are gone, continuing without them: %s", tp, position, following - 1, error)
        return following


HISTORY_S = 5.0
"""Age in s up to which the tasks of one process share an opened Delta table, and so its version."""
_histories: dict[str, tuple[float, HistorySource]] = {}


def recent_history(info: TopicInfo, *, newest: bool) -> HistorySource:
    """Return the topic's history in its Delta table, opened at most HISTORY_S ago. `newest`: an upserted table
    counts."""
    name = f"{info.topic_id} {newest}"
    opened_s, source = _histories.get(name, (-float("inf"), None))
    if source is None or time.monotonic() - opened_s > HISTORY_S:
        from sparklog.client.reading.history_range import HistorySource

        _histories.clear()
        opened_s, source = _histories[name] = time.monotonic(), HistorySource(info, required=False, newest=newest)
    return source


@all_in_one_line
class SparklogBatchReader(DataSourceReader):
    """The reader of `spark.read`: all records between the starting and the ending offsets.

    Spark plans the tasks once for a DataFrame. The offsets of earliest and latest are looked up again with each action
    (`batch_dataframe`).
    """

    def __init__(self, options: SourceOptions, schema: ReadSchema) -> None:
        self._options = options
        self._reads = RangeRead(options, schema)
        self._name = uuid.uuid4().hex

    def partitions(self) -> list[InputPartition]:
        """Return the ranges to read, one Spark task each. An empty partition has a range, too, if its end is not
        fixed."""
        options = self._options
        kind = options.starting.kind
        at_once = Catalog(
            options.address,
            0,
            options.isolation,
            options.request_timeout_ms,
            history=kind in (HISTORY, NEWEST),
            newest=kind == NEWEST,
        )
        topics = at_once.topics(options.subscription, missing_is_error=True)
        catalog = replace(at_once, wait_ms=options.broker_wait_ms)  # the topics exist: wait for a change of leader
        extents = catalog.extents(partitions_of(options.subscription, topics))
        end = resolve_ending(options, catalog, extents)
        if options.fail_on_data_loss:
            check_order(options, explicit_starts(options), end)
        start = resolve_starting(options, catalog, extents)
        check_order(options, start, end)
        BlockedReads(catalog).check(extents)
        ranges = [OffsetRange(tp, start[tp], end[tp]) for tp in sorted(extents)]
        counts = {n: t.partitions for n, t in topics.items()}
        frame = Frame(self._name, counts, grows=not options.subscription.assign)
        tasks: list[InputPartition] = list(to_moving_tasks(ranges, options, ids_of(topics), frame))
        # an empty list would make Spark call read with no partition
        return tasks or [RangePartition("", 0, 0, 0, "")]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's range."""
        assert isinstance(partition, RangePartition)
        return self._reads.read(partition)
