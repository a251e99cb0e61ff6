"""A broker and a ZooKeeper that talk over TLS, each with a certificate."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sparklog import Admin
from sparklog.client.local_zookeeper import ZooKeeperProcess
from sparklog.metadata.coordination import ZooKeeperTls
from sparklog.metadata.zookeeper import ZooKeeper
from sparklog.security.authority import Authority
from tests.support.ports import free_port
from tests.system.broker_process import BrokerProcess
from tests.system.secure_broker import now

pytestmark = pytest.mark.nightly

STRANGERS = """
import json, sys
from sparklog.metadata.coordination import ConnectionLossError, ZooKeeperTls
from sparklog.metadata.zookeeper import ZooKeeper
for way in json.loads(sys.argv[2]):
    try:
        ZooKeeper.connect(sys.argv[1], timeout_ms=2_000, tls=way and ZooKeeperTls(*way))
    except ConnectionLossError:
        print("refused")
    else:
        print("let in")
"""
"""In a process of its own: kazoo leaves the sockets of failed handshakes to the collector."""


def pem(path: Path, authority: Authority, name: str) -> str:
    identity = authority.issue(name, ["localhost", "127.0.0.1"], now(), 1, broker=True)
    path.write_text(identity.key.reveal() + identity.certificate)
    return str(path)


def test_a_cluster_over_tls_to_zookeeper_excludes_others(tmp_path: Path) -> None:
    authority, other = Authority("test CA", now()), Authority("another CA", now())
    ca, other_ca = tmp_path / "ca.pem", tmp_path / "other.pem"
    ca.write_text(authority.identity.certificate)
    other_ca.write_text(other.identity.certificate)
    secure_port = free_port()
    zookeeper = ZooKeeperProcess(
        tmp_path / "zookeeper",
        settings={
            "secureClientPort": secure_port,
            "secureClientPortAddress": "127.0.0.1",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            "ssl.keyStore.location": pem(tmp_path / "zookeeper.pem", authority, "zookeeper"),
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": ca,
            "ssl.trustStore.type": "PEM",
            "ssl.clientAuth": "need",
        },
    )
    zookeeper.start()
    where = f"localhost:{secure_port}/sparklog"
    own = pem(tmp_path / "broker.pem", authority, "broker")
    settings = f"""
broker.id = 1
zookeeper.connect = "{where}"
zookeeper.ssl.client.enable = true
zookeeper.ssl.truststore.location = "{ca}"
zookeeper.ssl.keystore.location = "{own}"
"""
    try:
        broker = BrokerProcess(tmp_path / "data", settings=settings, work_dir=tmp_path)
        with Admin(broker.address) as admin:
            admin.create_topic("t", partitions=1)
            assert admin.list_topics() == ["t"]
        assert broker.stop() == 0, broker.stderr
        forged = pem(tmp_path / "forged.pem", other, "broker")
        ways = [None, (str(ca), ""), (str(ca), forged), (str(other_ca), own)]
        tried = subprocess.run(
            [sys.executable, "-c", STRANGERS, where, json.dumps(ways)],
            check=True, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert tried.stdout.split() == ["refused"] * len(ways)
        found = ZooKeeper.connect(where, tls=ZooKeeperTls(str(ca), own))
        assert "brokers" in found.children("/").result(30)
        found.close()
    finally:
        zookeeper.kill()
