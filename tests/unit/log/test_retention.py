"""Deletions by retention, as pure rules: age, size, log start, the order; delete-records; jitter."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.errors import InvalidConfigError, InvalidRequestError, OffsetOutOfRangeError, SparklogError
from sparklog.log.model.log_config import LogConfig, LogOwner
from sparklog.log.model.retention_policy import (
    ExpiredSegments,
    RetentionPolicy,
    deletion_offset,
    expired,
    roll_jitter_ms,
)

KEEP_ALL = RetentionPolicy(deletes=True, retention_ms=-1, retention_bytes=-1)
NOW_MS = 10_000


@dataclass(frozen=True)
class Segment:
    base_offset: int
    next_offset: int
    data_bytes: int
    largest_ms: int | None


def segments(*sizes_and_times: tuple[int, int | None]) -> list[Segment]:
    """Segments of ten records each; one of 0 bytes is empty."""
    made: list[Segment] = []
    base = 100
    for size, largest_ms in sizes_and_times:
        made.append(Segment(base, base + (10 if size else 0), size, largest_ms))
        base = made[-1].next_offset
    return made


def run(
    found: list[Segment], policy: RetentionPolicy, *, log_start: int = 0, high_watermark: int | None = None
) -> ExpiredSegments:
    return expired(
        found,
        policy,
        log_start_offset=log_start,
        high_watermark=found[-1].next_offset if high_watermark is None else high_watermark,
        now_ms=NOW_MS,
        largest_timestamp_of=lambda s: s.largest_ms,
    )


THREE = segments((50, 1_000), (50, 2_000), (50, 9_000))


@pytest.mark.parametrize(
    ("retention_ms", "count"), [(-1, 0), (9_000, 0), (8_999, 1), (7_999, 2), (1_000, 2), (999, 3), (0, 3)]
)
def test_a_segment_goes_when_its_newest_record_is_older_than_allowed(retention_ms: int, count: int) -> None:
    assert run(THREE, RetentionPolicy(True, retention_ms, -1)) == ExpiredSegments(count, too_old=count)


@pytest.mark.parametrize(("retention_bytes", "count"), [(-1, 0), (101, 0), (100, 1), (51, 1), (50, 2), (1, 2), (0, 3)])
def test_the_segments_that_stay_hold_at_least_retention_bytes(retention_bytes: int, count: int) -> None:
    assert run(THREE, RetentionPolicy(True, -1, retention_bytes)) == ExpiredSegments(count, too_much=count)


def test_the_first_segment_that_stays_ends_it() -> None:
    found = segments((50, 1_000), (50, 9_500), (50, 1_000))
    assert run(found, RetentionPolicy(True, 5_000, -1)).count == 1


def test_a_timestamp_in_the_future_or_none_keeps_the_segment() -> None:
    assert run(segments((50, NOW_MS + 5), (50, 0)), RetentionPolicy(True, 0, -1)).count == 0
    assert run(segments((50, None), (50, 0)), RetentionPolicy(True, 0, -1)).count == 0


def test_no_record_above_the_high_watermark_goes() -> None:
    assert run(THREE, RetentionPolicy(True, 0, 0), high_watermark=119).count == 1
    assert run(THREE, RetentionPolicy(True, 0, 0), high_watermark=120).count == 2
    assert run(THREE, KEEP_ALL, log_start=130, high_watermark=119).count == 1


def test_below_the_log_start_goes_under_every_policy() -> None:
    compacted = RetentionPolicy(deletes=False, retention_ms=0, retention_bytes=0)
    assert run(THREE, compacted, log_start=119) == ExpiredSegments(1, below_log_start=1)
    assert run(THREE, compacted, log_start=120) == ExpiredSegments(2, below_log_start=2)
    assert run(THREE, compacted).count == 0


def test_reasons_add_up() -> None:
    found = segments((10, 0), (500, 9_999), (10, 0), (10, 9_999))
    assert run(found, RetentionPolicy(True, 5_000, 20), log_start=110) == ExpiredSegments(3, 1, 1, 1)
    assert (
        str(ExpiredSegments(3, 1, 1, 1))
        == "1 below the log start, 1 older than retention.ms, 1 more than retention.bytes"
    )
    assert ExpiredSegments(3, 1, 1, 1).without_last().count == 2
    assert ExpiredSegments(2, 2).without_last() == ExpiredSegments(1, 1)


def test_an_empty_segment_marks_an_offset_and_stays() -> None:
    assert run(segments((50, 0), (0, None)), RetentionPolicy(True, 0, 0)).count == 1
    assert run(segments((0, None)), RetentionPolicy(True, 0, 0)).count == 0


def test_no_more_timestamps_are_looked_up_than_need_be() -> None:
    asked: list[Segment] = []

    def largest(segment: Segment) -> int | None:
        asked.append(segment)
        return segment.largest_ms

    bounds = {"log_start_offset": 110, "high_watermark": 130, "now_ms": NOW_MS}
    expired(THREE, RetentionPolicy(True, 8_500, -1), **bounds, largest_timestamp_of=largest)
    assert asked == [THREE[1]]


@given(
    shapes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20)), min_size=1, max_size=8),
    policy=st.builds(RetentionPolicy, st.booleans(), st.integers(-1, 20), st.integers(-1, 20)),
    log_start=st.integers(0, 90),
    cut=st.integers(0, 80),
)
def test_deletions_against_the_written_rules(
    shapes: list[tuple[int, int]], policy: RetentionPolicy, log_start: int, cut: int
) -> None:
    found = segments(*((size, NOW_MS - age) for size, age in shapes))
    count = run(found, policy, log_start=log_start + 100, high_watermark=100 + cut).count

    def may_go(i: int) -> bool:
        segment = found[i]
        below = segment.next_offset <= log_start + 100
        old = policy.retention_ms >= 0 and shapes[i][1] > policy.retention_ms
        much = policy.retention_bytes >= 0 and sum(s.data_bytes for s in found[i + 1 :]) >= policy.retention_bytes
        replicated = segment.next_offset <= 100 + cut
        return replicated and segment.data_bytes > 0 and (below or (policy.deletes and (old or much)))

    assert all(may_go(i) for i in range(count))
    assert count == len(found) or not may_go(count)


@pytest.mark.parametrize(("asked", "start"), [(-1, 50), (50, 50), (31, 31), (30, 30), (29, 30), (0, 30)])
def test_delete_records_moves_the_start_up_only(asked: int, start: int) -> None:
    where = {"log_start_offset": 30, "high_watermark": 50, "name": "t-0"}
    assert deletion_offset(asked, cleanup_policy="delete", **where) == start  # type: ignore[arg-type]
    assert deletion_offset(asked, cleanup_policy="compact,delete", **where) == start  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "policy", "error", "says"),
    [
        (51, "delete", OffsetOutOfRangeError, "before offset 51 .* from 30 to 50; name an offset"),
        (-2, "delete", OffsetOutOfRangeError, "before offset -2"),
        (40, "compact", InvalidRequestError, "cleanup.policy is compact.*compact,delete"),
        (-1, "compact", InvalidRequestError, "send tombstones"),
    ],
)
def test_delete_records_is_refused(asked: int, policy: str, error: type[SparklogError], says: str) -> None:
    with pytest.raises(error, match=f"records of t-0 .*{says}"):
        deletion_offset(asked, cleanup_policy=policy, log_start_offset=30, high_watermark=50, name="t-0")


def test_jitter_is_spread_over_its_range_and_the_same_for_a_seed() -> None:
    drawn = [roll_jitter_ms(100, 10_000, f"topic-{i}") for i in range(2_000)]
    assert drawn == [roll_jitter_ms(100, 10_000, f"topic-{i}") for i in range(2_000)]
    assert set(drawn) == set(range(101))
    assert roll_jitter_ms(0, 10_000, "topic-1") == 0
    assert all(0 <= roll_jitter_ms(2**62, 50, f"{i}") <= 49 for i in range(100)), "something of segment.ms is left"


def test_a_partitions_configuration_has_its_jitter_taken_off() -> None:
    config = LogConfig.from_settings({"segment.ms": 10_000, "segment.jitter.ms": 5_000})
    ages = {config.for_partition(LogOwner("t", "a" * 32, p)).segment_ms for p in range(20)}
    assert len(ages) > 15
    assert all(5_000 <= age <= 10_000 for age in ages)
    plain = LogConfig.from_settings({"segment.ms": 10_000})
    assert plain.for_partition(LogOwner("t", "a" * 32, 0)) == plain


def test_settings_become_a_policy() -> None:
    config = LogConfig.from_settings({})
    assert config.retention == RetentionPolicy(True, 7 * 86_400_000, -1)
    assert (config.cleanup_policy, config.file_delete_delay_ms) == ("delete", 60_000)
    assert not LogConfig.from_settings({"cleanup.policy": "compact"}).retention.deletes
    both = LogConfig.from_settings({"cleanup.policy": "compact,delete", "retention.ms": 5, "retention.bytes": 6})
    assert both.retention == RetentionPolicy(True, 5, 6)
    with pytest.raises(
        InvalidConfigError, match=r"cleanup\.policy = 'keep': use one of delete, compact, compact,delete"
    ):
        LogConfig.from_settings({"cleanup.policy": "keep"})
    with pytest.raises(InvalidConfigError, match="at least -1"):
        LogConfig.from_settings({"retention.ms": -2})
