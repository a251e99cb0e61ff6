"""Threads that compact logs, beginning with the dirtiest. The rules are in `sparklog.log.compaction`.

If the compaction of a log fails (a damaged batch, a full disk), its next attempt waits, longer after each failure.
After several failures there is no further attempt until a restart or a change of a topic's settings. Other logs are
compacted meanwhile. The threads work on NumPy and Arrow arrays of one batch at a time, so that the event loop gets the
interpreter in between.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from functools import partial

from msgspec import Struct

from sparklog.environment import Environment
from sparklog.errors import SparklogError
from sparklog.log.compaction.offset_map import OffsetMap
from sparklog.log.housekeeping.cleaner import CompactionResult, DueLog, compact_log, due_for_compaction
from sparklog.log.housekeeping.log_table import LogTable
from sparklog.log.model.compaction_policy import dirtiest_first, retry_after_ms
from sparklog.log.partition_log import PartitionLog
from sparklog.types import TopicPartition
from sparklog_broker.background.periodic import Rounds
from sparklog_broker.config import BrokerConfig
from sparklog_broker.counters.background import CleanerCounters

log = logging.getLogger(__name__)

UNLIMITED = -1
STOP_TIMEOUT_S = 30.0


BURST_S = 1.0
"""Capacity of the bucket: the tokens of this many seconds. Further unused tokens are lost."""


class TokenBucket:
    """A rate limit. Each second adds `bytes_per_second` tokens. A caller that takes more tokens than the bucket has
    must wait. The bucket has no lock."""

    def __init__(self, bytes_per_second: int, now_s: float) -> None:
        self._rate = bytes_per_second
        self._tokens = bytes_per_second * BURST_S
        self._filled_s = now_s

    def take(self, size_bytes: int, now_s: float) -> float:
        """Take `size_bytes` tokens, and return the seconds that the caller must wait before it continues, or 0.0."""
        elapsed_s = max(0.0, now_s - self._filled_s)
        self._filled_s = now_s
        self._tokens = min(self._tokens + elapsed_s * self._rate, self._rate * BURST_S) - size_bytes
        return max(0.0, -self._tokens / self._rate)


class _StopRequested(Exception):  # noqa: N818  (not an error: the broker stops)
    """Ends a compaction in progress, because the broker stops."""


class _Trouble(Struct):
    """A log whose compaction failed, or removed nothing. The next attempt is not before `retry_at_s`; None for no
    attempt. `failures` counts the failures since the last success, except retriable errors."""

    log: PartitionLog
    failures: int
    retry_at_s: float | None


class Cleaner:
    """The compaction threads, from `start` on."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        environment: Environment,
        table: LogTable,
        deletions_may_go: Callable[[TopicPartition], bool] | None = None,
    ) -> None:
        """`deletions_may_go`: returns True if every replica of a partition has the committed records. Only then
        tombstones are removed. Called by the threads. None if each partition has one replica."""
        self._table = table
        self._deletions_may_go = deletions_may_go if deletions_may_go is not None else lambda tp: True
        self._buffer_bytes = config.log_cleaner_dedupe_buffer_bytes // config.log_cleaner_threads
        self._config = config
        self._now_s = environment.clock.monotonic_s
        self._bucket = self._bucket_of(config)
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._busy: set[TopicPartition] = set()
        self._trouble: dict[TopicPartition, _Trouble] = {}
        self.counters = CleanerCounters()
        """Changed by the threads, which hold the lock."""
        names = [f"cleaner-{i}" for i in range(config.log_cleaner_threads)]
        self._rounds = [
            Rounds(name, loop, environment.executors.daemon(name), self._round, pause_s=self._pause_s) for name in names
        ]

    def _pause_s(self) -> float:
        return self._config.log_cleaner_backoff_ms / 1000

    def set_rate(self, config: BrokerConfig) -> None:
        """Apply `log.cleaner.io.max.bytes.per.second`, from the next batch on."""
        self._bucket = self._bucket_of(config)

    def _bucket_of(self, config: BrokerConfig) -> TokenBucket | None:
        limit = config.log_cleaner_io_max_bytes_per_second
        return None if limit <= 0 else TokenBucket(limit, self._now_s())

    def start(self) -> None:
        for rounds in self._rounds:
            rounds.start()

    async def stop(self) -> None:
        """Stop the compactions in progress at their next batch."""
        self._stopping.set()
        if not all(await asyncio.gather(*(rounds.stop(STOP_TIMEOUT_S) for rounds in self._rounds))):
            log.warning("the cleaner thread does not stop: a disk operation hangs")

    def run_soon(self) -> None:
        """Check all logs now, after a change of topics, also those that have failed."""
        with self._lock:
            self._trouble.clear()
            self._count_failing()
        for rounds in self._rounds:
            rounds.run_soon()

    def run_once(self) -> CompactionResult | None:
        """Compact the dirtiest due log. Returns None if no log is due, if the broker stops, or after a failure, which
        is logged."""
        due = self._take()
        if due is None:
            return None
        key = due.log.owner.topic_partition
        began_s = self._now_s()
        try:
            result = compact_log(due, OffsetMap(self._buffer_bytes), self._throttle)
        except _StopRequested:
            return None
        except SparklogError as e:
            if not due.log.is_closed:
                self._failed(key, due.log, e, counts=not e.retriable)
            return None
        except Exception as e:
            log.exception("partition %s: compaction failed", key)
            self._failed(key, due.log, e, counts=True)
            return None
        else:
            self._succeeded(key, due, result, self._now_s() - began_s)
            return result
        finally:
            with self._lock:
                self._busy.discard(key)

    # -- the threads

    def _round(self) -> bool:
        return not self._stopping.is_set() and self.run_once() is not None

    def _take(self) -> DueLog | None:
        """Reserve the dirtiest due log for the calling thread, and return it; None if no log is due."""
        failed: list[tuple[TopicPartition, PartitionLog, SparklogError]] = []
        try:
            return self._take_dirtiest(failed)
        finally:
            for key, partition_log, error in failed:  # `_failed` takes the lock itself
                self._failed(key, partition_log, error, counts=not error.retriable)

    def _take_dirtiest(self, failed: list[tuple[TopicPartition, PartitionLog, SparklogError]]) -> DueLog | None:
        with self._lock:
            logs = self._table.logs
            self._trouble = {key: t for key, t in self._trouble.items() if logs.get(key) is t.log}
            self._count_failing()
            due_logs: dict[TopicPartition, DueLog] = {}
            for key, partition_log in logs.items():
                if key in self._busy or not self._may_try(key):
                    continue
                try:
                    due = due_for_compaction(partition_log, partial(self._deletions_may_go, key))
                except SparklogError as e:
                    if not partition_log.is_closed:
                        failed.append((key, partition_log, e))
                    continue
                if due is not None:
                    due_logs[key] = due
            order = dirtiest_first({key: due.section for key, due in due_logs.items()})
            if not order:
                return None
            self._busy.add(order[0])
            return due_logs[order[0]]

    def _may_try(self, key: TopicPartition) -> bool:
        trouble = self._trouble.get(key)
        if trouble is None:
            return True
        return trouble.retry_at_s is not None and self._now_s() >= trouble.retry_at_s

    def _failed(self, key: TopicPartition, partition_log: PartitionLog, error: Exception, *, counts: bool) -> None:
        with self._lock:
            before = self._trouble.get(key)
            failures = (before.failures if before is not None else 0) + (1 if counts else 0)
            wait_ms = retry_after_ms(max(1, failures), self._config.log_cleaner_backoff_ms)
            retry_at_s = None if wait_ms is None else self._now_s() + wait_ms / 1000
            self._trouble[key] = _Trouble(partition_log, failures, retry_at_s)
            self.counters.failures += 1
            self._count_failing()
        if wait_ms is None:
            log.error(
                "partition %s: compaction failed %d times; the next attempt follows a restart or a change of the "
                "topic's settings: %s",
                key, failures, error,
            )  # fmt: skip
        else:
            log.warning("partition %s: compaction failed, next attempt in %.0f s: %s", key, wait_ms / 1000, error)

    def _count_failing(self) -> None:
        """Count the failing logs. The caller holds the lock."""
        self.counters.failing = sum(t.failures > 0 for t in self._trouble.values())

    def _succeeded(self, key: TopicPartition, due: DueLog, result: CompactionResult, busy_s: float) -> None:
        with self._lock:
            self.counters.runs += 1
            self.counters.read_bytes += result.bytes_before
            self.counters.written_bytes += result.bytes_after
            self.counters.removed_records += result.rows_removed
            self.counters.busy_s += busy_s
            self._trouble.pop(key, None)
            self._count_failing()
            if result.next_dirty_offset <= due.section.first_dirty_offset and not result.rows_removed:
                # nothing was removed: wait before the next compaction of this log
                self._trouble[key] = _Trouble(due.log, 0, self._now_s() + self._pause_s())

    def _throttle(self, size_bytes: int) -> None:
        bucket = self._bucket
        if bucket is not None:
            with self._lock:
                wait_s = bucket.take(size_bytes, self._now_s())
            if wait_s:
                self._stopping.wait(wait_s)
        if self._stopping.is_set():
            raise _StopRequested
