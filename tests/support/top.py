"""Output of a terminal of a given width."""

from __future__ import annotations

import io

from rich.console import Console, RenderableType


def text(renderable: RenderableType, width: int = 160) -> str:
    file = io.StringIO()
    Console(file=file, width=width, highlight=False, markup=False).print(renderable)
    return file.getvalue()
