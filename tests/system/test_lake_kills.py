"""Workers that are killed at each step of a round, and a short campaign of kills."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sparklog
from sparklog.environment.fault_points import VARIABLE
from tests.system import lake_campaign
from tests.system.lake_campaign import STEPS, TOPIC


@pytest.mark.crash
def test_a_worker_killed_at_any_step_leaves_every_row_once(tmp_path: Path) -> None:
    settings = {"lake.worker.enable": False}
    with (
        sparklog.start_local(tmp_path / "data", settings=settings) as broker,
        sparklog.Admin(broker.bootstrap_servers) as admin,
        sparklog.Producer(broker.bootstrap_servers, transactional_id="load") as producer,
    ):
        admin.create_topic(TOPIC, partitions=3, schema="transaction BIGINT")
        admin.enable_lake(TOPIC, location=str(tmp_path / "table"))
        producer.init_transactions()
        command = [sys.executable, "-m", "sparklog.cli", "lake", "run", "--once", "-b", broker.bootstrap_servers]
        for number, step in enumerate(STEPS):
            with producer.transaction():
                for partition in range(3):
                    producer.send_batch(TOPIC, [{"transaction": number}], partition=partition)
            killed = subprocess.run(command, env={**os.environ, VARIABLE: f"{step}:kill"}, check=False)
            assert killed.returncode == -9, step
        subprocess.run(command, check=True)
        outcome = lake_campaign.check(broker.bootstrap_servers, tmp_path / "table")
    assert outcome.rows == 3 * len(STEPS)


@pytest.mark.crash
@pytest.mark.nightly
def test_workers_and_brokers_killed_under_load(tmp_path: Path) -> None:
    outcome = lake_campaign.run(tmp_path, kills=12, seed=11)
    assert outcome.commits_under_load > 3


@pytest.mark.crash
@pytest.mark.torture
@pytest.mark.timeout(1_800)
def test_a_hundred_kills(tmp_path: Path) -> None:
    outcome = lake_campaign.run(tmp_path, kills=100, seed=1)
    assert outcome.commits_under_load > 30
