"""Durations and sizes with units, as in `7d`, `1h30m`, `1MB` and `512KiB`. Pure.

Settings and options of the command line are parsed with this module, so that all times and sizes take the same units.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

DURATION_UNITS_MS: Mapping[str, int] = {
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
SIZE_UNITS_BYTES: Mapping[str, int] = {
    "B": 1,
    **{f"{prefix}B": 1_000**power for power, prefix in enumerate("kMGTP", 1)},
    **{f"{prefix}iB": 1_024**power for power, prefix in enumerate("KMGTP", 1)},
}
DURATION_HELP = "a number with ms, s, m, h, d or w, as in 90s, 7d or 1h30m"
SIZE_HELP = "a number with B, kB, MB, GB, TB (powers of 1000) or KiB, MiB, GiB, TiB (powers of 1024), as in 50MB"
UNIT_MS = {"ms": 1, "s": 1_000, "minutes": 60_000}
"""Length in ms of each unit in which a setting with a time is declared."""
UNIT_BYTES = {"bytes": 1, "bytes/s": 1}
"""Size in bytes of each unit in which a setting with a size is declared."""

_SYNONYMS = {
    "ms": "ms millisecond milliseconds",
    "s": "s sec secs second seconds",
    "m": "m min mins minute minutes",
    "h": "h hour hours",
    "d": "d day days",
    "w": "w week weeks",
}
_DURATION_WORDS = {word: unit for unit, words in _SYNONYMS.items() for word in words.split()}
_SIZE_WORDS = {
    word: factor
    for unit, factor in SIZE_UNITS_BYTES.items()
    for word in {unit.lower(), unit.lower().removesuffix("b") or "b"}
}
_NUMBER = r"\d{1,18}(?:\.\d{1,9})?"
_DURATION_PART = re.compile(rf"({_NUMBER})\s*([a-z]+)\s*", re.ASCII | re.IGNORECASE)
_SIZE = re.compile(rf"({_NUMBER})\s*([a-z]+)(/s)?", re.ASCII | re.IGNORECASE)


def parse_duration_ms(text: str) -> int:
    """Return a duration in ms. In the text larger units come first, each at most once: `1d12h`. `text`: one or more
    numbers, each with its unit. Raises ValueError: The text is not a duration, or not a whole number of ms."""
    text = text.strip()
    total, at, smallest = Fraction(0), 0, max(DURATION_UNITS_MS.values()) + 1
    while at < len(text):
        match = _DURATION_PART.match(text, at)
        if match is None:
            raise ValueError(f"{text!r}: {DURATION_HELP} is needed")
        # M stands for months or for mega elsewhere
        factor = None if match[2] == "M" else DURATION_UNITS_MS.get(_DURATION_WORDS.get(match[2].lower(), ""))
        if factor is None or factor >= smallest:
            raise ValueError(f"{text!r}: {DURATION_HELP} is needed")
        total, smallest, at = total + Fraction(match[1]) * factor, factor, match.end()
    if not at:
        raise ValueError(f"{text!r}: {DURATION_HELP} is needed")
    return _whole(total, text, "ms")


def parse_size_bytes(text: str) -> int:
    """Return a size in bytes. The unit can be in upper or lower case, without its B, and with `/s` behind it. Raises
    ValueError: The text is not a size, or not a whole number of bytes."""
    match = _SIZE.fullmatch(text.strip())
    factor = None if match is None else _SIZE_WORDS.get(match[2].lower())
    if match is None or factor is None:
        raise ValueError(f"{text!r}: {SIZE_HELP} is needed")
    return _whole(Fraction(match[1]) * factor, text, "bytes")


def takes_units(unit: str) -> bool:
    """Return True if the value of a setting with this unit can be a text with another unit, such as `7d`."""
    return unit in UNIT_MS or unit in UNIT_BYTES


def parse_in_unit(text: str, unit: str) -> int:
    """Return a duration or a size as a number of a setting's unit. `unit`: the unit of the result: one of UNIT_MS and
    UNIT_BYTES. Raises ValueError: The text has another form, or is not a whole number of the unit."""
    if unit in UNIT_BYTES:
        return parse_size_bytes(text)
    return _whole(Fraction(parse_duration_ms(text), UNIT_MS[unit]), text, unit)


def help_of(unit: str) -> str:
    """Return the allowed forms of a setting's value with a unit, for an error message."""
    return SIZE_HELP if unit in UNIT_BYTES else DURATION_HELP


def _whole(value: Fraction, text: str, unit: str) -> int:
    if value.denominator != 1:
        raise ValueError(f"{text!r}: not a whole number of {unit}")
    return value.numerator
