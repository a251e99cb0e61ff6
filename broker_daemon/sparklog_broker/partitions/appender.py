"""Appends to partitions: small appends run on the event loop, large appends on the partitions' I/O threads.

Clients and both coordinators use the same appender, so that the appends to one partition keep the order of their
requests.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from sparklog.errors import (
    NotEnoughReplicasAfterAppendError,
    RequestTimedOutError,
    SparklogError,
    StorageError,
    StorageFullError,
)
from sparklog.log.directories.directory_set import DirectorySet
from sparklog.log.model.log_config import AppendInfo
from sparklog.log.partition_log import PartitionLog
from sparklog_broker.counters.requests import RequestTimes
from sparklog_broker.partitions.io_threads import IoThreads
from sparklog_broker.partitions.partition import Partition
from sparklog_broker.partitions.purgatory import Outcome, Purgatory

log = logging.getLogger(__name__)

INLINE_APPEND_BYTES = 256 * 1024
"""Appends below this size, in bytes, run on the event loop: passing them to a thread would cost more."""
INLINE_SEVERAL = 4
"""Divisor of INLINE_APPEND_BYTES for requests with several appends, because each append has a fixed cost."""
INLINE_SLOW_S = 0.05
"""Duration, in s, of an append on the loop that shows a busy disk. For INLINE_PAUSE_S, threads then append."""
INLINE_PAUSE_S = 1.0
INLINE_LOOK_AGE_S = 0.8
"""The loop appends only if every log directory was checked within this time, in s. Otherwise the append could have to
check its directory, which hangs on a dead mount.
"""

Outcomes = list[AppendInfo | Exception]


class Write(NamedTuple):
    """One append. `run` appends to the given log, on any thread. `size_bytes` is the estimated size, decompressed."""

    partition: Partition
    log: PartitionLog
    run: Callable[[PartitionLog], AppendInfo]
    size_bytes: int
    leader_epoch: int
    """The leader epoch when the request was checked."""


_Numbered = list[tuple[int, Write]]
"""(position in the outcomes, append) pairs."""


class Appender:
    """Runs all appends of the broker. Event-loop thread only."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, io: IoThreads, directories: DirectorySet, produces: Purgatory
    ) -> None:
        self._loop = loop
        self._io = io
        self._directories = directories
        self._produces = produces
        self._inline_after = 0.0

    async def append_each(
        self, writes: Sequence[Write], *, replicated_within_ms: int | None = None, times: RequestTimes | None = None
    ) -> Outcomes:
        """Run appends, small ones on the event loop (`may_append_inline`) and others on the partitions' threads. The
        failure of one append does not affect other appends.

        The effects of an append, such as a higher high watermark, happen even if the request has ended before.

        `replicated_within_ms`: time in ms in which each append must be below its partition's high watermark, else it
        fails. None to not wait for replicas. Returns the outcome of each append, in order."""
        if not writes:
            return []
        by_thread: dict[int, _Numbered] = {}
        for i, write in enumerate(writes):
            by_thread.setdefault(write.partition.thread, []).append((i, write))
        outcomes: Outcomes = [StorageError("not appended")] * len(writes)
        done = self._loop.create_future()
        remaining = len(by_thread)

        def deliver(group: _Numbered, results: Outcomes, _: Exception | None = None) -> None:
            nonlocal remaining
            remaining -= 1
            for (i, write), outcome in zip(group, results, strict=True):
                write.partition.appends_pending -= 1
                outcomes[i] = outcome
                _after_append(write.partition, outcome)
            if not remaining and not done.done():
                done.set_result(None)

        for thread, group in by_thread.items():
            size = sum(w.size_bytes for _, w in group)
            inline = self.may_append_inline((w.partition for _, w in group), size, alone=len(writes) == 1)
            for _, write in group:
                write.partition.appends_pending += 1
            if inline:
                started_at = self._loop.time()
                deliver(group, _run_each(group))
                self.note_inline_append(started_at)
            else:
                self._io.submit(thread, partial(_run_each, group), partial(deliver, group), partial(_sync, group))
        if remaining:
            await done
        if replicated_within_ms is not None:
            began_s = self._loop.time()
            try:
                await self._wait_for_replicas(writes, outcomes, replicated_within_ms)
            finally:
                if times is not None:
                    times.wait_s += self._loop.time() - began_s
        return outcomes

    async def _wait_for_replicas(self, writes: Sequence[Write], outcomes: Outcomes, timeout_ms: int) -> None:
        waiting = {
            i: (write, outcome.last_offset + 1)
            for i, (write, outcome) in enumerate(zip(writes, outcomes, strict=True))
            if isinstance(outcome, AppendInfo)
        }

        def replicated(_: Hashable | None) -> bool:
            for i, (write, end) in list(waiting.items()):
                partition = write.partition
                if partition.deleted:
                    del waiting[i]
                elif partition.error is not None or not partition.replicas.leads_in(write.leader_epoch):
                    # Neither the error itself nor NotLeaderError: these would mean that no record was written.
                    why = "the leader has changed" if partition.error is None else str(partition.error)
                    outcomes[i] = NotEnoughReplicasAfterAppendError(
                        f"partition {partition.key}: written in leader epoch {write.leader_epoch}, but not confirmed "
                        f"by all in-sync replicas: {why}; send it again"
                    )
                    del waiting[i]
                elif partition.log.high_watermark >= end:
                    del waiting[i]
            return not waiting

        if replicated(None):
            return
        keys = [write.partition.key for write, _ in waiting.values()]
        if await self._produces.wait(keys, replicated, timeout_ms / 1000) is not Outcome.SATISFIED:
            for i, (write, _) in waiting.items():
                outcomes[i] = RequestTimedOutError(
                    f"partition {write.partition.key}: written to the leader, but not replicated to all in-sync "
                    f"replicas within {timeout_ms} ms"
                )

    def may_append_inline(self, partitions: Iterable[Partition], size_bytes: int, *, alone: bool) -> bool:
        """True if the event loop is allowed to append: few bytes, a fast disk, and no earlier appends on the threads.
        `alone`: the request appends to no other partition.
        """
        return (
            size_bytes <= INLINE_APPEND_BYTES // (1 if alone else INLINE_SEVERAL)
            and self._loop.time() >= self._inline_after
            and self._directories.look_age_s < INLINE_LOOK_AGE_S
            and not any(p.appends_pending or p.waits_for_disk for p in partitions)
        )

    def note_inline_append(self, started_at: float) -> None:
        """Record the end of an append on the loop that began at `started_at`, in loop time."""
        now = self._loop.time()
        if now - started_at > INLINE_SLOW_S:
            self._inline_after = now + INLINE_PAUSE_S


def _run_each(group: _Numbered) -> Outcomes:
    """Run the appends of one thread. Callable on any thread."""
    return [_outcome(write) for _, write in group]


def _outcome(write: Write) -> AppendInfo | Exception:
    try:
        return write.run(write.log)
    except Exception as e:  # noqa: BLE001 - becomes the partition's outcome
        return e


def _sync(group: _Numbered, results: Outcomes) -> Outcomes:
    """Flush the partitions that acknowledge after an fsync. Runs on an I/O thread, after all appends that ran together,
    so that the first fsync of a log covers all of them. An append whose fsync fails counts as failed, although its
    bytes are perhaps on the disk.
    """
    for i, (_, write) in enumerate(group):
        outcome = results[i]
        if isinstance(outcome, AppendInfo) and write.log.config.flush.at_append:
            try:
                write.log.flusher.make_durable(outcome.last_offset + 1)
            except Exception as e:  # noqa: BLE001 - becomes the partition's outcome
                results[i] = e
    return results


def _after_append(partition: Partition, outcome: AppendInfo | Exception) -> None:
    if isinstance(outcome, AppendInfo):
        partition.storage_error = ""
        partition.traffic.records_in += outcome.record_count
        partition.traffic.bytes_in += outcome.size_bytes
        partition.on_appended(outcome)
    elif isinstance(outcome, StorageFullError | StorageError):
        # A full disk fails every append: logged once, until it has recovered.
        if not partition.storage_error:
            log.error("partition %s: %s", partition.key, outcome)
        partition.storage_error = str(outcome)
    elif not isinstance(outcome, SparklogError):
        log.error("partition %s: an append failed", partition.key, exc_info=outcome)
