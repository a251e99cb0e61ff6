"""Commits that a worker writes into a table's log by itself, for features to which deltalake does not commit.

Only tables in directories have such commits: a hard link makes a version exactly once, and deltalake gives no access to
the conditional writes of an object store.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pyarrow as pa
from msgspec import Struct

from sparklog.lake.delta_errors import CommitConflictError, commit_conflict

logger = logging.getLogger(__name__)

OWN_COMMIT_FEATURES = frozenset({"checkpointProtection", "typeWidening"})
"""Table features that ask nothing of a writer of plain files, and to which deltalake refuses to commit. Delta adds
checkpointProtection when a feature is dropped: a table whose log is not cleaned up fulfils it."""
CHECKPOINT_INTERVAL = 100
"""Number of versions from one checkpoint of a worker to the next."""
_LOG = "_delta_log"
_PATH_CHARS = "/=-_.~!*'(),:@&+$"
_DELTA_NAMES = {
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
}
_TYPE_CHANGES = "delta.typeChanges"


class Entry(Struct, frozen=True):
    """The content of a commit."""

    information: Mapping[str, Any]
    """Information of the commit, beside its operation and time."""
    transactions: Mapping[str, int] = {}
    """Versions of application transactions by name."""
    added: Sequence[Any] = ()
    """Files to add (`DataFile`)."""
    removed: Sequence[Any] = ()
    """Files to remove (`TableFile`)."""
    is_change: bool = True
    """False if the added files have the rows of the removed files."""
    schema_json: str = ""
    """The table's new schema in Delta's JSON form; empty to keep the schema."""


def needs_own_commit(features: Collection[str]) -> bool:
    """Return True if deltalake refuses to commit to a table with these features, and a worker does not."""
    return bool(OWN_COMMIT_FEATURES.intersection(features))


def entry_text(entry: Entry, metadata: Mapping[str, Any] | None, now_ms: int) -> str:
    """Return the lines of a commit file in Delta's protocol. `metadata`: the table's new metadata action."""
    commit = {"timestamp": now_ms, "operation": "WRITE", "operationParameters": {"mode": "Append"}}
    lines: list[dict[str, Any]] = [{"commitInfo": {**commit, "engineInfo": "sparklog", **entry.information}}]
    if metadata is not None:
        lines.append({"metaData": dict(metadata)})
    lines += [
        {"txn": {"appId": name, "version": version, "lastUpdated": now_ms}}
        for name, version in entry.transactions.items()
    ]
    for file in entry.removed:
        remove = {"path": file.path, "deletionTimestamp": now_ms, "dataChange": entry.is_change}
        values = dict(file.partition_values)
        lines.append(
            {"remove": {**remove, "extendedFileMetadata": True, "partitionValues": values, "size": file.size_bytes}}
        )
    for file in entry.added:
        add = {"path": quote(file.path, safe=_PATH_CHARS), "partitionValues": dict(file.partition_values)}
        facts = {"size": file.size_bytes, "modificationTime": now_ms, "dataChange": entry.is_change}
        lines.append({"add": {**add, **facts, "stats": file.statistics}})
    return "".join(json.dumps(line) + "\n" for line in lines)


def commit_entry(location: str, handle: Any, entry: Entry) -> None:
    """Make exactly the next version of a table in a directory. `handle`: the table in deltalake, at the version that
    was checked. Raises CommitConflictError."""
    version = int(handle.version()) + 1
    metadata = metadata_action(handle, entry.schema_json) if entry.schema_json else None
    log = Path(location, _LOG)
    temporary, final = log / f".{uuid4().hex}.tmp", log / f"{version:020d}.json"
    try:
        try:
            with temporary.open("x", encoding="utf-8") as file:
                file.write(entry_text(entry, metadata, int(time.time() * 1000)))
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, final)  # fails if the version exists
        finally:
            temporary.unlink(missing_ok=True)
        descriptor = os.open(log, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except FileExistsError as e:
        raise CommitConflictError(f"version {version} exists") from e
    except OSError as e:
        raise commit_conflict(e) from e
    if version % CHECKPOINT_INTERVAL == 0:
        _checkpoint(location, version)


def _checkpoint(location: str, version: int) -> None:
    """Write a checkpoint of a version, as deltalake does after its own commits. A failure only makes reads slower."""
    from deltalake import DeltaTable

    try:
        DeltaTable(location, version=version).create_checkpoint()
    except Exception as e:  # noqa: BLE001 - the commit has succeeded
        logger.warning("no checkpoint of version %d of the table at %s could be written: %s", version, location, e)


def metadata_action(handle: Any, schema_json: str) -> dict[str, Any]:
    """Return the metadata action of a table with another schema. `handle`: the table in deltalake."""
    now = handle.metadata()
    names = {"id": str(now.id), "name": now.name, "description": now.description}
    return {
        **{name: value for name, value in names.items() if value is not None},
        "format": {"provider": "parquet", "options": {}},
        "schemaString": schema_json,
        "partitionColumns": list(now.partition_columns),
        "configuration": dict(now.configuration),
        "createdTime": now.created_time,
    }


def with_fields(schema_json: str, added_json: str) -> str:
    """Return a schema with the fields of another schema at its end, both in Delta's JSON form."""
    schema = json.loads(schema_json)
    schema["fields"] += json.loads(added_json)["fields"]
    return json.dumps(schema)


def widened(schema_json: str, columns: Mapping[str, tuple[Any, Any]]) -> str:
    """Return a schema in Delta's JSON form with wider columns, and with the record of each change of type. `columns`:
    Arrow types before and after the change, by name of the column."""
    schema = json.loads(schema_json)
    for field in schema["fields"]:
        if field["name"] in columns:
            before, after = (_DELTA_NAMES[t] for t in columns[field["name"]])
            field["type"] = after
            changes = [*field["metadata"].get(_TYPE_CHANGES, []), {"fromType": before, "toType": after}]
            field["metadata"][_TYPE_CHANGES] = changes
    return json.dumps(schema)
