"""Commits to a Delta table: each on exactly the version that was checked."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from msgspec.structs import replace

from sparklog.lake.delta_errors import commit_conflict
from sparklog.lake.log_entry import Entry, commit_entry, needs_own_commit
from sparklog.lake.parquet_files import DataFile

COMMIT_MARK = "sparklog"
"""Key in the commit information that marks the commits of a worker."""


def commit_version(location: str, handle: Any, entry: Entry) -> None:
    """Commit on the version of `handle`. `entry`: the commit; its information is stored under COMMIT_MARK. An entry
    with a schema and files replaces all files of the table. Raises CommitConflictError: The commit failed, mostly
    because the table has a newer version; or its outcome is unknown."""
    from deltalake import CommitProperties, Schema, Transaction

    marked = {COMMIT_MARK: dict(entry.information), "isBlindAppend": entry.is_blind}
    if needs_own_commit(handle.protocol().writer_features or ()):
        commit_entry(location, handle, replace(entry, information=marked))
        return
    properties = CommitProperties(
        custom_metadata=marked,
        max_commit_retries=0,
        app_transactions=[Transaction(name, version) for name, version in entry.transactions.items()],
    )
    partition_by = list(handle.metadata().partition_columns) or None
    try:
        if entry.schema_json:
            schema = Schema.from_json(entry.schema_json)
            handle.create_write_transaction(
                _added(entry.added, is_change=entry.is_change), "overwrite", schema, partition_by,
                commit_properties=properties,
            )  # fmt: skip
        else:
            actions = [
                *_added(entry.added, is_change=entry.is_change),
                *_removed(entry.removed, is_change=entry.is_change),
            ]
            handle.create_write_transaction(
                actions, "append", handle.schema(), partition_by, commit_properties=properties
            )
    except Exception as e:  # the caller reads the newest version to find the outcome
        raise commit_conflict(e) from e


def _added(files: Sequence[DataFile], *, is_change: bool) -> list[Any]:
    from deltalake.transaction import AddAction

    now_ms = int(time.time() * 1000)
    return [AddAction(f.path, f.size_bytes, f.partition_values, now_ms, is_change, f.statistics) for f in files]


def _removed(files: Sequence[Any], *, is_change: bool) -> list[Any]:
    from deltalake.transaction import RemoveAction

    now_ms = int(time.time() * 1000)
    return [RemoveAction(unquote(f.path), is_change, now_ms, f.size_bytes, dict(f.partition_values)) for f in files]
