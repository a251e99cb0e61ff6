"""Source offsets keep their text: Spark compares them as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pyspark_sparklog.offsets import SourceOffset

from sparklog.errors import InvalidConfigError
from sparklog.types import TopicPartition
from tests.support.cases import for_each

TP = TopicPartition


def test_the_text_is_kafkas_plus_ids_in_numeric_order() -> None:
    offset = SourceOffset({TP("b", 0): 1, TP("a", 10): 2, TP("a", 9): 3}, {"b": "ib", "a": "ia"})
    assert json.dumps(offset.to_dict()) == ('{"a": {"9": 3, "10": 2}, "b": {"0": 1}, "$ids": {"a": "ia", "b": "ib"}}')


def test_a_round_trip_through_json_is_exact() -> None:
    offset = SourceOffset({TP("a", 10): 2, TP("a", 9): 3}, {"a": "ia"}, {TP("a", 9): 1, TP("a", 10): 0})
    text = json.dumps(offset.to_dict())
    again = SourceOffset.from_dict(json.loads(text))
    assert again == offset
    assert json.dumps(again.to_dict()) == text


def test_kafkas_own_offsets_can_be_read() -> None:
    assert SourceOffset.from_dict({"t": {"0": 4}}) == SourceOffset({TP("t", 0): 4}, {})


@for_each(
    "data",
    [
        {"t": 3},
        {"t": {"x": 1}},
        {"$ids": 3},
        {"$ids": {"t": True}},
        {"$initial": {"t": 1}},
        *({"t": {"0": offset}} for offset in (None, True, False, 1.0, 1.5, "1", " 1", [1], -1, 2**63)),
        *({"t": {partition: 1}} for partition in ("00", " 0", "+0", "-1", "1_0", "\u0661", "0.0", "")),
        {"t": {"0": 1}, "$initial": {"t": {"0": True}}},
    ],
    ids=str,
)
def test_foreign_offsets_are_refused(data: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError, match="another query"):
        SourceOffset.from_dict(data)


def test_the_same_place_does_not_depend_on_the_initial_offsets() -> None:
    a = SourceOffset({TP("t", 0): 4}, {"t": "i"}, {TP("t", 0): 1})
    assert a.same_place(SourceOffset({TP("t", 0): 4}, {"t": "i"}))
    assert not a.same_place(SourceOffset({TP("t", 0): 4}, {"t": "j"}))
    assert not a.same_place(SourceOffset({TP("t", 0): 5}, {"t": "i"}))
