"""`start_local(brokers=3)`: a cluster of brokers and a ZooKeeper on this machine, for development."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from sparklog.client.local import START_TIMEOUT_S, LocalBroker, start_broker
from sparklog.client.local_zookeeper import ZooKeeperProcess
from sparklog.errors import InvalidConfigError

__all__ = ["ClusterBroker", "LocalCluster", "start_cluster"]

BROKERS_MAX = 20
CHROOT = "/sparklog"
SESSION_TIMEOUT_MS = 6_000
"""Shorter than a broker's default: on one machine a broker that is killed is missed sooner."""

_live: set[LocalCluster] = set()


class ClusterBroker:
    """One broker of a local cluster. It keeps its address and its directory over `kill`, `stop` and `start`."""

    def __init__(self, broker_id: int, listen: str, data_dir: Path, settings: Mapping[str, object]) -> None:
        self.broker_id = broker_id
        self.bootstrap_servers = listen
        self.data_dir = data_dir
        self._settings = dict(settings)
        self._process: LocalBroker | None = None

    @property
    def pid(self) -> int:
        """-1: it does not run."""
        return self._process.pid if self._process is not None and self.running else -1

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.running

    @property
    def log(self) -> str:
        """The last lines that it logged."""
        return "" if self._process is None else self._process.log

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Returns when the cluster knows it; nothing if it runs. Raises BrokerNotAvailableError with its own words."""
        if not self.running:
            self._process = start_broker(
                self.data_dir, self.bootstrap_servers, settings=self._settings, timeout_s=timeout_s
            )

    def stop(self) -> int:
        """Stops it cleanly: others lead its partitions first. The exit code; 0 if it did not run."""
        return 0 if self._process is None else self._process.stop()

    def kill(self) -> None:
        """Ends it with SIGKILL, as a crash would."""
        if self._process is not None:
            self._process.kill()

    def __repr__(self) -> str:
        return f"<broker {self.broker_id} {self.bootstrap_servers} {'running' if self.running else 'stopped'}>"


class LocalCluster:
    """Brokers 1, 2, … and a ZooKeeper, as processes. Use it in a `with` block; they end with it, or with this
    process."""

    def __init__(self, directory: Path, *, temporary: bool, brokers: int, settings: Mapping[str, object]) -> None:
        self.data_dir = directory
        self._temporary = temporary
        self._owner = os.getpid()
        self.zookeeper = ZooKeeperProcess(directory / "zookeeper")
        self.brokers = [
            ClusterBroker(
                i,
                f"127.0.0.1:{port}",
                directory / f"broker-{i}",
                {
                    "zookeeper.connect": self.zookeeper.hosts + CHROOT,
                    "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
                    **settings,
                    "broker.id": i,
                },
            )
            for i, port in enumerate(_free_ports(brokers), 1)
        ]
        self.bootstrap_servers = ",".join(broker.bootstrap_servers for broker in self.brokers)
        """All of them."""

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """ZooKeeper, then the brokers. Raises BrokerNotAvailableError."""
        _live.add(self)
        self.zookeeper.start()
        for broker in self.brokers:
            broker.start(timeout_s)

    def stop(self) -> None:
        """Stops all; removes a temporary directory. Again is fine."""
        with ThreadPoolExecutor(len(self.brokers)) as threads:
            list(threads.map(ClusterBroker.stop, self.brokers))
        self.zookeeper.kill()
        _live.discard(self)
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<LocalCluster {self.data_dir} {self.brokers}>"


def start_cluster(
    brokers: int,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    settings: Mapping[str, object] | None = None,
    timeout_s: float = START_TIMEOUT_S,
) -> LocalCluster:
    """See `start_local`. Raises InvalidConfigError (too many brokers, no Java, no PySpark), BrokerNotAvailableError."""
    if not 1 <= brokers <= BROKERS_MAX:
        raise InvalidConfigError(f"brokers = {brokers}: 1 to {BROKERS_MAX} can be started on one machine")
    temporary = data_dir is None
    directory = Path(tempfile.mkdtemp(prefix="sparklog-")) if data_dir is None else Path(data_dir).absolute()
    cluster = LocalCluster(directory, temporary=temporary, brokers=brokers, settings=settings or {})
    try:
        cluster.start(timeout_s)
    except BaseException:
        cluster.stop()
        raise
    return cluster


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [int(one.getsockname()[1]) for one in sockets]


@atexit.register
def _stop_all() -> None:
    for cluster in list(_live):
        if cluster._owner == os.getpid():
            cluster.stop()
