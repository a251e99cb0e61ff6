"""Lives of mirrors of a source that does everything a source can do; and the same lives without a safeguard."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sparklog.mirror.rules import Go
from sparklog.mirror.worker import sync
from tests.simulation.mirror_world import Violation, live

SEEDS, STEPS = 60, 40


def test_lives_store_each_committed_record_once_or_pause() -> None:
    lives = [live(seed, STEPS) for seed in range(SEEDS)]
    reasons = [life.paused for life in lives if life.paused]
    assert any("created again" in reason for reason in reasons)
    assert any("unclean election" in reason for reason in reasons)
    assert any(life.lost for life in lives)
    assert sum(len(life.log.values) for life in lives if not life.paused) > 1_000


def finds_violation(run: Callable[[int], object]) -> bool:
    for seed in range(SEEDS):
        try:
            run(seed)
        except Violation:
            return True
    return False


@pytest.mark.parametrize("safeguard", ["judge_topic", "judge_epoch"])
def test_lives_without_a_judgement_break_a_promise(safeguard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    allow: Any = lambda *_: Go()  # noqa: E731
    monkeypatch.setattr(sync, safeguard, allow)
    assert finds_violation(lambda seed: live(seed, STEPS))


def test_lives_without_the_check_of_the_logs_end_break_a_promise() -> None:
    assert finds_violation(lambda seed: live(seed, STEPS, checks_end=False))
