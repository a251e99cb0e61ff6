"""The directory of a cluster's broker: `sparklog log` knows it, and so does a broker that is started alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest
from sparklog_broker.cluster.adoption import adopt
from sparklog_broker.config import load_config
from sparklog_broker.partitions.storage import Storage

from sparklog.cli.app import run_app
from sparklog.environment import real_environment
from sparklog.errors import AdoptionRefusedError, StorageError
from sparklog.log.directories.broker_epoch import BROKER_EPOCH_FILE
from sparklog.metadata.coordination import Coordination
from tests.support.inspection import fill, started


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    manager = started(tmp_path / "data")
    fill(manager, 5)
    assert manager.close()
    (tmp_path / "data" / BROKER_EPOCH_FILE).write_text('{"clean": [7], "flushed": [7]}')
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


def test_a_broker_that_is_started_alone_there_is_told_where_it_belongs(directory: Path) -> None:
    async def start() -> None:
        Storage.open(load_config(None, data_dir=str(directory)), asyncio.get_running_loop(), real_environment())

    with pytest.raises(StorageError, match=r"is the directory of broker 0 of cluster .*--zookeeper"):
        asyncio.run(start())


def test_it_is_not_adopted_again(directory: Path) -> None:
    config = load_config(None, data_dir=str(directory), broker_id=0, zookeeper_connect="localhost:2181/sparklog")
    with pytest.raises(AdoptionRefusedError, match=r"belongs to broker 0 of cluster .* already: start it"):
        adopt(config, cast(Coordination, None), real_environment())  # ZooKeeper is not asked
