"""The limit on the entries of a request that cost the broker a request each."""

from __future__ import annotations

from sparklog.errors import InvalidRequestError

ENTRIES_MAX = 1_000
"""Largest number of topics, groups, keys, resources or transactional ids that one request may name."""


def check_entry(index: int) -> None:
    """Check the number of an entry. Raises InvalidRequestError beyond the limit; that entry gets the error as its
    result."""
    if index >= ENTRIES_MAX:
        raise InvalidRequestError(
            f"entry {index + 1} of the request; at most {ENTRIES_MAX} are allowed: name it in a further request"
        )
