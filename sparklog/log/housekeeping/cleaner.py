"""Compaction of one log, and the choice of the next log.

cleaner-point.json in the partition's directory records the compacted part of the log: ``{"topic_id",
"first_dirty_offset", "next_horizon_ms"}``. `next_horizon_ms` is the earliest delete horizon of a remaining tombstone or
marker, -1 without one. The file is replaced as a whole after a run. It is removed when the log is cut back, because
records appended afterwards below its offset are not compacted. If the file is lost, or belongs to another topic, the
next run reads the whole log again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from sparklog.environment.files import read_hint
from sparklog.format.checkpoint import decode, encode
from sparklog.log.compaction.offset_map import OffsetMap
from sparklog.log.compaction.rewrite import (
    RunContext,
    always,
    keyed_rows,
    pass_freely,
    plan_group,
    source_batches,
    write_group,
)
from sparklog.log.model.compaction_policy import (
    CLEANER_POINT_FILE,
    NO_HORIZON,
    DirtySection,
    dirty_section,
    group_segments,
    is_due,
    is_overdue,
)
from sparklog.log.partition_log import PartitionLog
from sparklog.log.producers.transactions import AbortedRanges
from sparklog.log.segments.batch_times import roll_time_ms
from sparklog.log.segments.segment import LogSegment

logger = logging.getLogger(__name__)


class CleanerPoint(Struct, frozen=True):
    """The cleaner's position in one log; the module's text describes its file."""

    topic_id: str
    first_dirty_offset: int = 0
    next_horizon_ms: int = NO_HORIZON


class DueLog(NamedTuple):
    """A log that is due, and the bounds of its parts. `deletions_may_go`: the argument of `due_for_compaction`."""

    log: PartitionLog
    section: DirtySection
    point: CleanerPoint
    deletions_may_go: Callable[[], bool]


class CompactionResult(Struct):
    """Result of a run. The next run begins at `next_dirty_offset`."""

    next_dirty_offset: int
    bytes_before: int = 0
    bytes_after: int = 0
    rows_removed: int = 0
    null_keys: int = 0
    segments_before: int = 0
    segments_after: int = 0
    complete: bool = True
    """False if the log was cut or lost segments during the run: the next run then begins at the same offset."""


def load_point(context: RunContext) -> CleanerPoint:
    """Read the cleaner's position; it is offset 0 if the file is missing or not this topic's. Raises StorageError."""
    data = read_hint(context.files, context.directory / CLEANER_POINT_FILE)
    point = decode(data, CleanerPoint) if data is not None else None
    return (
        point
        if point is not None and point.topic_id == context.owner.topic_id
        else CleanerPoint(context.owner.topic_id)
    )


def cleaned_to(log: PartitionLog) -> int:
    """Return the end of the compacted part of the log. Records below this offset can be missing, because a later record
    has their key. Raises StorageError."""
    return load_point(log.replacement.context(pass_freely)).first_dirty_offset


def due_for_compaction(log: PartitionLog, deletions_may_go: Callable[[], bool] = always) -> DueLog | None:
    """Return the log if it is to be compacted now, else None. Rolls the last segment if it holds overdue records.

    `deletions_may_go` returns True if tombstones and markers whose delete horizon has passed are allowed to go at this
    moment. A replica that lacks a tombstone, but has older records of its key, would otherwise keep these records
    forever. The function is called again during the run. Raises LogCorruptError, StorageError, StorageFullError.
    """
    policy = log.config.compaction
    if not policy.compacts or log.is_closed or log.has_remote_segments or not log.owner.key_columns:
        return None
    context = log.replacement.context(pass_freely)
    segments = log.local_segments
    if segments and is_overdue(policy, _first_timestamp_ms(segments[-1]), context.now_ms):
        log.appender.begin_segment()
        segments = log.local_segments
    point = load_point(context)
    held = log.retention.held_from
    section = dirty_section(
        segments,
        policy,
        first_dirty_offset=point.first_dirty_offset,
        last_stable_offset=log.last_stable_offset if held is None else min(held, log.last_stable_offset),
        now_ms=context.now_ms,
        largest_timestamp_of=_largest_timestamp_ms,
    )
    first_dirty = next((s for s in segments if s.next_offset > section.first_dirty_offset), None)
    due = is_due(
        section,
        policy,
        first_dirty_timestamp_ms=None if first_dirty is None else _first_timestamp_ms(first_dirty),
        next_horizon_ms=point.next_horizon_ms if deletions_may_go() else NO_HORIZON,
        now_ms=context.now_ms,
    )
    return DueLog(log, section, point, deletions_may_go) if due else None


def _largest_timestamp_ms(segment: LogSegment) -> int | None:
    largest = segment.largest_timestamp
    return None if largest is None else largest[0]


def _first_timestamp_ms(segment: LogSegment) -> int | None:
    """Return the timestamp of a segment's first batch; None without a batch."""
    if not segment.data_bytes:
        return None
    return roll_time_ms(next(segment.headers_from(None))[1])


def compact_log(due: DueLog, keys: OffsetMap, throttle: Callable[[int], None] = pass_freely) -> CompactionResult:
    """Compact a log. `keys` must be empty; the run fills it. Only one run at a time is allowed for a log; appends and
    reads continue meanwhile.

    `throttle` is called with the number of bytes to be read or written next. An exception from it ends the run and does
    no harm to the log.
    Raises LogCorruptError, StorageError, StorageFullError.
    """
    log, section = due.log, due.section
    cuts = log.truncation.count
    log.flusher.flush(
        active=False
    )  # the replacement of a record must not be lost in a power cut that would have spared the record
    context = replace(
        log.replacement.context(throttle),
        deletions_may_go=due.deletions_may_go,
        aborted=AbortedRanges(log.reader.aborted_transactions(0, section.first_uncleanable_offset)),
        last_of_producers=log.last_offsets_of_producers(),
    )
    segments = [s for s in log.local_segments if s.base_offset < section.first_uncleanable_offset]
    _fill(keys, segments, section, context)
    next_dirty = max(section.first_dirty_offset, min(keys.latest_offset + 1, section.first_uncleanable_offset))
    result = CompactionResult(next_dirty)
    next_horizon_ms = NO_HORIZON
    cleaned = [s for s in segments if s.base_offset < next_dirty]
    heads_bytes = max((s.data_position for s in cleaned), default=0)
    groups = group_segments(
        cleaned,
        bytes_max=context.segment_bytes - heads_bytes,
        schema_id_of=lambda segment: segment.info.schema_id,
    )
    with_data: set[int] = set()
    for group in groups:
        plan = plan_group(group, keys, context, with_data)
        written = group
        if plan.is_worth_it:
            written = write_group(plan, context)
            if not log.replacement.replace(group, written):
                result.complete = False
                break
        _count(result, group, written)
        result.rows_removed += plan.rows_removed
        result.null_keys += plan.null_keys
        if plan.next_horizon_ms != NO_HORIZON:
            earliest = (
                plan.next_horizon_ms if next_horizon_ms == NO_HORIZON else min(plan.next_horizon_ms, next_horizon_ms)
            )
            next_horizon_ms = earliest
    if result.complete:
        point = CleanerPoint(context.owner.topic_id, next_dirty, next_horizon_ms)
        path = context.directory / CLEANER_POINT_FILE
        result.complete = log.truncation.unless_cut(cuts, lambda: context.files.write_atomic(path, encode(point)))
    if not result.complete:
        result.next_dirty_offset = section.first_dirty_offset
    _report(log, result)
    return result


def _count(result: CompactionResult, before: Sequence[LogSegment], after: Sequence[LogSegment]) -> None:
    result.bytes_before += sum(s.data_bytes for s in before)
    result.bytes_after += sum(s.data_bytes for s in after)
    result.segments_before += len(before)
    result.segments_after += len(after)


def _fill(keys: OffsetMap, segments: Sequence[LogSegment], section: DirtySection, context: RunContext) -> None:
    """Enter the keys of the dirty part into the map until it is full. The map's `latest_offset` begins at the end of
    the clean part, which earlier runs have read."""
    keys.latest_offset = section.first_dirty_offset - 1
    for segment in segments:
        if segment.next_offset <= section.first_dirty_offset:
            continue
        for batch in source_batches(segment, context, section.first_dirty_offset):
            header = batch.header
            if header.record_count and not context.aborted.covers(header):
                rows = keyed_rows(batch, context, tombstones=False)
                if not keys.put(*rows.since(section.first_dirty_offset)):
                    return
            keys.latest_offset = header.last_offset
            if keys.is_full:
                return
        keys.latest_offset = segment.next_offset - 1


def _report(log: PartitionLog, result: CompactionResult) -> None:
    logger.info(
        "partition %s: compacted %d segments of %d bytes to %d of %d, %d records removed, clean up to offset %d",
        log.owner.topic_partition, result.segments_before, result.bytes_before,
        result.segments_after, result.bytes_after, result.rows_removed, result.next_dirty_offset,
    )  # fmt: skip
    if result.null_keys:
        logger.warning(
            "partition %s: %d records without a key were kept: compaction cannot tell what they replace; write them "
            "with a key",
            log.owner.topic_partition, result.null_keys,
        )  # fmt: skip
