"""kill -9 of lake workers and of their broker, again and again, under load; then the table is compared with the log.

    python -m tests.campaigns.torture.lake_campaign [--kills 100] [--seed 1]

Two workers share a topic of three partitions, with commits ten times a second. Producers write with and without
transactions meanwhile; every transaction has one row in each partition. A victim is killed at a random moment, a worker
also at a chosen step of its round, and started again. At the end the table has each committed row once, and no version
of it has a part of a transaction.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
from deltalake import DeltaTable

import sparklog
from sparklog.environment.fault_points import VARIABLE
from sparklog.errors import SparklogError
from tests.campaigns.torture.frame import run_from_command_line
from tests.support.ports import free_port
from tests.support.waiting import until

TOPIC = "trips"
PARTITIONS = 3
STEPS = ("lake.file-written", "lake.files-written", "lake.before-commit", "lake.after-commit")
PLAIN = -1
"""Transaction number of rows outside transactions."""
KILLS_PER_COMMIT = 3
"""Number of kills among which there is a commit at least."""
START_S = 300.0
"""Longest wait for a broker, which may start slowly beside other work."""
SETTINGS = {"lake.worker.enable": False, "log.flush.interval.ms": 1_000}


class Outcome(NamedTuple):
    """The result of a campaign."""

    rows: int
    versions: int
    kills: int
    commits_under_load: int = 0
    """Versions before the last worker ran alone."""


def worker_process(address: str, fault: str = "") -> subprocess.Popen[bytes]:
    """Start a worker, which kills itself at the step that `fault` names."""
    environment = {**os.environ, VARIABLE: fault} if fault else {k: v for k, v in os.environ.items() if k != VARIABLE}
    command = [sys.executable, "-m", "sparklog.cli", "lake", "run", "--bootstrap-servers", address]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


class Load:
    """Producers in threads, which go on when the broker comes back."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._plain, name="plain"),
            *(threading.Thread(target=self._transactions, args=(i,), name=f"transactions-{i}") for i in range(2)),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the producers and wait for their last records."""
        self._stop.set()
        for thread in self._threads:
            thread.join(120)

    def _plain(self) -> None:
        with sparklog.Producer(self._address) as producer:
            while not self._stop.wait(0.02):
                try:
                    producer.send_batch(TOPIC, _rows([PLAIN] * 50))
                except SparklogError:
                    continue

    def _transactions(self, i: int) -> None:
        number = i
        while not self._stop.is_set():
            try:
                with sparklog.Producer(self._address, transactional_id=f"load-{i}") as producer:
                    producer.init_transactions()
                    while not self._stop.wait(0.01):
                        producer.begin_transaction()
                        number += 2
                        order = [0, 1, 2] if number % 4 < 2 else [2, 0, 1]
                        for partition in order:
                            producer.send_batch(TOPIC, _rows([number]), partition=partition)
                            producer.flush()
                        producer.abort_transaction() if number % 10 == i else producer.commit_transaction()
            except SparklogError:
                continue  # the outcome does not matter: the log says which transactions count


def _await_commit(table: Path, workers: list[subprocess.Popen[bytes]], address: str) -> None:
    """Wait for the next version, which workers that start slowly have no time for between two kills."""
    version = DeltaTable(table).version()

    def has_advanced() -> bool:
        for i, worker in enumerate(workers):
            if worker.poll() is not None:  # it has killed itself at its step
                workers[i] = worker_process(address)
        return DeltaTable(table).version() > version

    until(has_advanced, "a commit under load", within_s=START_S)


def _rows(transactions: list[int]) -> pa.Table:
    return pa.table({"transaction": transactions})


def run(directory: Path, kills: int, seed: int) -> Outcome:
    """Run a campaign.

    Args:
        directory: An empty directory.
        kills: Number of processes to kill.
        seed: Seed of all choices.

    Returns:
        The size of the work.

    Raises:
        AssertionError: The table is not the log.
    """
    choose = random.Random(seed)
    address = f"127.0.0.1:{free_port()}"
    start = partial(sparklog.start_local, directory / "data", listen=address, settings=SETTINGS, timeout_s=START_S)
    broker = start()
    table = directory / "table"
    with sparklog.Admin(address) as admin:
        admin.create_topic(TOPIC, partitions=PARTITIONS, schema="transaction BIGINT")
        admin.enable_lake(TOPIC, location=str(table), interval_ms=100)
    load = Load(address)
    workers = [worker_process(address) for _ in range(2)]
    try:
        for n in range(kills):
            time.sleep(choose.uniform(0.5, 4.0))
            if n % KILLS_PER_COMMIT == KILLS_PER_COMMIT - 1:
                _await_commit(table, workers, address)
            if choose.random() < 0.15:
                broker.kill()
                broker = start()
                continue
            i = choose.randrange(len(workers))
            workers[i].kill()
            workers[i].wait()
            fault = f"{choose.choice(STEPS)}:{choose.randrange(1, 4)}:kill" if choose.random() < 0.5 else ""
            workers[i] = worker_process(address, fault)
            if choose.random() < 0.1:
                DeltaTable(table).optimize.compact()
    finally:
        load.stop()
        for worker in workers:
            worker.kill()
            worker.wait()
    under_load = DeltaTable(table).version()
    for _ in range(3):  # an answer that is lost is no failure of the table
        command = [sys.executable, "-m", "sparklog.cli", "lake", "run", "--once", "--bootstrap-servers", address]
        last = subprocess.run(command, capture_output=True, text=True, check=False)
        if last.returncode == 0:
            break
    assert last.returncode == 0, last.stderr
    outcome = check(address, table, kills)._replace(commits_under_load=under_load)
    broker.stop()
    return outcome


def check(address: str, table: Path, kills: int = 0) -> Outcome:
    """Compare the table with the log, and look for parts of transactions in all versions.

    Raises:
        AssertionError: The table is not the log.
    """
    log = sparklog.read_table(address, TOPIC, include_metadata=True)
    expected = Counter(zip(*(log.column(c).to_pylist() for c in ("_partition", "_offset", "transaction")), strict=True))
    newest = DeltaTable(table)
    rows = newest.to_pyarrow_table()
    found = Counter(zip(*(rows.column(c).to_pylist() for c in ("_partition", "_offset", "transaction")), strict=True))
    twice = [k for k, n in found.items() if n > 1]
    assert not twice, f"{len(twice)} rows are there more than once, the first is {twice[0]}"
    assert found == expected, (
        f"missing: {sorted((expected - found).keys())[:5]}, foreign: {sorted((found - expected).keys())[:5]}"
    )
    # delta-rs lets a compaction pass another one: its version has rows twice until a worker takes it back
    undone = {entry["sparklog"]["undone"] for entry in newest.history() if "undone" in entry.get("sparklog", ())}
    columns = ["transaction", "_partition", "_offset"]
    for version in range(newest.version() + 1):
        rows_then = DeltaTable(table, version=version).to_pyarrow_table(columns=columns)
        if version in undone:
            rows_then = rows_then.group_by(columns).aggregate([])
        counts = Counter(rows_then.column("transaction").to_pylist())
        del counts[PLAIN]
        parts = [n for n, count in counts.items() if count != PARTITIONS]
        assert not parts, f"version {version} has a part of {len(parts)} transactions, such as {parts[0]}"
    return Outcome(rows.num_rows, newest.version() + 1, kills)


if __name__ == "__main__":
    run_from_command_line(run, __doc__, kills=100)
