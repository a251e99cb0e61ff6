"""Where followers' logs begin is written down before their leaders hear of it.

DELETE_RECORDS is answered when no live replica begins below (KIP-107). One that has raised its log start in memory
alone would begin below again after a crash, and show what was deleted when it is elected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from sparklog.errors import SparklogError
from sparklog.types import TopicPartition

OnWritten = Callable[[SparklogError | None], None]


class WrittenStarts:
    """Event-loop thread only. All that is to be written while a write runs is written by the next one."""

    def __init__(self, write: Callable[[], asyncio.Future[None]]) -> None:
        """`write`: writes down where all logs begin."""
        self._write = write
        self._raised: set[TopicPartition] = set()
        self._being_written: set[TopicPartition] = set()
        self._waiting: list[OnWritten] = []
        self._is_writing = False

    def raised(self, key: TopicPartition) -> None:
        """The log of the partition begins later than what is written down says."""
        self._raised.add(key)

    def is_written(self, key: TopicPartition) -> bool:
        return key not in self._raised and key not in self._being_written

    def when_written(self, action: OnWritten) -> None:
        """Calls `action` when everything that was raised before is written, or with the error why it is not."""
        self._waiting.append(action)
        self._next()

    def _next(self) -> None:
        if self._is_writing or not self._waiting:
            return
        self._is_writing = True
        waiting, self._waiting = self._waiting, []
        self._being_written, self._raised = self._raised, set()
        self._write().add_done_callback(partial(self._on_done, waiting))

    def _on_done(self, waiting: list[OnWritten], done: asyncio.Future[None]) -> None:
        self._is_writing = False
        keys, self._being_written = self._being_written, set()
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._raised |= keys
            if not isinstance(error, SparklogError):
                raise error
        for action in waiting:
            action(error)
        self._next()
