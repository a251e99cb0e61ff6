"""The metadata stores that the behaviour suites are run with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sparklog.metadata.sqlite_store import SqliteStore
from sparklog.metadata.store import MetadataStore

STORES: dict[str, Callable[[Path], MetadataStore]] = {
    "sqlite": lambda directory: SqliteStore(directory / "metadata.db"),
}
