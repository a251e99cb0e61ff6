"""The processes of a campaign: a broker that keeps its port and its data, and clients with many lives."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import sparklog
from tests.torture.client import LIFE_ENDED, Assignment, as_argument

ROOT = Path(__file__).resolve().parents[2]
ENDED_IN_ORDER_S = 90.0


class CampaignError(AssertionError):
    """Something other than the history is wrong: a process that ended by itself, or no progress."""


@contextlib.contextmanager
def variables(given: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables for processes started meanwhile."""
    os.environ.update(given)
    try:
        yield
    finally:
        for name in given:
            del os.environ[name]


class Broker:
    """A broker that is started again on the same port and data directory."""

    def __init__(self, data_dir: Path, settings: Mapping[str, object]) -> None:
        self._data_dir = data_dir
        self._settings = dict(settings)
        self._local: sparklog.LocalBroker | None = None
        self._listen = "127.0.0.1:0"
        self.lives = 0

    @property
    def bootstrap_servers(self) -> str:
        return self._listen

    @property
    def running(self) -> bool:
        return self._local is not None and self._local.running

    def start(self, fault: Mapping[str, str] | None = None) -> None:
        with variables(fault or {}):
            self._local = sparklog.start_local(self._data_dir, self._listen, settings=self._settings)
        self._listen = self._local.bootstrap_servers
        self.lives += 1

    def kill(self) -> None:
        assert self._local is not None
        self._local.kill()

    def signal(self, number: int) -> None:
        assert self._local is not None
        os.kill(self._local.pid, number)

    def stop(self) -> None:
        """In order. Raises CampaignError with what it logged if that is not how it ends."""
        assert self._local is not None
        code = self._local.stop()
        if code != 0:
            raise CampaignError(f"the broker ended with {code}: {self._local.log}")

    def log(self) -> str:
        return self._local.log if self._local is not None else ""


class Client:
    """A role with many lives; each life writes a history of its own."""

    def __init__(self, assignment: Assignment, directory: Path, numbers: Iterator[int]) -> None:
        self._assignment = assignment
        self._directory = directory
        self._numbers = numbers
        self._read_bytes = 0
        self.lives_ended = 0
        self.start()

    @property
    def role(self) -> str:
        return self._assignment.role

    def start(self, fault: Mapping[str, str] | None = None) -> None:
        number = next(self._numbers)
        self.history = self._directory / f"{number:05}-{self.role}.jsonl"
        self._stderr = self.history.with_suffix(".stderr")
        self._assignment = replace(self._assignment, number=number, history=str(self.history))
        self._read_bytes = 0
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.torture.client", as_argument(self._assignment)],
                stdin=subprocess.PIPE,
                stderr=stderr,
                cwd=ROOT,
                env=os.environ | dict(fault or {}) | {"PYTHONPATH": str(ROOT)},
            )

    def kill(self) -> None:
        self._process.kill()
        self._reap()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def check(self) -> None:
        """Starts another life when this one has ended as it may. Raises CampaignError when it ended otherwise."""
        code = self._process.poll()
        if code is None:
            return
        self._reap()
        if code != LIFE_ENDED:
            raise CampaignError(f"{self._assignment.name} ended with {code}:\n{self._stderr.read_text()}")
        self.lives_ended += 1
        self.start()

    def completed(self) -> int:
        """How many operations have ended well since it was last asked."""
        if not self.history.exists():
            return 0
        with self.history.open("rb") as file:
            file.seek(self._read_bytes)
            content = file.read()
        whole = content.rfind(b"\n") + 1
        self._read_bytes += whole
        return content[:whole].count(b'"end":"ok"')

    def finish(self) -> None:
        """Ends it in order. Raises CampaignError if it does not end, or not well."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.wait()

    def wait(self) -> None:
        try:
            code = self._process.wait(ENDED_IN_ORDER_S)
        except subprocess.TimeoutExpired as e:
            raise CampaignError(f"{self._assignment.name} does not end:\n{self._stderr.read_text()}") from e
        self._reap()
        if code not in (0, LIFE_ENDED):
            raise CampaignError(f"{self._assignment.name} ended with {code}:\n{self._stderr.read_text()}")

    def _reap(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()
