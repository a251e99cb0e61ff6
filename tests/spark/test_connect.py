"""Spark Connect from end to end: a server, a client in another process that has no JVM, and a stream through
sparklog."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from pyspark_sparklog.compatibility import STREAMS_CAN_BE_WRITTEN

import sparklog
from tests.secure_broker import SecureBroker
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 120.0
JOB_TIMEOUT_S = 280.0
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="needs pip install 'sparklog[connect]'"),
    pytest.mark.skipif(not STREAMS_CAN_BE_WRITTEN, reason="this Spark lets no Python sink write streams in Arrow"),
]


def _environment() -> dict[str, str]:
    """Spark's Python workers find this checkout, also where it is not installed."""
    paths = [str(ROOT), str(ROOT / "datasource"), str(ROOT / "broker_daemon")]
    return os.environ | {"PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    """The address of a Connect server that the test has for itself."""
    with connect_server(tmp_path, {}) as address:
        yield address


@contextlib.contextmanager
def connect_server(tmp_path: Path, more: Mapping[str, str]) -> Iterator[str]:
    """The address of a server with these settings, too."""
    import pyspark

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    home = Path(pyspark.__file__).parent
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(tmp_path / "warehouse"),
        **more,
    }
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2]", "--class", SERVER]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    log = tmp_path / "server.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [*command, "spark-internal"],
            cwd=tmp_path,
            env=_environment() | {"SPARK_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(port):
            assert server.poll() is None and time.monotonic() < deadline, log.read_text(errors="replace")[-3000:]
            time.sleep(0.1)
        yield f"sc://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def test_a_stream_through_sparklog(
    remote: str, topic: Callable[..., str], broker: sparklog.LocalBroker, tmp_path: Path
) -> None:
    source, target = topic(), topic(partitions=2)
    command = [sys.executable, "-m", "tests.spark.connect_job", remote, broker.bootstrap_servers, source, target]
    done = subprocess.run(
        [*command, str(tmp_path / "checkpoint")],
        cwd=ROOT,
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=JOB_TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr[:3000] + done.stderr[-1000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ended"]
    assert found["rows"] == [[n, n * n] for n in range(0, 100, 2)]
    assert "One of the following options must be specified" in found["refused"]


PASSWORD = "correct-horse-7261"
READ = """
import json, sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
print(spark.read.format("sparklog").options(**json.load(sys.stdin)).load().count(), "rows")
spark.stop()
"""


def test_the_setting_of_the_guide_keeps_literal_secrets_out_of_the_event_log(tmp_path: Path) -> None:
    """Connect puts each request into it, with the options as they were sent."""
    name = "spark.redaction.string.regex"
    (line,) = [one for one in (ROOT / "docs/security.md").read_text().splitlines() if one.startswith(f"{name} ")]
    events = tmp_path / "events"
    events.mkdir()
    settings = {
        name: line.removeprefix(f"{name} "),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
    }
    with SecureBroker(tmp_path) as secured, connect_server(tmp_path, settings) as address:
        with secured.admin() as admin:
            admin.create_topic("in", partitions=1)
        secured.add_user("admin", PASSWORD)
        options = secured.spark_options("admin", PASSWORD) | {"subscribe": "in"}
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", READ, address],
            input=json.dumps(options),
            env=_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=JOB_TIMEOUT_S,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert "0 rows" in done.stdout
        until(lambda: "kafka.sasl.mechanism" in logged(events), "the request in the event log")
    assert PASSWORD not in logged(events)


def logged(events: Path) -> str:
    return "".join(path.read_text() for path in events.rglob("*") if path.is_file())
