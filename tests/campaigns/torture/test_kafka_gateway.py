"""librdkafka's clients under faults: kill -9 of gateways, brokers and leaders."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sparklog.client.local_zookeeper import has_java
from tests.campaigns.torture.kafka_campaign import run

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper"),
    pytest.mark.skipif(os.name != "posix" or sys.platform == "darwin", reason="children that end with their parent"),
]


@pytest.mark.nightly
def test_a_few_kills_beneath_kafkas_clients(tmp_path: Path) -> None:
    run(tmp_path, kills=6, seed=1)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(2))
def test_many_kills_beneath_kafkas_clients(tmp_path: Path, seed: int) -> None:
    run(tmp_path, kills=60, seed=seed)
