"""Periodic flushes of appended records, checkpoints, and removal of deleted files."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from sparklog.histogram import Histogram
from sparklog.log.housekeeping.flush_run import expire_producers, flush_due, flush_logs, logs_with_work, recover_writes
from sparklog.log.housekeeping.retention_run import remove_dropped
from sparklog_broker.background.periodic import Periodic
from sparklog_broker.config import BrokerConfig
from sparklog_broker.partitions.partitions import Partitions
from sparklog_broker.partitions.storage import Storage

FLUSH_TICK_S = 2.0
"""Longest interval, in s, of the check for rolled segments and logs with `flush.ms`."""
FLUSH_TICK_S_MIN = 0.01

T = TypeVar("T")


class Flushing:
    """The periodic flushes. `thread` runs the fsyncs. Event-loop thread only."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        thread: Executor,
        storage: Storage,
        partitions: Partitions,
    ) -> None:
        self._config = config
        self._loop = loop
        self._thread = thread
        self._storage = storage
        self._partitions = partitions
        self.rounds = Histogram()
        """Durations, in s, of the flushes of all logs."""
        self.removed_segments = 0
        """Number of segments whose files were unlinked."""
        self._all = Periodic("background work", loop, self._flush_all, lambda: config.log_flush_interval_ms / 1000)
        self.run_soon = self._all.run_soon
        self._due = Periodic("background fsync", loop, self._flush_due, self._tick_s)

    def start(self) -> None:
        self._all.start()
        self._due.start(self._tick_s())

    async def stop(self) -> None:
        await self._all.stop()
        await self._due.stop()

    def _in_thread(self, job: Callable[[], T]) -> asyncio.Future[T]:
        """Run `job` on the thread for fsyncs."""
        return self._loop.run_in_executor(self._thread, job)

    async def _flush_due(self) -> None:
        """Flush rolled segments, and logs whose `flush.ms` has passed. This runs more often than `_flush_all`, so that
        a start after a crash has little to scan. The remains of failed appends are removed first.
        """
        logs = self._storage.logs

        def flush() -> bool:
            busy = logs_with_work(logs.table.logs)
            recover_writes(busy)
            return flush_due(busy)

        if await self._in_thread(flush):
            await self._storage.run(logs.checkpoints.write)

    def _tick_s(self) -> float:
        """Return the interval of the checks, in s: half of the shortest `flush.ms`, between FLUSH_TICK_S_MIN and
        FLUSH_TICK_S."""
        configs = [self._config.topic_defaults, *(t.configs for t in self._partitions.topics.values())]
        waits_ms = [int(str(ms)) for c in configs if (ms := c.get("flush.ms", -1)) not in (-1, "-1")]
        return max(FLUSH_TICK_S_MIN, min([FLUSH_TICK_S, *(ms / 2000 for ms in waits_ms)]))

    async def _flush_all(self) -> None:
        """Flush all logs, unlink deleted files, forget expired producers, and write the checkpoints."""
        logs = self._storage.logs
        began_s = self._loop.time()
        await self._in_thread(lambda: flush_logs(logs.table.logs))
        self.rounds.observe(self._loop.time() - began_s)
        self.removed_segments += await self._in_thread(lambda: remove_dropped(logs.table.logs))
        expiration_ms = self._config.producer_id_expiration_ms
        await self._in_thread(lambda: expire_producers(logs.table.logs, logs.expiry_clock.now_ms(), expiration_ms))
        await self._storage.run(logs.checkpoints.write)
        await self._storage.run(logs.save_expiry_clock)
        await self._storage.run(logs.removal.purge)
