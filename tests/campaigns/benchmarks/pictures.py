"""The picture of the published rows.

Rows in which more is better and rows in which less is better have a panel each, so that the right side of a panel has
one meaning. Figures stand in columns beside the bars, where nothing covers them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .results import is_rate

if TYPE_CHECKING:
    from .report import Published

GREEN, RED, GREY = "#2a7f62", "#c0562f", "#8a8a8a"
_LINE_INCHES = 0.27


def draw(rows: Sequence[Published], path: Path) -> None:
    """Draw the rows that have a ratio into a PNG file."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    good = [r for r in rows if r.ratio]
    sides = (
        ("More is better: bars to the right are faster than the peer", [r for r in good if is_rate(r.unit)]),
        ("Less is better: bars to the left cost less than the peer", [r for r in good if not is_rate(r.unit)]),
    )
    panels = [(title, chosen) for title, chosen in sides if chosen]
    heights = [len(chosen) + 3 for _, chosen in panels]
    figure, all_axes = pyplot.subplots(
        len(panels), 1, figsize=(8, _LINE_INCHES * sum(heights)), height_ratios=heights, squeeze=False
    )  # fmt: skip
    figure.subplots_adjust(hspace=0.12)
    for (title, chosen), (axes,) in zip(panels, all_axes, strict=True):
        _panel(axes, title, chosen)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110, bbox_inches="tight")
    pyplot.close(figure)


def _panel(axes: Any, title: str, rows: Sequence[Published]) -> None:
    beside = axes.get_yaxis_transform()  # x in shares of the panel's width, y as the data
    columns = ((-0.01, "right"), (1.10, "right"), (1.22, "right"), (1.25, "left"))
    cells = [("", "ratio", "goal", "against"), *((r.title, f"{r.ratio:.3g}x", str(r.goal or ""), r.peer) for r in rows)]
    for y, line in enumerate(cells, -1):
        for text, (x, align) in zip(line, columns, strict=True):
            axes.text(
                x, y, text, transform=beside, ha=align, va="center", fontsize=8, color="black" if y >= 0 else GREY
            )
    ratios, places = [row.ratio or 0 for row in rows], range(len(rows))
    colours = [{True: GREEN, False: RED, None: GREY}[row.goal_met] for row in rows]
    axes.barh(places, [ratio - 1 for ratio in ratios], left=1, color=colours, height=0.6)
    goals = [(row.goal.ratio, y) for y, row in enumerate(rows) if row.goal is not None]
    axes.scatter([x for x, _ in goals], [y for _, y in goals], marker="|", color="black", s=90)
    axes.set_title(title, loc="left", fontsize=11, weight="bold")
    axes.set_xlabel("sparklog / peer (medians); the line is the goal", fontsize=9)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}x")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_ylim(len(rows) - 0.3, -1.7)
    axes.set_yticks([])
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right", "left"]].set_visible(False)
