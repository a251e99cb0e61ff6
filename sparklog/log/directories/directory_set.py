"""All log directories of a broker: their locks, their usability, and their content."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from sparklog.environment.files import File, FileSystem
from sparklog.errors import SparklogError, StorageError
from sparklog.log.directories.log_directory import DELETED_ENDING, LogDirectory, take_lock
from sparklog.log.model.watched_files import LOCK_FILE

logger = logging.getLogger(__name__)

_DATA_DIR_SETTING = "data.dir, --data-dir"


class DirectorySet:
    """All log directories of a broker. `all` has the failed directories too, in the order of the setting, and never
    changes. Any thread is allowed to read failures; only one thread at a time is allowed to change a directory."""

    def __init__(
        self,
        data_dir: Path,
        paths: list[Path],
        files: FileSystem,
        broker_id: int,
    ) -> None:
        """Create the log directories `paths` and `data_dir` if they do not exist, and lock each of them. `data_dir` has
        the metadata; it is a log directory only if `paths` names it.

        Raises DataDirLockedError, and StorageError if no log directory can be used, or if `data_dir` is not one of them
        and cannot be used.
        """
        self.data_dir = data_dir
        self.all: list[LogDirectory] = []
        self.on_failure: Callable[[], None] = lambda: None
        """Called when a log directory has failed, by the thread that notices the failure. It must not wait; it makes
        another thread take the directory's partitions offline."""
        self._files = files
        self._lock: File | None = None
        self._take_locks(paths, broker_id)

    def _take_locks(self, paths: list[Path], broker_id: int) -> None:
        setting = _DATA_DIR_SETTING if paths == [self.data_dir] else "log.dirs"
        try:
            if self.data_dir not in paths:
                self._lock = take_lock(self._files, self.data_dir, _DATA_DIR_SETTING)
            for path in paths:
                self.all.append(
                    LogDirectory(
                        path,
                        files=self._files,
                        broker_id=broker_id,
                        setting=setting,
                        on_failure=lambda _: self.on_failure(),
                    )
                )
            self.require_one()
        except SparklogError:
            self.unlock()
            raise

    def require_one(self) -> None:
        """Raise StorageError if no log directory can be used."""
        if self.live:
            return
        failures = [str(d.failure) for d in self.all]
        raise StorageError(failures[0] if len(failures) == 1 else f"all log directories have failed: {failures}")

    @property
    def live(self) -> list[LogDirectory]:
        """The log directories that have not failed."""
        return [d for d in self.all if d.failure is None]

    @property
    def failed(self) -> dict[Path, StorageError]:
        """The log directories that cannot be used, each with its error."""
        return {d.path: d.failure for d in self.all if d.failure is not None}

    def unlock(self) -> None:
        """Release the locks for other processes."""
        for directory in self.all:
            directory.unlock()
        if self._lock is not None:
            self._lock.close()

    def by_id(self) -> dict[str, Path]:
        """Return the paths of the usable log directories by their ids. Raises StorageError if two have the same id."""
        by_id: dict[str, Path] = {}
        for directory in self.live:
            other = by_id.setdefault(directory.data_dir_id, directory.path)
            if other != directory.path:
                raise StorageError(
                    f"{directory.path} is a copy of {other} (both have data_dir_id {directory.data_dir_id}); remove "
                    "one of them from log.dirs"
                )
        return by_id

    def with_partitions(self) -> dict[str, list[LogDirectory]]:
        """Return the usable log directories that have a partition directory of a name, by that name. Raises
        StorageError."""
        directories: dict[str, list[LogDirectory]] = {}
        for directory in self.live:
            try:
                for name in directory.entries():
                    if directory.files.is_directory(directory.path / name):
                        directories.setdefault(name, []).append(directory)
            except StorageError:
                if directory.failure is None:
                    raise
        return directories

    def without_deleted(
        self, places: Mapping[str, list[LogDirectory]], deleted: Collection[str]
    ) -> dict[str, list[LogDirectory]]:
        """Return `places` (from `with_partitions`) without the partition directories of the topics `deleted` (ids), and
        move these aside; a crash has left them. The file in the directory names its topic: by now, a new topic can
        have the same name. Raises StorageError."""
        kept: dict[str, list[LogDirectory]] = {}
        for name, directories in places.items():
            for directory in directories:
                owner = directory.owner_of(name)
                if owner is None or owner.topic_id not in deleted:
                    kept.setdefault(name, []).append(directory)
                else:
                    logger.info("%s belongs to a deleted topic and is removed", directory.path / name)
                    directory.move_aside(name, DELETED_ENDING)
        return kept

    def deleted_in_tier(self) -> list[tuple[FileSystem, Path]]:
        """Return the directories of deleted partitions that still have objects in the object store, each with its file
        system. Raises StorageError."""
        return [(d.files, path) for d in self.live for path in d.deleted_in_tier()]

    def in_each(self, job: Callable[[LogDirectory], int | None]) -> list[int]:
        """Call `job` for every usable directory, and return its results (0 for None). An error of a directory that has
        failed by then is ignored; of the remaining errors, the first is raised after all calls."""
        results, errors = [], []
        for directory in self.live:
            try:
                results.append(job(directory) or 0)
            except SparklogError as e:
                if directory.failure is None:
                    errors.append(e)
        if errors:
            raise errors[0]
        return results

    def look_at_data_dir(self) -> None:
        """Check that the data directory, which has the metadata, is still the locked one. Does nothing if it is a log
        directory, because `DirectoryHealth.look` checks each of these. Raises StorageError."""
        if self._lock is not None:
            self._files.check_in_place(self.data_dir / LOCK_FILE, self._lock.identity())

    @property
    def look_age_s(self) -> float:
        """Seconds since the last check of the usable log directory whose last check is the oldest; 0 without one."""
        return max((d.health.look_age_s for d in self.live), default=0.0)
