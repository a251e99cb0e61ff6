"""The process of a local ZooKeeper."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparklog.client.local_zookeeper import ZooKeeperProcess
from sparklog.errors import BrokerNotAvailableError


def test_a_zookeeper_that_ends_at_once_is_an_error_with_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho no room for the heap\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    zookeeper = ZooKeeperProcess(tmp_path / "zookeeper")
    with pytest.raises(BrokerNotAvailableError, match="ZooKeeper does not start: no room for the heap"):
        zookeeper.start()
    assert not zookeeper.running
    zookeeper.kill()
