"""The exactly-once sink, killed and paused at random, and its driver, its workers and the broker with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checker.report import report
from tests.torture.sink_campaign import Copied, SinkCampaign, SinkOutcome, SinkPlan

pytestmark = [pytest.mark.crash, pytest.mark.spark]

RANDOM = {
    "kill driver": 2,
    "kill worker": 4,
    "kill broker": 4,
    "pause driver": 1,
    "pause worker": 1,
    "pause broker": 1,
}


def judged(plan: SinkPlan, directory: Path) -> SinkOutcome:
    outcome = SinkCampaign(plan, directory).run()
    print(f"seed {plan.seed}: {outcome}\n{report(outcome.verdict)}")
    assert outcome.kills >= plan.kills
    return outcome


def test_the_comparison_finds_what_is_wrong() -> None:
    given = {b"a": [1, 3, 5], b"b": [2, 4]}
    assert not Copied(given, given).differences()
    for output in (
        {b"a": [1, 3, 5], b"b": [2]},
        {b"a": [1, 3, 5], b"b": [2, 4, 4]},
        {b"a": [1, 5, 3], b"b": [2, 4]},
        {b"a": [1, 3, 4], b"b": [2, 5]},
        {b"a": [1, 3, 5, 7], b"b": [2, 4]},
        {b"a": [1, 3, 5]},
    ):
        assert Copied(given, output).differences(), output
