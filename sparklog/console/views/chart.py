"""Line charts as points of an inline SVG. The style sheet has their style, because the content security policy forbids
inline styles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sparklog.console.views.numbers import number, time

WIDTH, HEIGHT = 640, 140
MARGIN, TOP, BOTTOM = 4, 8, 4


class Chart(NamedTuple):
    """A line chart in a box of WIDTH by HEIGHT."""

    lines: tuple[str, ...]
    """Points of the pieces of the line, which is interrupted at unknown values."""
    largest: str
    first: str
    """Time of the first value."""
    last: str
    """Time of the last value."""
    label: str
    """The chart in words."""
    width: int = WIDTH
    height: int = HEIGHT


def line_chart(samples: Sequence[tuple[int, int | None]], title: str) -> Chart | None:
    """Return a chart of (ms since 1970, value) pairs in order of time; None with fewer than two known values.

    `title` is the name of the values, for the label.
    """
    points = [(t, v) for t, v in samples if v is not None]
    if len(points) < 2 or points[0][0] == points[-1][0]:
        return None
    start, end = points[0][0], points[-1][0]
    highest = max(1, max(v for _, v in points))

    def point(time_ms: int, value: int) -> str:
        x = MARGIN + (time_ms - start) / (end - start) * (WIDTH - 2 * MARGIN)
        y = HEIGHT - BOTTOM - value / highest * (HEIGHT - TOP - BOTTOM)
        return f"{x:.1f},{y:.1f}"

    pieces: list[list[str]] = [[]]
    for time_ms, value in samples:
        if value is None:
            pieces.append([])
        elif start <= time_ms <= end:
            pieces[-1].append(point(time_ms, value))
    lines = tuple(" ".join(p) for p in pieces if len(p) > 1)
    label = (
        f"{title} from {time(start)} to {time(end)}: {number(points[0][1])} at first, {number(points[-1][1])} now, at "
        "most "
        f"{number(max(v for _, v in points))}"
    )
    return Chart(lines, number(highest), time(start), time(end), label)
