"""SQLite databases, passed in: SQLite opens files by itself, so a simulated disk needs a door of its own."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Protocol

from sparklog.environment.files import FILE_MODE_DEFAULT, storage_error

BUSY_TIMEOUT_S = 5.0


class Databases(Protocol):
    """Opens databases."""

    def open(self, path: Path) -> sqlite3.Connection:
        """A connection that any thread may use, one at a time; transactions are begun and ended by their statements,
        and durable when COMMIT returns (with PRAGMA synchronous = FULL). Raises sqlite3.Error, StorageError."""
        ...


class SqliteDatabases:
    """Real files."""

    def __init__(self, file_mode: int = FILE_MODE_DEFAULT) -> None:
        self._file_mode = file_mode

    def open(self, path: Path) -> sqlite3.Connection:
        try:  # SQLite would let everybody read it
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, self._file_mode))
        except OSError as e:
            raise storage_error("open", path, e) from e
        return sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
