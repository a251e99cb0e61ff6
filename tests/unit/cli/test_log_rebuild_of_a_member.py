"""The directory of a cluster's broker: `sparklog log` knows it, and so does a broker that is started alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sparklog_broker.broker import Broker
from sparklog_broker.config import load_config

from sparklog.cli.app import run_app
from sparklog.errors import StorageError
from sparklog.format.checkpoint import CLUSTER_IMAGE_FILE
from tests.support.inspection import fill, started


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    manager = started(tmp_path / "data")
    fill(manager, 5)
    assert manager.close()
    (tmp_path / "data" / CLUSTER_IMAGE_FILE).write_bytes(b"an image of the cluster")
    return tmp_path / "data"


def rebuild(directory: Path, *options: str) -> int:
    return run_app(["log", "rebuild-metadata", "--data-dir", str(directory), "--yes", *options])


def test_its_topics_are_in_zookeeper(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert rebuild(directory) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "is the directory of broker 0 of cluster" in said and "--zookeeper HOST:PORT" in said
    assert not (directory / "metadata.db").exists()


def test_if_zookeeper_is_lost_for_good_it_can_be_had_alone(directory: Path) -> None:
    assert rebuild(directory, "--force") == 0
    assert (directory / "metadata.db").exists()
    assert not (directory / CLUSTER_IMAGE_FILE).exists(), "it is no cluster's directory any more"


def test_a_member_started_alone_is_referred_to_its_cluster(directory: Path) -> None:
    async def start() -> None:
        Broker.open(load_config(None, data_dir=str(directory)), asyncio.get_running_loop())

    with pytest.raises(StorageError, match=r"is the directory of broker 0 of cluster .*--zookeeper"):
        asyncio.run(start())
