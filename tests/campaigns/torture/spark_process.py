"""The processes of a pipeline's Spark driver, which has many lives and is signalled in parts."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import psutil

from tests.campaigns.torture.processes import ROOT, CampaignError, die_with_parent, environment

ENDED_IN_ORDER_S = 240.0


class Job(Protocol):
    """The argument of a driver's module."""

    def as_argument(self) -> str: ...


class Driver:
    """The Spark driver: a Python process, its JVM, and the JVM's Python workers, in a session of their own."""

    def __init__(self, job: Job, log: Path, module: str = "tests.campaigns.torture.spark_driver") -> None:
        self._job = job
        self._module = module
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._left: list[psutil.Process] = []
        self.lives = 0

    def start(self, fault: Mapping[str, str] | None = None) -> None:
        self._end_python()  # one that has ended by itself still has its pipe
        python = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, self._job.as_argument()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=environment(fault) | python,
                preexec_fn=die_with_parent,
                start_new_session=True,
            )
        self.lives += 1

    @property
    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def jvm(self) -> psutil.Process | None:
        return next((p for p in self._all() if name_of(p) == "java"), None)

    def workers(self) -> list[psutil.Process]:
        """The Python processes that the JVM has started, without the daemon that forks the others."""
        jvm = self.jvm()
        if jvm is None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return [p for p in jvm.children(recursive=True) if name_of(p).startswith("python") and not p.children()]
        return []

    def kill(self) -> None:
        """Kills the JVM alone: its workers find out by themselves, and may go on for a while."""
        self._left = [p for p in [*self._left, *self._all()] if p.is_running()]
        jvm = self.jvm()
        if jvm is not None:
            send_signal(jvm, signal.SIGKILL)
        self._end_python()

    def kill_everything(self) -> None:
        """End all processes of this driver's lives, stopped or not, at the end of a campaign."""
        for process in [*self._all(), *self._left]:
            send_signal(process, signal.SIGKILL)
        self._end_python()

    def finish(self) -> None:
        """Copies the rest and ends. Raises CampaignError."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            code = self._process.wait(ENDED_IN_ORDER_S)
        except subprocess.TimeoutExpired as e:
            raise CampaignError(f"the driver does not end:\n{self.tail()}") from e
        if code != 0:
            raise CampaignError(f"the driver ended with {code}:\n{self.tail()}")

    def tail(self) -> str:
        return self._log.read_text(errors="replace")[-4000:] if self._log.exists() else ""

    def _end_python(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdin is not None
            self._process.stdin.close()

    def _all(self) -> list[psutil.Process]:
        if self._process is None or self._process.poll() is not None:
            return []
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []


def name_of(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def send_signal(process: psutil.Process, number: int) -> bool:
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return False
    return True
