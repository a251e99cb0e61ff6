"""The order of a log's offsets: moves that keep it, and moves that would break it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.log.state.offsets import LogOffsets, OffsetOrderError


def test_offsets_of_an_append_are_assigned_written_flushed_and_committed() -> None:
    o = LogOffsets()
    o.reserve(5)
    assert (o.appended, o.written) == (5, 0)
    o.raise_high_watermark(5)
    assert o.high_watermark == 0  # not written yet
    o.wrote()
    o.raise_high_watermark(9)
    assert (o.written, o.high_watermark, o.flushed) == (5, 5, 0)
    o.flushed_to(3)
    o.recover_from(2)
    o.flushed_to(1)
    o.recover_from(1)
    assert (o.flushed, o.recovery_point) == (3, 2)
    o.reserve(7)
    o.take_back()
    assert (o.appended, o.written) == (5, 5)


@pytest.mark.parametrize(
    ("move", "name"),
    [
        (lambda o: o.flushed_to(11), "flushed 11"),
        (lambda o: o.recover_from(7), "recovery point 7"),
        (lambda o: o.reserve(9), "appended 9"),
        (lambda o: o.raise_log_start(9), "log start 9"),
        (lambda o: o.restart_at(-1), "log start -1"),
    ],
)
def test_a_move_out_of_order_names_all_offsets_without_a_change(move: object, name: str) -> None:
    o = LogOffsets(log_start=2, recovery_point=6, log_end=10, high_watermark=8)
    before = repr(o)
    with pytest.raises(OffsetOrderError) as e:
        move(o)  # type: ignore[operator]
    assert name in str(e.value)
    for other in ("log start", "recovery point", "flushed", "written", "appended", "high watermark"):
        assert other in str(e.value)
    assert repr(o) == before


def test_offsets_read_from_the_disk_are_checked() -> None:
    with pytest.raises(OffsetOrderError):
        LogOffsets(log_start=3, recovery_point=2, log_end=10)
    with pytest.raises(OffsetOrderError):
        LogOffsets(log_start=3, recovery_point=3, log_end=10, high_watermark=11)


def test_deleted_records_need_not_reach_the_disk() -> None:
    o = LogOffsets(log_end=10, high_watermark=8)
    o.raise_log_start(6)
    assert (o.log_start, o.recovery_point, o.flushed) == (6, 6, 6)
    o.raise_log_start(4)
    assert o.log_start == 6


def test_truncation_takes_everything_back_with_it() -> None:
    o = LogOffsets(log_start=2, recovery_point=6, log_end=10, high_watermark=8)
    o.truncate(4)
    assert {o.recovery_point, o.flushed, o.written, o.appended, o.high_watermark} == {4}
    assert o.log_start == 2
    o.truncate(1)
    assert o.log_start == 1
    o.restart_at(20)
    assert {o.log_start, o.appended, o.high_watermark, o.recovery_point} == {20}


MOVES = ("reserve", "flushed_to", "recover_from", "raise_high_watermark", "raise_log_start", "truncate")


@given(st.lists(st.tuples(st.sampled_from([*MOVES, "wrote", "take_back"]), st.integers(0, 30)), max_size=40))
def test_no_sequence_of_moves_leaves_the_order(moves: list[tuple[str, int]]) -> None:
    o = LogOffsets()
    for name, offset in moves:
        with contextlib.suppress(OffsetOrderError):
            getattr(o, name)(*(() if name in ("wrote", "take_back") else (offset,)))
        assert 0 <= o.log_start <= o.recovery_point <= o.flushed <= o.written <= o.appended
        assert o.log_start <= o.high_watermark <= o.written
