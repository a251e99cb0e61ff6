"""Rules of compaction: which log is due, which comes first, and which segments are merged. Pure functions of state and
time.

A log has three parts. In the clean part, [log start, first dirty offset), a key occurs at most once. The dirty part
follows, up to the first uncleanable offset; a run reads its keys. The rest is left alone: the last segment (it accepts
appends), everything above the last stable offset, and everything from the first segment with a record younger than
`min.compaction.lag.ms`.

A log is due in any of three cases: the dirty part has at least `min.cleanable.dirty.ratio` of the bytes of the clean
and dirty parts together; the dirty part holds a record older than `max.compaction.lag.ms`; the delete horizon of a
tombstone or marker has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from msgspec import Struct

from sparklog.format.offset_index import RELATIVE_OFFSET_MAX

NO_HORIZON = -1
CLEANER_POINT_FILE = "cleaner-point.json"
"""Name of the file with the cleaner's position in a log, which `sparklog.log.housekeeping.cleaner` describes."""


class CompactionPolicy(Struct, frozen=True):
    """A topic's settings for compaction. `compacts`: cleanup.policy contains `compact`."""

    compacts: bool
    min_cleanable_dirty_ratio: float
    delete_retention_ms: int
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int


class Cleanable(Protocol):
    """Properties of a segment that the rules use."""

    @property
    def base_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    @property
    def data_bytes(self) -> int: ...

    def bytes_before(self, offset: int) -> int: ...


S = TypeVar("S", bound=Cleanable)


class DirtySection(Struct, frozen=True):
    """The parts of a log, by offset and size. `first_uncleanable_offset` is never below `first_dirty_offset`."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    dirty_bytes: int

    @property
    def ratio(self) -> float:
        """Share of `dirty_bytes` in the sum of `clean_bytes` and `dirty_bytes`; 0 if the sum is 0."""
        both = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / both if both else 0.0


def dirty_section(
    segments: Sequence[S],
    policy: CompactionPolicy,
    *,
    first_dirty_offset: int,
    last_stable_offset: int,
    now_ms: int,
    largest_timestamp_of: Callable[[S], int | None],
) -> DirtySection:
    """Return the parts of the log with `segments` (ascending). A `first_dirty_offset` outside the log, after records
    were deleted or cut off, is replaced by the nearest offset in the log."""
    if not segments:
        return DirtySection(0, 0, 0, 0)
    first_dirty = min(max(first_dirty_offset, segments[0].base_offset), segments[-1].base_offset)
    uncleanable = first_dirty
    for segment in segments[:-1]:
        if segment.next_offset > last_stable_offset:
            break
        if segment.next_offset > first_dirty and policy.min_compaction_lag_ms:
            largest_ms = largest_timestamp_of(segment)
            if largest_ms is not None and now_ms - largest_ms < policy.min_compaction_lag_ms:
                break
        uncleanable = max(first_dirty, segment.next_offset)
    clean = dirty = 0
    for segment in segments:
        if segment.base_offset >= uncleanable:
            break
        before = segment.bytes_before(first_dirty) if segment.base_offset < first_dirty else 0
        clean += before
        dirty += segment.data_bytes - before
    if uncleanable == first_dirty:
        dirty = 0  # bytes that the index could not distinguish
    return DirtySection(first_dirty, uncleanable, clean, dirty)


def is_due(
    section: DirtySection,
    policy: CompactionPolicy,
    *,
    first_dirty_timestamp_ms: int | None,
    next_horizon_ms: int,
    now_ms: int,
) -> bool:
    """Return True if a log with this `section` is to be compacted now.

    `first_dirty_timestamp_ms`: timestamp of the first batch of the segment in which the dirty part begins; None:
    unknown. `next_horizon_ms`: the earliest delete horizon in the clean part, or NO_HORIZON.
    """
    if next_horizon_ms != NO_HORIZON and now_ms >= next_horizon_ms:
        return True
    if section.first_uncleanable_offset <= section.first_dirty_offset:
        return False
    if section.ratio >= policy.min_cleanable_dirty_ratio:
        return True
    return is_overdue(policy, first_dirty_timestamp_ms, now_ms)


def is_overdue(policy: CompactionPolicy, timestamp_ms: int | None, now_ms: int) -> bool:
    """Return True if `timestamp_ms` is longer ago than `max.compaction.lag.ms`; False if it is None."""
    return timestamp_ms is not None and now_ms - timestamp_ms > policy.max_compaction_lag_ms


K = TypeVar("K")


def dirtiest_first(sections: Mapping[K, DirtySection]) -> list[K]:
    """Return the logs in the order of their compaction: the largest dirty share first, then the most dirty bytes."""
    return sorted(sections, key=lambda k: (-sections[k].ratio, -sections[k].dirty_bytes))


def group_segments(segments: Sequence[S], *, bytes_max: int, schema_id_of: Callable[[S], int]) -> list[list[S]]:
    """Return `segments` (ascending) in groups that become one segment each: together not larger than `bytes_max`, with
    one schema, and offsets that fit one index. A segment that is too large has a group of its own."""
    groups: list[list[S]] = []
    size = 0
    for segment in segments:
        group = groups[-1] if groups else []
        if (
            group
            and size + segment.data_bytes <= bytes_max
            and schema_id_of(segment) == schema_id_of(group[0])
            and segment.next_offset - 1 - group[0].base_offset <= RELATIVE_OFFSET_MAX
        ):
            group.append(segment)
            size += segment.data_bytes
        else:
            groups.append([segment])
            size = segment.data_bytes
    return groups


FAILURES_MAX = 5
"""A log whose compaction has failed this many times in a row is left alone until the broker is restarted or the topic
altered."""


def retry_after_ms(failures: int, backoff_ms: int) -> int | None:
    """Return the time in ms until the next attempt after `failures` (at least 1) failed compactions of a log in a row;
    None: no further attempt. The time doubles with each failure."""
    return None if failures >= FAILURES_MAX else backoff_ms << (failures - 1)
