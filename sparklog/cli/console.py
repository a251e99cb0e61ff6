"""Rich consoles and tables, and numbers, sizes and times as text.

Import this module inside command functions only: `rich` would slow down the start of every command.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

from rich.console import Console, RenderableType
from rich.table import Table

from sparklog.errors import one_line

_PIPE_WIDTH = 200


def stdout() -> Console:
    """Return the console for results. Without a terminal its width is 200 columns, so that few lines are wrapped."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False, markup=False)


def stderr() -> Console:
    """Return the console for progress bars and notes."""
    return Console(stderr=True, highlight=False, markup=False)


class _Table(Table):
    """A table that escapes its cells: a group id or a record's value could contain terminal commands or newlines."""

    def add_row(self, *cells: RenderableType | None, **more: Any) -> None:
        super().add_row(*(one_line(cell) if isinstance(cell, str) else cell for cell in cells), **more)


def table(*headings: str, right: tuple[str, ...] = ()) -> Table:
    """Return an empty table. The columns named in `right` are aligned to the right."""
    new_table = _Table(show_edge=False, pad_edge=False, header_style="bold")
    for heading in headings:
        new_table.add_column(one_line(heading), justify="right" if heading in right else "left", overflow="fold")
    return new_table


def number(value: float) -> str:
    return f"{value:,.0f}"


def size(size_bytes: float) -> str:
    """Return a size with a unit: 1536 gives "1.5 KiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size_bytes) < 1024:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def time(timestamp_ms: int) -> str:
    """Return a timestamp as ISO 8601 in UTC; "-" for a negative one, which means no timestamp."""
    if timestamp_ms < 0:
        return "-"
    return iso_time(timestamp_ms)


def iso_time(timestamp_ms: int) -> str:
    """Return a timestamp as ISO 8601 in UTC with milliseconds; the number itself outside of Python's calendar."""
    try:
        at = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return str(timestamp_ms)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")
