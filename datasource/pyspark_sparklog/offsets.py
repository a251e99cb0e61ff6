"""Source offsets: positions per topic partition, in the form that Spark's checkpoint keeps.

The form is Kafka's `{"topic": {"0": 12}}` (the next offset to read). Two things are kept beside the positions:

- `"$ids": {"topic": topic_id}`: the incarnation of the topic that the offsets belong to, so that a topic that was
  deleted and created again is recognised;
- `"$initial": {"topic": {"0": 5}}`, only in the end offset of a query's first micro-batch: the start offset of that
  micro-batch. Spark does not keep a query's initial offsets. If the first micro-batch dies, Spark asks for them again,
  and "latest" would then be a later offset and skip records.

Both are hidden from other readers of the JSON (`offset_text`). A process that cannot hide state writes them as entries
like a topic's, with names that no topic can have.

Topics, and partitions within a topic, are in ascending order: Spark compares offsets as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark_sparklog import offset_text
from pyspark_sparklog.offset_text import OffsetDict
from sparklog.errors import InvalidConfigError
from sparklog.format.source_offsets import IDS, INITIAL
from sparklog.types import TopicPartition

Positions = dict[TopicPartition, int]
LONG_MAX = 2**63 - 1
"""Java's Long.MaxValue: jobs write it for "no limit" and "the end of time"."""


@dataclass(frozen=True)
class SourceOffset:
    """Positions of a source. `ids` maps topic to topic id, as far as known. `initial` is set only in the end offset of
    a query's first micro-batch."""

    positions: Positions
    ids: dict[str, str]
    initial: Positions | None = field(default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, in a fixed order."""
        beside: dict[str, Any] = {IDS: {t: self.ids[t] for t in sorted(self.ids)}}
        if self.initial is not None:
            beside[INITIAL] = nested(self.initial)
        positions = nested(self.positions)
        return OffsetDict(positions, beside) if offset_text.is_installed() else {**positions, **beside}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SourceOffset:
        """Return the offset of a result of `to_dict`, also after conversion to JSON and back. Raises
        InvalidConfigError."""
        if isinstance(data, OffsetDict):
            data = {**data, **data.beside}
        try:
            topics = {t: p for t, p in data.items() if t not in (IDS, INITIAL)}
            ids = {t: _topic_id(i) for t, i in data.get(IDS, {}).items()}
            initial = _flat(data[INITIAL]) if INITIAL in data else None
            return cls(_flat(topics), ids, initial)
        except (AttributeError, ValueError, TypeError) as e:
            raise InvalidConfigError(
                f"the offsets {data!r} are not sparklog's ({e}): does the checkpoint belong to another query?"
            ) from e

    def same_place(self, other: SourceOffset) -> bool:
        """True if both offsets have the same positions and topic ids; `initial` is not compared."""
        return self.positions == other.positions and self.ids == other.ids


def nested(positions: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return `{"topic": {"0": 12}}`, sorted."""
    result: dict[str, dict[str, int]] = {}
    for tp in sorted(positions):
        result.setdefault(tp.topic, {})[str(tp.partition)] = positions[tp]
    return result


def _flat(data: Mapping[str, Mapping[str, int]]) -> Positions:
    return {
        TopicPartition(t, _partition(p)): _offset(o) for t, partitions in data.items() for p, o in partitions.items()
    }


def _partition(text: str) -> int:
    """Return the number of a partition. Raises ValueError for another text than `nested` writes, which could name a
    partition twice."""
    number = int(text)
    if str(number) != text or number < 0:
        raise ValueError(f"{text!r} is no partition")
    return number


def _offset(value: Any) -> int:
    """Return an offset. Raises TypeError for other values, also for true and 1.5, which `int` would take for 1."""
    if type(value) is not int or not 0 <= value <= LONG_MAX:
        raise TypeError(f"{value!r} is no offset")
    return value


def _topic_id(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no topic id")
    return value
