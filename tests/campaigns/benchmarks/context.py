"""The surroundings that rows share in a campaign: servers, filled topics, scratch space. The context starts each of
them at its first use and ends them with the campaign.
"""

from __future__ import annotations

import compileall
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import sparklog
from tests.support.kafka import KafkaInstallation, KafkaServer
from tests.support.processes import Finished, MeasurementError, run, usage

from . import secure_servers
from .payloads import payload_file
from .results import Measurement
from .secure_servers import Certificates
from .servers import SparklogServer

if TYPE_CHECKING:
    from .spark_session import SparkProcess

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = (ROOT / "sparklog", ROOT / "broker_daemon", ROOT / "datasource", ROOT / "tests" / "campaigns" / "benchmarks")
CLIENT_TIMEOUT_S = 600.0
SINGLE, CLUSTER = "single", "cluster"
"""Servers by name, beside those of `secure_servers`, which have the names of their listeners."""
SETTINGS = {"max.connections.per.ip": 10_000}
"""Settings of the single broker: growth-connections has 5,000 connections beside the harness's own."""
T = TypeVar("T")
S = TypeVar("S", SparklogServer, KafkaServer)


class Context:
    """The surroundings of a campaign. `scale` multiplies record counts, so that a row can be tried in seconds."""

    def __init__(self, scale: float = 1.0, directory: Path | None = None) -> None:
        compile_checkout()
        self.scale = scale
        self.stack = contextlib.ExitStack()
        made = tempfile.TemporaryDirectory(prefix="sparklog-bench-", dir=directory, ignore_cleanup_errors=True)
        self.scratch = Path(self.stack.enter_context(made))
        self._objects: dict[str, Any] = {}
        self._row_stack = contextlib.ExitStack()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        self.end_row()
        self.stack.close()

    def once(self, name: str, make: Callable[[], T], end: Callable[[T], object] | None = None) -> T:
        """The result of the first successful call of `make` under a name; `end` gets it at the campaign's end."""
        if name not in self._objects:
            made = make()
            self._objects[name] = made
            if end is not None:
                self.stack.callback(end, made)
        found: T = self._objects[name]
        return found

    def after_row(self, name: str, undo: Callable[[], object]) -> None:
        """Limit the result of `once` under a name to this row, and call `undo` at the row's end."""
        self._row_stack.callback(self._objects.pop, name, None)
        self._row_stack.callback(undo)

    def end_row(self) -> None:
        """Release the resources of one row: disks are small beside the data of some rows."""
        self._row_stack.close()

    def need_disk(self, size_bytes: float) -> None:
        """Raises MeasurementError if the scratch directory's disk has less free space."""
        free = shutil.disk_usage(self.scratch).free
        if free < size_bytes:
            raise MeasurementError(
                f"{size_bytes / 1e9:.0f} GB are needed in {self.scratch.parent}, {free / 1e9:.0f} GB are free: "
                "use --scratch for another disk"
            )

    def records(self, full: int) -> int:
        """`full` times the scale, at least 1,000."""
        return max(1000, round(full * self.scale))

    def payload(self, value_bytes: int) -> Path:
        return payload_file(self.scratch, value_bytes)

    # -- servers

    @property
    def installation(self) -> KafkaInstallation:
        """Kafka's files, downloaded at the first use."""
        found = KafkaInstallation()
        self.once("kafka installation", found.install)
        return found

    @property
    def certificates(self) -> Certificates:
        """The certificates of all secured servers."""
        return self.once("certificates", lambda: secure_servers.make_certificates(self.scratch / "certificates"))

    def directory(self, name: str) -> Path:
        """A new empty directory for a server's data."""
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.scratch))

    def sparklog(self, where: str = SINGLE) -> SparklogServer:
        """A running server of sparklog. A cluster ends with its row: the machine does not hold two at work."""
        if where in secure_servers.LISTENERS:
            return self.once("secure sparklog", self._secure_sparklog, SparklogServer.stop)

        def make() -> SparklogServer:
            is_cluster = where == CLUSTER
            directory = self.directory("sparklog")
            local = (
                sparklog.start_local(directory, brokers=3)
                if is_cluster
                else sparklog.start_local(directory, settings=SETTINGS)
            )
            return self._started(f"sparklog {where}", SparklogServer(local), row_only=is_cluster)

        return self.once(f"sparklog {where}", make)

    def kafka(self, where: str = SINGLE) -> KafkaServer:
        """A running server of Kafka; a cluster ends with its row."""
        if where in secure_servers.LISTENERS:
            return self.once("secure kafka", self._secure_kafka, KafkaServer.stop)

        def make() -> KafkaServer:
            nodes = 3 if where == CLUSTER else 1
            server = KafkaServer(self.installation, self.directory("kafka"), nodes=nodes)
            self._started(f"kafka {where}", server, row_only=where == CLUSTER)
            server.start()
            return server

        return self.once(f"kafka {where}", make)

    def _secure_sparklog(self) -> SparklogServer:
        return secure_servers.start_sparklog(self.certificates, self.directory("secure"))

    def _secure_kafka(self) -> KafkaServer:
        return secure_servers.start_kafka(self.installation, self.certificates, self.directory("secure-kafka"))

    def _started(self, name: str, server: S, *, row_only: bool) -> S:
        """Have the server stopped at the end of the row or of the campaign."""
        self.after_row(name, server.stop) if row_only else self.stack.callback(server.stop)
        return server

    def server(self, peer: bool, where: str = SINGLE) -> Any:
        """A running server of Kafka if `peer`, else of sparklog. Both have the members that rows use."""
        return self.kafka(where) if peer else self.sparklog(where)

    @property
    def spark(self) -> SparkProcess:
        """A Spark session in a process of its own; another one after its death."""
        from .spark_session import SparkProcess

        found = self._objects.get("spark")
        if found is not None and not found.running:
            del self._objects["spark"]
        return self.once("spark", lambda: SparkProcess(self.installation, self.scratch), SparkProcess.stop)

    # -- clients

    def client(self, program: str, **arguments: Any) -> tuple[dict[str, float], Finished]:
        """Run a program of `client` in a process of its own."""
        done = run(_command(program, arguments), timeout_s=CLIENT_TIMEOUT_S, env=environment())
        return json.loads(done.stdout.splitlines()[-1]), done

    def measured_client(
        self,
        server: SparklogServer | KafkaServer,
        value: str,
        program: str,
        stored: Callable[[], float] | None = None,
        **arguments: Any,
    ) -> Measurement:
        """Run a client program and measure it and the server; `value` names the field of its result."""
        arguments = {"bootstrap": server.bootstrap_servers} | arguments
        return measured(server.pids, lambda: self.client(program, **arguments), value, stored)


@contextlib.contextmanager
def started_client(program: str, timeout_s: float, **arguments: Any) -> Iterator[Callable[[], dict[str, float]]]:
    """Start a client program and wait for its first line, `running`. Yields a function that waits for its result, and
    raises MeasurementError after `timeout_s`."""
    with subprocess.Popen(
        _command(program, arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    ) as process:

        def result() -> dict[str, float]:
            try:
                out, errors = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired as e:
                raise MeasurementError(f"{program} was not done after {timeout_s:.0f} s") from e
            if process.returncode:
                raise MeasurementError(f"{program} failed: {errors[-1500:]}")
            found: dict[str, float] = json.loads(out.splitlines()[-1])
            return found

        try:
            assert process.stdout is not None
            if process.stdout.readline().strip() != "running":
                raise MeasurementError(f"{program} did not get to work: {process.communicate()[1][-1500:]}")
            yield result
        finally:
            process.kill()


def _command(program: str, arguments: dict[str, Any]) -> list[str]:
    return [sys.executable, "-m", "tests.campaigns.benchmarks.client", program, json.dumps(arguments)]


def compile_checkout() -> None:
    """Write the bytecode of this checkout, as pip does for an installation. Under PYTHONDONTWRITEBYTECODE each process
    of a row would compile 200 modules again, which takes longer than a start."""
    for package in PACKAGES:
        compileall.compile_dir(package, quiet=1)


def environment() -> dict[str, str]:
    """The environment of child processes, with this checkout in front."""
    return os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(os.pathsep)}


def measured(
    pids: list[int],
    measure: Callable[[], tuple[dict[str, float], Finished]],
    value: str,
    stored: Callable[[], float] | None = None,
) -> Measurement:
    """Run a client to its end, and add its cost and that of the servers. `value` names the field of its result that
    is the measurement's value; `stored` computes the bytes per record on disk afterwards."""
    os.sync()  # this run does not pay for the writes of the one before
    load = os.getloadavg()[0]
    before = usage(*pids)
    result, done = measure()
    after = usage(*pids)
    return Measurement(
        value=result[value],
        client_cpu_s=done.cpu_s,
        server_cpu_s=after.cpu_s - before.cpu_s,
        client_rss_bytes=done.peak_rss_bytes,
        server_rss_bytes=after.rss_bytes,
        bytes_per_record=stored() if stored else None,
        load_before=load,
        extra=result,
    )
