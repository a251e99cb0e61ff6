"""A row of the comparison, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ..context import Context
from ..results import Goal, Measurement

Measure = Callable[[Context], Measurement]

KAFKA = "Kafka"
CONFLUENT = "confluent-kafka"
CONNECTOR = "Spark's Kafka connector"


@dataclass(frozen=True)
class Row:
    """`sparklog` and `other` each make one measurement; filling topics is done in them through `Context.once`.

    `unit` is what both values are in, `settings` what has to be said about how it was measured.
    """

    name: str
    title: str
    peer: str
    unit: str
    goal: Goal | None
    sparklog: Measure
    other: Measure
    settings: Mapping[str, str] = field(default_factory=dict)


def at_least(ratio: float) -> Goal:
    return Goal(ratio, at_least=True)


def at_most(ratio: float) -> Goal:
    return Goal(ratio, at_least=False)
