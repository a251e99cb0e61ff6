"""sarama's own functional tests (Go) against a cluster of five brokers with gateways.

The suite comes as a Go module. Its clients reach each broker through toxiproxy, which cuts and delays connections for
the tests, and the tests stop and start brokers with docker compose, for which `stand_ins/docker_compose.py` stands.
`sarama.toml` has the versions, and the tests that are refused with the reasons.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sparklog.client.local_cluster import SESSION_TIMEOUT_MS, ClusterBroker, LocalCluster
from sparklog.environment.ports import free_ports
from tests.campaigns.gateway_suites.controls import QuietHandler, serving
from tests.campaigns.gateway_suites.go_suites import download, results
from tests.campaigns.gateway_suites.verdict import Verdict, judge

HERE = Path(__file__).parent
MODULE = "github.com/IBM/sarama"
TOXIPROXY = "github.com/Shopify/toxiproxy/v2/cmd/server"
NEEDS = ("go", "java")
"""Programs that the suite needs; java runs the cluster's ZooKeeper."""
TIMEOUT_S = 3_600
BROKERS = 5
FIRST_PORT = 29_091
"""Port of the first broker's proxy; the tests expect the others on the next ports."""
START_TIMEOUT_S = 60.0
_TEST = re.compile(r"^func (Test\w+)\(t \*testing\.T\)", re.MULTILINE)


def listed() -> dict[str, Any]:
    return tomllib.loads((HERE / "sarama.toml").read_text(encoding="utf-8"))


def verify(scratch: Path, records: int, pattern: str | None, built: Path | None = None) -> tuple[Verdict, str]:
    """The verdict on the tests whose names match `pattern` (None: all), and their output. `built`: directory with
    `sarama.test`, `toxiproxy` and the source, from an earlier run. The number of records is the tests' own."""
    listing = listed()
    refused = listing["refused"]
    directory = build(scratch / "sarama", listing) if built is None else built
    files = sorted(directory.glob("*functional*_test.go"))
    names = [name for path in files for name in _TEST.findall(path.read_text(encoding="utf-8"))]
    chosen = [name for name in names if re.search(pattern or "", name) and name not in refused]
    with running_cluster(scratch / "data") as cluster, controls(cluster) as url, proxies(directory, cluster) as address:
        program = scratch / "bin" / "docker"
        program.parent.mkdir()
        command = [sys.executable, str(HERE / "stand_ins" / "docker_compose.py"), url]
        program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
        variables = {
            "TOXIPROXY_ADDR": address,
            "KAFKA_VERSION": listing["kafka_version"],
            "PATH": os.pathsep.join((str(program.parent), os.environ["PATH"])),
        }
        output = run(directory, variables, chosen, refused)
    passed, failed, skipped = results(output)
    unknown = {name for name in refused if name.partition("/")[0] not in names}
    verdict = judge(passed, failed, refused, skipped)
    return verdict._replace(outdated=verdict.outdated | unknown), output


def build(directory: Path, listing: dict[str, Any]) -> Path:
    """The directory of the source, with the suite's program and toxiproxy."""
    download(MODULE, listing["version"], directory)
    command = ["go", "test", "-c", "-tags", "functional", "-o", "sarama.test", "."]
    subprocess.run(command, check=True, cwd=directory)
    command = ["go", "install", f"{TOXIPROXY}@{listing['toxiproxy']}"]
    subprocess.run(command, check=True, env=os.environ | {"GOBIN": str(directory)}, stderr=subprocess.PIPE)
    (directory / "server").rename(directory / "toxiproxy")
    return directory


@contextlib.contextmanager
def running_cluster(directory: Path) -> Iterator[LocalCluster]:
    """Start the brokers. Each advertises the address of its proxy."""
    cluster = LocalCluster(directory, temporary=False, brokers=BROKERS, settings={})
    own_ports = free_ports(BROKERS)
    cluster.brokers = [
        ClusterBroker(
            broker.broker_id,
            broker.bootstrap_servers,
            broker.data_dir,
            {
                "broker.id": broker.broker_id,
                "broker.rack": str(broker.broker_id),
                "zookeeper.connect": cluster.zookeeper_connect,
                "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
                "auto.create.topics.enable": False,
                "default.replication.factor": 2,
                "kafka.listeners": f"PLAINTEXT://127.0.0.1:{port}",
                "kafka.advertised.listeners": f"PLAINTEXT://127.0.0.1:{FIRST_PORT + i}",
            },
        )
        for i, (broker, port) in enumerate(zip(cluster.brokers, own_ports, strict=True))
    ]
    try:
        cluster.start(START_TIMEOUT_S)
        yield cluster
    finally:
        cluster.stop()


@contextlib.contextmanager
def controls(cluster: LocalCluster) -> Iterator[str]:
    """Serve `POST /start|stop|logs/N` for the stand-in of docker compose, and yield the URL."""

    class Handler(QuietHandler):
        def do_POST(self) -> None:
            _, verb, number = self.path.split("/")
            broker = cluster.brokers[int(number) - 1]
            if verb == "start":
                broker.start(START_TIMEOUT_S)
            elif verb == "stop":
                broker.stop()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(broker.log.encode() if verb == "logs" else b"")

    with serving(Handler) as url:
        yield url


@contextlib.contextmanager
def proxies(directory: Path, cluster: LocalCluster) -> Iterator[str]:
    """Start toxiproxy with a proxy for each broker, and yield the address of its interface."""
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    command = [str(directory / "toxiproxy"), "-host", "127.0.0.1", "-port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            _wait_for(port)
            for broker in cluster.brokers:
                proxy = {
                    "name": f"kafka{broker.broker_id}",
                    "listen": f"127.0.0.1:{FIRST_PORT + broker.broker_id - 1}",
                    "upstream": broker.kafka_bootstrap_servers,
                }
                request = urllib.request.Request(f"{address}/proxies", data=json.dumps(proxy).encode(), method="POST")
                urllib.request.urlopen(request, timeout=START_TIMEOUT_S).close()
            yield address
        finally:
            process.terminate()


def _wait_for(port: int) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=START_TIMEOUT_S).close()
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.1)
        else:
            return


def run(directory: Path, variables: dict[str, str], names: list[str], refused: dict[str, str]) -> str:
    """The output of the tests. Refused parts of tests are left out."""
    command = [str(directory / "sarama.test"), "-test.v", "-test.timeout", f"{TIMEOUT_S}s"]
    command += ["-test.run", f"^({'|'.join(names)})$"]
    parts = ["/".join(f"^{re.escape(part)}$" for part in name.split("/")) for name in refused if "/" in name]
    command += ["-test.skip", "|".join(parts)] if parts else []
    ran = subprocess.run(
        command,
        env=os.environ | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=directory,
        timeout=TIMEOUT_S + 60,
        check=False,
    )
    return ran.stdout.decode(errors="replace")
