"""The commands of docs/security.md for several brokers, run unchanged except for hosts, ports and directories.

Each broker has a loopback address of its own, as if it were a machine: all listen on the same ports.
"""

from __future__ import annotations

import os
import signal
import socket
import ssl
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sparklog import Admin, Producer, TopicPartition
from sparklog.client.local_zookeeper import ZooKeeperProcess
from sparklog.client.net import tls_stream
from sparklog.security.secure_setup import toml
from sparklog.settings import flatten
from tests.spark import pages
from tests.support.waiting import until_reached
from tests.system.broker_process import readable
from tests.system.cluster_processes import PATIENCE_S

pytestmark = pytest.mark.nightly

PAGE = "security"
NETWORK = f"127.{os.getpid() >> 8 & 127 | 128}.{os.getpid() & 255}"
"""Of the hosts: no other test has it at the same time."""
ZOOKEEPERS = "zk1:2181,zk2:2181,zk3:2181"


def block(kind: str, number: int = 0) -> str:
    """Its text in the page. `number`: which of those of the same kind."""
    return pages.blocks(PAGE, f"cluster {kind}")[number].text


def free_ports() -> int:
    """The first of two that nobody has, at no address."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("", 0))
            port = int(first.getsockname()[1])
            try:
                second.bind(("", port + 1))
            except (OSError, OverflowError):
                continue
            return port


class Machines:
    """Hosts NETWORK.N, the directories that the page names, a ZooKeeper, and the processes started on them. The
    brokers' logs are in `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.etc, self.data = directory / "etc", directory / "data"
        self.zookeeper = ZooKeeperProcess(directory / "zookeeper")
        self.zookeeper.start()
        self.port, self.fourth_port = free_ports(), free_ports()
        self.processes: dict[str, subprocess.Popen[str]] = {}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SPARKLOG_")}
        self.environment = kept | {"PATH": f"{pages.BIN}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "200"}

    @property
    def security(self) -> str:
        return str(self.etc / "client.properties")

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{NETWORK}.{n}:{self.port}" for n in (1, 2, 3))

    def here(self, text: str) -> str:
        """A text of the page with this machine's names in the place of the page's."""
        zookeepers = ",".join([self.zookeeper.hosts] * 3)
        text = text.replace(ZOOKEEPERS, zookeepers)
        text = text.replace("/etc/sparklog", str(self.etc)).replace("/var/lib/sparklog", str(self.data))
        text = text.replace("--hostname broker-1", f"--listen {NETWORK}.1:{self.port} --hostname broker-1")
        text = text.replace("--hostname broker-4", f"--port {self.fourth_port} --hostname broker-4")
        for number in (1, 2, 3, 4):
            text = text.replace(f"--hostname broker-{number}", f"--hostname {NETWORK}.{number}")
        return text

    def run(self, command: str) -> str:
        """Return the output of a command. Fails the test if the command fails."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self.here(command)],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}\n{self.logs()}"
        return done.stdout

    def start(self, name: str, command: str, ready: Callable[[list[str]], bool]) -> list[str]:
        """Start a process that keeps running; returns its lines up to the moment when it is `ready`."""
        with (self.directory / f"{name}.log").open("w") as log:
            process = self.processes[name] = subprocess.Popen(
                ["bash", "-c", f"exec {self.here(command)}"],
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert process.stdout is not None
        lines: list[str] = []
        while not ready(lines):
            # a line at a time, from the descriptor: what is read ahead would be waited for in vain
            lines.append(read_line(process.stdout.fileno(), self.logs))
        return lines

    def start_broker(self, number: int) -> None:
        """Start a broker with the files that the page's commands made for it. The data directory has the same path on
        each machine of the page, not on this one."""
        config = self.etc / f"broker-{number}" / "broker.toml"
        settings = flatten(tomllib.loads(config.read_text()))
        if settings["data.dir"] == str(self.data):
            config.write_text(toml(settings | {"data.dir": str(self.data / f"broker-{number}")}))
        command = block("broker").replace("broker-1", f"broker-{number}")
        lines = self.start(f"broker-{number}", command, lambda lines: len(lines) == 2)
        assert all(line.startswith("listening on ") for line in lines), lines

    def stop(self, name: str, number: int = signal.SIGTERM) -> int:
        process = self.processes.pop(name)
        process.send_signal(number)
        status = process.wait(PATIENCE_S)
        assert process.stdout is not None
        process.stdout.close()
        return status

    def reload(self) -> None:
        """As one does it when the files of a step have come to their machines."""
        for process in self.processes.values():
            process.send_signal(signal.SIGHUP)

    def logs(self) -> str:
        return "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in sorted(self.directory.glob("*.log")))

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()
        self.zookeeper.kill()


def read_line(descriptor: int, what: Callable[[], str]) -> str:
    found = b""
    while not found.endswith(b"\n"):
        assert readable(descriptor, PATIENCE_S), what()
        byte = os.read(descriptor, 1)
        assert byte, what()
        found += byte
    return found.decode().rstrip("\n")


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    """With the three brokers of the page."""
    made = Machines(tmp_path_factory.mktemp("machines"))
    patch = pytest.MonkeyPatch()
    patch.setattr(tls_stream, "RENEWAL_S", 0.0)  # this process is a client that runs: it looks at ca.pem each time
    try:
        made.run(block("sh"))
        for number in (1, 2, 3):
            made.start_broker(number)
        until_reached(lambda: live(made) == {1, 2, 3}, "three brokers")
        yield made
    finally:
        patch.undo()
        made.close()


def live(machines: Machines) -> set[int]:
    with Admin(machines.bootstrap, security=machines.security) as admin:
        return {broker.broker_id for broker in admin.describe_cluster().brokers if broker.host}


def shown(machines: Machines, number: int, context: ssl.SSLContext | None = None) -> bytes:
    """The certificate that a broker shows to other brokers. Raises SSLCertVerificationError: `context` (None: any is
    fine) does not trust it."""
    if context is None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    port = machines.port if number < 4 else machines.fourth_port
    address = (f"{NETWORK}.{number}", port + 1)
    with socket.create_connection(address, PATIENCE_S) as sock, context.wrap_socket(sock) as tls:
        return tls.getpeercert(binary_form=True) or b""


def authority(machines: Machines) -> ssl.SSLContext:
    """A context with the clients' present authorities."""
    context = ssl.create_default_context(cafile=str(machines.etc / "ca.pem"))
    context.check_hostname = False
    return context


def trusted(machines: Machines, number: int, context: ssl.SSLContext) -> bool:
    """Return True if the certificate that a broker shows to other brokers is by one of the authorities."""
    try:
        shown(machines, number, context)
    except ssl.SSLCertVerificationError:
        return False
    return True


def works(machines: Machines) -> None:
    """Check that all brokers are in sync and accept a client's records."""
    until_reached(lambda: in_sync(machines) == 3, "three in-sync replicas")
    machines.run(block("sh", 1).splitlines()[0] + "\nsparklog cluster describe --check")
    before = written(machines)
    with Producer(machines.bootstrap, security=machines.security) as producer:
        producer.send("trips", b"one more").result(PATIENCE_S)
    assert written(machines) == before + 1


def written(machines: Machines) -> int:
    with Admin(machines.bootstrap, security=machines.security) as admin:
        return admin.list_offsets({TopicPartition("trips", 0): "latest"})[TopicPartition("trips", 0)].offset


def in_sync(machines: Machines) -> int:
    with Admin(machines.bootstrap, security=machines.security) as admin:
        return len(admin.describe_topic("trips").partition_details[0].isr)


def test_three_brokers_and_their_super_user(machines: Machines) -> None:
    machines.run(block("sh", 1))
    works(machines)
    for number in (1, 2, 3):
        settings = (machines.etc / f"broker-{number}" / "broker.toml").read_text()
        named = {Path(word) for word in settings.replace('"', " ").split() if word.startswith(f"{machines.etc}/")}
        assert named
        assert {path.parent for path in named} == {machines.etc / f"broker-{number}"}, "it needs no other's directory"


def test_one_more_broker_with_the_listeners_of_the_page(machines: Machines) -> None:
    """The page's lines for the listeners in broker.toml replace the generated ones."""
    machines.run(block("add"))
    config = machines.etc / "broker-4" / "broker.toml"
    text = block("toml").replace("10.0.0.1:9293", f"{NETWORK}.4:{machines.fourth_port + 1}")
    assert text.count(":9292") == 1
    listeners = flatten(tomllib.loads(text.replace(":9292", f":{machines.fourth_port}")))
    made = flatten(tomllib.loads(config.read_text()))
    assert listeners["listeners"] != made["listeners"]
    assert listeners.keys() <= made.keys()
    config.write_text(toml(made | listeners))
    machines.start_broker(4)
    until_reached(lambda: live(machines) == {1, 2, 3, 4}, "the fourth broker")
    assert shown(machines, 4)
    assert machines.stop("broker-4") == 0
    until_reached(lambda: live(machines) == {1, 2, 3}, "the others know that it is gone")
    (machines.etc / "broker-4").rename(machines.directory / "broker-4-was-here")


def test_a_broker_gets_a_new_certificate(machines: Machines) -> None:
    works(machines)
    (renewed,) = block("renew").splitlines()
    before = {number: shown(machines, number) for number in (1, 2, 3)}
    machines.run(renewed)
    machines.reload()
    until_reached(lambda: shown(machines, 2) != before[2], "the new certificate")
    assert {number: shown(machines, number) for number in (1, 3)} == {number: before[number] for number in (1, 3)}
    works(machines)


def test_a_new_authority_in_three_steps(machines: Machines) -> None:
    both, renewed, retired = block("authority").splitlines()
    old = authority(machines)
    before = {number: shown(machines, number) for number in (1, 2, 3)}
    machines.run(both)
    machines.reload()
    works(machines)
    assert all(trusted(machines, number, old) for number in (1, 2, 3))
    machines.run(renewed)
    machines.reload()
    until_reached(lambda: all(shown(machines, number) != before[number] for number in before), "new certificates")
    works(machines)
    machines.run(retired)
    machines.reload()
    new = authority(machines)
    assert all(trusted(machines, number, new) and not trusted(machines, number, old) for number in (1, 2, 3))
    works(machines)


def test_all_of_it_on_this_machine(machines: Machines) -> None:
    lines = machines.start("cluster", block("start"), lambda lines: lines[-1:] == ["Ctrl-C stops all of it"])
    assert sum(line.startswith("broker ") for line in lines) == 3
    (told,) = [line for line in lines if line.startswith("export SPARKLOG_COMMAND_CONFIG=")]
    machines.run(f"{told}\nsparklog cluster describe --check\n{block('sh', 1).splitlines()[-1]}")
    assert machines.stop("cluster", signal.SIGINT) == 0
