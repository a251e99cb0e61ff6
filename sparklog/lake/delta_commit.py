"""Commits to a Delta table: each on exactly the version that was checked.

With `max_commit_retries` 0 a commit fails if any other writer has committed since. Application transactions alone would
not prevent double rows: Delta accepts a commit that lowers a transaction's version if its handle was opened later, and
an append does not conflict with a RESTORE.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa

from sparklog.errors import LakeUnavailableError
from sparklog.lake.delta_errors import commit_conflict, delta_errors, require_deltalake
from sparklog.lake.delta_reader import TableFile
from sparklog.lake.delta_snapshot import COMMIT_MARK, MODE_PROPERTY, TOPIC_ID_PROPERTY, DeltaSnapshot, app_id
from sparklog.lake.location import file_fsync, file_system, is_local
from sparklog.lake.log_entry import CHECKPOINT_INTERVAL, Entry, commit_entry, needs_own_commit, widened, with_fields
from sparklog.lake.parquet_files import DataFile, DataFileWriter, delta_statistics

_STATISTICS_COLUMNS_DEFAULT = 32


class DeltaCommitter:
    """Writes files beside a table, and commits them on exactly one version of it."""

    def __init__(self, table: DeltaSnapshot) -> None:
        """Create the committer. `table`: the version that was checked."""
        self.table = table

    # -- files

    def writer(self, schema: pa.Schema, file_bytes: int, name: str) -> DataFileWriter:
        """Return a writer of new files at the table's location. `schema`: the columns of the rows; `file_bytes`: size
        at which the next file begins; `name`: part of the files' names.
        """
        location, columns = self.table.location, self.table.partition_columns
        fsync = file_fsync(location)
        return DataFileWriter(file_system(location), schema, columns, file_bytes, name=name, fsync=fsync)

    def remove_files(self, paths: Iterable[str]) -> None:
        """Remove files that are not part of the table, by their paths in the file system. Files that cannot be removed
        are left for VACUUM."""
        files = file_system(self.table.location)
        for path in paths:
            try:
                files.delete_file(path)
            except OSError:
                continue

    # -- commits

    def commit(
        self,
        added: Sequence[DataFile],
        removed: Sequence[TableFile],
        next_offsets: Mapping[int, int],
        *,
        information: Mapping[str, Any],
        schema: pa.Schema | None = None,
        is_change: bool = True,
    ) -> None:
        """Make the next version of the table. `added`, `removed`: files. `next_offsets`: next offset by partition to
        set; the others stay. `information`: stored in the commit under COMMIT_MARK. `schema`: new columns of the table,
        None to keep them; a commit with a schema and files replaces all files. `is_change`: False if the added files
        have the rows of the removed files. Raises CommitConflictError: The commit failed, mostly because the table has
        a newer version; or its outcome is unknown."""
        is_blind = "offsets" in information and not removed
        entry = Entry(
            {COMMIT_MARK: dict(information), "isBlindAppend": is_blind},
            {app_id(self.table.topic_id, p): offset for p, offset in sorted(next_offsets.items())},
            added,
            removed,
            is_change,
            delta_schema(schema).to_json() if schema is not None else "",
        )
        if self._needs_own_commit:
            commit_entry(self.table.location, self.table.handle, entry)
        else:
            _commit_through_library(self.table.handle, entry)

    def reset(self, next_offsets: Mapping[int, int], schema: pa.Schema | None = None) -> None:
        """Set the next offsets. `schema`: columns of the table, from which all rows are removed in the same commit;
        None to keep rows and columns. Raises CommitConflictError."""
        information = {"reset": {str(p): o for p, o in sorted(next_offsets.items())}}
        removed = [] if schema is None else self.table.files()
        self.commit([], removed, next_offsets, information=information, schema=schema)

    def can_undo_compaction(self) -> bool:
        """Return True if the previous version exists, and neither it nor this version has deletion vectors, which the
        undo would lose."""
        before = DeltaSnapshot.open(self.table.location, self.table.version - 1)
        return before is not None and not before.deletion_masks() and not self.table.deletion_masks()

    def undo_compaction(self) -> None:
        """Replace the files of this version with those of the previous version, in one commit. Neither version must
        have deletion vectors; see `can_undo_compaction`. Raises CommitConflictError; LakeUnavailableError: A file of
        the previous version cannot be read."""
        table = self.table
        before, now = table.files_at(table.version - 1), table.files_at(table.version)
        schema, reader = table.schema, table.reader
        added = []
        for file in (f for path, f in before.items() if path not in now):
            metadata = reader.metadata(file)
            stored = pa.schema([f for f in schema if f.name not in file.partition_values])
            statistics = json.dumps(delta_statistics(metadata, stored))
            values = dict(file.partition_values)
            added.append(DataFile(unquote(file.path), file.size_bytes, metadata.num_rows, values, statistics))
        removed = [f for path, f in now.items() if path not in before]
        self.commit(added, removed, {}, information={"undone": table.version}, is_change=False)

    # -- columns

    def widen_columns(self, columns: Mapping[str, tuple[Any, Any]]) -> None:
        """Make columns wider, in a separate commit; see `DeltaSnapshot.can_widen`. `columns`: types before and after,
        by name. Raises CommitConflictError."""
        schema_json = widened(self.table.handle.schema().to_json(), columns)
        information = {COMMIT_MARK: {"widened": sorted(columns)}}
        commit_entry(self.table.location, self.table.handle, Entry(information, schema_json=schema_json))

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add columns at the end of the table, in a separate commit. Raises CommitConflictError."""
        from deltalake import CommitProperties

        handle, information = self.table.handle, {COMMIT_MARK: {"columns": [f.name for f in fields]}}
        added = delta_schema(pa.schema(fields))
        if self._needs_own_commit:
            schema_json = with_fields(handle.schema().to_json(), added.to_json())
            commit_entry(self.table.location, handle, Entry(information, schema_json=schema_json))
            return
        properties = CommitProperties(custom_metadata=information, max_commit_retries=0)
        try:
            handle.alter.add_columns(list(added.fields), commit_properties=properties)
        except Exception as e:
            raise commit_conflict(e) from e

    @property
    def _needs_own_commit(self) -> bool:
        return needs_own_commit(self.table.handle.protocol().writer_features or ())


def create_table(
    location: str, schema: pa.Schema, *, topic: str, topic_id: str, mode: str, partition_by: Sequence[str]
) -> DeltaSnapshot:
    """Create the table of a topic. `topic`: name of the topic, which becomes the table's name. `topic_id`: id of the
    topic, which becomes a property of the table. `mode`: "append" or "upsert", which becomes a property of the table.
    Returns the first version. Raises CommitConflictError: There is a table already, which another process has created;
    LakeUnavailableError."""
    require_deltalake()
    from deltalake import CommitProperties, DeltaTable
    from deltalake.exceptions import DeltaError

    configuration = {
        TOPIC_ID_PROPERTY: topic_id,
        MODE_PROPERTY: mode,
        "delta.checkpointInterval": str(CHECKPOINT_INTERVAL),
    }
    if len(schema) > _STATISTICS_COLUMNS_DEFAULT - 3:
        configuration["delta.dataSkippingNumIndexedCols"] = "-1"  # the default: the first 32
    if is_local(location):
        try:
            Path(location).mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise LakeUnavailableError(f"the directory {location} cannot be created: {e}") from e
    with delta_errors(location):
        try:
            DeltaTable.create(
                location,
                delta_schema(schema),
                name=topic,
                description=f"topic {topic} of sparklog",
                partition_by=list(partition_by),
                configuration=configuration,
                raise_if_key_not_exists=False,
                commit_properties=CommitProperties(custom_metadata={COMMIT_MARK: {"created": topic}}),
            )
        except DeltaError as e:
            if DeltaSnapshot.open(location) is not None:
                raise commit_conflict(e) from e
            raise
    table = DeltaSnapshot.open(location)
    if table is None:
        raise LakeUnavailableError(f"the table at {location} was created but cannot be found")
    return table


def delta_schema(schema: pa.Schema) -> Any:
    """Return a schema in the form of the package deltalake."""
    from deltalake import Schema

    return Schema.from_arrow(schema)


def _commit_through_library(handle: Any, entry: Entry) -> None:
    from deltalake import CommitProperties, Schema, Transaction

    properties = CommitProperties(
        custom_metadata=dict(entry.information),
        max_commit_retries=0,
        app_transactions=[Transaction(name, version) for name, version in entry.transactions.items()],
    )
    partition_by = list(handle.metadata().partition_columns) or None
    try:
        if entry.schema_json:
            actions, mode, schema = _added(entry), "overwrite", Schema.from_json(entry.schema_json)
        else:
            actions, mode, schema = [*_added(entry), *_removed(entry)], "append", handle.schema()
        handle.create_write_transaction(actions, mode, schema, partition_by, commit_properties=properties)
    except Exception as e:  # the caller reads the newest version to find the outcome
        raise commit_conflict(e) from e


def _added(entry: Entry) -> list[Any]:
    from deltalake.transaction import AddAction

    now_ms = int(time.time() * 1000)
    return [
        AddAction(f.path, f.size_bytes, f.partition_values, now_ms, entry.is_change, f.statistics) for f in entry.added
    ]


def _removed(entry: Entry) -> list[Any]:
    from deltalake.transaction import RemoveAction

    now_ms = int(time.time() * 1000)
    return [
        RemoveAction(unquote(f.path), entry.is_change, now_ms, f.size_bytes, dict(f.partition_values))
        for f in entry.removed
    ]
