"""Strays: partition directories that are put aside because they belong to no topic of the metadata."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from sparklog.log.directories.log_directory import STRAY_ENDING, LogDirectory
from sparklog.log.model.log_config import LogOwner

__all__ = ["put_others_aside", "take_back_strays"]

logger = logging.getLogger(__name__)


def put_others_aside(places: dict[str, list[LogDirectory]], owners: Iterable[LogOwner]) -> None:
    """Put the partition directories aside that have the name of one of `owners` and belong to another topic, and remove
    them from `places` (from `DirectorySet.with_partitions`). Raises StorageError."""
    for owner in owners:
        name = owner.directory_name
        for directory in list(places.get(name, ())):
            if directory.is_clean(name) and directory.points_of(owner) is not None:
                continue  # the checkpoint of the stop knows it, and saves reading a file of each partition
            present = directory.owner_of(name)
            if present is not None and present.topic_id != owner.topic_id:
                logger.warning(
                    "%s belongs to another topic (id %s) and is put aside", directory.path / name, present.topic_id
                )
                directory.move_aside(name, STRAY_ENDING)
                places[name].remove(directory)
        if name in places and not places[name]:
            del places[name]


def take_back_strays(directories: Iterable[LogDirectory], owners: Iterable[LogOwner]) -> dict[str, LogDirectory]:
    """Rename strays back to their names, if they belong to `owners`. Returns the log directories of the restored
    partition directories, by these names. Raises StorageError."""
    strays = [(directory, directory.strays()) for directory in directories]
    restored: dict[str, LogDirectory] = {}
    if not any(its for _, its in strays):
        return restored
    for owner in owners:
        key = owner.topic_id, owner.partition
        place = next(((directory, its[key]) for directory, its in strays if key in its), None)
        if place is not None:
            place[0].take_back(owner, place[1])
            restored[owner.directory_name] = place[0]
    return restored
