"""The pictures of the published rows: how sparklog compares, and how far the runs differ among themselves.

Rows in which more is better and rows in which less is better have a panel each, so that the right side of a panel has
one meaning. Within a panel the rows are grouped by what they measure. Figures stand in columns beside the bars, where
nothing can lie over them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .results import RowResult, median_of

GREEN, RED, GREY, BLUE = "#2a7f62", "#c0562f", "#8a8a8a", "#5b6c8f"
_LINE_INCHES = 0.27
_FROM_PREFIX = {
    "produce": "Producing",
    "consume": "Consuming",
    "latency": "Latency",
    "spark": "Spark",
    "disk": "Disk and memory",
    "memory": "Disk and memory",
    "start": "Operating",
    "recovery": "Operating",
    "create": "Operating",
    "partitions": "Many partitions",
    "security": "Security",
    "cluster": "Several brokers",
}
_LIMITS = "Against the limit: a raw loop, or a Python source that does nothing"
_GROWTH = "Growing: against sparklog itself, smaller"


class Line(NamedTuple):
    """One line of a panel: a group's heading (`row` None) or a row."""

    label: str
    row: RowResult | None


def more_is_better(row: RowResult) -> bool:
    """Rates are better when they are higher; times, sizes and costs when they are lower."""
    return row.unit.split(" ")[0].endswith("/s")


def group_of(row: RowResult) -> str:
    """What the row measures, in words."""
    if row.peer.startswith("sparklog") and not row.name.startswith("security-"):
        return _GROWTH
    if not any(name in row.peer for name in ("Kafka", "kafka", "sparklog")):
        return _LIMITS
    return _FROM_PREFIX.get(row.name.split("-")[0], "Other")


def lines_of(rows: Sequence[RowResult]) -> list[Line]:
    """The rows under their groups' headings; groups come in the order of their first rows, the limits last."""
    groups: dict[str, list[RowResult]] = {}
    for row in rows:
        groups.setdefault(group_of(row), []).append(row)
    ordered = sorted(groups, key=lambda name: name in (_LIMITS, _GROWTH))
    return [line for name in ordered for line in (Line(name, None), *(Line(r.title, r) for r in groups[name]))]


def draw(rows: Sequence[RowResult], directory: Path) -> list[tuple[str, str]]:
    """Draws what there is to draw into `directory`; returns (file name, caption) of each picture."""
    good = [r for r in rows if r.ratio]
    if not good:
        return []
    _figure(good, directory / "ratios.png", _ratio_bar, "sparklog / peer (medians); the line is the goal")
    _figure(good, directory / "runs.png", _runs, "every run / the peer's median: green sparklog, blue the peer")
    return [
        ("ratios.png", "sparklog / peer per row, with the goals: above, more is better; below, less is better"),
        ("runs.png", "every run of both sides"),
    ]


def _figure(rows: Sequence[RowResult], path: Path, mark: Callable[[Any, int, RowResult], None], label: str) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sides = (
        ("More is better: bars to the right are faster than the peer", [r for r in rows if more_is_better(r)]),
        ("Less is better: bars to the left cost less than the peer", [r for r in rows if not more_is_better(r)]),
    )
    panels = [(title, lines_of(chosen)) for title, chosen in sides if chosen]
    heights = [len(lines) + 3 for _, lines in panels]
    figure, all_axes = pyplot.subplots(
        len(panels), 1, figsize=(8, _LINE_INCHES * sum(heights)), height_ratios=heights, squeeze=False
    )  # fmt: skip
    figure.subplots_adjust(hspace=0.12)
    for (title, lines), (axes,) in zip(panels, all_axes, strict=True):
        _panel(axes, title, lines, mark)
        axes.set_xlabel(label, fontsize=9)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    pyplot.close(figure)


def _panel(axes: Any, title: str, lines: Sequence[Line], mark: Callable[[Any, int, RowResult], None]) -> None:
    beside = axes.get_yaxis_transform()  # x in shares of the panel's width, y as the data
    for text, x in (("ratio", 1.10), ("goal", 1.22), ("against", 1.25)):
        axes.text(x, -1.1, text, transform=beside, ha="left" if text == "against" else "right", fontsize=8, color=GREY)
    for y, (label, row) in enumerate(lines):
        if row is None:
            axes.text(-0.01, y, label, transform=beside, ha="right", va="center", weight="bold", fontsize=9)
            continue
        mark(axes, y, row)
        axes.text(-0.01, y, label, transform=beside, ha="right", va="center", fontsize=8)
        for text, x, align in (
            (f"{row.ratio:.3g}x", 1.10, "right"),
            ("" if row.goal is None else str(row.goal), 1.22, "right"),
            (row.peer, 1.25, "left"),
        ):
            axes.text(x, y, text, transform=beside, ha=align, va="center", fontsize=8)
    axes.set_title(title, loc="left", fontsize=11, weight="bold")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}x")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_ylim(len(lines) - 0.3, -0.7)
    axes.set_yticks([])
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _ratio_bar(axes: Any, y: int, row: RowResult) -> None:
    assert row.ratio is not None
    colour = {True: GREEN, False: RED, None: GREY}[row.goal_met]
    axes.barh(y, row.ratio - 1, left=1, color=colour, height=0.6)
    if row.goal is not None:
        axes.plot([row.goal.ratio] * 2, [y - 0.42, y + 0.42], color="black", linewidth=2)


def _runs(axes: Any, y: int, row: RowResult) -> None:
    base = median_of(row.other)
    for side, offset, colour in ((row.sparklog, -0.17, GREEN), (row.other, 0.17, BLUE)):
        axes.scatter([m.value / base for m in side], [y + offset] * len(side), s=12, color=colour)
