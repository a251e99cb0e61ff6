"""The threads that compact logs, the dirtiest first. What is due and how it is done is in `sparklog.log.compaction`.

A log that fails (a damaged batch, a full disk) waits longer after each failure, and after some is left alone; the others
go on. The threads work on NumPy and Arrow arrays of one batch at a time, so that the event loop gets its turn.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from msgspec import Struct

from sparklog.errors import SparklogError
from sparklog.log.compaction.cleaner import CompactionResult, Due, compact_log, due_for_compaction
from sparklog.log.compaction.offset_map import OffsetMap
from sparklog.log.compaction.policy import dirtiest_first, retry_after_ms
from sparklog.log.compaction.throttle import TokenBucket
from sparklog.log.log_manager import LogManager
from sparklog.log.partition_log import PartitionLog
from sparklog.types import TopicPartition

log = logging.getLogger(__name__)

UNLIMITED = -1
STOP_TIMEOUT_S = 30.0


class _Stopped(Exception):  # noqa: N818  (not an error: the broker stops)
    """Ends a run in the middle."""


class _Trouble(Struct):
    """A log that is not to be compacted before `retry_at_s` (None: not at all); `failures` in a row."""

    log: PartitionLog
    failures: int
    retry_at_s: float | None


class Cleaner:
    """Starts its threads with `start`. `now_s` is the clock for waiting."""

    def __init__(
        self,
        logs: LogManager,
        *,
        threads: int,
        dedupe_buffer_bytes: int,
        io_max_bytes_per_second: int,
        backoff_ms: int,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._logs = logs
        self._buffer_bytes = dedupe_buffer_bytes // threads
        self._backoff_ms = backoff_ms
        self._now_s = now_s
        self._bucket = None if io_max_bytes_per_second <= 0 else TokenBucket(io_max_bytes_per_second, now_s())
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._wanted = 0
        self._busy: set[TopicPartition] = set()
        self._trouble: dict[TopicPartition, _Trouble] = {}
        self._threads = [threading.Thread(target=self._run, name=f"cleaner-{i}", daemon=True) for i in range(threads)]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the runs that are under way, at the next batch, and the threads. Blocks."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        deadline_s = time.monotonic() + STOP_TIMEOUT_S
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, deadline_s - time.monotonic()))
                if thread.is_alive():
                    log.warning("%s does not end, the disk hangs", thread.name)

    def run_soon(self) -> None:
        """Topics have been altered: looks again at once, also at logs that have failed."""
        with self._changed:
            self._trouble.clear()
            self._wanted += 1
            self._changed.notify_all()

    def run_once(self) -> CompactionResult | None:
        """Compacts the dirtiest log that is due; None if there is none, or if it failed (that is logged)."""
        due = self._take()
        if due is None:
            return None
        key = due.log.owner.topic_partition
        try:
            result = compact_log(due, OffsetMap(self._buffer_bytes), self._throttle)
        except _Stopped:
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
            self._succeeded(key, due, result)
            return result
        finally:
            with self._changed:
                self._busy.discard(key)

    # -- the threads

    def _run(self) -> None:
        while not self._stopping.is_set():
            seen = self._wanted
            try:
                if self.run_once() is not None:
                    continue
            except Exception:
                log.exception("looking for logs to compact failed")
            with self._changed:
                if self._wanted == seen and not self._stopping.is_set():
                    self._changed.wait(self._backoff_ms / 1000)

    def _take(self) -> Due | None:
        """The dirtiest log that is due, which nobody else compacts meanwhile."""
        with self._changed:
            logs = self._logs.logs
            self._trouble = {key: t for key, t in self._trouble.items() if logs.get(key) is t.log}
            found: dict[TopicPartition, Due] = {}
            for key, partition_log in logs.items():
                if key in self._busy or not self._may_try(key):
                    continue
                try:
                    due = due_for_compaction(partition_log)
                except SparklogError as e:
                    if not partition_log.is_closed:
                        self._failed(key, partition_log, e, counts=not e.retriable)
                    continue
                if due is not None:
                    found[key] = due
            order = dirtiest_first({key: due.section for key, due in found.items()})
            if not order:
                return None
            self._busy.add(order[0])
            return found[order[0]]

    def _may_try(self, key: TopicPartition) -> bool:
        trouble = self._trouble.get(key)
        if trouble is None:
            return True
        return trouble.retry_at_s is not None and self._now_s() >= trouble.retry_at_s

    def _failed(self, key: TopicPartition, partition_log: PartitionLog, error: Exception, *, counts: bool) -> None:
        with self._changed:
            before = self._trouble.get(key)
            failures = (before.failures if before is not None else 0) + (1 if counts else 0)
            wait_ms = retry_after_ms(max(1, failures), self._backoff_ms)
            retry_at_s = None if wait_ms is None else self._now_s() + wait_ms / 1000
            self._trouble[key] = _Trouble(partition_log, failures, retry_at_s)
        if wait_ms is None:
            log.error(
                "partition %s: compaction failed %d times, it is not tried again before a restart or a change of the "
                "topic's settings: %s",
                key, failures, error,
            )  # fmt: skip
        else:
            log.warning("partition %s: compaction failed, next attempt in %.0f s: %s", key, wait_ms / 1000, error)

    def _succeeded(self, key: TopicPartition, due: Due, result: CompactionResult) -> None:
        with self._changed:
            self._trouble.pop(key, None)
            if result.next_dirty_offset <= due.section.first_dirty_offset and not result.rows_removed:
                # nothing came of it: it must not be taken again at once
                self._trouble[key] = _Trouble(due.log, 0, self._now_s() + self._backoff_ms / 1000)

    def _throttle(self, size_bytes: int) -> None:
        if self._bucket is not None:
            with self._changed:
                wait_s = self._bucket.take(size_bytes, self._now_s())
            if wait_s:
                self._stopping.wait(wait_s)
        if self._stopping.is_set():
            raise _Stopped
