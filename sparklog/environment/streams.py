"""Standard streams that are closed, full, or not UTF-8."""

from __future__ import annotations

import io
import os
import sys

__all__ = ["abandon_stdout", "prepare"]


def prepare() -> None:
    """Make the standard streams usable.

    A stream that was closed before the start (`>&-`) gets its descriptor back: otherwise the next file or connection
    would get that descriptor. Writes to a standard output that was closed fail. Characters outside the encoding of
    standard output are escaped. A UTF-8 output writes the bytes of a path that is not UTF-8 unchanged.
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
    """Discard further output: the buffered bytes of standard output would fail again at the interpreter's exit."""
    if sys.stdout is not None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
