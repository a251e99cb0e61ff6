"""Checks of the log directories. The partitions of a failed directory go offline; the broker stops only when the last
directory fails.

The caller of a failing read, write or fsync detects the failure. After the removal, replacement or unmounting of a
directory no call fails (open files stay writable, and are lost), so each directory is also checked periodically. Each
check runs on a separate thread, because it can hang at a dead mount; then appends wait
(`sparklog.log.model.watched_files`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

from sparklog.environment import Environment
from sparklog.errors import StorageError
from sparklog.log.housekeeping.directory_failures import DirectoryFailure
from sparklog_broker.background.periodic import Periodic, Rounds
from sparklog_broker.partitions.partitions import Partitions
from sparklog_broker.partitions.storage import Storage

log = logging.getLogger(__name__)

POLL_INTERVAL_S = 0.4
"""Interval of the checks, in s. It is well below `LOOK_AGE_S_MAX`, so that appends need no check themselves."""
RETRY_S = 1.0
_NAMED_MAX = 20


class DirectoryWatch:
    """The checks of all log directories. Event-loop thread only."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, environment: Environment, storage: Storage, partitions: Partitions
    ) -> None:
        self._logs = logs = storage.logs
        self._loop = loop
        self._storage = storage
        self._partitions = partitions
        self._on_all_failed: Callable[[str], None] = lambda _: None
        self._on_offline: Callable[[], None] = lambda: None
        self._settling = Periodic("taking failed log directories offline", loop, self._settle, lambda: RETRY_S)
        self._lookers = [
            Rounds(
                name,
                loop,
                environment.executors.daemon(name),
                partial(self._look, path),
                pause_s=lambda: POLL_INTERVAL_S,
            )
            for path in [directory.path for directory in logs.directories.all]
            for name in [f"look-{path.name}"]
        ]

    def start(self, on_all_failed: Callable[[str], None], on_offline: Callable[[], None] = lambda: None) -> None:
        """Start the checks. `on_all_failed` is called with the reason when the last usable log directory has failed,
        `on_offline` after partitions have gone offline.
        """
        self._on_all_failed, self._on_offline = on_all_failed, on_offline
        self._logs.directories.on_failure = self._wake_up
        self._settling.start()
        for looker in self._lookers:
            looker.start()

    def _wake_up(self) -> None:
        """Handle new failures soon. Callable on any thread."""
        self._loop.call_soon_threadsafe(self._settling.run_soon)

    def _look(self, path: Path) -> bool:
        """Check a log directory, on its thread. The thread of the first log directory also checks the data directory.
        Returns False."""
        try:
            self._logs.failures.look(path)
            if path == self._logs.directories.all[0].path:
                self._logs.directories.look_at_data_dir()
        except StorageError as e:
            if not e.retriable:
                reason = f"the data directory has failed: {e}; the broker stops"
                self._loop.call_soon_threadsafe(self._on_all_failed, reason)
        return False

    async def stop(self) -> None:
        """Stop the checks. The thread of a hanging check is not waited for."""
        self._logs.directories.on_failure = lambda: None
        for looker in self._lookers:
            await looker.stop(0.0)
        await self._settling.stop()

    async def _settle(self) -> None:
        if self._logs.failures.has_unsettled:
            self._report(await self._storage.run(self._logs.failures.settle))

    def _report(self, failures: list[DirectoryFailure]) -> None:
        for failure in failures:
            names = ", ".join(map(str, failure.partitions[:_NAMED_MAX]))
            more = f" and {len(failure.partitions) - _NAMED_MAX} more" if len(failure.partitions) > _NAMED_MAX else ""
            log.error("offline with %s: %s%s", failure.path, names or "no partition", more)
            for tp in failure.partitions:
                partition = self._partitions.find(tp)
                if partition is not None:
                    partition.take_offline(failure.error)
        if failures:
            self._on_offline()
        failed = self._logs.directories.failed
        if failures and len(failed) == len(self._logs.directories.all):
            self._on_all_failed(
                f"all log directories have failed: {'; '.join(map(str, failed.values()))}; the broker stops"
            )
