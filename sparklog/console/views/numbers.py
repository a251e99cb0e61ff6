"""Numbers, sizes, rates and times as text."""

from __future__ import annotations

from datetime import UTC, datetime

NONE = "–"


def number(value: float | None) -> str:
    """Return a number with commas; a dash for None, which is unknown."""
    return NONE if value is None else f"{value:,.0f}"


def size(size_bytes: float | None) -> str:
    """Return a size with a unit: 1536 gives "1.5 KiB". None and negative sizes are unknown and give a dash."""
    if size_bytes is None or size_bytes < 0:
        return NONE
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:,.1f} TiB"


def rate(per_second: float | None) -> str:
    """Return a rate per second, with a decimal digit below 10; a dash for None."""
    if per_second is None:
        return NONE
    return f"{per_second:,.1f}/s" if 0 < per_second < 10 else f"{per_second:,.0f}/s"


def time(timestamp_ms: int | None) -> str:
    """Return a time as ISO 8601 in UTC with milliseconds; the number itself outside of Python's calendar, and a dash
    for None and negative times, which are unknown."""
    if timestamp_ms is None or timestamp_ms < 0:
        return NONE
    try:
        at = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return at.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def age(duration_ms: int | None) -> str:
    """Return a duration in the largest unit of days, hours and minutes of which it has at least two, else in seconds; a
    dash if it is unknown (None or negative)."""
    if duration_ms is None or duration_ms < 0:
        return NONE
    seconds = duration_ms / 1000
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.1f} s"
