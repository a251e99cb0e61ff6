"""kill -9 of a stream that reads a topic's history from the Delta table and goes on in the log, again and again.

    python -m tests.campaigns.torture.seam_campaign [--kills 50] [--seed 1]

Records arrive all the time, in plain batches and in transactions, of which some are aborted. A lake worker commits them
twice a second, retention cuts the log down to its last segments, and small files are merged, so that each life of the
stream begins below the end of the table and ends in the log. At the end each committed record was delivered at one
place and in one batch, and all attempts at a batch had the same rows.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

import sparklog
from sparklog.types import TopicPartition
from tests.campaigns.torture.frame import run_from_command_line
from tests.campaigns.torture.lake_campaign import worker_process
from tests.campaigns.torture.seam_driver import COLUMNS, SeamJob
from tests.campaigns.torture.spark_process import Driver
from tests.support.waiting import until

TOPIC = "rides"
PARTITIONS = 3
SETTINGS = {"lake.worker.enable": False, "log.retention.check.interval.ms": 100}
TOPIC_SETTINGS = {"segment.bytes": 32_768, "retention.bytes": 65_536, "file.delete.delay.ms": 0}
ROWS_BEFORE, ROWS_TOGETHER, SEND_PAUSE_S = 60_000, 150, 0.1
OFFSETS_PER_BATCH = 15_000
ABORTED_EVERY = 5
PROGRESS_S = 300.0


class Outcome(NamedTuple):
    """The result of a campaign."""

    rows: int
    batches: int
    repeated_batches: int
    """Batches that were tried again by a later life."""
    driver_kills: int
    worker_kills: int
    log_start: int
    """Smallest first offset of the log at the end: the offsets below were in the table only."""
    table_version: int


class Load:
    """Producers in threads, and the numbers that they have committed."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stop = threading.Event()
        self._failures: list[BaseException] = []
        self.committed: list[np.ndarray] = []
        work = (self._plain, self._transactions)
        self._threads = [threading.Thread(target=self._guarded, args=(part,)) for part in work]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the producers. Raises the error of one that failed."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as e:  # noqa: BLE001 - `stop` raises it
            self._failures.append(e)

    def _plain(self) -> None:
        number = 0
        with sparklog.Producer(self._address) as producer:
            while number < ROWS_BEFORE or not self._stop.wait(SEND_PAUSE_S):
                numbers = np.arange(number, number + ROWS_TOGETHER)
                producer.send_batch(TOPIC, pa.table({"n": numbers})).result(60)
                self.committed.append(numbers)
                number += ROWS_TOGETHER

    def _transactions(self) -> None:
        """Negative numbers, one in each partition."""
        number = -1
        with sparklog.Producer(self._address, transactional_id="load") as producer:
            producer.init_transactions()
            while not self._stop.wait(SEND_PAUSE_S / 2):
                producer.begin_transaction()
                numbers = np.arange(number, number - PARTITIONS, -1)
                for partition, n in enumerate(numbers.tolist()):
                    producer.send_batch(TOPIC, pa.table({"n": [n]}), partition=partition)
                if number // PARTITIONS % ABORTED_EVERY == 0:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
                    self.committed.append(numbers)
                number -= PARTITIONS


def run(directory: Path, kills: int, seed: int) -> Outcome:
    """Run a campaign.

    Args:
        directory: An empty directory.
        kills: Number of lives of the stream that are killed.
        seed: Seed of all choices.

    Returns:
        The size of the work.

    Raises:
        AssertionError: A record was delivered twice, elsewhere, or not at all.
    """
    choose = random.Random(seed)
    output = directory / "output"
    output.mkdir()
    worker_kills = 0
    with (
        sparklog.start_local(directory / "data", settings=SETTINGS, timeout_s=PROGRESS_S) as broker,
        sparklog.Admin(broker.bootstrap_servers) as admin,
    ):
        address = broker.bootstrap_servers
        admin.create_topic(TOPIC, partitions=PARTITIONS, schema="n BIGINT", configs=TOPIC_SETTINGS)
        admin.enable_lake(TOPIC, location=str(directory / "table"), interval_ms=500)
        job = SeamJob(address, TOPIC, str(directory / "checkpoint"), str(output), OFFSETS_PER_BATCH)
        driver = Driver(job, directory / "driver.log", "tests.campaigns.torture.seam_driver")
        worker = worker_process(address)
        load = Load(address)
        try:
            until(lambda: log_start(admin) > 0, "retention cuts the log", within_s=PROGRESS_S)
            for kill in range(1, kills + 1):
                before = len(attempts(output))
                driver.start()
                if choose.random() < 0.8:
                    until(lambda seen=before: len(attempts(output)) > seen, "a batch", within_s=PROGRESS_S)  # type: ignore[misc]
                    time.sleep(choose.uniform(0, 3))
                else:
                    time.sleep(choose.uniform(0, 12))
                driver.kill_everything()
                if choose.random() < 0.2:
                    worker.kill()
                    worker.wait()
                    worker = worker_process(address)
                    worker_kills += 1
                if choose.random() < 0.2:
                    DeltaTable(directory / "table").optimize.compact()
                print(
                    f"{kill} of {kills} kills, {len(attempts(output))} attempts at batches", file=sys.stderr, flush=True
                )
            load.stop()
            driver.start()
            driver.finish()
        finally:
            load.stop()
            driver.kill_everything()
            worker.kill()
            worker.wait()
        found = check(output, np.concatenate(load.committed))
        version = DeltaTable(directory / "table").version()
        return Outcome(*found, kills, worker_kills, log_start(admin), version)


def log_start(admin: sparklog.Admin) -> int:
    """The smallest first offset of the log's partitions."""
    found = admin.list_offsets({TopicPartition(TOPIC, p): "earliest" for p in range(PARTITIONS)})
    return min(at.offset for at in found.values())


def attempts(output: Path) -> list[Path]:
    """The files of the batches that were tried, in the order of the batches."""
    return sorted(output.glob("[0-9]*.parquet"))


def check(output: Path, committed: np.ndarray) -> tuple[int, int, int]:
    """Compare the delivered rows with the committed ones.

    Args:
        output: The directory of the attempts.
        committed: Numbers of all committed rows.

    Returns:
        Numbers of rows, batches and batches with several attempts.

    Raises:
        AssertionError: A row was delivered twice, or not at all, or attempts at a batch differ.
    """
    batches: dict[str, list[pa.Table]] = defaultdict(list)
    for path in attempts(output):
        rows = pq.read_table(path).select(COLUMNS)
        batches[path.name.partition("-")[0]].append(rows.sort_by([(c, "ascending") for c in COLUMNS]))
    for name, tries in batches.items():
        assert all(rows.equals(tries[0]) for rows in tries), f"attempts at batch {name} differ"
    rows = pa.concat_tables([tries[0] for tries in batches.values()])
    places = rows.group_by(["_partition", "_offset"]).aggregate([]).num_rows
    assert places == rows.num_rows, f"{rows.num_rows - places} offsets were delivered in several batches"
    found = np.sort(rows.column("n").to_numpy())
    expected = np.sort(committed)
    missing, foreign = np.setdiff1d(expected, found), np.setdiff1d(found, expected)
    assert not len(missing), f"{len(missing)} rows were not delivered, such as {missing[0]}"
    assert not len(foreign), f"{len(foreign)} rows were delivered that no producer has committed, such as {foreign[0]}"
    assert len(found) == len(expected), f"{len(found) - len(expected)} rows were delivered at several offsets"
    return len(found), len(batches), sum(len(tries) > 1 for tries in batches.values())


if __name__ == "__main__":
    run_from_command_line(run, __doc__, kills=50)
