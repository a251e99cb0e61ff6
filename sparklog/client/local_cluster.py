"""`start_local(brokers=3)`: a development cluster of brokers and a ZooKeeper on this machine.

Only one process at a time can use a directory (`cluster.lock`), because two ZooKeepers would destroy its files.

`cluster.json` in the directory: `{"zookeeper": "", "zookeeper_port": 40123, "ports": {"1": 40124, …}}`. A second start
on the directory continues with the same brokers on the same ports. If the file is lost, the next start chooses new
ports, and the number of brokers and an outside ZooKeeper have to be named again; the brokers find their data.

A secured cluster also has `secure/` (see `sparklog.security.cluster_setup`), and every later start is secured, too.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import shutil
import socket
import tempfile
import time
import tomllib
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from sparklog.client.local import KAFKA, REGISTRY, START_TIMEOUT_S, LocalBroker, kafka_settings, start_broker
from sparklog.client.local_zookeeper import ZooKeeperProcess
from sparklog.environment.files import absolute, read_regular
from sparklog.environment.ports import free_ports
from sparklog.errors import BrokerNotAvailableError, InvalidConfigError, SparklogError
from sparklog.settings import flatten
from sparklog.types import whole_number

__all__ = ["ClusterBroker", "LocalCluster", "start_cluster"]

BROKERS_MAX = 20
BROKERS_DEFAULT = 3
LAYOUT_FILE = "cluster.json"
SECURE = "secure"
LOCK_FILE = "cluster.lock"
REQUEST_PREFIX, REQUEST_SUFFIX, ANSWER_SUFFIX = "start-", ".request", ".answer"
"""Parts of the names of the files that `request_start` and the process of the cluster exchange."""
REQUEST_TAKEN_S = 5.0
REQUEST_POLL_S = 0.1
CHROOT = "/sparklog"
SESSION_TIMEOUT_MS = 6_000
"""Session timeout in ms, shorter than a broker's default: on one machine the loss of a broker is noticed sooner."""

_live: set[LocalCluster] = set()


class ClusterBroker:
    """One broker of a local cluster. It keeps its address and its directory over `kill`, `stop` and `start`."""

    def __init__(
        self, broker_id: int, listen: str, data_dir: Path, settings: Mapping[str, object], *, testing: bool = False
    ) -> None:
        """Describe a broker that is not started yet.

        Args:
            broker_id: Id of the broker.
            listen: HOST:PORT of the broker.
            data_dir: Directory of the broker.
            settings: Broker settings by their dotted names.
            testing: True for a broker whose clock a test moves, and whose requests a test lets fail.
        """
        self.broker_id = broker_id
        """Id of the broker."""
        self.bootstrap_servers = listen
        """Address of the broker as HOST:PORT. If `listen` has the port 0, the first start chooses the port."""
        self.data_dir = data_dir
        """Directory of the broker."""
        self._settings = dict(settings)
        self._testing = testing
        self._process: LocalBroker | None = None

    @property
    def pid(self) -> int:
        """Id of the broker's process; -1 if the broker does not run."""
        return self._process.pid if self._process is not None and self.running else -1

    @property
    def running(self) -> bool:
        """True while the broker's process runs."""
        return self._process is not None and self._process.running

    @property
    def log(self) -> str:
        """The last lines of the broker's log; empty before its first start."""
        return "" if self._process is None else self._process.log

    @property
    def kafka_bootstrap_servers(self) -> str:
        """Address of the broker's Kafka gateway; empty without a gateway, or before its start."""
        return "" if self._process is None else self._process.kafka_bootstrap_servers

    @property
    def schema_registry_url(self) -> str:
        """URL of the schema registry in the broker's gateway; empty without one, or before its start."""
        return "" if self._process is None else self._process.schema_registry_url

    @property
    def faults_address(self) -> str:
        """Address that takes a test's orders for faults; empty if no test kit has started the broker."""
        return "" if self._process is None else self._process.faults_address

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start the broker and wait until it listens. The call does nothing if the broker runs.

        Args:
            timeout_s: The longest wait in seconds.

        Raises:
            BrokerNotAvailableError: The broker did not start in time. The message has the broker's last lines.
        """
        if not self.running:
            listen = None if "listeners" in self._settings else self.bootstrap_servers
            settings = self._settings
            if self.kafka_bootstrap_servers and KAFKA.items() <= settings.items():
                # the gateway keeps its address, as the broker does, so that Kafka's clients find it again
                settings = settings | {"kafka.listeners": f"PLAINTEXT://{self.kafka_bootstrap_servers}"}
                if self.schema_registry_url:
                    settings = settings | {REGISTRY: self.schema_registry_url}
            self._process = start_broker(
                self.data_dir, listen, settings=settings, timeout_s=timeout_s, testing=self._testing
            )
            if self.bootstrap_servers.endswith(":0"):
                self.bootstrap_servers = self._process.bootstrap_servers

    def stop(self) -> int:
        """Stop the broker cleanly: before it ends, other brokers take over the partitions that it leads.

        Returns:
            The exit code; 0 if the broker was never started.
        """
        return 0 if self._process is None else self._process.stop()

    def kill(self) -> None:
        """End the process with SIGKILL, like a crash."""
        if self._process is not None:
            self._process.kill()

    def __repr__(self) -> str:
        return f"<broker {self.broker_id} {self.bootstrap_servers} {'running' if self.running else 'stopped'}>"


class LocalCluster:
    """Brokers 1, 2, … and a ZooKeeper as processes of this machine. Use it in a `with` block.

    The processes end with the block, or with the process that has started them.
    """

    def __init__(
        self,
        directory: Path,
        *,
        temporary: bool,
        brokers: int | None,
        settings: Mapping[str, object],
        zookeeper: str | None = None,
        secure: bool = False,
        testing: bool = False,
    ) -> None:
        """Lock the directory until `stop`, and start nothing. Users call `start_local` instead.

        Args:
            directory: Directory of the cluster.
            temporary: True if `stop` removes the directory.
            brokers: Number of brokers. None: as many as the directory has, or 3.
            settings: Broker settings by their dotted names.
            zookeeper: HOST:PORT,…/PATH of a ZooKeeper that runs already. None: the cluster's own.
            secure: True for TLS, SCRAM and ACLs. A secured directory stays secured.
            testing: True for brokers whose clocks a test moves, and whose requests a test lets fail.

        Raises:
            InvalidConfigError: The directory is in use, has more brokers or another ZooKeeper than the arguments say,
                or is not secured although `secure` is True; or Java or PySpark is missing.
        """
        self._lock = _lock(directory)
        try:
            secure = _is_secured(directory, secure)
            layout = _layout(directory, brokers, zookeeper)
        except BaseException:
            self._unlock()
            raise
        self.data_dir = directory
        """Directory of the cluster."""
        self._temporary = temporary
        self._owner = os.getpid()
        self._zookeeper: ZooKeeperProcess | None = None
        self.zookeeper_connect = layout.zookeeper
        """Address of the ZooKeeper, with the cluster's path in it."""
        if not layout.zookeeper:
            self._zookeeper = ZooKeeperProcess(directory / "zookeeper", port=layout.zookeeper_port)
            self._zookeeper.temporary = directory if temporary else None
            self.zookeeper_connect = self._zookeeper.hosts + CHROOT
        secured = _secure(directory / SECURE, layout.ports, self.zookeeper_connect) if secure else {}
        self.security = str(directory / SECURE / "client.properties") if secure else None
        """Path of a file with the super user's client settings; None: the cluster is not secured."""
        self.brokers = [
            ClusterBroker(
                i,
                f"127.0.0.1:{port}",
                directory / f"broker-{i}",
                {
                    "zookeeper.connect": self.zookeeper_connect,
                    "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
                    **secured.get(i, {}),
                    **settings,
                    "broker.id": i,
                },
                testing=testing,
            )
            for i, port in sorted(layout.ports.items())
        ]
        """Brokers in order of their ids."""
        self.bootstrap_servers = ",".join(broker.bootstrap_servers for broker in self.brokers)
        """Addresses of all brokers, separated by commas."""

    @property
    def kafka_bootstrap_servers(self) -> str:
        """Addresses of the Kafka gateways of all running brokers, separated by commas; empty without `kafka=True`."""
        addresses = (broker.kafka_bootstrap_servers for broker in self.brokers if broker.running)
        return ",".join(address for address in addresses if address)

    @property
    def schema_registry_url(self) -> str:
        """URLs of the schema registries of all running brokers, separated by commas. They have one state."""
        urls = (broker.schema_registry_url for broker in self.brokers if broker.running)
        return ",".join(url for url in urls if url)

    @property
    def zookeeper(self) -> ZooKeeperProcess:
        """The ZooKeeper process of the cluster.

        Raises:
            InvalidConfigError: The cluster uses a ZooKeeper that runs elsewhere.
        """
        if self._zookeeper is None:
            raise InvalidConfigError(f"the ZooKeeper at {self.zookeeper_connect} was not started here")
        return self._zookeeper

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start ZooKeeper, then the brokers.

        Args:
            timeout_s: The longest wait for each broker in seconds.

        Raises:
            BrokerNotAvailableError: ZooKeeper or a broker did not start in time.
            InvalidConfigError: After `stop` another process has started the cluster.
        """
        if self._lock < 0:
            self._lock = _lock(self.data_dir)
        _live.add(self)
        if self._zookeeper is not None:
            self._zookeeper.start()
        for broker in self.brokers:
            broker.start(timeout_s)

    def start_missing(self, timeout_s: float = START_TIMEOUT_S) -> list[int]:
        """Start the processes of the cluster that have ended.

        Args:
            timeout_s: The longest wait for each broker in seconds.

        Returns:
            Ids of the brokers that were started.

        Raises:
            BrokerNotAvailableError: ZooKeeper or a broker did not start in time.
        """
        if self._zookeeper is not None and not self._zookeeper.running:
            self._zookeeper.kill()
            self._zookeeper.start()
        missing = [broker for broker in self.brokers if not broker.running]
        for broker in missing:
            broker.start(timeout_s)
        return [broker.broker_id for broker in missing]

    def answer_requests(self) -> list[int]:
        """Start the missing processes if another process has asked for that with `request_start`, and answer with the
        processes of all brokers.

        Returns:
            Ids of the brokers that were started.
        """
        started: list[int] = []
        for request in self.data_dir.glob(f"{REQUEST_PREFIX}*{REQUEST_SUFFIX}"):
            request.unlink(missing_ok=True)
            error = ""
            try:
                started += self.start_missing()
            except SparklogError as e:
                error = str(e)
            answer = request.with_suffix(ANSWER_SUFFIX)
            unfinished = answer.with_name(f"{answer.name}.new")
            brokers = [[b.broker_id, b.bootstrap_servers, b.pid, str(b.data_dir)] for b in self.brokers]
            content = {"started": started, "error": error, "brokers": brokers}
            unfinished.write_text(json.dumps(content), encoding="utf-8")
            unfinished.replace(answer)
        return started

    def stop(self) -> None:
        """Stop all processes and remove a temporary directory. A second call does nothing more.

        The call does nothing in a forked child, because the processes belong to the parent.
        """
        if self._owner != os.getpid():
            return
        try:
            with ThreadPoolExecutor(len(self.brokers)) as threads:
                list(threads.map(ClusterBroker.stop, self.brokers))
        except RuntimeError:  # an interpreter that ends starts no threads
            for broker in self.brokers:
                broker.stop()
        if self._zookeeper is not None:
            self._zookeeper.kill()
        _live.discard(self)
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)
        self._unlock()

    def _unlock(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<LocalCluster {self.data_dir} {self.brokers}>"


def check_count(brokers: object) -> None:
    """Raise InvalidConfigError unless this number of brokers can be started. None is valid, as in `start_cluster`."""
    if brokers is None:
        return
    number = whole_number(brokers)
    if number is None or not 1 <= number <= BROKERS_MAX:
        raise InvalidConfigError(f"brokers = {brokers!r}: 1 to {BROKERS_MAX} can be started on one machine")


def start_cluster(
    brokers: int | None,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    settings: Mapping[str, object] | None = None,
    zookeeper: str | None = None,
    secure: bool = False,
    timeout_s: float = START_TIMEOUT_S,
    kafka: bool = False,
    testing: bool = False,
) -> LocalCluster:
    """Start a cluster of local brokers and wait until they listen. See `start_local`.

    Args:
        brokers: Number of brokers. None: as many as the directory has, or 3.
        data_dir: Directory for the data. None: a temporary directory, which `stop` removes.
        settings: Broker settings by their dotted names, and defaults of topic settings with the prefix `topic.`. None:
            the defaults.
        zookeeper: HOST:PORT,…/PATH of a ZooKeeper that runs already. None: the cluster starts its own.
        secure: True for TLS, SCRAM and ACLs. A secured directory stays secured.
        timeout_s: The longest wait for each broker in seconds.
        kafka: True starts a gateway for Kafka's clients beside each broker.
        testing: True for brokers whose clocks a test moves, and whose requests a test lets fail.

    Returns:
        The running cluster.

    Raises:
        InvalidConfigError: `brokers` is out of bounds; Java or PySpark is missing; or the directory is in use, has more
            brokers or another ZooKeeper than the arguments say, or is not secured although `secure` is True.
        BrokerNotAvailableError: ZooKeeper or a broker did not start in time.
    """
    check_count(brokers)
    temporary = data_dir is None
    directory = Path(tempfile.mkdtemp(prefix="sparklog-")) if data_dir is None else absolute(Path(data_dir))
    values = (kafka_settings() if kafka else {}) | dict(settings or {})
    cluster = LocalCluster(
        directory,
        temporary=temporary,
        brokers=brokers,
        settings=values,
        zookeeper=zookeeper,
        secure=secure,
        testing=testing,
    )
    try:
        cluster.start(timeout_s)
    except BaseException:
        cluster.stop()
        raise
    return cluster


def is_running(directory: Path) -> bool:
    """True if a process, this one or another, runs the cluster of the directory."""
    if not (directory / LOCK_FILE).exists():
        return False
    try:
        os.close(_lock(directory))
    except InvalidConfigError:
        return True
    return False


class BrokerProcess(NamedTuple):
    """The process of a broker in a cluster that another process runs."""

    broker_id: int
    bootstrap_servers: str
    """Address of the broker as HOST:PORT."""
    pid: int
    data_dir: str


class StartAnswer(NamedTuple):
    """The answer of the process that runs a cluster to `request_start`."""

    started: list[int]
    """Ids of the brokers that were started; empty: all were running."""
    brokers: list[BrokerProcess]
    """The processes of all brokers, by broker id."""


def request_start(directory: Path, brokers: int | None = None, timeout_s: float = START_TIMEOUT_S) -> StartAnswer:
    """Ask the process that runs a cluster to start the brokers that have ended. `brokers`: wanted number of brokers.
    None: the number that the cluster has. `timeout_s`: the longest wait for each broker in seconds. Returns all
    brokers. Raises InvalidConfigError: The cluster has another number of brokers, or its process does not answer
    requests; BrokerNotAvailableError: A broker did not start in time, or the process of the cluster has ended."""
    present = len(_read_layout(directory).ports)
    if brokers not in (None, present):
        raise InvalidConfigError(
            f"the cluster in {directory} runs already, with {present} brokers: to get {brokers}, stop it (Ctrl-C where it "
            f"was started), and start it with --brokers {brokers}"
        )
    request = directory / f"{REQUEST_PREFIX}{uuid.uuid4().hex}{REQUEST_SUFFIX}"
    answer = request.with_suffix(ANSWER_SUFFIX)
    request.touch()
    try:
        if not _wait(lambda: not request.exists(), REQUEST_TAKEN_S):
            raise InvalidConfigError(
                f"the cluster in {directory} runs already, and is starting or part of a program: try again, or call "
                "start_missing() in that program"
            )
        if not _wait(answer.exists, timeout_s * (present + 1)):
            raise BrokerNotAvailableError(
                f"the cluster in {directory} does not answer: its process has ended, or hangs"
            )
        result = json.loads(read_regular(answer).decode())
    finally:
        request.unlink(missing_ok=True)
        answer.unlink(missing_ok=True)
    if result["error"]:
        raise BrokerNotAvailableError(result["error"])
    return StartAnswer(result["started"], [BrokerProcess(*broker) for broker in result["brokers"]])


def _wait(condition: Callable[[], bool], timeout_s: float) -> bool:
    until_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > until_s:
            return False
        time.sleep(REQUEST_POLL_S)
    return True


def _is_secured(directory: Path, requested: bool) -> bool:
    """Return True if the cluster is secured already, or if security is `requested` for a new cluster. Raises
    InvalidConfigError: Security is wanted, and the cluster has begun without it: its data in ZooKeeper are open to
    everybody."""
    present = (directory / SECURE).exists()
    if requested and not present and _read_layout(directory).ports:
        raise InvalidConfigError(f"the cluster in {directory} is not secured: begin a secured one in another directory")
    return requested or present


def _secure(directory: Path, ports: Mapping[int, int], zookeeper: str) -> dict[int, dict[str, object]]:
    """Return the security settings of each broker. Missing files are created. Raises InvalidConfigError."""
    import datetime

    from sparklog.security import cluster_setup  # slow to import, and most clusters are not secured

    now = datetime.datetime.now(datetime.UTC)
    if not directory.exists():
        places = [cluster_setup.BrokerPlace("127.0.0.1", ports[i]) for i in sorted(ports)]
        cluster_setup.secure_cluster_setup(directory, places, zookeeper, now)
    configs = {}
    for i, port in ports.items():
        path = directory / f"broker-{i}" / "broker.toml"
        if not path.exists():
            cluster_setup.add_broker(directory, i, cluster_setup.BrokerPlace("127.0.0.1", port), now)
        configs[i] = flatten(tomllib.loads(read_regular(path).decode()))
        # perhaps the file's ports are in use by now: clients get the layout's port, other brokers any free one
        configs[i]["listeners"] = f"CLIENTS://127.0.0.1:{port},INTERNAL://127.0.0.1:0"
        configs[i].pop("advertised.listeners", None)
        configs[i]["zookeeper.connect"] = zookeeper
    return configs


@dataclass
class _Layout:
    """Content of `cluster.json`."""

    zookeeper: str = ""
    """Address of a ZooKeeper that runs elsewhere; empty: the cluster has its own."""
    zookeeper_port: int = 0
    """Port of the cluster's own ZooKeeper; 0: none yet."""
    ports: dict[int, int] = field(default_factory=dict)
    """Port of each broker by its id."""


def _lock(directory: Path) -> int:
    """Open the lock file. The directory belongs to this process while the descriptor is open. Raises
    InvalidConfigError."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InvalidConfigError(
            f"the cluster in {directory} runs already: stop it (Ctrl-C where it was started), or choose another "
            "directory"
        ) from None
    return descriptor


def _layout(directory: Path, brokers: int | None, zookeeper: str | None) -> _Layout:
    """Read the layout of the directory, add new brokers, replace ports in use, and write the layout back. Raises
    InvalidConfigError."""
    layout = _read_layout(directory)
    if layout.ports and brokers is not None and brokers < len(layout.ports):
        raise InvalidConfigError(
            f"{directory} has {len(layout.ports)} brokers: start all of them, and remove some with "
            f"`sparklog broker decommission`"
        )
    if zookeeper is not None and "/" not in zookeeper:
        zookeeper += CHROOT
    if layout.ports and zookeeper is not None and zookeeper != layout.zookeeper:
        where = layout.zookeeper or "its own ZooKeeper"
        raise InvalidConfigError(f"the cluster in {directory} uses {where}, not {zookeeper}")
    layout.zookeeper = zookeeper if zookeeper is not None else layout.zookeeper
    count = max(brokers if brokers is not None else len(layout.ports) or BROKERS_DEFAULT, len(layout.ports))
    free = iter(free_ports(count + 1))
    layout.zookeeper_port = _keep_port(layout.zookeeper_port, free)
    layout.ports = {i: _keep_port(layout.ports.get(i, 0), free) for i in range(1, count + 1)}
    written = directory / f"{LAYOUT_FILE}.new"
    written.write_text(json.dumps(asdict(layout)) + "\n", encoding="utf-8")
    written.replace(directory / LAYOUT_FILE)
    return layout


def _read_layout(directory: Path) -> _Layout:
    """Read the layout of the directory. Raises InvalidConfigError."""
    path = directory / LAYOUT_FILE
    if not path.exists():
        return _Layout()
    try:
        fields = json.loads(read_regular(path).decode())
        ports = {int(i): int(port) for i, port in fields["ports"].items()}
        return _Layout(str(fields["zookeeper"]), int(fields["zookeeper_port"]), ports)
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise InvalidConfigError(f"{path} cannot be read ({e!r}): remove it, then the cluster gets new ports") from e


def _keep_port(port: int, free: Iterator[int]) -> int:
    """Return `port` if it is still free, otherwise the next port of `free`."""
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if port:
            probe.bind(("127.0.0.1", port))
            return port
    return next(free)


@atexit.register
def _stop_all() -> None:
    for cluster in list(_live):
        cluster.stop()


def _drop_after_fork() -> None:
    for cluster in list(_live):
        cluster._unlock()  # else the directory stays locked as long as the child runs
    _live.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_after_fork)
