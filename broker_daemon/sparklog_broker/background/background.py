"""All background work of the broker: flushes, retention, compaction, tiering, and checks of its disks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sparklog.environment import Environment
from sparklog_broker.background.cleaner import Cleaner
from sparklog_broker.background.directory_watch import DirectoryWatch
from sparklog_broker.background.flushing import Flushing
from sparklog_broker.background.retention import Retention
from sparklog_broker.background.tierer import Tierer
from sparklog_broker.config import BrokerConfig
from sparklog_broker.partitions.partitions import Partitions
from sparklog_broker.partitions.storage import Storage


class Background:
    """The background work, from `start` on. Event-loop thread only."""

    def __init__(
        self,
        config: BrokerConfig,
        loop: asyncio.AbstractEventLoop,
        environment: Environment,
        storage: Storage,
        partitions: Partitions,
    ) -> None:
        self._thread = environment.executors.pool("flush", 1)
        """Runs flushes and retention, so that no segment is removed during a flush."""
        self.flushing = Flushing(config, loop, self._thread, storage, partitions)
        self.retention = Retention(config, loop, self._thread, storage.logs, partitions)
        self.cleaner = Cleaner(config, loop, environment, storage.logs.table, partitions.all_have_committed)
        self.tierer = Tierer(config, loop, environment, storage.logs, storage.remote.store, partitions.leading_epoch)
        self._watch = DirectoryWatch(loop, environment, storage, partitions)

    def start(self, on_all_disks_failed: Callable[[str], None], on_offline: Callable[[], None]) -> None:
        """Start all parts. `on_all_disks_failed` gets the reason when the last usable log directory has failed.
        `on_offline` is called after partitions have gone offline because their disk failed."""
        self._watch.start(on_all_disks_failed, on_offline)
        self.flushing.start()
        self.retention.start()
        self.cleaner.start()
        self.tierer.start()

    async def stop(self) -> None:
        """Stop all parts. Compactions and tiering in progress are stopped; other work on threads is left to end."""
        for part in (self._watch, self.retention, self.cleaner, self.tierer, self.flushing):
            await part.stop()

    def close(self) -> None:
        """Wait for the flush or retention run in progress. Blocks."""
        self._thread.shutdown()
