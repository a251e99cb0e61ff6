"""A cluster is upgraded, broker after broker, under clients of both releases: no call of theirs raises, nothing is
lost, and nothing comes twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from sparklog.client.local_zookeeper import has_java
from tests.support.waiting import until_reached
from tests.system.broker_process import readable
from tests.system.cluster_processes import ClusterProcesses
from tests.system.releases import PREVIOUS_CLUSTER, ROOT, environment_of, files_of

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(not has_java(), reason="there is no Java: install one to run ZooKeeper"),
]

KINDS = ("plain", "transactions")
NAMES = ("previous", "current")
TOPICS = [f"{kind}-{name}" for kind in KINDS for name in NAMES]
ANSWER_S = 90.0


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the previous release that has clusters, from git."""
    return files_of(PREVIOUS_CLUSTER, tmp_path_factory.mktemp("previous-cluster"))


class Client:
    """A process of `rolling_client.py`."""

    def __init__(self, release: Path, bootstrap: str, name: str, errors: Path) -> None:
        self._release, self._name, self._errors = release, name, errors
        script = Path(__file__).with_name("rolling_client.py")
        with errors.open("wb") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, script, bootstrap, name, ",".join(TOPICS)],
                env=environment_of(release) | {"PYTHONFAULTHANDLER": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                bufsize=0,
            )

    def ask(self, line: str) -> dict[str, Any]:
        """Raises AssertionError with the client's words when anything has failed there."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with suppress(BrokenPipeError):  # it has died: what it said is read below
            self.process.stdin.write(f"{line}\n".encode())
        said = b""
        while not said.endswith(b"\n"):
            assert readable(self.process.stdout.fileno(), ANSWER_S), f"{self._name} does not answer {line}"
            chunk = os.read(self.process.stdout.fileno(), 1 << 20)
            assert chunk, f"{self._name} ended with {self.process.wait(ANSWER_S)}: {self._errors.read_text()}"
            said += chunk
        found: dict[str, Any] = json.loads(said)
        assert not found["failed"], f"{self._name}: {found['failed']}\n{self._errors.read_text()}"
        assert Path(found["release"]).is_relative_to(self._release.resolve()), "another release was imported"
        return found

    def go_on(self, rounds: int = 2) -> None:
        """Until each thread has done so much more."""
        before = self.ask("rounds")["rounds"]
        until_reached(
            lambda: all(done >= before[thread] + rounds for thread, done in self.ask("rounds")["rounds"].items()),
            f"progress of {self._name} after {before}",
        )

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def clients(cluster: ClusterProcesses, releases: Sequence[Path], directory: Path) -> Iterator[list[Client]]:
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in cluster.ports.values())
    with ExitStack() as stack:
        found = []
        for name, release in zip(NAMES, releases, strict=True):
            found.append(Client(release, bootstrap, name, directory / f"{name}.txt"))
            stack.callback(found[-1].close)
        yield found


def all_in_sync(cluster: ClusterProcesses) -> None:
    for topic in TOPICS:
        until_reached(lambda t=topic: cluster.in_sync(t, 3, asked=1), f"all replicas of {topic} in sync")  # type: ignore[misc]


def test_a_rolling_upgrade_disturbs_no_client(previous: Path, tmp_path: Path) -> None:
    cluster = ClusterProcesses(tmp_path, env=environment_of(previous))
    try:
        for topic in TOPICS:
            cluster.create(1, topic, 3, min_insync_replicas=2)
        with clients(cluster, (previous, ROOT), tmp_path) as both:
            for one in both:
                one.go_on()
            cluster.env = environment_of(ROOT)
            for broker in (1, 2, 3):
                assert cluster.stop(broker) == 0
                for one in both:
                    one.go_on()
                cluster.start(broker)
                all_in_sync(cluster)
                for one in both:
                    one.go_on()
            sent = {t: v for one in both for t, v in one.ask("end")["sent"].items()}
            counts = json.dumps({t: len(v) for t, v in sent.items()})
            for one in both:
                read = one.ask(f"read {counts}")["read"]
                assert {t: sorted(v) for t, v in read.items()} == {t: sorted(v) for t, v in sent.items()}
        for broker in (1, 2, 3):
            assert cluster.stop(broker) == 0
            assert "Traceback" not in cluster.processes[broker].stderr
    finally:
        cluster.close()
