"""The checker on small fabricated histories, one for each rule that a random mutation does not pin exactly."""

from __future__ import annotations

from typing import Any

from tests.campaigns.checker.analysis import Anomaly, analyse
from tests.campaigns.checker.history import NEVER_NS, Kind, Operation, Outcome, Polled, Sent
from tests.support.cases import for_each

A = Anomaly
Step = tuple[str, list[int], list[int]]


def sent(process: str, *calls: Step, outcome: Outcome = Outcome.OK, begun: int = 0, **more: Any) -> Operation:
    """A send of (partition, offsets, values)."""
    steps = tuple(Sent(p, values, offsets, [-1] * len(values)) for p, offsets, values in calls)
    return Operation(process, 1, Kind.SEND, outcome, begun, NEVER_NS, begun + 1, steps, **more)


def transaction(process: str, *calls: Step, asked: int = 10, outcome: Outcome = Outcome.OK, **more: Any) -> Operation:
    steps = tuple(Sent(p, values, offsets, [-1] * len(values)) for p, offsets, values in calls)
    steps = (*steps, *(Polled(*poll) for poll in more.pop("polls", ())))  # type: ignore[arg-type]
    return Operation(process, 1, Kind.TRANSACTION, outcome, 0, asked, asked + 1, steps, **more)


def polled(process: str, *returned: Step, at: int = 100, **more: Any) -> Operation:
    steps = tuple(Polled(*step, at) for step in returned)
    return Operation(process, 1, Kind.POLL, Outcome.OK, at, NEVER_NS, at, steps, **more)


def assigned(process: str, offsets: dict[str, int], **more: Any) -> Operation:
    return Operation(process, 1, Kind.ASSIGN, Outcome.OK, offsets=offsets, **more)


def committed(
    process: str, offset: int, begun: int, ended: int, kind: Kind = Kind.COMMIT, outcome: Outcome = Outcome.OK
) -> Operation:
    return Operation(process, 1, kind, outcome, begun, NEVER_NS, ended, (), {"t": offset}, "g")


FINAL = Operation("last", 2, Kind.FINAL, Outcome.OK, offsets={"t": 9, "u": 9})
THREE = sent("p", ("t", [0, 1, 2], [1, 2, 3]))
READ_THREE = polled("c", ("t", [0, 1, 2], [1, 2, 3]))

CASES: dict[str, tuple[list[Operation], set[Anomaly]]] = {
    "nothing": ([], set()),
    "nothing was ever polled": ([THREE], {A.UNSEEN}),
    "unknown and absent is fine": ([sent("p", ("t", [-1], [1]), outcome=Outcome.UNKNOWN), FINAL], set()),
    "unknown and present is fine": (
        [sent("p", ("t", [-1], [1]), outcome=Outcome.UNKNOWN), polled("c", ("t", [0], [1]))],
        set(),
    ),
    "acknowledged without an offset": ([sent("p", ("t", [-1], [9])), THREE, READ_THREE], {A.UNSEEN}),
    "of an unknown operation the acknowledged half is lost": (
        [
            sent("p", ("t", [0, 1, -1], [1, 2, 3]), outcome=Outcome.UNKNOWN),
            sent("q", ("t", [2], [4])),
            polled("c", ("t", [0, 2], [1, 4])),
        ],
        {A.LOST_WRITE},
    ),
    "only a reader of uncommitted records has seen it": (
        [THREE, polled("c", ("t", [0, 1, 2], [1, 2, 3]), reads_committed=False)],
        {A.UNSEEN},
    ),
    "the acknowledged offset is another than where it is read": (
        [sent("p", ("t", [4], [1])), polled("c", ("t", [5], [1]))],
        {A.DUPLICATE},
    ),
    "an acknowledged offset holds another's value": (
        [
            sent("p", ("t", [0], [1])),
            sent("q", ("t", [-1], [2]), outcome=Outcome.UNKNOWN),
            polled("c", ("t", [0], [2])),
        ],
        {A.INCONSISTENT_OFFSETS, A.UNSEEN},
    ),
    "read in a partition it was not sent to": (
        [sent("p", ("t", [0], [1])), polled("c", ("u", [0], [1]))],
        {A.PHANTOM, A.UNSEEN},
    ),
    "an unknown transaction of which one half is there": (
        [
            transaction("p", ("t", [0], [1]), ("u", [-1], [2]), outcome=Outcome.UNKNOWN),
            polled("c", ("t", [0], [1])),
            FINAL,
        ],
        {A.TORN_TRANSACTION},
    ),
    "the same, but the rest may still be read": (
        [transaction("p", ("t", [0], [1]), ("u", [-1], [2]), outcome=Outcome.UNKNOWN), polled("c", ("t", [0], [1]))],
        set(),
    ),
    "torn, known by the records behind": (
        [
            transaction("p", ("t", [0], [1]), ("u", [0], [2]), outcome=Outcome.UNKNOWN),
            sent("q", ("u", [1], [3])),
            polled("c", ("t", [0], [1]), ("u", [1], [3])),
        ],
        {A.TORN_TRANSACTION},
    ),
    "a reader of uncommitted records may see what is aborted": (
        [
            transaction("p", ("t", [0], [1]), outcome=Outcome.FAILED),
            sent("q", ("t", [2], [3])),
            polled("d", ("t", [0, 2], [1, 3]), at=5, reads_committed=False),
            polled("c", ("t", [2], [3])),
        ],
        set(),
    ),
    "a reader of uncommitted records sees what was written again after an abort": (
        [
            sent("p", ("t", [1], [1])),
            polled("d", ("t", [0, 1], [1, 1]), reads_committed=False),
            polled("c", ("t", [1], [1])),
        ],
        set(),
    ),
    "a reader of uncommitted records finds another value than the others": (
        [
            sent("p", ("t", [0], [1])),
            sent("q", ("t", [-1], [2]), outcome=Outcome.UNKNOWN),
            polled("d", ("t", [0], [2]), reads_committed=False),
            polled("c", ("t", [0], [1])),
        ],
        {A.INCONSISTENT_OFFSETS},
    ),
    "a transaction reads what it has just sent": (
        [transaction("p", ("t", [0], [1]), polls=[("t", [0], [1], 50)])],
        {A.PRECOMMITTED_READ},
    ),
    "a circle of two transactions": (
        [
            transaction("p", ("t", [0], [1]), polls=[("u", [0], [2], 5)]),
            transaction("q", ("u", [0], [2]), polls=[("t", [0], [1], 6)]),
        ],
        {A.PRECOMMITTED_READ},
    ),
    "read while the commit was under way": (
        [transaction("p", ("t", [0], [1]), asked=10), polled("c", ("t", [0], [1]), at=11)],
        set(),
    ),
    "begins behind where it was assigned": (
        [THREE, READ_THREE, assigned("d", {"t": 0}), polled("d", ("t", [1, 2], [2, 3]))],
        {A.POLL_SKIP},
    ),
    "begins before where it was assigned": (
        [THREE, READ_THREE, assigned("d", {"t": 1}), polled("d", ("t", [0, 1, 2], [1, 2, 3]))],
        {A.NONMONOTONIC_POLL},
    ),
    "a rebalance to an unknown offset allows both": (
        [
            THREE,
            READ_THREE,
            polled("d", ("t", [0], [1])),
            assigned("d", {"t": -1}),
            polled("d", ("t", [2], [3])),
            assigned("d", {"t": -1}),
            polled("d", ("t", [0], [1])),
        ],
        set(),
    ),
    "an assignment of another partition allows nothing": (
        [THREE, READ_THREE, polled("d", ("t", [0], [1])), assigned("d", {"u": -1}), polled("d", ("t", [2], [3]))],
        {A.POLL_SKIP},
    ),
    "others between my sends are fine": (
        [
            sent("p", ("t", [0, 2], [1, 3])),
            sent("q", ("t", [1], [2])),
            READ_THREE,
        ],
        set(),
    ),
    "out of order, known by acknowledgements alone": (
        [sent("p", ("t", [1, 0], [1, 2])), polled("c", ("t", [0, 1], [2, 1]))],
        {A.INT_NONMONOTONIC_SEND},
    ),
    "two commits at the same time may land either way": (
        [THREE, polled("c", ("t", [0, 1, 2], [1, 2, 3]), group="g"), committed("c", 3, 1, 5), committed("d", 2, 4, 6)],
        set(),
    ),
    "a commit after the other": (
        [THREE, polled("c", ("t", [0, 1, 2], [1, 2, 3]), group="g"), committed("c", 3, 1, 5), committed("d", 2, 6, 7)],
        {A.COMMIT_REGRESSION},
    ),
    "a commit that failed does not count": (
        [
            THREE,
            polled("c", ("t", [0, 1, 2], [1, 2, 3]), group="g"),
            committed("c", 3, 1, 5, outcome=Outcome.UNKNOWN),
            committed("d", 2, 6, 7),
        ],
        set(),
    ),
    "told while the commit is under way": (
        [
            THREE,
            polled("c", ("t", [0, 1, 2], [1, 2, 3]), group="g"),
            committed("c", 3, 1, 5),
            committed("d", 0, 4, 6, Kind.FETCH_COMMITTED),
        ],
        set(),
    ),
    "told what was, after the commit": (
        [
            THREE,
            polled("c", ("t", [0, 1, 2], [1, 2, 3]), group="g"),
            committed("c", 3, 1, 5),
            committed("d", 0, 6, 7, Kind.FETCH_COMMITTED),
        ],
        {A.LOST_COMMIT},
    ),
}


@for_each("name", CASES)
def test_exactly_this_is_detected(name: str) -> None:
    operations, expected = CASES[name]
    assert analyse(operations).anomalies == expected
