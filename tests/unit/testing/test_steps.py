"""Steps of a run whose query does not start, or starts elsewhere: repeated, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from sparklog.errors import InvalidRequestError
from sparklog.testing import StreamRun, _stream

LATE = "Python worker failed to connect back."
LATE_SOURCE = f"{LATE} === Streaming Query === Current State: INITIALIZING"


class ScriptedQuery:
    """A query whose runs fail with these messages, one after another, and then succeed."""

    recentProgress = ()  # noqa: N815 - Spark's name

    def __init__(self, *failures: str, has_checkpoint: bool = True) -> None:
        self.failures = list(failures)
        self.has_checkpoint = has_checkpoint
        self.starts = 0

    def start(self, checkpoint: str) -> ScriptedQuery:
        self.starts += 1
        if self.has_checkpoint:
            Path(checkpoint).mkdir(parents=True, exist_ok=True)
        return self

    def awaitTermination(self, timeout_s: float) -> bool:
        if self.failures:
            raise RuntimeError(self.failures.pop(0))
        return True

    def stop(self) -> None:
        """Do nothing: the query has ended."""


def run_of(query: ScriptedQuery, directory: Path) -> StreamRun:
    run = StreamRun(cast(Any, None), None, lambda *_: query.start, directory, is_complete=False)
    return run.change(lambda: None)


def test_a_late_process_starts_the_query_again(tmp_path: Path) -> None:
    query = ScriptedQuery(LATE_SOURCE, LATE, LATE_SOURCE)
    run_of(query, tmp_path).step()
    assert query.starts == 4


def test_the_patience_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stream, "START_PATIENCE_S", -1.0)
    with pytest.raises(RuntimeError, match="failed to connect back"):
        run_of(ScriptedQuery(LATE_SOURCE), tmp_path).step()


@pytest.mark.parametrize("message", [LATE_SOURCE.replace("INITIALIZING", "ACTIVE"), "Current State: INITIALIZING"])
def test_other_failures_are_the_tests(message: str, tmp_path: Path) -> None:
    """A query that has run a micro-batch is not started again: its work would be done twice."""
    query = ScriptedQuery(message)
    with pytest.raises(RuntimeError, match="Current State"):
        run_of(query, tmp_path).step()
    assert query.starts == 1


def test_a_server_with_other_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"not on this machine: .* SPARK_REMOTE=local\[2\]"):
        run_of(ScriptedQuery(has_checkpoint=False), tmp_path).step()
