"""The processes of a campaign: a broker that keeps its port and its data, and clients with many lives."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from tests.campaigns.torture.client import LIFE_ENDED, Assignment, as_argument

ROOT = Path(__file__).resolve().parents[3]
ENDED_IN_ORDER_S = 180.0


class CampaignError(AssertionError):
    """Something other than the history is wrong: a process that ended by itself, or no progress."""


class Broker:
    """A broker that is started again on the same port and data directory. `without`: safeguards that are off."""

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, object],
        without: str | None = None,
        listen: str = "127.0.0.1:0",
        topic_settings: Mapping[str, object] | None = None,
    ) -> None:
        self._directory = directory
        self._without = without
        self._process: subprocess.Popen[bytes] | None = None
        self.bootstrap_servers = listen
        self.data_dir = directory / "data"
        self.lives = 0
        topic = {"retention.ms": -1, **(topic_settings or {})}
        lines = [f"{json.dumps(n)} = {json.dumps(v)}" for n, v in settings.items()]
        lines += ["[topic]", *(f"{json.dumps(n)} = {json.dumps(v)}" for n, v in topic.items())]
        (directory / "broker.toml").write_text("\n".join(lines) + "\n")

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self, fault: Mapping[str, str] | None = None) -> None:
        """Start the process; returns when it listens, or when its fault has killed it. Raises CampaignError with its
        log."""
        module = (
            ["sparklog_broker"] if self._without is None else ["tests.campaigns.torture.unsafe_broker", self._without]
        )
        arguments = ["--config", str(self._directory / "broker.toml"), "--data-dir", str(self.data_dir)]
        with (self._directory / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *module, *arguments, "--listen", self.bootstrap_servers],
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=ROOT,
                env=environment(fault),
                preexec_fn=die_with_parent,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline().decode().strip()
        self._process.stdout.close()
        self.lives += 1
        if not line.startswith("listening on "):
            if fault and self._process.wait(ENDED_IN_ORDER_S) == -signal.SIGKILL:
                return
            raise CampaignError(f"the broker does not start: {self.log()}")
        self.bootstrap_servers = line.removeprefix("listening on ")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def wait_for_end(self) -> int:
        """The exit code of one that ends by itself. Raises CampaignError."""
        assert self._process is not None
        try:
            return self._process.wait(ENDED_IN_ORDER_S)
        except subprocess.TimeoutExpired as e:
            raise CampaignError(f"the broker does not end: {self.log()}") from e

    def wait_for_end_of(self, life: int) -> None:
        """Waits until that life, counted from 1, is over."""
        if self._process is not None and self.lives == life:
            self._process.wait(ENDED_IN_ORDER_S)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def stop(self) -> None:
        """Stop it in order. Raises CampaignError with its log if it ends in another way."""
        assert self._process is not None
        self._process.terminate()
        code = self._process.wait(ENDED_IN_ORDER_S)
        if code != 0:
            raise CampaignError(f"the broker ended with {code}: {self.log()}")

    def log(self) -> str:
        """The last that it has logged, in all its lives."""
        return (self._directory / "broker.log").read_text(errors="replace")[-4000:]


def environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """Of a child: it finds the packages and the tests, wherever it runs, and says where a signal has killed it."""
    path = os.pathsep.join(str(ROOT / part) for part in (".", "datasource", "broker_daemon"))
    return os.environ | {"PYTHONPATH": path, "PYTHONFAULTHANDLER": "1"} | dict(more or {})


def die_with_parent() -> None:
    """Make the child end with its parent: after a kill of the campaign, no process stays."""
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


class Client:
    """A role with many lives; each life writes a history of its own."""

    def __init__(self, assignment: Assignment, directory: Path, numbers: Iterator[int]) -> None:
        self._assignment = assignment
        self._directory = directory
        self._numbers = numbers
        self._read_bytes = 0
        self._sleeping: subprocess.Popen[bytes] | None = None
        self._zombies: list[subprocess.Popen[bytes]] = []
        self.start()

    @property
    def role(self) -> str:
        return self._assignment.role

    @property
    def slot(self) -> int:
        return self._assignment.slot

    def start(self, fault: Mapping[str, str] | None = None) -> None:
        number = next(self._numbers)
        self.history = self._directory / f"{number:05}-{self.role}.jsonl"
        self._stderr = self.history.with_suffix(".stderr")
        self._assignment = replace(self._assignment, number=number, history=str(self.history))
        self._read_bytes = 0
        with self._stderr.open("wb") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.campaigns.torture.client", as_argument(self._assignment)],
                stdin=subprocess.PIPE,
                stderr=stderr,
                cwd=ROOT,
                env=environment(fault),
                preexec_fn=die_with_parent,
            )

    def kill(self) -> None:
        self._process.kill()
        _reap(self._process)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def sleep_and_begin_anew(self) -> None:
        """This life stops where it is, the next one begins; `wake` lets the old one go on."""
        self._process.send_signal(signal.SIGSTOP)
        self._sleeping = self._process
        self.start()

    def wake(self) -> None:
        assert self._sleeping is not None
        self._sleeping.send_signal(signal.SIGCONT)
        self._zombies.append(self._sleeping)
        self._sleeping = None

    def end_zombies(self) -> None:
        for process in [*self._zombies, *([] if self._sleeping is None else [self._sleeping])]:
            process.kill()
            _reap(process)
        self._zombies, self._sleeping = [], None

    def check(self) -> None:
        """Starts another life when this one has ended as it may. Raises CampaignError when it ended otherwise."""
        code = self._process.poll()
        if code is None:
            return
        _reap(self._process)
        if code != LIFE_ENDED:
            raise CampaignError(f"{self._assignment.name} ended with {code}:\n{self._stderr.read_text()}")
        self.start()

    def completed(self) -> int:
        """Return the number of successful operations since the last call."""
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
        _reap(self._process)
        if code not in (0, LIFE_ENDED):
            raise CampaignError(f"{self._assignment.name} ended with {code}:\n{self._stderr.read_text()}")


def _reap(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    process.wait()
