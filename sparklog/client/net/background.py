"""Threads that work for a client in the background, and their end with the process.

They are daemon threads: a script that ends without `close` does not wait for them. But a daemon thread that is inside
Arrow when the interpreter is taken down aborts the process. So at exit, after the main thread and all other threads
that are no daemons have ended, the functions that `on_exit` has registered tell the daemon threads to end. The process
waits for these threads for at most EXIT_S.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections.abc import Callable

__all__ = ["daemon_thread", "on_exit"]

EXIT_S = 10.0
"""Longest time in s for which the process waits for all threads together. A thread that waits for a broker can take
longer; it is not inside Arrow then, and ends with the process."""

_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_tell: list[Callable[[], None]] = []


def daemon_thread(run: Callable[[], None], name: str) -> threading.Thread:
    """Return a daemon thread, not started. At exit the process waits for its end."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    _threads.add(thread)
    return thread


def on_exit(tell: Callable[[], None]) -> Callable[[], None]:
    """Register a function that tells threads to end. It is called once, at exit, and must not wait. Usable as a
    decorator."""
    if not _tell:
        atexit.register(_end)  # after that of `cluster`, whose connections the threads still need: so it runs before
    _tell.append(tell)
    return tell


def _end() -> None:
    for tell in _tell:
        tell()
    deadline = time.monotonic() + EXIT_S
    for thread in list(_threads):
        if thread.is_alive():
            thread.join(max(0.0, deadline - time.monotonic()))
