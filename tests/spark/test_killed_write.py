"""A batch write whose driver is killed holds up readers of committed records for a moment, not until a timeout."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import sparklog
from sparklog.client.transactions.lease_keeper import LEASE_MS, RENEWAL_S
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
PATIENCE_S = 120.0


@pytest.fixture
def writing(broker: sparklog.LocalBroker, topic: Callable[..., str]) -> Iterator[Callable[[str], psutil.Process]]:
    """Starts a driver that writes to a topic and does not end."""
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str) -> psutil.Process:
        command = [sys.executable, "-m", "tests.spark.killed_write", broker.bootstrap_servers, name]
        started.append(subprocess.Popen(command, cwd=ROOT, start_new_session=True, stderr=subprocess.DEVNULL))
        return psutil.Process(started[-1].pid)

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.mark.parametrize("killed", [pytest.param("JVM", marks=pytest.mark.nightly), "process group"])
def test_it_is_aborted_soon(
    killed: str,
    writing: Callable[[str], psutil.Process],
    topic: Callable[..., str],
    admin: sparklog.Admin,
    broker: sparklog.LocalBroker,
) -> None:
    name = topic()
    tp = sparklog.TopicPartition(name, 0)

    def held_up() -> bool:
        levels = ("read_committed", "read_uncommitted")
        committed, all_there = (admin.list_offsets({tp: "latest"}, isolation_level=i)[tp].offset for i in levels)
        return committed < all_there

    driver = writing(name)
    until(held_up, "the first task has written", within_s=PATIENCE_S)
    (java,) = [p for p in driver.children(recursive=True) if p.name() == "java"]
    keepers = [p for p in psutil.process_iter(["cmdline"]) if str(java.pid) in (p.info["cmdline"] or [])[-1:]]
    assert len(keepers) == 1, "renews the write for the driver"
    if killed == "JVM":
        java.kill()
    else:
        os.killpg(driver.pid, signal.SIGKILL)
    killed_at_s = time.monotonic()
    until(lambda: not held_up(), "aborted", within_s=PATIENCE_S)
    assert time.monotonic() - killed_at_s < LEASE_MS / 1_000 - RENEWAL_S, "before the lease has run out"
    psutil.wait_procs(keepers, timeout=30)
    assert not keepers[0].is_running(), "it ends with the driver"
    assert sparklog.read_table(broker.bootstrap_servers, name).num_rows == 0
