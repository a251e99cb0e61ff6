"""Three brokers and a ZooKeeper under faults: after any death, full disk or cut, all answers to clients hold."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from sparklog.client.local_zookeeper import has_java
from tests.campaigns.checker.report import report
from tests.campaigns.torture.broker_steps import BROKER_STEPS
from tests.campaigns.torture.client_steps import CLIENT_STEPS, SINK_STEPS
from tests.campaigns.torture.cluster_campaign import ClusterCampaign, ClusterPlan
from tests.campaigns.torture.cluster_sink_campaign import ClusterSinkCampaign
from tests.campaigns.torture.frame import Outcome, judged
from tests.campaigns.torture.machines import can_mount
from tests.campaigns.torture.processes import CampaignError
from tests.campaigns.torture.sink_campaign import SinkPlan, judged_copy
from tests.campaigns.torture.transactional_work import SHORT, TRANSACTIONS
from tests.campaigns.torture.workforce import Work

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper"),
    pytest.mark.skipif(os.name != "posix" or sys.platform == "darwin", reason="children that end with their parent"),
]

TRANSACTIONAL = ("transactional", "pipeline", "drain")
WORK = Work(
    clients=TRANSACTIONS,
    settings={
        **{role: {"request_timeout_ms": 6000} for role in ("producer", "shared")},
        **{role: {"request_timeout_ms": 6000, "transaction_timeout_ms": 5000} for role in TRANSACTIONAL},
    },
    steps=CLIENT_STEPS,
    still_s=(0.05, 6.0),
)
FAULTS: Mapping[str, int] = {
    "kill broker": 4,
    "kill controller": 2,
    "restart broker": 2,
    "stop broker": 2,
    "pause broker": 4,
    "kill broker at step": 4,
    "kill zookeeper": 2,
    "pause zookeeper": 2,
    "kill broker without zookeeper": 1,
    "depose controller": 2,
    "cut broker from brokers": 3,
    "cut two brokers": 3,
    "cut broker from clients": 2,
    "cut broker from zookeeper": 3,
    "cut zookeeper off": 1,
    "isolate broker": 3,
    "cut broker off": 2,
    "fill disk": 3,
    "fail disk": 2,
    "kill client": 3,
    "pause client": 1,
    "zombie client": 1,
    "kill client at step": 2,
}
CRASHES = {"kill two brokers": 3, "kill all brokers": 3}
"""The purpose of flush.mode=group."""


def plan(seed: int, count: int) -> ClusterPlan:
    """Every second seed flushes before it acknowledges. Where there are no disks of their own, none fails."""
    flushed = seed % 2 == 1
    faults = FAULTS
    if not (can_mount() and shutil.which("strace")):
        print("no tmpfs or no strace here: no disk fails")
        faults = {k: n for k, n in FAULTS.items() if "disk" not in k}
    return ClusterPlan(
        seed=seed,
        count=count,
        work=WORK,
        faults={**faults, **(CRASHES if flushed else {})},
        flushed=flushed,
        broker_settings=SHORT,
        broker_steps=BROKER_STEPS,
    )


def run(told: ClusterPlan, directory: Path) -> Outcome:
    """The campaign's outcome. Fails if there are anomalies, or something that nobody has foreseen in a broker's log."""
    campaign = ClusterCampaign(told, directory)
    outcome = campaign.run()
    assert not campaign.tracebacks, "\n".join(campaign.tracebacks[:5])
    assert outcome.verdict.acknowledged > told.count
    return judged(outcome, told.seed)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_few_faults(tmp_path: Path) -> None:
    """The share of every test run: half of the clients, and faults that need no strace."""
    clients = {"producer": 1, "shared": 1, "transactional": 1, "pipeline": 1, "member": 1, "assigned": 1}
    faults = {"kill broker": 1, "kill controller": 1, "kill zookeeper": 1, "isolate broker": 1}
    run(replace(plan(0, 3), work=replace(WORK, clients=clients), faults=faults), tmp_path)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(2))
def test_many_faults(tmp_path: Path, seed: int) -> None:
    run(plan(seed, 25), tmp_path)


@pytest.mark.torture
def test_diverging_logs_are_detected(tmp_path: Path) -> None:
    """A leader that was cut off keeps records that no other replica has, and does not learn the point where its log and
    the next leader's part. Either readers see that, or its replicas cannot continue."""
    told = ClusterPlan(
        seed=1,
        count=12,
        work=Work(clients={"producer": 3, "assigned": 1}, settings=WORK.settings),
        faults={"isolate broker": 3, "pause broker": 1},
        broker_settings=SHORT,
        without="sparklog.replication.replica.model:divergence_check",
    )
    try:
        verdict = ClusterCampaign(told, tmp_path).run().verdict
    except CampaignError as e:
        assert re.search("not in sync again|no progress for", str(e)), e
    else:
        assert verdict.found, report(verdict)


SINK_FAULTS = {
    "kill driver": 1,
    "kill worker": 2,
    "kill broker": 4,
    "kill at sink step": 2,
    "kill zookeeper": 1,
    "stop broker": 2,
    "pause broker": 2,
    "isolate broker": 2,
}


@pytest.mark.torture
@pytest.mark.spark
@pytest.mark.parametrize("seed", range(2))
def test_the_sink_through_failovers(tmp_path: Path, seed: int) -> None:
    told = SinkPlan(seed=seed, kills=8, faults=SINK_FAULTS, sink_steps=SINK_STEPS)
    judged_copy(ClusterSinkCampaign(told, tmp_path).run(), told)
