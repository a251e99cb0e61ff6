"""Producers and consumers, killed and paused at random, and the broker with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checker.analysis import Anomaly
from tests.checker.report import report
from tests.torture.campaign import Campaign, Outcome, Plan

pytestmark = pytest.mark.crash

PLAIN = {"producer": 2, "assigned": 1}
ALLOWED = {Anomaly.DUPLICATE}


def judged(plan: Plan, directory: Path, allowed: set[Anomaly]) -> Outcome:
    """The campaign's outcome, without anomalies but those allowed."""
    outcome = Campaign(plan, directory).run()
    print(f"seed {plan.seed}: {outcome}\n{report(outcome.verdict, allowed)}")
    assert not outcome.verdict.beyond(allowed), report(outcome.verdict, allowed)
    assert outcome.kills >= plan.kills
    assert outcome.verdict.acknowledged > plan.kills
    return outcome


def test_a_few_kills(tmp_path: Path) -> None:
    judged(Plan(seed=1, kills=12, clients=PLAIN), tmp_path, ALLOWED)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(5))
def test_many_kills(tmp_path: Path, seed: int) -> None:
    judged(Plan(seed=seed, kills=100, clients=PLAIN), tmp_path, ALLOWED)
