"""Watching the log directories: the partitions of one that has failed go offline, the broker goes on until the last.

A failing read, write or fsync is noticed by whoever meets it. A directory that was removed or unmounted fails nothing
(what is open stays writable, and is lost), so it is looked for at an interval, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from sparklog.log.log_manager import DirectoryFailure, LogManager
from sparklog.types import TopicPartition
from sparklog_broker.partition import Partition

log = logging.getLogger(__name__)

LOOK_S = 1.0
_NAMED_MAX = 20


class DirectoryWatch:
    """`settle` runs `LogManager.settle_failures` on the thread that changes logs. Event-loop thread only."""

    def __init__(
        self,
        logs: LogManager,
        loop: asyncio.AbstractEventLoop,
        *,
        settle: Callable[[], asyncio.Future[list[DirectoryFailure]]],
        partition_of: Callable[[TopicPartition], Partition | None],
        on_all_failed: Callable[[str], None],
    ) -> None:
        self._logs = logs
        self._loop = loop
        self._settle = settle
        self._partition_of = partition_of
        self._on_all_failed = on_all_failed
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._logs.on_directory_failure = self._wake_up
        self._task = self._loop.create_task(self._run())

    def _wake_up(self) -> None:
        """Any thread."""
        self._loop.call_soon_threadsafe(self._wake.set)

    async def stop(self) -> None:
        self._logs.on_directory_failure = lambda: None
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        while True:
            try:
                await self._loop.run_in_executor(None, self._logs.look)
                if self._logs.has_unsettled_failures:
                    self._tell(await self._settle())
            except Exception:
                log.exception("the log directories could not be looked at, next attempt in %.0f s", LOOK_S)
            timer = self._loop.call_later(LOOK_S, self._wake.set)  # wait_for can swallow a cancellation
            await self._wake.wait()
            timer.cancel()
            self._wake.clear()

    def _tell(self, failures: list[DirectoryFailure]) -> None:
        for failure in failures:
            names = ", ".join(map(str, failure.partitions[:_NAMED_MAX]))
            more = f" and {len(failure.partitions) - _NAMED_MAX} more" if len(failure.partitions) > _NAMED_MAX else ""
            log.error("offline with %s: %s%s", failure.path, names or "no partition", more)
            for tp in failure.partitions:
                partition = self._partition_of(tp)
                if partition is not None:
                    partition.take_offline(failure.error)
        failed = self._logs.failed_directories
        if failures and len(failed) == len(self._logs.log_dirs):
            self._on_all_failed(
                f"all log directories have failed: {'; '.join(map(str, failed.values()))}; the broker stops"
            )
