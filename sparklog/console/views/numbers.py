"""Numbers, sizes and times as text."""

from __future__ import annotations

from datetime import UTC, datetime

NONE = "–"


def number(value: float | None) -> str:
    """Return the number with commas; a dash for None, an unknown value."""
    return NONE if value is None else f"{value:,.0f}"


def size(size_bytes: float | None) -> str:
    """Return a size with a unit: 1536 gives "1.5 KiB". A dash for an unknown value: None, or negative."""
    if size_bytes is None or size_bytes < 0:
        return NONE
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:,.1f} TiB"


def rate(per_second: float | None) -> str:
    """Return the rate per second, with a decimal digit if it is small."""
    if per_second is None:
        return NONE
    return f"{per_second:,.1f}/s" if 0 < per_second < 10 else f"{per_second:,.0f}/s"


def time(timestamp_ms: int | None) -> str:
    """Return the time as ISO 8601 in UTC with milliseconds; the bare number beyond the calendar's end, a dash for an
    unknown time."""
    if timestamp_ms is None or timestamp_ms < 0:
        return NONE
    try:
        at = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return at.isoformat(sep=" ", timespec="milliseconds").replace("+00:00", "Z")


def age(duration_ms: int | None) -> str:
    """Return a duration, in the unit that fits."""
    if duration_ms is None or duration_ms < 0:
        return NONE
    seconds = duration_ms / 1000
    for unit, length_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length_s:
            return f"{seconds / length_s:.0f} {unit}"
    return f"{seconds:.1f} s"
