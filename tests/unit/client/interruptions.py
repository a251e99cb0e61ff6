"""Interrupts a call, as Ctrl-C does, at any of the lines that it runs through."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

Trace = Callable[[FrameType, str, Any], Any]


class Stopped(BaseException):
    """As KeyboardInterrupt, which pytest would take for its own."""


def stop() -> None:
    raise Stopped


@contextmanager
def interrupted_at(
    line: int, modules: tuple[str, ...], *, but: tuple[str, ...] = (), by: Callable[[], None] = stop
) -> Iterator[list[bool]]:
    """Calls `by` at the `line`-th line of these modules that is reached, not counting those `but`. Yields a list that
    is not empty if that many were."""
    left = line
    reached: list[bool] = []

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(modules):
            return None
        text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        # A `with` is traced again when its block is left, before the lock is released: no signal arrives there.
        if event == "line" and text not in but and not text.startswith("with "):
            left -= 1
            if left == 0:
                reached.append(True)
                by()
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        yield reached
    finally:
        sys.settrace(previous)
