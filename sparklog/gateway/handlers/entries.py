"""The limit for requests that name many things, where the gateway sends at least one request to the broker for each."""

from __future__ import annotations

from sparklog.errors import InvalidRequestError
from sparklog.gateway.session import INLINE_ENTRIES, Session

ENTRIES_MAX = 1_000
"""Number of entries (topics, groups, keys, resources or transactional ids) of one request that are handled. Each
further entry gets an error as its result."""


def check_entry(index: int) -> None:
    """Raise InvalidRequestError if `index`, the place of an entry in its request, is ENTRIES_MAX or more."""
    if index >= ENTRIES_MAX:
        raise InvalidRequestError(
            f"entry {index + 1} of the request; at most {ENTRIES_MAX} are allowed: name it in a further request"
        )


def check_named_once(times: int) -> None:
    """Raise InvalidRequestError if a request names one topic or resource more than once: the outcome would depend on
    the order."""
    if times > 1:
        raise InvalidRequestError(f"the request names it {times} times; name it once")


async def share_turns(session: Session, entries: int) -> None:
    """Wait for a slice of the event loop's time, if the work that follows is for many entries."""
    if entries > INLINE_ENTRIES:
        await session.gateway.time_slices.begin()
