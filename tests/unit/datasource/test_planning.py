"""Admission control, splitting into tasks, and losses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark_sparklog.source.data_loss import LossReporter
from pyspark_sparklog.source.planning import (
    UNSUBSCRIBED,
    Extent,
    Loss,
    OffsetRange,
    limit_end,
    next_end,
    readable_ranges,
    split_ranges,
)

from sparklog.errors import DataLossError
from sparklog.types import TopicPartition

A, B, C = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
IDS = {"a": "1", "b": "2"}


def test_the_limit_is_shared_in_proportion_to_the_backlog() -> None:
    assert limit_end({A: 0, B: 100, C: 5}, {A: 600, B: 400, C: 105}, 100) == {A: 60, B: 130, C: 15}


def test_a_share_is_floored_but_no_partition_starves() -> None:
    assert limit_end({A: 0, B: 0}, {A: 1_000_000, B: 3}, 10) == {A: 9, B: 1}


def test_a_backlog_within_the_limit_is_taken_whole() -> None:
    assert limit_end({A: 0, B: 7}, {A: 3, B: 7}, 3) == {A: 3, B: 7}


backlogs = st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**40)), min_size=1, max_size=8)


@given(backlogs, st.integers(1, 2**41))
def test_a_limited_batch_moves_on_and_stays_within_bounds(partitions: list[tuple[int, int]], limit: int) -> None:
    start = {TopicPartition("t", i): first for i, (first, _) in enumerate(partitions)}
    end = {TopicPartition("t", i): first + size for i, (first, size) in enumerate(partitions)}
    taken = limit_end(start, end, limit)
    assert all(start[tp] <= taken[tp] <= end[tp] for tp in end)
    total = sum(size for _, size in partitions)
    count = sum(taken[tp] - start[tp] for tp in end)
    assert count <= limit + len(partitions)
    assert count > 0 or total == 0
    assert total > limit or taken == end


def test_empty_ranges_give_no_task() -> None:
    assert split_ranges([OffsetRange(A, 5, 5)], 4) == []


def test_ranges_are_split_to_reach_min_partitions() -> None:
    pieces = split_ranges([OffsetRange(A, 0, 100), OffsetRange(B, 0, 1)], 5)
    assert pieces[-1] == OffsetRange(B, 0, 1)
    assert [p.size for p in pieces[:-1]] == [25, 25, 25, 25]


def test_ranges_are_split_by_records() -> None:
    assert [p.size for p in split_ranges([OffsetRange(A, 10, 20)], None, 4)] == [3, 3, 4]


ranges = st.lists(st.tuples(st.integers(0, 2**50), st.integers(0, 10_000)), max_size=6)


@given(ranges, st.none() | st.integers(1, 40), st.none() | st.integers(1000, 20_000))
def test_splitting_loses_and_repeats_no_offset(
    given_ranges: list[tuple[int, int]], wanted: int | None, most: int | None
) -> None:
    whole = [OffsetRange(TopicPartition("t", i), a, a + n) for i, (a, n) in enumerate(given_ranges)]
    pieces = split_ranges(whole, wanted, most)
    assert all(p.size > 0 for p in pieces)
    assert most is None or all(p.size <= most for p in pieces)
    for w in whole:
        at = w.start
        for p in (p for p in pieces if p.partition == w.partition):
            assert p.start == at
            at = p.end
        assert at == w.end


def test_a_complete_batch_is_read_unchanged() -> None:
    plan = readable_ranges({A: 2}, IDS, {A: 9, B: 4}, IDS, {A: Extent(0, 9), B: Extent(1, 9)}, IDS)
    # B is new: it is read from its first offset, and what had been removed before is no loss
    assert plan.ranges == [OffsetRange(A, 2, 9), OffsetRange(B, 1, 4)]
    assert plan.losses == []


def test_retention_past_the_start_is_a_loss_of_exactly_those_offsets() -> None:
    plan = readable_ranges({A: 2}, IDS, {A: 9}, IDS, {A: Extent(5, 9)}, IDS)
    assert plan.ranges == [OffsetRange(A, 5, 9)]
    assert [(x.partition, x.start, x.end) for x in plan.losses] == [(A, 2, 5)]
    all_gone = readable_ranges({A: 2}, IDS, {A: 4}, IDS, {A: Extent(5, 9)}, IDS)
    assert [r.size for r in all_gone.ranges] == [0]
    assert [(x.start, x.end) for x in all_gone.losses] == [(2, 4)]


def test_a_log_that_became_shorter_is_a_loss() -> None:
    plan = readable_ranges({A: 2}, IDS, {A: 9}, IDS, {A: Extent(0, 6)}, IDS)
    assert plan.ranges == [OffsetRange(A, 2, 6)]
    assert [(x.start, x.end) for x in plan.losses] == [(6, 9)]


def test_a_recreated_topic_is_read_from_its_beginning_and_the_rest_is_lost() -> None:
    new = {"a": "9"}
    plan = readable_ranges({A: 50}, {"a": "1"}, {A: 10}, new, {A: Extent(0, 10)}, new)
    assert plan.ranges == [OffsetRange(A, 0, 10)]
    assert [(x.start, x.end) for x in plan.losses] == [(50, None)]
    assert "created again" in plan.losses[0].describe()
    assert "a partition 0, offsets from 50 on" in plan.losses[0].describe()


def test_a_logged_batch_of_an_earlier_incarnation_cannot_be_read() -> None:
    old = {"a": "1"}
    plan = readable_ranges({A: 5}, old, {A: 9}, old, {A: Extent(0, 100)}, {"a": "9"})
    assert plan.ranges == []
    assert [(x.start, x.end) for x in plan.losses] == [(5, 9)]


def test_a_deleted_topic_loses_the_batchs_records() -> None:
    plan = readable_ranges({A: 5}, IDS, {A: 9}, IDS, {}, {})
    assert plan.ranges == []
    assert plan.losses == [Loss(A, 5, 9, "the topic was deleted")]
    assert readable_ranges({A: 9}, IDS, {A: 9}, IDS, {}, {}).losses == []


def test_where_a_query_goes_on() -> None:
    begin, end, losses = next_end({A: 3}, IDS, {A: Extent(0, 9), B: Extent(4, 6)}, IDS)
    assert (begin, end, losses) == ({A: 3, B: 4}, {A: 9, B: 6}, [])


def test_where_a_query_goes_on_after_losses() -> None:
    start = {A: 3, B: 50, C: 7}
    begin, end, losses = next_end(start, IDS, {A: Extent(5, 9), B: Extent(0, 6), C: Extent(0, 2)}, IDS | {"b": "new"})
    assert begin == {A: 5, B: 6, C: 0}
    assert end == {A: 9, B: 6, C: 2}
    assert [(x.partition, x.start, x.end) for x in losses] == [(A, 3, 5), (B, 6, 50), (C, 7, None)]
    gone = next_end({C: 7}, IDS, {}, {})
    assert gone == ({}, {}, [Loss(C, 7, None, "the topic was deleted")])


def test_a_topic_taken_out_of_the_subscription_is_named_as_that() -> None:
    _, _, losses = next_end({A: 3, C: 7}, IDS, {}, {}, lambda topic: topic == C.topic)
    assert [loss.reason for loss in losses] == [UNSUBSCRIBED, "the topic was deleted"]
    with pytest.raises(
        DataLossError, match="topics were removed from the subscription: a partition 0, offsets from 3 on"
    ):
        LossReporter(fail=True).report(losses[:1])
    with pytest.raises(DataLossError, match="unread records are gone"):
        LossReporter(fail=True).report(losses)
    LossReporter(fail=False).report(losses)


def test_offsets_that_do_not_say_of_which_topic_are_taken_as_they_are() -> None:
    begin, end, losses = next_end({A: 3}, {}, {A: Extent(0, 9)}, IDS)
    assert (begin, end, losses) == ({A: 3}, {A: 9}, [])
    plan = readable_ranges({A: 3}, {}, {A: 9}, IDS, {A: Extent(0, 9)}, IDS)
    assert (plan.ranges, plan.losses) == ([OffsetRange(A, 3, 9)], [])
    assert readable_ranges({A: 3}, {}, {A: 9}, {}, {A: Extent(0, 9)}, IDS).ranges == [OffsetRange(A, 3, 9)]
