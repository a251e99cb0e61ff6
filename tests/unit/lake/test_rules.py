"""Rules of a lake's round: witnesses, plans, cuts, decisions."""

from __future__ import annotations

import pytest

from sparklog.errors import LakePausedError
from sparklog.lake.rules import (
    Outcome,
    PartitionEnds,
    Span,
    TableState,
    after_failed_commit,
    check_table,
    is_cut_short,
    plan_round,
)


def state(
    version: int = 1,
    table_id: str = "table",
    topic_id: str = "topic",
    next_offsets: dict[int, int] | None = None,
    largest: dict[int, int] | None = None,
    restored_to: int | None = None,
    doubled_by: int | None = None,
) -> TableState:
    return TableState(version, table_id, topic_id, next_offsets or {}, largest or {}, restored_to, doubled_by)


def test_a_table_that_is_not_sound_pauses() -> None:
    check_table(state(next_offsets={0: 10}, largest={0: 9}), "topic", "table")
    check_table(state(next_offsets={0: 10}, largest={}), "topic", "")  # markers, compaction and users remove rows
    cases = {
        "belongs to topic id 'other'": state(topic_id="other"),
        "belongs to no topic": state(topic_id=""),
        "created again": state(table_id="second"),
        "restored to version 3": state(restored_to=3),
        "restore the table to version 6": state(8, restored_to=3, doubled_by=7),
        "up to offset 10 in the table, but a transaction up to offset 9": state(next_offsets={0: 10}, largest={0: 10}),
        "but no transaction": state(largest={1: 0}),
    }
    for message, found in cases.items():
        with pytest.raises(LakePausedError, match=message):
            check_table(found, "topic", "table")


def test_only_a_compaction_that_is_the_newest_version_is_undone() -> None:
    assert state(7, doubled_by=7).may_undo_compaction
    assert not state(7).may_undo_compaction
    assert not state(8, doubled_by=7).may_undo_compaction
    assert not state(7, doubled_by=7, restored_to=2).may_undo_compaction  # the commit would hide the RESTORE


def test_a_plan_goes_from_the_table_to_the_stable_offset() -> None:
    ends = {0: PartitionEnds(0, 10, 12), 1: PartitionEnds(5, 9, 9), 2: PartitionEnds(0, 4, 4)}
    plan = plan_round(state(next_offsets={0: 3, 2: 4}), ends, accept_gaps=False, offsets_max=100)
    assert plan.spans == {0: Span(3, 10), 1: Span(5, 9)}
    assert not plan.gaps
    assert not is_cut_short(plan, ends)
    short = plan_round(state(next_offsets={0: 3}), ends, accept_gaps=False, offsets_max=2)
    assert short.spans == {0: Span(3, 5), 1: Span(5, 7), 2: Span(0, 2)}
    assert is_cut_short(short, ends)


def test_a_log_that_lacks_offsets_of_the_table_pauses() -> None:
    with pytest.raises(LakePausedError, match="the log ends at 8"):
        plan_round(state(next_offsets={0: 9}), {0: PartitionEnds(0, 8, 8)}, accept_gaps=True, offsets_max=9)


def test_a_gap_pauses_or_is_accepted() -> None:
    ends = {0: PartitionEnds(7, 9, 9), 1: PartitionEnds(4, 4, 4)}
    before = state(next_offsets={0: 5, 1: 2})
    with pytest.raises(LakePausedError, match="offsets 5 to 6 of partition 0"):
        plan_round(before, ends, accept_gaps=False, offsets_max=9)
    plan = plan_round(before, ends, accept_gaps=True, offsets_max=9)
    assert plan.gaps == {0: Span(5, 7), 1: Span(2, 4)}
    assert plan.spans == {0: Span(7, 9), 1: Span(4, 4)}


def test_a_single_deleted_offset_is_a_gap() -> None:
    before, ends = state(next_offsets={0: 5}), {0: PartitionEnds(6, 9, 9)}
    with pytest.raises(LakePausedError, match="offsets 5 to 5 of partition 0"):
        plan_round(before, ends, accept_gaps=False, offsets_max=9)
    assert plan_round(before, ends, accept_gaps=True, offsets_max=9).gaps == {0: Span(5, 6)}
    assert not plan_round(before, {0: PartitionEnds(5, 9, 9)}, accept_gaps=False, offsets_max=9).gaps


def test_a_table_can_end_where_the_log_ends() -> None:
    before = state(next_offsets={0: 8})
    assert not plan_round(before, {0: PartitionEnds(0, 8, 8)}, accept_gaps=False, offsets_max=9).spans
    with pytest.raises(LakePausedError, match="the log ends at 7"):
        plan_round(before, {0: PartitionEnds(0, 7, 7)}, accept_gaps=False, offsets_max=9)


def test_decisions_after_a_failed_commit() -> None:
    planned = {0: Span(5, 9), 1: Span(0, 3)}
    before = state(4, next_offsets={0: 5})
    cases = {
        Outcome.DONE: [state(5, next_offsets={0: 9, 1: 3})],
        Outcome.AGAIN: [state(5, next_offsets={0: 5}), state(4, next_offsets={0: 5})],
        Outcome.DISCARD: [
            state(5, next_offsets={0: 9}),
            state(6, next_offsets={0: 12, 1: 3}),
            state(5, next_offsets={0: 0, 1: 0}),  # a rebuild
            state(5, table_id="other", next_offsets={0: 5}),
            state(5, next_offsets={0: 5}, restored_to=2),
        ],
    }
    for outcome, states in cases.items():
        for now in states:
            assert after_failed_commit(planned, before, now) is outcome, now
