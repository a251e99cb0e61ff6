"""The choice of topics by a lake worker, without brokers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sparklog.lake.settings import LakeSettings
from sparklog.lake.worker.worker import STANDBY_INTERVALS, LakeWorker, _Topic

SETTINGS = LakeSettings.of({"lake.location": "/lake", "lake.commit.interval.ms": 10_000})


class Table:
    def __init__(self) -> None:
        self.offsets: dict[int, int] | None = {0: 5}

    def next_offsets(self, info: Any, settings: Any) -> dict[int, int] | None:
        return self.offsets


def test_a_topic_of_another_worker_is_taken_over_when_its_table_stands_still() -> None:
    now_s = [100.0]
    worker = LakeWorker("127.0.0.1:1", clock_s=lambda: now_s[0])
    table = Table()
    topic = _Topic(table, "id")  # type: ignore[arg-type]
    info: Any = None
    assert worker._is_served(info, SETTINGS, topic)  # the first look
    assert topic.due_s == 100.0 + STANDBY_INTERVALS * 10
    table.offsets = {0: 9}
    assert worker._is_served(info, SETTINGS, topic)  # it moves
    assert not worker._is_served(info, SETTINGS, topic)
    worker.close()


def test_a_defect_in_one_topics_round_is_reported_and_retried(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else it would end the worker, and with it the tables of all topics."""

    def fail(*_: Any) -> None:
        raise OverflowError("date value out of range")

    worker = LakeWorker("127.0.0.1:1")
    topic = _Topic(SimpleNamespace(round=fail), "id")  # type: ignore[arg-type]
    reported: list[dict[str, Any]] = []
    monkeypatch.setattr(worker, "_report", lambda info, offsets, **state: reported.append(state))
    info: Any = SimpleNamespace(name="far")
    assert worker._round(info, SETTINGS, topic) is None
    assert reported == [{"error": topic.error}] == [{"error": "unexpected OverflowError: date value out of range"}]
    assert "topic far: the round failed and will be retried" in caplog.text
    worker.close()
