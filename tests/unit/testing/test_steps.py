"""Steps of a run whose query does not start, or starts elsewhere: repeated, or refused."""

from __future__ import annotations

import json
from collections.abc import Callable
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


CALLS: dict[str, Callable[[StreamRun], object]] = {
    "step": lambda run: run.step(),
    "rows": lambda run: run.rows(),
    "kill": lambda run: run.kill(),
    "state": lambda run: run.state(),
    "advance_watermark": lambda run: run.change(lambda orders: orders).advance_watermark(0),
}


@pytest.mark.parametrize("action", CALLS)
def test_a_stopped_run_is_named_as_stopped(action: str, tmp_path: Path) -> None:
    run = run_of(ScriptedQuery(), tmp_path).step()
    run.stop()
    with pytest.raises(InvalidRequestError, match=f"{action}: the run has been stopped"):
        CALLS[action](run)


def checkpoint_of(run: StreamRun, *, commits: int, offsets: int = 1) -> None:
    for name, count in {"commits": commits, "offsets": offsets}.items():
        folder = run.checkpoint / name
        folder.mkdir(parents=True)
        for number in range(count):
            (folder / str(number)).write_text('v1\n{"nextBatchWatermarkMs":7}', encoding="utf-8")


def test_state_needs_a_micro_batch_that_was_committed(tmp_path: Path) -> None:
    run = run_of(ScriptedQuery(), tmp_path)
    checkpoint_of(run, commits=1)
    run.kill().kill()
    with pytest.raises(InvalidRequestError, match=r"killed before its commit: call step\(\)"):
        run.state()


@pytest.mark.parametrize("operator", [0.0, False, "0", None, 1])
def test_operators_have_numbers(operator: Any, tmp_path: Path) -> None:
    run = run_of(ScriptedQuery(), tmp_path)
    checkpoint_of(run, commits=1)
    (run.checkpoint / "state" / "0").mkdir(parents=True)
    with pytest.raises(InvalidRequestError, match=f"operator = {operator!r}: the query has the stateful operators 0"):
        run.state(operator)


class ScriptedBroker:
    """A broker whose clock shows 10 s."""

    now_ms = 10_000

    def hide_row(self, topic: str) -> None:
        """Do nothing."""


@pytest.mark.parametrize("moment, watermark_ms", [(3, 7), (8, 8), ("now", 10_000), ("-1s", 9_000)])
def test_a_watermark_moves_only_forwards(moment: Any, watermark_ms: int, tmp_path: Path) -> None:
    run = StreamRun(cast(Any, ScriptedBroker()), None, lambda *_: ScriptedQuery().start, tmp_path, is_complete=False)
    run.change(lambda orders: orders)
    checkpoint_of(run, commits=1)
    run.advance_watermark(moment)
    commit = (run.checkpoint / "commits" / "0").read_text(encoding="utf-8").partition("\n")[2]
    assert json.loads(commit) == {"nextBatchWatermarkMs": watermark_ms}


@pytest.mark.parametrize(
    "message, advice",
    [
        ("or set the environment variable SPARKLOG_BOOTSTRAP_SERVERS", "has to take sparklog_broker"),
        ("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: sparklog.", "set PYSPARK_PYTHON="),
    ],
)
def test_advice_for_a_session_of_a_users_own(message: str, advice: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as raised:
        run_of(ScriptedQuery(message), tmp_path).step()
    assert advice in "".join(raised.value.__notes__)
