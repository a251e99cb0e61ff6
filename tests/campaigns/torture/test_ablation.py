"""A campaign that cannot fail proves nothing: with one safeguard of the broker off, it has to find something."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.campaigns.checker.analysis import Anomaly
from tests.campaigns.checker.report import report
from tests.campaigns.torture.campaign import Campaign, Plan
from tests.campaigns.torture.shared import AFTER_END

pytestmark = [pytest.mark.crash, pytest.mark.torture]

PRODUCERS = "sparklog.log.producers.states"
TRANSACTIONS = "sparklog.replication.transactions.model"
SMALL_BATCHES = {"producer": {"batch_size_bytes": 60}}


class Ablation(NamedTuple):
    """A disabled safeguard, its clients, their faults, and the expected findings."""

    without: tuple[str, ...]
    clients: Mapping[str, int]
    faults: Mapping[str, int]
    shows: frozenset[Anomaly]
    kills: int = 4
    broker_steps: tuple[str, ...] = ()
    client_steps: Mapping[str, tuple[str, ...]] = {}


ABLATIONS = {
    "what was appended is forgotten": Ablation(
        (f"{PRODUCERS}:sequence_check", f"{PRODUCERS}:five_batch_memory"),
        {"producer": 2, "assigned": 1},
        {"kill broker at step": 1},
        frozenset({Anomaly.DUPLICATE}),
        broker_steps=("log.after-append",),
    ),
    "losers are committed, too": Ablation(
        (f"{TRANSACTIONS}:committed_participants_only",),
        {"shared": 1, "assigned": 1},
        {"kill broker": 1},
        frozenset({Anomaly.DUPLICATE}),
        kills=1,
    ),
    "a committed batch is opened again": Ablation(
        (f"{TRANSACTIONS}:committed_version_check",),
        {"shared": 1, "assigned": 1},
        {"kill client at step": 1},
        frozenset({Anomaly.DUPLICATE}),
        client_steps={"shared": (AFTER_END,)},
    ),
}


@pytest.mark.parametrize("name", ABLATIONS)
def test_the_fault_is_detected(name: str, tmp_path: Path) -> None:
    told = ABLATIONS[name]
    plan = Plan(
        seed=1,
        kills=told.kills,
        clients=told.clients,
        faults=told.faults,
        partitions=1,
        broker_steps=told.broker_steps,
        client_steps=told.client_steps,
        client_settings=SMALL_BATCHES,
        without=",".join(told.without),
    )
    verdict = Campaign(plan, tmp_path).run().verdict
    assert verdict.anomalies & told.shows, report(verdict)
