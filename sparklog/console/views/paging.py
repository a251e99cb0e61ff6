"""A long list, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

ROWS = 50

T = TypeVar("T")


class Page(NamedTuple, Generic[T]):
    """One page of a list: `rows` of `total`. `first` is the number of the first row, from 1; 0 without rows. Pages
    count from 1."""

    rows: Sequence[T]
    number: int
    pages: int
    total: int
    first: int


def page_of(rows: Sequence[T], number: int, per_page: int = ROWS) -> Page[T]:
    """Return the page with this number, or the last one if there are fewer."""
    pages = max(1, -(-len(rows) // per_page))
    number = min(max(1, number), pages)
    start = (number - 1) * per_page
    return Page(rows[start : start + per_page], number, pages, len(rows), start + 1 if rows else 0)
