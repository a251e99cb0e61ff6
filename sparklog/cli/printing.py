"""Untrusted texts, and durations, for a terminal. Does not use rich."""

from __future__ import annotations


def printable(text: str, chars_max: int) -> str:
    """Return a text as one line of at most `chars_max` characters, without control characters.

    Clients choose the names of groups and transactions, which could contain commands of the terminal.
    """
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[: chars_max + 1])
    return shown if len(shown) <= chars_max else shown[: chars_max - 1] + "…"


def duration(seconds: float) -> str:
    """Return a duration in one or two units: "3.2 s", "12 min 5 s", "4 h 10 min", "3 d 2 h"."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for size_s, unit, below_s, below in ((86_400, "d", 3_600, "h"), (3_600, "h", 60, "min")):
        if whole >= size_s:
            return f"{whole // size_s:,} {unit} {whole % size_s // below_s} {below}"
    return f"{whole // 60} min {whole % 60} s"
