"""Long lists, requested page by page.

The number of pages is limited, and each page has to advance, so that a broker whose list never ends is not followed
forever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from sparklog.errors import InvalidRequestError

PAGES_MAX = 256
"""Largest number of pages of an answer, of up to 16 MiB each."""


class Page(Protocol):
    """One page of an answer. `more` is True if another page follows."""

    more: bool


P = TypeVar("P", bound=Page)


def pages(ask: Callable[[P | None], P], position: Callable[[P], object]) -> Iterator[P]:
    """Yield the pages in order. `ask` gets the previous page (None: the first is requested); `position` returns the
    place at which the page after this one begins, or None if this page is empty.

    Raises InvalidRequestError for a broker that repeats itself or sends more than PAGES_MAX pages, and the errors of
    `ask`.
    """
    before: P | None = None
    for _ in range(PAGES_MAX):
        page = ask(before)
        stands = position(page) if page.more else None
        if page.more and (stands is None or (before is not None and stands == position(before))):
            raise InvalidRequestError("the broker announces more pages, but repeats the same position")
        yield page
        if not page.more:
            return
        before = page
    raise InvalidRequestError(f"the broker has sent {PAGES_MAX} pages and announces more")
