"""A progress bar below a cell of a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

INTERVAL_S = 0.2
"""Shortest time between two updates of a bar."""

Show = Callable[[int, int], None]
"""Takes the number of offsets read, and of rows returned."""


def progress_html(done: int, total: int, rows: int) -> str:
    """Return a bar as HTML."""
    percent = 100 if total <= 0 else min(100, done * 100 // total)
    return f'<progress max="100" value="{percent}" style="width:20em"></progress> {percent} % · {rows:,} rows'


def notebook_bar(total: int) -> Show | None:
    """Return a function that updates a new bar; None outside of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or type(shell).__name__ != "ZMQInteractiveShell":
        return None
    from IPython import display as shown

    html, display = (getattr(shown, name) for name in ("HTML", "display"))  # they have no types
    handle: Any = display(html(progress_html(0, total, 0)), display_id=True)
    if handle is None:
        return None
    next_at = time.monotonic() + INTERVAL_S

    def show(done: int, rows: int) -> None:
        nonlocal next_at
        if done >= total or time.monotonic() >= next_at:
            next_at = time.monotonic() + INTERVAL_S
            handle.update(html(progress_html(done, total, rows)))

    return show
