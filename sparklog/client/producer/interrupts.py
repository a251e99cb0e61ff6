"""Signals, where a piece of work must not be left half done."""

from __future__ import annotations

import os
import signal as signals
import threading
from types import FrameType, TracebackType
from typing import Any

try:  # what `signal` wraps: to make enums of numbers and handlers takes ten times as long as the rest
    from _signal import getsignal, signal  # type: ignore[import-not-found]
except ImportError:
    from signal import getsignal, signal

_NUMBERS = tuple(int(getattr(signals, n)) for n in ("SIGINT", "SIGTERM", "SIGALRM") if hasattr(signals, n))


class InterruptsDeferred:
    """`with InterruptsDeferred():` keeps the Python handlers of SIGINT, SIGTERM and SIGALRM, which may raise or use
    what is being worked on, from being called inside; they are called at the end instead. For work of microseconds.
    Handlers run on the main thread only: on others it does nothing."""

    __slots__ = ("_came", "_handlers")
    current: InterruptsDeferred | None = None

    def __init__(self) -> None:
        self._handlers: dict[int, Any] = {}
        self._came: list[tuple[int, FrameType | None]] = []

    def __enter__(self) -> InterruptsDeferred:
        if threading.current_thread() is threading.main_thread():
            for number in _NUMBERS:
                handler = getsignal(number)
                if callable(handler):  # else no Python code is called
                    self._defer(number, handler)
        return self

    def _defer(self, number: int, handler: Any) -> None:
        InterruptsDeferred.current = self
        self._handlers[number] = handler  # first: whatever happens, it is put back
        try:
            signal(number, self._note)
        except ValueError:  # another interpreter's thread is the one that handlers run on
            del self._handlers[number]

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.put_back()
        self._deliver()

    def _deliver(self) -> None:
        if not self._came:
            return
        number, frame = self._came.pop(0)
        handler = getsignal(number)
        try:
            if callable(handler):
                handler(number, frame)
        finally:
            self._deliver()

    def put_back(self) -> None:
        """Signals that come from now on are not deferred."""
        for number, handler in self._handlers.items():
            signal(number, handler)
        InterruptsDeferred.current = None

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._came.append((number, frame))


def _put_back_after_fork() -> None:
    """In a child that another thread has forked: nobody returns there from what is deferred."""
    if InterruptsDeferred.current is not None and threading.current_thread() is threading.main_thread():
        InterruptsDeferred.current.put_back()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_put_back_after_fork)
