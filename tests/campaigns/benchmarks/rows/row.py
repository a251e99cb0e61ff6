"""A row of the comparison, as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..context import Context
from ..results import Goal, Measurement, is_rate

Measure = Callable[[Context], Measurement]

KAFKA = "Kafka"
CONFLUENT = "confluent-kafka"
CONNECTOR = "Spark's Kafka connector"


@dataclass(frozen=True)
class Row:
    """A comparison. `sparklog` and `other` each make one measurement in `unit`; both fill topics through
    `Context.once`. `settings` describes the way of measuring."""

    name: str
    title: str
    peer: str
    unit: str
    goal: Goal | None
    sparklog: Measure
    other: Measure
    settings: Mapping[str, str] = field(default_factory=dict)


def row(
    name: str,
    title: str,
    goal: float | None,
    measure: Callable[..., Measurement],
    *,
    unit: str = "records/s",
    peer: str = KAFKA,
    ours: Any = None,
    theirs: Any = None,
    **settings: str,
) -> Row:
    """A row of which one function measures both sides.

    Args:
        goal: The ratio to reach: at least for a rate, at most for times and sizes.
        measure: Called with the context and the arguments of a side.
        ours: Arguments of sparklog's side by name; None: `peer=False`.
        theirs: Arguments of the other side; None: `peer=True`.
    """
    wanted = None if goal is None else Goal(goal, at_least=is_rate(unit))
    sparklog, other = partial(measure, **(ours or {"peer": False})), partial(measure, **(theirs or {"peer": True}))
    return Row(name, title, peer, unit, wanted, sparklog, other, settings)
