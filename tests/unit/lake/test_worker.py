"""The choice of topics by a lake worker, without brokers."""

from __future__ import annotations

from typing import Any

from sparklog.client.lake.worker import STANDBY_INTERVALS, LakeWorker, _Topic
from sparklog.lake.settings import LakeSettings

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
