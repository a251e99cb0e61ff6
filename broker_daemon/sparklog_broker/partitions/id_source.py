"""Producer ids for the event loop: only who needs a new block of them waits for the metadata store."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor

from sparklog.metadata.producer_ids import ProducerIds

log = logging.getLogger(__name__)

TAKE_AGAIN_S = 10.0
"""Until a store that is away is asked again for ids that are not needed yet."""


class IdSource:
    """Gives out `ids`; `executor` waits for the store. A shared store's next block is taken ahead. Event-loop thread
    only."""

    def __init__(self, ids: ProducerIds, loop: asyncio.AbstractEventLoop, executor: Executor) -> None:
        self._ids = ids
        self._loop = loop
        self._executor = executor
        self._is_taking = False

    async def next(self) -> int:
        """A new id. Raises StorageError, StorageFullError."""
        taken = self._ids.at_hand()
        self.take_ahead()
        return taken if taken is not None else await self._loop.run_in_executor(self._executor, self._ids.next)

    async def reserve(self) -> int:
        """For a coordinator that will hand it out when it is asked. Raises StorageError, StorageFullError."""
        taken = self.reserve_at_hand()
        return taken if taken is not None else await self._loop.run_in_executor(self._executor, self._ids.reserve)

    def reserve_at_hand(self) -> int | None:
        """As `reserve`, but never waits. None: the store is needed for it."""
        taken = self._ids.at_hand(reserve=True)
        self.take_ahead()
        return taken

    def take_ahead(self) -> None:
        """The next block is asked for, if it is time for that. Nobody waits for it."""
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
        log.warning("no new producer ids; there are %d at hand: %s", self._ids.left, error)
        self._loop.call_later(TAKE_AGAIN_S, setattr, self, "_is_taking", False)
