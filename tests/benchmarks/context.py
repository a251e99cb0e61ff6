"""What rows share while a campaign runs: the servers, filled topics, scratch space. Everything is started when it is
first asked for and ended at the end of the campaign."""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import shutil
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import sparklog
from sparklog.client.local import LocalBroker
from sparklog.client.local_cluster import LocalCluster

from .kafka import KafkaInstallation, KafkaServer
from .kafka_cluster import KafkaCluster
from .payloads import payload_file
from .processes import Finished, MeasurementError, directory_bytes, run, total_usage
from .results import Measurement

if TYPE_CHECKING:
    from .spark_session import SparkProcess

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = (ROOT / "sparklog", ROOT / "broker_daemon", ROOT / "datasource", ROOT / "tests" / "benchmarks")
CLIENT_TIMEOUT_S = 600.0
ADMIN_TIMEOUT_MS = 300_000
T = TypeVar("T")


class Context:
    """The campaign's surroundings. `scale` multiplies record counts, so that a harness can be tried in seconds."""

    def __init__(self, scale: float = 1.0, directory: Path | None = None) -> None:
        compile_checkout()
        self.scale = scale
        self.stack = contextlib.ExitStack()
        made = tempfile.TemporaryDirectory(prefix="sparklog-bench-", dir=directory, ignore_cleanup_errors=True)
        self.scratch = Path(self.stack.enter_context(made))
        self._made: dict[str, Any] = {}
        self._row_stack = contextlib.ExitStack()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        self.end_row()
        self.stack.close()

    def after_row(self, name: str, undo: Callable[[], object]) -> None:
        """What `once` made under `name` is for this row alone: `undo` is called at the row's end."""
        self._row_stack.callback(self._made.pop, name, None)
        self._row_stack.callback(undo)

    def end_row(self) -> None:
        """Gives back what the row alone needed: disks are small beside what some rows write."""
        self._row_stack.close()

    def need_disk(self, size_bytes: float) -> None:
        """Raises MeasurementError when the scratch directory's disk has less than that."""
        free = shutil.disk_usage(self.scratch).free
        if free < size_bytes:
            raise MeasurementError(
                f"{size_bytes / 1e9:.0f} GB are needed in {self.scratch.parent}, {free / 1e9:.0f} GB are free: "
                "use --scratch for another disk"
            )

    def records(self, full: int) -> int:
        """`full` times the scale, at least 1,000."""
        return max(1000, round(full * self.scale))

    def once(self, name: str, make: Callable[[], T]) -> T:
        """What `make` gives, made at the first call of this name. A failure is not remembered."""
        if name not in self._made:
            self._made[name] = make()
        found: T = self._made[name]
        return found

    def forget(self, name: str) -> None:
        self._made.pop(name, None)

    def payload(self, value_bytes: int) -> Path:
        return payload_file(self.scratch, value_bytes)

    # -- servers

    @property
    def installation(self) -> KafkaInstallation:
        def make() -> KafkaInstallation:
            made = KafkaInstallation()
            made.install()
            return made

        return self.once("kafka installation", make)

    @property
    def kafka(self) -> KafkaServer:
        def make() -> KafkaServer:
            server = KafkaServer(self.installation, self.scratch / "kafka")
            self.stack.callback(server.stop)
            server.start()
            return server

        return self.once("kafka", make)

    @property
    def broker(self) -> LocalBroker:
        return self.once("broker", lambda: self.stack.enter_context(sparklog.start_local(self.scratch / "sparklog")))

    @property
    def kafka_cluster(self) -> KafkaCluster:
        """For one row: the machine does not hold both clusters at work."""

        def make() -> KafkaCluster:
            server = KafkaCluster(self.installation, Path(tempfile.mkdtemp(prefix="kafka-cluster-", dir=self.scratch)))
            self.after_row("kafka cluster", server.stop)
            server.start()
            return server

        return self.once("kafka cluster", make)

    @property
    def cluster(self) -> LocalCluster:
        """Three brokers and a ZooKeeper, for one row."""

        def make() -> LocalCluster:
            made = sparklog.start_local(Path(tempfile.mkdtemp(prefix="cluster-", dir=self.scratch)), brokers=3)
            assert isinstance(made, LocalCluster)
            self.after_row("cluster", made.stop)
            return made

        return self.once("cluster", make)

    @property
    def spark(self) -> SparkProcess:
        """A Spark session in a process of its own; a new one when the last has died."""
        from .spark_session import SparkProcess

        found = self._made.get("spark")
        if found is not None and not found.running:
            self.forget("spark")

        def make() -> SparkProcess:
            process = SparkProcess(self.installation, self.scratch)
            self.stack.callback(process.stop)
            return process

        return self.once("spark", make)

    # -- topics of our broker

    def create_topic(self, partitions: int, schema: Any = None, configs: Mapping[str, object] | None = None) -> str:
        name = f"t{uuid.uuid4().hex[:12]}"
        with sparklog.Admin(self.broker.bootstrap_servers, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin:
            admin.create_topic(name, partitions=partitions, schema=schema, configs=configs)
        return name

    @contextlib.contextmanager
    def topic(self, partitions: int, schema: Any = None, configs: Mapping[str, object] | None = None) -> Iterator[str]:
        """A new topic for the time of the block."""
        name = self.create_topic(partitions, schema=schema, configs=configs)
        try:
            yield name
        finally:
            self.delete_topic(name)

    def delete_topic(self, name: str) -> None:
        with sparklog.Admin(self.broker.bootstrap_servers, request_timeout_ms=ADMIN_TIMEOUT_MS) as admin:
            admin.delete_topic(name)

    def topic_bytes(self, topic: str) -> int:
        """Bytes of a topic's segments on disk, without indexes."""
        return sum(directory_bytes(d, "*.arrow") for d in self.broker.data_dir.glob(f"{topic}-[0-9]*"))

    # -- clients

    def client(self, program: str, **arguments: Any) -> tuple[dict[str, float], Finished]:
        """Runs one of `client.PROGRAMS` in a process of its own."""
        command = [sys.executable, "-m", "tests.benchmarks.client", program, json.dumps(arguments)]
        done = run(command, timeout_s=CLIENT_TIMEOUT_S, env=environment())
        return json.loads(done.stdout.splitlines()[-1]), done


def compile_checkout() -> None:
    """Writes the bytecode of this checkout, as pip does for what it installs. Where Python is told not to write any
    (PYTHONDONTWRITEBYTECODE), each process of a row would compile 200 modules anew, which takes longer than a start."""
    for package in PACKAGES:
        compileall.compile_dir(package, quiet=1)


def environment() -> dict[str, str]:
    """The environment of our child processes: this checkout goes first."""
    return os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)}


def measured(
    server_pid: int | Sequence[int],
    measure: Callable[[], tuple[dict[str, float], Finished]],
    value: Callable[[dict[str, float]], float],
    stored: Callable[[], float] | None = None,
) -> Measurement:
    """Runs `measure` and puts with its result what the client and the server (or all servers) cost. `stored`: bytes per
    record on disk."""
    os.sync()  # what the run before has left to be written is not this run's burden
    load = os.getloadavg()[0]
    pids = [server_pid] if isinstance(server_pid, int) else list(server_pid)
    before = total_usage(pids)
    result, done = measure()
    after = total_usage(pids)
    return Measurement(
        value=value(result),
        client_cpu_s=done.cpu_s,
        server_cpu_s=after.cpu_s - before.cpu_s,
        client_rss_bytes=done.peak_rss_bytes,
        server_rss_bytes=after.rss_bytes,
        bytes_per_record=stored() if stored else None,
        load_before=load,
        extra=result,
    )
