"""SQLite databases, passed in: SQLite opens files by itself, so a simulated disk needs a door of its own."""

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
"""Endings of the files that SQLite keeps beside a database; they have parts of its content."""


class Databases(Protocol):
    """Opens databases."""

    def open(self, path: Path) -> sqlite3.Connection:
        """Return a connection that any thread may use, one at a time; transactions are begun and ended by their
        statements, and durable when COMMIT returns (with PRAGMA synchronous = FULL). Raises sqlite3.Error,
        StorageError."""
        ...


class SqliteDatabases:
    """Real files. Only their owner can read them, regardless of the mode of other files: they contain users'
    credentials."""

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
    """Restrict a file that an earlier release, or a person, has made readable. Raises OSError."""
    with contextlib.suppress(FileNotFoundError, PermissionError):  # another user's file keeps its owner's mode
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & ~PRIVATE_MODE:
            path.chmod(mode & PRIVATE_MODE)
