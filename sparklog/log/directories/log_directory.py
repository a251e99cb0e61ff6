"""One log directory: its lock, its identity, its checkpoint, and the partition directories in it.

Each directory is independent (``.lock``, ``meta.json`` with a ``data_dir_id`` of its own, ``clean-shutdown``,
``recovery-points.json``), so directories can be on separate disks, and a failed one takes only its own partitions
offline. `sparklog.format.checkpoint` has the formats of the files and the cost of their loss.
"""

from __future__ import annotations

import contextlib
import logging
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from sparklog.environment.files import (
    MISPLACED_SUFFIX,
    TEMPORARY_SUFFIX,
    File,
    FileSystem,
    put_aside,
    read_hint,
    read_rebuildable,
    read_whole,
)
from sparklog.errors import DataDirLockedError, LogCorruptError, StorageError, StorageFullError
from sparklog.format.checkpoint import (
    CLEAN_SHUTDOWN_FILE,
    CLUSTER_IMAGE_FILE,
    LOG_DIRS_FILE,
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
from sparklog.format.epoch_checkpoint import FIRST_ENTRIES, LEADER_EPOCHS_FILE, decode_epochs, encode_epochs
from sparklog.format.segment import parse_segment_name
from sparklog.log.model.log_config import LogOwner
from sparklog.log.model.watched_files import LOCK_FILE, PROBE_FILE, DirectoryHealth, WatchedFiles
from sparklog.log.tiering.cache_directory import CACHE_DIRECTORY
from sparklog.log.tiering.journal import JOURNAL_FILE

logger = logging.getLogger(__name__)

DELETED_ENDING, STRAY_ENDING, REMOVED_ENDING = "delete", "stray", "removed"
DELETED = re.compile(r".+\.[0-9a-f]{32}-delete")
STRAY = re.compile(r".+\.[0-9a-f]{32}-stray")
REMOVED = re.compile(r".+\.[0-9a-f]{32}-removed")
"""Pattern of the directory names of removed replicas: other brokers have the partition now, and its objects in the
object store, which belong to these brokers, stay."""


def is_moved_aside(name: str) -> bool:
    """Return True if the name marks a directory that is no partition's any more: a deleted partition, a removed
    replica, a stray, or a misplaced directory."""
    return name.endswith(MISPLACED_SUFFIX) or any(kind.fullmatch(name) for kind in (DELETED, STRAY, REMOVED))


_NAME_CHARS_KEPT = 200
"""Length to which a directory's name is cut before an ending is added: file systems allow 255 bytes."""


def _shortened(name: str) -> str:
    """Return the part of a partition directory's name that stays when the directory is moved aside. A long name loses
    its middle, because the partition's number stands last."""
    half = _NAME_CHARS_KEPT // 2
    return name if len(name) <= _NAME_CHARS_KEPT else name[:half] + name[-half:]


def take_lock(files: FileSystem, directory: Path, setting: str) -> File:
    """Create the directory if it does not exist, and lock it. Raises DataDirLockedError, StorageError; their texts name
    `setting`, the setting that chooses the directory."""
    try:
        files.make_directory(directory)
        lock = files.lock(directory / LOCK_FILE)
        if lock is not None:
            files.check_in_place(directory / LOCK_FILE, lock.identity())  # replaced meanwhile?
    except StorageError as e:
        raise StorageError(
            f"data directory {directory} cannot be used: {e}; choose another one ({setting}) or let this user write "
            "to it"
        ) from e
    if lock is None:
        raise DataDirLockedError(
            f"data directory {directory} is in use by another broker; stop that broker or choose another directory "
            f"({setting})"
        )
    return lock


class LogDirectory:
    """A log directory, locked by this process. If the directory cannot be used, its `failure` is set from the start."""

    def __init__(
        self,
        path: Path,
        *,
        files: FileSystem,
        broker_id: int,
        setting: str,
        on_failure: Callable[[LogDirectory], None],
    ) -> None:
        """Create the directory if it does not exist, and lock it. Raises DataDirLockedError; any other error becomes
        `failure`. `on_failure` is called when the directory fails, by the thread that notices the failure."""
        self.path = path
        self.broker_id = broker_id
        self.health = DirectoryHealth(path, files, lambda: on_failure(self))
        self.files = WatchedFiles(files, self.health)
        """File system for everything in the directory."""
        self.points: dict[str, PartitionPoints] = {}
        """The checkpoint as read at the start, by names of partition directories. For a partition that was put aside
        since, its points at that moment."""
        self.has_stale_points = False
        """True if the checkpoint on the disk can still name removed replicas. A new replica of the same partition would
        inherit wrong points. So a new checkpoint is written before a replica is created. It is also written before the
        directories of removed replicas are unlinked, because until then their names record the removal."""
        self._clean: CleanShutdown | None = None
        self._taken_back: set[str] = set()
        self._meta: DataDirMeta | None = None
        self._lock: File | None = None
        self.same_boot = False
        """True if the machine has not restarted since a broker last wrote here: no written data can have been lost."""
        try:
            self._lock = take_lock(files, path, setting)
            self.health.hold(self._lock)
            now = files.boot_id().encode()
            self.same_boot = bool(now) and self._lock.read(0, len(now) + 1) == now
        except StorageError as e:
            self.health.fail(e)

    def __repr__(self) -> str:
        return f"<LogDirectory {self.path}{' failed' if self.failure else ''}>"

    @property
    def failure(self) -> StorageError | None:
        """Reason why the directory cannot be used (any more)."""
        return self.health.failure

    @property
    def data_dir_id(self) -> str:
        """Identity of the directory's content, from meta.json. Raises StorageError before `load`."""
        if self._meta is None:
            raise StorageError(f"{self.path} is not loaded yet")
        return self._meta.data_dir_id

    @property
    def started_clean(self) -> bool:
        """True if the last broker in this directory stopped cleanly."""
        return self._clean is not None

    def is_clean(self, name: str) -> bool:
        """True if the last stop closed the log in the partition directory `name` cleanly."""
        return self._clean is not None and name not in self._clean.unclean and not self.was_put_aside(name)

    def was_put_aside(self, name: str) -> bool:
        """True if the partition directory `name` was put aside and taken back since: no clean stop covers it."""
        return name in self._taken_back

    # --- start ---

    def load(self, cluster_id: str) -> None:
        """Check that the directory belongs to this broker and to `cluster_id`, and read its checkpoint. A new directory
        gets its meta.json. Raises StorageError, StorageFullError; `failure` is set too if the disk has failed."""
        for name in self.files.list_directory(self.path):
            path, target = self.path / name, name.removesuffix(TEMPORARY_SUFFIX)
            if name in _OWN_FILES or target not in (*_OWN_FILES, PROBE_FILE):
                continue
            if self.files.is_directory(path):
                put_aside(self.files, path, f"{path} is a directory instead of a file")
            else:
                self.files.remove(path)  # a crash left it
        self._meta = self._load_meta(cluster_id)
        mark = read_hint(self.files, self.path / CLEAN_SHUTDOWN_FILE)
        if mark is not None:
            self._clean = decode(mark, CleanShutdown)
            self.files.remove(self.path / CLEAN_SHUTDOWN_FILE)  # a crash while loading counts as unclean
            self.files.sync_directory(self.path)
        self._load_points()

    def _load_meta(self, cluster_id: str) -> DataDirMeta:
        path = self.path / META_FILE
        data = read_whole(self.files, path)
        if data is None:
            meta = DataDirMeta(uuid.uuid4().hex, cluster_id, self.broker_id)
            self.files.write_atomic(path, encode(meta))
            return meta
        stored = decode(data, DataDirMeta)
        if stored is None:
            raise StorageError(
                f"{path} cannot be read; restore it from a copy, or remove it: the broker creates a new one"
            )
        if stored.format != 1:
            raise StorageError(f"{path} has format {stored.format}, this version reads format 1; use a newer sparklog")
        if (stored.cluster_id, stored.broker_id) != (cluster_id, self.broker_id):
            raise StorageError(
                f"{self.path} belongs to broker {stored.broker_id} of cluster {stored.cluster_id}, but this broker is "
                f"{self.broker_id} of cluster {cluster_id}; use the right directory or broker.id"
            )
        return stored

    def _load_points(self) -> None:
        path = self.path / RECOVERY_POINTS_FILE
        data = read_hint(self.files, path)
        points = decode(data, RecoveryPoints) if data is not None else None
        if points is not None:
            self.points = dict(points.partitions)
        elif data is not None:
            logger.warning("%s cannot be read; the offsets come from the logs", path)
        names = set(self.files.list_directory(self.path))
        self._follow_moved(names)
        self._follow_taken_back(names)
        if self.has_stale_points:
            try:
                self.write_points(self.points)
                self.has_stale_points = False
            except StorageFullError as e:
                logger.warning("%s: the removal of replicas is not recorded yet: %s", self.path, e)

    def _follow_moved(self, names: set[str]) -> None:
        """Correct the points of replicas that were moved shortly before a crash. The points of a replica that was put
        aside move to its new name; the points of a removed replica are forgotten.
        """
        for moved in sorted(n for n in names if REMOVED.fullmatch(n) or STRAY.fullmatch(n)):
            owner = self.owner_of(moved)
            name = "" if owner is None else f"{owner.topic}-{owner.partition}"
            points = self.points.get(name)
            is_of_it = owner is not None and points is not None and points.topic_id == owner.topic_id
            if points is not None and is_of_it and name not in names:
                del self.points[name]
                if STRAY.fullmatch(moved):
                    self.points.setdefault(moved, points)
                self.has_stale_points = True

    def _follow_taken_back(self, names: set[str]) -> None:
        """Restore the points of strays that were taken back shortly before a crash: the checkpoint still has the points
        under the stray's name."""
        for stray in [n for n in self.points if STRAY.fullmatch(n) and n not in names]:
            points, kept = self.points.pop(stray), stray.rpartition(".")[0]
            for name in names - self.points.keys():
                owner = self.owner_of(name) if _shortened(name) == kept else None
                if owner is not None and owner.topic_id == points.topic_id:
                    self.points[name] = points
            self.has_stale_points = True

    # --- partition directories ---

    def entries(self) -> list[str]:
        """Return the names of all entries except the directory's own files and what `is_moved_aside`: the possible
        partition directories."""
        return [
            name for name in self.files.list_directory(self.path) if not is_moved_aside(name) and name not in _OWN_FILES
        ]

    def owner_of(self, name: str) -> PartitionMeta | None:
        """Return the partition in the directory `name`; None if it has no readable owner."""
        data = read_rebuildable(self.files, self.path / name / PARTITION_FILE)
        return decode(data, PartitionMeta) if data is not None else None

    def newest_epoch_of(self, name: str) -> int:
        """Read the leader epoch of the newest records in the directory `name`; -1 if unknown."""
        data = read_rebuildable(self.files, self.path / name / LEADER_EPOCHS_FILE)
        entries = decode_epochs(data) if data is not None else None
        return entries[-1].epoch if entries else -1

    def strays(self) -> dict[tuple[str, int], str]:
        """Return the names of partition directories that were put aside, by topic id and partition. If a partition has
        several, the one with the newest records counts."""
        strays: dict[tuple[str, int], tuple[bool, int, str]] = {}
        for name in filter(STRAY.fullmatch, self.files.list_directory(self.path)):
            owner = self.owner_of(name)
            if owner is not None:
                key = owner.topic_id, owner.partition
                rank = self.has_segments(name), self.newest_epoch_of(name), name
                strays[key] = max(strays.get(key, rank), rank)
        return {key: name for key, (_, _, name) in strays.items()}

    def count_strays(self) -> int:
        """Return the number of partition directories that were put aside."""
        return sum(bool(STRAY.fullmatch(name)) for name in self.files.list_directory(self.path))

    def take_back(self, owner: LogOwner, stray: str) -> None:
        """Rename the directory `stray`, which was put aside, back to the name of `owner`, and restore its points.
        Raises StorageError."""
        self._taken_back.add(owner.directory_name)
        self.files.rename(self.path / stray, self.path / owner.directory_name)
        self.files.sync_directory(self.path)
        points = self.points.pop(stray, None)
        if points is not None:
            self.points[owner.directory_name] = points
        logger.info("%s was put aside as %s and is restored", self.path / owner.directory_name, stray)

    def make_partitions(self, owners: Iterable[LogOwner]) -> None:
        """Create the directories of new partitions, durable on return. After a failure, all these directories are
        removed, as far as the disk permits. Raises StorageFullError, StorageError."""
        epochs = encode_epochs(FIRST_ENTRIES)
        paths = {
            self.path / owner.directory_name: {
                PARTITION_FILE: encode(PartitionMeta(owner.topic, owner.topic_id, owner.partition)),
                LEADER_EPOCHS_FILE: epochs,
            }
            for owner in owners
        }
        try:
            self.files.make_directories(paths)
        except (StorageError, StorageFullError):
            for path in paths:
                if self.failure is None and self.files.exists(path):
                    self.files.remove_tree(path)
            raise

    def has_segments(self, name: str) -> bool:
        return any(parse_segment_name(n) is not None for n in self.files.list_directory(self.path / name))

    def points_of(self, owner: LogOwner) -> PartitionPoints | None:
        """Return the partition's points from `points`; None if there are none, or only those of an earlier topic of the
        same name."""
        points = self.points.get(owner.directory_name)
        return points if points is not None and points.topic_id == owner.topic_id else None

    def move_aside(self, name: str, ending: str) -> Path:
        """Rename the partition directory `name` so that it is not loaded, and return its new path. `ending` is
        DELETED_ENDING, STRAY_ENDING or REMOVED_ENDING. The points of a stray are kept for `take_back`. Raises
        StorageError."""
        target = self.path / f"{_shortened(name)}.{uuid.uuid4().hex}-{ending}"
        self.files.rename(self.path / name, target)
        self.files.sync_directory(self.path)
        points = self.points.pop(name, None)
        if points is not None and ending == STRAY_ENDING:
            self.points[target.name] = points
        self.has_stale_points |= ending != DELETED_ENDING  # another topic of that name has another id
        return target

    def purge_deleted(self) -> int:
        """Unlink the directories of deleted partitions and removed replicas, and return their number. The directory of
        a deleted partition that has objects in the store stays, with only its journal, and does not count. Raises
        StorageError."""
        in_tier = self.deleted_in_tier()
        for path in in_tier:
            for name in self.files.list_directory(path):
                if name != JOURNAL_FILE:
                    self.files.remove(path / name)
        paths = [path for path in self._deleted_directories() if path not in in_tier]
        paths += [self.path / n for n in self.files.list_directory(self.path) if REMOVED.fullmatch(n)]
        for path in paths:
            self.files.remove_tree(path)
        return len(paths)

    def deleted_in_tier(self) -> list[Path]:
        """Return the directories of deleted partitions with a journal, which lists their objects in the object store.
        Raises StorageError."""
        return [path for path in self._deleted_directories() if self.files.exists(path / JOURNAL_FILE)]

    def _deleted_directories(self) -> list[Path]:
        return [self.path / n for n in self.files.list_directory(self.path) if DELETED.fullmatch(n)]

    # --- checkpoints, and stop ---

    def write_points(self, points: dict[str, PartitionPoints]) -> None:
        """Write the recovery points. Raises StorageFullError, StorageError."""
        self.files.write_atomic(self.path / RECOVERY_POINTS_FILE, encode(RecoveryPoints(points)))

    def note_boot(self) -> None:
        """Write the machine's boot id into the lock file, from which the next start gets `same_boot`. The caller first
        writes a checkpoint of the state found at the start: an older checkpoint can rely on data that a power cut has
        taken. Raises StorageFullError, StorageError."""
        now = self.files.boot_id().encode()
        if self._lock is not None and now and not self.same_boot:
            self._lock.truncate(0)
            self._lock.write(0, now)

    def forget_boot(self) -> None:
        """Remove the boot id from the lock file: the disk has failed and can have lost accepted data, so the next start
        must not rely on these data. Errors are ignored."""
        if self._lock is not None:
            with contextlib.suppress(StorageError):
                self._lock.truncate(0)

    def write_clean_mark(self, unclean: Iterable[str]) -> None:
        """Write the mark of a clean stop, which does not cover the partition directories `unclean`. Raises
        StorageFullError, StorageError."""
        mark = CleanShutdown(self.broker_id, sorted(unclean))
        self.files.write_atomic(self.path / CLEAN_SHUTDOWN_FILE, encode(mark))

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()


_OWN_FILES = frozenset(
    {
        LOCK_FILE,
        META_FILE,
        RECOVERY_POINTS_FILE,
        CLEAN_SHUTDOWN_FILE,
        LOG_DIRS_FILE,
        CLUSTER_IMAGE_FILE,
        CACHE_DIRECTORY,
    }
)


def make_new_partitions(
    directories: list[LogDirectory], counts: Counter[Path], owners: Iterable[LogOwner]
) -> dict[str, LogDirectory]:
    """Create the directories of new partitions together, each in the log directory with the fewest partitions
    (`counts`, which this call updates). Returns the chosen log directories by directory name. Left out are partitions
    that have a directory already, and partitions whose log directory fails.
    """
    chosen: dict[LogDirectory, list[LogOwner]] = {}
    places: dict[str, LogDirectory] = {}
    try:
        for owner in owners:
            if not any(d.files.exists(d.path / owner.directory_name) for d in directories):
                directory = min(directories, key=lambda d: counts[d.path])
                counts[directory.path] += 1
                chosen.setdefault(directory, []).append(owner)
    except StorageError as e:
        logger.warning("%s", e)
        return places
    for directory, its_owners in chosen.items():
        try:
            directory.make_partitions(its_owners)
        except (StorageError, StorageFullError) as e:
            logger.warning("%d partitions cannot be created in %s: %s", len(its_owners), directory.path, e)
        else:
            places |= {owner.directory_name: directory for owner in its_owners}
    return places


def directory_with_data(owner: LogOwner, candidates: list[LogDirectory]) -> LogDirectory:
    """Return the log directory that holds the partition, if several `candidates` have a directory of its name; the
    first one if none holds it. Raises StorageError, and LogCorruptError if several hold it: an operator has to
    decide."""
    name = owner.directory_name
    owners = {d.path: d.owner_of(name) for d in candidates}
    ours = [d for d in candidates if (o := owners[d.path]) is not None and o.topic_id == owner.topic_id]
    if len(ours) > 1:
        ours = [d for d in ours if d.has_segments(name)] or [d for d in ours if d.points_of(owner)] or ours[:1]
    if len(ours) > 1:
        places = " and ".join(str(d.path / name) for d in ours)
        raise LogCorruptError(f"{owner.topic_partition} is in two log directories: {places}; move one of them away")
    chosen = ours[0] if ours else candidates[0]
    for directory in candidates:
        if directory is not chosen:
            logger.warning("%s is not used: %s holds the partition", directory.path / name, chosen.path / name)
    return chosen
