"""Locations of tables: directories on this host, and addresses of object stores."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from sparklog.errors import InvalidConfigError

_ADDRESS_START = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""Matches an address that lacks a slash, such as `s3:/bucket`, which would otherwise count as a directory."""
_DIRECTORY_WRONG = frozenset("%\\")
"""Characters that delta-rs decodes or replaces in a directory's path, so that it would look for another directory."""


def normal_location(location: str) -> str:
    """Return a location in the form that all processes understand. `location`: a directory, or an address with `s3://`,
    `gs://`, `az://`, `abfss://` or `file://`. The result: an absolute path of a directory, also for `file://`; or the
    address without slashes at its end. Raises InvalidConfigError."""
    scheme, separator, rest = location.partition("://")
    if location != location.strip() or (not rest if separator else not location or _ADDRESS_START.match(location)):
        raise InvalidConfigError(
            f"lake.location = {location!r}: use a directory, or s3://BUCKET/PATH, gs://… or az://…"
        )
    if not separator or scheme == "file":
        if separator and not rest.startswith("/"):
            raise InvalidConfigError(f"lake.location = {location!r}: use file:///PATH, with three slashes")
        try:
            path = str(Path(unquote(rest) if separator else location).expanduser().absolute())
        except RuntimeError as e:
            raise InvalidConfigError(f"lake.location = {location!r}: {e}") from e
        if path == "/":
            raise InvalidConfigError(f"lake.location = {location!r}: use a directory below the root")
        if not path.isprintable() or set(path) & _DIRECTORY_WRONG:
            raise InvalidConfigError(
                f"lake.location = {location!r}: delta-rs cannot read a directory with %, \\ or a control character in "
                "its path; choose another name"
            )
        return path
    if scheme not in ("s3", "s3a", "gs", "az", "abfs", "abfss"):
        raise InvalidConfigError(f"lake.location = {location!r}: use a directory, s3://, gs:// or az://")
    return location.rstrip("/")


def locations_above(location: str) -> list[str]:
    """Return the locations that contain a location, the nearest first: without the root directory and without the
    bucket."""
    scheme, separator, rest = location.rpartition("://")
    parts = rest.strip("/").split("/")
    start = scheme + separator or "/"
    return [start + "/".join(parts[:count]) for count in range(len(parts) - 1, 1 if separator else 0, -1)]


def is_local(location: str) -> bool:
    """Return True if the location is a directory on this host."""
    return "://" not in location


def file_system(location: str) -> Any:
    """Return an Arrow file system whose root is the location."""
    from pyarrow.fs import LocalFileSystem, PyFileSystem, SubTreeFileSystem

    if is_local(location):
        return SubTreeFileSystem(location, LocalFileSystem())
    from deltalake.fs import DeltaStorageHandler

    return PyFileSystem(DeltaStorageHandler(location))


def file_fsync(location: str) -> Callable[[str], None]:
    """Return a function that makes a file below the location durable, with its directory entries. In an object store a
    file is durable when it is closed."""
    if not is_local(location):
        return lambda _: None

    def fsync(path: str) -> None:
        places, place = [path], path
        while place:
            place = os.path.dirname(place)  # noqa: PTH120 - directories of partition values may be new
            places.append(place)
        for below in places:
            place = os.path.join(location, below)  # noqa: PTH118 - joined for every file
            descriptor = os.open(place, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    return fsync
