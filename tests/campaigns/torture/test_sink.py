"""The exactly-once sink, killed and paused at random, and its driver, its workers and the broker with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.checker.analysis import Anomaly
from tests.campaigns.torture.broker_steps import BROKER_STEPS
from tests.campaigns.torture.client_steps import SINK_STEPS
from tests.campaigns.torture.sink_campaign import Copied, SinkCampaign, SinkOutcome, SinkPlan, judged_copy

pytestmark = [pytest.mark.crash, pytest.mark.spark]

FAULTS = {
    "kill driver": 2,
    "kill worker": 6,
    "kill broker": 5,
    "kill at sink step": 4,
    "kill at broker step": 4,
    "pause driver": 1,
    "pause worker": 1,
    "pause broker": 1,
    "zombie worker": 1,
    "zombie driver": 1,
}


def run(plan: SinkPlan, directory: Path) -> SinkOutcome:
    return judged_copy(SinkCampaign(plan, directory).run(), plan)


def plan(seed: int, kills: int) -> SinkPlan:
    return SinkPlan(seed=seed, kills=kills, faults=FAULTS, sink_steps=SINK_STEPS, broker_steps=BROKER_STEPS)


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_a_few_kills(tmp_path: Path) -> None:
    run(plan(1, 3), tmp_path)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(2))
def test_many_kills(tmp_path: Path, seed: int) -> None:
    run(plan(seed, 40), tmp_path)


@pytest.mark.torture
def test_a_sink_that_is_not_exactly_once_is_detected(tmp_path: Path) -> None:
    told = SinkPlan(
        seed=1,
        kills=3,
        faults={"kill at sink step": 1},
        sink_steps=("sink.after-write",),
        sink={"sparklog.delivery.guarantee": "at-least-once"},
    )
    outcome = SinkCampaign(told, tmp_path).run()
    assert outcome.outcome.verdict.anomalies == {Anomaly.DUPLICATE}
    assert any("more than once" in found for found in outcome.copied.differences())


def test_the_comparison_finds_the_faults() -> None:
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
