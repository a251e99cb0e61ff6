"""The thread that copies sealed segments to the object store, and deletes expired segments there. The rules are in
`sparklog.log.tiering`.

A partition whose round fails is retried at the next interval; other partitions continue. The directory of a deleted
partition is kept until all its objects are deleted from the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sparklog.environment import Environment
from sparklog.errors import SparklogError
from sparklog.log.housekeeping.log_manager import LogManager
from sparklog.log.housekeeping.tier_run import Role, TierResult, delete_all, tier_log
from sparklog.log.partition_log import PartitionLog
from sparklog.log.tiering.object_store import ObjectStore
from sparklog.types import TopicPartition
from sparklog_broker.background.periodic import Rounds
from sparklog_broker.config import BrokerConfig
from sparklog_broker.counters.background import TierCounters

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 30.0
T = TypeVar("T")


class _StopRequested(BaseException):  # not an Exception, which handlers would take for a failing store
    """Ends a round in progress, because the broker stops."""


class Tierer:
    """The tiering thread, from `start` on. Without a store it does nothing."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        environment: Environment,
        logs: LogManager,
        store: ObjectStore | None,
        leading: Callable[[TopicPartition], int],
    ) -> None:
        """`leading`: returns the leader epoch in which this broker leads a partition; -1 if it does not."""
        self._leading = leading
        self._looked: dict[TopicPartition, int] = {}
        """By partition: the leader epoch of this broker at the last round; -1 as a follower. In the first round of a
        new epoch, the store is checked for copies by other leaders."""
        self._logs = logs
        self._store = store
        self._clock = environment.clock
        self._stopping = threading.Event()
        self._failing: dict[object, str] = {}
        self._rounds: Rounds | None = None
        self.counters = TierCounters()
        """Changed by the thread."""
        if store is not None:
            thread = environment.executors.daemon("tierer")
            pause_s = config.remote_log_manager_task_interval_ms / 1000
            self._rounds = Rounds("tiering", loop, thread, self._round, pause_s=lambda: pause_s)

    def start(self) -> None:
        if self._rounds is not None:
            self._rounds.start()
            return
        needed = [str(tp) for tp, partition_log in self._logs.table.logs.items() if partition_log.tier.state.copies]
        needed += [path.name for _, path in self._logs.directories.deleted_in_tier()]
        if needed:
            log.warning(
                "%s: have segments in an object store, but remote.log.storage.url is not set", ", ".join(needed)
            )

    async def stop(self) -> None:
        """Stop the round in progress at its next piece. The next start deletes incomplete copies."""
        self._stopping.set()
        if self._rounds is not None and not await self._rounds.stop(STOP_TIMEOUT_S):
            log.warning("the tierer thread does not stop: a call to the object store hangs")

    def run_soon(self) -> None:
        """End the present pause, because there is work."""
        if self._rounds is not None:
            self._rounds.run_soon()

    def run_once(self) -> dict[TopicPartition, TierResult]:
        """Run one round over all partitions with tiering, and over the objects of deleted partitions. Failures are
        logged. Returns the results of the partitions that did not fail."""
        store, done = self._store, {}
        if store is None:
            return {}
        for key, partition_log in self._logs.table.logs.items():
            if partition_log.config.tiering.enabled or partition_log.tier.state.copies:
                result = self._try(key, partition_log, lambda p=partition_log: self._tier(p, store))  # type: ignore[misc]
                if result is not None:
                    done[key] = result
                    self.counters.copied += result.copied
                    self.counters.released += result.released
                    self.counters.deleted += result.deleted
        for files, directory in self._logs.directories.deleted_in_tier():
            self._try(directory, None, lambda f=files, d=directory: delete_all(f, d, store, self._check_stop))  # type: ignore[misc]
        return done

    def _tier(self, partition_log: PartitionLog, store: ObjectStore) -> TierResult:
        key = partition_log.owner.topic_partition
        epoch = self._leading(key)
        is_new = self._looked.get(key) != epoch
        role = Role.FOLLOWER if epoch < 0 else Role.NEW_LEADER if is_new else Role.LEADER
        result = tier_log(partition_log, store, self._clock, role, self._check_stop)
        self._looked[key] = epoch
        return result

    def _try(
        self, subject: TopicPartition | Path, partition_log: PartitionLog | None, job: Callable[[], T]
    ) -> T | None:
        try:
            result = job()
        except SparklogError as e:
            if partition_log is None or not partition_log.is_closed:
                if self._failing.get(subject) != type(e).__name__:  # log it once, not at every interval
                    log.error("%s: tiering failed and will be retried: %s", subject, e)  # noqa: TRY400
                self._failing[subject] = type(e).__name__
                self.counters.failures += 1
                self.counters.failing = len(self._failing)
            return None
        if self._failing.pop(subject, None) is not None:
            log.info("%s: tiering goes on", subject)
            self.counters.failing = len(self._failing)
        return result

    def _round(self) -> bool:
        """Run one round, on the thread."""
        with contextlib.suppress(_StopRequested):
            self.run_once()
            self.counters.rounds += 1
        return False

    def _check_stop(self) -> None:
        if self._stopping.is_set():
            raise _StopRequested
