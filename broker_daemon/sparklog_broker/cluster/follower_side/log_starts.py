"""A follower's raised log starts that are not stored in a checkpoint yet.

A fetch reports the follower's log start to the leader, which then confirms deletions of records below it. A fetch
therefore waits until the log start is in a checkpoint. Otherwise a crash would bring back records that were reported
as deleted. One checkpoint serves all waiting partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from sparklog.errors import SparklogError, StorageError
from sparklog.log.partition_log import PartitionLog

log = logging.getLogger(__name__)


def is_written(partition_log: PartitionLog) -> bool:
    """True if the log would begin at the same offset after a crash."""
    return partition_log.durable_log_start_offset >= partition_log.log_start_offset


class LogStarts:
    """Stores log starts by `checkpoint`, which stores the log starts of all partitions. Event-loop thread only."""

    def __init__(self, loop: asyncio.AbstractEventLoop, checkpoint: Callable[[], Awaitable[None]]) -> None:
        self._loop = loop
        self._checkpoint = checkpoint
        self._waiting: list[tuple[PartitionLog, int, Callable[[Exception | None], None]]] = []
        self._writing: asyncio.Task[None] | None = None

    def write(self, partition_log: PartitionLog, done: Callable[[Exception | None], None]) -> None:
        """Call `done` with None when the log's present start is stored, or with the error."""
        self._waiting.append((partition_log, partition_log.log_start_offset, done))
        if self._writing is None:
            self._writing = self._loop.create_task(self._write())
            self._writing.add_done_callback(self._on_written)

    async def _write(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            error: SparklogError = StorageError("the checkpoint lacks the log start offset")
            try:
                await self._checkpoint()
            except SparklogError as e:
                error = e  # another log directory may have failed: check each log
            for partition_log, start, done in waiting:
                done(None if partition_log.durable_log_start_offset >= start or is_written(partition_log) else error)

    def _on_written(self, writing: asyncio.Task[None]) -> None:
        self._writing = None
        if not writing.cancelled() and writing.exception() is not None:
            log.error("log start offsets could not be written to the checkpoint", exc_info=writing.exception())

    def stop(self) -> None:
        """Drop all waiting calls; their `done` is not called."""
        self._waiting.clear()
        if self._writing is not None:
            self._writing.cancel()
