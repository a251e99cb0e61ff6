"""Paging through records: every record once, for any direction, filter and size of a page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparklog.console.reading import (
    NEWER,
    OLDER,
    Bounds,
    Budget,
    Cursor,
    Read,
    RecordPage,
    exported,
    look_through,
    matches,
    offsets_from_text,
)
from sparklog.environment.clock import SystemClock

PLENTY = 1 << 40


class Stored:
    """Stands for ConsumedBatch: rows [first, first + len(times)) of a partition, without those in `gaps`."""

    def __init__(self, partition: int, first: int, times: list[int], gaps: frozenset[int] = frozenset()) -> None:
        kept = [(first + i, t) for i, t in enumerate(times) if first + i not in gaps]
        self.topic, self.partition = "t", partition
        self._offsets = [o for o, _ in kept]
        self._times = [t for _, t in kept]
        self.next_offset = first + len(times)
        self.data = pa.record_batch(
            {"value": [f"{partition}:{o}" for o in self._offsets]}, pa.schema([("value", pa.string())])
        )

    @property
    def num_rows(self) -> int:
        return len(self._offsets)

    @property
    def size_bytes(self) -> int:
        return 10 * len(self._offsets)

    def offsets(self) -> np.ndarray:
        return np.array(self._offsets, np.int64)

    def timestamps_ms(self) -> np.ndarray:
        return np.array(self._times, np.int64)


def reader(times: dict[int, list[int]], gaps: frozenset[int] = frozenset(), batch_rows: int = 3) -> Read:
    """Of partitions whose offsets begin at 0."""

    def read(partition: int, start: int, end: int) -> Iterator[Any]:
        for first in range(start, end, batch_rows):
            made = Stored(partition, first, times[partition][first : min(first + batch_rows, end)], gaps)
            if made.num_rows:
                yield made

    return read


def budget(remaining_bytes: int = PLENTY) -> Budget:
    clock = SystemClock()
    return Budget(remaining_bytes, clock.monotonic_s() + 60, clock)


def all_pages(
    read: Read,
    bounds: dict[int, Bounds],
    first: Cursor,
    rows_max: int,
    filter_text: str = "",
    remaining_bytes: int = PLENTY,
) -> list[RecordPage]:
    pages: list[RecordPage] = []
    cursor: Cursor | None = first
    while cursor is not None:
        found = look_through(read, bounds, cursor, rows_max, filter_text, budget(remaining_bytes))
        pages.append(found)
        cursor = found.older if first.direction == OLDER else found.newer
        assert len(pages) < 1_000, "it does not get on"
    return pages


def test_the_newest_come_first() -> None:
    times = {0: [10, 20, 30], 1: [15, 25]}
    bounds = {0: Bounds(0, 3), 1: Bounds(0, 2)}
    found = look_through(reader(times), bounds, Cursor(OLDER, {0: 3, 1: 2}), 3, "", budget())
    assert [(r.partition, r.offset) for r in found.rows] == [(0, 2), (1, 1), (0, 1)]
    assert found.older == Cursor(OLDER, {0: 1, 1: 1})
    assert found.newer is None
    last = look_through(reader(times), bounds, found.older, 3, "", budget())
    assert [(r.partition, r.offset) for r in last.rows] == [(1, 0), (0, 0)]
    assert last.older is None
    assert last.newer == Cursor(NEWER, {0: 1, 1: 1})


@given(
    times=st.lists(st.lists(st.integers(0, 50), max_size=25), min_size=1, max_size=4),
    gaps=st.frozensets(st.integers(0, 25), max_size=10),
    rows_max=st.integers(1, 12),
    direction=st.sampled_from([OLDER, NEWER]),
    filter_text=st.sampled_from(["", "1", "0:"]),
    remaining_bytes=st.sampled_from([1, 70, PLENTY]),
)
def test_every_record_comes_once_and_in_order(
    times: list[list[int]],
    gaps: frozenset[int],
    rows_max: int,
    direction: str,
    filter_text: str,
    remaining_bytes: int,
) -> None:
    by_partition = dict(enumerate(times))
    bounds = {p: Bounds(0, len(t)) for p, t in by_partition.items()}
    begin = {p: b.end if direction == OLDER else b.start for p, b in bounds.items()}
    pages = all_pages(
        reader(by_partition, gaps), bounds, Cursor(direction, begin), rows_max, filter_text, remaining_bytes
    )
    shown = [(r.partition, r.offset) for page in pages for r in (page.rows if direction == OLDER else page.rows[::-1])]
    expected = {
        (p, o) for p, t in by_partition.items() for o in range(len(t)) if o not in gaps and filter_text in f"{p}:{o}"
    }
    assert len(shown) == len(set(shown))
    assert set(shown) == expected
    assert all(len(page.rows) <= rows_max for page in pages)
    for p in by_partition:
        own = [offset for partition, offset in shown if partition == p]
        assert own == sorted(own, reverse=direction == OLDER)


def test_a_spent_budget_is_reported_and_the_read_continues_from_it() -> None:
    times = {0: list(range(100))}
    bounds = {0: Bounds(0, 100)}
    found = look_through(reader(times), bounds, Cursor(NEWER, {0: 0}), 50, "0:99", budget(200))
    assert found.is_partial
    assert found.rows == []
    assert found.newer is not None
    assert 0 < found.newer.offsets[0] < 100


def test_large_records_are_read_one_by_one_backwards() -> None:
    asked: list[tuple[int, int]] = []

    def read(partition: int, start: int, end: int) -> Iterator[Any]:
        asked.append((start, end))
        return reader({0: list(range(100))})(partition, start, end)

    bounds = {0: Bounds(0, 100, 10_000_000.0)}
    look_through(read, bounds, Cursor(OLDER, {0: 100}), 50, "", budget(10))
    assert asked == [(99, 100)]


def test_a_cursor_as_text() -> None:
    cursor = Cursor(NEWER, {3: 7, 0: 12})
    assert cursor.as_text() == "0:12 3:7"
    assert offsets_from_text("0:12 3:7") == {0: 12, 3: 7}
    for wrong in ("x", "1:2:3", "1:", "a:b"):
        with pytest.raises(ValueError, match=r".*"):
            offsets_from_text(wrong)


def test_matches_of_a_filter() -> None:
    batch = pa.record_batch(
        {
            "b": pa.array([b"Hello", b"\xff\x00bin", None, b"x"]),
            "s": pa.array(["a", "b", "HELLO there", None]),
            "n": pa.array([1, 2, 3, 4711]),
            "l": pa.array([["hello"], [], None, []]),
        }
    )
    assert matches(batch, "hello").tolist() == [False, False, True, False]  # bytes that are no text: as they are
    assert matches(batch, "Hello").tolist() == [True, False, True, False]
    assert matches(batch, "bin").tolist() == [False, True, False, False]
    assert matches(batch, "471").tolist() == [False, False, False, True]
    text = pa.record_batch({"b": pa.array([b"Hello", b"other"])})
    assert matches(text, "HELLO").tolist() == [True, False]
    assert matches(text, ".*").tolist() == [False, False]


def test_an_export_takes_so_many_of_each_partition() -> None:
    times = {0: list(range(10)), 1: list(range(10))}
    batches = list(exported(reader(times), {0: (2, 10), 1: (9, 10)}, "", 4))
    table = pa.Table.from_batches(batches)
    assert table.column("_partition").to_pylist() == [0, 0, 0, 0, 1]
    assert table.column("_offset").to_pylist() == [2, 3, 4, 5, 9]
    assert table.column_names == ["_topic", "_partition", "_offset", "_timestamp", "value"]
    found = pa.Table.from_batches(list(exported(reader(times), {0: (0, 10)}, ":7", 4)))
    assert found.column("value").to_pylist() == ["0:7"]
