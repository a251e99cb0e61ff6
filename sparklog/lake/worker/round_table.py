"""The table of a topic for the rounds of one worker: opened and checked, and the commit of a round with its retries."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pyarrow as pa

from sparklog.client.net.topic_info import TopicInfo
from sparklog.environment.fault_points import reach
from sparklog.errors import LakePausedError, LakeUnavailableError
from sparklog.lake.columns import missing_columns, wider_columns
from sparklog.lake.delta_errors import CommitConflictError
from sparklog.lake.delta_snapshot import DeltaSnapshot, table_dropped_error
from sparklog.lake.location import normal_location
from sparklog.lake.rules import Outcome, Plan, TableState, after_failed_commit, check_table
from sparklog.lake.settings import LakeSettings
from sparklog.lake.topic_table import DeltaTables, open_or_create
from sparklog.lake.worker.append_round import AppendRound
from sparklog.lake.worker.upsert_round import UpsertRound

logger = logging.getLogger(__name__)

COMMIT_ATTEMPTS = 20
SCHEMA_ATTEMPTS = 5


class RoundTable:
    """The table of one topic; for one thread. The fields only save repeated reads."""

    def __init__(self, tables: type[DeltaTables], pause_s: Callable[[float], None]) -> None:
        """Create the table's checks. `pause_s`: sleeps for a number of seconds, between two attempts to commit."""
        self._tables = tables
        self._pause_s = pause_s
        self.checked_version: int | None = None
        """Version whose history has been checked; None if there is none."""
        self._file_offsets: dict[str, dict[int, int]] = {}

    def open(
        self, info: TopicInfo, settings: LakeSettings, schema: pa.Schema, note_table_id: Callable[[str], None]
    ) -> tuple[DeltaSnapshot, TableState]:
        """Open the newest version of the table, and check it.

        Create the table if the topic never had one. Call `note_table_id` if the settings lack the id. Add columns of
        the topic that the table lacks. `schema`: columns of the topic's rows. Returns the version and its state. Raises
        LakePausedError and LakeUnavailableError.
        """
        for _ in range(SCHEMA_ATTEMPTS):
            try:
                table = open_or_create(info.name, info.topic_id, settings, schema, self._tables)
            except CommitConflictError:
                continue
            if table.topic_id != info.topic_id:
                return table, self._check(table, info, settings)  # raises the error
            if not settings.table_id:
                note_table_id(table.table_id)
            wider = wider_columns(schema, table.schema)
            missing = [] if wider and table.can_widen() else missing_columns(schema, table.schema)
            state = self._check(table, info, settings)  # nothing is written to a table that is not sound
            if not (wider or missing):
                return table, state
            try:
                if missing:
                    self._tables.committer(table).add_columns(missing)
                else:
                    self._tables.committer(table).widen_columns(wider)
            except CommitConflictError as e:
                e.raise_if_lasting(table.location)
                continue
            self.checked_version = None
        raise LakeUnavailableError(f"the table of topic {info.name!r} keeps changing; the worker retries")

    def commit(
        self,
        work: AppendRound | UpsertRound,
        table: DeltaSnapshot,
        state: TableState,
        plan: Plan,
        info: TopicInfo,
        settings: LakeSettings,
    ) -> int:
        """Commit a round on `table`, and return the new version. After a conflict commit the round on the newest
        version, as long as the table's next offsets are still those of `state`. Raises LakePausedError and
        LakeUnavailableError."""
        base, base_state = table, state
        is_doubtful = False  # True after an attempt that can still succeed, because nobody has made its version
        for attempt in range(COMMIT_ATTEMPTS):
            reach("lake.before-commit")
            try:
                work.commit(self._tables.committer(base), plan)
            except CommitConflictError as e:
                failure = e
                logger.info("topic %s: version %d could not be committed: %s", info.name, base.version + 1, e)
            else:
                reach("lake.after-commit")
                return base.version + 1
            if attempt:
                self._pause_s(min(0.02 * 2**attempt, 1.0))
            newest = self._tables.open(normal_location(settings.location))
            if newest is None:
                raise table_dropped_error(settings.location, state.table_id)
            newest_state = self._state(newest, info)
            outcome = after_failed_commit(plan.spans, base_state, newest_state)
            if outcome is not Outcome.AGAIN and not attempt and newest.version > base.version:
                self._discard_overtaken(work, base.version + 1, settings)
            if outcome is Outcome.DONE:
                return newest.version
            if outcome is Outcome.DISCARD:
                self._check(newest, info, settings)
                raise LakeUnavailableError(
                    f"another worker has committed offsets of topic {info.name!r}: the next round continues behind them"
                )
            if failure.lasting and not is_doubtful:
                work.files.discard(newest)
            failure.raise_if_lasting(newest.location)
            is_doubtful = is_doubtful or newest.version == base.version
            work.prepare_retry(base.version, newest.version)
            self._check(newest, info, settings)
            if missing_columns(work.schema, newest.schema):
                raise LakeUnavailableError(f"columns of the table of topic {info.name!r} were dropped during the round")
            base, base_state = newest, newest_state
        if base.version == table.version:  # the reason is not another writer, so that each round would write new files
            raise LakePausedError(
                f"{COMMIT_ATTEMPTS} commits to the table at {base.location} failed, and no other writer has committed: "
                f"{failure}; mend the cause, then use 'sparklog lake resume'"
            )
        raise LakeUnavailableError(
            f"{COMMIT_ATTEMPTS} commits to the table of topic {info.name!r} conflicted with other writers; the worker "
            "retries"
        )

    def _discard_overtaken(
        self, work: AppendRound | UpsertRound, attempted_version: int, settings: LakeSettings
    ) -> None:
        """Delete the files of a round that has only tried to make this version, if another writer has made it. After
        more attempts an earlier one has perhaps committed them: then they stay for VACUUM."""
        winner = self._tables.open(normal_location(settings.location), attempted_version)
        if winner is not None:
            work.files.discard(winner)

    def _state(self, table: DeltaSnapshot, info: TopicInfo) -> TableState:
        return table.state(
            info.topic_id, info.partitions, checked_version=self.checked_version, file_offsets=self._file_offsets
        )

    def _check(self, table: DeltaSnapshot, info: TopicInfo, settings: LakeSettings) -> TableState:
        """Return the table's state. Raises LakePausedError: The table does not fit the topic, its settings or this
        worker; LakeUnavailableError."""
        state = self._state(table, info)
        if state.may_undo_compaction:
            self._undo_compaction(table, info)
        check_table(state, info.topic_id, settings.table_id)
        table.check_features(rewrites="lake.mode=upsert" if settings.is_upsert else "")
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

    def _undo_compaction(self, table: DeltaSnapshot, info: TopicInfo) -> None:
        """Undo the newest version, a compaction that has added rows, if that is possible. Raises LakeUnavailableError
        after the undo, so that the next round begins with the repaired table."""
        committer = self._tables.committer(table)
        if not committer.can_undo_compaction():
            return
        try:
            committer.undo_compaction()
        except CommitConflictError as e:
            raise LakeUnavailableError(f"the table of topic {info.name!r} has changed meanwhile: {e}") from e
        raise LakeUnavailableError(
            f"version {table.version} of the table of topic {info.name!r}, a compaction that was planned before its "
            "files were replaced, has doubled rows and was taken back; pause the lake during compactions by delta-rs"
        )
