"""A log directory that was full stays so until there is enough room, and for a while."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sparklog.log.directories.room import FREE_BYTES_MAX, HOLD_S, Room

MIB = 1 << 20


def test_a_failed_write_fills_a_directory_and_room_frees_it_later() -> None:
    room = Room()
    assert not room.is_full and not room.wants_space(1e9)
    assert room.look(0, 5.0) is room
    room = room.look(3, 5.0)
    assert room.is_full and not room.wants_space(5.0 + HOLD_S - 0.1)
    assert room.measure(100 * MIB, 50 * MIB, 5.0 + HOLD_S - 0.1) is room
    later = 5.0 + HOLD_S
    assert room.wants_space(later)
    assert room.measure(100 * MIB, 5 * MIB - 1, later) is room
    assert room.measure(100 * MIB, 5 * MIB, later) == Room(3)
    assert not room.measure(100 << 40, FREE_BYTES_MAX, later).is_full, "5 % of a large disk are more than it takes"
    assert room.look(4, later).full_since_s == later, "it is held from the last failure on"


@given(st.lists(st.tuples(st.floats(0.1, 3.0), st.booleans(), st.booleans()), max_size=200))
def test_it_does_not_flap(steps: list[tuple[float, bool, bool]]) -> None:
    """However space comes and goes: between two beginnings of fullness there is at least HOLD_S."""
    room, now_s, shortages = Room(), 0.0, 0
    begun: list[float] = []
    for passed_s, fails, has_space in steps:
        now_s += passed_s
        shortages += fails
        was_full = room.is_full
        room = room.look(shortages, now_s)
        if room.wants_space(now_s):
            room = room.measure(100 * MIB, 50 * MIB if has_space else 0, now_s)
        if room.is_full and not was_full:
            begun.append(now_s)
    assert all(b - a >= HOLD_S for a, b in pairwise(begun))
