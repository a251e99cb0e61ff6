"""One way of spoiling a good history for each anomaly, so that it has that anomaly and no other.

A mutation takes the operations and a random generator, and returns the spoiled history, or None where this history has
nothing that could be spoiled so. The process "last" has read everything at the end.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from tests.campaigns.checker.analysis import Anomaly
from tests.campaigns.checker.history import NO_SOURCE, UNKNOWN_OFFSET, Kind, Operation, Outcome, Polled, Sent

T = TypeVar("T")
History = list[Operation]
Mutation = Callable[[History, random.Random], History | None]
BEHIND_THE_END = 1000
FRESH = 7
LATE_NS = 2**50


class _Facts:
    """Readers and records of a good history."""

    def __init__(self, history: History) -> None:
        self.place: dict[int, tuple[str, int]] = {}
        self.readers: dict[int, set[str]] = {}
        self.highest: dict[str, int] = {}
        for operation in history:
            for polled in operation.polls if operation.reads_committed else ():
                for offset, value in zip(polled.offsets, polled.values, strict=True):
                    self.place[value] = (polled.partition, offset)
                    self.readers.setdefault(value, set()).add(operation.process)
                    self.highest[polled.partition] = max(self.highest.get(polled.partition, 0), offset)

    def is_highest(self, value: int) -> bool:
        partition, offset = self.place[value]
        return self.highest[partition] == offset


def _each_poll(history: History, change: Callable[[Operation, Polled], Polled]) -> History:
    return [
        replace(o, steps=tuple(change(o, s) if isinstance(s, Polled) else s for s in o.steps)) if o.polls else o
        for o in history
    ]


def _without(history: History, value: int, by: Callable[[Operation], bool] = lambda _: True) -> History:
    """Nobody (of those) has read the value."""

    def drop(operation: Operation, polled: Polled) -> Polled:
        if value not in polled.values or not by(operation):
            return polled
        kept = [(o, v) for o, v in zip(polled.offsets, polled.values, strict=True) if v != value]
        return polled._replace(offsets=[o for o, _ in kept], values=[v for _, v in kept])

    return _each_poll(history, drop)


def _read_last(history: History, partition: str, offset: int, value: int) -> History:
    """The process that read everything has read this, too."""

    def add(operation: Operation, polled: Polled) -> Polled:
        if not operation.process.startswith("last") or polled.partition != partition:
            return polled
        pairs = sorted([*zip(polled.offsets, polled.values, strict=True), (offset, value)])
        return polled._replace(offsets=[o for o, _ in pairs], values=[v for _, v in pairs])

    return _each_poll(history, add)


def _swapped(history: History, one: int, two: int) -> History:
    """Two values of one partition have changed places, for everybody."""
    other = {one: two, two: one}

    def swap(_: Operation, polled: Polled) -> Polled:
        return polled._replace(values=[other.get(v, v) for v in polled.values])

    acked = {v: o for op in history for s in op.sends for v, o in zip(s.values, s.offsets, strict=True) if v in other}
    changed = []
    for operation in _each_poll(history, swap):
        steps = tuple(
            s._replace(
                offsets=[acked[other[v]] if v in other else o for v, o in zip(s.values, s.offsets, strict=True)],
                sources=[other.get(v, v) for v in s.sources],
            )
            if isinstance(s, Sent)
            else s
            for s in operation.steps
        )
        changed.append(replace(operation, steps=steps))
    return changed


def _one(rng: random.Random, candidates: Iterable[T]) -> T | None:
    found = list(candidates)
    return rng.choice(found) if found else None


def _plain_seen(history: History, facts: _Facts) -> Iterable[int]:
    """Values sent outside transactions, acknowledged, and read."""
    for o in history:
        if o.kind is Kind.SEND and o.outcome is Outcome.OK:
            yield from (v for s in o.sends for v in s.values if v in facts.place)


def _lost(history: History, rng: random.Random) -> History | None:
    facts = _Facts(history)
    value = _one(rng, (v for v in _plain_seen(history, facts) if not facts.is_highest(v)))
    return _without(history, value) if value else None


def _unseen(history: History, rng: random.Random) -> History | None:
    facts = _Facts(history)
    value = _one(rng, (v for v in _plain_seen(history, facts) if facts.is_highest(v)))
    return _without(history, value) if value else None


def _committed(history: History) -> list[Operation]:
    return [o for o in history if o.kind is Kind.TRANSACTION and o.outcome is Outcome.OK and o.sends]


def _torn(history: History, rng: random.Random) -> History | None:
    values = [[v for s in o.sends for v in s.values] for o in _committed(history)]
    chosen = _one(rng, (v for v in values if len(v) > 1))
    return _without(history, rng.choice(chosen)) if chosen else None


def _duplicate(history: History, rng: random.Random) -> History | None:
    facts = _Facts(history)
    value = _one(rng, facts.place)
    if value is None:
        return None
    partition, _ = facts.place[value]
    return _read_last(history, partition, facts.highest[partition] + BEHIND_THE_END, value)


def _aborted(history: History, rng: random.Random) -> History | None:
    facts = _Facts(history)
    chosen = _one(rng, ((o, s) for o in history if o.outcome is Outcome.FAILED for s in o.sends))
    if chosen is None:
        return None
    _, sent = chosen
    i = rng.randrange(len(sent.values))
    offset = sent.offsets[i]
    if offset == UNKNOWN_OFFSET:
        uncommitted = _places_of_uncommitted(history)
        offset = uncommitted.get(sent.values[i], facts.highest.get(sent.partition, 0) + BEHIND_THE_END)
    return _read_last(history, sent.partition, offset, sent.values[i])


def _places_of_uncommitted(history: History) -> Mapping[int, int]:
    return {
        v: o
        for op in history
        if not op.reads_committed
        for p in op.polls
        for o, v in zip(p.offsets, p.values, strict=True)
    }


def _precommitted(history: History, rng: random.Random) -> History | None:
    chosen = _one(rng, (o for o in _committed(history) if not o.offsets))
    if not chosen:
        return None
    return [replace(o, commit_asked_ns=LATE_NS, ended_ns=LATE_NS + 1) if o is chosen else o for o in history]


def _inconsistent(history: History, rng: random.Random) -> History | None:
    facts = _Facts(history)
    seen_twice = (v for v, r in facts.readers.items() if any(n.startswith("assigned") for n in r) and len(r) > 1)
    value = _one(rng, seen_twice)
    if value is None:
        return None
    partition, _ = facts.place[value]
    reader = _one(rng, sorted(r for r in facts.readers[value] if r.startswith("assigned")))

    def change(operation: Operation, polled: Polled) -> Polled:
        if operation.process != reader:
            return polled
        return polled._replace(values=[FRESH if v == value else v for v in polled.values])

    ghost = Operation("ghost", 1, Kind.SEND, steps=(Sent(partition, [FRESH], [UNKNOWN_OFFSET], [NO_SOURCE]),))
    return [*_each_poll(history, change), ghost]


def _phantom(history: History, rng: random.Random) -> History | None:
    facts = _Facts(history)
    partition = _one(rng, facts.highest)
    if not partition:
        return None
    return _read_last(history, partition, facts.highest[partition] + BEHIND_THE_END, FRESH)


def _assigned_step(history: History, rng: random.Random, length: int) -> tuple[Operation, int] | None:
    """A poll of an assigned consumer that returned so many values of a partition."""
    return _one(
        rng,
        (
            (o, i)
            for o in history
            if o.process.startswith("assigned") and o.kind is Kind.POLL and o.reads_committed
            for i, s in enumerate(o.steps)
            if len(s.values) >= length
        ),
    )


def _change_step(history: History, at: tuple[Operation, int], keep: Callable[[int], Sequence[int]]) -> History:
    """Instead of its values, the step has those whose indexes `keep(number of values)` names."""
    operation, index = at
    step = operation.steps[index]
    rows = keep(len(step.values))
    changed = step._replace(offsets=[step.offsets[i] for i in rows], values=[step.values[i] for i in rows])
    steps = (*operation.steps[:index], changed, *operation.steps[index + 1 :])
    return [replace(o, steps=steps) if o is operation else o for o in history]


def _int_skip(history: History, rng: random.Random) -> History | None:
    at = _assigned_step(history, rng, 3)
    return at and _change_step(history, at, lambda n: [i for i in range(n) if i != 1])


def _skip(history: History, rng: random.Random) -> History | None:
    at = _assigned_step(history, rng, 2)
    return at and _change_step(history, at, lambda n: range(1, n))


def _int_back(history: History, rng: random.Random) -> History | None:
    at = _assigned_step(history, rng, 2)
    return at and _change_step(history, at, lambda n: [*range(n), n - 1])


def _back(history: History, rng: random.Random) -> History | None:
    at = _assigned_step(history, rng, 1)
    if at is None:
        return None
    operation, index = at
    step = operation.steps[index]
    again = replace(
        operation, id=operation.id, steps=(step._replace(offsets=step.offsets[-1:], values=step.values[-1:]),)
    )
    position = next(i for i, o in enumerate(history) if o is operation)
    return [*history[: position + 1], again, *history[position + 1 :]]


def _int_send(history: History, rng: random.Random) -> History | None:
    facts = _Facts(history)
    pairs = (
        (one, two)
        for o in history
        if o.kind is Kind.SEND and o.outcome is Outcome.OK
        for s in o.sends
        for one, two in itertools.pairwise(s.values)
        if one in facts.place and two in facts.place
    )
    chosen = _one(rng, pairs)
    return chosen and _swapped(history, *chosen)


def _send(history: History, rng: random.Random) -> History | None:
    lanes: dict[tuple[str, str], list[Operation]] = {}
    for o in history:
        if o.kind is Kind.SEND and o.outcome is Outcome.OK:
            lanes.setdefault((o.process, o.sends[0].partition), []).append(o)
    chosen = _one(rng, (pair for lane in lanes.values() for pair in itertools.pairwise(lane)))
    if chosen is None:
        return None
    first, second = chosen
    earlier = [replace(o, begun_ns=first.begun_ns) if o is second else o for o in history]
    return _swapped(earlier, first.sends[0].values[-1], second.sends[0].values[0])


def _group_offsets(history: History) -> dict[str, int]:
    committed: dict[str, int] = {}
    for o in history:
        if o.group == "group" and o.kind is Kind.COMMIT and o.outcome is Outcome.OK:
            for partition, offset in o.offsets.items():
                committed[partition] = max(offset, committed.get(partition, 0))
    return committed


def _extra(history: History, kind: Kind, partition: str, offset: int) -> History:
    more: dict[str, Any] = {
        "begun_ns": LATE_NS,
        "ended_ns": LATE_NS + 1,
        "offsets": {partition: offset},
        "group": "group",
    }
    return [*history, Operation("zombie", 1, kind, Outcome.OK, **more)]


def _group_skip(history: History, rng: random.Random) -> History | None:
    facts = _Facts(history)
    unread = {
        facts.place[v][0] for v, r in facts.readers.items() if not any(n.startswith("member") for n in r)
    } & _group_offsets(history).keys()
    partition = _one(rng, sorted(unread))
    return _extra(history, Kind.COMMIT, partition, facts.highest[partition] + 1) if partition else None


def _regression(history: History, rng: random.Random) -> History | None:
    moved = _one(rng, ((p, o) for p, o in _group_offsets(history).items() if o > 0))
    return moved and _extra(history, Kind.COMMIT, moved[0], moved[1] - 1)


def _lost_commit(history: History, rng: random.Random) -> History | None:
    moved = _one(rng, ((p, o) for p, o in _group_offsets(history).items() if o > 0))
    return moved and _extra(history, Kind.FETCH_COMMITTED, moved[0], 0)


def _with_source(history: History, value: int, source: int) -> History:
    changed = []
    for o in history:
        steps = tuple(
            s._replace(sources=[source if v == value else n for v, n in zip(s.values, s.sources, strict=True)])
            if isinstance(s, Sent)
            else s
            for s in o.steps
        )
        changed.append(replace(o, steps=steps))
    return changed


def _outputs(history: History) -> list[tuple[int, int]]:
    """(output, input) of committed transactions."""
    pairs = (zip(s.values, s.sources, strict=True) for o in _committed(history) for s in o.sends)
    return [(v, n) for pair in pairs for v, n in pair if n != NO_SOURCE]


def _twice(history: History, rng: random.Random) -> History | None:
    output = _one(rng, _outputs(history))
    other = _one(rng, _plain_seen(history, _Facts(history)))
    return _with_source(history, other, output[1]) if other and output else None


def _never(history: History, rng: random.Random) -> History | None:
    output = _one(rng, _outputs(history))
    return output and _with_source(history, output[0], NO_SOURCE)


MUTATIONS: dict[Anomaly, Mutation] = {
    Anomaly.LOST_WRITE: _lost,
    Anomaly.UNSEEN: _unseen,
    Anomaly.DUPLICATE: _duplicate,
    Anomaly.ABORTED_READ: _aborted,
    Anomaly.PRECOMMITTED_READ: _precommitted,
    Anomaly.TORN_TRANSACTION: _torn,
    Anomaly.INCONSISTENT_OFFSETS: _inconsistent,
    Anomaly.PHANTOM: _phantom,
    Anomaly.INT_POLL_SKIP: _int_skip,
    Anomaly.POLL_SKIP: _skip,
    Anomaly.INT_NONMONOTONIC_POLL: _int_back,
    Anomaly.NONMONOTONIC_POLL: _back,
    Anomaly.INT_NONMONOTONIC_SEND: _int_send,
    Anomaly.NONMONOTONIC_SEND: _send,
    Anomaly.GROUP_SKIP: _group_skip,
    Anomaly.COMMIT_REGRESSION: _regression,
    Anomaly.LOST_COMMIT: _lost_commit,
    Anomaly.PROCESSED_TWICE: _twice,
    Anomaly.NEVER_PROCESSED: _never,
}
