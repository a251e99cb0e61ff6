"""Producer ids for the event loop: only a request that needs a new block waits for the metadata store."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor

from sparklog.metadata.producer_ids import ProducerIds

log = logging.getLogger(__name__)

TAKE_AGAIN_S = 10.0
"""Time until the next attempt to take a block ahead, while the store is away."""


class IdSource:
    """Gives out `ids`; `executor` waits for the store. A shared store's next block is taken ahead. Event-loop thread
    only."""

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
        """Reserve an id for a coordinator, which hands it out later. Raises StorageError, StorageFullError."""
        taken = self.reserve_at_hand()
        return taken if taken is not None else await self._loop.run_in_executor(self._executor, self._ids.reserve)

    def reserve_at_hand(self) -> int | None:
        """Do as `reserve`, without waiting. Returns None if the store is needed."""
        taken = self._ids.at_hand(reserve=True)
        self.take_ahead()
        return taken

    def take_ahead(self) -> None:
        """Request the next block in the background, if it is time for it."""
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
