"""A child process that ends with its parent, however that ends.

The child's standard input is the read end of a pipe. Only the parent holds the write end, and writes nothing: the child
reads the end of the file when the parent has exited, was killed, or has closed the lifeline. Other ways do less: the
kernel's PR_SET_PDEATHSIG fires when the *thread* that started the child ends, and a child that looks at its parent's
id has to poll.
"""

from __future__ import annotations

import os
import select
import threading

__all__ = ["Lifeline", "has_ended"]

_lock = threading.RLock()
"""Held while a lifeline is made: a fork meanwhile would leave the child with a write end that it does not know of."""
_held: set[Lifeline] = set()


class Lifeline:
    """`read_end` is the child's standard input; `cut` the lifeline when the child is to end, or has."""

    def __init__(self) -> None:
        """Open a pipe. Raises OSError if the process has no descriptors left."""
        with _lock:
            self.read_end, self._write_end = os.pipe()  # neither is inherited by a program that is executed
            _held.add(self)

    def hand_over(self) -> None:
        """Close this process's copy of the read end; the child has been started."""
        read_end, self.read_end = self.read_end, -1
        if read_end >= 0:
            os.close(read_end)

    def cut(self) -> None:
        """Let the child read the end of the file. Again is fine."""
        self.hand_over()
        with _lock:
            _held.discard(self)
            write_end, self._write_end = self._write_end, -1
        if write_end >= 0:
            os.close(write_end)


def has_ended(read_end: int) -> bool:
    """True if the parent has cut the lifeline, or has ended. Does not wait."""
    poll = select.poll()
    poll.register(read_end, select.POLLIN)
    return bool(poll.poll(0))


def _after_fork() -> None:
    """Close the lifelines in a forked child: it keeps none of its parent's children alive."""
    global _lock
    _lock = threading.RLock()
    for lifeline in list(_held):
        lifeline.cut()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _lock.acquire(), after_in_parent=lambda: _lock.release(), after_in_child=_after_fork
    )
