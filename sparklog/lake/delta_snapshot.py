"""The Delta table of a topic, through `deltalake`.

A commit succeeds only on the version whose state was checked: with `max_commit_retries` 0 it fails if any other writer
has committed since. Application transactions alone would not prevent double rows: Delta accepts a commit that lowers a
transaction's version if its handle was opened later, and an append does not conflict with a RESTORE.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from msgspec import Struct

from sparklog.errors import InvalidConfigError, LakePausedError, LakeUnavailableError
from sparklog.format.plain_layout import plain_layout
from sparklog.lake.delta_commit import COMMIT_MARK, commit_version
from sparklog.lake.delta_errors import (
    check_clear_text,
    commit_conflict,
    delta_errors,
)
from sparklog.lake.log_entry import (
    CHECKPOINT_INTERVAL,
    Entry,
    commit_entry,
    needs_own_commit,
    widened,
    with_fields,
)
from sparklog.lake.parquet_checks import FILE_ERRORS, check_data, open_parquet
from sparklog.lake.parquet_files import DataFile, DataFileWriter, delta_statistics, fsync_below, partition_text
from sparklog.lake.rules import MODE_PROPERTY, TOPIC_ID_PROPERTY, Span, TableState, app_id
from sparklog.lake.table_features import check_features

HISTORY_PAGE = 50
FIRST_PAGE = 4
"""Number of commits that a search without a known version reads first. Usually the newest one is a worker's, which ends
the search."""
PIECE_ROWS, PIECE_ROWS_MIN = 16_384, 512
"""Largest and smallest number of rows of a file that are in memory at a time."""
_STATISTICS_COLUMNS_DEFAULT = 32
_ADDRESS_START = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
"""Matches an address that lacks a slash, such as `s3:/bucket`, which would otherwise count as a directory."""
_DIRECTORY_WRONG = frozenset("%\\")
"""Characters that delta-rs decodes or replaces in a directory's path, so that it would look for another directory."""
MISSING = "the package deltalake is not installed here: pip install 'sparklog[lake]'"


class TableFile(Struct, frozen=True):
    """A Parquet file of a version of the table."""

    path: str
    """Path relative to the table's location, URL-encoded."""
    size_bytes: int
    rows: int | None
    """Number of rows in the statistics; None if they lack it."""
    partition: int | None
    """Partition of the topic to which all rows belong; None if the rows are of several, or the statistics lack it."""
    first_offset: int | None
    """Smallest `_offset` in the statistics; None if they lack it."""
    last_offset: int | None
    """Largest `_offset` in the statistics; None if they lack it."""
    partition_values: Mapping[str, str | None]
    """Values of the partition columns as texts; None for null."""
    modified_ms: int = 0
    last_time_ms: int | None = None
    """Largest `_timestamp` in the statistics, in ms since 1970; None if they lack it."""


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


def require_deltalake() -> None:
    """Check that the package deltalake can be imported. Raises InvalidConfigError."""
    try:
        import deltalake  # noqa: F401
    except ImportError as e:
        raise InvalidConfigError(MISSING) from e


def delta_schema(schema: pa.Schema) -> Any:
    """Return a schema in the form of the package deltalake."""
    from deltalake import Schema

    return Schema.from_arrow(schema)


class LakeTable:
    """One version of a table, with its own handle."""

    def __init__(self, location: str, handle: Any) -> None:
        self.location = location
        self._handle = handle
        self._actions: pa.Table | None = None

    # -- opening

    @classmethod
    def open(cls, location: str, version: int | None = None) -> LakeTable | None:
        """Open the newest version, or an older one. `version`: number of the version; None for the newest. Returns the
        table; None if there is none at the location. Raises LakeUnavailableError and InvalidConfigError."""
        require_deltalake()
        check_clear_text(location)
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            with delta_errors(location):
                return cls(location, DeltaTable(location, version=version))
        except TableNotFoundError:
            return None

    @classmethod
    def create(
        cls, location: str, schema: pa.Schema, *, topic: str, topic_id: str, mode: str, partition_by: Sequence[str]
    ) -> LakeTable:
        """Create the table of a topic. `topic`: name of the topic, which becomes the table's name. `topic_id`: id of
        the topic, which becomes a property of the table. `mode`: "append" or "upsert", which becomes a property of the
        table. Returns the first version. Raises CommitConflictError: There is a table already, which another process
        has created; LakeUnavailableError."""
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
                if LakeTable.open(location) is not None:
                    raise commit_conflict(e) from e
                raise
        found = LakeTable.open(location)
        if found is None:
            raise LakeUnavailableError(f"the table at {location} was created but cannot be found")
        return found

    # -- properties

    @property
    def version(self) -> int:
        """Number of the table's version that this object reads."""
        return int(self._handle.version())

    @property
    def table_id(self) -> str:
        """Id of the table."""
        return str(self._handle.metadata().id)

    @property
    def topic_id(self) -> str:
        """Topic id in the table's properties; "" if there is none."""
        return str(self._handle.metadata().configuration.get(TOPIC_ID_PROPERTY) or "")

    @property
    def mode(self) -> str:
        """The lake mode in the table's properties; "" if there is none."""
        return str(self._handle.metadata().configuration.get(MODE_PROPERTY) or "")

    @property
    def partition_columns(self) -> list[str]:
        """Columns that partition the table."""
        return list(self._handle.metadata().partition_columns)

    def schema(self) -> pa.Schema:
        """Return the table's columns."""
        return pa.schema(self._handle.schema().to_arrow())

    def next_offset(self, topic_id: str, partition: int) -> int | None:
        """Return a partition's next offset in this version; None if the table has no transaction of it."""
        found = self._handle.transaction_version(app_id(topic_id, partition))
        return None if found is None else int(found)

    def next_offsets(self, topic_id: str, partitions: int) -> dict[int, int]:
        """Return the next offsets by partition. Partitions without a transaction in the table are left out."""
        found = {p: self.next_offset(topic_id, p) for p in range(partitions)}
        return {p: offset for p, offset in found.items() if offset is not None}

    def state(
        self, topic_id: str, partitions: int, *, known_version: int | None = None, known: dict[str, dict[int, int]]
    ) -> TableState:
        """Return the facts that a round depends on. `known_version`: a version that this process has checked; older
        history is not read. None if there is none. `known`: largest offset by partition of each file, by path, for
        files whose statistics lack it. Such files have to be read; the call adds their offsets. Raises LakePausedError:
        The table lacks the column `_partition`, `_offset` or `_timestamp`; LakeUnavailableError."""
        with delta_errors(self.location):
            if self.topic_id != topic_id:  # another topic's table can lack the position columns
                return TableState(self.version, self.table_id, self.topic_id, {})
            self.check_positions()
            others = list(self._commits_of_others(known_version))
            return TableState(
                version=self.version,
                table_id=self.table_id,
                topic_id=self.topic_id,
                next_offsets=self.next_offsets(topic_id, partitions),
                largest_offsets=self._largest_offsets(known),
                restored_to=_restored_to(others),
                doubled_by=self._doubled_by(others),
            )

    def check_positions(self) -> None:
        """Check that the table has the columns with the rows' positions in the log. Raises LakePausedError: A user has
        overwritten the table, or dropped such a column."""
        self._layout(["_partition", "_offset", "_timestamp"])

    def check_features(self, *, is_upsert: bool) -> None:
        """Check that a commit of plain Parquet files can be appended to the table, and with `is_upsert` replace files.
        Raises LakePausedError: The table has a feature that this writer does not support."""
        check_features(
            set(self._handle.protocol().writer_features or ()),
            self._handle.metadata().configuration,
            self._handle.schema().fields,
            is_upsert=is_upsert,
            is_directory=is_local(self.location),
        )

    def doubled_or_restored(self) -> tuple[int | None, int | None]:
        """Return the changes of other writers, after the last commit of a worker, that readers must know.

        delta-rs lets a compaction succeed even if another compaction was committed after the first one was planned.
        Then the rows of files that both compactions have replaced are in the table twice. After a RESTORE the table
        lacks rows below its next offsets.

        The result: the newest version that is a compaction with more rows than its predecessor, None if there is none
        or the table was restored after it; and the version to which the table was restored, None if it was not. Raises
        LakeUnavailableError."""
        others = list(self._commits_of_others(None))
        return self._doubled_by(others), _restored_to(others)

    def _doubled_by(self, others: Iterable[Mapping[str, Any]]) -> int | None:
        for entry in others:
            version, operation = int(entry["version"]), str(entry.get("operation", "")).upper()
            if operation == "RESTORE":
                return None
            if operation == "OPTIMIZE" and version > 0:
                then, now = self._files_at(version - 1), self._files_at(version)
                added = sum(self._rows(f) for path, f in now.items() if path not in then)
                removed = sum(self._rows(f) for path, f in then.items() if path not in now)
                if added > removed:
                    return version
        return None

    def _commits_of_others(self, known_version: int | None) -> Iterator[dict[str, Any]]:
        """Yield the commits after the last commit of a worker, or after `known_version`, the newest first."""
        limit = FIRST_PAGE if known_version is None else max(0, self.version - known_version)
        seen = 0
        while limit:
            with delta_errors(self.location):
                page = self._handle.history(limit)
            for entry in page[seen:]:
                if COMMIT_MARK in entry:
                    return
                yield entry
            if known_version is not None or len(page) < limit:
                return
            seen, limit = len(page), 4 * limit

    def _files_at(self, version: int) -> dict[str, TableFile]:
        table = self if version == self.version else LakeTable.open(self.location, version)
        return {} if table is None else {f.path: f for f in table.files()}

    def _rows(self, file: TableFile) -> int:
        return int(self._metadata(file).num_rows) if file.rows is None else file.rows

    def _metadata(self, file: TableFile) -> Any:
        """Return the metadata of a Parquet file of the table. Raises LakeUnavailableError."""
        try:
            with self.file_system().open_input_file(unquote(file.path)) as source:
                return open_parquet(source, file.path).metadata
        except FILE_ERRORS as e:
            raise LakeUnavailableError(f"file {file.path} of the table at {self.location} cannot be read: {e}") from e

    def check_checksums(self, file: TableFile) -> None:
        """Read a file whole and compare its checksums. Raises LakeUnavailableError if one is wrong."""
        try:
            with self.file_system().open_input_file(unquote(file.path)) as source:
                check_data(source, file.path)
        except FILE_ERRORS as e:
            raise LakeUnavailableError(f"file {file.path} of the table at {self.location}: {e}") from e

    def _largest_offsets(self, known: dict[str, dict[int, int]]) -> dict[int, int]:
        largest: dict[int, int] = {}
        for file in self.files():
            if file.partition is not None and file.last_offset is not None:
                found = {file.partition: file.last_offset}
            elif file.path in known:
                found = known[file.path]
            else:
                found = known[file.path] = self._read_largest(file)
            for partition, offset in found.items():
                largest[partition] = max(largest.get(partition, -1), offset)
        return largest

    def _read_largest(self, file: TableFile) -> dict[int, int]:
        rows = self.read_file(file, ["_partition", "_offset"], apply_deletions=False)
        grouped = rows.group_by("_partition").aggregate([("_offset", "max")]).to_pylist()
        return {
            row["_partition"]: row["_offset_max"]
            for row in grouped
            if row["_partition"] is not None and row["_offset_max"] is not None
        }

    # -- files

    def files(self) -> list[TableFile]:
        """Return the files of this version. Raises LakeUnavailableError."""
        with delta_errors(self.location):
            actions = pa.table(self._handle.get_add_actions(flatten=True))
            partitions = self.partition_columns
        n = actions.num_rows

        def column(name: str) -> list[Any]:
            return actions.column(name).to_pylist() if name in actions.column_names else [None] * n

        values = {c: column(f"partition.{c}") for c in partitions}
        lows = values["_partition"] if "_partition" in values else column("min._partition")
        highs = values["_partition"] if "_partition" in values else column("max._partition")
        times_ms: list[int | None] = [None] * n
        if "max._timestamp" in actions.column_names:
            times = actions.column("max._timestamp")
            if pa.types.is_timestamp(times.type):  # if no file has statistics, the type is null
                times_ms = times.cast(pa.timestamp("ms", times.type.tz), safe=False).cast(pa.int64()).to_pylist()
        return [
            TableFile(
                path=path,
                size_bytes=size,
                rows=rows,
                partition=int(low) if low is not None and low == high else None,
                first_offset=first,
                last_offset=last,
                partition_values={c: partition_text(v[i]) for c, v in values.items()},
                modified_ms=modified or 0,
                last_time_ms=time_ms,
            )
            for i, (path, size, rows, low, high, first, last, modified, time_ms) in enumerate(
                zip(
                    column("path"),
                    column("size_bytes"),
                    column("num_records"),
                    lows,
                    highs,
                    column("min._offset"),
                    column("max._offset"),
                    column("modification_time"),
                    times_ms,
                    strict=True,
                )
            )
        ]

    def file_system(self) -> Any:
        """Return an Arrow file system at the table's location."""
        from pyarrow.fs import LocalFileSystem, PyFileSystem, SubTreeFileSystem

        if is_local(self.location):
            return SubTreeFileSystem(self.location, LocalFileSystem())
        from deltalake.fs import DeltaStorageHandler

        return PyFileSystem(DeltaStorageHandler(self.location))

    def writer(self, schema: pa.Schema, file_bytes: int, name: str) -> DataFileWriter:
        """Return a writer of new files at the table's location. `schema`: the columns of the rows; `file_bytes`: size
        at which the next file begins; `name`: part of the files' names.
        """
        fsync = fsync_below(self.location) if is_local(self.location) else _nothing
        return DataFileWriter(self.file_system(), schema, self.partition_columns, file_bytes, name=name, fsync=fsync)

    def deletion_masks(self) -> dict[str, Any]:
        """Return a mask for each file with a deletion vector, by file name: an array that is True for each row that is
        not deleted. Raises LakeUnavailableError."""
        with delta_errors(self.location):
            if "deletionVectors" not in (self._handle.protocol().reader_features or ()):
                return {}
            masks: dict[str, Any] = {}
            for batch in pa.RecordBatchReader.from_stream(self._handle.deletion_vectors()):
                for path, mask in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                    masks[path.rsplit("/", 1)[-1]] = np.asarray(mask.as_py(), dtype=bool)
            return masks

    def read_file(
        self,
        file: TableFile,
        columns: Sequence[str] | None,
        *,
        apply_deletions: bool = True,
        masks: Mapping[str, Any] | None = None,
    ) -> pa.Table:
        """Read rows of a file with the table's column types. Columns that the file lacks are null. `columns`: names of
        the columns; None for all columns of the table. `apply_deletions`: True to leave out rows that deletion vectors
        mark as deleted. `masks`: the result of `deletion_masks`; None to call it. Raises LakePausedError and
        LakeUnavailableError."""
        known = {} if not apply_deletions else self.deletion_masks() if masks is None else masks
        schema = self._layout(columns)
        return pa.concat_tables([schema.empty_table(), *self.read_pieces(file, columns, masks=known)])

    def read_pieces(
        self, file: TableFile, columns: Sequence[str] | None, *, masks: Mapping[str, Any]
    ) -> Iterator[pa.Table]:
        """Read rows of a file as `read_file` does, in pieces of at most PIECE_ROWS rows. `columns`: names of the
        columns; None for all columns of the table. `masks`: the result of `deletion_masks`; an empty mapping to read
        also deleted rows. Yields rows in the order of the file. Raises LakePausedError and LakeUnavailableError."""
        layout = self._layout(columns)
        mask = masks.get(unquote(file.path).rsplit("/", 1)[-1])
        at = 0
        try:
            with self.file_system().open_input_file(unquote(file.path)) as source:
                parquet = open_parquet(source, file.path)
                names = parquet.schema_arrow.names
                own = [c for c in layout.names if c in names and c not in file.partition_values]
                most = PIECE_ROWS
                if parquet.num_row_groups:  # wide rows: a row group takes up to ROW_GROUP_BYTES
                    most = min(most, max(PIECE_ROWS_MIN, parquet.metadata.row_group(0).num_rows // 8))
                for batch in parquet.iter_batches(most, columns=own or names[:1]):
                    rows = in_layout(plain(pa.Table.from_batches([batch])), file, layout)
                    if mask is not None:
                        left = np.ones(rows.num_rows, dtype=bool)
                        piece = mask[at : at + rows.num_rows]
                        left[: len(piece)] = piece
                        rows, at = rows.filter(pa.array(left)), at + rows.num_rows
                    yield rows
        except FILE_ERRORS as e:
            raise LakeUnavailableError(f"file {file.path} of the table at {self.location} cannot be read: {e}") from e

    def _layout(self, columns: Sequence[str] | None) -> pa.Schema:
        """Return the schema of these columns; None: of all columns. Raises LakePausedError for a missing column."""
        schema = self.schema()
        gone = [c for c in columns or () if c not in schema.names]
        if gone:
            raise LakePausedError(
                f"the table has no column {', '.join(gone)}: the table was overwritten, or the column dropped; use "
                "'sparklog lake rebuild' to write the table again from the log, or restore it and use 'sparklog lake "
                "resume'"
            )
        return pa.schema([schema.field(c).with_nullable(True) for c in (schema.names if columns is None else columns)])

    def remove_files(self, paths: Iterable[str]) -> None:
        """Remove files that are not part of the table, by their paths in the file system. Files that cannot be removed
        are left for VACUUM."""
        files = self.file_system()
        for path in paths:
            try:
                files.delete_file(path)
            except OSError:
                continue

    # -- commits

    def commit(
        self, files: Sequence[DataFile], topic_id: str, spans: Mapping[int, Span], *, gaps: Mapping[int, Span] = {}
    ) -> None:
        """Append files and set the next offsets, in one commit on this version. `spans`: offsets of the files by
        partition; their ends become the next offsets. `gaps`: offsets that the log deleted before they were in the
        table; stored in the commit's information. Raises CommitConflictError: The commit failed, mostly because the
        table has a newer version; or its outcome is unknown."""
        information, ends = _progress(topic_id, spans, gaps)
        self._commit(Entry(information, ends, files, is_blind=True))

    def replace(self, removed: Sequence[TableFile], files: Sequence[DataFile], *, information: dict[str, Any]) -> None:
        """Replace files with other files of the same rows, in one commit on this version.
        Raises CommitConflictError."""
        self._commit(Entry(information, added=files, removed=removed, is_change=False))

    def replace_all(self, schema: pa.Schema, files: Sequence[DataFile], *, information: dict[str, Any]) -> None:
        """Replace all files, and the columns, in one commit on this version. The next offsets stay. Raises
        CommitConflictError."""
        schema_json = delta_schema(schema).to_json()
        self._commit(Entry(information, added=files, removed=self.files(), schema_json=schema_json))

    def can_undo_compaction(self) -> bool:
        """Return True if the previous version exists, and neither it nor this version has deletion vectors, which the
        undo would lose."""
        then = LakeTable.open(self.location, self.version - 1)
        return then is not None and not then.deletion_masks() and not self.deletion_masks()

    def undo_compaction(self) -> None:
        """Replace the files of this version with those of the previous version, in one commit on this version. Neither
        version must have deletion vectors; see `can_undo_compaction`. Raises CommitConflictError; LakeUnavailableError:
        A file of the previous version cannot be read."""
        then, now = self._files_at(self.version - 1), self._files_at(self.version)
        schema = pa.schema(self._handle.schema().to_arrow())
        back = []
        for file in (f for path, f in then.items() if path not in now):
            metadata = self._metadata(file)
            stored = pa.schema([f for f in schema if f.name not in file.partition_values])
            statistics = json.dumps(delta_statistics(metadata, stored))
            back.append(
                DataFile(
                    unquote(file.path), file.size_bytes, metadata.num_rows, dict(file.partition_values), statistics
                )
            )
        self.replace([f for path, f in now.items() if path not in then], back, information={"undone": self.version})

    def merge(
        self,
        removed: Sequence[TableFile],
        files: Sequence[DataFile],
        topic_id: str,
        spans: Mapping[int, Span],
        *,
        gaps: Mapping[int, Span] = {},
    ) -> None:
        """Replace files with files of other rows, and set the next offsets, in one commit on this version. Raises
        CommitConflictError."""
        information, ends = _progress(topic_id, spans, gaps)
        self._commit(Entry(information, ends, files, removed))

    def reset(self, schema: pa.Schema, topic_id: str, next_offsets: Mapping[int, int], *, keep_rows: bool) -> None:
        """Set the next offsets, and remove all rows unless `keep_rows`, in one commit on this version. Raises
        CommitConflictError."""
        information = {"reset": {str(p): o for p, o in sorted(next_offsets.items())}}
        ends = {app_id(topic_id, p): offset for p, offset in sorted(next_offsets.items())}
        removed = [] if keep_rows else self.files()
        schema_json = "" if keep_rows else delta_schema(schema).to_json()
        self._commit(Entry(information, ends, removed=removed, schema_json=schema_json))

    def _commit(self, entry: Entry) -> None:
        commit_version(self.location, self._handle, entry)

    def can_widen(self) -> bool:
        """Return True if columns of the table can become wider without a change of its files."""
        metadata, features = self._handle.metadata(), self._handle.protocol().writer_features or ()
        is_on = (metadata.configuration.get("delta.enableTypeWidening") or "").lower() == "true"
        return is_on and is_local(self.location) and needs_own_commit(features)

    def widen_columns(self, columns: Mapping[str, tuple[Any, Any]]) -> None:
        """Make columns wider, in a separate commit on this version; see `can_widen`. `columns`: types before and after,
        by name. Raises CommitConflictError."""
        schema_json = widened(self._handle.schema().to_json(), columns)
        commit_entry(self.location, self._handle, Entry(_marked({"widened": sorted(columns)}), schema_json=schema_json))

    def add_columns(self, fields: Sequence[pa.Field]) -> None:
        """Add columns at the end of the table, in a separate commit on this version. Raises CommitConflictError."""
        from deltalake import CommitProperties

        information = _marked({"columns": [f.name for f in fields]})
        added = delta_schema(pa.schema(fields))
        if needs_own_commit(self._handle.protocol().writer_features or ()):
            schema_json = with_fields(self._handle.schema().to_json(), added.to_json())
            commit_entry(self.location, self._handle, Entry(information, schema_json=schema_json))
            return
        properties = CommitProperties(custom_metadata=information, max_commit_retries=0)
        try:
            self._handle.alter.add_columns(list(added.fields), commit_properties=properties)
        except Exception as e:
            raise commit_conflict(e) from e

    def last_commit(self) -> dict[str, Any] | None:
        """Return the information of a worker's newest commit with offsets, including `timestamp` and `version`. None if
        the last HISTORY_PAGE commits have none."""
        with delta_errors(self.location):
            return next(
                (e for e in self._handle.history(HISTORY_PAGE) if "offsets" in (e.get(COMMIT_MARK) or {})), None
            )

    def operations(self) -> list[str]:
        """Return the operations of all commits of other writers, such as "DELETE", except appends; the newest first."""
        with delta_errors(self.location):
            return [
                str(entry.get("operation", ""))
                for entry in self._handle.history()
                if COMMIT_MARK not in entry and (entry.get("operationParameters") or {}).get("mode") != "Append"
            ]


def _restored_to(others: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the version to which the newest RESTORE in `others` went back; -1 if the commit does not name it, None
    without a RESTORE."""
    for entry in others:
        if str(entry.get("operation", "")).upper() == "RESTORE":
            version = (entry.get("operationParameters") or {}).get("version")
            return int(str(version)) if str(version).isdigit() else -1
    return None


def in_layout(rows: pa.Table, file: TableFile, layout: pa.Schema) -> pa.Table:
    """Return rows of a file with the columns of `layout`. Columns that the file lacks are null."""
    arrays = []
    for f in layout:
        if f.name in file.partition_values:
            value = file.partition_values[f.name]
            scalar = pa.scalar(None, f.type) if value is None else pa.scalar(value).cast(f.type)
            arrays.append(pa.repeat(scalar, rows.num_rows))
        elif f.name in rows.column_names:
            arrays.append(rows.column(f.name).cast(f.type))
        else:
            arrays.append(pa.nulls(rows.num_rows, f.type))
    return pa.table(arrays, schema=layout)


def plain(rows: pa.Table) -> pa.Table:
    """Return the rows in the log's memory layout, without view types, which other writers' files can have."""
    columns = [
        column if _is_flat(f.type) else pa.chunked_array([plain_layout(c) for c in column.chunks], _plain_type(f.type))
        for f, column in zip(rows.schema, rows.columns, strict=True)
    ]
    return pa.table(columns, names=rows.column_names)


def _is_flat(t: Any) -> bool:
    return bool(pa.types.is_primitive(t) or pa.types.is_string(t) or pa.types.is_binary(t) or pa.types.is_decimal(t))


def _plain_type(t: Any) -> Any:
    return plain_layout(pa.nulls(0, t)).type


def _progress(
    topic_id: str, spans: Mapping[int, Span], gaps: Mapping[int, Span]
) -> tuple[dict[str, Any], dict[str, int]]:
    """Return the information of a commit with offsets, and the versions of its application transactions."""
    information = {"offsets": {str(p): list(s) for p, s in sorted(spans.items())}}
    if gaps:
        information["gaps"] = {str(p): list(s) for p, s in sorted(gaps.items())}
    return information, {app_id(topic_id, p): span.end for p, span in sorted(spans.items())}


def _marked(information: dict[str, Any]) -> dict[str, Any]:
    return {COMMIT_MARK: information}


def _nothing(path: str) -> None:
    """Do nothing, in place of an fsync: an object store makes a file durable when it is closed."""


def newest(location: str, table: LakeTable) -> LakeTable:
    """Open the newest version of a table that must exist. Raises LakePausedError."""
    found = LakeTable.open(location)
    if found is None:
        raise dropped(location, table.table_id)
    return found


def dropped(location: str, table_id: str) -> LakePausedError:
    """Return the error for a table that does not exist any more."""
    return LakePausedError(
        f"the topic's table {table_id} is no longer at {location}: it was dropped or moved; use 'sparklog lake "
        "rebuild' to create it again from the log, or bring it back and use 'sparklog lake resume'"
    )
