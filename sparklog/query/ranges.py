"""Computes the partitions, offsets and times of the rows that can pass a filter. Pure.

DuckDB passes a filter as an Arrow expression. Arrow can prove that no row of an interval, such as `_offset` between 10
and 19, passes the expression; with such proofs datasets skip files. This module asks Arrow about smaller and smaller
intervals. If Arrow does not understand an expression, more intervals are read, but no row is lost. The reader of the
intervals still applies the filter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs

from sparklog.client.reading.row_filter import columns_of
from sparklog.format.schema import TIMESTAMP_TYPE

PARTITION, OFFSET, TIMESTAMP = "_partition", "_offset", "_timestamp"
METADATA_SCHEMA = pa.schema([(PARTITION, pa.int32()), (OFFSET, pa.int64()), (TIMESTAMP, TIMESTAMP_TYPE)])
TIME_MS_MAX = (2**63 - 1) // 1000
"""Latest time in ms whose microseconds fit into 64 bits. The earliest time is its negative."""

WAYS = 32
"""Number of pieces into which an interval is divided at once."""
QUESTIONS_MAX = 256
"""Largest number of questions to Arrow, each about several intervals. Intervals without a question are read as a
whole."""
HINTS_MAX = 32
"""Largest number of constants in a filter that are used as hints. If a filter has more, none is used."""
INTERVALS_MAX = 32
"""Largest number of intervals in a result."""
PARTITIONS_APART_MAX = 64
"""Largest number of partitions whose offsets are computed one by one. With more partitions, all have the same
intervals."""


class Interval(NamedTuple):
    """The integers from `first` to `last`, both included."""

    first: int
    last: int


class OffsetRange(NamedTuple):
    """The offsets [start, end) of a partition, and in the batch with `start` also the offsets from `floor` on.

    The floor is below the start if the start was found by a timestamp. A row with a null timestamp counts with the
    largest timestamp of its batch.
    """

    partition: int
    start: int
    end: int
    floor: int

    def between(self, first: int, end: int) -> OffsetRange:
        """Return the part of the range with offsets in [first, end)."""
        return OffsetRange(self.partition, max(self.start, first), min(self.end, end), max(self.floor, first))

    def begun_at(self, start: int) -> OffsetRange:
        """Return the part of the range from the batch with offset `start` on."""
        return self._replace(start=max(self.start, start))


class Filter:
    """An Arrow expression over the columns of `schema`. The expression None passes every row."""

    def __init__(self, expression: pc.Expression | None, schema: pa.Schema) -> None:
        self.expression = expression
        self._schema = schema
        self.columns = () if expression is None else columns_of(expression, schema)
        """Names of the columns in the expression, in the schema's order."""

    def partitions(self, partitions: Sequence[int]) -> list[int]:
        """Return the members of `partitions` that can have rows that pass the filter."""
        if PARTITION not in self.columns:
            return list(partitions)
        conditions = [_is(PARTITION, p) for p in partitions]
        return [p for p, may in zip(partitions, self._may_hold(conditions), strict=True) if may]

    def offsets(self, within: Interval, partition: int | None = None) -> list[Interval]:
        """Return the offsets in `within` of rows that can pass the filter, ascending. `partition`: the rows' partition;
        None: any partition."""
        if OFFSET not in self.columns:
            return [within]
        return self._intervals(OFFSET, within, 1, partition)

    def times_ms(self) -> list[Interval]:
        """Return the timestamps in ms of rows that can pass the filter, ascending."""
        within = Interval(-TIME_MS_MAX, TIME_MS_MAX)
        if TIMESTAMP not in self.columns:
            return [within]
        return self._intervals(TIMESTAMP, within, 1000, None)

    def _intervals(self, column: str, within: Interval, factor: int, partition: int | None) -> list[Interval]:
        def ask(pieces: Sequence[Interval]) -> list[bool]:
            conditions = [_between(column, piece.first * factor, piece.last * factor) for piece in pieces]
            if partition is not None:
                conditions = [_is(PARTITION, partition) & g for g in conditions]
            return self._may_hold(conditions)

        return narrow(within, ask, self._constants(column))

    def _constants(self, column: str) -> list[int]:
        """Return the numbers or times in the expression's text. They are hints for `narrow`, and wrong hints are
        harmless."""
        text = str(self.expression)
        if column == TIMESTAMP:
            return list(_times_ms(text))
        return [int(match[0]) for match in _NUMBER.finditer(text)]

    def _may_hold(self, conditions: Sequence[pc.Expression]) -> list[bool]:
        """Return for each of `conditions` False if Arrow proves that no row with the condition passes the filter.

        Each condition is the partition expression of a file in a dataset. The files need not exist, because Arrow opens
        none to choose among them.
        """
        if self.expression is None:
            return [True] * len(conditions)
        numbers = [str(i) for i in range(len(conditions))]
        dataset = ds.FileSystemDataset.from_paths(
            numbers, schema=self._schema, format=_FORMAT, filesystem=_FILES, partitions=list(conditions)
        )
        alive = {fragment.path for fragment in dataset.get_fragments(self.expression)}
        return [number in alive for number in numbers]


def plan(row_filter: Filter, logs: Sequence[OffsetRange]) -> list[OffsetRange]:
    """Return the offsets of `logs` with rows that can pass the filter: in the order of `logs`, each log's ascending."""
    kept = set(row_filter.partitions([log.partition for log in logs]))
    logs = [log for log in logs if log.partition in kept and log.start < log.end]
    if OFFSET not in row_filter.columns or not logs:
        return logs
    if PARTITION in row_filter.columns and len(logs) <= PARTITIONS_APART_MAX:
        by_log = [(log, row_filter.offsets(Interval(log.start, log.end - 1), log.partition)) for log in logs]
    else:
        whole = Interval(min(log.start for log in logs), max(log.end for log in logs) - 1)
        shared = row_filter.offsets(whole)
        by_log = [(log, shared) for log in logs]
    cut = (log.between(first, last + 1) for log, intervals in by_log for first, last in intervals)
    return [r for r in cut if r.start < r.end]


def narrow(
    within: Interval, ask: Callable[[Sequence[Interval]], list[bool]], hints: Sequence[int] = ()
) -> list[Interval]:
    """Return at most INTERVALS_MAX intervals with all numbers of `within` that `ask` does not rule out, ascending.
    `ask`: returns for each interval False if it proves that no number of the interval is needed, else True. `hints`:
    numbers near which the answers are likely to change. They only reduce the number of questions."""
    near = {n + d for n in hints for d in (-1, 0, 1, 2)} if len(hints) <= HINTS_MAX else set()
    starts = sorted(n for n in {within.first, within.first + 1, within.last, *near} if within.first <= n <= within.last)
    pieces = [Interval(a, b - 1) for a, b in zip(starts, [*starts[1:], within.last + 1], strict=True)]
    return _merge_nearest(_RangeNarrower(ask).narrow(pieces))


class _RangeNarrower:
    def __init__(self, ask: Callable[[Sequence[Interval]], list[bool]]) -> None:
        self._ask = ask
        self._remaining_questions = QUESTIONS_MAX

    def narrow(self, pieces: Sequence[Interval]) -> list[Interval]:
        """Return the needed parts of `pieces`, which are adjacent and ascending."""
        if self._remaining_questions <= 0:
            return [Interval(pieces[0].first, pieces[-1].last)]
        needed: list[Interval] = []
        for run in self._runs(pieces):
            if len(run) > 1:
                edges = Interval(self._first(run[0]), self._last(run[-1]))
                needed += [edges] if edges.first <= edges.last else []
            elif run[0].first == run[0].last:
                needed.append(run[0])
            else:
                needed += self.narrow(_cut(run[0]))
        return needed

    def _runs(self, pieces: Sequence[Interval]) -> list[list[Interval]]:
        """Return the pieces that are not ruled out, with adjacent pieces in one list."""
        runs: list[list[Interval]] = []
        before = False
        for piece, may in self._ask_offsets(pieces):
            if may and before:
                runs[-1].append(piece)
            elif may:
                runs.append([piece])
            before = may
        return runs

    def _first(self, piece: Interval) -> int:
        """Return the first number of `piece` that is not ruled out; `piece.last + 1` if all are."""
        while piece.first < piece.last and self._remaining_questions > 0:
            smaller = next((p for p, may in self._ask_offsets(_cut(piece)) if may), None)
            if smaller is None:
                return piece.last + 1
            piece = smaller
        return piece.first

    def _last(self, piece: Interval) -> int:
        while piece.first < piece.last and self._remaining_questions > 0:
            smaller = next((p for p, may in reversed(self._ask_offsets(_cut(piece))) if may), None)
            if smaller is None:
                return piece.first - 1
            piece = smaller
        return piece.last

    def _ask_offsets(self, pieces: Sequence[Interval]) -> list[tuple[Interval, bool]]:
        self._remaining_questions -= 1
        return list(zip(pieces, self._ask(pieces), strict=True))


def _cut(within: Interval) -> list[Interval]:
    size = -(-(within.last - within.first + 1) // WAYS)
    starts = range(within.first, within.last + 1, size)
    return [Interval(start, min(start + size - 1, within.last)) for start in starts]


def _merge_nearest(intervals: list[Interval]) -> list[Interval]:
    """Merge the intervals with the smallest gaps between them until INTERVALS_MAX are left."""
    if len(intervals) <= INTERVALS_MAX:
        return intervals
    gaps = sorted(range(1, len(intervals)), key=lambda i: intervals[i].first - intervals[i - 1].last)
    breaks = sorted(gaps[len(intervals) - INTERVALS_MAX :])
    starts, ends = [0, *breaks], [*breaks, len(intervals)]
    return [Interval(intervals[a].first, intervals[b - 1].last) for a, b in zip(starts, ends, strict=True)]


def _is(column: str, value: int) -> pc.Expression:
    return pc.field(column) == _scalar(column, value)


def _between(column: str, first: int, last: int) -> pc.Expression:
    field = pc.field(column)
    return (field >= _scalar(column, first)) & (field <= _scalar(column, last))


def _scalar(column: str, value: int) -> Any:
    return pa.scalar(value, METADATA_SCHEMA.field(column).type)


def _times_ms(text: str) -> Iterator[int]:
    for match in _TIME.finditer(text):
        with suppress(ValueError):  # not a time, but a text of a similar form
            yield (datetime.fromisoformat(match[0]) - _EPOCH) // timedelta(milliseconds=1)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(r"(?<![\w-])\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?Z", re.ASCII)
_NUMBER = re.compile(r"(?<![\w.])-?\d{1,19}(?![\w.])", re.ASCII)
_FORMAT = ds.IpcFileFormat()
_FILES = pyarrow.fs.LocalFileSystem()
