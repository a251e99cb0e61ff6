"""Division of a long list into pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

ROWS = 50

T = TypeVar("T")


class Page(NamedTuple, Generic[T]):
    """One page of a list."""

    rows: Sequence[T]
    number: int
    """Number of this page, from 1."""
    pages: int
    total: int
    """Number of rows of the list."""
    first: int
    """Number of the first row in the list, from 1; 0 without rows."""


def page_of(rows: Sequence[T], number: int, per_page: int = ROWS) -> Page[T]:
    """Return page `number`, from 1; the last page if the list has fewer pages."""
    pages = max(1, -(-len(rows) // per_page))
    number = min(max(1, number), pages)
    start = (number - 1) * per_page
    return Page(rows[start : start + per_page], number, pages, len(rows), start + 1 if rows else 0)
