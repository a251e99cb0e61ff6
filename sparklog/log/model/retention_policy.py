"""Retention: the choice of the segments to delete, and the jitter of the time at which segments roll. Pure functions of
state and time.

A segment can be deleted if all of it lies below the high watermark, in one of these cases:

- All of it lies below the log start, because records were deleted on request. This holds under every policy.
- The policy deletes, and the segment's largest record timestamp is older than `retention.ms`.
- The policy deletes, and the segments after it hold `retention.bytes` or more.

Segments are deleted from the oldest on, up to the first segment that stays, so a log never has holes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from sparklog.errors import InvalidRequestError, OffsetOutOfRangeError

UNLIMITED = -1
TO_HIGH_WATERMARK = -1
"""Offset of a request to delete all records below the high watermark."""

POLICY_DELETE = "delete"
POLICY_COMPACT = "compact"


class RetentionPolicy(Struct, frozen=True):
    """Time and size that a partition keeps; -1 without limit. `deletes`: cleanup.policy contains `delete`."""

    deletes: bool
    retention_ms: int
    retention_bytes: int


class RetentionSegment(Protocol):
    """Properties of a segment that retention uses. `next_offset` is the offset after its last record."""

    @property
    def base_offset(self) -> int: ...

    @property
    def next_offset(self) -> int: ...

    @property
    def data_bytes(self) -> int: ...


class ExpiredSegments(Struct, frozen=True):
    """Number of the oldest segments that can be deleted, in all and by reason. A segment with several reasons counts
    for one of them."""

    count: int
    below_log_start: int = 0
    too_old: int = 0
    too_much: int = 0

    def without_last(self) -> ExpiredSegments:
        """Return the result without the newest of these segments."""
        kept_back = next(name for name in ("too_old", "too_much", "below_log_start") if getattr(self, name))
        return replace(self, count=self.count - 1, **{kept_back: getattr(self, kept_back) - 1})

    def __str__(self) -> str:
        reasons = {
            "below the log start": self.below_log_start,
            "older than retention.ms": self.too_old,
            "more than retention.bytes": self.too_much,
        }
        return ", ".join(f"{n} {reason}" for reason, n in reasons.items() if n)


S = TypeVar("S", bound=RetentionSegment)


def expired(
    segments: Sequence[S],
    policy: RetentionPolicy,
    *,
    log_start_offset: int,
    high_watermark: int,
    now_ms: int,
    largest_timestamp_of: Callable[[S], int | None],
) -> ExpiredSegments:
    """Return the number of the oldest of `segments` (ascending) that can be deleted. An empty segment cannot: its name
    marks an offset.

    `largest_timestamp_of` can have to read a file, so it is called for as few segments as possible. If it returns None
    (unknown), the segment is not too old.
    """
    remaining_bytes = sum(s.data_bytes for s in segments)
    below = old = much = 0
    for segment in segments:
        if segment.next_offset > high_watermark or segment.next_offset == segment.base_offset:
            break
        if segment.next_offset <= log_start_offset:
            below += 1
        elif policy.deletes and _too_much(policy, remaining_bytes - segment.data_bytes):
            much += 1
        elif policy.deletes and _too_old(policy, now_ms, segment, largest_timestamp_of):
            old += 1
        else:
            break
        remaining_bytes -= segment.data_bytes
    return ExpiredSegments(below + old + much, below, old, much)


def _too_much(policy: RetentionPolicy, bytes_behind: int) -> bool:
    return policy.retention_bytes != UNLIMITED and bytes_behind >= policy.retention_bytes


def _too_old(policy: RetentionPolicy, now_ms: int, segment: S, largest_timestamp_of: Callable[[S], int | None]) -> bool:
    if policy.retention_ms == UNLIMITED:
        return False
    largest_ms = largest_timestamp_of(segment)
    return largest_ms is not None and now_ms - largest_ms > policy.retention_ms


def deletion_offset(
    before_offset: int, *, cleanup_policy: str, log_start_offset: int, high_watermark: int, name: object
) -> int:
    """Return the log start of `name` after a request to delete the records below `before_offset` (-1: all readable
    ones). A request below the log start changes nothing.

    Raises InvalidRequestError for a topic that is only compacted, OffsetOutOfRangeError above the high watermark.
    """
    if POLICY_DELETE not in cleanup_policy.split(","):
        raise InvalidRequestError(
            f"records of {name} cannot be deleted: its cleanup.policy is {cleanup_policy}, which keeps the last "
            "record of each key; send tombstones (null values), or set cleanup.policy=compact,delete"
        )
    if before_offset == TO_HIGH_WATERMARK:
        return high_watermark
    if not 0 <= before_offset <= high_watermark:
        raise OffsetOutOfRangeError(
            f"records of {name} before offset {before_offset} cannot be deleted: the log goes from {log_start_offset} "
            f"to {high_watermark}; name an offset up to the high watermark, or -1 for all"
        )
    return max(before_offset, log_start_offset)


def roll_jitter_ms(segment_jitter_ms: int, segment_ms: int, seed: str) -> int:
    """Return the deduction from `segment.ms`: spread evenly over [0, segment.jitter.ms], less than `segment.ms`, and
    always the same for a `seed`."""
    if segment_jitter_ms <= 0:
        return 0
    drawn = int.from_bytes(blake2b(seed.encode(), digest_size=8).digest(), "little")
    return min(drawn * (segment_jitter_ms + 1) >> 64, max(0, segment_ms - 1))
