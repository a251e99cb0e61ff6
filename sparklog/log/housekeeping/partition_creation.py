"""The creation of partitions, each in the log directory with the fewest partitions."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from sparklog.errors import SparklogError, StorageError, StorageFullError
from sparklog.log.directories.directory_set import DirectorySet
from sparklog.log.directories.log_directory import LogDirectory, make_new_partitions
from sparklog.log.directories.placement import places_for_new
from sparklog.log.directories.strays import take_back_strays
from sparklog.log.housekeeping.checkpoints import Checkpoints
from sparklog.log.housekeeping.log_opener import LogOpener, PartitionSpec
from sparklog.log.housekeeping.log_table import LogTable
from sparklog.log.partition_log import PartitionLog

__all__ = ["PartitionCreation"]

logger = logging.getLogger(__name__)


class PartitionCreation:
    """The creation of partitions. Only one thread at a time is allowed to call it."""

    def __init__(self, table: LogTable, directories: DirectorySet, checkpoints: Checkpoints, opener: LogOpener) -> None:
        self._table = table
        self._directories = directories
        self._checkpoints = checkpoints
        self._opener = opener

    def create_partitions(self, specs: Iterable[PartitionSpec], *, take_back: bool = False) -> None:
        """Create the partitions like `create_partition`. Their directories are created together, which takes far fewer
        fsyncs; if that fails, one after the other. `take_back`: a partition whose directory was put aside gets this
        directory back.

        Raises StorageFullError, StorageError, LogCorruptError.
        """
        specs = [spec for spec in specs if self._table.find(spec.owner.topic_partition) is None]
        owners = [spec.owner for spec in specs]
        self._directories.in_each(self._checkpoints.forget_stale_points)
        if take_back:
            take_back_strays(self._directories.live, owners)
        places = make_new_partitions(self._directories.live, self._table.partition_counts(), owners)
        for spec in specs:
            directory = places.get(spec.owner.directory_name)
            if directory is None:
                self.create_partition(spec)
            else:
                others = [d for d in self._directories.live if d is not directory]
                self._create_in_one_of([directory, *others], spec)

    def create_partition(self, spec: PartitionSpec) -> PartitionLog:
        """Create an empty log in the log directory with the fewest partitions; if that fails, in the next. Returns the
        log that is open already, if there is one. A directory that an earlier attempt left is used. A directory of
        another topic of the same name is moved aside, not deleted.

        Raises StorageFullError, StorageError, LogCorruptError.
        """
        log = self._table.find(spec.owner.topic_partition)
        if log is not None:
            return log
        directories = self._table.by_partitions(self._directories.live)
        return self._create_in_one_of(places_for_new(spec.owner, directories), spec)

    def _create_in_one_of(self, directories: list[LogDirectory], spec: PartitionSpec) -> PartitionLog:
        tp = spec.owner.topic_partition
        error: SparklogError = StorageError("no log directory can be used")
        for directory in directories:
            try:
                log = self._create_in(directory, spec)
            except (StorageError, StorageFullError) as e:
                logger.warning("partition %s cannot be created in %s: %s", tp, directory.path, e)
                error = e
            else:
                self._table.add(tp, directory, log)
                return log
        raise type(error)(str(error)) from error

    def _create_in(self, directory: LogDirectory, spec: PartitionSpec) -> PartitionLog:
        """Create a partition in a log directory. After a failure, the partition's directory is removed, unless it has
        segments or the disk has failed."""
        path = directory.path / spec.owner.directory_name
        self._checkpoints.forget_stale_points(directory)
        try:
            return self._opener.create(spec, directory)
        except (StorageError, StorageFullError):
            if directory.failure is None and directory.files.exists(path) and not directory.has_segments(path.name):
                directory.files.remove_tree(path)
            raise
