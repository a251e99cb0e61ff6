"""Rounds of one topic: each round adds committed rows of the log to the topic's Delta table.

The order of a round: ask the log for its offsets, open the newest version of the table and check it, write files,
commit on exactly the version that was checked. A crash leaves files that no version names.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

import pyarrow as pa
from msgspec import Struct

from sparklog.client.net.topic_info import TopicInfo
from sparklog.environment.fault_points import reach
from sparklog.lake.columns import table_schema
from sparklog.lake.delta_commit import DeltaCommitter
from sparklog.lake.location import normal_location
from sparklog.lake.rules import PartitionEnds, Plan, Span, TableState, is_beyond_log, is_cut_short, plan_round
from sparklog.lake.settings import LakeSettings
from sparklog.lake.topic_table import DeltaTables
from sparklog.lake.worker.append_round import AppendRound
from sparklog.lake.worker.changed_rows import TemporaryRows
from sparklog.lake.worker.round_table import RoundTable
from sparklog.lake.worker.topic_reader import TopicReader
from sparklog.lake.worker.upsert_round import UpsertRound

logger = logging.getLogger(__name__)

OFFSETS_PER_ROUND = 4_000_000
"""Largest number of offsets of a partition in one round of a topic without transactions."""
UNLIMITED = 2**63 - 1


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


class Retry(Struct, frozen=True):
    """An attempt at a round that has committed nothing, and has to begin again."""

    info: TopicInfo
    """Topic for the next attempt."""


class Done(Struct, frozen=True):
    """An attempt at a round that has succeeded."""

    result: RoundResult


class LakeSync:
    """The rounds of one topic; for one thread. The table holds all state: the fields here only save repeated reads."""

    def __init__(
        self,
        log: TopicReader,
        *,
        tables: type[DeltaTables] = DeltaTables,
        now_ms: Callable[[], int] | None = None,
        pause_s: Callable[[float], None] = time.sleep,
    ) -> None:
        """Create the rounds of one topic. `tables`: class that opens, creates and changes tables; tests pass a model.
        `now_ms`: clock in ms since 1970. None: the system's. `pause_s`: sleeps for a number of seconds, between two
        attempts to commit."""
        self._log = log
        self._tables = tables
        self._table = RoundTable(tables, pause_s)
        self._now_ms = now_ms or (lambda: int(time.time() * 1000))
        self._has_transactions = False

    def round(self, info: TopicInfo, settings: LakeSettings, note_table_id: Callable[[str], None]) -> RoundResult:
        """Run one round. `note_table_id`: called with the table's id if the settings do not have it yet. Raises
        LakePausedError; LakeUnavailableError: The table cannot be reached, or other writers commit all the time;
        InvalidConfigError: Delta cannot hold a column of a topic that never had a table; SparklogError."""
        attempt = self._attempt(info, settings, note_table_id)
        while isinstance(attempt, Retry):
            attempt = self._attempt(attempt.info, settings, note_table_id)
        return attempt.result

    def next_offsets(self, info: TopicInfo, settings: LakeSettings) -> dict[int, int] | None:
        """Return the next offsets in the table; None if there is no table. Raises LakeUnavailableError."""
        table = self._tables.open(normal_location(settings.location))
        return None if table is None else table.next_offsets(info.topic_id, info.partitions)

    def _attempt(self, info: TopicInfo, settings: LakeSettings, note_table_id: Callable[[str], None]) -> Retry | Done:
        as_of_ms = self._now_ms()
        ends, newest = self._log.ends_and_topic(info)
        if newest.partitions > info.partitions:
            return Retry(newest)  # a transaction can have records in the new partitions, too
        schema = table_schema(newest.schema, is_envelope=newest.is_envelope)
        table, state = self._table.open(newest, settings, schema, note_table_id)
        if is_beyond_log(state, ends) and not is_beyond_log(state, self._log.ends(newest)):
            return Retry(newest)  # another worker has committed since the log was asked
        plan = plan_round(
            state,
            ends,
            accept_gaps=not settings.hold_retention,
            offsets_max=UNLIMITED if self._has_transactions else OFFSETS_PER_ROUND,
        )
        _log_gaps(newest.name, plan)
        version = state.version
        if plan.spans:
            with TemporaryRows() as on_disk:
                work = self._new_round(newest, settings, schema, self._tables.committer(table), on_disk)
                try:
                    has_transactions = work.write(plan.spans, may_stop=not self._has_transactions)
                    plan = Plan(work.spans, plan.gaps)
                    if has_transactions and not self._has_transactions:
                        self._has_transactions = True
                        if is_cut_short(plan, ends):
                            work.files.abandon()
                            return Retry(newest)  # a span that ends before `stable` can cut a transaction
                    reach("lake.files-written")
                    version = self._table.commit(work, table, state, plan, newest, settings)
                except BaseException:
                    work.files.close()
                    raise
        self._table.checked_version = version
        return Done(_result(state, version, plan, ends, as_of_ms, len(table.files())))

    def _new_round(
        self,
        info: TopicInfo,
        settings: LakeSettings,
        schema: pa.Schema,
        committer: DeltaCommitter,
        on_disk: TemporaryRows,
    ) -> AppendRound | UpsertRound:
        if settings.is_upsert:
            return UpsertRound(self._log, info, settings, schema, committer, on_disk)
        return AppendRound(self._log, info, settings, schema, committer)


def _log_gaps(topic: str, plan: Plan) -> None:
    for partition, gap in plan.gaps.items():
        logger.warning(
            "topic %s: offsets %d to %d of partition %d were deleted from the log before the table had them",
            topic, gap.start, gap.end - 1, partition,
        )  # fmt: skip


def _result(
    state: TableState, version: int, plan: Plan, ends: Mapping[int, PartitionEnds], as_of_ms: int, files: int
) -> RoundResult:
    next_offsets = {**state.next_offsets, **plan.next_offsets}
    is_current = all(next_offsets.get(p, end.start) >= end.stable for p, end in ends.items())
    offsets = sum(s.end - s.start for s in plan.spans.values())
    is_complete = is_current or not plan.spans
    return RoundResult(version, next_offsets, offsets, is_complete, is_current, as_of_ms, files, plan.gaps)
