"""ZooKeeper's data are replaced by an older copy under running brokers: no acknowledged record is lost, `doctor` names
it, and a command writes the topics back."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sparklog.client.local_zookeeper import has_java
from tests.support.waiting import until_reached
from tests.system.cluster_processes import ClusterProcesses

pytestmark = pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper")

BROKERS = (1, 2, 3)
COPIED = "copied"
NEW = "made-after-the-copy"


def cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "sparklog.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.nightly
def test_an_older_copy_of_zookeeper_loses_no_record(tmp_path: Path) -> None:
    cluster = ClusterProcesses(tmp_path)
    try:
        cluster.create(1, COPIED, 3, min_insync_replicas=2)
        until_reached(lambda: cluster.in_sync(COPIED, 3, asked=1), "all in sync")
        data, copy = tmp_path / "zookeeper" / "data", tmp_path / "copy"
        cluster.zookeeper.kill()
        shutil.copytree(data, copy)
        cluster.zookeeper.start()
        until_reached(lambda: cluster.metadata(1, COPIED).controller >= 0, "a controller")
        until_reached(lambda: cluster.create(1, NEW, 3, min_insync_replicas=2) is None, "the new topic")
        until_reached(lambda: cluster.in_sync(NEW, 3, asked=1), "all in sync")
        sent = {(topic, number): [b"%d" % n for n in range(20)] for topic in (COPIED, NEW) for number in range(3)}
        for (topic, number), values in sent.items():
            cluster.produce(cluster.leader_of(topic, number, asked=1), topic, number, values)

        def all_is_there() -> bool:
            """True if every partition's leader has all records; leaders may change between two requests."""
            return all(
                cluster.read(cluster.leader_of(topic, number, asked=1), topic, number) == values
                for (topic, number), values in sent.items()
            )

        cluster.zookeeper.kill()
        shutil.rmtree(data)
        shutil.copytree(copy, data)
        cluster.zookeeper.start()
        until_reached(lambda: all("are older than" in cluster.processes[i].stderr for i in BROKERS), "all refuse it")
        until_reached(all_is_there, "all records")
        said = cli("doctor", "--bootstrap-servers", f"127.0.0.1:{cluster.ports[1]}", "--interval", "0s")
        assert "there is no controller" in said.stdout and "restore-metadata" in said.stdout

        cluster.kill(3)  # it does not start with the older data
        refusing = cluster.launch(3, cluster.ports[3], "broker-3", wait=False)
        assert refusing.process.wait(60) == 1
        assert refusing.process.stdout is not None
        refusing.process.stdout.close()
        assert "sparklog cluster restore-metadata" in refusing.stderr

        directories = [f"--data-dir={tmp_path / f'broker-{i}' / 'data'}" for i in BROKERS]
        command = ("cluster", "restore-metadata", *directories, "--zookeeper", f"{cluster.zookeeper.hosts}/sparklog")
        dry = cli(*command)
        assert dry.returncode == 1 and NEW in dry.stdout and "not written" in dry.stderr
        done = cli(*command, "--yes")
        assert done.returncode == 0, done.stderr
        assert f"{NEW} is back" in done.stdout
        cluster.start(3)
        for topic in (COPIED, NEW):
            until_reached(lambda t=topic: cluster.in_sync(t, 3, asked=1), f"all replicas of {topic} in sync")  # type: ignore[misc]
        until_reached(all_is_there, "all records")
        for topic, number in sent:
            until_reached(
                lambda t=topic, n=number: cluster.produce(cluster.leader_of(t, n, asked=1), t, n, [b"x"]) == 20,  # type: ignore[misc]
                "an append behind them",
            )
    finally:
        cluster.close()
