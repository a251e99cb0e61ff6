"""Transactions, pipelines and groups under faults: everything at once, and at every step where a crash would be
worst."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.torture.broker_steps import BROKER_STEPS
from tests.torture.campaign import Plan
from tests.torture.judged import judged

pytestmark = pytest.mark.crash

TRANSACTIONS = {
    "producer": 1,
    "shared": 1,
    "transactional": 2,
    "pipeline": 2,
    "member": 2,
    "assigned": 1,
    "uncommitted": 1,
}
PRODUCER_STEPS = ("producer.before-send", "producer.after-send", "producer.before-end", "producer.after-end")
CLIENT_STEPS = {
    "producer": PRODUCER_STEPS[:2],
    "transactional": PRODUCER_STEPS,
    "pipeline": PRODUCER_STEPS,
    "member": ("consumer.before-commit", "consumer.after-commit"),
}
SHORT = {
    "group.consumer.session.timeout.ms": 4000,
    "group.consumer.heartbeat.interval.ms": 300,
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": 500,
}


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


def test_a_few_kills_with_transactions_and_groups(tmp_path: Path) -> None:
    judged(with_transactions(1, 6), tmp_path)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(5))
def test_many_kills_with_transactions_and_groups(tmp_path: Path, seed: int) -> None:
    judged(with_transactions(seed, 100), tmp_path)
