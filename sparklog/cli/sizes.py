"""Sizes on the command line: a number with a unit."""

from __future__ import annotations

import re

import typer

_UNITS = {"": 1, "k": 1_000, "m": 1_000**2, "g": 1_000**3, "t": 1_000**4}
_BINARY_UNITS = {"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40}


def parse_size_bytes(text: str, option: str) -> int:
    """`50MB`, `50MiB`, `512K`, `1000000` in bytes; "/s" behind it is fine. Raises typer.BadParameter, which names
    `option`."""
    found = re.fullmatch(r"(\d{1,15})\s*([kmgt]?|[kmgt]i)b?(/s)?", text.strip().lower())
    if found is None:
        raise typer.BadParameter(f"{option} {text!r}: a number with a unit is needed, as in 50MB or 50MiB")
    return int(found[1]) * {**_UNITS, **_BINARY_UNITS}[found[2]]
