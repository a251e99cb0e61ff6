"""log-dirs.json in the data directory: all log directories that have been used, so that a missing one is noticed.

A disk that is not mounted leaves an empty directory behind, and an operator can leave a directory out of `log.dirs`.
The partitions of the missing directory must not begin empty in another directory.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from sparklog.environment.files import FileSystem, read_hint, read_whole
from sparklog.errors import SparklogError, StorageError
from sparklog.format.checkpoint import LOG_DIRS_FILE, RememberedLogDirs, decode, encode

logger = logging.getLogger(__name__)


def read_remembered_directories(files: FileSystem, data_dir: Path) -> list[Path]:
    """Return the paths of the log directories that the file in `data_dir` names; an empty list if the file is missing
    or cannot be read. Raises StorageError."""
    data = read_whole(files, data_dir / LOG_DIRS_FILE)
    stored = decode(data, RememberedLogDirs) if data is not None else None
    return [Path(path) for path in stored.directories.values()] if stored is not None else []


class RememberedDirectories:
    """Identities (`data_dir_id`) of log directories, and the last path of each."""

    def __init__(self, files: FileSystem, data_dir: Path) -> None:
        self._files = files
        self._path = data_dir / LOG_DIRS_FILE
        self._written: dict[str, str] = {}
        self._absent_directories: dict[str, str] = {}

    def compare(self, present: Mapping[str, Path]) -> None:
        """Read the file. Directories that the file names and `present` (path by identity) lacks count as absent from
        now on. Raises StorageError."""
        data = read_hint(self._files, self._path)
        stored = decode(data, RememberedLogDirs) if data is not None else None
        if data is not None and stored is None:
            logger.warning("%s cannot be read; missing log directories are not detected", self._path)
        self._written = dict(stored.directories) if stored is not None else {}
        self._absent_directories = {i: path for i, path in self._written.items() if i not in present}

    @property
    def has_absent(self) -> bool:
        """True if a log directory that was used before is missing."""
        return bool(self._absent_directories)

    @property
    def ids(self) -> frozenset[str]:
        """Ids of the directories in the file, present or absent."""
        return frozenset(self._written)

    def check_none_absent(self, name: str) -> None:
        """Raise StorageError if a log directory is absent: the missing partition directory `name` can be in it."""
        if not self._absent_directories:
            return
        away = ", ".join(f"{path} (data_dir_id {i})" for i, path in self._absent_directories.items())
        raise StorageError(
            f"{name} is in no log directory, and an earlier log directory is missing: {away}; mount its disk, or "
            "name the directory in log.dirs, and restart the broker. If the directory is lost for good, remove its "
            f"line from {self._path}, and create its partitions again: sparklog log repair names the steps for each"
        )

    def remember(self, present: Mapping[str, Path], *, is_complete: bool) -> None:
        """Write the present directories into the file. The absent directories stay in the file, unless every partition
        is in a present directory (`is_complete`). A failure to write is only logged."""
        remembered = {} if is_complete else dict(self._absent_directories)
        remembered |= {i: str(path) for i, path in present.items()}
        if remembered == self._written:
            return
        try:
            self._files.write_atomic(self._path, encode(RememberedLogDirs(remembered)))
        except SparklogError as e:
            logger.warning("%s could not be written and is written at the next start: %s", self._path, e)
        else:
            self._written = remembered
