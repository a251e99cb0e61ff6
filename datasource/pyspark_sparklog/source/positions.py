"""The resolution of the options for starting and ending offsets and timestamps to offsets: the start of a new query,
and the end of a batch read."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyspark_sparklog.offsets import Positions
from pyspark_sparklog.options.options import EARLIEST_OFFSET, HISTORY, LATEST_OFFSET, NEWEST, Position, SourceOptions
from pyspark_sparklog.source.catalog import Catalog
from pyspark_sparklog.source.planning import Extent
from sparklog.errors import InvalidConfigError, OffsetOutOfRangeError
from sparklog.types import TopicPartition

log = logging.getLogger("pyspark_sparklog")


def resolve_starting(options: SourceOptions, catalog: Catalog, extents: Mapping[TopicPartition, Extent]) -> Positions:
    """Return the first offset of every partition of `extents`.

    Raises InvalidConfigError if an option per partition does not name exactly those partitions, or if a partition has
    no record of at least the timestamp and the strategy is `error`. Raises OffsetOutOfRangeError for an offset that
    cannot be read; without failOnDataLoss the nearest offset is taken.
    """
    return _resolve(options, options.starting, catalog, extents, none_is_error=options.timestamp_strategy == "error")


def resolve_ending(options: SourceOptions, catalog: Catalog, extents: Mapping[TopicPartition, Extent]) -> Positions:
    """Return the end (exclusive) of every partition of `extents`. A partition without a record of at least the
    timestamp ends at its end. Other errors are those of `resolve_starting`."""
    return _resolve(options, options.ending, catalog, extents, none_is_error=False)


def check_order(options: SourceOptions, start: Positions, end: Positions) -> None:
    """Check that no partition ends before it begins; Spark's Kafka source checks this, too. Raises
    InvalidConfigError."""
    wrong = [tp for tp in sorted(start) if start[tp] > end.get(tp, start[tp])]
    if wrong:
        tp = wrong[0]
        raise InvalidConfigError(
            f"The resolved start offset {start[tp]} is greater than the resolved end offset {end[tp]} for {tp}: "
            f"{options.starting.option} is above {options.ending.option}; name a start that is not above the end"
        )


def explicit_starts(options: SourceOptions) -> Positions:
    """Return the offsets that `startingOffsets` gives as numbers, without -1 (latest) and -2 (earliest)."""
    if options.starting.kind != "offsets":
        return {}
    offsets = options.starting.per_partition
    return {TopicPartition(t, p): o for t, ps in offsets.items() for p, o in ps.items() if o >= 0}


def _resolve(
    options: SourceOptions,
    position: Position,
    catalog: Catalog,
    extents: Mapping[TopicPartition, Extent],
    *,
    none_is_error: bool,
) -> Positions:
    if position.kind in ("earliest", HISTORY, NEWEST):  # the extents begin with the history
        return {tp: e.start for tp, e in extents.items()}
    if position.kind == "latest":
        return {tp: e.end for tp, e in extents.items()}
    if position.kind == "timestamp":
        targets = dict.fromkeys(extents, position.timestamp_ms)
    else:
        targets = _per_partition(position, extents)
    if position.kind == "offsets":
        return {tp: _check_offset(options, position, tp, o, extents[tp]) for tp, o in targets.items()}
    matches = catalog.offsets_for_timestamps(targets)
    without = [tp for tp in sorted(targets) if matches[tp] is None]
    if without and none_is_error:
        raise InvalidConfigError(
            f"No offset matched from request of topic-partition {without[0]} and timestamp {targets[without[0]]} "
            f"({position.option}): choose an earlier timestamp, or set startingOffsetsByTimestampStrategy to latest "
            "to begin at the end"
        )
    # a record that was appended after `extents` were looked up is not part of this read
    return {tp: e.end if (o := matches[tp]) is None else min(max(o, e.start), e.end) for tp, e in extents.items()}


def _per_partition(position: Position, extents: Mapping[TopicPartition, Extent]) -> Positions:
    offsets = {TopicPartition(t, p): o for t, ps in position.per_partition.items() for p, o in ps.items()}
    missing = ", ".join(map(str, sorted(extents.keys() - offsets.keys())))
    surplus = ", ".join(map(str, sorted(offsets.keys() - extents.keys())))
    if missing:
        how = f" ({EARLIEST_OFFSET} is earliest, {LATEST_OFFSET} latest)" if position.kind == "offsets" else ""
        raise InvalidConfigError(
            f"{position.option} must name every partition that is read; missing: {missing}{how}. The partitions "
            "specified don't match what are assigned"
        )
    if surplus:
        raise InvalidConfigError(
            f"{position.option} names partitions that are not read: {surplus}. The partitions specified don't match "
            "what are assigned"
        )
    return offsets


def _check_offset(options: SourceOptions, position: Position, tp: TopicPartition, offset: int, extent: Extent) -> int:
    if offset == EARLIEST_OFFSET:
        return extent.start
    if offset == LATEST_OFFSET:
        return extent.end
    if extent.start <= offset <= extent.end:
        return offset
    problem = (
        f"{position.option}: offset {offset} of {tp} is out of range, it has offsets {extent.start} to {extent.end}"
    )
    if options.fail_on_data_loss:
        raise OffsetOutOfRangeError(
            f"{problem}; name an offset in the range, or set failOnDataLoss to false to use the nearest one"
        )
    nearest = min(max(offset, extent.start), extent.end)
    log.warning("%s; continuing at offset %d (failOnDataLoss is false)", problem, nearest)
    return nearest
