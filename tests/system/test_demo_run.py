"""The demo as a process: a short run from end to end, and interrupts at several moments."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import sparklog
from sparklog.client.local_zookeeper import has_java

DEMO = Path(__file__).resolve().parents[2] / "notebooks" / "flights_demo"
RUN_TIMEOUT_S = 150
STOP_TIMEOUT_S = 30

pytestmark = pytest.mark.spark
needs_cluster = pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper")


def start(output: Path, *options: str) -> subprocess.Popen[str]:
    """The demo in a session of its own, so that a signal to its process group reaches the same processes as a
    Ctrl-C."""
    command = [sys.executable, str(DEMO), "--output", str(output), *options]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env=os.environ | {"COLUMNS": "160", "PYTHONUNBUFFERED": "1"},
    )


@pytest.fixture
def demos() -> Iterator[list[subprocess.Popen[str]]]:
    """Demos a test has started: nothing of them outlives the test."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        if process.poll() is None:
            for p in [*psutil.Process(process.pid).children(recursive=True), process]:
                p.kill()
        process.communicate()


def read_until(process: subprocess.Popen[str], text: str) -> str:
    """The process's output up to the line that holds `text`; all of it if it ends without."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if text in line:
            break
    return "".join(lines)


def logs(output: Path) -> str:
    """Return the end of each of a demo's logs, for the search for a failure."""
    ends = [(log.name, log.read_text(errors="replace")[-3000:]) for log in sorted((output / "logs").glob("*.log"))]
    return "".join(f"\n--- {name}\n{end}" for name, end in ends)


def test_a_short_run_verifies_every_row_writes_its_results_and_keeps_the_broker_by_option(
    tmp_path: Path, demos: list[subprocess.Popen[str]]
) -> None:
    process = start(tmp_path / "out", "--rows", "5000", "--no-delta", "--keep")
    demos.append(process)
    output = read_until(process, "the broker stays on")
    assert re.search(r"all \d+ checks hold", output), output
    assert "✗" not in output
    assert (tmp_path / "out" / "delays.png").read_bytes().startswith(b"\x89PNG")
    assert list((tmp_path / "out" / "delay-by-origin-hour.parquet").glob("*.parquet"))
    assert list((tmp_path / "out" / "data").glob("flights-*/*.arrow"))
    stays = re.search(r"the broker stays on (\S+) until", output)
    assert stays, output
    with sparklog.Admin(stays[1]) as admin:
        assert {"flights", "weather", "flight-events", "delay-by-origin-hour"} <= set(admin.list_topics())
    os.killpg(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=STOP_TIMEOUT_S)
    assert process.returncode == 0, rest
    assert "Traceback" not in output + rest
    assert not processes_that_mention(tmp_path)


def in_the_folder(path: str) -> Callable[[Path], bool]:
    return lambda output: any(output.glob(path))


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "the output folder is there": in_the_folder("logs"),
    "the JVM has been started": in_the_folder("logs/spark.log"),
    "the broker is up": in_the_folder("data/meta.json"),
    "the query has planned its first batch": in_the_folder("checkpoints/aggregate/offsets/0"),
    "results are coming out": in_the_folder("checkpoints/table/commits/0"),
}


@pytest.mark.nightly
@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_stops_everything_at_any_moment(moment: str, tmp_path: Path, demos: list[subprocess.Popen[str]]) -> None:
    process = start(tmp_path / "out", "--no-delta", "--seconds", "120")
    demos.append(process)
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while not MOMENTS[moment](tmp_path / "out"):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline, f"never came to: {moment}"
        time.sleep(0.05)
    family = psutil.Process(process.pid).children(recursive=True)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=STOP_TIMEOUT_S)
    assert process.returncode == 130, output
    assert "Traceback" not in output
    assert "interrupted" in output
    _, alive = psutil.wait_procs(family, timeout=30)
    assert not alive, [p.cmdline() for p in alive]
    assert not processes_that_mention(tmp_path)


OUTAGES = (
    "the controller, is killed",
    "ZooKeeper is killed",
    "rows were acknowledged without it",
    "is back, and in sync",
    "flights: in-sync replicas per partition",
)


@pytest.mark.nightly
@needs_cluster
def test_every_row_survives_the_death_of_brokers_and_zookeeper(
    tmp_path: Path, demos: list[subprocess.Popen[str]]
) -> None:
    process = start(tmp_path / "out", "--brokers", "3", "--rows", "5000", "--no-delta")
    demos.append(process)
    output, _ = process.communicate(timeout=2 * RUN_TIMEOUT_S)
    assert process.returncode == 0, output + logs(tmp_path / "out")
    assert re.search(r"all \d+ checks hold", output), output
    assert re.search(r"broker \d, which leads flights-\d.*, is killed", output), output
    for told in OUTAGES:
        assert told in output, output
    assert "Traceback" not in output
    assert not processes_that_mention(tmp_path)


@pytest.mark.torture
@needs_cluster
@pytest.mark.parametrize("moment", ["brokers on", "which leads", "ZooKeeper is killed"])
def test_ctrl_c_stops_the_whole_cluster(moment: str, tmp_path: Path, demos: list[subprocess.Popen[str]]) -> None:
    process = start(tmp_path / "out", "--brokers", "3", "--no-delta", "--seconds", "200")
    demos.append(process)
    output = read_until(process, moment)
    assert moment in output, output
    os.killpg(process.pid, signal.SIGINT)
    rest, _ = process.communicate(timeout=2 * STOP_TIMEOUT_S)
    assert process.returncode == 130, output + rest
    assert "Traceback" not in output + rest
    assert not processes_that_mention(tmp_path)


def processes_that_mention(path: Path) -> list[list[str]]:
    """Command lines of live processes that name `path`: the broker by its data directory, the JVM by its warehouse."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        command = process.info["cmdline"] or []
        if process.info["status"] != psutil.STATUS_ZOMBIE and any(str(path) in part for part in command):
            found.append(command)
    return found


@pytest.mark.nightly
def test_two_demos_do_not_share_a_folder(tmp_path: Path, demos: list[subprocess.Popen[str]]) -> None:
    output = tmp_path / "out"
    first = start(output, "--no-delta", "--seconds", "120")
    demos.append(first)
    deadline = time.monotonic() + RUN_TIMEOUT_S
    while not (output / "logs").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    second = start(output, "--no-delta")
    demos.append(second)
    text, _ = second.communicate(timeout=RUN_TIMEOUT_S)
    assert second.returncode == 2, text
    assert "another demo is running" in text
    os.killpg(first.pid, signal.SIGINT)
    first.communicate(timeout=STOP_TIMEOUT_S)
    assert first.returncode == 130


INTERRUPTED = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from flights_demo import __main__ as demo, steps
from sparklog.errors import BrokerNotAvailableError
class Interrupted:
    def __init__(self, options): pass
    def run(self):
        os.kill(os.getpid(), signal.SIGINT)
        raise BrokerNotAvailableError("the broker has ended")
steps.Demo = Interrupted
sys.exit(demo.main([]))
"""


def test_an_error_after_ctrl_c_is_its_consequence() -> None:
    """Ctrl-C reaches the processes that are starting, too, before they can handle it."""
    command = [sys.executable, "-c", INTERRUPTED, str(DEMO.parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (130, ""), done.stderr
    assert done.stderr.startswith("interrupted")


def test_bad_options_are_named(tmp_path: Path) -> None:
    for options in (["--rows", "0"], ["--rows", "many"], ["--no-such-option"]):
        done = subprocess.run([sys.executable, str(DEMO), *options], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2
        assert "usage" in done.stderr


def test_without_java_the_next_step_is_named(tmp_path: Path) -> None:
    environment = os.environ | {"JAVA_HOME": str(tmp_path)}
    command = [sys.executable, str(DEMO), "--output", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    assert done.returncode == 2
    assert "openjdk" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.nightly
def test_where_delta_cannot_be_resolved_spark_starts_without_it(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    script = tmp_path / "no_delta_here.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        f"sys.path.insert(0, {str(DEMO.parent)!r})\n"
        "from flights_demo import query\n"
        "query.delta_package = lambda: 'io.delta:no-such-package_0.0:0.0.0'\n"
        f"job = query.SparkJob(Path({str(tmp_path)!r}), delta=True, say=print)\n"
        "job.start()\n"
        "print(job.table_format, job.session.range(3).count())\n"
        "job.stop()\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=RUN_TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    assert "Delta's jars cannot be had" in done.stdout
    assert "parquet 3" in done.stdout
