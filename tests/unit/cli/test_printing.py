"""Names and durations on a terminal."""

from __future__ import annotations

import pytest

from sparklog.cli.printing import duration, printable


def test_names_are_one_line_of_a_limited_length() -> None:
    assert printable("a" * 1000, 249) == "a" * 248 + "…"
    assert printable("a\x1b[2J\nb\u202e", 249) == "a\ufffd[2J\ufffdb\ufffd"
    assert printable("größe 寿", 8) == "größe 寿"


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0.0 s"),
        (59.94, "59.9 s"),
        (60, "1 min 0 s"),
        (3_725, "1 h 2 min"),
        (190_000, "2 d 4 h"),
        (9e8, "10,416 d 16 h"),
    ],
)
def test_durations(seconds: float, expected: str) -> None:
    assert duration(seconds) == expected
