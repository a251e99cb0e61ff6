"""All partitions' logs of one data directory: its lock, its identity, start, checkpoints, and stop.

Order of a start: `LogManager(...)` takes the lock, the metadata store is opened, `load` opens the partitions it names.
"""

from __future__ import annotations

import logging
import re
import threading
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sparklog.errors import DataDirLockedError, SparklogError, StorageError, UnknownTopicOrPartitionError
from sparklog.format.checkpoint import (
    CLEAN_SHUTDOWN_FILE,
    META_FILE,
    PARTITION_FILE,
    RECOVERY_POINTS_FILE,
    CleanShutdown,
    DataDirMeta,
    PartitionMeta,
    PartitionPoints,
    RecoveryPoints,
    decode,
    encode,
)
from sparklog.log.clock import Clock, SystemClock
from sparklog.log.files import File, FileSystem, RealFiles, read_whole
from sparklog.log.model import LogConfig, LogOwner
from sparklog.log.partition_log import PartitionLog
from sparklog.log.recovery import SchemaOf
from sparklog.types import TopicPartition

__all__ = ["LogManager", "PartitionSpec"]

logger = logging.getLogger(__name__)

LOCK_FILE = ".lock"
_DELETED = re.compile(r".+\.[0-9a-f]{32}-delete")
_STRAY = re.compile(r".+\.[0-9a-f]{32}-stray")
_NAME_CHARS_KEPT = 200
"""Of a directory's name when an ending is added: file systems allow 255 bytes."""


@dataclass(frozen=True)
class PartitionSpec:
    """A partition that should have a log here. `schema_of` gives the topic's schema for an id (KeyError: unknown)."""

    owner: LogOwner
    config: LogConfig
    schema_of: SchemaOf


class LogManager:
    """The logs of a data directory. Methods that change something may be called by one thread at a time."""

    def __init__(
        self, data_dir: Path, *, files: FileSystem | None = None, clock: Clock | None = None, broker_id: int = 0
    ) -> None:
        """Makes the directory if needed and locks it. Raises DataDirLockedError, StorageError."""
        self.data_dir = data_dir.absolute()
        self.broker_id = broker_id
        self._files = files or RealFiles()
        self._clock = clock or SystemClock()
        self._meta: DataDirMeta | None = None
        self._logs: dict[TopicPartition, PartitionLog] = {}
        self._offline: dict[TopicPartition, SparklogError] = {}
        self._points: dict[str, PartitionPoints] = {}
        self._checkpoint_lock = threading.Lock()
        self._clean: CleanShutdown | None = None
        self._loaded = False
        self._lock_file = self._take_lock()

    def _take_lock(self) -> File:
        try:
            self._files.make_directory(self.data_dir)
            lock = self._files.lock(self.data_dir / LOCK_FILE)
        except StorageError as e:
            raise StorageError(
                f"data directory {self.data_dir} cannot be used: {e}; choose another one (data.dir, --data-dir) or let "
                f"this user write to it"
            ) from e
        if lock is None:
            raise DataDirLockedError(
                f"data directory {self.data_dir} is in use by another broker; stop that broker or choose another "
                f"directory (data.dir, --data-dir)"
            )
        return lock

    # --- start ---

    def load(self, cluster_id: str, specs: Iterable[PartitionSpec]) -> None:
        """Opens the logs of `specs`; one that cannot be opened goes offline with its error, the others go on.

        Raises StorageError when the directory is another broker's or cluster's, or cannot be written to.
        """
        self._meta = self._load_meta(cluster_id)
        mark = read_whole(self._files, self.data_dir / CLEAN_SHUTDOWN_FILE)
        if mark is not None:
            self._clean = decode(mark, CleanShutdown)
            self._files.remove(self.data_dir / CLEAN_SHUTDOWN_FILE)  # a crash while loading counts as unclean
            self._files.sync_directory(self.data_dir)
        self._load_points()
        known = set()
        for spec in specs:
            known.add(spec.owner.directory_name)
            self._open(spec, clean=self._clean is not None and spec.owner.directory_name not in self._clean.unclean)
        for name in self._files.list_directory(self.data_dir):
            unknown = name not in known and not _DELETED.fullmatch(name) and not _STRAY.fullmatch(name)
            if unknown and self._files.is_directory(self.data_dir / name):
                logger.warning("%s belongs to no topic, it is left alone", self.data_dir / name)
        self._loaded = True

    def _load_meta(self, cluster_id: str) -> DataDirMeta:
        path = self.data_dir / META_FILE
        data = read_whole(self._files, path)
        if data is None:
            meta = DataDirMeta(uuid.uuid4().hex, cluster_id, self.broker_id)
            self._files.write_atomic(path, encode(meta))
            return meta
        found = decode(data, DataDirMeta)
        if found is None:
            raise StorageError(f"{path} cannot be read; restore it from a copy")
        if found.format != 1:
            raise StorageError(f"{path} has format {found.format}, this version reads format 1; use a newer sparklog")
        if (found.cluster_id, found.broker_id) != (cluster_id, self.broker_id):
            raise StorageError(
                f"{self.data_dir} belongs to broker {found.broker_id} of cluster {found.cluster_id}, this is broker "
                f"{self.broker_id} of cluster {cluster_id}; use the right directory or broker.id"
            )
        return found

    def _load_points(self) -> None:
        path = self.data_dir / RECOVERY_POINTS_FILE
        data = read_whole(self._files, path)
        points = decode(data, RecoveryPoints) if data is not None else None
        if points is not None:
            self._points = dict(points.partitions)
        elif data is not None:
            logger.warning("%s cannot be read; offsets are taken from the logs", path)

    def _open(self, spec: PartitionSpec, *, clean: bool) -> None:
        tp = spec.owner.topic_partition
        points = self._points.get(spec.owner.directory_name)
        if points is None or points.topic_id != spec.owner.topic_id:
            points = PartitionPoints(spec.owner.topic_id, 0, 0, 0)
        try:
            self._logs[tp] = PartitionLog.open(
                self.data_dir / spec.owner.directory_name,
                spec.owner,
                spec.config,
                spec.schema_of,
                files=self._files,
                clock=self._clock,
                clean=clean,
                log_start_offset=points.log_start_offset,
                high_watermark=points.high_watermark,
                recovery_point=points.recovery_point,
            )
        except SparklogError as e:
            logger.error("partition %s is offline: %s", tp, e)  # noqa: TRY400  (its message says it all)
            self._offline[tp] = e

    # --- what there is ---

    @property
    def data_dir_id(self) -> str:
        """Identity of the directory's content, as in meta.json. Known after `load`."""
        if self._meta is None:
            raise StorageError(f"{self.data_dir} is not loaded yet")
        return self._meta.data_dir_id

    @property
    def started_clean(self) -> bool:
        """Whether the last stop was a clean one."""
        return self._clean is not None

    @property
    def logs(self) -> dict[TopicPartition, PartitionLog]:
        """The logs that are open (a copy)."""
        return dict(self._logs)

    @property
    def offline(self) -> dict[TopicPartition, SparklogError]:
        """The partitions that could not be opened, with the reason (a copy)."""
        return dict(self._offline)

    def get(self, tp: TopicPartition) -> PartitionLog:
        """The partition's log. Raises UnknownTopicOrPartitionError, or why the partition is offline."""
        log = self._logs.get(tp)
        if log is None:
            offline = self._offline.get(tp)
            if offline is not None:
                raise type(offline)(str(offline))
            raise UnknownTopicOrPartitionError(f"no partition {tp} here")
        return log

    # --- topics ---

    def create_partition(self, spec: PartitionSpec) -> PartitionLog:
        """Makes an empty log. A directory of that name left over from another topic is moved aside, not deleted.

        Raises StorageFullError, StorageError, LogCorruptError.
        """
        tp, directory = spec.owner.topic_partition, self.data_dir / spec.owner.directory_name
        if tp in self._logs:
            return self._logs[tp]
        data = read_whole(self._files, directory / PARTITION_FILE)
        found = decode(data, PartitionMeta) if data is not None else None
        if self._files.exists(directory) and (found is None or found.topic_id != spec.owner.topic_id):
            aside = self._with_ending(directory.name, "stray")
            logger.warning("%s belongs to no topic, it is moved to %s", directory, aside)
            self._files.rename(directory, aside)
        log = PartitionLog.open(
            directory,
            spec.owner,
            spec.config,
            spec.schema_of,
            files=self._files,
            clock=self._clock,
            clean=True,
        )
        self._files.sync_directory(self.data_dir)
        self._logs[tp] = log
        return log

    def delete_partition(self, tp: TopicPartition) -> None:
        """Takes a partition away at once; its files go with the next `purge_deleted`. An unknown one is fine."""
        log = self._logs.pop(tp, None)
        self._offline.pop(tp, None)
        if log is not None:
            log.mark_deleted()
        directory = self.data_dir / str(tp)
        if self._files.exists(directory):
            self._files.rename(directory, self._with_ending(directory.name, "delete"))
            self._files.sync_directory(self.data_dir)
        self._points.pop(str(tp), None)

    def _with_ending(self, name: str, ending: str) -> Path:
        return self.data_dir / f"{name[:_NAME_CHARS_KEPT]}.{uuid.uuid4().hex}-{ending}"

    def purge_deleted(self) -> int:
        """Unlinks the files of deleted partitions; returns how many there were. Raises StorageError."""
        names = [n for n in self._files.list_directory(self.data_dir) if _DELETED.fullmatch(n)]
        for name in names:
            self._files.remove_tree(self.data_dir / name)
        return len(names)

    # --- while running, and stop ---

    def flush(self) -> None:
        """Fsyncs rolled segments of all logs. A log whose disk fails is logged and takes no more appends."""
        for tp, log in list(self._logs.items()):
            try:
                log.flush()
            except SparklogError as e:
                logger.error("partition %s cannot be flushed: %s", tp, e)  # noqa: TRY400

    def checkpoint(self) -> None:
        """Writes recovery-points.json. Raises StorageFullError, StorageError."""
        with self._checkpoint_lock:
            points = {n: self._points[n] for n in map(str, self._offline) if n in self._points}  # stays known
            for tp, log in list(self._logs.items()):
                points[str(tp)] = PartitionPoints(
                    log.owner.topic_id, log.log_start_offset, log.recovery_point, log.high_watermark
                )
            self._files.write_atomic(self.data_dir / RECOVERY_POINTS_FILE, encode(RecoveryPoints(points)))

    def close(self) -> bool:
        """Seals and fsyncs all logs, writes the checkpoint and the clean-shutdown mark, and unlocks the directory.

        Returns whether all went well; what did not is logged, and the next start scans it. Before `load` has
        succeeded it only unlocks.
        """
        unclean = [str(tp) for tp in self._offline]
        try:
            for tp, log in self._logs.items():
                try:
                    log.close()
                except SparklogError as e:
                    logger.error("partition %s is not closed cleanly: %s", tp, e)  # noqa: TRY400
                    unclean.append(str(tp))
            if self._loaded:
                self.checkpoint()
                mark = CleanShutdown(self.broker_id, sorted(unclean))
                self._files.write_atomic(self.data_dir / CLEAN_SHUTDOWN_FILE, encode(mark))
        except SparklogError as e:
            logger.error("%s is not closed cleanly: %s", self.data_dir, e)  # noqa: TRY400
            return False
        finally:
            self._lock_file.close()
        return not unclean
