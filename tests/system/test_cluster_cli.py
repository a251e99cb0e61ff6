"""`sparklog cluster`, `reassign`, `elect-leaders` and `broker decommission` against real brokers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparklog.cli.doctor.directory_facts import lock_holder
from sparklog.client.local_zookeeper import has_java
from tests.support.cli import run_here
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper")


class Started:
    """`sparklog cluster start`, and commands that are sent to it."""

    def __init__(self, data_dir: Path, *options: str) -> None:
        command = [sys.executable, "-m", "sparklog.cli", "cluster", "start", "--data-dir", str(data_dir), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.said = ""
        while "Ctrl-C" not in self.said:
            line = self.process.stdout.readline()
            assert line, self.said
            self.said += line
        found = re.search(r"export SPARKLOG_BOOTSTRAP_SERVERS=(.*)", self.said)
        assert found is not None
        self.bootstrap_servers = found[1]

    def run(self, *words: str, status: int = 0) -> str:
        environment = {"SPARKLOG_BOOTSTRAP_SERVERS": self.bootstrap_servers, "COLUMNS": "200"}
        done = run_here(*words, environment=environment)
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout if status == 0 else done.stdout + done.stderr

    def describe(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.run("cluster", "describe", "--json"))
        return found

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(60) == 0
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def started(directory: Path) -> Iterator[Started]:
    made = Started(directory, "--brokers", "3", "--config", "zookeeper.session.timeout.ms=6000")
    yield made
    if made.process.poll() is None:
        made.stop()


@pytest.mark.nightly
def test_partitions_are_moved_led_and_drained(started: Started, tmp_path: Path) -> None:
    started.run("topic", "create", "events", "--replica-assignment", "1:2,1:2,1:2", "-c", "min.insync.replicas=2")
    plan = tmp_path / "plan.json"
    started.run("reassign", "plan", "--topics", "events", "--output", str(plan))
    moves = json.loads(plan.read_text())["partitions"]
    assert {r for move in moves for r in move["replicas"]} == {1, 2, 3}
    assert "where the plan says" in started.run("reassign", "execute", str(plan), "--throttle", "50MB")
    assert "no partition" in started.run("reassign", "status")
    found = started.describe()
    assert [(b["broker_id"], b["replicas"], b["in_sync"]) for b in found["brokers"]] == [
        (1, 2, 2),
        (2, 2, 2),
        (3, 2, 2),
    ]
    assert found["problems"] == found["reassigning"] == found["under_replicated"] == []
    assert started.run("elect-leaders", "preferred").endswith("another leader\n")
    assert started.run("elect-leaders", "unclean") == "every partition has a leader\n"
    described = started.run("topic", "describe", "events")
    assert re.search(r"leader +. replicas +. in sync", described)
    started.run("topic", "add-partitions", "events", "--partitions", "5", "--yes")
    assert len(started.describe()["offline"]) == 0

    started.run("broker", "decommission", "3")
    found = started.describe()
    assert [(b["state"], b["replicas"]) for b in found["brokers"]][2] == ("cordoned", 0)
    assert [b["replicas"] for b in found["brokers"]] == [5, 5, 0]
    assert "cordoned" in started.run("topic", "create", "three", "--replication-factor", "3", status=1)
    started.run("topic", "create", "as-many-as-there-are")
    assert {b["replicas"] for b in started.describe()["brokers"][:2]} == {6}
    started.run("topic", "delete", "as-many-as-there-are", "--yes")
    refused = started.run("broker", "decommission", "2", status=1)
    assert "events-0 has 2 replicas, but only 1 brokers accept replicas" in refused
    started.run("broker", "decommission", "3", "--cancel")
    started.run("topic", "create", "three", "--replication-factor", "3")
    contradiction = "--replica-assignment", "1:2", "--replication-factor", "3"
    assert "another number of replicas" in started.run("topic", "create", "four", *contradiction, status=1)
    assert "no partition is being reassigned" in started.run("reassign", "throttle", "1MB")
    assert "broker 9 does not exist" in started.run("broker", "decommission", "9", status=2)


def test_a_second_start_beside_the_first_starts_the_missing_brokers(started: Started, directory: Path) -> None:
    def pids() -> dict[int, int]:
        found = {}
        for number in (1, 2, 3):
            holder = lock_holder(directory / f"broker-{number}")
            assert holder is not None, number
            found[number] = holder.pid
        return found

    layout, before = (directory / "cluster.json").read_text(), pids()
    again = "cluster", "start", "--data-dir", str(directory)
    assert "runs already: all brokers are up" in started.run(*again)
    assert "are for its start" in started.run(*again, "--config", "default.partitions=2", status=1)
    os.kill(before[2], signal.SIGKILL)
    until(lambda: lock_holder(directory / "broker-2") is None)
    printed = started.run(*again)
    assert "runs already: started 2" in printed
    assert {i for i, pid in pids().items() if pid != before[i]} == {2}
    lines = [line for line in printed.splitlines() if line.startswith("broker ")]
    first = [line for line in started.said.splitlines() if line.startswith("broker ")]
    assert lines == [line.replace(f"pid {before[i]} ", f"pid {pids()[i]} ") for i, line in enumerate(first, 1)]
    assert (directory / "cluster.json").read_text() == layout
    assert not list(directory.glob("start-*"))
    until(lambda: not started.describe()["problems"])


@pytest.mark.nightly
def test_a_dead_broker_is_a_problem_and_a_second_start_goes_on(started: Started, directory: Path) -> None:
    started.run("topic", "create", "kept", "--replication-factor", "3")
    assert started.run("cluster", "describe", "--check")
    pids = {int(i): int(pid) for i, pid in re.findall(r"broker (\d+) .*pid (\d+)", started.said)}
    cluster_id = started.describe()["cluster_id"]
    os.kill(pids[3], signal.SIGKILL)
    until(lambda: any("broker 3 is down, and has replicas" in problem for problem in started.describe()["problems"]))
    assert "broker 3 is down, and has replicas" in started.run("cluster", "describe", "--check", status=1)
    started.stop()
    again = Started(directory)
    try:
        assert again.bootstrap_servers == started.bootstrap_servers
        assert again.describe()["cluster_id"] == cluster_id
        assert "kept" in again.run("topic", "list")
    finally:
        again.stop()
