"""Sizes on the command line: a number with a unit."""

from __future__ import annotations

import typer

from sparklog.units import parse_size_bytes as _parse


def parse_size_bytes(text: str, option: str) -> int:
    """Return a size such as `50MB`, `50MiB`, `512K`, `1000000` or `50MB/s` in bytes. Raises typer.BadParameter that
    names `option`."""
    try:
        return int(text) if text.strip().isascii() and text.strip().isdigit() and len(text) <= 18 else _parse(text)
    except ValueError as e:
        raise typer.BadParameter(f"{option} {e}") from e
