"""The ensemble of the page about ZooKeeper: it starts as the page says, and exchanges a server under a client."""

from __future__ import annotations

import base64
import hashlib
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from sparklog.client.local_zookeeper import _jars, has_java
from sparklog.metadata.zookeeper import ZooKeeper
from tests.spark import pages
from tests.support.ports import free_port
from tests.support.waiting import CLUSTER_PATIENCE_S, until

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper"),
]
PASSWORD = "of-the-test"
DIGEST = base64.b64encode(hashlib.sha1(f"super:{PASSWORD}".encode()).digest()).decode()


def text(kind: str) -> str:
    (found,) = [block.text for block in pages.blocks("how-to/zookeeper") if block.kind == kind]
    return found


class Ensemble:
    """Servers 1 to 3 as on the page, on ports of this machine, and a fourth one to join them."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.ports = {number: (free_port(), free_port(), free_port()) for number in (1, 2, 3, 4)}
        self._processes = ExitStack()
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def line(self, number: int) -> str:
        """A server in the form of the page."""
        peers, elections, clients = self.ports[number]
        given = next(one for one in text("dynamic").splitlines() if one.startswith("server.1="))
        moved = given.replace("zk1:2888:3888", f"127.0.0.1:{peers}:{elections}").replace(
            ";2181", f";127.0.0.1:{clients}"
        )
        return moved.replace("server.1=", f"server.{number}=")

    def start(self, number: int, servers: list[int]) -> None:
        here = self._directory / f"zk{number}"
        (here / "data").mkdir(parents=True)
        (here / "data" / "myid").write_text(str(number))
        (here / "zoo.cfg.dynamic").write_text("".join(f"{self.line(one)}\n" for one in servers))
        config = text("zoo.cfg").replace("/etc/zookeeper", str(here)).replace("/var/lib/zookeeper", f"{here}/data")
        # a dynamic configuration names the clients' ports itself
        config = config.replace("clientPort=2181\n", "").replace("tickTime=2000", "tickTime=500")
        (here / "zoo.cfg").write_text(config.replace(f"{here}/data-log", f"{here}/log"))
        command = [
            "java", "-Xmx128m", "-XX:TieredStopAtLevel=1", "-Dzookeeper.admin.enableServer=false",
            f"-Dzookeeper.DigestAuthenticationProvider.superDigest=super:{DIGEST}", "-cp", ":".join(_jars()),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(here / "zoo.cfg"),
        ]  # fmt: skip
        output = self._processes.enter_context((here / "output.txt").open("wb"))
        process = self._running[number] = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        self._processes.callback(process.wait)
        self._processes.callback(process.kill)

    def stop(self, number: int) -> None:
        self._running[number].terminate()
        self._running[number].wait()

    def ask(self, number: int, word: str) -> str:
        with socket.create_connection(("127.0.0.1", self.ports[number][2]), 5) as connection:
            connection.sendall(word.encode())
            return b"".join(iter(lambda: connection.recv(65_536), b"")).decode()

    def leader(self, servers: list[int]) -> int:
        """The leading server if all others follow it, else 0."""
        for number in servers:
            told = dict(line.partition("\t")[::2] for line in self.ask(number, "mntr").splitlines())
            if told.get("zk_server_state") == "leader":
                return number if told["zk_synced_followers"] in (str(len(servers) - 1), f"{len(servers) - 1}.0") else 0
        return 0

    def hosts(self, servers: list[int]) -> str:
        return ",".join(f"127.0.0.1:{self.ports[number][2]}" for number in servers)

    def close(self) -> None:
        self._processes.close()


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[Ensemble]:
    made = Ensemble(tmp_path)
    yield made
    made.close()


def test_an_ensemble_starts_and_exchanges_a_server(ensemble: Ensemble) -> None:
    from kazoo.client import KazooClient

    for number in (1, 2, 3):
        ensemble.start(number, [1, 2, 3])
    until(lambda: ensemble.leader([1, 2, 3]), within_s=CLUSTER_PATIENCE_S, passing=(OSError,))
    client = ZooKeeper.connect(f"{ensemble.hosts([2, 3])}/sparklog")
    operator = KazooClient(ensemble.hosts([1, 2, 3]))
    operator.start()
    try:
        client.create("/kept", b"1").result(30)
        operator.add_auth("digest", f"super:{PASSWORD}")
        ensemble.start(4, [1, 2, 3, 4])
        until(lambda: "imok" in ensemble.ask(4, "ruok"), within_s=CLUSTER_PATIENCE_S, passing=(OSError,))
        operator.reconfig(joining=ensemble.line(4), leaving=None, new_members=None)
        until(lambda: ensemble.leader([1, 2, 3, 4]), within_s=CLUSTER_PATIENCE_S, passing=(OSError,))
        operator.reconfig(joining=None, leaving="1", new_members=None)
        assert b"server.1=" not in operator.get("/zookeeper/config")[0]
        ensemble.stop(1)
        until(lambda: ensemble.leader([2, 3, 4]), within_s=CLUSTER_PATIENCE_S, passing=(OSError,))
        node = client.get("/kept").result(30)
        assert node is not None
        assert node.data == b"1"
    finally:
        operator.stop()
        operator.close()
        client.close()
