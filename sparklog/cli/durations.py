"""Times on the command line: a number with a unit."""

from __future__ import annotations

import re

import typer

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_duration_ms(text: str) -> int:
    """`90s`, `10m`, `2h`, `1d`, `500ms` in milliseconds. Raises typer.BadParameter."""
    found = re.fullmatch(r"(\d{1,12})(ms|s|m|h|d)", text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r}: a number with ms, s, m, h or d is needed, as in 10m")
    return int(found[1]) * _UNITS_MS[found[2]]


def parse_seconds(text: str, option: str, minimum_s: float, maximum_s: float) -> float:
    """The same in seconds. Raises typer.BadParameter, which names `option`, for one that is out of bounds."""
    seconds = parse_duration_ms(text) / 1000
    if not minimum_s <= seconds <= maximum_s:
        raise typer.BadParameter(f"{option} {text}: {minimum_s:g} s to {maximum_s:g} s")
    return seconds
