"""Durations of options: with a unit, or as a plain number of the option's unit."""

from __future__ import annotations

import pytest
import typer

from sparklog.cli.durations import parse_number_or_ms, parse_seconds


def test_a_plain_number_has_the_unit_of_the_option() -> None:
    assert parse_seconds("5", "--interval", 0.1, 60) == parse_seconds("5s", "--interval", 0.1, 60) == 5
    assert parse_seconds("0.5", "--interval", 0.1, 60) == 0.5
    assert parse_number_or_ms("1000", "--interval", 1, 1) == parse_number_or_ms("1s", "--interval", 1, 1) == 1_000
    for wrong in ("-1", "１", "nan", "1e1", ""):
        with pytest.raises(typer.BadParameter):
            parse_seconds(wrong, "--interval", 0.1, 60)
