"""Producers and consumers, killed and paused at random, and the broker with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.checker.analysis import Anomaly
from tests.campaigns.torture.campaign import Campaign, Plan, run

pytestmark = pytest.mark.crash

FAULTS = {
    "kill broker": 3,
    "kill client": 4,
    "pause broker": 1,
    "pause client": 1,
    "kill broker at step": 2,
    "kill client at step": 1,
}
SMALL_BATCHES = {"batch_size_bytes": 60}
"""Every call is a batch, so that several of a partition are under way when the broker dies."""


def plain(seed: int, kills: int) -> Plan:
    return Plan(
        seed=seed,
        kills=kills,
        clients={"producer": 2, "assigned": 1},
        faults=FAULTS,
        partitions=2,
        broker_steps=("log.before-append", "log.after-append"),
        client_steps={"producer": ("producer.before-send", "producer.after-send")},
        client_settings={"producer": SMALL_BATCHES},
    )


@pytest.mark.nightly
def test_a_few_kills(tmp_path: Path) -> None:
    run(plain(1, 6), tmp_path)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(2))
def test_many_kills(tmp_path: Path, seed: int) -> None:
    run(plain(seed, 100), tmp_path)


@pytest.mark.nightly
def test_producers_that_are_not_idempotent_are_detected(tmp_path: Path) -> None:
    """The broker dies between appends and their acknowledgements: without idempotence they are made again."""
    plan = Plan(
        seed=1,
        kills=3,
        clients={"producer": 2, "assigned": 1},
        faults={"kill broker at step": 1},
        partitions=1,
        broker_steps=("log.after-append",),
        client_settings={"producer": {"enable_idempotence": False}},
    )
    assert Campaign(plan, tmp_path).run().verdict.anomalies == {Anomaly.DUPLICATE}
