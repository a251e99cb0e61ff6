"""Two drivers on one checkpoint at the same time.

The loser ends with an error that gives the reason. The job continues (at a bad moment each beats the other, and it
continues after the next start), and nothing is missing or duplicated.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import sparklog

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]
PATIENCE_S = 90.0
REASONS = (
    "a newer run has taken over",  # sparklog, when the loser writes
    "CONCURRENT_STREAM_LOG_UPDATE",  # Spark, when both have planned the same batch
    "Multiple streaming queries are concurrently using",  # Spark, when both rename the batch's file at once
)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a driver; its output is a file `driver-<n>`."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.spark.copying_driver", *arguments, str(tmp_path / "checkpoint")]
        with (tmp_path / f"driver-{len(started)}").open("w") as out:
            started.append(
                subprocess.Popen(
                    command, cwd=ROOT, start_new_session=True, text=True, stdout=out, stderr=subprocess.DEVNULL
                )
            )
        return started[-1]

    yield run
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_one_wins(
    start: Callable[..., subprocess.Popen[str]],
    topic: Callable[..., str],
    send: Callable[..., None],
    broker: sparklog.LocalBroker,
    tmp_path: Path,
) -> None:
    source, target = topic("in"), topic("out")
    sent = 0

    def written() -> list[str]:
        table: Any = sparklog.read_table(broker.bootstrap_servers, target)
        return sorted(v.decode() for v in table.column("value").to_pylist())

    def send_until(condition: Callable[[], bool], what: str) -> None:
        """A record after the other, so that there is always a batch to be made."""
        nonlocal sent
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"not in time: {what}"
            send(source, f"{sent:06}")
            sent += 1
            time.sleep(0.05)

    drivers = [start(broker.bootstrap_servers, source, target)]
    send_until(lambda: bool(written()), "the first driver writes")
    drivers.append(start(broker.bootstrap_servers, source, target))
    send_until(lambda: any(d.poll() is not None for d in drivers), "one of the two ends")
    for number, driver in enumerate(drivers):
        if driver.poll() is not None:
            error = (tmp_path / f"driver-{number}").read_text()
            assert any(words in error for words in REASONS), error
    if all(d.poll() is not None for d in drivers):
        # The one had taken the transactions over, the other had written the next batch's offsets first.
        drivers.append(start(broker.bootstrap_servers, source, target))
    expected = [f"{n:06}" for n in range(sent)]
    send_until(lambda: written()[: len(expected)] == expected, "one goes on")
    everything = written()  # read once: a driver still writes
    assert everything == [f"{n:06}" for n in range(len(everything))]
