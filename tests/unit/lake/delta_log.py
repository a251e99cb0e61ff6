"""Commits of other programs to a table in a directory, written into its log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

READER_FEATURES = {
    "columnMapping",
    "deletionVectors",
    "timestampNtz",
    "typeWidening",
    "v2Checkpoint",
    "vacuumProtocolCheck",
}


def require_features(
    path: Path, *names: str, configuration: dict[str, str] | None = None, types: dict[str, str] | None = None
) -> None:
    """Commit a protocol with these features, as another program does.

    Args:
        path: The table.
        names: The features.
        configuration: Properties to set.
        types: New types of columns in Delta's words, as ALTER COLUMN commits them.
    """
    table = DeltaTable(path)
    schema = json.loads(table.schema().to_json())
    for field in schema["fields"]:
        if field["name"] in (types or {}):
            change = {"fromType": field["type"], "toType": (types or {})[field["name"]]}
            field["metadata"]["delta.typeChanges"] = [change]
            field["type"] = change["toType"]
    metadata = {
        "id": str(table.metadata().id),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps(schema),
        "partitionColumns": table.metadata().partition_columns,
        "configuration": {**table.metadata().configuration, **(configuration or {})},
    }
    protocol: dict[str, Any] = {"minReaderVersion": 3, "minWriterVersion": 7, "writerFeatures": list(names)}
    protocol["readerFeatures"] = [name for name in names if name in READER_FEATURES]
    _commit(table, path, {"protocol": protocol}, {"metaData": metadata})


def require_writer_version(path: Path, version: int) -> None:
    """Commit a protocol of this writer version, which names no features."""
    protocol = {"minReaderVersion": 2 if version >= 5 else 1, "minWriterVersion": version}
    _commit(DeltaTable(path), path, {"protocol": protocol})


def _commit(table: DeltaTable, path: Path, *actions: dict[str, Any]) -> None:
    lines = [{"commitInfo": {"timestamp": 1, "operation": "UPGRADE PROTOCOL"}}, *actions]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (path / "_delta_log" / f"{table.version() + 1:020d}.json").write_text(text)
