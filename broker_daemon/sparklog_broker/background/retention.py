"""Runs retention periodically. The rules are in `sparklog.log.model.retention_policy`."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from functools import partial

from sparklog.log.housekeeping.expiry_clock import ExpiryClock
from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.log.housekeeping.retention_run import RetentionResult, held_back, run_retention
from sparklog_broker.background.periodic import Periodic
from sparklog_broker.config import BrokerConfig
from sparklog_broker.counters.background import RetentionCounters
from sparklog_broker.partitions.partitions import Partitions

log = logging.getLogger(__name__)

_HOUR_MS = 3_600_000
FIRST_RUN_S = 30.0
"""Delay of the first run, in s. It is short, for brokers that restart often or start on a full disk."""


class Retention:
    """The periodic retention. `thread` also runs the flushes, so that no segment is removed during a flush."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        thread: Executor,
        logs: LogManager,
        partitions: Partitions,
    ) -> None:
        self._logs = logs
        self._loop = loop
        self._thread = thread
        self._config = config
        self._partitions = partitions
        self.counters = RetentionCounters()
        self._periodic = Periodic("retention", loop, self.run, self._interval_s)
        self.run_soon, self.stop = self._periodic.run_soon, self._periodic.stop

    def start(self) -> None:
        self._periodic.start(min(self._interval_s(), FIRST_RUN_S))

    def _interval_s(self) -> float:
        return self._config.log_retention_check_interval_ms / 1000

    def _warn_of_held_back(self) -> None:
        """Log the segments that are kept because the clock has jumped ahead, and the time until their deletion."""
        clock = self._logs.expiry_clock
        if not isinstance(clock, ExpiryClock) or not clock.behind_ms:
            return
        held = held_back(self._logs.table.logs)
        log.warning(
            "the clock is %.1f h ahead of the time by which records grow old: %d segments of %d partitions (%d "
            "bytes) are kept for now, and are deleted within %.1f h if the clock stays",
            clock.behind_ms / _HOUR_MS, held.segments, held.partitions, held.size_bytes, clock.catches_up_in_ms / _HOUR_MS,
        )  # fmt: skip

    async def run(self) -> None:
        """Remove the segments that are too old or too many. Raises SparklogError."""
        run = partial(run_retention, self._logs.table.logs, self._logs.checkpoints.write)
        result: RetentionResult = await self._loop.run_in_executor(self._thread, run)
        self.counters.runs += 1
        self.counters.raised += len(result.raised)
        self.counters.removed_segments += result.removed_count
        await self._loop.run_in_executor(self._thread, self._warn_of_held_back)
        for key in result.raised:
            partition = self._partitions.find(key)
            if partition is not None:
                partition.on_log_start_raised()
