"""A mirror worker whose file with the source's settings changes while it runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from sparklog.client.admin.mirror_plan import source_security
from sparklog.mirror.definition import MirrorDefinition, MirroredTopic
from sparklog.mirror.worker import worker as module
from sparklog.mirror.worker.sync import Mirrored
from sparklog.mirror.worker.worker import MirrorWorker
from tests.simulation.mirror_world import SimulatedSource

ROUNDS = 20


class Runner:
    """A runner with one paused topic, which changes the file at a report and stops after some rounds."""

    def __init__(self, definition: MirrorDefinition, change: Callable[[], object]) -> None:
        self.rounds = 0
        self.topic = Mirrored(MirroredTopic("t", definition, "", "paused", ()), "", 1, 0)
        self.change = change
        self.stop = self

    def is_set(self) -> bool:
        return self.rounds >= ROUNDS

    def wait(self, seconds: float) -> None:
        self.rounds += 1
        if self.rounds == ROUNDS // 2:
            self.change()

    def topics(self) -> dict[str, Mirrored]:
        return {"t": self.topic}


def write(path: Path, secret: str) -> None:
    path.with_suffix(".secret").write_text(secret)
    path.with_suffix(".secret").chmod(0o600)
    path.write_text(
        "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=u\n"
        f"sasl.password=${{file:{path.with_suffix('.secret')}}}\n"
    )
    path.chmod(0o600)


@pytest.mark.parametrize(
    "change, is_left",
    [
        (lambda path: write(path, "new"), True),
        (lambda path: write(path, "old"), False),
        (lambda path: path.unlink(), False),
        (lambda path: path.write_text("security.protocol=NONSENSE"), False),
    ],
    ids=["another password", "the same", "no file", "a damaged file"],
)
def test_a_worker_connects_again_when_the_file_has_another_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object], is_left: bool
) -> None:
    path = tmp_path / "old.properties"
    write(path, "old")
    definition = MirrorDefinition("m", "kafka://127.0.0.1:1", str(path), "t")
    opened: list[Any] = []
    closed: list[bool] = []

    def open_source(definition: MirrorDefinition, timeout_ms: int, security: Any) -> Any:
        opened.append(security)
        source: Any = SimulatedSource(Random(1))
        source.close = lambda: closed.append(True)
        return source

    monkeypatch.setattr(module, "open_source", open_source)
    worker = MirrorWorker("127.0.0.1:1", clock_s=itertools.count(step=10).__next__)
    monkeypatch.setattr(worker, "_create_new_topics", lambda *arguments: None)
    monkeypatch.setattr(worker, "_report", lambda *arguments: None)
    before = source_security(definition)
    runner: Any = Runner(definition, lambda: change(path))
    worker._run_source(runner, definition)
    worker.close()
    assert opened == [before] and closed == [True]
    assert (runner.rounds < ROUNDS) is is_left
    if is_left:
        assert source_security(definition) != before
