"""The rows for which a conversion of many rows fails, and the values that it does not have to convert."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from sparklog.errors import SchemaMismatchError

Faults = type[Exception] | tuple[type[Exception], ...]


class UnwritableRowError(SchemaMismatchError):
    """A row has a value that the schema of its record cannot have."""

    def __init__(self, row: int, reason: str) -> None:
        super().__init__(reason)
        self.row = row
        """Index of the first such row."""


def rows_at_fault(rows: Any, convert: Callable[[Any], object], faults: Faults, limit: int) -> dict[int, str]:
    """Return the reasons of the first rows that cannot be converted, at most `limit`, by index. `rows`: an array or
    batch. `convert`: raises one of `faults` if one of its rows cannot be converted."""
    return dict(islice(_halves(rows, convert, faults, 0, len(rows)), limit))


def _halves(
    rows: Any, convert: Callable[[Any], object], faults: Faults, first: int, count: int
) -> Iterator[tuple[int, str]]:
    try:
        convert(rows.slice(first, count))
    except faults as e:
        if count == 1:
            yield first, str(e).splitlines()[0]
        else:
            yield from _halves(rows, convert, faults, first, count // 2)
            yield from _halves(rows, convert, faults, first + count // 2, count - count // 2)


def children_of(array: Any) -> list[Any]:
    """Return the fields of an array of structs. Values below a null are null: a conversion could refuse them."""
    children: list[Any] = (
        array.flatten() if array.null_count else [array.field(i) for i in range(array.type.num_fields)]
    )
    return children


def first_fault(rows: Any, convert: Callable[[Any], object], faults: Faults) -> int:
    """Return the index of the first row that cannot be converted; one of the rows cannot."""
    first, count = 0, len(rows)
    while count > 1:
        half = count // 2
        try:
            convert(rows.slice(first, half))
        except faults:
            count = half
        else:
            first, count = first + half, count - half
    return first
