"""Standard streams that are closed, full, or not UTF-8."""

from __future__ import annotations

import io
import os
import sys

__all__ = ["abandon_stdout", "prepare"]


def prepare() -> None:
    """Make the standard streams usable, whatever they are.

    A stream that was closed before the start (`>&-`) gets its descriptor back, or the next file or connection would
    have it; writing to such a standard output fails. Characters that standard output cannot have are escaped; bytes of
    a path that is not UTF-8 are written as they are where that is possible.
    """
    for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):  # output: so that writing fails
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # the lowest descriptor that is free
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        is_utf8 = sys.stdout.encoding.lower().replace("-", "") == "utf8"
        sys.stdout.reconfigure(errors="surrogateescape" if is_utf8 else "backslashreplace")


def abandon_stdout() -> None:
    """Let nothing more be written: what standard output holds back would fail again at the interpreter's exit."""
    if sys.stdout is not None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
