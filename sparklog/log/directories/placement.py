"""The log directory of a partition, and the possible directories of a new one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from sparklog.errors import LogCorruptError, StorageError
from sparklog.log.directories.log_directory import STRAY_ENDING, LogDirectory, directory_with_data
from sparklog.log.directories.remembered import RememberedDirectories
from sparklog.log.model.log_config import LogOwner

logger = logging.getLogger(__name__)


def place_of_registered(
    owner: LogOwner,
    candidates: list[LogDirectory],
    directories: Sequence[LogDirectory],
    registered: RememberedDirectories,
    usable: Callable[[], list[LogDirectory]],
    *,
    was_created: bool,
) -> LogDirectory:
    """Return the log directory that holds a partition of the metadata store. A partition whose directory was never
    created (`was_created` is False) gets a place. `candidates`: the log directories with a directory of its name.
    `usable` returns the usable ones of `directories`, the best place for a new partition first.

    Raises LogCorruptError if the partition is in several log directories, or in none although `was_created` is True.
    Raises StorageError if it can be in a log directory that has failed or is absent.
    """
    name = owner.directory_name
    if len(candidates) > 1:
        return directory_with_data(owner, candidates)
    if candidates:
        return candidates[0]
    places = [d for d in directories if d.failure is None and d.points_of(owner) is not None]
    if places and not was_created:
        return places[0]
    for directory in directories:
        if directory.failure is not None:
            raise StorageError(f"{name} is in no log directory that can be used: {directory.failure}")
    registered.check_none_absent(name)
    if was_created:
        path = (places or usable())[0].path / name
        raise LogCorruptError(
            f"the directory {name} of the topic is missing from all log directories; restore it from a "
            f"copy and restart the broker, or, if its records are lost for good, create it empty: sparklog log repair"
            f" {path}"
        )
    return usable()[0]


def places_for_new(owner: LogOwner, directories: list[LogDirectory]) -> list[LogDirectory]:
    """Return the possible places of a new partition, the best first. This is the log directory in which an earlier
    attempt began, if there is one, else all of `directories`. A directory that belongs to another topic of the same
    name is moved aside, not deleted.

    Raises StorageError.
    """
    name = owner.directory_name
    for directory in directories:
        if directory.files.exists(directory.path / name):
            present = directory.owner_of(name)
            if present is not None and present.topic_id == owner.topic_id:
                directory.files.sync_directory(directory.path)  # the earlier attempt can have stopped before its fsync
                return [directory]
            aside = directory.move_aside(name, STRAY_ENDING)
            logger.warning("%s belongs to no topic, it was moved to %s", directory.path / name, aside)
    return directories
