"""Options with a point in time or a position in a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from sparklog.cli.durations import now_ms
from sparklog.errors import InvalidRequestError
from sparklog.times import parse_time_ms

if TYPE_CHECKING:
    from sparklog.client.reading.positions import Position


def time_option(text: str, option: str) -> int:
    """Return a time such as `-1h` or `yesterday` in ms since 1970. Raises typer.BadParameter that names `option`."""
    try:
        return parse_time_ms(text, now_ms())
    except InvalidRequestError as e:
        raise typer.BadParameter(f"{option}: {e}") from e


def position_option(text: str, option: str) -> Position:
    """Return a position in a topic: `earliest`, `latest`, an offset, `-100` or a time. Raises typer.BadParameter that
    names `option`."""
    from sparklog.client.reading.positions import parse_position

    try:
        return parse_position(text, now_ms())
    except InvalidRequestError as e:
        raise typer.BadParameter(f"{option} {e}") from e
