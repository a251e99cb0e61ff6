"""Trust in brokers about coordinators: not first the broker that was wrong, nor one that never gets ready."""

from __future__ import annotations

from sparklog.client.net.addresses import Endpoint
from sparklog.client.net.coordinator_key import group_key
from sparklog.client.net.remembered_coordinators import (
    DOUBTED_MAX,
    KEYS_MAX,
    SUSPECT_FOR_S,
    CoordinatorAnswer,
    RememberedCoordinators,
)

A, B, C = (Endpoint("127.0.0.1", port) for port in (1, 2, 3))
KEY = group_key("readers")


def test_a_coordinator_is_kept_until_it_is_wrong() -> None:
    known = RememberedCoordinators()
    assert known.get(KEY) is None
    known.remember(KEY, CoordinatorAnswer(A, B))
    assert known.get(KEY) == CoordinatorAnswer(A, B)
    known.forget(KEY, CoordinatorAnswer(A, B), 0.0, unready=False)
    assert known.get(KEY) is None


def test_a_broker_that_named_a_wrong_coordinator_is_tried_last() -> None:
    known = RememberedCoordinators()
    known.forget(KEY, CoordinatorAnswer(A, B), 100.0, unready=False)
    assert known.order([A, B, C], 100.0) == [A, C, B], "the one that says that it coordinates nothing was right"


def test_a_coordinator_that_never_gets_ready_is_tried_last() -> None:
    known = RememberedCoordinators()
    known.forget(KEY, CoordinatorAnswer(A, A), 100.0, unready=True)
    assert known.order([A, B, C], 101.0) == [B, C, A]
    known.forget(KEY, CoordinatorAnswer(C, B), 102.0, unready=True)
    assert known.order([A, B, C], 103.0) == [A, B, C], "all are doubted: the one that has been longest comes first"
    known.forget(KEY, CoordinatorAnswer(A, A), 104.0, unready=True)
    assert known.order([A, B, C], 104.0) == [B, C, A]


def test_a_doubt_ends() -> None:
    known = RememberedCoordinators()
    known.doubt(A, 100.0)
    known.doubt(None, 100.0)
    assert known.order([A, B], 100.0 + SUSPECT_FOR_S - 1) == [B, A]
    assert known.order([A, B], 100.0 + SUSPECT_FOR_S) == [A, B]


def test_results_of_a_later_look_up_stay() -> None:
    known = RememberedCoordinators()
    known.remember(KEY, CoordinatorAnswer(C, B))
    known.forget(KEY, CoordinatorAnswer(A, A), 100.0, unready=True)
    assert known.get(KEY) == CoordinatorAnswer(C, B)


def test_it_is_bounded() -> None:
    known = RememberedCoordinators()
    for number in range(max(KEYS_MAX, DOUBTED_MAX) + 5):
        known.remember(group_key(f"g{number}"), CoordinatorAnswer(A, B))
        known.doubt(Endpoint("h", number + 1), float(number))
    assert (len(known._answers), len(known._doubted_at)) == (KEYS_MAX, DOUBTED_MAX)
    assert known.get(group_key("g0")) is None
