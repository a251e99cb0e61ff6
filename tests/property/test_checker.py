"""The checker: a good history passes, a history with one thing wrong has exactly that anomaly."""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.campaigns.checker.analysis import Anomaly, analyse
from tests.campaigns.checker.model import good_history
from tests.campaigns.checker.mutations import MUTATIONS
from tests.campaigns.checker.report import report

SEEDS = st.integers(0, 2**32)


@given(SEEDS)
def test_a_good_history_passes(seed: int) -> None:
    verdict = analyse(good_history(seed))
    assert not verdict.found, report(verdict)


def test_every_anomaly_has_a_mutation() -> None:
    assert set(MUTATIONS) == set(Anomaly)


@pytest.mark.parametrize("anomaly", Anomaly)
@given(SEEDS, SEEDS)
@settings(max_examples=settings.default.max_examples // 8)  # type: ignore[union-attr]
def test_exactly_the_one_anomaly_is_detected(anomaly: Anomaly, seed: int, choice: int) -> None:
    spoiled = MUTATIONS[anomaly](good_history(seed), random.Random(choice))
    assume(spoiled)
    assert spoiled is not None
    verdict = analyse(spoiled)
    assert verdict.anomalies == {anomaly}, report(verdict)


def test_most_histories_can_be_spoiled_in_every_way() -> None:
    """So that the test above does not pass for want of examples."""
    histories = [good_history(seed) for seed in range(20)]
    for anomaly, mutation in MUTATIONS.items():
        spoiled = [mutation(history, random.Random(seed)) for seed, history in enumerate(histories)]
        assert sum(1 for s in spoiled if s) >= 5, anomaly
