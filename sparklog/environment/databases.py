"""SQLite databases as a parameter: SQLite opens files by itself, so a simulated disk has to provide databases, too."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sparklog.environment.files import OddFileError, odd_file, open_regular, storage_error

if TYPE_CHECKING:
    import sqlite3

BUSY_TIMEOUT_S = 5.0
PRIVATE_MODE = 0o600
BESIDE = ("-journal", "-wal", "-shm")
"""Endings of the files that SQLite keeps beside a database. These files contain parts of its data."""


class Databases(Protocol):
    """The databases of a machine."""

    def open(self, path: Path) -> sqlite3.Connection:
        """Open or create a database.

        Any thread may use the connection, but only one at a time. Transactions begin and end with SQL statements, and
        are durable when COMMIT returns (with PRAGMA synchronous = FULL). Raises sqlite3.Error, StorageError.
        """
        ...


class SqliteDatabases:
    """Databases in real files. Only the files' owner can read them, whatever the mode of other files, because they
    contain users' credentials."""

    def open(self, path: Path) -> sqlite3.Connection:
        try:  # SQLite would make it readable for everybody; files that SQLite adds get the file's mode
            os.close(open_regular(path, os.O_RDWR | os.O_CREAT, PRIVATE_MODE))
            for one in (path, *(path.with_name(path.name + ending) for ending in BESIDE)):
                if reason := odd_file(one):
                    raise OddFileError(reason)
                _make_private(one)
        except OSError as e:
            raise storage_error("open", path, e) from e
        import sqlite3  # clients use files, not databases, and need not load SQLite

        return sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)


def _make_private(path: Path) -> None:
    """Remove the permissions of group and others from a file, as a person may have set them.
    Raises OSError."""
    with contextlib.suppress(FileNotFoundError, PermissionError):  # another user's file keeps its owner's mode
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & ~PRIVATE_MODE:
            path.chmod(mode & PRIVATE_MODE)
