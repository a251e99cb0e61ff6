"""Durations on the command line, and the current time."""

from __future__ import annotations

import re

import typer

from sparklog.units import parse_duration_ms as _parse_ms

_NUMBER = re.compile(r"\d{1,9}(?:\.\d{1,9})?", re.ASCII)


def parse_duration_ms(text: str) -> int:
    """Return a duration such as `90s`, `10m`, `1h30m`, `1d` or `500ms` in ms. Raises typer.BadParameter."""
    try:
        return _parse_ms(text)
    except ValueError as e:
        raise typer.BadParameter(str(e)) from e


def parse_number_or_ms(text: str, option: str, unit_ms: int, minimum_ms: int) -> int:
    """Parse a duration with a unit, or a plain number of units of `unit_ms`, and return it in ms. Raises
    typer.BadParameter that names `option`, also below `minimum_ms` and from 2^31 ms on."""
    try:
        value_ms = round(float(text) * unit_ms)
    except (ValueError, OverflowError):
        try:
            value_ms = _parse_ms(text)
        except ValueError as e:
            raise typer.BadParameter(f"{option} {e}") from e
    if not minimum_ms <= value_ms < 2**31:
        raise typer.BadParameter(f"{option} {text}: {minimum_ms} ms to {2**31 - 1} ms")
    return value_ms


def parse_seconds(text: str, option: str, minimum_s: float, maximum_s: float) -> float:
    """Return a duration with a unit, or a plain number of seconds, in seconds. Raises typer.BadParameter, with `option`
    if it is out of bounds."""
    seconds = float(text) if _NUMBER.fullmatch(text) else parse_duration_ms(text) / 1000
    if not minimum_s <= seconds <= maximum_s:
        raise typer.BadParameter(f"{option} {text}: {minimum_s:g} s to {maximum_s:g} s")
    return seconds


def now_ms() -> int:
    """Return the time on this machine's clock, in ms since 1970."""
    import time

    return time.time_ns() // 1_000_000
