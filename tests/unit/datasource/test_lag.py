"""The lag of a query's progress."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark_sparklog.lag import offsets_behind_latest

from sparklog.errors import InvalidConfigError
from tests.support.cases import for_each

END, LATEST = {"t": {"0": 4, "1": 9}}, {"t": {"0": 9, "1": 9, "2": 1}}
EXPECTED = {"minOffsetsBehindLatest": "0", "maxOffsetsBehindLatest": "5", "avgOffsetsBehindLatest": "2.0"}


@for_each("form", [dict, lambda **v: SimpleNamespace(**v)])
@for_each("text", [json.dumps, str, lambda v: v])
def test_of_all_forms_of_progress(form: Any, text: Any) -> None:
    assert offsets_behind_latest(form(endOffset=text(END), latestOffset=text(LATEST))) == EXPECTED


@for_each("source", [{}, {"endOffset": "{}", "latestOffset": None}, {"endOffset": str(END), "latestOffset": "None"}])
def test_no_lag_before_the_first_batch(source: Any) -> None:
    assert offsets_behind_latest(source) == {}


def test_entries_of_earlier_versions_do_not_count() -> None:
    assert offsets_behind_latest({"endOffset": END, "latestOffset": LATEST | {"$ids": {"t": "i"}}}) == EXPECTED


@for_each("text", ["5", "{", '{"t": 3}', '{"t": {"0": "x"}}', '{"t": {"0": true}}', '{"t": {"0": 1.5}}'])
def test_offsets_of_other_sources_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match="are not offsets of sparklog's source"):
        offsets_behind_latest({"endOffset": text, "latestOffset": text})
