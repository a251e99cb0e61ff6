"""Workers that are killed at each step of a round, and a short campaign of kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import sparklog
from sparklog.environment.fault_points import VARIABLE
from sparklog.lake.worker.verify import verify_lake
from sparklog.lake.worker.worker import GROUP_ID
from sparklog.types import TopicPartition
from tests.campaigns.torture import lake_campaign
from tests.campaigns.torture.lake_campaign import START_S, STEPS, TOPIC
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, until

BROKER_KILLED_EVERY = 5
"""Turns of a campaign of upserts in which the broker is killed instead of the worker."""


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


def is_stopped(process: subprocess.Popen[bytes]) -> bool:
    return Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.crash
@pytest.mark.nightly
def test_workers_that_stop_for_long_harm_no_table_when_they_go_on(tmp_path: Path) -> None:
    """One worker is stopped at each step of a round. Until they go on, their sessions have expired, another worker has
    made many versions, and the log has lost the records of their rounds."""
    partitions = [TopicPartition(TOPIC, p) for p in range(3)]
    sent = 0
    with (
        sparklog.start_local(tmp_path / "data", settings={"lake.worker.enable": False}) as broker,
        sparklog.Admin(broker.bootstrap_servers) as admin,
        sparklog.Producer(broker.bootstrap_servers, transactional_id="load") as producer,
        ExitStack() as stack,
    ):
        admin.create_topic(TOPIC, partitions=3, schema="transaction BIGINT")
        admin.enable_lake(TOPIC, location=str(tmp_path / "table"), interval_ms=100)
        producer.init_transactions()

        workers: list[subprocess.Popen[bytes]] = []

        def start(fault: str = "") -> subprocess.Popen[bytes]:
            worker = lake_campaign.worker_process(broker.bootstrap_servers, fault)
            stack.callback(worker.wait)
            stack.callback(worker.kill)
            workers.append(worker)
            return worker

        def send() -> None:
            nonlocal sent
            with producer.transaction():
                for tp in partitions:
                    producer.send_batch(TOPIC, [{"transaction": sent}], partition=tp.partition)
            sent += 1

        def until_synced() -> None:
            until(lambda: admin.describe_lake(TOPIC).lag == 0, "the table has all records")

        def until_members(n: int) -> None:
            until(lambda: len(admin.describe_group(GROUP_ID).members) == n, f"{n} workers in the group")

        stopped = []
        for step in STEPS:
            send()
            stopped.append(start(f"{step}:stop"))
            until(lambda: is_stopped(stopped[-1]), f"a worker that stops at {step}")
        start()
        until_members(1)
        for _ in range(10):
            send()
            until_synced()
        admin.delete_records(dict.fromkeys(partitions, -1))
        send()
        for worker in stopped:
            worker.send_signal(signal.SIGCONT)
        until_members(1 + len(STEPS))
        send()
        until_synced()
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(PATIENCE_S)
        assert verify_lake(admin, TOPIC).problems == []
    versions = [DeltaTable(tmp_path / "table", version=v) for v in range(DeltaTable(tmp_path / "table").version() + 1)]
    for table in versions:
        counts = Counter(table.to_pyarrow_table(columns=["transaction"]).column("transaction").to_pylist())
        assert set(counts.values()) <= {3}, f"version {table.version()} has a part of a transaction"
    assert sorted(counts) == list(range(sent))
    referenced = {Path(uri).name for table in versions for uri in table.file_uris()}
    files = {path.name for path in (tmp_path / "table").glob("*.parquet")}
    assert {name for name in files - referenced if "merged" not in name} == set()


@pytest.mark.crash
@pytest.mark.nightly
def test_workers_and_brokers_killed_under_load(tmp_path: Path) -> None:
    outcome = lake_campaign.run(tmp_path, kills=12, seed=11)
    assert outcome.commits_under_load >= 12 // lake_campaign.KILLS_PER_COMMIT


@pytest.mark.crash
@pytest.mark.torture
@pytest.mark.timeout(1_800)
def test_a_hundred_kills(tmp_path: Path) -> None:
    outcome = lake_campaign.run(tmp_path, kills=100, seed=1)
    assert outcome.commits_under_load >= 100 // lake_campaign.KILLS_PER_COMMIT


def upserts_survive_kills(directory: Path, *, kills: int, changes: int, keys: int) -> None:
    """Kill a worker at a step of a round of an upserted table, or the broker during a round, and compare the table with
    a dict."""
    choose = np.random.default_rng(5)
    truth: dict[int, int] = {}
    address = f"127.0.0.1:{free_port()}"
    settings = {"lake.worker.enable": False}
    start = partial(sparklog.start_local, directory / "data", listen=address, settings=settings, timeout_s=START_S)
    broker = start()
    with sparklog.Admin(address) as admin:
        configs = {"cleanup.policy": "compact"}
        admin.create_topic("accounts", partitions=3, schema="id BIGINT, n BIGINT", key_columns=["id"], configs=configs)
        admin.enable_lake("accounts", location=str(directory / "table"), mode="upsert")
    command = [sys.executable, "-m", "sparklog.cli", "lake", "run", "--once", "-b", address]
    count = 0
    for turn in range(kills):
        ids = choose.integers(0, keys, changes // kills)
        numbers = np.arange(count, count + len(ids))
        count += len(ids)
        deleted = numbers % 7 == 0
        rows = pa.table({"id": ids, "n": pa.array(numbers, mask=deleted)})
        for key, number, is_deleted in zip(ids.tolist(), numbers.tolist(), deleted.tolist(), strict=True):
            truth[key] = number
            if is_deleted:
                del truth[key]
        with sparklog.Producer(address) as producer:
            for at in range(0, rows.num_rows, 50_000):
                producer.send_batch("accounts", rows.slice(at, 50_000))
        if turn % BROKER_KILLED_EVERY == BROKER_KILLED_EVERY - 1:
            worker = subprocess.Popen(command, stderr=subprocess.DEVNULL)
            time.sleep(choose.uniform(0.5, 3.0))
            broker.kill()
            broker = start()
            worker.wait()
            continue
        step = STEPS[1 + turn % 3]
        killed = subprocess.run(command, env={**os.environ, VARIABLE: f"{step}:kill"}, check=False)
        assert killed.returncode == -9, step
    subprocess.run(command, check=True)
    broker.stop()
    table = DeltaTable(directory / "table").to_pyarrow_table()
    assert table.num_rows == len(truth)
    assert dict(zip(table.column("id").to_pylist(), table.column("n").to_pylist(), strict=True)) == truth


@pytest.mark.crash
@pytest.mark.nightly
def test_an_upserted_table_equals_a_dict_after_kills(tmp_path: Path) -> None:
    upserts_survive_kills(tmp_path, kills=6, changes=70_000, keys=5_000)


@pytest.mark.crash
@pytest.mark.torture
@pytest.mark.timeout(3_600)
def test_ten_million_changes_and_fifty_kills(tmp_path: Path) -> None:
    upserts_survive_kills(tmp_path, kills=50, changes=10_000_000, keys=1_000_000)
