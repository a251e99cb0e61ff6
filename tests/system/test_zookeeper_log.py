"""Log lines of a ZooKeeper client: neither its login nor its stored data, at any level."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from sparklog.client.local_zookeeper import ZooKeeperProcess, has_java
from sparklog.metadata.zookeeper import ZooKeeper
from sparklog.security.secrets import Secret

pytestmark = pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper")

PASSWORD, RECORD = "hush-7261", b"salted-keys-9154"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[str]:
    process = ZooKeeperProcess(tmp_path)
    process.start()
    yield process.hosts
    process.kill()


def test_no_password_and_no_record_is_logged(hosts: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    client = ZooKeeper.connect(f"{hosts}/sparklog", login=("brokers", Secret(PASSWORD)), set_acl=True)
    try:
        client.create("/users", RECORD).result(30)
        node = client.get("/users").result(30)
        assert node is not None
        assert node.data == RECORD
    finally:
        client.close()
    assert "zookeeper" in caplog.text.lower(), "something is logged"
    assert PASSWORD not in caplog.text
    assert RECORD.decode() not in caplog.text
