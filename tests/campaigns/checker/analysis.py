"""Faults of a history: the anomalies of Jepsen's Kafka workload, and those of groups and pipelines.

Sources: jepsen/tests/kafka.clj and its guide to results in jepsen-io/redpanda; here on columns, every check a few
sorts. `int-send-skip` and G0 (others write between my sends) are no anomalies: nothing isolates writes. G1c (circular
information flow) is not looked for: all clocks are one, so a circle needs a read before its commit was asked for, and
that is found as `precommitted-read`.

Only readers of committed records count as having seen a record; the others take part in the checks of a place's
content, of phantoms, and of their own order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from tests.campaigns.checker import groups
from tests.campaigns.checker.columns import Bools, Columns, Ints, columns_of
from tests.campaigns.checker.history import Kind, Operation, Outcome

EXAMPLES_MAX = 10


class Anomaly(StrEnum):
    """A possible finding; the text is its name in a report."""

    LOST_WRITE = "lost-write"  # acknowledged, later records of the partition were read, this one never
    UNSEEN = "unseen"  # acknowledged, never read by the end
    DUPLICATE = "duplicate"  # one value at two places
    ABORTED_READ = "aborted-read"  # a value of an operation that certainly failed was read (G1a)
    PRECOMMITTED_READ = "precommitted-read"  # read before its commit was asked for, be it by its own transaction
    TORN_TRANSACTION = "torn-transaction"  # a part of a transaction was read, another part is not there
    INCONSISTENT_OFFSETS = "inconsistent-offsets"  # two values at one place
    PHANTOM = "phantom"  # read, but sent by nobody, or sent to another partition
    INT_POLL_SKIP = "int-poll-skip"  # within one operation: passed over a record that is there
    POLL_SKIP = "poll-skip"  # the same between two operations of one run
    INT_NONMONOTONIC_POLL = "int-nonmonotonic-poll"  # within one operation: went back
    NONMONOTONIC_POLL = "nonmonotonic-poll"
    INT_NONMONOTONIC_SEND = "int-nonmonotonic-send"  # records of one operation out of the order in which they were sent
    NONMONOTONIC_SEND = "nonmonotonic-send"  # the same between two operations of one process
    GROUP_SKIP = "group-skip"  # a group committed an offset behind a record that none of its members had read
    COMMIT_REGRESSION = "commit-regression"  # a group's committed offset went back
    LOST_COMMIT = "lost-commit"  # a group was told an older offset than it had committed before
    PROCESSED_TWICE = "processed-twice"  # two outputs of one input are there
    NEVER_PROCESSED = "never-processed"  # a pipeline committed an offset behind an input of which there is no output


@dataclass(frozen=True)
class Found:
    """An anomaly, how often it occurs, and the first occurrences in words."""

    anomaly: Anomaly
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True)
class Verdict:
    """Content of a history, and its findings."""

    found: tuple[Found, ...]
    sent: int
    acknowledged: int
    seen: int
    transactions: int

    @property
    def anomalies(self) -> frozenset[Anomaly]:
        return frozenset(f.anomaly for f in self.found)

    def beyond(self, allowed: Iterable[Anomaly]) -> tuple[Found, ...]:
        """Findings that are not allowed."""
        allowed = frozenset(allowed)
        return tuple(f for f in self.found if f.anomaly not in allowed)


@dataclass(frozen=True)
class _View:
    """The columns, joined: which poll saw which send."""

    c: Columns
    sender: Ints  # per poll: row in sends, -1 for a phantom
    is_seen: Bools  # per send: read by a reader of committed records
    seen_place: Ints  # per send: the first place it was read at, else the acknowledged, else -1
    highest: Ints  # per partition: the highest place a reader of committed records has read, -1 none
    complete: Bools  # per partition: a final read has covered all of it
    must_be_seen: Bools  # per send: were it in the log, it would have been read

    def fails(self, row: Ints) -> Bools:
        """Return the rows of sends whose operations certainly failed."""
        return self.c.failed()[self.c.sends.operation[row]]


def analyse(operations: Sequence[Operation]) -> Verdict:
    """All anomalies of a history, in the order of `Anomaly`. O(n log n) in the records."""
    c = columns_of(operations)
    view = _view(c)
    found = [
        *_visibility(view),
        *_places(view),
        *_reading_order(view),
        *_sending_order(view),
        *_groups(view),
    ]
    found.sort(key=lambda f: list(Anomaly).index(f.anomaly))
    acknowledged = int(c.acknowledged().sum())
    committed = int((c.ok() & c.is_transaction).sum())
    return Verdict(tuple(found), len(c.sends.value), acknowledged, int(view.is_seen.sum()), committed)


def _view(c: Columns) -> _View:
    order = np.argsort(c.sends.value)
    sender = _find(c.sends.value, order, c.polls.value)
    known = sender >= 0
    known[known] = c.sends.partition[sender[known]] == c.polls.partition[known]
    sender = np.where(known, sender, -1)

    counts = known & c.reads_committed[c.polls.operation]
    is_seen = np.zeros(len(order), np.bool_)
    is_seen[sender[counts]] = True
    seen_place = np.full(len(order), np.iinfo(np.int64).max, np.int64)
    np.minimum.at(seen_place, sender[counts], c.polls.place[counts])
    seen_place = np.where(seen_place == np.iinfo(np.int64).max, c.sends.place, seen_place)

    highest = np.full(len(c.partitions), -1, np.int64)
    np.maximum.at(highest, c.polls.partition[counts], c.polls.place[counts])
    complete = np.zeros(len(c.partitions), np.bool_)
    for operation in c.operations:
        if operation.kind is Kind.FINAL and operation.outcome is Outcome.OK:
            complete[[c.partitions.index(p) for p in operation.offsets]] = True
    passed = (c.sends.place >= 0) & (c.sends.place < highest[c.sends.partition])
    return _View(c, sender, is_seen, seen_place, highest, complete, passed | complete[c.sends.partition])


def _find(values: Ints, order: Ints, wanted: Ints) -> Ints:
    """The row of each wanted value, -1 where there is none; `order` sorts `values`."""
    if not len(values):
        return np.full(len(wanted), -1, np.int64)
    at = np.minimum(np.searchsorted(values, wanted, sorter=order), len(values) - 1)
    rows = order[at]
    return np.where(values[rows] == wanted, rows, -1)


def _found(anomaly: Anomaly, rows: Ints, words: Callable[[int], str]) -> list[Found]:
    if not len(rows):
        return []
    return [Found(anomaly, len(rows), tuple(words(int(r)) for r in rows[:EXAMPLES_MAX]))]


def _visibility(v: _View) -> Iterable[Found]:
    """Find records that should have been read and were not, and records that should not have been read and were."""
    c = v.c
    operations = len(c.operations)
    of = c.sends.operation
    missing = ~v.is_seen & v.must_be_seen & ~v.fails(np.arange(len(of)))
    torn = (
        c.is_transaction
        & (np.bincount(of[v.is_seen], minlength=operations) > 0)
        & (np.bincount(of[missing], minlength=operations) > 0)
        & ~c.failed()
    )
    acknowledged = c.acknowledged() & ~v.is_seen & ~torn[of]
    behind = (c.sends.place >= 0) & (c.sends.place < v.highest[c.sends.partition])

    def sent(row: int) -> str:
        return (
            f"value {c.sends.value[row]}, acknowledged at {c.where(int(c.sends.place[row]))} by {c.who(int(of[row]))}"
        )

    def torn_words(operation: int) -> str:
        gone = np.flatnonzero(missing & (of == operation))
        there = np.flatnonzero(v.is_seen & (of == operation))
        return (
            f"{c.who(operation)}: {len(there)} values were read, such as {c.sends.value[there[0]]}, "
            f"{len(gone)} are not there, such as {c.sends.value[gone[0]]}"
        )

    yield from _found(Anomaly.LOST_WRITE, np.flatnonzero(acknowledged & behind), sent)
    yield from _found(Anomaly.UNSEEN, np.flatnonzero(acknowledged & ~behind), sent)
    yield from _found(Anomaly.TORN_TRANSACTION, np.flatnonzero(torn), torn_words)

    def polled(row: int) -> str:
        by = f"read at {c.where(int(c.polls.place[row]))} by {c.who(int(c.polls.operation[row]))}"
        sender = int(v.sender[row])
        return f"value {c.polls.value[row]} {by}" + (f", sent by {c.who(int(of[sender]))}" if sender >= 0 else "")

    reader = c.reads_committed[c.polls.operation]
    known = v.sender >= 0
    aborted = known & reader
    aborted[aborted] = v.fails(v.sender[aborted])
    early = known & reader & ~aborted
    by = of[v.sender[early]]
    early[early] = (c.polls.at_ns[early] < c.visible_from_ns[by]) | (c.polls.operation[early] == by)
    yield from _found(Anomaly.ABORTED_READ, np.flatnonzero(aborted), polled)
    yield from _found(Anomaly.PRECOMMITTED_READ, np.flatnonzero(early), polled)
    yield from _found(Anomaly.PHANTOM, np.flatnonzero(~known), polled)


def _pairs(c: Columns, polls: Bools) -> Ints:
    """The different pairs of place (first row) and value (second) of acknowledgements and of those polls, sorted."""
    acked = c.sends.place >= 0
    places = np.concatenate([c.sends.place[acked], c.polls.place[polls]])
    values = np.concatenate([c.sends.value[acked], c.polls.value[polls]])
    pairs = np.stack([places, values])[:, np.lexsort((values, places))]
    if pairs.shape[1]:
        first = np.ones(pairs.shape[1], np.bool_)
        first[1:] = (pairs[:, 1:] != pairs[:, :-1]).any(axis=0)
        pairs = pairs[:, first]
    return pairs


def _places(v: _View) -> Iterable[Found]:
    """One place, one value; one value, one place (an attempt that was aborted may have written it somewhere else)."""
    c = v.c
    known = v.sender >= 0
    pairs = _pairs(c, known)
    two_values = np.flatnonzero(pairs[0, 1:] == pairs[0, :-1])
    pairs_committed = _pairs(c, known & c.reads_committed[c.polls.operation])
    by_value = pairs_committed[:, np.lexsort(pairs_committed)]
    two_places = np.flatnonzero(by_value[1, 1:] == by_value[1, :-1])
    yield from _found(
        Anomaly.INCONSISTENT_OFFSETS,
        two_values,
        lambda i: f"{c.where(int(pairs[0, i]))} holds {pairs[1, i]} and {pairs[1, i + 1]}",
    )
    yield from _found(
        Anomaly.DUPLICATE,
        two_places,
        lambda i: f"value {by_value[1, i]} is at {c.where(int(by_value[0, i]))} and {c.where(int(by_value[0, i + 1]))}",
    )


def _reading_order(v: _View) -> Iterable[Found]:
    """Within a run each read is of the next record that is there."""
    c = v.c
    good = v.sender >= 0
    reader = c.reads_committed[c.polls.operation]
    good[good & reader] = ~v.fails(v.sender[good & reader])
    wrong: dict[Anomaly, list[Ints]] = {}
    for committed in (True, False):
        rows = np.flatnonzero(good & (reader == committed))
        there = np.unique(c.polls.place[good & reader] if committed else c.polls.place[good])
        rows = rows[np.argsort(c.polls.run[rows], kind="stable")]
        rank = np.searchsorted(there, c.polls.place[rows])
        run = c.polls.run[rows]
        begins = np.ones(len(rows), np.bool_)
        begins[1:] = run[1:] != run[:-1]
        start = c.run_start[run]
        before = np.where(begins, np.where(start < 0, rank, np.searchsorted(there, start)) - 1, np.roll(rank, 1))
        step = rank - before
        operation = c.polls.operation[rows]
        inside = ~begins & (operation == np.roll(operation, 1))
        for anomaly, mask in (
            (Anomaly.INT_POLL_SKIP, (step > 1) & inside),
            (Anomaly.POLL_SKIP, (step > 1) & ~inside),
            (Anomaly.INT_NONMONOTONIC_POLL, (step < 1) & inside),
            (Anomaly.NONMONOTONIC_POLL, (step < 1) & ~inside),
        ):
            wrong.setdefault(anomaly, []).append(np.stack([rows[mask], there[before[mask].clip(0)]]))

    for anomaly, pieces in wrong.items():
        both = np.concatenate(pieces, axis=1)
        yield from _found(
            anomaly,
            np.arange(both.shape[1]),
            lambda i, both=both: (  # type: ignore[misc]
                f"{c.who(int(c.polls.operation[both[0, i]]))} read {c.where(int(c.polls.place[both[0, i]]))} "
                f"after {c.where(int(both[1, i]))}"
            ),
        )


def _sending_order(v: _View) -> Iterable[Found]:
    """Find sends of one process to one partition that are stored in another order."""
    c = v.c
    rows = np.flatnonzero((v.seen_place >= 0) & ~v.fails(np.arange(len(v.seen_place))))
    lane = c.process[c.sends.operation[rows]] * len(c.partitions) + c.sends.partition[rows]
    rows = rows[np.argsort(lane, kind="stable")]
    lane = c.process[c.sends.operation[rows]] * len(c.partitions) + c.sends.partition[rows]
    back = np.flatnonzero((lane[1:] == lane[:-1]) & (v.seen_place[rows[1:]] <= v.seen_place[rows[:-1]]))
    inside = c.sends.operation[rows[back]] == c.sends.operation[rows[back + 1]]

    def words(i: int) -> str:
        one, two = int(rows[i]), int(rows[i + 1])
        return (
            f"{c.who(int(c.sends.operation[two]))} sent {c.sends.value[two]} after {c.sends.value[one]}, they are at "
            f"{c.where(int(v.seen_place[two]))} and {c.where(int(v.seen_place[one]))}"
        )

    yield from _found(Anomaly.INT_NONMONOTONIC_SEND, back[inside], words)
    yield from _found(Anomaly.NONMONOTONIC_SEND, back[~inside], words)


def _groups(v: _View) -> Iterable[Found]:
    c = v.c
    there = v.is_seen & ~v.fails(np.arange(len(v.is_seen)))
    seen = groups.SentStates(there, v.seen_place, v.complete)
    for found in groups.check(c, seen):
        yield Found(Anomaly(found.name), found.count, found.examples)
