"""Failures of log directories: checks that notice them, and their partitions, which go offline."""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from sparklog.errors import StorageError
from sparklog.log.directories.directory_set import DirectorySet
from sparklog.log.housekeeping.log_table import LogTable
from sparklog.types import TopicPartition

__all__ = ["DirectoryFailure", "DirectoryFailures"]


class DirectoryFailure(Struct, frozen=True):
    """A log directory that has failed, its error, and the partitions that are offline because of the failure."""

    path: Path
    error: StorageError
    partitions: tuple[TopicPartition, ...]


class DirectoryFailures:
    """The failures of log directories. `DirectorySet.on_failure` is called for each new failure."""

    def __init__(self, table: LogTable, directories: DirectorySet) -> None:
        self._table = table
        self._directories = directories
        self._settled: set[Path] = set()
        """Failed directories whose partitions have been taken offline."""

    def look(self, path: Path) -> None:
        """Check that the log directory `path`, and each of its files that was appended to since the last call, is in
        place. If it is gone or was replaced, the log directory fails: writes to the open files would succeed and be
        lost. Any thread can call this, but only one thread at a time for a directory."""
        directory = next(d for d in self._directories.all if d.path == path)
        if directory.failure is not None or not directory.health.look():
            return
        logs = self._table.logs.items()
        # Nearly all logs are idle, and this runs every 0.4 s.
        for log in [log for tp, log in logs if log.flusher.is_ahead and self._table.is_in(tp, directory)]:
            try:
                log.flusher.look()
            except StorageError:
                if directory not in self._directories.live:  # the reason is there
                    return

    @property
    def has_unsettled(self) -> bool:
        """True if `settle` has work to do."""
        return any(d.failure is not None and d.path not in self._settled for d in self._directories.all)

    def settle(self) -> list[DirectoryFailure]:
        """Take the partitions of the log directories that have failed since the last call offline, and return these
        failures. Only one thread at a time is allowed to call it, and none that changes partitions meanwhile."""
        settled = []
        for directory in self._directories.all:
            error = directory.failure
            if error is None or directory.path in self._settled:
                continue
            self._settled.add(directory.path)
            directory.forget_boot()
            lost = tuple(self._table.partitions_in([directory.path]))
            for tp in lost:
                log = self._table.take_offline(tp, error)
                if log is not None:
                    log.take_offline(error)
            settled.append(DirectoryFailure(directory.path, error, lost))
        return settled
