"""The topics that match the regular expressions of group members, remembered until the topics change. Event-loop thread
only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial

from sparklog.replication.topic_regex import matching_topics

EXPRESSIONS_MAX = 200
"""Largest number of remembered expressions."""


class TopicMatches:
    """The matches of each expression. `topics` returns the names of all topics."""

    def __init__(self, loop: asyncio.AbstractEventLoop, topics: Callable[[], Iterable[str]]) -> None:
        self._loop = loop
        self._topics = topics
        self._matches: dict[str, asyncio.Future[list[str]]] = {}

    def forget(self) -> None:
        """Forget all matches, because the topics have changed."""
        self._matches = {}

    async def names(self, regex: str) -> list[str]:
        """Return the names that match. The work is done on a thread, once for all members with the same expression,
        because RE2 needs up to a second for a large expression. Raises InvalidRegularExpressionError."""
        matches = self._matches.get(regex)
        if matches is None:
            if len(self._matches) >= EXPRESSIONS_MAX:
                del self._matches[next(iter(self._matches))]
            job = partial(matching_topics, regex, list(self._topics()))
            matches = self._matches[regex] = self._loop.run_in_executor(None, job)
            matches.add_done_callback(_retrieve_error)
        return await asyncio.shield(matches)


def _retrieve_error(matches: asyncio.Future[list[str]]) -> None:
    """Retrieve the error of a future, because the requests that wait for it may have been cancelled."""
    if not matches.cancelled():
        matches.exception()
