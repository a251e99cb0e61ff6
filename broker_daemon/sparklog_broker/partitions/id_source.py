"""Producer ids for the event loop. Only a request that needs a new block waits for the metadata store."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor

from sparklog.metadata.producer_ids import ProducerIds

log = logging.getLogger(__name__)

TAKE_AGAIN_S = 10.0
"""Time, in s, until the next attempt to take a block while the store is unavailable."""


class IdSource:
    """Issues `ids`. `executor` waits for the store; the next block is taken in advance. Event-loop thread only."""

    def __init__(self, ids: ProducerIds, loop: asyncio.AbstractEventLoop, executor: Executor) -> None:
        self._ids = ids
        self._loop = loop
        self._executor = executor
        self._is_taking = False

    async def next(self) -> int:
        """Return a new id. Raises StorageError, StorageFullError."""
        taken = self._ids.at_hand()
        self.take_ahead()
        return taken if taken is not None else await self._loop.run_in_executor(self._executor, self._ids.next)

    async def reserve(self) -> int:
        """Reserve an id for a coordinator, which issues it later. Raises StorageError, StorageFullError."""
        taken = self.reserve_at_hand()
        return taken if taken is not None else await self._loop.run_in_executor(self._executor, self._ids.reserve)

    def reserve_at_hand(self) -> int | None:
        """Reserve an id without waiting. Returns None if the store is needed."""
        taken = self._ids.at_hand(reserve=True)
        self.take_ahead()
        return taken

    def take_ahead(self) -> None:
        """Take the next block of ids from the store in the background, unless it has been taken already."""
        if not self._is_taking and self._ids.wants_block:
            self._is_taking = True
            self._loop.run_in_executor(self._executor, self._ids.take_ahead).add_done_callback(self._has_taken)

    def _has_taken(self, taking: asyncio.Future[None]) -> None:
        if taking.cancelled():
            return
        error = taking.exception()
        if error is None:
            self._is_taking = False
            return
        log.warning("cannot reserve new producer ids; %d are left: %s", self._ids.remaining, error)
        self._loop.call_later(TAKE_AGAIN_S, setattr, self, "_is_taking", False)
