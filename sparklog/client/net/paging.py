"""Long lists, requested page by page.

The number of pages is limited, and each page has to advance, so that a broker whose list never ends is not followed
forever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, TypeVar

from msgspec.structs import replace

from sparklog.errors import InvalidRequestError
from sparklog.protocol.base import Message

PAGES_MAX = 256
"""Largest number of pages of an answer, of up to 16 MiB each."""


class Page(Protocol):
    """One page of an answer. `more` is True if another page follows."""

    more: bool


P = TypeVar("P", bound=Page)
R = TypeVar("R", bound=Message)


def pages(ask: Callable[[R], P], request: R, following: Callable[[P], Mapping[str, object]]) -> Iterator[P]:
    """Yield the pages in order. `ask` gets the request of each page, `request` for the first. `following` returns the
    fields of the request for the page after this one: the place at which that page begins; empty if this page is empty.

    Raises InvalidRequestError for a broker that repeats itself or sends more than PAGES_MAX pages, and the errors of
    `ask`.
    """
    place: Mapping[str, object] = {}
    for _ in range(PAGES_MAX):
        page = ask(request)
        next_place = following(page) if page.more else {}
        if page.more and next_place in ({}, place):
            raise InvalidRequestError("the broker announces more pages, but repeats the same position")
        yield page
        if not page.more:
            return
        place, request = next_place, replace(request, **next_place)
    raise InvalidRequestError(f"the broker has sent {PAGES_MAX} pages and announces more")
