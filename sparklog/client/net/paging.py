"""Long lists, requested page by page.

The number of pages is limited, and each page has to advance, so that a broker whose list never ends is not followed
forever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

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


class PageRequests(Generic[R, P]):
    """The requests for the pages of one answer."""

    def __init__(self, following: Callable[[P], Mapping[str, object]]) -> None:
        """`following`: returns the fields of the request for the page after this one: the place at which that page
        begins; empty if this page is empty."""
        self._following = following
        self._place: Mapping[str, object] = {}
        self._pages = 0

    def after(self, request: R, page: P) -> R | None:
        """Return the request for the page after `page`, the answer to `request`; None after the last page. Raises
        InvalidRequestError for a broker that repeats itself or sends more than PAGES_MAX pages."""
        self._pages += 1
        if not page.more:
            return None
        if self._pages == PAGES_MAX:
            raise InvalidRequestError(f"the broker has sent {PAGES_MAX} pages and announces more")
        place = self._following(page)
        if place in ({}, self._place):
            raise InvalidRequestError("the broker announces more pages, but repeats the same position")
        self._place = place
        return replace(request, **place)


def pages(ask: Callable[[R], P], request: R, following: Callable[[P], Mapping[str, object]]) -> Iterator[P]:
    """Yield the pages in order. `ask` gets the request of each page, `request` for the first; `following` as for
    `PageRequests`. Raises InvalidRequestError as `PageRequests.after`, and the errors of `ask`."""
    requests: PageRequests[R, P] = PageRequests(following)
    current: R | None = request
    while current is not None:
        page = ask(current)
        current = requests.after(current, page)
        yield page


def after_last(items: str, key: Callable[[Any], str | int]) -> Callable[[object], Mapping[str, object]]:
    """Return the function `following` of `pages` if each page begins after the key of the last item of the page before.
    `items`: name of the page's list."""

    def following(page: object) -> Mapping[str, object]:
        listed = getattr(page, items)
        return {"after": key(listed[-1])} if listed else {}

    return following
