"""The running calls of DuckDB in this process, and their end before the end of the interpreter.

A daemon thread that is inside DuckDB when the interpreter is taken down aborts the process: Python ends such a thread
in a way that C++ does not survive.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from types import TracebackType

from sparklog.errors import ClosedError

_TICK_S = 0.05


class Calls(contextlib.ContextDecorator):
    """A context manager and decorator for calls of DuckDB, which counts the threads inside."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.Lock())
        self._inside = 0
        self._process_ends = False

    def __enter__(self) -> None:
        """Enter a call. Raises ClosedError if the process ends and this is not the main thread."""
        with self._changed:
            if self._process_ends and threading.current_thread() is not threading.main_thread():
                raise ClosedError("the process ends")
            self._inside += 1

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def end(self, interrupt: Callable[[], None], timeout_s: float) -> None:
        """Refuse further calls of daemon threads, and interrupt the running ones until they have ended."""
        until_s = time.monotonic() + timeout_s
        with self._changed:
            self._process_ends = True
        while self._inside and time.monotonic() < until_s:
            interrupt()  # again: an interrupt before the start of a statement has no effect
            with self._changed:
                self._changed.wait_for(lambda: not self._inside, _TICK_S)

    def reset(self) -> None:
        """Forget the calls of the parent in a forked child, which lacks their threads."""
        self.__init__()  # type: ignore[misc]


CALLS = Calls()
"""The calls of all sessions of this process."""
