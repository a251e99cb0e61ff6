"""Rounds of one topic: each round adds committed rows of the log to the topic's Delta table.

The order of a round: ask the log for its offsets, open the newest version of the table and check it, write files,
commit on exactly the version that was checked. A crash leaves files that no version names.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from sparklog.client.net.topic_info import TopicInfo
from sparklog.environment.fault_points import reach
from sparklog.errors import LakePausedError, LakeUnavailableError
from sparklog.lake.columns import missing_columns, table_schema, topic_columns, wider_columns
from sparklog.lake.delta_errors import CommitConflictError
from sparklog.lake.delta_snapshot import LakeTable, TableFile, dropped, normal_location
from sparklog.lake.newest_rows import is_deletion, newest_per_key, other_keys
from sparklog.lake.parquet_files import DataFile
from sparklog.lake.rules import (
    Outcome,
    PartitionEnds,
    Plan,
    Span,
    TableState,
    after_failed_commit,
    check_table,
    is_beyond_log,
    is_cut_short,
    may_undo_compaction,
    plan_round,
)
from sparklog.lake.settings import LakeSettings
from sparklog.lake.topic_table import open_or_create
from sparklog.lake.worker.topic_reader import LogSide
from sparklog.settings import MIB

logger = logging.getLogger(__name__)

OFFSETS_PER_ROUND = 4_000_000
"""Largest number of offsets of a partition in one round of a topic without transactions."""
UPSERT_BYTES_PER_ROUND = 64 * MIB
"""Size in memory of the newest changes of all keys at which a round of an upserted topic without transactions stops
reading."""
UPSERT_FILE_BYTES_MAX = 32 * MIB
"""Size of a full file of an upserted table: a change of one row rewrites its file."""
UNLIMITED = 2**63 - 1
COMMIT_ATTEMPTS = 20
SCHEMA_ATTEMPTS = 5


class RoundResult(Struct, frozen=True):
    """The outcome of one round."""

    version: int
    """Version of the table after the round."""
    next_offsets: Mapping[int, int]
    """Next offset by partition."""
    offsets: int
    """Number of offsets that the round has added to the table, those of markers and aborted records included."""
    is_complete: bool
    """True if the table is current, or the round had no new offsets. False: the next round should follow at once."""
    is_current: bool
    """True if the table has all records of transactions that had ended at `as_of_ms`."""
    as_of_ms: int
    """Time of the request for the log's offsets, in ms since 1970."""
    files: int
    """Number of the table's files before the round."""
    gaps: Mapping[int, Span] = {}
    """Offsets by partition that were deleted from the log before the table had them."""


class TopicLake:
    """The rounds of one topic; for one thread. The table holds all state: the fields here only save repeated reads."""

    def __init__(
        self,
        log: LogSide,
        *,
        tables: type[LakeTable] = LakeTable,
        now_ms: Callable[[], int] | None = None,
        pause_s: Callable[[float], None] = time.sleep,
    ) -> None:
        """Create the rounds of one topic. `tables`: class that opens and creates tables; tests pass a model. `now_ms`:
        clock in ms since 1970. None: the system's. `pause_s`: sleeps for a number of seconds, between two attempts to
        commit."""
        self._log = log
        self._tables = tables
        self._now_ms = now_ms or (lambda: int(time.time() * 1000))
        self._pause_s = pause_s
        self._known_version: int | None = None
        self._known_offsets: dict[str, dict[int, int]] = {}
        self._has_transactions = False

    def round(self, info: TopicInfo, settings: LakeSettings, note_table_id: Callable[[str], None]) -> RoundResult:
        """Run one round. `note_table_id`: called with the table's id if the settings do not have it yet. Raises
        LakePausedError; LakeUnavailableError: The table cannot be reached, or other writers commit all the time;
        InvalidConfigError: Delta cannot hold a column of a topic that never had a table; SparklogError."""
        as_of_ms = self._now_ms()
        ends = self._log.ends(info)
        newest = self._newest(info)  # asked after the ends: no row below them has a newer schema
        if newest.partitions > info.partitions:  # a transaction can have records in the new partitions, too
            return self.round(newest, settings, note_table_id)
        info = newest
        schema = table_schema(info.schema, is_envelope=info.is_envelope)
        table = self._opened(info, settings, schema, note_table_id)
        state = self._state(table, info, settings)
        if is_beyond_log(state, ends) and not is_beyond_log(state, self._log.ends(info)):
            return self.round(info, settings, note_table_id)  # another worker has committed since the log was asked
        accept_gaps = not settings.hold_retention
        plan = plan_round(
            state, ends, accept_gaps=accept_gaps, offsets_max=UNLIMITED if self._has_transactions else OFFSETS_PER_ROUND
        )
        for partition, gap in plan.gaps.items():
            logger.warning(
                "topic %s: offsets %d to %d of partition %d were deleted from the log before the table had them",
                info.name, gap.start, gap.end - 1, partition,
            )  # fmt: skip
        if not plan.spans:
            return self._result(state, state.version, {}, ends, as_of_ms, len(table.files()), plan)
        work = _Round(self._log, info, settings, schema, table)
        try:
            has_transactions = work.write(plan.spans, may_stop=not self._has_transactions)
            plan = Plan(work.spans, plan.gaps)
            if has_transactions and not self._has_transactions:
                self._has_transactions = True
                if is_cut_short(plan, ends):  # a span that ends before `stable` can cut a transaction
                    work.abandon()
                    return self.round(info, settings, note_table_id)
            reach("lake.files-written")
            version = self._commit(work, table, state, plan, info, settings)
        except BaseException:
            work.close()
            raise
        return self._result(state, version, plan.spans, ends, as_of_ms, len(table.files()), plan)

    def next_offsets(self, info: TopicInfo, settings: LakeSettings) -> dict[int, int] | None:
        """Return the next offsets in the table; None if there is no table. Raises LakeUnavailableError."""
        table = self._tables.open(normal_location(settings.location))
        return None if table is None else table.next_offsets(info.topic_id, info.partitions)

    def _newest(self, info: TopicInfo) -> TopicInfo:
        found = self._log.newest(info.name)
        if found.topic_id != info.topic_id or found.partitions < info.partitions:
            raise LakeUnavailableError(f"topic {info.name!r} was created again during the round: the next one follows")
        return found

    def _result(
        self,
        state: TableState,
        version: int,
        spans: Mapping[int, Span],
        ends: Mapping[int, PartitionEnds],
        as_of_ms: int,
        files: int,
        plan: Plan,
    ) -> RoundResult:
        self._known_version = version
        next_offsets = {**state.next_offsets, **{p: s.end for p, s in spans.items()}}
        is_current = all(next_offsets.get(p, end.start) >= end.stable for p, end in ends.items())
        offsets = sum(s.end - s.start for s in spans.values())
        is_complete = is_current or not spans
        return RoundResult(version, next_offsets, offsets, is_complete, is_current, as_of_ms, files, plan.gaps)

    # -- the table

    def _opened(
        self, info: TopicInfo, settings: LakeSettings, schema: pa.Schema, note_table_id: Callable[[str], None]
    ) -> LakeTable:
        """Return the newest version of the table.

        Create the table if the topic never had one. Call `note_table_id` if the settings lack the id. Add columns of
        the topic that the table lacks. A table of another topic is returned unchanged.
        """
        for _ in range(SCHEMA_ATTEMPTS):
            try:
                table = open_or_create(info.name, info.topic_id, settings, schema, self._tables)
            except CommitConflictError:
                continue
            if table.topic_id == info.topic_id and not settings.table_id:
                note_table_id(table.table_id)
            if table.topic_id != info.topic_id:
                return table  # `check_table` raises the error
            wider = wider_columns(schema, table.schema())
            missing = [] if wider and table.can_widen() else missing_columns(schema, table.schema())
            if not (wider or missing):
                return table
            self._state(table, info, settings)  # nothing is written to a table that is not sound
            try:
                if missing:
                    table.add_columns(missing)
                else:
                    table.widen_columns(wider)
            except CommitConflictError as e:
                e.raise_if_lasting(table.location)
                continue
            self._known_version = None
        raise LakeUnavailableError(f"the table of topic {info.name!r} keeps changing; the worker retries")

    def _state(self, table: LakeTable, info: TopicInfo, settings: LakeSettings) -> TableState:
        state = table.state(
            info.topic_id, info.partitions, known_version=self._known_version, known=self._known_offsets
        )
        if may_undo_compaction(state) and table.can_undo_compaction():
            self._undo_compaction(table, info)
        check_table(state, info.topic_id, settings.table_id)
        table.check_features(is_upsert=settings.is_upsert)
        if table.mode not in ("", settings.mode):
            raise LakePausedError(
                f"the table was made with lake.mode = {table.mode}, the settings say {settings.mode}: set lake.mode as "
                "it was, or enable the lake at a new location"
            )
        if tuple(table.partition_columns) != settings.table_partitions:
            raise LakePausedError(
                f"the table is partitioned by {table.partition_columns}, the settings say "
                f"{list(settings.table_partitions)}"
                ": set lake.mode and lake.partition.by as they were, or use 'sparklog lake rebuild' with a new location"
            )
        return state

    def _undo_compaction(self, table: LakeTable, info: TopicInfo) -> NoReturn:
        """Undo the newest version, a compaction that has added rows. Always raises LakeUnavailableError, so that the
        next round begins with the repaired table."""
        try:
            table.undo_compaction()
        except CommitConflictError as e:
            raise LakeUnavailableError(f"the table of topic {info.name!r} has changed meanwhile: {e}") from e
        raise LakeUnavailableError(
            f"version {table.version} of the table of topic {info.name!r}, a compaction that was planned before its "
            "files were replaced, has doubled rows and was taken back; pause the lake during compactions by delta-rs"
        )

    def _commit(
        self, work: _Round, table: LakeTable, state: TableState, plan: Plan, info: TopicInfo, settings: LakeSettings
    ) -> int:
        """Commit the files on `table`, and return the new version. After a conflict commit them on the newest version,
        as long as the table's next offsets are still those of `state`."""
        base, known = table, state
        is_doubtful = False  # True after an attempt that can still succeed, because nobody has made its version
        for attempt in range(COMMIT_ATTEMPTS):
            reach("lake.before-commit")
            try:
                work.commit(base, plan)
            except CommitConflictError as e:
                failure = e
                logger.info("topic %s: version %d could not be committed: %s", info.name, base.version + 1, e)
            else:
                reach("lake.after-commit")
                return base.version + 1
            if attempt:
                self._pause_s(min(0.02 * 2**attempt, 1.0))
            found = self._tables.open(normal_location(settings.location))
            if found is None:
                raise dropped(settings.location, state.table_id)
            now = found.state(
                info.topic_id, info.partitions, known_version=self._known_version, known=self._known_offsets
            )
            outcome = after_failed_commit(plan.spans, known, now)
            if outcome is Outcome.DONE:
                return found.version
            if outcome is Outcome.DISCARD:
                # the files stay for VACUUM: perhaps an earlier attempt has committed them, and another round followed
                self._state(found, info, settings)
                raise LakeUnavailableError(
                    f"another worker has committed offsets of topic {info.name!r}: the next round continues behind them"
                )
            if failure.lasting and not is_doubtful:
                work.discard(found)
            failure.raise_if_lasting(found.location)
            is_doubtful = is_doubtful or found.version == base.version
            work.note_conflict(base.version, found.version)
            self._state(found, info, settings)
            if missing_columns(work.schema, found.schema()):
                raise LakeUnavailableError(f"columns of the table of topic {info.name!r} were dropped during the round")
            base, known = found, now
        if base.version == table.version:  # the reason is not another writer, so that each round would write new files
            raise LakePausedError(
                f"{COMMIT_ATTEMPTS} commits to the table at {base.location} failed, and no other writer has committed: "
                f"{failure}; mend the cause, then use 'sparklog lake resume'"
            )
        raise LakeUnavailableError(
            f"{COMMIT_ATTEMPTS} commits to the table of topic {info.name!r} conflicted with other writers; the worker "
            "retries"
        )


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


class _Round:
    """The rows of one round, as files or as changes in memory, and their commit."""

    def __init__(
        self, log: LogSide, info: TopicInfo, settings: LakeSettings, schema: pa.Schema, table: LakeTable
    ) -> None:
        self._log = log
        self._info = info
        self._settings = settings
        self._table = table
        self.schema = schema
        self._columns = topic_columns(info.schema, is_envelope=info.is_envelope)
        self._files: list[DataFile] = []
        self._has_tried = False
        """True after an attempt to commit the files."""
        self._open: Any = None
        self._changes: dict[int, pa.Table] = {}
        self._changes_bytes = 0
        self.spans: dict[int, Span] = {}
        """The offsets that were read, by partition."""

    def write(self, spans: Mapping[int, Span], *, may_stop: bool) -> bool:
        """Read the rows of all spans. Returns True if a batch that was read belongs to a transaction.

        Mode append: write the rows to files. Mode upsert: keep the newest change of each key in memory until the
        commit. `may_stop` allows reading of an upserted topic to stop early at UPSERT_BYTES_PER_ROUND; `spans` has the
        offsets that were read.
        """
        has_transactions = False
        for partition, span in spans.items():
            self.spans[partition] = span
            if span.end <= span.start:
                continue
            if self._settings.is_upsert:
                has_transactions = self._collect(partition, span, may_stop=may_stop) or has_transactions
                continue
            self._open = self._table.writer(self.schema, self._settings.file_size_bytes, f"{partition:05d}")
            has_transactions = self._read(partition, span, self._open.write) or has_transactions
            self._files += self._open.close()
            self._open = None
            reach("lake.file-written")
        return has_transactions

    def _read(self, partition: int, span: Span, write: Callable[[pa.Table], object]) -> bool:
        return self._log.read(self._info, partition, span, self._columns, self.schema, write)

    def _collect(self, partition: int, span: Span, *, may_stop: bool) -> bool:
        """Read a span, or only its beginning if `may_stop`, and keep the newest change of each key in memory. Returns
        True if a batch that was read belongs to a transaction."""
        keys = key_columns(self._info)
        if may_stop and self._changes_bytes >= UPSERT_BYTES_PER_ROUND:
            self.spans[partition] = Span(span.start, span.start)
            return False
        found: list[pa.Table] = []
        size, reduced = 0, 0

        def keep(table: pa.Table) -> bool:
            nonlocal size, reduced
            found.append(table)
            size += table.nbytes
            if size < max(UPSERT_BYTES_PER_ROUND, 2 * reduced):
                return False
            found[:] = [newest_per_key(pa.concat_tables(found).combine_chunks(), keys)]
            size = reduced = found[0].nbytes  # memory is bounded by the keys, not by the changes
            if not may_stop or self._changes_bytes + size < UPSERT_BYTES_PER_ROUND // 2:
                return False
            self.spans[partition] = Span(span.start, table.column("_offset")[-1].as_py() + 1)
            return True

        has_transactions = self._read(partition, span, keep)
        if found:
            changes = newest_per_key(pa.concat_tables(found).combine_chunks(), keys)
            self._changes[partition] = changes
            self._changes_bytes += changes.nbytes
        return has_transactions

    def commit(self, table: LakeTable, plan: Plan) -> None:
        """Commit on the version of `table`. Raises CommitConflictError."""
        if not self._settings.is_upsert:
            self._has_tried = True
            table.commit(self._files, self._info.topic_id, plan.spans, gaps=plan.gaps)
            return
        removed, self._files = self._merged(table)
        self._has_tried = True
        table.merge(removed, self._files, self._info.topic_id, plan.spans, gaps=plan.gaps)

    def note_conflict(self, base: int, newest: int) -> None:
        """Prepare the next attempt after a failed commit on version `base`. If another writer has made the next
        version, no version will ever have the merged files of an upserted table, and they are deleted."""
        if not self._settings.is_upsert:
            return
        made = None if newest == base else LakeTable.open(self._table.location, base + 1)
        is_void = made is not None and not self._is_named_in(made)
        if is_void:
            self._table.remove_files([f.path for f in self._files])
        self._files, self._has_tried = [], not is_void

    def discard(self, newest: LakeTable) -> None:
        """Delete the files of a commit that the library has refused, unless the newest version has them all the
        same."""
        if not self._is_named_in(newest):
            self._has_tried = False
            self.abandon()

    def _is_named_in(self, table: LakeTable) -> bool:
        return not {unquote(f.path) for f in table.files()}.isdisjoint(f.path for f in self._files)

    def _merged(self, table: LakeTable) -> tuple[list[TableFile], list[DataFile]]:
        """Return the files to remove and the files that replace them.

        Files with rows of changed keys are removed, and small files of the same partitions. The new files hold the
        remaining rows of the removed files, then the changes without deletions.
        """
        keys = key_columns(self._info)
        files, masks = table.files(), table.deletion_masks()
        schema = pa.schema([f.with_nullable(True) for f in table.schema()])
        removed: list[TableFile] = []
        added: list[DataFile] = []
        for partition, changes in self._changes.items():
            file_bytes = min(self._settings.file_size_bytes, UPSERT_FILE_BYTES_MAX)
            writer = self._open = table.writer(schema, file_bytes, f"{partition:05d}")
            for file in files:
                if file.partition != partition:
                    continue
                left = other_keys(table.read_file(file, keys, masks=masks), changes, keys)
                if left is None and file.size_bytes >= file_bytes // 2:
                    continue
                _check_replaceable(file, masks)
                removed.append(file)
                at = 0
                for rows in table.read_pieces(file, None, masks=masks):
                    n = rows.num_rows
                    writer.write(rows if left is None else rows.filter(pa.array(left[at : at + n])))
                    at += n
            deleted = is_deletion(changes, keys, value_columns(self._info))
            fresh = changes.filter(pc.invert(deleted))
            if fresh.num_rows:
                writer.write(in_layout(fresh, schema))
            added += writer.close()
            self._files, self._open = list(added), None
        return removed, added

    def abandon(self) -> None:
        """Delete the files of this round. It must not be called after an attempt to commit them."""
        paths = [f.path for f in self._files]
        if self._open is not None:
            paths += self._open.abandon()
        self._table.remove_files(paths)
        self._files, self._open = [], None

    def close(self) -> None:
        """Delete the files after an error. After an attempt to commit them complete files stay, because a commit of
        unknown outcome has perhaps added them to the table."""
        if not self._has_tried:
            self.abandon()
        elif self._open is not None:
            self._table.remove_files(self._open.abandon())
            self._open = None


def _check_replaceable(file: TableFile, masks: Mapping[str, Any]) -> None:
    """Raise LakePausedError for a file with a deletion vector. A commit cannot remove such a file, because deltalake's
    remove action does not name the vector."""
    if unquote(file.path).rsplit("/", 1)[-1] in masks:
        raise LakePausedError(
            f"file {file.path} of the upserted table has a deletion vector, and the lake worker cannot replace such a "
            "file: set delta.enableDeletionVectors = false, run REORG TABLE … APPLY (PURGE), and use 'sparklog lake "
            "resume'; or use 'sparklog lake rebuild'"
        )


def in_layout(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the rows with the columns and types of a schema. Columns that the rows lack are null."""
    arrays = [
        rows.column(f.name).cast(f.type) if f.name in rows.column_names else pa.nulls(rows.num_rows, f.type)
        for f in schema
    ]
    return pa.table(arrays, schema=schema)
