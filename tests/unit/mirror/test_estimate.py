"""The estimate of a mirror's records, bytes and time."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

from sparklog.client.admin.mirror_estimate import estimate_mirror
from tests.simulation.mirror_world import TOPIC, SimulatedSource


def estimated(source: SimulatedSource) -> Any:
    ticks = count()
    kafka: Any = source
    return estimate_mirror(kafka, [TOPIC], lambda: float(next(ticks)))


def test_the_size_of_a_topic_follows_from_a_sample() -> None:
    source = SimulatedSource(Random(5))
    for _ in range(40):
        source.put([b"x" * 100] * 5)
    actual = sum(len(batch.encoded()) for batch in source.batches)
    estimate = estimated(source)
    assert estimate.topics[TOPIC].records == 200
    assert actual / 3 < estimate.topics[TOPIC].size_bytes < 3 * actual
    assert estimate.seconds > 1 and estimate.within(1).seconds == estimate.topics[TOPIC].size_bytes


def test_a_topic_without_records_or_without_an_answer_takes_no_time() -> None:
    source = SimulatedSource(Random(5))
    assert estimated(source) == ({TOPIC: (0, 0)}, 0)
    source.put([b"x"])
    source.is_silent = True
    assert estimated(source) == ({TOPIC: (1, 0)}, 0)
