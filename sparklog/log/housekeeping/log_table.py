"""The partitions of a broker: the open logs, the offline partitions, and the log directory of each partition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from pathlib import Path

from sparklog.errors import SparklogError, UnknownTopicOrPartitionError
from sparklog.log.directories.log_directory import LogDirectory
from sparklog.log.partition_log import PartitionLog
from sparklog.types import TopicPartition

__all__ = ["LogTable"]


class LogTable:
    """The partitions of a broker. Any thread is allowed to read; only one thread at a time is allowed to change."""

    def __init__(self) -> None:
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._offline: dict[TopicPartition, SparklogError] = {}
        self._place: dict[TopicPartition, LogDirectory] = {}

    # --- reading ---

    @property
    def logs(self) -> dict[TopicPartition, PartitionLog]:
        """The logs that are open (a copy)."""
        return self._logs.copy()

    @property
    def offline(self) -> dict[TopicPartition, SparklogError]:
        """The partitions that could not be opened, or whose directory has failed, with the reason (a copy)."""
        return self._offline.copy()

    def get(self, tp: TopicPartition) -> PartitionLog:
        """Return the partition's log. Raises UnknownTopicOrPartitionError, or the error that took the partition
        offline."""
        log = self._logs.get(tp)
        if log is None:
            offline = self._offline.get(tp)
            if offline is not None:
                raise type(offline)(str(offline))
            raise UnknownTopicOrPartitionError(f"no partition {tp} here")
        return log

    def has(self, tp: TopicPartition) -> bool:
        """Return True for a partition with a log, open or offline."""
        return tp in self._logs or tp in self._offline

    def find(self, tp: TopicPartition) -> PartitionLog | None:
        """Return the partition's log; None if it is not open."""
        return self._logs.get(tp)

    def error_of(self, tp: TopicPartition) -> SparklogError | None:
        """Return the reason why the partition is offline; None if it is not."""
        return self._offline.get(tp)

    def location_of(self, tp: TopicPartition) -> tuple[Path, str]:
        """Return the log directory the partition is in, and that directory's id. Raises
        UnknownTopicOrPartitionError."""
        directory = self._place.get(tp)
        if directory is None:
            raise UnknownTopicOrPartitionError(f"no partition {tp} here")
        return directory.path, directory.data_dir_id

    def partitions_in(self, paths: Collection[Path]) -> list[TopicPartition]:
        """Return the partitions that are in one of the log directories `paths`, open or offline."""
        return [tp for tp, directory in self._place.copy().items() if directory.path in paths]

    def logs_in(self, directory: LogDirectory) -> list[tuple[TopicPartition, PartitionLog]]:
        """Return the open logs in a log directory."""
        return [(tp, log) for tp, log in self._logs.copy().items() if self.is_in(tp, directory)]

    def is_in(self, tp: TopicPartition, directory: LogDirectory) -> bool:
        """Return True if the partition is in the log directory."""
        return self._place.get(tp) is directory

    def may_be_in(self, tp: TopicPartition, directory: LogDirectory) -> bool:
        """Return True if the partition is in the log directory, or in no known one."""
        return self._place.get(tp) in (directory, None)

    def partition_counts(self) -> Counter[Path]:
        """Return the number of partitions, open or offline, in each log directory."""
        return Counter(directory.path for directory in self._place.values())

    def by_partitions(self, directories: Iterable[LogDirectory]) -> list[LogDirectory]:
        """Return `directories` sorted by their numbers of partitions; those with equal numbers keep their order."""
        counts = self.partition_counts()
        return sorted(directories, key=lambda directory: counts[directory.path])

    # --- changes ---

    def place(self, tp: TopicPartition, directory: LogDirectory) -> None:
        """Record the log directory of a partition whose log is not open yet."""
        self._place[tp] = directory

    def add(self, tp: TopicPartition, directory: LogDirectory, log: PartitionLog) -> None:
        """Add an open log; the partition is no longer offline."""
        self._place[tp], self._logs[tp] = directory, log
        self._offline.pop(tp, None)

    def take_offline(self, tp: TopicPartition, error: SparklogError) -> PartitionLog | None:
        """Take a partition offline, and return its log if it was open. The partition keeps its log directory."""
        log = self._logs.pop(tp, None)
        self._offline[tp] = error
        return log

    def remove(self, tp: TopicPartition) -> tuple[PartitionLog | None, LogDirectory | None]:
        """Remove a partition, and return its log if it was open, and its log directory if it had one."""
        log = self._logs.pop(tp, None)
        self._offline.pop(tp, None)
        return log, self._place.pop(tp, None)
