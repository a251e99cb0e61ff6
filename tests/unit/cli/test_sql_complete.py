"""Offers of the Tab key in SQL."""

from __future__ import annotations

import pytest

from sparklog.cli.sql.complete import complete

TOPICS = ["trips", "my-topic", "Tolls"]
COLUMNS = {"trips": ["_offset", "zone", "my col"], "my-topic": ["value", "zebra"], "Tolls": ["toll"]}
WORDS = ["SELECT", "ORDER", "zscore", "lower"]


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("", (0, [])),
        ("sel", (3, ["select"])),
        ("SEL", (3, ["SELECT"])),
        ("SELECT * FROM ", (0, ['"my-topic"', "Tolls", "trips"])),
        ("from t", (1, ["Tolls", "trips"])),
        ("FROM my", (2, ['"my-topic"'])),
        ('FROM "my-', (4, ['"my-topic"'])),
        ('FROM "my-topic" JOIN tr', (2, ["trips"])),
        ("FROM trips WHERE z", (1, ["zone", "zscore"])),
        ('FROM "my-topic" WHERE z', (1, ["zebra", "zscore"])),
        ("FROM trips WHERE trips.zo", (2, ["zone"])),
        ('FROM trips WHERE "my', (3, ['"my col"', '"my-topic"'])),
        ("FROM trips WHERE _", (1, ["_offset"])),
        ("FROM trips WHERE zone = 'lo", (0, [])),
        ("FROM trips WHERE zone = 'it''s' ORD", (3, ["ORDER"])),
        ("SELECT nothing ", (0, [])),
        (".sch", (4, [".schema"])),
        (".schema t", (1, ["Tolls", "trips"])),
        ("\\d my", (2, ['"my-topic"'])),
    ],
)
def test_offers(before: str, expected: tuple[int, list[str]]) -> None:
    assert complete(before, TOPICS, COLUMNS.__getitem__, WORDS) == expected
