"""A pipe by which a child process notices the end of its parent, however the parent ends.

The child's standard input is the read end of the pipe. Only the parent has the write end, and it writes nothing. The
child reads the end of the file when the parent has exited, was killed, or has closed the lifeline. Other ways are less
reliable: the kernel's PR_SET_PDEATHSIG fires when the *thread* that started the child ends, and a child that watches
its parent's id has to poll.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading

__all__ = ["Lifeline", "has_ended"]

_lock = threading.RLock()
"""Held while a lifeline is created. A fork in between would give the child a write end that `_after_fork` does not
know."""
_held: set[Lifeline] = set()


class Lifeline:
    """The parent's side of the pipe. `read_end`: the child's standard input. Call `cut` when the child has to end, or
    has ended."""

    def __init__(self) -> None:
        """Open a pipe. Raises OSError if the process has no descriptors left."""
        with _lock:
            self.read_end, self._write_end = os.pipe()  # neither is inherited by a program that is executed
            _held.add(self)

    def hand_over(self) -> None:
        """Close this process's copy of the read end, after the child has been started."""
        read_end, self.read_end = self.read_end, -1
        if read_end >= 0:
            os.close(read_end)

    def cut(self) -> None:
        """Close the pipe, so that the child reads the end of the file. Further calls do nothing."""
        self.hand_over()
        with _lock:
            _held.discard(self)
            write_end, self._write_end = self._write_end, -1
        if write_end >= 0:
            os.close(write_end)


def has_ended(read_end: int) -> bool:
    """Return True if the parent has cut the lifeline or has ended. The call does not wait."""
    poll = select.poll()
    poll.register(read_end, select.POLLIN)
    return bool(poll.poll(0))


def _after_fork() -> None:
    """Close all lifelines in a forked child, which would otherwise keep its parent's other children alive."""
    global _lock
    _lock = threading.RLock()
    for lifeline in list(_held):
        lifeline.cut()


def _release() -> None:
    """Release the lock in the parent of a fork.

    A fork that began in another thread before this module was imported, as PySpark's start of Java does, calls this
    without having taken the lock.
    """
    with contextlib.suppress(RuntimeError):
        _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=lambda: _lock.acquire(), after_in_parent=_release, after_in_child=_after_fork)
