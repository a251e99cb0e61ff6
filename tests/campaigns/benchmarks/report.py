"""Results as text: a line for the screen, a Markdown table, and the table of docs/benchmarks.md.

The page's table is the record of published figures. A report replaces the lines of the rows that were measured and
keeps the others, counts the goals again, and draws the picture from the table.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from . import pictures
from .results import Goal, Measurement, RowResult, median_field, summarize

COLUMNS = (
    "row", "against", "unit", "sparklog", "peer", "ratio", "goal", "server CPU s", "client CPU s", "server RSS MB",
    "client RSS MB", "bytes/record",
)  # fmt: skip
COSTS = ("server_cpu_s", "client_cpu_s", "server_rss_bytes", "client_rss_bytes", "bytes_per_record")
HEAD = f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|\n"
_TABLE = re.compile(r"(<!-- table: benchmarks -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)
_NAME = re.compile(r"\(`([a-z0-9-]+)`\) \|")
_NUMBER = re.compile(r"\*\*([\d.,]+)(?: ([kMG]))?\*\*")
_RATIO = re.compile(r"\*\*([\d.]+)x\*\*")
_GOAL = re.compile(r"([≥≤]) ([\d.]+)x")
_UNITS = {None: 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


def number(value: float) -> str:
    """Three significant digits, with k, M and G."""
    for limit, divisor, unit in ((1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e4, 1e3, " k")):
        if abs(value) >= limit:
            return f"{_significant(value / divisor)}{unit}"
    return _significant(value)


def _significant(value: float) -> str:
    size = abs(value)
    if size >= 100 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"


def spread(measurements: Sequence[Measurement]) -> str:
    """Minimum, median and maximum."""
    low, median, high = summarize(m.value for m in measurements)
    return f"{number(low)} · **{number(median)}** · {number(high)}"


def one_line(row: RowResult) -> str:
    """A row for the screen."""
    if row.failure:
        return f"{row.name}: FAILED: {row.failure}"
    met = {True: "goal met", False: "goal not met", None: "no goal"}[row.goal_met]
    ratio = "-" if row.ratio is None else f"{row.ratio:.2f}x"
    both = f"sparklog {spread(row.sparklog)}, {row.peer} {spread(row.other)} {row.unit}".replace("**", "")
    return f"{row.name}: {both}: {ratio} ({row.goal or 'none'}: {met})"


def line(row: RowResult) -> str:
    """A row of the table."""
    start = f"| {row.title} (`{row.name}`) | {row.peer} | {row.unit} |"
    goal = str(row.goal) if row.goal else "-"
    if row.failure:
        reason = " ".join(row.failure.split()).replace("|", "\\|")[:300]
        return f"{start} failed: {reason} | | | {goal} | | | | | |\n"
    met = {True: " ✓", False: " ✗", None: ""}[row.goal_met]
    ratio = "-" if row.ratio is None else f"**{row.ratio:.2f}x**"
    costs = " | ".join(_both(row, field, 1e6 if field.endswith("rss_bytes") else 1) for field in COSTS)
    return f"{start} {spread(row.sparklog)} | {spread(row.other)} | {ratio} | {goal}{met} | {costs} |\n"


def table(rows: Sequence[RowResult]) -> str:
    """All rows as a Markdown table."""
    return HEAD + "".join(map(line, rows))


def _both(row: RowResult, field: str, divisor: float) -> str:
    """Medians of both sides: `sparklog / peer`."""
    found = [median_field(side, field) for side in (row.sparklog, row.other)]
    if all(v is None for v in found):
        return "-"
    return " / ".join("-" if v is None else _significant(v / divisor) for v in found)


class Published(NamedTuple):
    """A row as the page has it. `ratio` is None if the row failed."""

    name: str
    title: str
    peer: str
    unit: str
    ratio: float | None
    goal: Goal | None
    goal_met: bool | None


def read_lines(page: str) -> dict[str, str]:
    """The table's lines by row. Raises ValueError for a page without the table."""
    found = _TABLE.search(page)
    if found is None:
        raise ValueError("docs/benchmarks.md has no '<!-- table: benchmarks -->' … '<!-- end of table -->': restore it")
    lines = found[2].splitlines(keepends=True)
    return {name[1]: text for text in lines if (name := _NAME.search(text))}


def parse(text: str) -> Published:
    """A line of the table as values; a small ratio comes from the medians, which have more digits."""
    title, peer, unit, ours, theirs, shown, goal = (cell.strip() for cell in re.split(r"(?<!\\)\|", text)[1:8])
    title, _, name = title.rpartition(" (")
    medians = [float(m[1].replace(",", "")) * _UNITS[m[2]] for m in (_NUMBER.search(ours), _NUMBER.search(theirs)) if m]
    ratio = float(found[1]) if (found := _RATIO.fullmatch(shown)) else None
    if ratio is not None and ratio < 0.1 and medians[1]:
        ratio = medians[0] / medians[1]
    wanted = _GOAL.search(goal)
    return Published(
        name=name.strip("`)"),
        title=title,
        peer=peer,
        unit=unit,
        ratio=ratio,
        goal=Goal(float(wanted[2]), at_least=wanted[1] == "≥") if wanted else None,
        goal_met={"✓": True, "✗": False}.get(goal[-1:]),
    )


def updated(page: str, measured: Mapping[str, RowResult], order: Sequence[str]) -> str:
    """The page with the lines of measured rows replaced, in the order of the rows, and goals counted again.

    Raises:
        ValueError: The page has no table, or a row was measured scaled down.
    """
    scaled = [r.name for r in measured.values() if r.scale != 1]
    if scaled:
        raise ValueError(f"{', '.join(scaled)} were measured scaled down: run them again without --scale")
    lines = read_lines(page) | {name: line(row) for name, row in measured.items()}
    kept = [lines[name] for name in order if name in lines]
    text = HEAD + "".join(kept)
    return _TABLE.sub(lambda m: f"{m[1]}{text}\n{summary([parse(one) for one in kept])}\n{m[3]}", page)


def summary(rows: Sequence[Published]) -> str:
    """The number of goals that are met. A failed row meets none."""
    wanted = [r for r in rows if r.goal is not None]
    return f"{sum(r.goal_met is True for r in wanted)} of {len(wanted)} goals are met; {len(rows)} rows."


def write(measured: Mapping[str, RowResult], order: Sequence[str], docs: Path) -> Path:
    """Write docs/benchmarks.md and its picture. Raises ValueError as `updated` does."""
    path = docs / "benchmarks.md"
    page = updated(path.read_text(encoding="utf-8"), measured, order)
    path.write_text(page, encoding="utf-8")
    pictures.draw([parse(text) for text in read_lines(page).values()], docs / "benchmarks" / "ratios.png")
    return path
