"""A history as columns: one row per value sent and per value polled, so that a million records are NumPy's work.

A place is a partition and an offset in one integer. A run is what one process reads of one partition between two
assignments: within it nothing may be skipped or come twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tests.campaigns.checker.history import NO_SOURCE, HistoryError, Kind, Operation, Outcome, Polled, Sent

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

OFFSET_BITS = 48
OUTCOMES = list(Outcome)


def place(partition: Ints, offset: Ints) -> Ints:
    """Partition and offset as one number that sorts by partition, then offset. An unknown offset gives -1."""
    return np.where(offset < 0, -1, (partition << OFFSET_BITS) | offset)


@dataclass(frozen=True)
class Sends:
    """One row per value sent, in the order of each process's calls. `operation` is an index."""

    value: Ints
    partition: Ints
    place: Ints
    source: Ints
    operation: Ints


@dataclass(frozen=True)
class Polls:
    """One row per value polled, in the order in which each process got them."""

    value: Ints
    partition: Ints
    place: Ints
    operation: Ints
    run: Ints
    at_ns: Ints


@dataclass(frozen=True)
class Columns:
    """The history; the arrays without a table of their own have one element per operation, `run_start` one per run."""

    operations: Sequence[Operation]
    partitions: list[str]
    sends: Sends
    polls: Polls
    run_start: Ints  # place where the run begins, -1 if not known
    process: Ints
    outcome: Ints  # index in OUTCOMES
    is_transaction: Bools
    reads_committed: Bools
    visible_from_ns: Ints  # before this nothing that the operation sends may be seen

    def failed(self) -> Bools:
        return self.outcome == OUTCOMES.index(Outcome.FAILED)

    def ok(self) -> Bools:
        return self.outcome == OUTCOMES.index(Outcome.OK)

    def acknowledged(self) -> Bools:
        """Per send: the operation is OK, or, outside transactions, this record of it was acknowledged."""
        of = self.sends.operation
        return self.ok()[of] | (~self.failed()[of] & ~self.is_transaction[of] & (self.sends.place >= 0))

    def where(self, at: int) -> str:
        """A place in words."""
        if at < 0:
            return "an unknown offset"
        return f"{self.partitions[at >> OFFSET_BITS]}@{at & ((1 << OFFSET_BITS) - 1)}"

    def who(self, operation: int) -> str:
        """An operation in words."""
        o = self.operations[operation]
        return f"{o.kind} {o.id} of {o.process} ({o.outcome})"


class _Builder:
    """Collects the rows of one table as pieces."""

    def __init__(self, *names: str) -> None:
        self.pieces: dict[str, list[Ints]] = {name: [] for name in names}

    def add(self, rows: int, **columns: Sequence[int] | int) -> None:
        for name, content in columns.items():
            if isinstance(content, int):
                piece = np.full(rows, content, np.int64)
            else:
                piece = np.asarray(content, np.int64)
            if len(piece) != rows:
                raise HistoryError(f"{name}: {len(piece)} of {rows} rows")
            self.pieces[name].append(piece)

    def column(self, name: str) -> Ints:
        pieces = self.pieces[name]
        return np.concatenate(pieces) if pieces else np.empty(0, np.int64)


def columns_of(operations: Sequence[Operation]) -> Columns:
    """The history as columns. Raises HistoryError when a value is sent twice or lists do not run along."""
    partitions: dict[str, int] = {}
    processes: dict[str, int] = {}
    runs: dict[tuple[str, int], int] = {}
    run_start: list[int] = []
    sends = _Builder("value", "partition", "offset", "source", "operation")
    polls = _Builder("value", "partition", "offset", "operation", "run", "at_ns")

    def begin_run(process: str, partition: int, offset: int) -> int:
        runs[process, partition] = len(run_start)
        run_start.append(int(place(np.array(partition, np.int64), np.array(offset, np.int64))))
        return runs[process, partition]

    for index, operation in enumerate(operations):
        processes.setdefault(operation.process, len(processes))
        for name in operation.offsets:
            partitions.setdefault(name, len(partitions))
        if operation.kind is Kind.ASSIGN:
            for name, offset in operation.offsets.items():
                begin_run(operation.process, partitions[name], offset)
        for step in operation.steps:
            partition = partitions.setdefault(step.partition, len(partitions))
            rows = len(step.values)
            if isinstance(step, Sent):
                sends.add(rows, value=step.values, offset=step.offsets, source=step.sources)
                sends.add(rows, partition=partition, operation=index)
            elif isinstance(step, Polled):
                run = runs.get((operation.process, partition))
                if run is None:
                    run = begin_run(operation.process, partition, -1)
                polls.add(rows, value=step.values, offset=step.offsets, at_ns=step.at_ns)
                polls.add(rows, partition=partition, operation=index, run=run)
    values = sends.column("value")
    if len(np.unique(values)) != len(values):
        raise HistoryError("the workload sent a value twice: values have to be unique")
    if len(values) and values.min() <= NO_SOURCE:
        raise HistoryError("values have to be positive")
    return Columns(
        operations,
        list(partitions),
        Sends(
            values,
            sends.column("partition"),
            place(sends.column("partition"), sends.column("offset")),
            sends.column("source"),
            sends.column("operation"),
        ),
        Polls(
            polls.column("value"),
            polls.column("partition"),
            place(polls.column("partition"), polls.column("offset")),
            polls.column("operation"),
            polls.column("run"),
            polls.column("at_ns"),
        ),
        np.array(run_start, np.int64),
        np.array([processes[o.process] for o in operations], np.int64),
        np.array([OUTCOMES.index(o.outcome) for o in operations], np.int64),
        np.array([o.kind is Kind.TRANSACTION for o in operations], np.bool_),
        np.array([o.reads_committed for o in operations], np.bool_),
        np.array(
            [o.commit_asked_ns if o.kind is Kind.TRANSACTION else o.begun_ns for o in operations],
            np.int64,
        ),
    )
