"""The first connection to ZooKeeper."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss

from sparklog.metadata.coordination import ConnectionLossError
from sparklog.metadata.zookeeper import ZooKeeper


@pytest.mark.parametrize(("losses", "timeout_ms"), [(2, 60_000), (1_000_000, 300)])
def test_a_connection_that_breaks_at_once_is_repeated_until_the_limit(
    losses: int, timeout_ms: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[str] = []

    def ensure_path(self: KazooClient, path: str) -> bool:
        lost.append(path)
        if len(lost) <= losses:
            raise ConnectionLoss
        return True

    monkeypatch.setattr(KazooClient, "start", lambda self, timeout: None)
    monkeypatch.setattr(KazooClient, "ensure_path", ensure_path)
    if losses > 2:
        with pytest.raises(ConnectionLossError, match="within 300 ms"):
            ZooKeeper.connect("localhost:1/sparklog", timeout_ms=timeout_ms)
    else:
        ZooKeeper.connect("localhost:1/sparklog", timeout_ms=timeout_ms).close()
        assert lost == ["/sparklog"] * 3
