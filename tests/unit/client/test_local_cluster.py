"""The directory of a local cluster: one process's at a time, with the same ports every time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sparklog.client import local_cluster
from sparklog.client.local_cluster import ClusterBroker, LocalCluster, is_running, request_start
from sparklog.client.start_local import start_local
from sparklog.errors import BrokerNotAvailableError, InvalidConfigError

ELSEWHERE = "127.0.0.1:2181/somewhere"


def cluster(directory: Path, brokers: int | None = 3) -> LocalCluster:
    return LocalCluster(directory, temporary=False, brokers=brokers, settings={}, zookeeper=ELSEWHERE)


def test_a_directory_is_one_clusters_at_a_time(tmp_path: Path) -> None:
    first = cluster(tmp_path)
    layout = (tmp_path / "cluster.json").read_text()
    with pytest.raises(InvalidConfigError, match="runs already: stop it"):
        cluster(tmp_path, brokers=5)
    with pytest.raises(InvalidConfigError, match="runs already, with 3 brokers: to get 5, stop it"):
        request_start(tmp_path, 5)
    assert (tmp_path / "cluster.json").read_text() == layout, "what runs keeps its ports"
    first.stop()
    second = cluster(tmp_path, brokers=None)
    assert second.bootstrap_servers == first.bootstrap_servers
    with pytest.raises(InvalidConfigError, match="runs already"):
        first.start()
    second.stop()
    second.stop()


def test_a_program_that_ends_stops_its_cluster(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom pathlib import Path\nfrom sparklog.client.local_cluster import LocalCluster, _live\n"
        f"_live.add(LocalCluster(Path(sys.argv[1]), temporary=True, brokers=3, settings={{}}, zookeeper={ELSEWHERE!r}))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "data")], capture_output=True, text=True, check=True
    )
    assert ended.stderr == ""
    assert not (tmp_path / "data").exists()


def test_a_refusal_unlocks_the_directory(tmp_path: Path) -> None:
    cluster(tmp_path).stop()
    with pytest.raises(InvalidConfigError, match="has 3 brokers: start all of them"):
        cluster(tmp_path, brokers=2)
    cluster(tmp_path).stop()


@pytest.mark.parametrize("brokers", ["3", 1.0, 2.0, True, 0, 1000, [1]])
def test_invalid_numbers_of_brokers_are_refused(tmp_path: Path, brokers: Any) -> None:
    with pytest.raises(InvalidConfigError, match=r"brokers = .*: 1 to"):
        start_local(tmp_path / "data", brokers=brokers)
    assert not (tmp_path / "data").exists()


def test_a_program_that_runs_the_cluster_takes_no_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_cluster, "REQUEST_TAKEN_S", 0.0)
    assert not is_running(tmp_path)
    first = cluster(tmp_path)
    assert is_running(tmp_path)
    with pytest.raises(InvalidConfigError, match=r"call start_missing\(\) in that program"):
        request_start(tmp_path)
    assert not list(tmp_path.glob("start-*"))
    first.stop()
    assert not is_running(tmp_path)


def test_a_request_is_answered_with_the_brokers_that_were_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = cluster(tmp_path)
    asked: list[float] = []

    def start(self: ClusterBroker, timeout_s: float) -> None:
        asked.append(timeout_s)
        if self.broker_id == 3:
            raise BrokerNotAvailableError("its disk is full")

    monkeypatch.setattr(ClusterBroker, "start", start)
    monkeypatch.setattr(local_cluster, "REQUEST_POLL_S", 0.0)
    monkeypatch.setattr(ClusterBroker, "running", property(lambda self: self.broker_id != 2))
    monkeypatch.setattr("time.sleep", lambda _: first.answer_requests())
    started, brokers = request_start(tmp_path)
    assert started == [2]
    assert [(b.broker_id, b.bootstrap_servers, b.data_dir) for b in brokers] == [
        (b.broker_id, b.bootstrap_servers, str(b.data_dir)) for b in first.brokers
    ]
    assert [b.broker_id for b in brokers] == [1, 2, 3]
    monkeypatch.setattr(ClusterBroker, "running", property(lambda self: False))
    with pytest.raises(BrokerNotAvailableError, match="its disk is full"):
        request_start(tmp_path)
    assert not list(tmp_path.glob("start-*"))
    first.stop()


def test_settings_with_a_parameter_of_their_own_are_refused() -> None:
    """The parameter's default would win without a word."""
    for name, parameter in (("listen", "listen"), ("data.dir", "data_dir")):
        with pytest.raises(InvalidConfigError, match=f"use {parameter}="):
            start_local(settings={name: "127.0.0.1:9292"})
