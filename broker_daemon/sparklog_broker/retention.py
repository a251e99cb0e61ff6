"""When retention runs, and deleting records on request. What may go is decided in `sparklog.log.retention`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial

from sparklog.errors import SparklogError
from sparklog.log.log_manager import LogManager
from sparklog.log.partition_log import PartitionLog
from sparklog.log.retention_run import RetentionResult, run_retention
from sparklog.types import TopicPartition
from sparklog_broker.partition import Partition

log = logging.getLogger(__name__)

FIRST_RUN_S = 30.0
"""A broker that is restarted often, or was started on a full disk, must not wait for a whole interval."""


class Retention:
    """The background task. `flush_thread` also fsyncs the logs, so that no segment goes while that happens."""

    def __init__(
        self,
        logs: LogManager,
        loop: asyncio.AbstractEventLoop,
        *,
        flush_thread: Executor,
        interval_s: float,
        partition_of: Callable[[TopicPartition], Partition | None],
    ) -> None:
        self._logs = logs
        self._loop = loop
        self._flush_thread = flush_thread
        self._interval_s = interval_s
        self._partition_of = partition_of
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._loop.create_task(self._run())

    async def stop(self) -> None:
        """A run that is under way on its thread ends by itself."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def run_soon(self) -> None:
        """Something has changed: do not wait for the interval to be over."""
        self._wanted.set()

    async def _run(self) -> None:
        wait_s = min(self._interval_s, FIRST_RUN_S)
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), wait_s)
            self._wanted.clear()
            wait_s = self._interval_s
            try:
                run = partial(run_retention, self._logs.logs, self._logs.checkpoint)
                result: RetentionResult = await self._loop.run_in_executor(self._flush_thread, run)
            except SparklogError as e:
                log.error("retention failed, next attempt in %.0f s: %s", wait_s, e)  # noqa: TRY400
                continue
            except Exception:
                log.exception("retention failed, next attempt in %.0f s", wait_s)
                continue
            for key in result.raised:
                partition = self._partition_of(key)
                if partition is not None:
                    partition.on_log_start_raised()


def delete_records(logs: LogManager, deletions: Sequence[tuple[PartitionLog, int]]) -> list[int | SparklogError]:
    """Deletes each log's records below an offset (-1: all that can be read) and writes the log starts down.

    Returns per log its log start, or why it was refused. Runs on the admin thread.
    """
    done: list[int | SparklogError] = []
    for partition_log, before_offset in deletions:
        try:
            done.append(partition_log.delete_records(before_offset))
        except SparklogError as e:
            done.append(e)
    if all(isinstance(d, SparklogError) for d in done):
        return done
    try:
        logs.checkpoint()
    except SparklogError as e:
        failed = type(e)(f"the records are deleted, but a restart may bring them back: {e}")
        return [d if isinstance(d, SparklogError) else failed for d in done]
    return done
