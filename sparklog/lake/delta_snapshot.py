"""One version of the Delta table of a topic, through `deltalake`: its facts and its files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np
import pyarrow as pa

from sparklog.errors import LakePausedError
from sparklog.lake.delta_errors import check_clear_text, delta_errors, require_deltalake
from sparklog.lake.delta_reader import DeltaReader, TableFile
from sparklog.lake.location import is_local
from sparklog.lake.log_entry import needs_own_commit
from sparklog.lake.parquet_files import partition_text
from sparklog.lake.rules import TableState
from sparklog.lake.table_features import check_features, check_vectors, required_features

APP_PREFIX = "sparklog:"
COMMIT_MARK = "sparklog"
"""Key in the commit information that marks the commits of a worker."""
TOPIC_ID_PROPERTY = "sparklog.topic.id"
"""Property of the table with the id of its topic."""
MODE_PROPERTY = "sparklog.lake.mode"
"""Property of the table with its mode."""
HISTORY_PAGE = 50
FIRST_PAGE = 4
"""Number of commits that a search without a checked version reads first. Usually the newest one is a worker's, which
ends the search."""


def app_id(topic_id: str, partition: int) -> str:
    """Return the name of a partition's application transaction in the table."""
    return f"{APP_PREFIX}{topic_id}:{partition}"


class DeltaSnapshot:
    """One version of a table, with its own handle in the package deltalake."""

    def __init__(self, location: str, handle: Any) -> None:
        self.location = location
        self.handle = handle
        """The version in the package deltalake."""

    @classmethod
    def open(cls, location: str, version: int | None = None) -> Self | None:
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

    # -- facts

    @property
    def version(self) -> int:
        """Number of the table's version that this object reads."""
        return int(self.handle.version())

    @property
    def table_id(self) -> str:
        """Id of the table."""
        return str(self.handle.metadata().id)

    @property
    def topic_id(self) -> str:
        """Topic id in the table's properties; "" if there is none."""
        return str(self.handle.metadata().configuration.get(TOPIC_ID_PROPERTY) or "")

    @property
    def mode(self) -> str:
        """The lake mode in the table's properties; "" if there is none."""
        return str(self.handle.metadata().configuration.get(MODE_PROPERTY) or "")

    @property
    def partition_columns(self) -> list[str]:
        """Columns that partition the table."""
        return list(self.handle.metadata().partition_columns)

    @property
    def reader(self) -> DeltaReader:
        """Reader of the files of this version."""
        return DeltaReader(self.location, self.schema)

    @property
    def schema(self) -> pa.Schema:
        """Columns of the table."""
        return pa.schema(self.handle.schema().to_arrow())

    def next_offset(self, topic_id: str, partition: int) -> int | None:
        """Return a partition's next offset in this version; None if the table has no transaction of it."""
        version = self.handle.transaction_version(app_id(topic_id, partition))
        return None if version is None else int(version)

    def next_offsets(self, topic_id: str, partitions: int) -> dict[int, int]:
        """Return the next offsets by partition. Partitions without a transaction in the table are left out."""
        offsets = {p: self.next_offset(topic_id, p) for p in range(partitions)}
        return {p: offset for p, offset in offsets.items() if offset is not None}

    def state(
        self,
        topic_id: str,
        partitions: int,
        *,
        checked_version: int | None = None,
        file_offsets: dict[str, dict[int, int]],
    ) -> TableState:
        """Return the facts that a round depends on. `checked_version`: a version that this process has checked; older
        history is not read. None if there is none. `file_offsets`: largest offset by partition of each file, by path,
        for files whose statistics lack it. Such files have to be read; the call adds their offsets. Raises
        LakePausedError: The table lacks the column `_partition`, `_offset` or `_timestamp`; LakeUnavailableError."""
        with delta_errors(self.location):
            if self.topic_id != topic_id:  # another topic's table can lack the position columns
                return TableState(self.version, self.table_id, self.topic_id, {})
            self.check_positions()
            others = list(self._commits_of_others(checked_version))
            return TableState(
                version=self.version,
                table_id=self.table_id,
                topic_id=self.topic_id,
                next_offsets=self.next_offsets(topic_id, partitions),
                largest_offsets=self._largest_offsets(file_offsets),
                restored_to=_restored_to(others),
                doubled_by=self._doubled_by(others),
            )

    def check_positions(self) -> None:
        """Check that the table has the columns with the rows' positions in the log. Raises LakePausedError: A user has
        overwritten the table, or dropped such a column."""
        self.reader.layout(["_partition", "_offset", "_timestamp"])

    def check_features(self, *, rewrites: str = "") -> None:
        """Check that a commit of plain Parquet files can be appended to the table. `rewrites`: the mode or command for
        which the commit also replaces files; empty: none. Raises LakePausedError: The table has a feature that this
        writer does not support."""
        protocol = self.handle.protocol()
        check_features(
            required_features(protocol.min_writer_version, protocol.writer_features or ()),
            self.handle.metadata().configuration,
            self.handle.schema().fields,
            rewrites=rewrites,
            is_directory=is_local(self.location),
        )

    def can_widen(self) -> bool:
        """Return True if columns of the table can become wider without a change of its files."""
        metadata, features = self.handle.metadata(), self.handle.protocol().writer_features or ()
        is_on = (metadata.configuration.get("delta.enableTypeWidening") or "").lower() == "true"
        return is_on and is_local(self.location) and needs_own_commit(features)

    def last_commit(self) -> dict[str, Any] | None:
        """Return the information of a worker's newest commit with offsets, including `timestamp` and `version`. None if
        the last HISTORY_PAGE commits have none."""
        with delta_errors(self.location):
            return next((e for e in self.handle.history(HISTORY_PAGE) if "offsets" in (e.get(COMMIT_MARK) or {})), None)

    def operations(self) -> list[str]:
        """Return the operations of all commits of other writers, such as "DELETE", except appends; the newest first."""
        with delta_errors(self.location):
            return [
                str(entry.get("operation", ""))
                for entry in self.handle.history()
                if COMMIT_MARK not in entry and (entry.get("operationParameters") or {}).get("mode") != "Append"
            ]

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
                then, now = self.files_at(version - 1), self.files_at(version)
                added = sum(self._row_count(f) for path, f in now.items() if path not in then)
                removed = sum(self._row_count(f) for path, f in then.items() if path not in now)
                if added > removed:
                    return version
        return None

    def _commits_of_others(self, checked_version: int | None) -> Iterator[dict[str, Any]]:
        """Yield the commits after the last commit of a worker, or after `checked_version`, the newest first."""
        limit = FIRST_PAGE if checked_version is None else max(0, self.version - checked_version)
        seen = 0
        while limit:
            with delta_errors(self.location):
                page = self.handle.history(limit)
            for entry in page[seen:]:
                if COMMIT_MARK in entry:
                    return
                yield entry
            if checked_version is not None or len(page) < limit:
                return
            seen, limit = len(page), 4 * limit

    def _row_count(self, file: TableFile) -> int:
        return int(self.reader.metadata(file).num_rows) if file.rows is None else file.rows

    def _largest_offsets(self, file_offsets: dict[str, dict[int, int]]) -> dict[int, int]:
        largest: dict[int, int] = {}
        for file in self.files():
            if file.partition is not None and file.last_offset is not None:
                offsets = {file.partition: file.last_offset}
            elif file.path in file_offsets:
                offsets = file_offsets[file.path]
            else:
                offsets = file_offsets[file.path] = self.reader.largest_offsets(file)
            for partition, offset in offsets.items():
                largest[partition] = max(largest.get(partition, -1), offset)
        return largest

    # -- files

    def files(self) -> list[TableFile]:
        """Return the files of this version. Raises LakeUnavailableError."""
        with delta_errors(self.location):
            actions = pa.table(self.handle.get_add_actions(flatten=True))
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

    def files_at(self, version: int) -> dict[str, TableFile]:
        """Return the files of a version by path; empty if the version does not exist. Raises LakeUnavailableError."""
        table = self if version == self.version else DeltaSnapshot.open(self.location, version)
        return {} if table is None else {f.path: f for f in table.files()}

    def deletion_masks(self) -> dict[str, Any]:
        """Return a mask for each file with a deletion vector, by file name: an array that is True for each row that is
        not deleted. Raises LakeUnavailableError; LakePausedError: deltalake cannot read the vectors."""
        with delta_errors(self.location):
            features = self.handle.protocol().reader_features or ()
            if "deletionVectors" not in features:
                return {}
            check_vectors(features)
            masks: dict[str, Any] = {}
            for batch in pa.RecordBatchReader.from_stream(self.handle.deletion_vectors()):
                for path, mask in zip(batch.column(0).to_pylist(), batch.column(1), strict=True):
                    masks[path.rsplit("/", 1)[-1]] = np.asarray(mask.as_py(), dtype=bool)
            return masks


def _restored_to(others: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the version to which the newest RESTORE in `others` went back; -1 if the commit does not name it, None
    without a RESTORE."""
    for entry in others:
        if str(entry.get("operation", "")).upper() == "RESTORE":
            version = (entry.get("operationParameters") or {}).get("version")
            return int(str(version)) if str(version).isdigit() else -1
    return None


def reopen_newest(table: DeltaSnapshot) -> DeltaSnapshot:
    """Open the newest version of a table that must exist. Raises LakePausedError."""
    newest = DeltaSnapshot.open(table.location)
    if newest is None:
        raise table_dropped_error(table.location, table.table_id)
    return newest


def table_dropped_error(location: str, table_id: str) -> LakePausedError:
    """Return the error for a table that does not exist any more."""
    return LakePausedError(
        f"the topic's table {table_id} is no longer at {location}: it was dropped or moved; use 'sparklog lake "
        "rebuild' to create it again from the log, or bring it back and use 'sparklog lake resume'"
    )
