"""A campaign that has to come out well."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tests.campaigns.checker.analysis import Anomaly
from tests.campaigns.checker.report import report
from tests.campaigns.torture.campaign import Campaign, Outcome, Plan


def judged(plan: Plan, directory: Path, allowed: Collection[Anomaly] = ()) -> Outcome:
    """The campaign's outcome. Fails if there are anomalies but those allowed, or if little was done."""
    outcome = Campaign(plan, directory).run()
    print(f"seed {plan.seed}: {outcome}\n{report(outcome.verdict, allowed)}")
    assert not outcome.verdict.beyond(allowed), report(outcome.verdict, allowed)
    assert outcome.kills >= plan.kills
    assert outcome.verdict.acknowledged > plan.kills
    return outcome
