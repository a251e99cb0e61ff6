"""Figures of the test kit: tests with a topic each, steps of a streaming query, and an idle hour of the simulation.

`python -m tests.campaigns.benchmarks.kit_figures` builds the wheel, installs it into an environment of its own, and
runs the tests there as a user's project. Wall times are only right on a quiet machine; processor times include all
processes of the tests but Spark's JVM. `--parts topics,sim` measures some of the parts.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
TESTS = 100
STEPS = 5
TOPICS = f"""
import pytest

@pytest.mark.parametrize("n", range({TESTS}))
def test_topic(n, topic, produce, rows):
    topic("numbers", "n INT")
    produce("numbers", [{{"n": n}}])
    assert rows("numbers") == [{{"n": n}}]
"""
SPARK = f"""
import time

def test_steps(spark, stream, topic):
    topic("numbers", "n INT")
    run = stream.run(lambda numbers: numbers)
    for n in range({STEPS}):
        run.add("numbers", [{{"n": n}}])
        began_s = time.monotonic()
        run.step()
        print(f"step {{time.monotonic() - began_s:.2f}} s")
    assert len(run.rows()) == {STEPS}
"""
SIM = """
import time

import pytest

def shop(clients):
    with clients.producer() as producer:
        for n in range(5):
            producer.send("orders", b"%d" % n)
            clients.sleep(0.5)

@pytest.mark.parametrize("brokers", [1, 3])
def test_hour(sim, brokers):
    sim.run(shop, brokers=brokers, topics={"orders": 2}, faults=())
    began_s = time.process_time()
    sim.advance("1 hour")
    print(f"hour {brokers} {time.process_time() - began_s:.2f} s")
"""


class Run(NamedTuple):
    """Output and times of one run of pytest."""

    text: str
    wall_s: float
    processor_s: float


def install(directory: Path) -> Path:
    """Build the wheel, and return the Python of a new environment with it. Raises CalledProcessError."""
    dist = directory / "dist"
    _quietly([sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", str(dist), str(ROOT)])
    (wheel,) = dist.glob("*.whl")
    python = directory / "environment" / "bin" / "python"
    uv = shutil.which("uv")
    if uv is not None:
        _quietly([uv, "venv", "--python", sys.executable, str(python.parent.parent)])
        _quietly([uv, "pip", "install", "--python", str(python), f"{wheel}[testing]"])
    else:
        _quietly([sys.executable, "-m", "venv", str(python.parent.parent)])
        _quietly([str(python), "-m", "pip", "install", "--quiet", f"{wheel}[testing]"])
    return python


def _quietly(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def run_tests(python: Path, directory: Path, name: str, text: str) -> Run:
    """Run one file of tests in the environment. Raises CalledProcessError if a test fails."""
    project = directory / name
    project.mkdir()
    (project / f"test_{name}.py").write_text(text, encoding="utf-8")
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    began_s, before_s = time.monotonic(), _processor_s()
    command = [str(python), "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=project, env=variables, stdout=subprocess.PIPE, text=True, check=False)
    run = Run(done.stdout, time.monotonic() - began_s, _processor_s() - before_s)
    if done.returncode:
        print(done.stdout)
        done.check_returncode()
    return run


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def figures(python: Path, directory: Path, parts: set[str]) -> list[tuple[str, str, str]]:
    """Return rows of a table: a figure, its goal, and the measured value."""
    rows = []
    if "topics" in parts:
        run = run_tests(python, directory, "topics", TOPICS)
        rows.append((f"{TESTS} tests with a topic each", "20 s", f"{run.wall_s:.1f} s, {run.processor_s:.1f} CPU s"))
    if "spark" in parts:
        run = run_tests(python, directory, "spark", SPARK)
        steps = [float(text) for text in re.findall(r"step ([\d.]+) s", run.text)]
        rows.append(("first step of a query", "10 s", f"{steps[0]:.2f} s"))
        rows.append(("slowest of the later steps", "1.5 s", f"{max(steps[1:]):.2f} s"))
        rows.append(("all of the Spark test", "", f"{run.wall_s:.1f} s, {run.processor_s:.1f} CPU s"))
    if "sim" in parts:
        run = run_tests(python, directory, "sim", SIM)
        for brokers, seconds in re.findall(r"hour (\d) ([\d.]+) s", run.text):
            rows.append((f"idle hour, brokers={brokers}", "1 CPU s", f"{seconds} CPU s"))
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the test kit, installed from the wheel.")
    parser.add_argument("--environment", type=Path, help="an environment of an earlier run [default: a new one]")
    parser.add_argument("--keep", type=Path, help="directory for the new environment [default: a temporary one]")
    parser.add_argument("--parts", default="topics,spark,sim", help="figures to measure")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sparklog-kit-figures-") as work:
        directory = Path(work)
        python = (
            install(options.keep or directory) if options.environment is None else options.environment / "bin/python"
        )
        for row in figures(python.absolute(), directory, set(options.parts.split(","))):
            print("{:35} {:8} {}".format(*row))
    return 0


if __name__ == "__main__":
    sys.exit(main())
