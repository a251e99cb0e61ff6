"""The DuckDB connection of a session: without access to network, extensions, and files outside of allowed directories.

No statement can change that, because the settings are locked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparklog.errors import InvalidConfigError
from sparklog.query.names import literal
from sparklog.settings import MIB

if TYPE_CHECKING:
    import duckdb

EXTRA = "pip install 'sparklog[sql]'"
MEMORY_LIMIT_BYTES = 1024 * MIB
MEMORY_LIMIT_BYTES_MIN, MEMORY_LIMIT_BYTES_MAX = 16 * MIB, 2**40
THREADS_MAX = 1_024


def require_duckdb() -> Any:
    """Return the module duckdb. Raises InvalidConfigError with the install command if duckdb is missing."""
    try:
        import duckdb
    except ImportError as e:
        raise InvalidConfigError(f"SQL needs the library duckdb: {EXTRA}") from e
    return duckdb


def locked_connection(
    module: Any, memory_limit_bytes: int, threads: int | None, allow_files: Sequence[str] = ()
) -> duckdb.DuckDBPyConnection:
    """Return a connection with access to no files except those below `allow_files`, and with locked settings."""
    config: dict[str, Any] = {
        "enable_external_access": bool(allow_files),
        "python_enable_replacements": False,
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        "allow_persistent_secrets": False,
        "temp_directory": "",
        "memory_limit": f"{memory_limit_bytes // 1024}KiB",
    }
    if threads is not None:
        config["threads"] = threads
    connection: duckdb.DuckDBPyConnection = module.connect(":memory:", config=config)
    connection.execute("SET enable_progress_bar = false")
    connection.execute("SET TimeZone = 'UTC'")
    if allow_files:
        listed = ", ".join(literal(f"{_directory(path)}/") for path in allow_files)
        connection.execute(f"SET allowed_directories = [{listed}]")
        connection.execute("SET enable_external_access = false")
    connection.execute("SET lock_configuration = true")
    return connection


def _directory(path: str) -> Path:
    try:
        directory = Path(path).resolve()
        is_present = directory.is_dir()
    except (ValueError, OSError):  # a null byte, a name that is too long
        is_present = False
    if not is_present:
        raise InvalidConfigError(f"allow_files = {path!r}: use an existing directory")
    return directory
