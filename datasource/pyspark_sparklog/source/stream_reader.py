"""The streaming source: the query's position, the end of the next micro-batch, and the tasks that read it.

One instance lives as long as the query's run, in one Python process beside the driver; a copy of it goes to the tasks.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from pyspark_sparklog.compatibility import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark_sparklog.offsets import Positions, SourceOffset, nested
from pyspark_sparklog.options.options import HISTORY, NEWEST, SourceOptions
from pyspark_sparklog.schemas import ReadSchema, TopicShape, changed_columns, follow_schema, join_schema
from pyspark_sparklog.source.blocked_reads import BlockedReads
from pyspark_sparklog.source.catalog import Catalog, ids_of, partitions_of, shapes_of
from pyspark_sparklog.source.data_loss import LossReporter
from pyspark_sparklog.source.group_progress import GroupProgress
from pyspark_sparklog.source.planning import Extent, backlog, limit_end, next_end, readable_ranges
from pyspark_sparklog.source.positions import resolve_starting
from pyspark_sparklog.source.reader import RangePartition, RangeRead, to_tasks
from pyspark_sparklog.spark_errors import all_in_one_line
from sparklog.types import TopicPartition

log = logging.getLogger("pyspark_sparklog")

IDLE_WAIT_MS = 100
"""Longest wait in ms for new data in a call of `latestOffset`. Without a wait Spark would ask an idle source every
12 ms or so."""


@all_in_one_line
class SparklogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The reader of `spark.readStream`: micro-batches of all subscribed partitions."""

    def __init__(self, options: SourceOptions, schema: ReadSchema, topics: dict[str, TopicShape]) -> None:
        self._options = options
        self._reads = RangeRead(options, schema)
        self._shapes = dict(topics)
        self._catalog = Catalog(
            options.address,
            options.broker_wait_ms,
            options.isolation,
            options.request_timeout_ms,
            history=options.starting.kind in (HISTORY, NEWEST),
            newest=options.starting.kind == NEWEST,
        )
        self._blocked_reads = BlockedReads(self._catalog)
        self._losses = LossReporter(fail=options.fail_on_data_loss)
        self._progress = GroupProgress(options.address, options.group_id)
        self._initial: SourceOffset | None = None
        self._frozen: SourceOffset | None = None
        self._latest: SourceOffset | None = None
        self._position: SourceOffset | None = None
        self._batch_start: Positions = {}
        self._batch_begun_s = -float("inf")
        self._has_polled = False
        self._nameless = False
        self._first_ids: dict[str, str] = {}
        """Topic ids at the first batch after offsets without ids, such as those of format("kafka"). Later offsets of
        this query that lack ids belong to these topics."""
        self._plan: tuple[SourceOffset, dict[str, str], dict[TopicPartition, Extent]] | None = None

    # -- offsets

    def initialOffset(self) -> dict[str, Any]:
        """Return the start offset of a new query. Spark asks twice and gets the same answer."""
        if self._initial is None:
            ids, extents = self._read_extents(missing_is_error=True)
            if self._frozen is not None:
                extents = {
                    tp: Extent(e.start, max(e.start, min(e.end, self._frozen.positions.get(tp, e.start))))
                    for tp, e in extents.items()
                }
            self._initial = SourceOffset(resolve_starting(self._options, self._catalog, extents), ids)
        self._position = self._position or self._initial
        return self._initial.to_dict()

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the read limit that Spark passes to `latestOffset`: ReadMaxRows with maxOffsetsPerTrigger, ReadMinRows
        with minOffsetsPerTrigger alone, else ReadAllAvailable."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Fix the end of Trigger.AvailableNow at the current end of the topics."""
        ids, extents = self._read_extents(missing_is_error=True)
        self._frozen = SourceOffset({tp: e.end for tp, e in extents.items()}, ids)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:
        """Return the end of the next micro-batch that begins at `start`; `start` itself if there is nothing to read.

        With nothing to read it waits about IDLE_WAIT_MS for data, so that Spark asks less often. Spark 4.0 and 4.1 pass
        neither argument; then the micro-batch continues from the last known position.
        """
        limit = self.getDefaultReadLimit() if limit is None else limit
        begin = self._position if start is None else SourceOffset.from_dict(start)
        if start is not None and self._initial is None and not self._has_polled:
            self._warn_of_changed_columns()
        self._warn_if_nameless(begin)
        if start is not None and begin is not None:
            # Spark plans a micro-batch after it has committed the previous one, which ends at `begin`
            self._progress.publish(begin.positions)
        end = self._next(begin, limit)
        may_wait = self._frozen is None and self._has_polled
        self._has_polled = True
        if begin is not None and end.same_place(begin):
            # the first question is answered at once: Spark runs a first batch in any case
            if may_wait and self._latest is not None and self._wait(self._latest):
                end = self._next(begin, limit)
                if end.same_place(begin):  # new records belong to a transaction that an open one holds back in part
                    time.sleep(IDLE_WAIT_MS / 1000)
            if end.same_place(begin):
                return begin.to_dict() if start is None else start  # unchanged: Spark takes another text for new data
        if begin is not None and self._initial is not None and begin.same_place(self._initial):
            end = SourceOffset(end.positions, end.ids, self._batch_start)
        self._position = end
        return end.to_dict()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the ends of the topics at the last call of `latestOffset`, which the query's progress shows under that
        name; None before the first call."""
        return None if self._latest is None else nested(self._latest.positions)

    def _warn_if_nameless(self, begin: SourceOffset | None) -> None:
        if begin is None or begin.ids or not begin.positions or self._nameless:
            return
        self._nameless = True
        log.warning(
            "the query's offsets have no topic ids, only names: this start cannot detect a topic that was deleted "
            "and created again before; the query keeps the ids from its first batch on"
        )

    def _warn_of_changed_columns(self) -> None:
        """Log a warning if columns have changed since the topic's creation, in a query that continues from a
        checkpoint. Spark's own error about the state names no remedy."""
        for name, info in self._catalog.topics(self._options.subscription, missing_is_error=False).items():
            if warning := changed_columns(name, info.schemas, self._reads.schema):
                log.warning("%s", warning)

    def _next(self, begin: SourceOffset | None, limit: ReadLimit) -> SourceOffset:
        """Return the end of the next micro-batch, which starts at `begin`; the end of the topics if `begin` is None."""
        ids, extents = self._read_extents(missing_is_error=False, reached=None if begin is None else begin.positions)
        self._blocked_reads.check(extents)
        self._latest = SourceOffset({tp: e.end for tp, e in extents.items()}, ids)
        seen = extents
        if begin is None:
            return self._latest
        if not begin.ids:
            self._first_ids = {**ids, **self._first_ids}
            begin = self._with_ids(begin)
        if self._frozen is not None:
            extents = {tp: self._thaw(tp, e, begin, ids) for tp, e in extents.items() if self._counts(tp, begin)}
        start, available, losses = next_end(begin.positions, begin.ids, extents, ids, self._options.subscription.names)
        self._losses.report(losses)
        self._batch_start = start
        end = self._admit(start, available, limit)
        position = SourceOffset(end, {t: i for t, i in ids.items() if any(tp.topic == t for tp in end)})
        self._plan = (position, ids, seen)
        return position

    def _with_ids(self, offset: SourceOffset) -> SourceOffset:
        """Return an offset without ids with the ids that its topics had at the first batch."""
        return offset if offset.ids else SourceOffset(offset.positions, self._first_ids, offset.initial)

    def _counts(self, tp: TopicPartition, begin: SourceOffset) -> bool:
        """True if a partition takes part in a Trigger.AvailableNow run: it existed when the run began."""
        assert self._frozen is not None
        return tp in self._frozen.positions or tp in begin.positions

    def _thaw(self, tp: TopicPartition, extent: Extent, begin: SourceOffset, ids: dict[str, str]) -> Extent:
        """Return the extent of a partition for a Trigger.AvailableNow run: it ends at the frozen end, or at the
        position in `begin` if that is later."""
        assert self._frozen is not None
        here = (
            begin.positions.get(tp, extent.start)
            if begin.ids.get(tp.topic, ids[tp.topic]) == ids[tp.topic]
            else extent.start
        )
        same = self._frozen.ids.get(tp.topic) == ids[tp.topic]
        most = min(extent.end, self._frozen.positions.get(tp, here)) if same else extent.start
        # a position beyond the log's end must stay visible as a loss
        return Extent(extent.start, min(extent.end, max(most, here)))

    def _admit(self, start: Positions, available: Positions, limit: ReadLimit) -> Positions:
        """Return `available`, reduced to the read limits; `start` while the query waits for minOffsetsPerTrigger."""
        if isinstance(limit, ReadAllAvailable):
            return available
        minimum = self._options.min_offsets_per_trigger
        if minimum is not None and self._frozen is None:
            now = time.monotonic()
            waited_ms = (now - self._batch_begun_s) * 1000
            if waited_ms < self._options.max_trigger_delay_ms and backlog(start, available) < minimum:
                return start
            self._batch_begun_s = now
        if isinstance(limit, ReadMaxRows):
            return limit_end(start, available, limit.max_rows)
        return available

    def _wait(self, latest: SourceOffset) -> bool:
        return self._catalog.wait_for_data(latest.positions, IDLE_WAIT_MS)

    def _read_extents(
        self, *, missing_is_error: bool, reached: Positions | None = None
    ) -> tuple[dict[str, str], dict[TopicPartition, Extent]]:
        """Return the current ids of the subscribed topics and extents of their partitions (`reached`: see Catalog).

        Raises SchemaMismatchError if the running query cannot read the columns that a topic has now, or those of a
        topic that was added to the subscription.
        """
        topics = self._catalog.topics(self._options.subscription, missing_is_error=missing_is_error)
        for name, shape in shapes_of(topics).items():
            planned = self._shapes.get(name)
            if planned is not None:
                follow_schema(name, planned, shape, self._reads.schema)
                continue
            join_schema(name, shape, self._shapes, self._reads.schema)
            self._shapes[name] = shape
        extents = self._catalog.extents(partitions_of(self._options.subscription, topics), reached)
        ids = ids_of(topics)
        return {t: i for t, i in ids.items() if any(tp.topic == t for tp in extents)}, extents

    # -- reading

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """Return the tasks of the micro-batch [start, end)."""
        first, last = self._with_ids(SourceOffset.from_dict(start)), SourceOffset.from_dict(end)
        self._progress.publish(first.positions)
        self._position = last
        if last.initial is not None:
            first = SourceOffset(last.initial, last.ids)
        ids, extents = self._seen_for(first, last)
        plan = readable_ranges(first.positions, first.ids, last.positions, last.ids, extents, ids)
        self._losses.report(plan.losses)
        return list(to_tasks(plan.ranges, self._options, ids))

    def _seen_for(self, begin: SourceOffset, end: SourceOffset) -> tuple[dict[str, str], dict[TopicPartition, Extent]]:
        """Return the ids and extents for planning the micro-batch [begin, end): those that `latestOffset` has used if
        it chose that end last, else new ones. The tasks find losses that occur later."""
        planned, self._plan = self._plan, None
        if planned is not None and planned[0].same_place(end):
            return planned[1], planned[2]
        topics = self._catalog.topics(self._options.subscription, missing_is_error=False)
        here = {tp: o for tp, o in end.positions.items() if tp.topic in topics}
        return ids_of(topics), self._catalog.extents(here, here, begin.positions)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one task's range."""
        assert isinstance(partition, RangePartition)
        return self._reads.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Publish the positions of the committed batch that ends at `end` to the group, if there is one."""
        self._progress.publish(SourceOffset.from_dict(end).positions)

    def stop(self) -> None:
        """Do nothing: connections belong to the process."""
