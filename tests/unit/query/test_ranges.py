"""Ranges from filters: no matching row is left out, and distinguishable rows are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.format.schema import TIMESTAMP_TYPE
from sparklog.query.ranges import (
    INTERVALS_MAX,
    METADATA_SCHEMA,
    QUESTIONS_MAX,
    TIME_MS_MAX,
    Filter,
    Interval,
    OffsetRange,
    narrow,
    plan,
)
from tests.support.cases import for_each

SCHEMA = pa.schema([*METADATA_SCHEMA, ("zone", pa.string()), ("n", pa.int64()), ("s", pa.struct([("a", pa.int64())]))])
PARTITION, OFFSET, TIME = pc.field("_partition"), pc.field("_offset"), pc.field("_timestamp")


def at_ms(time_ms: int, us: int = 0) -> pa.Scalar:
    return pa.scalar(time_ms * 1000 + us, TIMESTAMP_TYPE)


def log(partition: int, start: int = 0, end: int = 1_000_000) -> OffsetRange:
    return OffsetRange(partition, start, end, start)


def planned(expression: pc.Expression | None, *logs: OffsetRange) -> list[tuple[int, int, int]]:
    found = plan(Filter(expression, SCHEMA), logs or (log(0), log(1), log(2)))
    assert all(r.floor == r.start for r in found)
    return [(r.partition, r.start, r.end) for r in found]


def test_no_filter_reads_everything() -> None:
    assert planned(None, log(0, 5, 9), log(1, 3, 3)) == [(0, 5, 9)]
    assert Filter(None, SCHEMA).times_ms() == [Interval(-TIME_MS_MAX, TIME_MS_MAX)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (OFFSET == 7, [(0, 7, 8)]),
        (OFFSET > 7, [(0, 8, 1000)]),
        (OFFSET <= 7, [(0, 0, 8)]),
        ((OFFSET >= 100) & (OFFSET < 150), [(0, 100, 150)]),
        ((OFFSET == 3) | (OFFSET >= 900), [(0, 3, 4), (0, 900, 1000)]),
        (OFFSET.isin(pa.array([1, 2, 500])), [(0, 1, 3), (0, 500, 501)]),
        (
            pc.if_else(OFFSET.is_valid(), OFFSET.isin(pa.array([12])), pa.scalar(None, pa.bool_())),  # DuckDB's IN
            [(0, 12, 13)],
        ),
        (OFFSET.is_null(), []),
        (OFFSET > 5000, []),
        (~(OFFSET > 7), [(0, 0, 8)]),
        ((OFFSET > 990) & (pc.field("zone") == "a"), [(0, 991, 1000)]),
        ((OFFSET > 990) | (pc.field("zone") == "a"), [(0, 0, 1000)]),
        (OFFSET + pc.field("n") > 7, [(0, 0, 1000)]),
    ],
)
def test_offsets(expression: pc.Expression, expected: list[tuple[int, int, int]]) -> None:
    assert planned(expression, log(0, 0, 1000)) == expected


def test_partitions() -> None:
    assert planned(PARTITION == 1) == [(1, 0, 1_000_000)]
    assert planned(PARTITION.isin(pa.array([0, 2], pa.int32()))) == [(0, 0, 1_000_000), (2, 0, 1_000_000)]
    assert planned(PARTITION > 7) == []
    own = ((PARTITION == 1) & (OFFSET > 15)) | ((PARTITION == 2) & (OFFSET < 5))
    assert planned(own) == [(1, 16, 1_000_000), (2, 0, 5)]


def test_very_many_partitions_share_their_offsets() -> None:
    logs = [log(p, 0, 100) for p in range(200)]
    found = planned((PARTITION >= 100) & (OFFSET < 5), *logs)
    assert found == [(p, 0, 5) for p in range(100, 200)]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (at_ms(5000) < TIME, Interval(5001, TIME_MS_MAX)),
        (at_ms(5000, 1) < TIME, Interval(5001, TIME_MS_MAX)),  # times are whole ms
        (at_ms(5000, 999) <= TIME, Interval(5001, TIME_MS_MAX)),
        (at_ms(5000, 1) > TIME, Interval(-TIME_MS_MAX, 5000)),
        (at_ms(-5) >= TIME, Interval(-TIME_MS_MAX, -5)),
        ((at_ms(10) <= TIME) & (at_ms(20) >= TIME), Interval(10, 20)),
    ],
)
def test_times(expression: pc.Expression, expected: Interval) -> None:
    assert Filter(expression, SCHEMA).times_ms() == [expected]


@for_each("value", [0, -1, 2**62, -(2**62), -(10**16) * 6, 1_700_000_000_000_500])
def test_times_that_no_calendar_has(value: int) -> None:
    (found,) = Filter(pa.scalar(value, TIMESTAMP_TYPE) < TIME, SCHEMA).times_ms()
    assert found == Interval(value // 1000 + 1, TIME_MS_MAX)


@for_each("text", ["2023-99-99 99:99:99Z", "0000-01-01 00:00:00Z", "99999999999999999999", "٣", '"'])
def test_strings_that_look_like_constants(text: str) -> None:
    given = Filter((pc.field("zone") != text) & (OFFSET > 7) & (at_ms(9) < TIME), SCHEMA)
    assert plan(given, [log(0, 0, 20)]) == [log(0, 8, 20)]
    assert given.times_ms() == [Interval(10, TIME_MS_MAX)]


def test_constants_save_questions() -> None:
    asked: list[int] = []

    def ask(pieces: Sequence[Interval]) -> list[bool]:
        asked.append(len(pieces))
        return [i.last >= 10**15 for i in pieces]

    assert narrow(Interval(0, 2**62), ask, [10**15]) == [Interval(10**15, 2**62)]
    assert len(asked) == 1
    assert narrow(Interval(0, 2**62), ask, [10**14] * 40) == [Interval(10**15, 2**62)]


def test_a_time_between_two_ms_is_nobodys() -> None:
    assert Filter(at_ms(5, 500) == TIME, SCHEMA).times_ms() == []


def test_the_floor_is_kept_by_filters_above_it_only() -> None:
    given = OffsetRange(0, 50, 100, 10)
    assert given.between(0, 80) == OffsetRange(0, 50, 80, 10)
    assert given.between(20, 80) == OffsetRange(0, 50, 80, 20)
    assert given.between(60, 80) == OffsetRange(0, 60, 80, 60)
    assert given.begun_at(70) == OffsetRange(0, 70, 100, 10)


def test_columns_of_a_filter() -> None:
    assert Filter(None, SCHEMA).columns == ()
    assert Filter((pc.field("n") > 3) & (OFFSET > 1), SCHEMA).columns == ("_offset", "n")
    assert Filter(pc.field("s", "a") > 3, SCHEMA).columns == ("s",)
    wide = pa.schema([*METADATA_SCHEMA, *((f"c{i}", pa.int64()) for i in range(3000))])
    assert Filter((pc.field("c7") > 3) | (pc.field("c2999") > 3), wide).columns == ("c7", "c2999")


def test_a_filter_that_cannot_be_applied_has_all_columns() -> None:
    assert Filter(pc.field("zone") > 3, SCHEMA).columns == tuple(SCHEMA.names)


NUMBERS = st.integers(0, 3000)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=60), NUMBERS, NUMBERS)
def test_narrowing_keeps_every_number_that_may_do(pieces: list[tuple[int, int]], first: int, last: int) -> None:
    within = Interval(min(first, last), max(first, last))
    may = {n for low, high in pieces for n in range(low, min(high, low + 40)) if within.first <= n <= within.last}
    found = narrow(within, lambda asked: [any(n in may for n in range(i.first, i.last + 1)) for i in asked])
    assert may <= {n for i in found for n in range(i.first, i.last + 1)}
    assert len(found) <= INTERVALS_MAX
    assert all(a.last < b.first for a, b in pairwise(found))
    if may:
        assert (found[0].first, found[-1].last) == (min(may), max(may))


@given(st.data())
def test_a_fickle_answer_keeps_every_row_that_it_admits_for_all_intervals(data: st.DataObject) -> None:
    """`ask` may say yes for a part though it knew better about the whole, and the other way round."""
    always = data.draw(st.sets(st.integers(0, 500), max_size=5))

    def ask(pieces: list[Interval]) -> list[bool]:
        return [any(p.first <= n <= p.last for n in always) or data.draw(st.booleans()) for p in pieces]

    found = narrow(Interval(0, 500), ask)  # type: ignore[arg-type]
    assert always <= {n for i in found for n in range(i.first, i.last + 1)}


def test_questions_have_a_limit() -> None:
    asked = 0

    def ask(pieces: object) -> list[bool]:
        nonlocal asked
        asked += 1
        return [i % 2 == 0 for i in range(len(pieces))]  # type: ignore[arg-type]

    found = narrow(Interval(0, 2**62), ask)
    assert asked <= QUESTIONS_MAX
    assert len(found) <= INTERVALS_MAX
