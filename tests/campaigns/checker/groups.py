"""Groups and pipelines: committed offsets only move forward and cover only read records, and an input gives one output.

A group begins at the beginning of its partitions. Offsets of a transaction count when it is committed. A pipeline is a
group whose offsets are committed in transactions; its outputs name their inputs (`sources`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from tests.campaigns.checker.columns import OFFSET_BITS, Bools, Columns, Ints
from tests.campaigns.checker.history import NEVER_NS, NO_SOURCE, Kind, Operation, Outcome

EXAMPLES_MAX = 10


class SentStates(NamedTuple):
    """Per send: whether a reader of committed records has read it, and where; per partition: whether all was read."""

    there: Bools
    place: Ints
    complete: Bools


class GroupFound(NamedTuple):
    """An anomaly by its name, how often, and the first in words."""

    name: str
    count: int  # type: ignore[assignment]
    examples: tuple[str, ...]


class _Move(NamedTuple):
    """A committed offset that was set, or told (`is_told`), between two times."""

    begun_ns: int
    ended_ns: int
    offset: int
    is_told: bool
    operation: int


def check(c: Columns, seen: SentStates) -> Iterator[GroupFound]:
    """Everything about groups."""
    yield from _moves(c)
    yield from _skipped(c, seen)
    yield from _processed(c, seen)


def _commits(operation: Operation) -> bool:
    """Return True if the operation has set the group's offsets."""
    return operation.kind in (Kind.COMMIT, Kind.TRANSACTION) and operation.outcome is Outcome.OK


def _moves(c: Columns) -> Iterator[GroupFound]:
    """A commit or an answer that began after a commit had ended is not behind that commit."""
    moves: dict[tuple[str, str], list[_Move]] = {}
    for index, o in enumerate(c.operations):
        told = o.kind is Kind.FETCH_COMMITTED and o.outcome is Outcome.OK
        if o.group and (told or _commits(o)):
            begun = o.begun_ns if o.commit_asked_ns == NEVER_NS else o.commit_asked_ns
            for partition, offset in o.offsets.items():
                moves.setdefault((o.group, partition), []).append(_Move(begun, o.ended_ns, offset, told, index))
    back: list[str] = []
    lost: list[str] = []
    for (group, partition), lane in moves.items():
        under_way: list[tuple[int, int, int]] = []  # (ended, offset, operation): done only once we are past `ended`
        done = (-1, -1)
        for move in sorted(lane):
            while under_way and under_way[0][0] < move.begun_ns:
                done = max(done, heapq.heappop(under_way)[1:])
            if move.offset < done[0]:
                (lost if move.is_told else back).append(
                    f"{group} {partition}: {c.who(move.operation)} {'was told' if move.is_told else 'set'} "
                    f"{move.offset} after {c.who(done[1])} had set {done[0]}"
                )
            if not move.is_told:
                heapq.heappush(under_way, (move.ended_ns, move.offset, move.operation))
    yield from _texts("commit-regression", back)
    yield from _texts("lost-commit", lost)


def _texts(name: str, texts: list[str]) -> Iterator[GroupFound]:
    if texts:
        yield GroupFound(name, len(texts), tuple(texts[:EXAMPLES_MAX]))


def _rows(name: str, rows: Ints, words: Callable[[int], str]) -> Iterator[GroupFound]:
    if len(rows):
        yield GroupFound(name, len(rows), tuple(words(int(r)) for r in rows[:EXAMPLES_MAX]))


def _committed(c: Columns, group: str, *, in_transactions: bool = False) -> Ints:
    """Per partition: the place before which everything is committed by the group."""
    highest = np.arange(len(c.partitions), dtype=np.int64) << OFFSET_BITS
    number = {name: i for i, name in enumerate(c.partitions)}
    for o in c.operations:
        if o.group == group and _commits(o) and (not in_transactions or o.kind is Kind.TRANSACTION):
            for partition, offset in o.offsets.items():
                i = number[partition]
                highest[i] = max(highest[i], (i << OFFSET_BITS) | offset)
    return highest


def _skipped(c: Columns, seen: SentStates) -> Iterator[GroupFound]:
    """Behind a group's committed offset there is nothing that no member has read."""
    for group in sorted({o.group for o in c.operations if o.group}):
        behind = seen.there & (seen.place < _committed(c, group)[c.sends.partition])
        mine = np.array([o.group == group for o in c.operations], np.bool_)
        by_members = c.polls.place[mine[c.polls.operation]]
        skipped = np.flatnonzero(behind & ~np.isin(seen.place, by_members))
        yield from _rows(
            "group-skip",
            skipped,
            lambda row, group=group: (  # type: ignore[misc]
                f"{group}: value {c.sends.value[row]} at {c.where(int(seen.place[row]))} was read by no member"
            ),
        )


def _processed(c: Columns, seen: SentStates) -> Iterator[GroupFound]:
    """Each input that a pipeline is done with has one output."""
    source = c.sends.source
    outputs = np.flatnonzero((source != NO_SOURCE) & seen.there)
    outputs = outputs[np.argsort(source[outputs], kind="stable")]
    again = outputs[1:][source[outputs[1:]] == source[outputs[:-1]]]
    yield from _rows(
        "processed-twice",
        again,
        lambda row: (
            f"value {source[row]} has one more output, {c.sends.value[row]} of {c.who(int(c.sends.operation[row]))}"
        ),
    )
    made = source[(source != NO_SOURCE) & (seen.there | c.ok()[c.sends.operation])]
    inputs = seen.place[np.isin(c.sends.value, made)]
    for group in sorted({o.group for o in c.operations if o.group and o.kind is Kind.TRANSACTION and o.offsets}):
        done = seen.there & (seen.place < _committed(c, group, in_transactions=True)[c.sends.partition])
        without = np.flatnonzero(done & ~np.isin(seen.place, inputs))
        yield from _rows(
            "never-processed",
            without,
            lambda row, group=group: (  # type: ignore[misc]
                f"{group}: value {c.sends.value[row]} at {c.where(int(seen.place[row]))} has no output"
            ),
        )
