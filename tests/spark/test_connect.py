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
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark_sparklog.compatibility import STREAMS_CAN_BE_WRITTEN

import sparklog

ROOT = Path(__file__).parents[2]
START_TIMEOUT_S = 120.0
JOB_TIMEOUT_S = 280.0
SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"

pytestmark = [
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
