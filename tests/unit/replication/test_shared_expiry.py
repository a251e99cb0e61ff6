"""Time for which the coordinator remembers the committed version of an application."""

from __future__ import annotations

import pytest

from sparklog.replication.transactions.coordinator import Coordinator
from sparklog.replication.transactions.model import Answer, EndShared, IdReserve, Join, JoinAnswer, TransactionLimits
from sparklog.replication.transactions.shared import UNNAMED_EXPIRATION_MS
from sparklog.types import UNNAMED_APP_PREFIX, shared_transactional_id

HOUR_MS = UNNAMED_EXPIRATION_MS
LIMITS = TransactionLimits(app_expiration_ms=90 * 24 * HOUR_MS)


def committed(app_id: str, at_ms: int) -> Coordinator:
    """A coordinator where `app_id` has committed version 0 at `at_ms`."""
    ids = IdReserve()
    for producer_id in range(10):
        ids.add(producer_id)
    coordinator = Coordinator(ids, LIMITS)
    coordinator.handle(Join(shared_transactional_id(app_id), 0, "run", 1, 1000), "join", at_ms)
    effects = coordinator.handle(EndShared(shared_transactional_id(app_id), 0, "run", 1, True), "end", at_ms)
    assert Answer("end", True) in effects.actions
    return coordinator


def remembers(coordinator: Coordinator, app_id: str, now_ms: int) -> bool:
    coordinator.tick(now_ms)
    actions = coordinator.handle(Join(shared_transactional_id(app_id), 0, "later", 2, 1000), "j", now_ms).actions
    (answer,) = [a for a in actions if isinstance(a, Answer)]
    assert isinstance(answer.result, JoinAnswer)
    return answer.result.identity is None


@pytest.mark.parametrize(
    ("app_id", "age_ms", "expected"),
    [
        ("nightly", HOUR_MS, True),
        ("nightly", LIMITS.app_expiration_ms - 1, True),
        ("nightly", LIMITS.app_expiration_ms, False),
        (UNNAMED_APP_PREFIX + "1", HOUR_MS - 1, True),
        (UNNAMED_APP_PREFIX + "1", HOUR_MS, False),
    ],
)
def test_names_of_single_writes_are_forgotten_soon(app_id: str, age_ms: int, expected: bool) -> None:
    assert remembers(committed(app_id, 5), app_id, 5 + age_ms) is expected
