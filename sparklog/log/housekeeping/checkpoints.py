"""The files from which the next start of a broker opens the logs: checkpoints, boot ids, and marks of a clean stop."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from pathlib import Path

from sparklog.errors import SparklogError, StorageFullError
from sparklog.format.checkpoint import PartitionPoints
from sparklog.log.directories.broker_epoch import note_losses
from sparklog.log.directories.directory_set import DirectorySet
from sparklog.log.directories.log_directory import LogDirectory
from sparklog.log.housekeeping.log_table import LogTable
from sparklog.log.partition_log import PartitionLog
from sparklog.types import TopicPartition

__all__ = ["Checkpoints", "points_of"]

logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of all log directories. Any thread is allowed to write one."""

    def __init__(self, table: LogTable, directories: DirectorySet) -> None:
        self._table = table
        self._directories = directories
        self._lock = threading.Lock()
        self._without_mark: set[Path] = set()
        """Directories without room to note that data of earlier lives can be lost; they get no mark of a clean stop."""

    def write(self) -> None:
        """Write recovery-points.json in every usable log directory. Raises StorageFullError, StorageError, after every
        directory was tried."""
        with self._lock:
            self._directories.in_each(self._write)

    def forget_stale_points(self, directory: LogDirectory) -> None:
        """Write the directory's checkpoint if it can name removed replicas. Raises StorageFullError, StorageError."""
        if directory.has_stale_points:
            with self._lock:
                self._write(directory)

    def note_boots(self) -> None:
        """Store the machine's boot id in each directory after a restart of the machine: first the losses that the
        restart can have caused, and a checkpoint of the loaded state. Raises StorageError."""
        self._directories.in_each(self._note_boot)

    def write_clean_marks(self, unclean: Collection[TopicPartition]) -> None:
        """Write the marks of a clean stop, which do not cover the partitions `unclean`. Raises StorageFullError,
        StorageError, after every directory was tried."""
        self._directories.in_each(lambda directory: self._write_clean_mark(directory, unclean))

    def _note_boot(self, directory: LogDirectory) -> None:
        if directory.same_boot:
            return
        self._without_mark.add(directory.path)
        try:
            note_losses(directory)
            self._without_mark.remove(directory.path)
            with self._lock:
                self._write(directory)
            directory.note_boot()
        except StorageFullError as e:
            logger.warning("%s: the time of the machine's start could not be stored: %s", directory.path, e)

    def _write_clean_mark(self, directory: LogDirectory, unclean: Collection[TopicPartition]) -> None:
        if directory.path not in self._without_mark:
            directory.write_clean_mark(str(tp) for tp in unclean if self._table.may_be_in(tp, directory))

    def _write(self, directory: LogDirectory) -> None:
        is_stale, directory.has_stale_points = directory.has_stale_points, False  # a later removal sets it again
        try:
            self._write_points(directory)
        except SparklogError:
            directory.has_stale_points |= is_stale
            raise

    def _write_points(self, directory: LogDirectory) -> None:
        logs = self._table.logs_in(directory)
        counts = [log.truncation.count for _, log in logs]
        points = self._points(directory)
        directory.write_points(points)
        for (tp, log), count in zip(logs, counts, strict=True):
            if not log.is_closed and str(tp) in points:
                log.truncation.forget(count)
                log.retention.note_checkpoint(points[str(tp)].log_start_offset)

    def _points(self, directory: LogDirectory) -> dict[str, PartitionPoints]:
        """Return the points of the directory's partitions for the checkpoint. A partition without an open log (offline,
        put aside, or of a topic that the metadata do not name now) keeps its points of the last checkpoint."""
        logs = {str(tp): points_of(log) for tp, log in self._table.logs_in(directory)}
        offline = set(map(str, self._table.offline))
        rest = {n: p for n, p in directory.points.copy().items() if n not in logs}
        return {n: p for n, p in rest.items() if n in offline or directory.files.exists(directory.path / n)} | logs


def points_of(log: PartitionLog) -> PartitionPoints:
    """Return the present points of an open log."""
    return PartitionPoints(log.owner.topic_id, log.log_start_offset, log.recovery_point, log.high_watermark)
