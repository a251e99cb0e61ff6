"""The estimate of a mirror's records, bytes and time."""

from __future__ import annotations

from itertools import count
from random import Random
from typing import Any

from sparklog.client.admin.mirror_estimate import Trial, estimate_mirror
from sparklog.mirror.typed import TypedTarget
from tests.simulation.mirror_world import COLUMNS, TOPIC, SimulatedSource, typed_target


def estimated(source: SimulatedSource, target: TypedTarget | None = None) -> Any:
    ticks = count()
    kafka: Any = source
    return estimate_mirror(kafka, [TOPIC], lambda _: target, lambda: float(next(ticks)))


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
    assert estimated(source) == ({TOPIC: (0, 0, 0, Trial())}, 0)
    source.put([b"x"])
    source.is_silent = True
    assert estimated(source) == ({TOPIC: (1, 0, 0, Trial())}, 0)


def test_records_are_tried_in_the_columns_of_a_typed_topic() -> None:
    source = SimulatedSource(Random(5))
    source.put([b'{"a":"1"}'] * 3)
    target = typed_target(min(COLUMNS))
    assert estimated(source, target).topics[TOPIC].trial == Trial(2, 0)  # from the middle on
    source.put([b'{"a":"1"}', b"none", b"nor this"])
    trial = estimated(source, target._replace(refused_max=0)).topics[TOPIC].trial
    assert (trial.records, trial.unfit) == (3, 2)
    assert trial.problem.startswith("offset 4 of partition 0: ")


def test_records_that_cannot_be_converted_have_a_reason_and_no_size() -> None:
    source = SimulatedSource(Random(5))
    source.put([b"x"] * 4)
    source.is_damaged = True
    estimate = estimated(source)
    assert "checksum" in estimate.topics[TOPIC].trial.problem
    assert (estimate.topics[TOPIC].size_bytes, estimate.seconds) == (0, 0)


def test_offsets_behind_an_open_transaction_are_counted_apart() -> None:
    source = SimulatedSource(Random(5))
    source.put([b"x"] * 2)
    source.put([b"x"], producer_id=7)
    source.put([b"x"] * 4)
    size = estimated(source).topics[TOPIC]
    assert (size.records, size.held) == (2, 5)
