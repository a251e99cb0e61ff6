"""Clients against a hostile server."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from tests.campaigns.fuzz.campaign import FINDINGS_MAX, Finding, Outcome
from tests.campaigns.fuzz.cases import ENVELOPE_ID
from tests.campaigns.fuzz.child import Child
from tests.campaigns.fuzz.hostile_server import HostileServer, make_plan
from tests.campaigns.fuzz.planted import honest
from tests.system.broker_process import BrokerProcess, create_topic, produce

TARGETS = {
    "clients": "tests.campaigns.fuzz.client_targets:clients",
    "spark": "tests.campaigns.fuzz.spark_targets:spark",
}


def run_spark(seeds: Iterable[int], work_dir: Path, *, seconds: float | None = None) -> Outcome:
    """Runs the data source's readers against the server of every seed."""
    return run_clients(seeds, work_dir, seconds=seconds, target="spark")


def run_clients(
    seeds: Iterable[int], work_dir: Path, *, seconds: float | None = None, target: str = "clients"
) -> Outcome:
    """Runs the clients against the server of every seed."""
    started = time.monotonic()
    findings: list[Finding] = []
    cases = lied = 0
    broker = BrokerProcess(work_dir / "data", settings="topic.retention.ms = -1\n", work_dir=work_dir)
    server = HostileServer((broker.host, broker.port))
    child = Child(TARGETS[target], work_dir, patience_s=240.0)
    try:
        with broker.connect() as client:
            create_topic(client, "envelope", 2)
            produce(client, [("envelope", 0, honest(ENVELOPE_ID, i, 0)[0]) for i in range(3)])
        for seed in seeds:
            plan = make_plan(seed)
            server.begin(plan)
            cases += 1
            answer = child.call(server.address)
            lied += server.lied > 0
            if not answer.is_as_it_should:
                command = f"python -m tests.campaigns.fuzz run {target} --seed {seed}"
                findings.append(Finding(target, plan.name, f"{answer.kind}: {answer.text}", command))
            late = seconds is not None and time.monotonic() - started > seconds
            if late or len(findings) >= FINDINGS_MAX:
                break
    finally:
        child.stop()
        server.close()
        broker.stop()
    return Outcome(cases, time.monotonic() - started, lied, cases - lied, findings)
