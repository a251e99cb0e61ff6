"""Ctrl-C, where a piece of work must not be left half done."""

from __future__ import annotations

import threading
from signal import SIGINT
from types import FrameType, TracebackType
from typing import Any

try:  # what `signal` wraps: to make enums of numbers and handlers takes ten times as long as the rest
    from _signal import getsignal, signal  # type: ignore[import-not-found]
except ImportError:
    from signal import getsignal, signal

_SIGINT = int(SIGINT)


class InterruptsDeferred:
    """`with InterruptsDeferred():` keeps SIGINT's handler from being called inside; it is called at the end instead. For
    work of microseconds. Only the main thread is ever interrupted: on others it does nothing."""

    __slots__ = ("_handler", "_interrupted")

    def __init__(self) -> None:
        self._handler: Any = None
        self._interrupted: tuple[int, FrameType | None] | None = None

    def __enter__(self) -> InterruptsDeferred:
        if threading.current_thread() is threading.main_thread():
            handler = getsignal(_SIGINT)
            if callable(handler):  # else no Python code is called
                signal(_SIGINT, self._note)
                self._handler = handler
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        handler = self._handler
        if handler is None:
            return
        signal(_SIGINT, handler)
        if self._interrupted is not None:
            handler(*self._interrupted)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._interrupted = (number, frame)
