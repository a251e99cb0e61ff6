"""Reading: what a task does with its range of one partition, and the batch reader that plans the ranges."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from pyspark_sparklog.assembly import BatchAssembler
from pyspark_sparklog.catalog import BrokerWait, Catalog, ids_of, partitions_of
from pyspark_sparklog.options import SourceOptions
from pyspark_sparklog.planning import OffsetRange, split_ranges
from pyspark_sparklog.positions import resolve_ending, resolve_starting
from pyspark_sparklog.schemas import ReadSchema
from pyspark_sparklog.worker_process import imported_objects
from sparklog.client.cluster import TopicInfo, cluster
from sparklog.client.range_reader import read_range
from sparklog.errors import DataLossError, OffsetOutOfRangeError, SparklogError, UnknownTopicOrPartitionError
from sparklog.types import TopicPartition

log = logging.getLogger("pyspark_sparklog")

QUIET_RETRY_MS = 5_000
"""A broker that is back within this time is not worth a line in the log."""


class RangePartition(InputPartition):
    """Offsets [start, end) of one partition, and the incarnation of its topic they belong to."""

    def __init__(self, topic: str, partition: int, start: int, end: int, topic_id: str) -> None:
        self.topic = topic
        self.partition = partition
        self.start = start
        self.end = end
        self.topic_id = topic_id

    def __repr__(self) -> str:
        return f"RangePartition({self.topic}-{self.partition}, [{self.start}, {self.end}))"


def to_tasks(ranges: list[OffsetRange], options: SourceOptions, ids: dict[str, str]) -> list[RangePartition]:
    """The tasks that read `ranges`."""
    pieces = split_ranges(ranges, options.min_partitions, options.max_records_per_partition)
    return [RangePartition(*r.partition, r.start, r.end, ids[r.partition.topic]) for r in pieces]


@dataclass(frozen=True)
class RangeRead:
    """How ranges are read; goes to the tasks by pickle."""

    options: SourceOptions
    schema: ReadSchema

    def read(self, task: RangePartition) -> Iterator[pa.RecordBatch]:
        """Yields the rows of the range as batches in Spark's layout.

        While the broker is gone it is tried again for `sparklog.broker.wait.ms`, from where reading stopped. Raises
        DataLossError if part of the range is gone (with failOnDataLoss=false: warns and goes on behind it).
        """
        tp = TopicPartition(task.topic, task.partition)
        assembler: BatchAssembler | None = None
        wait = BrokerWait(f"reading {tp}", self.options.broker_wait_ms)
        position = task.start
        while position < task.end:
            try:
                info = self._check_incarnation(tp, task, position)
                assembler = assembler or BatchAssembler(self.schema, tp, log_append_time=info.log_append_time)
                for batch in read_range(
                    cluster(self.options.bootstrap_servers),
                    tp,
                    position,
                    task.end,
                    columns=self.schema.decoded_columns,
                    layout=self.schema.stored_layout,
                    local=self.options.local_read,
                    check_crcs=self.options.check_crcs,
                    isolation=self.options.isolation,
                    retry_timeout_ms=min(QUIET_RETRY_MS, self.options.broker_wait_ms),
                ):
                    wait.reset()
                    yield from assembler.add(batch)
                    position = batch.next_offset
                break
            except (OffsetOutOfRangeError, DataLossError, UnknownTopicOrPartitionError) as e:
                position = self._behind_the_loss(tp, position, task.end, e)
            except SparklogError as e:
                wait.pause(e)
        if assembler is not None:
            yield from assembler.finish()
        imported_objects.freeze()

    def _check_incarnation(self, tp: TopicPartition, task: RangePartition, position: int) -> TopicInfo:
        info = cluster(self.options.bootstrap_servers).topic(tp.topic, refresh=True)
        if info.topic_id != task.topic_id:
            raise UnknownTopicOrPartitionError(
                f"topic {tp.topic!r} was deleted and created again while offsets {position} to {task.end - 1} of "
                f"partition {tp.partition} were still to be read"
            )
        return info

    def _behind_the_loss(self, tp: TopicPartition, position: int, end: int, error: SparklogError) -> int:
        """The offset to go on at after `error`; raises DataLossError with failOnDataLoss."""
        if self.options.fail_on_data_loss:
            raise DataLossError(
                f"{tp}: offsets {position} to {end - 1} were still to be read, part of them is gone: {error}. To go on with "
                'what is there, restart the query with .option("failOnDataLoss", "false")'
            ) from error
        extent = None
        if not isinstance(error, UnknownTopicOrPartitionError):
            catalog = Catalog(self.options.bootstrap_servers, self.options.broker_wait_ms)
            extent = catalog.extents([tp]).get(tp)
        # never the same place again: something was lost there, and the loop must end
        following = end if extent is None or extent.start <= position else min(extent.start, end)
        log.warning("%s: offsets %d to %d are gone, going on without them: %s", tp, position, following - 1, error)
        return following


class SparklogBatchReader(DataSourceReader):
    """`spark.read`: all records between the starting and the ending offsets, decided once when the read is planned."""

    def __init__(self, options: SourceOptions, schema: ReadSchema) -> None:
        self._options = options
        self._reads = RangeRead(options, schema)

    def partitions(self) -> list[InputPartition]:
        """The ranges to read, one Spark task each."""
        options = self._options
        catalog = Catalog(options.bootstrap_servers, 0, options.isolation)
        topics = catalog.topics(options.subscription, missing_is_error=True)
        extents = catalog.extents(partitions_of(options.subscription, topics))
        start = resolve_starting(options, catalog, extents)
        end = resolve_ending(options, catalog, extents)
        ranges = [OffsetRange(tp, start[tp], max(start[tp], end[tp])) for tp in sorted(extents)]
        tasks: list[InputPartition] = list(to_tasks(ranges, options, ids_of(topics)))
        # an empty list would make Spark call read with no partition
        return tasks or [RangePartition("", 0, 0, 0, "")]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Reads one task's range."""
        assert isinstance(partition, RangePartition)
        return self._reads.read(partition)
