"""One round of an upserted table: the newest row of each key replaces the row in the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sparklog.client.net.topic_info import TopicInfo
from sparklog.errors import LakePausedError
from sparklog.lake.columns import topic_columns
from sparklog.lake.delta_commit import DeltaCommitter
from sparklog.lake.delta_reader import TableFile, in_layout
from sparklog.lake.delta_snapshot import DeltaSnapshot
from sparklog.lake.newest_rows import is_deletion, other_keys
from sparklog.lake.parquet_files import DataFileWriter
from sparklog.lake.rules import Plan, Span
from sparklog.lake.settings import LakeSettings
from sparklog.lake.worker.changed_rows import ChangedRows, TemporaryRows
from sparklog.lake.worker.round_files import RoundFiles
from sparklog.lake.worker.topic_reader import TopicReader
from sparklog.settings import MIB

UPSERT_BYTES_PER_ROUND = 64 * MIB
"""Size in memory of the newest changes of all keys. A round of a topic without transactions stops reading there; one of
a topic with transactions has to read on, and puts further changes into a temporary file."""
UPSERT_FILE_BYTES_MAX = 32 * MIB
"""Size of a full file of an upserted table: a change of one row rewrites its file."""


class UpsertRound:
    """The changes of one round, and their commit."""

    def __init__(
        self,
        log: TopicReader,
        info: TopicInfo,
        settings: LakeSettings,
        schema: pa.Schema,
        committer: DeltaCommitter,
        on_disk: TemporaryRows,
    ) -> None:
        """Create a round. `schema`: columns of the rows. `committer`: of the version that was checked. `on_disk`: gets
        the changes that do not fit into memory."""
        self._log = log
        self._on_disk = on_disk
        self._info = info
        self._file_bytes = min(settings.file_size_bytes, UPSERT_FILE_BYTES_MAX)
        self._location = committer.table.location
        self.schema = schema
        self.files = RoundFiles(committer)
        self._changes: dict[int, ChangedRows] = {}
        self._changes_bytes = 0
        self.spans: dict[int, Span] = {}
        """The offsets that were read, by partition."""

    def write(self, spans: Mapping[int, Span], *, may_stop: bool) -> bool:
        """Read the rows of all spans, and keep the newest change of each key until the commit. `may_stop`: True to
        allow reading to stop early at UPSERT_BYTES_PER_ROUND; `spans` has the offsets that were read. Returns True if a
        batch that was read belongs to a transaction."""
        has_transactions = False
        for partition, span in spans.items():
            self.spans[partition] = span
            if span.end > span.start:
                has_transactions = self._collect(partition, span, may_stop=may_stop) or has_transactions
        return has_transactions

    def _collect(self, partition: int, span: Span, *, may_stop: bool) -> bool:
        """Read a span, or only its beginning if `may_stop`, and keep the newest change of each key. Returns True if a
        batch that was read belongs to a transaction."""
        if may_stop and self._changes_bytes >= UPSERT_BYTES_PER_ROUND:
            self.spans[partition] = Span(span.start, span.start)
            return False
        changes = ChangedRows(key_columns(self._info), UPSERT_BYTES_PER_ROUND, None if may_stop else self._on_disk)

        def keep(table: pa.Table) -> bool:
            is_selected = changes.add(table)
            if not is_selected or not may_stop:
                return False
            if self._changes_bytes + changes.newest_bytes < UPSERT_BYTES_PER_ROUND // 2:
                return False
            self.spans[partition] = Span(span.start, table.column("_offset")[-1].as_py() + 1)
            return True

        columns = topic_columns(self._info.schema, is_envelope=self._info.is_envelope)
        has_transactions = self._log.read(self._info, partition, span, columns, self.schema, keep)
        changes.complete(UPSERT_BYTES_PER_ROUND - self._changes_bytes)
        self._changes[partition] = changes
        self._changes_bytes += changes.newest_bytes
        return has_transactions

    def commit(self, committer: DeltaCommitter, plan: Plan) -> None:
        """Merge the changes into the files of the version of `committer`, and commit. Raises CommitConflictError."""
        removed = self._merge(committer.table)
        self.files.has_tried = True
        committer.commit(self.files.complete, removed, plan.next_offsets, information=plan.information)

    def prepare_retry(self, base: int, newest: int) -> None:
        """Forget the merged files after a failed commit on version `base`: the next attempt merges again. If another
        writer has made the next version, no version will ever have the files, and they are deleted."""
        winner = None if newest == base else DeltaSnapshot.open(self._location, base + 1)
        self.files.replace_after_conflict(winner)

    def _merge(self, table: DeltaSnapshot) -> list[TableFile]:
        """Write the files of the next version, and return the files that they replace.

        Files with rows of changed keys are replaced, and small files of the same partitions. The new files hold the
        remaining rows of the replaced files, then the changes without deletions.
        """
        keys = key_columns(self._info)
        files, masks = table.files(), table.deletion_masks()
        schema = pa.schema([f.with_nullable(True) for f in table.schema])
        removed: list[TableFile] = []
        for partition, changes in self._changes.items():
            own = [f for f in files if f.partition == partition]
            kept = self._kept_rows(table, own, changes, masks)
            with self.files.writer(schema, self._file_bytes, f"{partition:05d}") as writer:
                for file in own:
                    if self._rewrite(table, file, kept[file.path], masks, writer):
                        removed.append(file)
                for newest in changes.groups():
                    is_deleted = is_deletion(newest, keys, value_columns(self._info))
                    rows = newest.filter(pc.invert(is_deleted))
                    if rows.num_rows:
                        writer.write(in_layout(rows, schema))
        return removed

    def _kept_rows(
        self, table: DeltaSnapshot, files: Sequence[TableFile], changes: ChangedRows, masks: Mapping[str, Any]
    ) -> dict[str, np.ndarray | None]:
        """Return for the path of each file a mask of the rows whose keys are not changed; None if none is changed."""
        keys = key_columns(self._info)
        kept: dict[str, np.ndarray | None] = dict.fromkeys(file.path for file in files)
        for newest in changes.groups() if files else ():
            for file in files:
                others = other_keys(table.reader.read_file(file, keys, masks=masks), newest, keys)
                if others is not None:
                    former = kept[file.path]
                    kept[file.path] = others if former is None else others & former
        return kept

    def _rewrite(
        self,
        table: DeltaSnapshot,
        file: TableFile,
        is_kept: np.ndarray | None,
        masks: Mapping[str, Any],
        writer: DataFileWriter,
    ) -> bool:
        """Write the rows of a file whose keys are not changed. Returns False, without a row written, if the file stays:
        no key of it is changed, and it is not small. Raises LakePausedError: The file has a deletion vector. A commit
        cannot remove such a file, because deltalake's remove action does not name the vector."""
        if is_kept is None and file.size_bytes >= self._file_bytes // 2:
            return False
        if file.name in masks:
            raise LakePausedError(
                f"file {file.path} of the upserted table has a deletion vector, and the lake worker cannot replace such a "
                "file: set delta.enableDeletionVectors = false, run REORG TABLE … APPLY (PURGE), and use 'sparklog lake "
                "resume'; or use 'sparklog lake rebuild'"
            )
        at = 0
        for rows in table.reader.read_pieces(file, None, masks=masks):
            n = rows.num_rows
            writer.write(rows if is_kept is None else rows.filter(pa.array(is_kept[at : at + n])))
            at += n
        return True


def value_columns(info: TopicInfo) -> list[str]:
    """Return the columns that are all null in a row that deletes its key."""
    if info.is_envelope:
        return ["value"]
    return [c for c in info.schema.names if c not in info.key_columns and c != info.timestamp_column]


def key_columns(info: TopicInfo) -> list[str]:
    """Return the columns of the key. Raises LakePausedError."""
    if info.is_envelope:
        return ["key"]
    if not info.key_columns:
        raise LakePausedError(
            f"lake.mode = upsert needs the key of a row: topic {info.name!r} has no key columns; create it with "
            "--key-columns, or use lake.mode = append"
        )
    return list(info.key_columns)
