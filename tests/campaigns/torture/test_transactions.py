"""Transactions, pipelines and groups under faults: everything at once, and at every step where a crash would be
worst."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaigns.torture.broker_steps import BROKER_STEPS
from tests.campaigns.torture.campaign import Plan, run
from tests.campaigns.torture.client_steps import CLIENT_STEPS
from tests.campaigns.torture.transactional_work import SHORT, TRANSACTIONS

pytestmark = pytest.mark.crash


def with_transactions(seed: int, kills: int) -> Plan:
    return Plan(
        seed=seed,
        kills=kills,
        clients=TRANSACTIONS,
        faults={
            "kill broker": 2,
            "kill client": 5,
            "pause broker": 1,
            "pause client": 2,
            "kill broker at step": 3,
            "kill client at step": 3,
            "zombie client": 2,
        },
        broker_settings=SHORT,
        client_settings={role: {"transaction_timeout_ms": 5000} for role in ("transactional", "pipeline", "drain")},
        broker_steps=BROKER_STEPS,
        client_steps=CLIENT_STEPS,
        still_s=(0.05, 6.0),
    )


@pytest.mark.nightly
def test_a_few_kills_with_transactions_and_groups(tmp_path: Path) -> None:
    run(with_transactions(1, 6), tmp_path)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(2))
def test_many_kills_with_transactions_and_groups(tmp_path: Path, seed: int) -> None:
    run(with_transactions(seed, 100), tmp_path)
