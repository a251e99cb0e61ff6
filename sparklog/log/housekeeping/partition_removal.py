"""The removal of partitions: of deleted topics, and of replicas that other brokers have now."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sparklog.errors import SparklogError
from sparklog.format.checkpoint import PartitionMeta
from sparklog.log.directories.directory_set import DirectorySet
from sparklog.log.directories.log_directory import DELETED_ENDING, REMOVED_ENDING, LogDirectory
from sparklog.log.housekeeping.checkpoints import Checkpoints, points_of
from sparklog.log.housekeeping.log_table import LogTable
from sparklog.log.model.log_config import LogOwner
from sparklog.types import TopicPartition

__all__ = ["PartitionRemoval"]


class PartitionRemoval:
    """The removal of partitions in two steps: partition directories are moved aside first, and `purge` unlinks their
    files. Only one thread at a time is allowed to call it."""

    def __init__(self, table: LogTable, directories: DirectorySet, checkpoints: Checkpoints) -> None:
        self._table = table
        self._directories = directories
        self._checkpoints = checkpoints

    def delete_partition(self, tp: TopicPartition) -> None:
        """Close the partition's log and move its directory aside; the next `purge` unlinks the files. An unknown
        partition is ignored. Files in a failed log directory stay; when the disk returns, they belong to no topic.
        Raises StorageError.
        """
        log, _ = self._table.remove(tp)
        if log is not None:
            log.mark_deleted()
        for directory in self._directories.live:
            if directory.files.exists(directory.path / str(tp)):
                directory.move_aside(str(tp), DELETED_ENDING)
            directory.points.pop(str(tp), None)

    def remove_replica(self, owner: LogOwner, error: SparklogError, ending: str = REMOVED_ENDING) -> None:
        """Remove a partition that other brokers have now; users of its log get `error`. Its objects in the object store
        stay, because they belong to those brokers. The next `purge` unlinks its files, unless `ending` is STRAY_ENDING,
        which puts them aside. An unknown partition is ignored. Raises StorageError."""
        log, place = self._table.remove(owner.topic_partition)
        if log is not None:
            if place is not None:
                place.points[owner.directory_name] = points_of(log)
            log.mark_deleted(error)
        self.remove_replicas(
            lambda candidate, _: candidate.topic_id == owner.topic_id, [owner.topic_partition], ending=ending
        )

    def remove_replicas(
        self,
        is_elsewhere: Callable[[PartitionMeta, int], bool],
        partitions: Sequence[TopicPartition] | None = None,
        *,
        ending: str = REMOVED_ENDING,
    ) -> int:
        """Move aside the partition directories for which `is_elsewhere` returns True, and return their number. Only
        those of `partitions` count (None: all), and none whose partition has a log here, open or offline.
        `is_elsewhere` gets the owner and the leader epoch of the newest records (-1: unknown). `purge` unlinks the
        directories, unless `ending` is STRAY_ENDING. Raises StorageError."""
        table = self._table
        chosen = None if partitions is None else {str(tp) for tp in partitions if not table.has(tp)}
        open_here = {str(tp) for tp in [*table.logs, *table.offline]} if partitions is None else set()
        count = 0
        for directory in self._directories.live:
            for name in directory.entries() if chosen is None else chosen:
                if name in open_here or not directory.files.exists(directory.path / name):
                    continue
                owner = directory.owner_of(name)
                if owner is not None and is_elsewhere(owner, directory.newest_epoch_of(name)):
                    directory.move_aside(name, ending)
                    count += 1
        return count

    def purge(self) -> int:
        """Unlink the files of deleted partitions and removed replicas, and return the number of directories. Raises
        StorageFullError, StorageError."""
        self._directories.in_each(self._checkpoints.forget_stale_points)
        return sum(self._directories.in_each(LogDirectory.purge_deleted))
