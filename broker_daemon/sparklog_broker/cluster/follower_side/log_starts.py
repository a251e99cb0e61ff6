"""Log starts that a follower has raised and not written down yet.

A fetch tells the leader where the follower's log begins, and whoever deletes records is answered by it. So it waits
until that is in a checkpoint: else a crash would bring back what was deleted for good. One checkpoint is for all
partitions that wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from sparklog.errors import SparklogError, StorageError
from sparklog.log.partition_log import PartitionLog

log = logging.getLogger(__name__)


def is_written(partition_log: PartitionLog) -> bool:
    """Whether the log would begin where it does now after a crash, too."""
    return partition_log.durable_log_start_offset >= partition_log.log_start_offset


class LogStarts:
    """`checkpoint` writes the log starts of all partitions down. Event-loop thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, checkpoint: Callable[[], Awaitable[None]]) -> None:
        self._loop = loop
        self._checkpoint = checkpoint
        self._waiting: list[tuple[PartitionLog, int, Callable[[Exception | None], None]]] = []
        self._writing: asyncio.Task[None] | None = None

    def write(self, partition_log: PartitionLog, done: Callable[[Exception | None], None]) -> None:
        """Calls `done` when the start that the log has now is written, or with the reason why it could not be."""
        self._waiting.append((partition_log, partition_log.log_start_offset, done))
        if self._writing is None:
            self._writing = self._loop.create_task(self._write())
            self._writing.add_done_callback(self._on_written)

    async def _write(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            error: SparklogError = StorageError("the checkpoint does not have the log start")
            try:
                await self._checkpoint()
            except SparklogError as e:
                error = e  # of another log directory, perhaps
            for partition_log, start, done in waiting:
                done(None if partition_log.durable_log_start_offset >= start or is_written(partition_log) else error)

    def _on_written(self, writing: asyncio.Task[None]) -> None:
        self._writing = None
        if not writing.cancelled() and writing.exception() is not None:
            log.error("log starts could not be written down", exc_info=writing.exception())

    def stop(self) -> None:
        """Nobody is told anything any more."""
        self._waiting.clear()
        if self._writing is not None:
            self._writing.cancel()
