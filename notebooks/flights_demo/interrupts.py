"""Ctrl-C and SIGTERM: noted when they come, raised as KeyboardInterrupt where the program waits.

An exception out of a signal handler can come up anywhere, also inside an import, a destructor or a fork hook, where
Python prints and then drops it. So the first signal is only noted; every wait asks `check` ten times a second. One
that comes later, while the program has still not got to a wait, is raised on the spot.
"""

from __future__ import annotations

import os
import signal
import time
from types import FrameType

EXIT_STATUS = {signal.SIGINT: 130, signal.SIGTERM: 143}

PATIENCE_S = 3.0

_program = 0
_received: int | None = None
_received_at = 0.0


def install() -> None:
    """Takes over SIGINT and SIGTERM. To be called by the main thread."""
    global _program, _received
    _program, _received = os.getpid(), None
    for number in EXIT_STATUS:
        signal.signal(number, _on_signal)


def _on_signal(number: int, _frame: FrameType | None) -> None:
    global _received, _received_at
    if os.getpid() != _program:  # a child between fork and exec is this program only for a moment
        return
    now = time.monotonic()
    if _received is None:
        _received, _received_at = number, now
    elif now - _received_at > PATIENCE_S:
        raise KeyboardInterrupt


def check() -> None:
    """Raises KeyboardInterrupt if a signal has come."""
    if _received is not None:
        raise KeyboardInterrupt


def ignore() -> None:
    """From here on everything is being stopped: an impatient Ctrl-C must not keep it from that."""
    for number in EXIT_STATUS:
        signal.signal(number, signal.SIG_IGN)


def exit_status() -> int:
    """What a shell expects of a program that a signal has ended: 130 or 143."""
    return EXIT_STATUS[signal.Signals(_received or signal.SIGINT)]
