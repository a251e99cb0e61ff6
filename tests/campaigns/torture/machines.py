"""Three brokers and a ZooKeeper, each on a node of a network of its own, with disks that can be filled and can fail."""

from __future__ import annotations

import contextlib
import functools
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

import sparklog
from sparklog.client.local_zookeeper import ZooKeeperProcess
from sparklog.errors import SparklogError
from sparklog.metadata.cluster_znodes import CONTROLLER
from tests.campaigns.torture.network import make_network
from tests.campaigns.torture.processes import Broker, CampaignError
from tests.campaigns.torture.proxied_network import ProxiedNetwork
from tests.campaigns.torture.workforce import wait_until
from tests.support.ports import free_port

IDS = (1, 2, 3)
ZOOKEEPER, CLIENTS = "zookeeper", "clients"
PORT = 9292
CHROOT = "/sparklog"
DISK_BYTES = 1 << 30
FILL_CHUNK_BYTES = 1 << 20
SETTINGS: Mapping[str, object] = {
    "allow.insecure": True,
    "zookeeper.session.timeout.ms": 2_000,
    "replica.lag.time.max.ms": 4_000,
    "replica.fetch.backoff.ms": 100,
    "leader.imbalance.check.interval.seconds": 5,
}


@functools.cache
def can_mount() -> bool:
    """Return True if each broker can have a disk of its own."""
    with tempfile.TemporaryDirectory() as place:
        try:
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return False
        subprocess.run(["umount", place], check=True, capture_output=True)
        return True


def node_of(broker: int) -> str:
    return f"broker-{broker}"


class Machines:
    """The cluster's processes. `up`: the brokers that should run. Everything here is called inside the clients' node,
    see `run`."""

    def __init__(self, directory: Path, settings: Mapping[str, object], without: str | None) -> None:
        self._directory = directory
        self._settings = settings
        self._without = without
        self.up: set[int] = set()
        self._mounts: list[Path] = []
        self._relays: dict[int, str] = {}

    @contextlib.contextmanager
    def run(self) -> Iterator[None]:
        """Everything is there, and this thread is where the clients are; in the end all is gone."""
        self.network = make_network([ZOOKEEPER, CLIENTS, *map(node_of, IDS)], CLIENTS)
        try:
            with self.network.inside(ZOOKEEPER):
                host = self.network.addresses[ZOOKEEPER]
                self.zookeeper = ZooKeeperProcess(self._directory / "zookeeper", host=host)
            self._zookeeper_hosts = self.network.reached(ZOOKEEPER, self.zookeeper.hosts)
            self.brokers = {i: self._create(i) for i in IDS}
            with self.network.inside(CLIENTS):
                self.start_zookeeper()
                for i in IDS:
                    self.start(i)
                yield
        except BaseException:
            self._keep_data()
            raise
        finally:
            self._close()

    def _create(self, broker: int) -> Broker:
        directory = self._directory / node_of(broker)
        disk = directory / "disk"
        disk.mkdir(parents=True)
        if can_mount():
            command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(disk)]
            subprocess.run(command, check=True, capture_output=True)
            self._mounts.append(disk)
        settings = {
            **SETTINGS,
            **self._settings,
            "broker.id": broker,
            "zookeeper.connect": self._zookeeper_hosts + CHROOT,
        }
        listen = f"{self.network.addresses[node_of(broker)]}:{PORT}"
        if isinstance(self.network, ProxiedNetwork):
            listen = f"127.0.0.1:{free_port()}"
            settings["advertised.listeners"] = self._advertised(broker, listen)
            settings["local.socket.enabled"] = False  # it would lead around the relay
        made = Broker(directory, settings, self._without, listen)
        made.data_dir = disk / "data"
        return made

    def _close(self) -> None:
        for broker in getattr(self, "brokers", {}).values():
            with contextlib.suppress(ProcessLookupError):
                broker.kill()
        if hasattr(self, "zookeeper"):
            self.zookeeper.kill()
        for disk in self._mounts:
            subprocess.run(["umount", "-l", str(disk)], check=False, capture_output=True)
        self.network.close()

    def _keep_data(self) -> None:
        """Keep the data for the search for the cause."""
        for disk in self._mounts:
            if (disk / "data").exists():
                shutil.copytree(disk / "data", disk.parent / "data", symlinks=True, dirs_exist_ok=True)

    def _advertised(self, broker: int, listen: str) -> str:
        self._relays[broker] = self.network.reached(node_of(broker), listen)
        return self._relays[broker]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(self._relays.get(i, broker.bootstrap_servers) for i, broker in self.brokers.items())

    # -- processes

    def start(self, broker: int, fault: Mapping[str, str] | None = None) -> None:
        with self.network.inside(node_of(broker)):
            self.brokers[broker].start(fault)
        if fault is None:
            self.up.add(broker)

    def kill(self, broker: int) -> None:
        self.up.discard(broker)
        self.brokers[broker].kill()

    def stop(self, broker: int) -> None:
        self.up.discard(broker)
        self.brokers[broker].stop()

    def start_zookeeper(self) -> None:
        with self.network.inside(ZOOKEEPER):
            self.zookeeper.start()

    def look(self) -> None:
        """Raises CampaignError if one does not run that should."""
        for broker in self.up:
            if not self.brokers[broker].running:
                raise CampaignError(f"broker {broker} has ended by itself: {self.brokers[broker].log()}")

    def logs(self) -> str:
        return "\n".join(f"broker {i}: {broker.log()}" for i, broker in self.brokers.items())

    def tracebacks(self) -> list[str]:
        """Return the tracebacks of unexpected errors in the brokers' logs."""
        found = []
        for broker in IDS:
            text = (self._directory / node_of(broker) / "broker.log").read_text(errors="replace")
            found += [f"broker {broker}: ...{text[max(0, at - 300) : at + 3000]}" for at in _places(text, "Traceback")]
        return found

    # -- disks

    def fill_disk(self, broker: int) -> None:
        """Nothing more can be written."""
        with self._filler(broker).open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(FILL_CHUNK_BYTES))
        with self._filler(broker).open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(512))

    def empty_disk(self, broker: int) -> None:
        self._filler(broker).unlink()

    def _filler(self, broker: int) -> Path:
        return self.brokers[broker].data_dir.parent / "filler"

    @contextlib.contextmanager
    def failing_disk(self, broker: int) -> Iterator[None]:
        """Every write to the disk is answered with EIO."""
        command = [
            "strace",
            "-f",
            "-o",
            "/dev/null",
            "-p",
            str(self.brokers[broker].pid),
            "-e",
            "trace=pwrite64,pwritev",
        ]
        command += ["-e", "inject=pwrite64,pwritev:error=EIO"]
        tracer = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            yield
        finally:
            tracer.send_signal(signal.SIGINT)
            tracer.wait(30)

    # -- what the cluster says

    def controller(self) -> int:
        """0: there is none just now."""
        with contextlib.suppress(SparklogError), sparklog.Admin(self.bootstrap_servers) as admin:
            return max(0, admin.describe_cluster().controller_id)
        return 0

    def depose_controller(self) -> None:
        """As an operator does it: its node is deleted."""
        client = KazooClient(self._zookeeper_hosts + CHROOT)
        client.start(20)
        try:
            with contextlib.suppress(NoNodeError):
                client.delete(CONTROLLER)
        finally:
            client.stop()
            client.close()

    def wait_until_in_sync(self) -> None:
        """Every partition has all replicas in sync. Raises CampaignError that names one that has not."""
        missing = ["not asked yet"]

        def all_in_sync() -> bool:
            self.look()
            with contextlib.suppress(SparklogError):
                missing[:] = self._not_in_sync()
            return not missing

        try:
            wait_until(all_in_sync, "")
        except CampaignError as e:
            raise CampaignError(f"{e}not in sync again: {missing[:20]}") from e

    def _not_in_sync(self) -> list[str]:
        with sparklog.Admin(self.bootstrap_servers) as admin:
            topics = admin.describe_topics(admin.list_topics(include_internal=True))
        return [
            f"{name}-{p.partition}: leader {p.leader}, in sync {p.isr} of {p.replicas}"
            for name, topic in topics.items()
            for p in topic.partition_details
            if p.leader < 0 or len(p.isr) < len(p.replicas)
        ]

    def change_internal_topics(self, configs: Mapping[str, object]) -> None:
        """Once both are there."""

        def changed() -> bool:
            with contextlib.suppress(SparklogError), sparklog.Admin(self.bootstrap_servers) as admin:
                names = [n for n in admin.list_topics(include_internal=True) if n.startswith("__")]
                for name in names:
                    admin.alter_topic(name, configs)
                return len(names) == 2
            return False

        wait_until(changed, "the internal topics cannot be changed")


def _places(text: str, what: str) -> Iterator[int]:
    at = text.find(what)
    while at >= 0:
        yield at
        at = text.find(what, at + 4000)
