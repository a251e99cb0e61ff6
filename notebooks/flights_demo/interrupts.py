"""Ctrl-C and SIGTERM: raised as KeyboardInterrupt in the main thread, and remembered.

Remembered, because Python drops an exception that is raised inside a destructor or a fork hook: the next wait raises it
again. And not raised in a child between fork and exec, which is this program only for a moment.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

EXIT_STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}

_program = 0
_received: int | None = None


def install() -> None:
    """Takes over SIGINT and SIGTERM. To be called by the main thread."""
    global _program, _received
    _program, _received = os.getpid(), None
    for number in EXIT_STATUS:
        signal.signal(number, _on_signal)


def _on_signal(number: int, _frame: FrameType | None) -> None:
    global _received
    if os.getpid() == _program:
        _received = number
        raise KeyboardInterrupt


def check() -> None:
    """Raises KeyboardInterrupt if a signal has come."""
    if _received is not None:
        raise KeyboardInterrupt


def ignore() -> None:
    """From here on everything is being stopped: a second, impatient Ctrl-C must not keep it from that."""
    for number in EXIT_STATUS:
        signal.signal(number, signal.SIG_IGN)


def exit_status() -> int:
    """What a shell expects of a program that a signal has ended: 130 or 143."""
    return EXIT_STATUS[signal.Signals(_received or signal.SIGINT)]
