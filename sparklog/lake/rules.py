"""Rules of a lake worker's round, which adds new committed rows of all partitions of a topic in one commit.

Only the Delta table stores the state of the rounds: it has an application transaction (`txn`) for each partition, and
the version of that transaction is the partition's next offset. All functions are pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from msgspec import Struct, field

from sparklog.errors import LakePausedError


class TableState(Struct, frozen=True):
    """The facts of one version of a table that a round depends on."""

    version: int
    """Version of the table."""
    table_id: str
    """Id of the table. A table that is dropped and created again has another id."""
    topic_id: str
    """Topic id in the table's properties; "" if there is none."""
    next_offsets: Mapping[int, int]
    """Next offset by partition, from the application transactions. Partitions without a transaction are left out."""
    largest_offsets: Mapping[int, int] = field(default_factory=dict)
    """Largest `_offset` in the table's files by partition."""
    restored_to: int | None = None
    """Version to which the table was restored after the last commit of a worker; -1 if that version is not known, None
    if the table was not restored."""
    doubled_by: int | None = None
    """Version of a compaction, after the last commit of a worker, that has added rows; None if there is none."""

    @property
    def may_undo_compaction(self) -> bool:
        """True if a worker is allowed to undo the newest version of the table.

        That version must be a compaction that has added rows. There must be no RESTORE between it and the last commit
        of a worker, because the undo is a commit of a worker, and would hide the RESTORE from the operator.
        """
        return self.doubled_by is not None and self.doubled_by == self.version and self.restored_to is None


class PartitionEnds(NamedTuple):
    """The offsets of a partition in the log."""

    start: int
    """First offset."""
    stable: int
    """End of the records whose transactions have ended: the last stable offset or less."""
    high_watermark: int
    """End of the readable offsets, requested after `stable`."""


class Span(NamedTuple):
    """Offsets [start, end) of a partition."""

    start: int
    end: int


class Plan(Struct, frozen=True):
    """The offsets that a round reads."""

    spans: Mapping[int, Span]
    """Offsets to read by partition; partitions without new offsets are absent. A partition in `gaps` can have an empty
    span, whose commit moves the next offset behind the gap."""
    gaps: Mapping[int, Span]
    """Offsets by partition that the log deleted before they were in the table."""

    @property
    def next_offsets(self) -> dict[int, int]:
        """Next offset by partition after the round."""
        return {p: span.end for p, span in sorted(self.spans.items())}

    @property
    def information(self) -> dict[str, Any]:
        """The plan as the information of its commit."""
        information = {"offsets": {str(p): list(s) for p, s in sorted(self.spans.items())}}
        if self.gaps:
            information["gaps"] = {str(p): list(s) for p, s in sorted(self.gaps.items())}
        return information


def check_table(state: TableState, topic_id: str, table_id: str) -> None:
    """Check that the table belongs to the topic, and that its transactions agree with its rows.

    The largest offset of a partition's rows must be below the version of its transaction, which is the next offset. It
    can be far below, because markers have no row, and compaction and users remove rows.

    `table_id`: id of the topic's table in its settings; "" if not stored yet. Raises LakePausedError: The table belongs
    to another topic, was created again or restored, has rows twice, or has rows above its transactions."""
    if state.topic_id != topic_id:
        owner = f"topic id {state.topic_id!r}" if state.topic_id else "no topic"
        raise LakePausedError(
            f"the table belongs to {owner}, not to topic id {topic_id!r}: another table is at the location; use "
            "another location, or 'sparklog lake disable' and remove the table"
        )
    if table_id and state.table_id != table_id:
        raise LakePausedError(
            f"the table has id {state.table_id}, the topic's table had id {table_id}: the table was dropped and "
            "created again; use 'sparklog lake rebuild' to fill this one from the log"
        )
    if state.doubled_by is not None:
        raise LakePausedError(
            f"version {state.doubled_by} of the table is a compaction that has added rows, so that rows are in the "
            "table twice: it was planned before another commit had replaced its files (delta-rs does not check that); "
            f"restore the table to version {state.doubled_by - 1}, then use 'sparklog lake resume --from-table'"
        )
    if state.restored_to is not None:
        raise restored(state.restored_to)
    for partition, largest in sorted(state.largest_offsets.items()):
        next_offset = state.next_offsets.get(partition)
        if next_offset is None or largest >= next_offset:
            have = "no transaction" if next_offset is None else f"a transaction up to offset {next_offset - 1}"
            raise LakePausedError(
                f"partition {partition} has rows up to offset {largest} in the table, but {have}: the table's "
                "transactions expired (delta.setTransactionRetentionDuration) or another writer added the rows; use "
                "'sparklog lake resume --from-table' if the rows are the topic's, else 'sparklog lake rebuild'"
            )


def restored(version: int) -> LakePausedError:
    """Return the error of a table that was restored to `version`."""
    return LakePausedError(
        f"the table was restored to version {version}: rows after that version are missing; use 'sparklog lake resume "
        "--from-table' to append them again, or 'sparklog lake rebuild'"
    )


def plan_round(state: TableState, ends: Mapping[int, PartitionEnds], *, accept_gaps: bool, offsets_max: int) -> Plan:
    """Return the offsets of the next round. `ends`: offsets of the log by partition; all `stable` offsets are from one
    request. `accept_gaps`: True to continue at the log start if the log has deleted offsets that the table lacks.
    `offsets_max`: largest number of offsets of a partition in one round. Raises LakePausedError: The table has offsets
    above the log's end, or the log has deleted offsets that the table lacks."""
    spans: dict[int, Span] = {}
    gaps: dict[int, Span] = {}
    for partition, end in sorted(ends.items()):
        start = state.next_offsets.get(partition, end.start)
        if start > end.high_watermark:
            raise LakePausedError(
                f"partition {partition} has offsets up to {start - 1} in the table, the log ends at "
                f"{end.high_watermark}: the log has lost records; use 'sparklog lake rebuild'"
            )
        if start < end.start:
            if not accept_gaps:
                raise LakePausedError(
                    f"offsets {start} to {end.start - 1} of partition {partition} were deleted from the log before "
                    "they were in the table; set lake.hold.retention=false and use 'sparklog lake resume' to go on "
                    "without them"
                )
            gaps[partition] = Span(start, end.start)
            start = end.start
        stop = min(max(start, end.stable), start + offsets_max)
        if stop > start or partition in gaps:
            spans[partition] = Span(start, stop)
    return Plan(spans, gaps)


def is_beyond_log(state: TableState, ends: Mapping[int, PartitionEnds]) -> bool:
    """Return True if the table has offsets above the high watermark in `ends`, for example because `ends` is older."""
    return any(state.next_offsets.get(p, 0) > end.high_watermark for p, end in ends.items())


def is_cut_short(plan: Plan, ends: Mapping[int, PartitionEnds]) -> bool:
    """Return True if a span of the plan ends below its partition's `stable` offset, so that another round is needed."""
    return any(span.end < ends[p].stable for p, span in plan.spans.items())


class Outcome(Enum):
    """The decision about the files of a failed commit."""

    DONE = "done"
    """The table has exactly these offsets: the commit succeeded and its reply was lost, or another worker has made the
    same round."""
    AGAIN = "again"
    """The table's next offsets are unchanged: commit the same files on the newest version."""
    DISCARD = "discard"
    """Another worker has committed some of these offsets, or the table was restored or replaced: do not use the
    files."""


def after_failed_commit(planned: Mapping[int, Span], before: TableState, now: TableState) -> Outcome:
    """Return the decision about the files of a failed commit. `before`: the state that the commit was based on."""
    if now.table_id != before.table_id or now.restored_to is not None:
        return Outcome.DISCARD
    ends = {p: span.end for p, span in planned.items()}
    offsets = {p: now.next_offsets.get(p) for p in planned}
    if offsets == ends and now.version > before.version:
        return Outcome.DONE
    if offsets == {p: before.next_offsets.get(p) for p in planned}:
        return Outcome.AGAIN
    return Outcome.DISCARD
